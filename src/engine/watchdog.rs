//! Watchdog of the engine's thread, which a lost device may block for ever.
//!
//! The thread counts its calls of the executor. The thread that joins it polls the count at
//! intervals, and gives up on a call that it has seen too often. It counts polls rather than time,
//! so that the pause of a stopped process or a sleeping machine is one poll.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use super::handle::{Phase, Shared};
use super::{EngineError, Outcome};
use step::executor::{
    DeviceError, Drafted, Drafting, Executor, Patience, Ranked, SeqRows, TokenId,
};
use step::transfer::{PieceBytes, Sum, Transfer};

/// Number of polls that a call may last after the first one that sees it. The time between two
/// polls is the executor's patience divided by this number.
pub(super) const LOOKS: u32 = 16;

/// Executor whose calls are counted. Its construction does not count: slow disks are no fault.
pub(super) struct Watched<E> {
    pub executor: E,
    pub shared: Arc<Shared>,
}

impl<E: Executor> Executor for Watched<E> {
    const VOCAB: usize = E::VOCAB;
    const PATIENCE: Option<Patience> = E::PATIENCE;

    fn pages(&self) -> Option<usize> {
        self.executor.pages()
    }

    fn step(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        let has_prompt = rows.iter().any(|rows| rows.tokens.len() > 1);
        let times = match E::PATIENCE {
            Some(patience) if has_prompt => patience.prompt,
            _ => 1,
        };
        let Watched { executor, shared } = self;
        shared.calls.around(times, || executor.step(rows))
    }

    fn ranked(&self, index: usize) -> Option<Ranked<'_>> {
        self.executor.ranked(index)
    }

    fn logits(&mut self, index: usize) -> Result<&[f32], DeviceError> {
        let Watched { executor, shared } = self;
        shared.calls.around(1, move || executor.logits(index))
    }

    fn predicts(&self) -> bool {
        self.executor.predicts()
    }

    fn predict(&mut self, next: &[TokenId], wanted: &[usize]) -> Result<(), DeviceError> {
        let calls = &self.shared.calls;
        calls.around(1, || self.executor.predict(next, wanted))
    }

    fn predict_on(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        let calls = &self.shared.calls;
        calls.around(1, || self.executor.predict_on(rows))
    }

    fn step_draft(&mut self, rows: &[SeqRows<'_>], by: &Drafting<'_>) -> Result<bool, DeviceError> {
        let Watched { executor, shared } = self;
        shared.calls.around(1, || executor.step_draft(rows, by))
    }

    fn drafted(&mut self, drafted: &mut Vec<Drafted>) -> Result<(), DeviceError> {
        let Watched { executor, shared } = self;
        shared.calls.around(1, || executor.drafted(drafted))
    }

    fn logits_of(&mut self, rows: &[usize], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        let calls = &self.shared.calls;
        calls.around(1, || self.executor.logits_of(rows, logits))
    }

    fn piece_bytes(&self) -> Option<PieceBytes> {
        self.executor.piece_bytes()
    }

    fn take_host_memory(&mut self, bytes: usize) -> Result<(), DeviceError> {
        self.executor.take_host_memory(bytes)
    }

    fn host_memory(&mut self, range: Range<usize>) -> &mut [u8] {
        self.executor.host_memory(range)
    }

    fn sums(&mut self, ranges: Vec<Range<usize>>) -> Receiver<Vec<Sum>> {
        self.executor.sums(ranges)
    }

    fn fill(&mut self, range: Range<usize>, bytes: Vec<u8>) -> Receiver<()> {
        self.executor.fill(range, bytes)
    }

    fn copy_out(&mut self, range: Range<usize>) -> Receiver<Vec<u8>> {
        self.executor.copy_out(range)
    }

    fn save(&mut self, transfers: &[Transfer]) -> Result<(), DeviceError> {
        let calls = &self.shared.calls;
        calls.around(1, || self.executor.save(transfers))
    }

    fn restore(&mut self, transfers: &[Transfer]) -> Result<(), DeviceError> {
        let calls = &self.shared.calls;
        calls.around(1, || self.executor.restore(transfers))
    }

    fn transferred(&mut self) -> Result<u64, DeviceError> {
        let calls = &self.shared.calls;
        calls.around(1, || self.executor.transferred())
    }
}

/// The engine's thread, to be joined.
#[derive(Debug)]
pub struct Thread {
    pub(super) ended: Receiver<Outcome>,
    pub(super) shared: Arc<Shared>,
    /// Longest times that calls of the executor may take; none if there is no limit.
    pub(super) patience: Option<Patience>,
}

impl Thread {
    /// Waits for the thread's end, but no longer for a call of the executor than its patience
    /// lasts: that call may never return, and no event of a request can come any more.
    ///
    /// # Errors
    /// The reason for which the engine ended before it was asked to.
    pub fn join(self) -> Outcome {
        let Some(patience) = self.patience else {
            return self.ended.recv().unwrap_or(Err(EngineError::Panicked));
        };
        let mut seen = Seen::default();
        loop {
            match self.ended.recv_timeout(patience.call / LOOKS) {
                Ok(outcome) => return outcome,
                Err(RecvTimeoutError::Disconnected) => return Err(EngineError::Panicked),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let (call, times) = self.shared.calls.under_way();
            if seen.too_often(call, times) {
                self.shared.enter(Phase::Stopped);
                return Err(EngineError::Unresponsive(patience.call * times));
            }
        }
    }
}

/// Call that the latest poll saw.
#[derive(Debug, Default)]
struct Seen {
    call: u64,
    /// Number of polls since the first that saw the call.
    again: u32,
}

impl Seen {
    /// Whether `times * LOOKS` polls in a row, after a first one, have seen `call`. The number of a
    /// call is odd while the call runs.
    fn too_often(&mut self, call: u64, times: u32) -> bool {
        let same = call % 2 == 1 && call == self.call;
        self.again = if same { self.again + 1 } else { 0 };
        self.call = call;
        same && self.again >= times * LOOKS
    }
}

#[cfg(test)]
mod tests {
    /// Names of methods after a line.
    fn methods<'a>(text: &'a str, after: &str) -> Vec<&'a str> {
        let (_, body) = text.split_once(after).expect("the line is there");
        let lines = body.lines().take_while(|line| *line != "}");
        let names = lines.filter_map(|line| line.strip_prefix("    fn "));
        names.filter_map(|line| line.split('(').next()).collect()
    }

    /// A method that is not passed on would silently be the trait's default.
    #[test]
    fn every_call_is_passed_on_to_the_executor() {
        let all = methods(include_str!("../step/executor.rs"), "pub trait Executor");
        let passed = methods(include_str!("watchdog.rs"), "for Watched<E> {");
        assert!(all.len() > 10, "{all:?}");
        let missing = all.iter().filter(|name| !passed.contains(name));
        assert_eq!(missing.collect::<Vec<_>>(), Vec::<&&str>::new());
    }
}
