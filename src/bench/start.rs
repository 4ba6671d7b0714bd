//! `bench start`: from the start of a process to READY.
//!
//! Each run is a process of its own that calls the same functions as `serve` before READY, except
//! for the socket; a binary that may not serve can be measured too. Only the page cache, and the
//! driver if a daemon keeps it loaded, stay warm between runs. Weights that are not in the page
//! cache are read directly, so runs hardly change the cache; `cat` of the files fills it.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use argh::{ArgsInfo, FromArgs};
use serde::{Deserialize, Serialize};

use super::{STANDARD_OUTPUT, usage, write};
use crate::start::boot::{self, Files};
use crate::start::exit::{Exit, Failure};
use engine::{Limits, Phase};
use model::target;
use model::weights::{Progress, Stage};

/// Version of the JSON file's layout, raised when a reader would misread the file.
const FORMAT: u32 = 1;
const GB: f64 = 1e9;

/// time the way from the start of a process to READY, stage by stage
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "start", help_triggers("--help"))]
pub struct StartOptions {
    /// directory that holds the weights, or packed file; none for a model inside the binary
    #[argh(positional)]
    weights: Option<PathBuf>,

    /// processes to start, one after the other; the medians count (default 3). 1 measures this
    /// process, from where it has read its command line
    #[argh(option, default = "3")]
    runs: usize,

    /// write the figures as JSON to this file, or to standard output if it is -
    #[argh(option)]
    json: Option<PathBuf>,
}

/// Measurement of one start, or the medians of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Report {
    format: u32,
    target: String,
    weights: String,
    runs: usize,
    total_s: f64,
    fastest_s: f64,
    slowest_s: f64,
    /// Stages in order; the times of one start add up to its total.
    stages: Vec<StageFigures>,
    /// Seconds until tokenizer and template are loaded, at the same time as the stages.
    text_s: f64,
    /// Bytes of weights that were read.
    bytes: u64,
    /// Bytes of weights that were read directly, bypassing the page cache.
    bytes_direct: u64,
    /// Reason why a file of the weights is read only through the page cache, if there is such a
    /// file.
    detour: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StageFigures {
    name: String,
    s: f64,
    /// Bytes of the weights, for the stage that reads them.
    bytes: Option<u64>,
    gb_s: Option<f64>,
}

impl StageFigures {
    fn new(name: &str, s: f64, bytes: Option<u64>) -> StageFigures {
        let rate = |bytes| bytes as f64 / GB / s.max(f64::MIN_POSITIVE);
        StageFigures {
            name: name.to_owned(),
            s,
            bytes,
            gb_s: bytes.map(rate),
        }
    }
}

/// # Errors
/// The reason why the model is not ready, or the figures cannot be written.
pub fn start(options: &StartOptions) -> Result<(), Failure> {
    if options.runs == 0 {
        return Err(usage("--runs must be at least 1"));
    }
    let files = Files::locate(options.weights.as_deref())?;
    if options.runs == 1 {
        return here(&files, |report| show(report, options));
    }
    let runs = (0..options.runs).map(|_| process(options.weights.as_deref()));
    let runs = runs.collect::<Result<Vec<_>, _>>()?;
    show(&Report::median(&runs), options)
}

/// Prints the table of a report, and writes its JSON if the options name a file.
fn show(report: &Report, options: &StartOptions) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(report).expect("plain numbers and strings") + "\n";
    match &options.json {
        // With JSON on standard output, the table goes to standard error.
        Some(path) if path.as_os_str() == STANDARD_OUTPUT => {
            boot::print(&json)?;
            eprint!("{}", report.table());
        }
        path => {
            boot::print(&report.table())?;
            path.as_ref().map_or(Ok(()), |path| write(path, &json))?;
        }
    }
    Ok(())
}

/// Starts the model in this process, passes the measurement to `show`, and ends the model.
fn here(files: &Files, show: impl FnOnce(&Report) -> Result<(), Failure>) -> Result<(), Failure> {
    let begun = Instant::now();
    boot::preflight(files, boot::THREADS)?;
    let progress = Arc::new(Progress::default());
    let limits = Limits::of(&target::FACTS);
    let started = boot::engine(files, &progress, None, limits.into());
    let (engine, thread, chat) = (started.handle, started.thread, started.chat);
    let broken = || Exit::Internal.failure("a thread broke down");
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime =
        runtime.map_err(|cause| Exit::Internal.failure(format!("no waiting: {cause}")))?;
    runtime.block_on(boot::chat_of(chat))?;
    let text_s = begun.elapsed().as_secs_f64();
    let serving = runtime.block_on(boot::reached(&engine, Phase::Serving)) == Phase::Serving;
    let total_s = begun.elapsed().as_secs_f64();
    let report = serving.then(|| {
        show(&Report {
            format: FORMAT,
            target: target::BINARY.to_owned(),
            weights: files.to_string(),
            runs: 1,
            total_s,
            fastest_s: total_s,
            slowest_s: total_s,
            stages: stages(begun, total_s, &progress),
            text_s,
            bytes: progress.bytes().0,
            bytes_direct: progress.bytes_direct(),
            detour: progress.detour().map(str::to_owned),
        })
    });
    engine.drain();
    match thread.join() {
        Ok(Err(error)) => Err(boot::engine_failure(&error)),
        Ok(Ok(())) => report.unwrap_or_else(|| Err(broken())),
        Err(_) => Err(broken()),
    }
}

/// Stages of a start: the time before the first stage of `progress`, then its stages.
fn stages(begun: Instant, total_s: f64, progress: &Progress) -> Vec<StageFigures> {
    let entered = progress.stages();
    let since = |at: Instant| at.duration_since(begun).as_secs_f64();
    let begins = entered.iter().map(|&(_, at)| since(at));
    let ends: Vec<_> = begins.clone().chain([total_s]).collect();
    let first = StageFigures::new("command line", ends[0], None);
    let others = entered.iter().zip(begins).zip(&ends[1..]);
    let others = others.map(|((&(stage, _), begin), end)| {
        let bytes = (stage == Stage::Loading).then(|| progress.bytes().0);
        StageFigures::new(stage.words(), end - begin, bytes)
    });
    [first].into_iter().chain(others).collect()
}

/// Starts the model in a new process; the report includes the time of starting the process.
fn process(weights: Option<&Path>) -> Result<Report, Failure> {
    let failed = |cause: String| Exit::Internal.failure(format!("a run failed: {cause}"));
    let this = std::env::current_exe().map_err(|cause| failed(cause.to_string()))?;
    let mut command = Command::new(this);
    command.args(["bench", "start"]).args(weights);
    command.args(["--runs", "1", "--json", STANDARD_OUTPUT]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let begun = Instant::now();
    let mut child = command.spawn().map_err(|cause| failed(cause.to_string()))?;
    let mut report = BufReader::new(child.stdout.take().expect("it is piped"));
    // The child prints its first bytes when the model is ready.
    let read = report.fill_buf().map(|_| begun.elapsed().as_secs_f64());
    let mut json = String::new();
    let read = read.and_then(|wall_s| report.read_to_string(&mut json).map(|_| wall_s));
    let output = child.wait_with_output();
    let output = output.map_err(|cause| failed(cause.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let message = format!("a run failed: {}\n{}", output.status, said.trim_end());
        let exit = output.status.code().and_then(Exit::of_code);
        let exit = exit.unwrap_or(Exit::Internal);
        return Err(exit.failure(message));
    }
    let wall_s = read.map_err(|cause| failed(cause.to_string()))?;
    let report: Report =
        serde_json::from_str(&json).map_err(|cause| failed(format!("{cause}: {json}")))?;
    Ok(report.with_launch(wall_s))
}

impl Report {
    /// The report with a stage for starting the process: the part of `wall_s`, the parent's time,
    /// that the report lacks.
    fn with_launch(mut self, wall_s: f64) -> Report {
        let before = StageFigures::new("starting the process", wall_s - self.total_s, None);
        self.stages.insert(0, before);
        self.text_s += wall_s - self.total_s;
        (self.total_s, self.fastest_s, self.slowest_s) = (wall_s, wall_s, wall_s);
        self
    }

    /// Medians of equal starts, taken for each figure separately.
    fn median(runs: &[Report]) -> Report {
        let sorted = |of: &dyn Fn(&Report) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let median = |of: &dyn Fn(&Report) -> f64| sorted(of)[runs.len() / 2];
        let totals = sorted(&|run| run.total_s);
        let stages = runs[0].stages.iter().enumerate();
        Report {
            runs: runs.len(),
            total_s: totals[runs.len() / 2],
            fastest_s: totals[0],
            slowest_s: totals[runs.len() - 1],
            stages: stages
                .map(|(at, stage)| {
                    let s = median(&|run| run.stages[at].s);
                    StageFigures::new(&stage.name, s, stage.bytes)
                })
                .collect(),
            text_s: median(&|run| run.text_s),
            bytes_direct: median(&|run| run.bytes_direct as f64) as u64,
            ..runs[0].clone()
        }
    }

    /// Words on where the weights were read from.
    fn read(&self) -> String {
        let (bytes, bytes_direct) = (self.bytes, self.bytes_direct);
        match &self.detour {
            Some(why) => format!("through the page cache, whatever it held ({why})"),
            None if self.weights == Files::Embedded.to_string() => "in memory".to_owned(),
            None if bytes_direct == 0 => "from the page cache".to_owned(),
            None => format!(
                "{:.2} of {:.2} GB past the page cache, by direct reads, the rest from it",
                bytes_direct as f64 / GB,
                bytes as f64 / GB
            ),
        }
    }

    /// Table for people.
    fn table(&self) -> String {
        let mut text = String::new();
        let written = self.write_table(&mut text);
        written.expect("a string takes everything");
        text
    }

    fn write_table(&self, text: &mut String) -> std::fmt::Result {
        let (target, weights) = (&self.target, &self.weights);
        let how = match self.runs {
            1 => "this process, from its command line on".to_owned(),
            runs => format!("medians of {runs} processes"),
        };
        writeln!(text, "{target}, weights {weights}: {how}")?;
        let columns = format!("{:>10}{:>16}{:>8}", "s", "bytes", "GB/s");
        writeln!(text, "  {:<24}{columns}", "stage")?;
        for stage in &self.stages {
            write!(text, "  {:<24}{:>10.3}", stage.name, stage.s)?;
            if let (Some(bytes), Some(gb_s)) = (stage.bytes, stage.gb_s) {
                write!(text, "{bytes:>16}{gb_s:>8.2}")?;
            }
            writeln!(text)?;
        }
        writeln!(
            text,
            "  {:<24}{:>10.3}  ({:.3} to {:.3})",
            "start to READY", self.total_s, self.fastest_s, self.slowest_s
        )?;
        writeln!(
            text,
            "tokenizer and template were there after {:.3} s, beside the stages",
            self.text_s
        )?;
        writeln!(text, "the weights were read {}", self.read())
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn run(loading_s: f64, text_s: f64) -> Report {
        Report {
            format: FORMAT,
            target: "t".to_owned(),
            weights: "w".to_owned(),
            runs: 1,
            total_s: loading_s + 1.0,
            fastest_s: loading_s + 1.0,
            slowest_s: loading_s + 1.0,
            stages: vec![
                StageFigures::new("command line", 1.0, None),
                StageFigures::new("loading weights", loading_s, Some(8_000_000_000)),
            ],
            text_s,
            bytes: 8_000_000_000,
            bytes_direct: 0,
            detour: None,
        }
    }

    #[test]
    fn what_comes_before_the_command_line_counts() {
        let report = run(4.0, 0.5).with_launch(5.25);
        assert_eq!(report.total_s, 5.25);
        assert_eq!(report.text_s, 0.75);
        assert_eq!(report.stages.iter().map(|stage| stage.s).sum::<f64>(), 5.25);
    }

    #[test]
    fn medians_are_of_each_stage_and_rates_follow_them() {
        let runs = [9.0, 2.0, 4.0].map(|s| run(s, s));
        let report = Report::median(&runs);
        assert_eq!((report.runs, report.total_s), (3, 5.0));
        assert_eq!((report.fastest_s, report.slowest_s), (3.0, 10.0));
        assert_eq!(
            (report.stages[1].s, report.stages[1].gb_s),
            (4.0, Some(2.0))
        );
        assert_eq!(report.text_s, 4.0);
    }

    #[test]
    fn the_stages_add_up_to_the_whole() {
        let (begun, progress) = (Instant::now(), Progress::default());
        for stage in [Stage::Checking, Stage::Loading, Stage::Ready] {
            thread::sleep(Duration::from_millis(5));
            progress.enter(stage);
        }
        let found = stages(begun, 1.0, &progress);
        let names: Vec<_> = found.iter().map(|stage| &stage.name[..]).collect();
        let expected = [
            "command line",
            "checking files",
            "loading weights",
            "starting",
        ];
        assert_eq!(names, expected);
        assert!(found.iter().all(|stage| stage.s >= 0.005));
        assert!((found.iter().map(|stage| stage.s).sum::<f64>() - 1.0).abs() < 1e-9);
        assert!(found[2].bytes.is_some() && found[1].bytes.is_none());
    }

    #[test]
    fn the_table_says_what_was_read_and_how() {
        let table = run(4.0, 1.0).table();
        assert!(table.contains("were read from the page cache"), "{table}");
        let direct = Report {
            bytes_direct: 2_000_000_000,
            ..run(4.0, 1.0)
        };
        assert!(direct.table().contains("2.00 of 8.00 GB past the page"));
        assert!(direct.table().contains("there after 1.000 s"));
        let detour = Report {
            detour: Some("no direct reads".to_owned()),
            ..run(4.0, 1.0)
        };
        assert!(detour.table().contains("whatever it held"));
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let report = run(1.5, 0.25);
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }
}
