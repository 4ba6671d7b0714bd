//! Threads that the system gives this process.
//!
//! All threads of serving are made at the start. Limits of control groups and users are checked
//! before anything is loaded: the same number of threads is started at once and ended again.

use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError, RwLock};
use std::thread::{self, Builder};

/// Stack bytes of a thread that only waits.
const WAITING_STACK_BYTES: usize = 64 * 1024;

/// Number of cores, which is the number of threads that share work.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Most elements that one thread fills alone: starting another one would take longer.
const FILLED_ALONE: usize = 1 << 16;

/// Fills `all` in parts, on all cores if it is long: `fill` gets the index of a part's first
/// element and the part, which has whole units of `unit` elements.
///
/// # Panics
/// If `all` does not have whole units.
pub fn fill_by_parts<T: Send>(all: &mut [T], unit: usize, fill: impl Fn(usize, &mut [T]) + Sync) {
    assert!(all.len().is_multiple_of(unit));
    let threads = cores().min(all.len() / FILLED_ALONE);
    if threads <= 1 {
        return fill(0, all);
    }
    let length = (all.len() / unit).div_ceil(threads) * unit;
    let parts = Mutex::new(all.chunks_mut(length).enumerate());
    // A part is taken as a whole, so a panic leaves the list of parts usable.
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some((index, part)) = next() {
            fill(index * length, part);
        }
    };
    thread::scope(|scope| {
        // Threads that the system refuses are not needed: this thread takes the remaining parts.
        let mut others = (1..threads).map(|_| Builder::new().spawn_scoped(scope, work));
        others.all(|thread| thread.is_ok());
        work();
    });
}

/// Reason why a start cannot go on: the system refuses threads.
#[derive(Debug)]
pub struct TooFew {
    needed: usize,
    given: usize,
    why: io::Error,
}

impl fmt::Display for TooFew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} threads are needed, and the system gives {}: {}; raise pids.max of the control \
             group (TasksMax= of a unit, --pids-limit of a container), or `ulimit -u`",
            self.needed, self.given, self.why
        )
    }
}

/// Checks that this process can have `count` more threads at once.
///
/// # Errors
/// The number that is allowed, and the reason for the limit.
pub fn require(count: usize) -> Result<(), TooFew> {
    let gate = RwLock::new(());
    thread::scope(|scope| {
        let _closed = gate.write();
        (0..count).try_for_each(|made| {
            let builder = Builder::new().stack_size(WAITING_STACK_BYTES);
            let thread = builder.spawn_scoped(scope, || drop(gate.read()));
            thread.map(drop).map_err(|why| TooFew {
                needed: count + 1,
                given: made + 1,
                why,
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_units_and_fill_all() {
        for units in [0, 1, 3 * FILLED_ALONE] {
            let mut all = vec![0; 7 * units];
            fill_by_parts(&mut all, 7, |first, part| {
                assert!(first % 7 == 0 && part.len() % 7 == 0);
                (first..).zip(part).for_each(|(at, to)| *to += at + 1);
            });
            assert!(all.into_iter().eq(1..=7 * units));
        }
    }
}
