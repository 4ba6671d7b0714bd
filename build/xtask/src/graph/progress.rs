//! Progress of a run for people: one status line on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Width of the status line, columns.
const COLUMNS: usize = 100;

/// Form in which progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Terminal,
    Lines,
}

/// The progress of one run.
pub struct Progress {
    style: Style,
    state: Mutex<State>,
}

struct State {
    since: Instant,
    total: usize,
    done: usize,
    running: Vec<String>,
}

impl Progress {
    pub fn new(style: Style) -> Progress {
        let state = State {
            since: Instant::now(),
            total: 0,
            done: 0,
            running: vec![],
        };
        Progress {
            style,
            state: Mutex::new(state),
        }
    }

    /// Progress with a status line if standard error is a terminal.
    pub fn detect() -> Progress {
        Progress::new(match std::io::stderr().is_terminal() {
            true => Style::Terminal,
            false => Style::Lines,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let state = self.state.lock();
        state.expect("no thread panics while it holds this lock")
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        self.draw(&state);
    }

    pub(super) fn begin(&self, total: usize) {
        self.change(|state| (state.since, state.total, state.done) = (Instant::now(), total, 0));
    }

    pub(super) fn end(&self) {
        if self.style == Style::Terminal {
            eprint!("\r\x1b[K");
        }
    }

    pub(super) fn redraw(&self) {
        self.change(|_| ());
    }

    pub(super) fn hit(&self) {
        self.change(|state| state.done += 1);
    }

    pub(super) fn started(&self, label: &str) {
        self.line(&format!("run   {label}"));
        self.change(|state| state.running.push(label.to_string()));
    }

    pub(super) fn ended(&self, label: &str, took: Duration, well: bool) {
        let word = if well { "done " } else { "FAIL " };
        self.line(&format!("{word} {label} ({:.1} s)", took.as_secs_f32()));
        self.change(|state| {
            state.running.retain(|running| running != label);
            state.done += 1;
        });
    }

    /// Prints text above the status line.
    pub(super) fn note(&self, text: &str) {
        let _state = self.lock();
        match self.style {
            Style::Terminal => eprint!("\r\x1b[K{text}"),
            Style::Lines => eprint!("{text}"),
        }
    }

    fn line(&self, text: &str) {
        if self.style == Style::Lines {
            eprintln!("{text}");
        }
    }

    fn draw(&self, state: &State) {
        if self.style != Style::Terminal {
            return;
        }
        let (seconds, running) = (state.since.elapsed().as_secs(), state.running.join(", "));
        let line = format!("[{}/{}] {seconds} s  {running}", state.done, state.total);
        let line: String = line.chars().take(COLUMNS).collect();
        eprint!("\r\x1b[K{line}");
        let _ = std::io::stderr().flush();
    }
}
