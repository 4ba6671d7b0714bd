//! The engine's end, seen from outside of its thread, which a lost device may hold for ever.
//!
//! The executor's calls are counted. Whoever waits for the engine looks at the count now and then,
//! and gives up on a call that it has seen often enough. Looks are counted rather than time: of a
//! process that was stopped and goes on, or of a machine that slept, the pause is one look.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::executor::{DeviceError, Executor, Ranked, Rows};
use super::handle::{Phase, Shared};
use super::{EngineError, Outcome};

/// Looks that a call may last, behind the first one that sees it: each waits for its part of the
/// executor's patience.
pub(super) const LOOKS: u32 = 16;

/// Counts the beginnings and ends of calls of the executor: odd while one is under way.
#[derive(Debug, Default)]
pub(super) struct Calls(AtomicU64);

impl Calls {
    /// Runs a call. One that panics stays under way; the engine ends then.
    fn around<T>(&self, call: impl FnOnce() -> T) -> T {
        self.0.fetch_add(1, Ordering::Relaxed);
        let out = call();
        self.0.fetch_add(1, Ordering::Relaxed);
        out
    }
}

/// An executor whose calls are counted, but for its making, which may take any time: to read
/// weights from a slow disk is no fault.
pub(super) struct Counted<E> {
    pub executor: E,
    pub shared: Arc<Shared>,
}

impl<E: Executor> Executor for Counted<E> {
    const VOCAB: usize = E::VOCAB;
    const PATIENCE: Option<Duration> = E::PATIENCE;

    fn step(&mut self, rows: &[Rows<'_>]) -> Result<(), DeviceError> {
        self.shared.calls.around(|| self.executor.step(rows))
    }

    fn ranked(&self, index: usize) -> Option<Ranked<'_>> {
        self.executor.ranked(index)
    }

    fn logits(&mut self, index: usize) -> Result<&[f32], DeviceError> {
        let Counted { executor, shared } = self;
        shared.calls.around(move || executor.logits(index))
    }

    fn logits_of(&mut self, rows: &[usize], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        let calls = &self.shared.calls;
        calls.around(|| self.executor.logits_of(rows, logits))
    }
}

/// The engine's thread, to be waited for.
#[derive(Debug)]
pub struct Thread {
    pub(super) ended: Receiver<Outcome>,
    pub(super) shared: Arc<Shared>,
    /// That of its executor.
    pub(super) patience: Option<Duration>,
}

impl Thread {
    /// Waits for the end, but no longer for a call of the executor than its patience lasts: that
    /// call may never return, and no event of a request can come any more.
    ///
    /// # Errors
    /// Why the engine ended before it was told to.
    pub fn join(self) -> Outcome {
        let Some(patience) = self.patience else {
            return self.ended.recv().unwrap_or(Err(EngineError::Panicked));
        };
        let mut seen = Seen::default();
        loop {
            match self.ended.recv_timeout(patience / LOOKS) {
                Ok(outcome) => return outcome,
                Err(RecvTimeoutError::Disconnected) => return Err(EngineError::Panicked),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if seen.too_often(self.shared.calls.0.load(Ordering::Relaxed)) {
                self.shared.enter(Phase::Stopped);
                return Err(EngineError::Unresponsive(patience));
            }
        }
    }
}

/// The call that the last look saw.
#[derive(Debug, Default)]
struct Seen {
    calls: u64,
    /// Looks behind the first that saw it.
    again: u32,
}

impl Seen {
    /// Whether the call that is under way now has been seen at `LOOKS` looks after the first.
    fn too_often(&mut self, calls: u64) -> bool {
        let same = calls % 2 == 1 && calls == self.calls;
        self.again = if same { self.again + 1 } else { 0 };
        self.calls = calls;
        self.again == LOOKS
    }
}
