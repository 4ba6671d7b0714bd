//! Threads that share the tasks of one operation.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Time for which an idle thread spins before it sleeps; longer than the pauses within a step,
/// shorter than a waiting client could notice.
const SPIN: Duration = Duration::from_micros(60);
/// Reads of the job counter between two reads of the clock.
const SPIN_LOOKS: usize = 64;
/// Bit of `Shared::gate`, set while a job may be entered; other bits count threads inside.
const OPEN: usize = 1 << (usize::BITS - 1);

/// A fixed set of threads; the caller of `run` is one of them.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    job: UnsafeCell<Job>,
    gate: AtomicUsize,
    /// Number of jobs so far; a thread enters each job at most once.
    jobs: AtomicUsize,
    next_task: AtomicUsize,
    sleepers: AtomicUsize,
    stop: AtomicBool,
    panicked: AtomicBool,
}

/// A borrowed closure, and a function that calls it.
#[derive(Clone, Copy)]
struct Job {
    call: unsafe fn(*const (), usize),
    closure: *const (),
    tasks: usize,
}

// SAFETY: `job` is written only while the gate is closed and nobody is inside (see `run`), and read
// only by threads that entered through the open gate; everything else is atomic.
unsafe impl Sync for Shared {}
// SAFETY: the closure pointer is used by threads inside the gate only, while `run` keeps the
// closure, which is `Sync`, alive.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `threads` threads, the caller included.
    pub fn new(threads: usize) -> Pool {
        let shared = Arc::new(Shared {
            job: UnsafeCell::new(Job {
                call: |_, _| (),
                closure: std::ptr::null(),
                tasks: 0,
            }),
            gate: AtomicUsize::new(0),
            jobs: AtomicUsize::new(0),
            next_task: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        });
        let spawn = |index| {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name(format!("cpu-{index}"));
            builder
                .spawn(move || work(&shared))
                .expect("the system can start a thread")
        };
        let threads = (1..threads.max(1)).map(spawn).collect();
        Pool { shared, threads }
    }

    /// Number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `task` once for each index below `tasks`, on any thread, in any order.
    ///
    /// # Panics
    /// When `task` panics on any thread.
    pub fn run<F: Fn(usize) + Sync>(&mut self, tasks: usize, task: F) {
        if tasks <= 1 || self.threads.is_empty() {
            return (0..tasks).for_each(task);
        }
        let closure = (&raw const task).cast();
        self.publish(Job {
            call: call::<F>,
            closure,
            tasks,
        });
        let close = Close(&self.shared);
        take_tasks(&self.shared, tasks, &task);
        drop(close);
        assert!(
            !self.shared.panicked.load(Ordering::Relaxed),
            "a task panicked"
        );
    }

    fn publish(&mut self, job: Job) {
        let shared = &*self.shared;
        debug_assert_eq!(shared.gate.load(Ordering::Relaxed), 0);
        // SAFETY: `&mut self` and the closed, empty gate: no other thread reads the job.
        unsafe { *shared.job.get() = job };
        shared.next_task.store(0, Ordering::Relaxed);
        shared.gate.store(OPEN, Ordering::Release);
        shared.jobs.fetch_add(1, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            self.threads
                .iter()
                .map(JoinHandle::thread)
                .for_each(Thread::unpark);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A panic of the thread was reported by `run`.
            let _ = thread.join();
        }
    }
}

/// # Safety
/// `closure` points to a live `F`, which is called with `index`.
unsafe fn call<F: Fn(usize)>(closure: *const (), index: usize) {
    // SAFETY: the contract of this function.
    unsafe { (*closure.cast::<F>())(index) }
}

fn take_tasks(shared: &Shared, tasks: usize, task: impl Fn(usize)) {
    loop {
        let index = shared.next_task.fetch_add(1, Ordering::Relaxed);
        if index >= tasks {
            return;
        }
        task(index);
    }
}

/// Guard that closes the gate and waits for the threads inside, also when a task panics.
struct Close<'a>(&'a Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut looks = 0;
        while self.0.gate.load(Ordering::Acquire) != 0 {
            looks += 1;
            match looks % SPIN_LOOKS {
                0 => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
    }
}

/// Main loop of a thread of the pool.
fn work(shared: &Shared) {
    let mut seen = 0;
    while !shared.stop.load(Ordering::SeqCst) {
        let jobs = shared.jobs.load(Ordering::SeqCst);
        if jobs == seen {
            wait(shared, seen);
            continue;
        }
        seen = jobs;
        if let Some(inside) = Inside::enter(shared) {
            inside.work();
        }
    }
}

/// Spins, then sleeps, until a job with another number than `seen` may be there.
fn wait(shared: &Shared, seen: usize) {
    let start = Instant::now();
    while start.elapsed() < SPIN {
        for _ in 0..SPIN_LOOKS {
            if shared.jobs.load(Ordering::Relaxed) != seen {
                return;
            }
            std::hint::spin_loop();
        }
    }
    shared.sleepers.fetch_add(1, Ordering::SeqCst);
    if shared.jobs.load(Ordering::SeqCst) == seen && !shared.stop.load(Ordering::SeqCst) {
        std::thread::park();
    }
    shared.sleepers.fetch_sub(1, Ordering::SeqCst);
}

/// Guard of a thread inside the gate, which leaves in `drop`: a panic cannot block the caller.
struct Inside<'a>(&'a Shared);

impl<'a> Inside<'a> {
    fn enter(shared: &'a Shared) -> Option<Inside<'a>> {
        let enter = |gate: usize| (gate & OPEN != 0).then_some(gate + 1);
        let entered = shared
            .gate
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, enter);
        entered.is_ok().then(|| Inside(shared))
    }

    fn work(&self) {
        // SAFETY: the gate was open when this thread entered, so the job is written, and it stays
        // until this thread has left.
        let job = unsafe { *self.0.job.get() };
        // SAFETY: `run` keeps the closure alive until every thread inside has left.
        take_tasks(self.0, job.tasks, |index| unsafe {
            (job.call)(job.closure, index)
        });
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.panicked.store(true, Ordering::Relaxed);
        }
        self.0.gate.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        let mut pool = Pool::new(3);
        for tasks in [0, 1, 2, 7, 100] {
            for _ in 0..200 {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, |index| {
                    counts[index].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    counts
                        .iter()
                        .all(|count| count.load(Ordering::Relaxed) == 1)
                );
            }
        }
    }

    #[test]
    fn a_sleeping_pool_wakes() {
        let mut pool = Pool::new(2);
        for _ in 0..5 {
            std::thread::sleep(10 * SPIN);
            let sum = AtomicUsize::new(0);
            pool.run(10, |index| {
                sum.fetch_add(index, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 45);
        }
    }

    #[test]
    #[should_panic(expected = "task")]
    fn a_panic_reaches_the_caller() {
        Pool::new(2).run(64, |index| assert_ne!(index, 63, "task"));
    }
}
