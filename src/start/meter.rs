//! Progress of reading or writing weights, for the operator: bytes, rate, time left.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use host::log;
use http::state::Loading;
use model::weights::Progress;

/// Time between two progress lines; shorter operations print none.
pub const EVERY: Duration = Duration::from_secs(1);
const GB: f64 = 1e9;

/// Loading progress in the form that the server reports.
pub fn loading(progress: &Progress) -> Loading {
    let (bytes_done, bytes_total) = progress.bytes();
    Loading {
        stage: progress.stage().words(),
        bytes_done,
        bytes_total,
    }
}

/// Thread that prints a progress line each second until the meter is dropped.
pub struct Meter {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Meter {
    pub fn start(progress: &Arc<Progress>) -> Meter {
        let (stop, stopped) = mpsc::channel();
        let (progress, start) = (progress.clone(), Instant::now());
        let report = move || {
            let mut before = 0;
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let (done, total) = progress.bytes();
                if done != before {
                    let what = loading(&progress).stage;
                    log::line(line(what, done, total, start.elapsed()));
                    before = done;
                }
            }
        };
        Meter {
            stop: Some(stop),
            thread: Some(thread::spawn(report)),
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The thread only prints, so its outcome does not matter.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Text of one line: bytes, rate, time left.
pub fn line(what: &str, done: u64, total: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    let left = total.saturating_sub(done) as f64 / rate;
    format!(
        "{what}: {:.1} of {:.1} GB, {:.2} GB/s, {left:.0} s left",
        done as f64 / GB,
        total as f64 / GB,
        rate / GB
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_bytes_rate_and_time_left() {
        let shown = line(
            "loading weights",
            10_000_000_000,
            37_000_000_000,
            Duration::from_secs(4),
        );
        assert_eq!(
            shown,
            "loading weights: 10.0 of 37.0 GB, 2.50 GB/s, 11 s left"
        );
    }
}
