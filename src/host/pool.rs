//! Thread pool that runs jobs for one thread, which polls for their results.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

/// Job of a thread.
type Job<T> = Box<dyn FnOnce() -> T + Send>;

/// The pool. When it is dropped, threads with a job that does not end are left behind.
#[derive(Debug)]
pub struct Pool<T> {
    jobs: Sender<Job<T>>,
    done: Receiver<T>,
    /// Jobs whose ends have not been taken.
    under_way: usize,
}

impl<T: Send + 'static> Pool<T> {
    /// So many threads of a name.
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
                    // Nobody may wait for it any more.
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

    /// Result of a job that has ended.
    pub fn take(&mut self) -> Option<T> {
        let done = self.done.try_recv().ok()?;
        self.under_way -= 1;
        Some(done)
    }

    /// Result of the next job that ends, after some time; none if nothing is under way.
    pub fn wait(&mut self) -> Option<T> {
        if self.under_way == 0 {
            return None;
        }
        self.under_way -= 1;
        self.done.recv().ok()
    }

    /// Jobs whose ends have not been taken.
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
