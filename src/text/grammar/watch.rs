//! Watchdog of grammar compilations: cancels jobs that take too long.
//!
//! Limits of size and fuel bound the known costs; the watchdog bounds the rest. A thread polls
//! running jobs and cancels those that have used too much CPU time of their threads, so that jobs
//! on a busy machine are not cancelled. The thread sleeps without jobs.

use std::cell::OnceCell;
use std::fs;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use llguidance::CancellationHandle;

use super::limits::WORK_TIME;

/// Time between two polls while there are jobs.
const TICK: Duration = Duration::from_millis(5);

thread_local! {
    /// Path of the `/proc` file with this thread's CPU time.
    static TIMES: OnceCell<Arc<str>> = const { OnceCell::new() };
}

fn times_of_this_thread() -> Arc<str> {
    TIMES.with(|times| {
        let find = || {
            let thread = fs::read_link("/proc/thread-self").unwrap_or_default();
            format!("/proc/{}/schedstat", thread.display()).into()
        };
        times.get_or_init(find).clone()
    })
}

/// CPU time of the thread with the file `times`; None if the system does not report it.
fn cpu_time(times: &str) -> Option<Duration> {
    let text = fs::read_to_string(times).ok()?;
    let nanos = text.split(' ').next()?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}

/// A compilation, mask or token that is being computed.
struct Job {
    number: u64,
    times: Arc<str>,
    /// Earliest time at which the job can have used up its limit.
    look_at: Instant,
    /// CPU time of the thread at which the limit is used up; None until the first poll.
    end: Option<Duration>,
    cancel: CancellationHandle,
}

impl Job {
    /// Whether the job has used up its limit. CPU time counts from the first poll, at most two
    /// ticks after the start, so that short jobs cost no look-up; jobs end within a tick of the
    /// limit.
    fn is_over(&mut self, now: Instant) -> bool {
        if now < self.look_at {
            return false;
        }
        let used = cpu_time(&self.times);
        match (used, self.end) {
            (Some(used), Some(end)) if used < end => {
                self.look_at = now + (end - used);
                false
            }
            (_, Some(_)) => true,
            (used, None) => {
                self.end = Some(used.unwrap_or_default() + WORK_TIME);
                self.look_at = now + WORK_TIME;
                false
            }
        }
    }
}

#[derive(Default)]
struct Shared {
    jobs: Vec<Job>,
    numbers: u64,
    /// Whether the thread waits for jobs.
    sleeps: bool,
    ended: bool,
}

#[derive(Default)]
struct Poller {
    shared: Mutex<Shared>,
    changed: Condvar,
}

impl Poller {
    /// The lock's data is always whole, since no code panics while it has the lock.
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self) {
        let mut shared = self.lock();
        while !shared.ended {
            shared.sleeps = shared.jobs.is_empty();
            let wait = if shared.sleeps { Duration::MAX } else { TICK };
            let waited = self.changed.wait_timeout(shared, wait);
            (shared, _) = waited.unwrap_or_else(PoisonError::into_inner);
            shared.sleeps = false;
            let now = Instant::now();
            for job in &mut shared.jobs {
                if job.is_over(now) {
                    job.cancel.cancel();
                }
            }
        }
    }
}

/// Handle of the watchdog's thread, which ends when the handle is dropped.
pub struct Watch {
    poller: Arc<Poller>,
}

impl Watch {
    /// # Panics
    /// If the system refuses a thread.
    pub fn new() -> Watch {
        let poller = Arc::new(Poller::default());
        let shared = poller.clone();
        let builder = thread::Builder::new().name("grammars".to_owned());
        let thread = builder.spawn(move || shared.look());
        thread.expect("the system refuses a thread");
        Watch { poller }
    }

    /// Watches the work of this thread until the guard is dropped.
    pub fn over(&self, cancel: CancellationHandle) -> Watched<'_> {
        let job = Job {
            number: 0,
            times: times_of_this_thread(),
            look_at: Instant::now() + TICK,
            end: None,
            cancel,
        };
        let mut shared = self.poller.lock();
        shared.numbers += 1;
        let number = shared.numbers;
        shared.jobs.push(Job { number, ..job });
        if shared.sleeps {
            shared.sleeps = false;
            self.poller.changed.notify_one();
        }
        Watched {
            poller: &self.poller,
            number,
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.poller.lock().ended = true;
        self.poller.changed.notify_one();
    }
}

/// Guard of a job under watch.
pub struct Watched<'w> {
    poller: &'w Poller,
    number: u64,
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        let mut shared = self.poller.lock();
        shared.jobs.retain(|job| job.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any test waits.
    const PATIENCE: Duration = Duration::from_secs(20);

    fn used() -> Duration {
        cpu_time(&times_of_this_thread()).unwrap()
    }

    #[test]
    fn work_without_end_is_cancelled() {
        let watch = Watch::new();
        for _ in 0..2 {
            let cancel = CancellationHandle::default();
            let (begun, started) = (Instant::now(), used());
            let watched = watch.over(cancel.clone());
            while !cancel.is_cancelled() {
                assert!(begun.elapsed() < PATIENCE, "nobody looks");
            }
            drop(watched);
            let took = used() - started;
            assert!(took >= WORK_TIME, "{took:?}");
            assert!(watch.poller.lock().jobs.is_empty());
        }
    }

    #[test]
    fn waiting_is_no_work() {
        let watch = Watch::new();
        let cancel = CancellationHandle::default();
        let watched = watch.over(cancel.clone());
        thread::sleep(4 * WORK_TIME);
        drop(watched);
        assert!(!cancel.is_cancelled());
    }
}
