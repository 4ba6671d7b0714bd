//! A pipeline in which many threads fill slots and one empties them, so that reading overlaps with
//! the work of the device.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Runs the jobs `0 .. jobs`. `threads` threads `fill` a slot for each job, about in order; this
/// thread passes every filled slot once, in the order of completion, to `empty`.
///
/// `empty` gives back a slot that may be filled again, this one or an earlier one, or none if the
/// slot stays in use; it must not keep all of them.
///
/// # Errors
/// The first error of `fill` or `empty`; no further job is started then.
pub fn run<S: Send, E: Send>(
    jobs: usize,
    slots: Vec<S>,
    threads: usize,
    fill: impl Fn(usize, &mut S) -> Result<(), E> + Sync,
    mut empty: impl FnMut(usize, S) -> Result<Option<S>, E>,
) -> Result<(), E> {
    let next = AtomicUsize::new(0);
    let (free, to_fill) = mpsc::channel();
    let (filled, to_empty) = mpsc::channel();
    for slot in slots {
        free.send(slot).expect("its receiver is below");
    }
    let to_fill = Mutex::new(to_fill);
    let take = || {
        to_fill
            .lock()
            .expect("no thread panics while it waits")
            .recv()
    };
    thread::scope(|scope| {
        for _ in 0..threads.min(jobs) {
            let (filled, next, take, fill) = (filled.clone(), &next, &take, &fill);
            scope.spawn(move || {
                // No slot comes after the last job, or after an error.
                while let Ok(mut slot) = take() {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    if job >= jobs {
                        return;
                    }
                    let result = fill(job, &mut slot).map(|()| (job, slot));
                    if filled.send(result).is_err() {
                        return;
                    }
                }
            });
        }
        drop(filled);
        // Both ends are dropped after an error, which ends the threads.
        let (free, to_empty) = (free, to_empty);
        for _ in 0..jobs {
            let Ok(result) = to_empty.recv() else {
                break; // A thread has panicked, which `scope` passes on.
            };
            let (job, slot) = result?;
            if let Some(slot) = empty(job, slot)? {
                // Once all jobs are started, no thread waits for the slot, and the send fails.
                let _ = free.send(slot);
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_job_is_done_once_with_few_slots() {
        for (threads, slots) in [(1, 1), (3, 2), (4, 9)] {
            let mut done = BTreeSet::new();
            let fill = |job: usize, slot: &mut usize| {
                *slot = job * job;
                Ok::<(), ()>(())
            };
            let empty = |job: usize, slot: usize| {
                assert_eq!(slot, job * job);
                assert!(done.insert(job));
                Ok(Some(slot))
            };
            run(100, vec![0; slots], threads, fill, empty).unwrap();
            assert_eq!(done.len(), 100);
        }
    }

    #[test]
    fn an_earlier_slot_may_come_back() {
        let mut last = None;
        let fill = |_: usize, _: &mut usize| Ok::<(), ()>(());
        let empty = |_: usize, slot: usize| Ok(last.replace(slot));
        run(50, vec![0, 1], 2, fill, empty).unwrap();
        assert!(last.is_some());
    }

    #[test]
    fn an_error_ends_all_threads() {
        let begun = AtomicUsize::new(0);
        let fill = |job: usize, _: &mut ()| {
            begun.fetch_add(1, Ordering::Relaxed);
            if job == 5 { Err(job) } else { Ok(()) }
        };
        let result = run(1000, vec![(); 4], 2, fill, |_, slot| Ok(Some(slot)));
        assert_eq!(result, Err(5));
        assert!(begun.into_inner() < 100);
        let refuse = |job: usize, ()| if job == 7 { Err(7) } else { Ok(Some(())) };
        assert_eq!(run(1000, vec![(); 4], 2, |_, _| Ok(()), refuse), Err(7));
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn a_panic_is_passed_on() {
        let fill = |job: usize, _: &mut ()| -> Result<(), ()> {
            assert!(job != 3, "this one");
            Ok(())
        };
        let _ = run(10, vec![(); 2], 2, fill, |_, slot| Ok(Some(slot)));
    }

    #[test]
    fn no_job_needs_no_slot() {
        let done = run(
            0,
            Vec::<()>::new(),
            4,
            |_, _| Ok::<(), ()>(()),
            |_, _| Ok(None),
        );
        assert_eq!(done, Ok(()));
    }
}
