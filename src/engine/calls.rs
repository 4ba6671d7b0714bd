//! Calls of the executor, counted by the engine and looked at from outside of its thread.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The call of the executor that is under way, if one is.
#[derive(Debug, Default)]
pub struct Calls {
    /// Beginnings and ends of calls: odd while one is under way.
    count: AtomicU64,
    /// Factor by which that one may take longer than a call that is no step with a prompt.
    times: AtomicU32,
}

impl Calls {
    /// Runs a call. One that panics stays under way; the engine ends then.
    pub fn around<T>(&self, times: u32, call: impl FnOnce() -> T) -> T {
        self.times.store(times, Ordering::Relaxed);
        // Who sees the count sees `times`, or that of a later call, whose count the next look sees.
        self.count.fetch_add(1, Ordering::Release);
        let out = call();
        self.count.fetch_add(1, Ordering::Relaxed);
        out
    }

    pub fn under_way(&self) -> (u64, u32) {
        let count = self.count.load(Ordering::Acquire);
        (count, self.times.load(Ordering::Relaxed))
    }
}
