//! Calls of the executor, counted by the engine and looked at from outside of its thread.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Counter of calls, by which a watchdog sees whether one is under way.
#[derive(Debug, Default)]
pub struct Calls {
    /// Beginnings and ends of calls: odd while one is under way.
    count: AtomicU64,
    /// Factor of the executor's patience for the latest call: larger for steps with prompts.
    times: AtomicU32,
}

impl Calls {
    /// Runs a call. If it panics the count stays odd; the engine ends then.
    pub fn around<T>(&self, times: u32, call: impl FnOnce() -> T) -> T {
        self.times.store(times, Ordering::Relaxed);
        // A reader that sees the new count sees its `times`, or those of a later call.
        self.count.fetch_add(1, Ordering::Release);
        let out = call();
        self.count.fetch_add(1, Ordering::Relaxed);
        out
    }

    /// The count, and the factor of the latest call.
    pub fn under_way(&self) -> (u64, u32) {
        let count = self.count.load(Ordering::Acquire);
        (count, self.times.load(Ordering::Relaxed))
    }
}
