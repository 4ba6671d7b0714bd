//! Threads that read, write and seal, so that the engine's does not.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

/// Threads of the disk: enough for a drive that is fast only when it is asked for several things.
pub const THREADS: usize = 4;

/// What a thread does.
type Job<T> = Box<dyn FnOnce() -> T + Send>;

/// The threads. Those that wait for a disk which does not answer are left to it in the end.
#[derive(Debug)]
pub struct Pool<T> {
    jobs: Sender<Job<T>>,
    done: Receiver<T>,
    /// Jobs whose ends have not been taken.
    under_way: usize,
}

impl<T: Send + 'static> Pool<T> {
    /// # Panics
    /// If the system refuses a thread.
    pub fn new() -> Pool<T> {
        let (jobs, given) = mpsc::channel::<Job<T>>();
        let (give, done) = mpsc::channel();
        let given = Arc::new(Mutex::new(given));
        for _ in 0..THREADS {
            let (given, give) = (given.clone(), give.clone());
            let work = move || {
                while let Some(job) = next(&given) {
                    // Nobody may wait for it any more.
                    let _ = give.send(job());
                }
            };
            let builder = thread::Builder::new().name("cache".to_owned());
            builder.spawn(work).expect("the system refuses a thread");
        }
        Pool {
            jobs,
            done,
            under_way: 0,
        }
    }

    pub fn run(&mut self, job: impl FnOnce() -> T + Send + 'static) {
        self.under_way += 1;
        let sent = self.jobs.send(Box::new(job));
        sent.unwrap_or_else(|_| panic!("the threads of the disk are gone"));
    }

    /// What a job that has ended gave.
    pub fn take(&mut self) -> Option<T> {
        let done = self.done.try_recv().ok()?;
        self.under_way -= 1;
        Some(done)
    }

    pub fn under_way(&self) -> usize {
        self.under_way
    }
}

/// The next job; none when there will be no more.
fn next<T>(given: &Mutex<Receiver<Job<T>>>) -> Option<Job<T>> {
    // Jobs run when the lock is given back: none can break it.
    let given = given.lock().unwrap_or_else(|broken| broken.into_inner());
    given.recv().ok()
}
