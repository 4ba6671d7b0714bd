//! Thread pool that runs jobs for one owner, which polls for their results.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

/// Job of a thread.
type Job<T> = Box<dyn FnOnce() -> T + Send>;

/// The pool. Dropping it leaves threads behind whose job does not end.
#[derive(Debug)]
pub struct Pool<T> {
    jobs: Sender<Job<T>>,
    done: Receiver<T>,
    /// Number of jobs whose results have not been taken.
    under_way: usize,
}

impl<T: Send + 'static> Pool<T> {
    /// Pool of `threads` threads with the name `name`.
    ///
    /// # Panics
    /// If the system refuses a thread.
    pub fn new(name: &str, threads: usize) -> Pool<T> {
        let (jobs, given) = mpsc::channel::<Job<T>>();
        let (give, done) = mpsc::channel();
        let given = Arc::new(Mutex::new(given));
        for _ in 0..threads {
            let (given, give) = (given.clone(), give.clone());
            let work = move || {
                while let Some(job) = next(&given) {
                    // The owner of the pool may be gone.
                    let _ = give.send(job());
                }
            };
            let builder = thread::Builder::new().name(name.to_owned());
            builder.spawn(work).expect("the system refuses a thread");
        }
        Pool {
            jobs,
            done,
            under_way: 0,
        }
    }

    /// Queues a job.
    pub fn run(&mut self, job: impl FnOnce() -> T + Send + 'static) {
        self.under_way += 1;
        let sent = self.jobs.send(Box::new(job));
        sent.unwrap_or_else(|_| panic!("the threads are gone"));
    }

    /// Result of a job that has ended; None if none has.
    pub fn take(&mut self) -> Option<T> {
        let done = self.done.try_recv().ok()?;
        self.under_way -= 1;
        Some(done)
    }

    /// Waits for the result of the next job that ends; None if no job is under way.
    pub fn wait(&mut self) -> Option<T> {
        if self.under_way == 0 {
            return None;
        }
        self.under_way -= 1;
        self.done.recv().ok()
    }

    /// Number of jobs whose results have not been taken.
    pub fn under_way(&self) -> usize {
        self.under_way
    }
}

/// The next job; None once the pool is dropped.
fn next<T>(given: &Mutex<Receiver<Job<T>>>) -> Option<Job<T>> {
    // Jobs run after the lock is released, so their panics cannot poison it.
    let given = given.lock().unwrap_or_else(|broken| broken.into_inner());
    given.recv().ok()
}
