//! Calls of the executor, counted by the engine and watched from outside of its thread.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Counter of the executor's calls, by which a watchdog sees whether one is under way.
#[derive(Debug, Default)]
pub struct Calls {
    /// Number of starts and returns of calls: odd while a call is under way.
    count: AtomicU64,
    /// Factor of the watchdog's patience with the latest call: larger for steps with prompts.
    times: AtomicU32,
}

impl Calls {
    /// Runs a call. If the call panics, the count stays odd; the engine ends then.
    pub fn around<T>(&self, times: u32, call: impl FnOnce() -> T) -> T {
        self.times.store(times, Ordering::Relaxed);
        // A thread that reads the new count also reads the `times` of this call or of a later one.
        self.count.fetch_add(1, Ordering::Release);
        let out = call();
        self.count.fetch_add(1, Ordering::Relaxed);
        out
    }

    /// The count of starts and returns, and the factor of the latest call.
    pub fn under_way(&self) -> (u64, u32) {
        let count = self.count.load(Ordering::Acquire);
        (count, self.times.load(Ordering::Relaxed))
    }
}
