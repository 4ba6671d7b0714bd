//! Progress of loading, for `/health` and the console, and the duration of each stage.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Stage of the loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reading headers, checking names, shapes and sizes.
    Checking,
    /// Opening the device.
    Opening,
    /// Reading weights.
    Loading,
    /// Recording the steps of the device.
    Recording,
    /// Writing a drawn checkpoint.
    Writing,
    /// Writing weights as the kernels read them.
    Packing,
    /// Reading files to compare their digests.
    Hashing,
    /// Replaying golden tokens.
    Verifying,
    /// Loading is complete.
    Ready,
}

impl Stage {
    /// Description of the stage, for people.
    pub fn words(self) -> &'static str {
        match self {
            Stage::Checking => "checking files",
            Stage::Opening => "opening the device",
            Stage::Loading => "loading weights",
            Stage::Recording => "recording steps",
            Stage::Writing => "writing weights",
            Stage::Packing => "packing weights",
            Stage::Hashing => "comparing digests",
            Stage::Verifying => "checking answers",
            Stage::Ready => "starting",
        }
    }
}

/// Progress, shared by the loader and its observers.
#[derive(Debug, Default)]
pub struct Progress {
    /// Stages that were entered so far, and the times of entry.
    stages: Mutex<Vec<(Stage, Instant)>>,
    bytes_total: AtomicU64,
    bytes_done: AtomicU64,
    bytes_direct: AtomicU64,
    detour: OnceLock<String>,
}

impl Progress {
    pub fn stage(&self) -> Stage {
        let stages = self.lock();
        stages.last().map_or(Stage::Checking, |&(stage, _)| stage)
    }

    /// Stages so far, and the time at which each began.
    pub fn stages(&self) -> Vec<(Stage, Instant)> {
        self.lock().clone()
    }

    /// Numbers of bytes read and of bytes to read.
    pub fn bytes(&self) -> (u64, u64) {
        (
            self.bytes_done.load(Ordering::Relaxed),
            self.bytes_total.load(Ordering::Relaxed),
        )
    }

    /// Number of bytes that were read past the page cache.
    pub fn bytes_direct(&self) -> u64 {
        self.bytes_direct.load(Ordering::Relaxed)
    }

    /// Reason for which a file is read through the page cache alone, if one is.
    pub fn detour(&self) -> Option<&str> {
        self.detour.get().map(String::as_str)
    }

    /// Enters `stage`, unless it is the current one.
    pub fn enter(&self, stage: Stage) {
        let mut stages = self.lock();
        if stages.last().is_none_or(|&(last, _)| last != stage) {
            stages.push((stage, Instant::now()));
        }
    }

    pub(super) fn expect(&self, bytes: u64) {
        self.bytes_total.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn expect_more(&self, bytes: u64) {
        self.bytes_total.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn advance(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn advance_direct(&self, bytes: u64) {
        self.bytes_direct.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn take_detour(&self, why: String) {
        self.detour.get_or_init(|| why);
    }

    /// No code panics under this lock, so a poisoned lock is sound.
    fn lock(&self) -> MutexGuard<'_, Vec<(Stage, Instant)>> {
        self.stages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_begins_once() {
        let progress = Progress::default();
        assert_eq!(progress.stage(), Stage::Checking);
        let entered = [Stage::Checking, Stage::Checking, Stage::Loading];
        entered.into_iter().for_each(|stage| progress.enter(stage));
        let stages = progress.stages();
        let names: Vec<_> = stages.iter().map(|&(stage, _)| stage).collect();
        assert_eq!(names, [Stage::Checking, Stage::Loading]);
        assert_eq!(progress.stage(), Stage::Loading);
        assert!(stages.is_sorted_by_key(|&(_, begun)| begun));
    }
}
