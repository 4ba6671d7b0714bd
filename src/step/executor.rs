//! The engine's view of a model on a device: one step over rows of several sequences.

use std::ops::Range;
use std::sync::mpsc::Receiver;
use std::time::Duration;

pub use crate::ids::{PageId, Slot};
use crate::transfer::{PieceBytes, Sum, Transfer, at_once, sum};
use crate::{ONE_BY_ONE, PAGE};

/// Index into the vocabulary.
pub type TokenId = u32;

/// Recurrent states that a sequence's rows of a step read and write. A state that no sequence
/// writes any more is a snapshot: any number of sequences may go on from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct States {
    /// State that is read before the first row, except at position 0, where the state is zero.
    pub from: Slot,
    /// State that is written after the last row.
    pub to: Slot,
    /// State that is written in the middle of a prompt's rows, too.
    pub snapshot: Option<Snapshot>,
}

/// State after some of a sequence's rows of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Rows before the snapshot: whole cells of the prompt, which begin with the first row.
    pub rows: usize,
    pub slot: Slot,
}

impl States {
    /// States of a sequence that reads and writes the state of one slot.
    pub fn own(slot: Slot) -> States {
        States {
            from: slot,
            to: slot,
            snapshot: None,
        }
    }

    /// States that the rows write: `to` and the snapshot, but not the states after drafts.
    pub fn written(&self) -> impl Iterator<Item = Slot> + use<> {
        [Some(self.to), self.snapshot.map(|snapshot| snapshot.slot)]
            .into_iter()
            .flatten()
    }
}

/// Block table of a sequence in a page group. Leading pages that a window has left are not in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockTable<'a> {
    /// Number of pages of the sequence before `pages`.
    pub first: usize,
    /// Pages; page `i` holds positions `(first + i) * PAGE ..`.
    pub pages: &'a [PageId],
}

impl<'a> BlockTable<'a> {
    /// Table that has every page of a sequence.
    pub fn whole(pages: &'a [PageId]) -> BlockTable<'a> {
        BlockTable { first: 0, pages }
    }

    /// Page of a position.
    ///
    /// # Panics
    /// If the table does not have the position.
    pub fn page(&self, position: usize) -> PageId {
        self.pages[position / PAGE - self.first]
    }

    /// Number of the sequence's pages, including leading pages that the table does not have.
    pub fn end(&self) -> usize {
        self.first + self.pages.len()
    }
}

/// The rows of one sequence in a step: consecutive tokens that continue it.
#[derive(Clone, Copy, Debug)]
pub struct SeqRows<'a> {
    pub states: States,
    /// Position of the first row, counted from the start of the sequence.
    pub start: usize,
    /// Ids of the rows' tokens, at least one.
    pub tokens: &'a [TokenId],
    /// Block table of the group of all positions, for at least `start + tokens.len()` positions.
    pub pages: &'a [PageId],
    /// Block table of the windowed group, if the model has one; has the positions that the rows
    /// see. Rows of predictions need none.
    pub window: BlockTable<'a>,
    /// States written after each row but the last one, if rows are drafts: the sequence goes on
    /// from the state after the last accepted one. Empty without drafts, or if the model has no
    /// states. May include `states.from`.
    pub draft_states: &'a [Slot],
    /// Number of rows, counted from the last, whose logits are wanted: 0 inside a prompt, 1 at its
    /// end, all with drafts.
    pub logits: usize,
}

impl<'a> SeqRows<'a> {
    /// Rows without drafts, whose state stays in `slot`: the last row's logits are wanted, and the
    /// windowed group has the same block table as the other group.
    pub fn of(slot: Slot, start: usize, tokens: &'a [TokenId], pages: &'a [PageId]) -> SeqRows<'a> {
        SeqRows {
            states: States::own(slot),
            start,
            tokens,
            pages,
            window: BlockTable::whole(pages),
            draft_states: &[],
            logits: 1,
        }
    }
}

/// Largest number of drafts of a sequence in one step. Up to [`ONE_BY_ONE`] rows have the bits of
/// plain decoding, and the first row is that of the last known token.
pub const DEPTH_MAX: usize = ONE_BY_ONE - 1;

/// Random numbers of a sampling rule: one for the token after each row, and one for each draft.
pub const UNIFORMS: usize = ONE_BY_ONE + DEPTH_MAX;

/// Sampling rule by which a device draws tokens before the host's sampler has chosen. The rule is
/// near the request's: a draft that differs from the sampler's choice is only rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Draw {
    /// Temperature; 0 takes the most likely token.
    pub temperature: f32,
    /// Number of most likely tokens that are drawn from; 0: as many as the device ranks.
    pub top_k: u32,
    pub top_p: f32,
    /// Least probability of a drawn token, relative to the most likely token's.
    pub min_p: f32,
    /// Position of the token after the step's first row.
    pub position: usize,
    /// Random numbers in [0, 1) for the tokens at `position` and after it, one each.
    pub uniforms: [f32; UNIFORMS],
}

/// Predictions that follow a step without the host in between: the device draws their tokens.
#[derive(Clone, Copy, Debug)]
pub struct Drafting<'a> {
    /// Number of drafts of each sequence, from 1 to `DEPTH_MAX`.
    pub depth: usize,
    /// Row of each sequence at the last position that a prediction may have; its token is not used.
    pub rows: &'a [SeqRows<'a>],
    /// Sampling rule of each sequence.
    pub draws: &'a [Draw],
}

/// Tokens that a device drew for a sequence in and after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafted {
    /// Number of the step's drafts that the device accepts.
    pub accepted: usize,
    /// Token after the accepted drafts.
    pub token: TokenId,
    /// Drafts after `token`, as many as were asked for.
    pub drafts: [TokenId; DEPTH_MAX],
}

const NO_PREDICTION: &str = "there is no prediction layer";
const NO_TRANSFER: &str = "nothing of it can be kept outside";

/// Largest logits of a row.
#[derive(Clone, Copy, Debug)]
pub struct Ranked<'a> {
    ids: &'a [f32],
    logits: &'a [f32],
    /// `sum_i exp(logit[i] - largest)` over the whole row; not a number if a logit is not finite.
    pub sum: f32,
}

impl<'a> Ranked<'a> {
    /// Reads a ranking in the layout of the model's `top_k`: ids as floats, logits, and the sum.
    pub fn new(row: &'a [f32]) -> Ranked<'a> {
        let (&sum, ranked) = row.split_last().expect("a sum is there");
        let (ids, logits) = ranked.split_at(ranked.len() / 2);
        Ranked { ids, logits, sum }
    }

    /// Ids and logits, descending; the lower id first on a tie.
    pub fn top(&self) -> impl Iterator<Item = (TokenId, f32)> + Clone + use<'a> {
        let ids = self.ids.iter().map(|&id| id as TokenId);
        ids.zip(self.logits.iter().copied())
    }
}

/// Failure of the device, after which the process cannot serve any more.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Too little free memory.
    #[error("{0}")]
    Memory(String),
    /// No device that this binary can use.
    #[error("{0}")]
    Absent(String),
    /// A call failed.
    #[error("{0}")]
    Failed(String),
    /// Weights are read from their file during serving, and the file has changed.
    #[error("{0}")]
    Weights(String),
}

/// Longest times that calls of a device may take; a longer call means that the device is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Limit of a call.
    pub call: Duration,
    /// Factor of the limit for a step in which a sequence has several rows.
    pub prompt: u32,
}

/// Model bound to a device. A row's results depend on the row's own sequence only, never on the
/// other rows of the step.
pub trait Executor {
    /// Vocabulary size: number of floats in a row of logits.
    const VOCAB: usize;
    /// Longest times of the executor's calls; none if they may take any time.
    const PATIENCE: Option<Patience> = None;

    /// Number of KV pages; none if the executor has no cache, so that any number will do.
    fn pages(&self) -> Option<usize> {
        None
    }

    /// Runs one step over the rows of one or more sequences, each sequence at most once.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    fn step(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError>;

    /// Ranking of a row of [`Executor::logits`] of the last step or prediction; none if the device
    /// ranks nothing.
    fn ranked(&self, _index: usize) -> Option<Ranked<'_>> {
        None
    }

    /// The `VOCAB` logits of row `index` of the last step, counted among those whose logits were
    /// wanted.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    fn logits(&mut self, index: usize) -> Result<&[f32], DeviceError>;

    /// Whether the model has a multi-token-prediction (MTP) layer, which drafts tokens.
    fn predicts(&self) -> bool {
        false
    }

    /// Runs the prediction layer on every row of the last step, after which nothing more may be
    /// asked of that step. `next` has the token after each row. `ranked` and `logits` then belong
    /// to the token after `next`, for the rows of `wanted`: ascending, at most one of each sequence
    /// and draft.
    ///
    /// The layer has keys and values of its own in the same pages; later predictions at a position
    /// replace earlier ones.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    fn predict(&mut self, _next: &[TokenId], _wanted: &[usize]) -> Result<(), DeviceError> {
        Err(DeviceError::Failed(NO_PREDICTION.to_owned()))
    }

    /// Runs the prediction layer once more after the wanted rows of the last prediction: `rows` has
    /// a row for each, in the same order, at the next position, with the token that was drafted.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    fn predict_on(&mut self, _rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        Err(DeviceError::Failed(NO_PREDICTION.to_owned()))
    }

    /// Runs `step` over replies and their drafts, all logits wanted, and predictions after it,
    /// while the host samples: `Executor::drafted` waits for them. The device draws the tokens that
    /// predictions continue. False, and nothing was run, if the device cannot do so.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    fn step_draft(&mut self, _rows: &[SeqRows<'_>], _: &Drafting<'_>) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Waits for the predictions of the last `step_draft`; `drafted` gets one entry per sequence.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    fn drafted(&mut self, _drafted: &mut Vec<Drafted>) -> Result<(), DeviceError> {
        Err(DeviceError::Failed(NO_PREDICTION.to_owned()))
    }

    /// Computes the logits of any rows of the last step, with the bits that a sequence ending there
    /// gets. `rows` counts the rows of the step from 0, in the order in which its sequences were
    /// given: ascending, from 1 to `Facts::sequences` rows.
    ///
    /// `logits` is cleared and filled with `VOCAB` floats for each of `rows`.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    fn logits_of(&mut self, rows: &[usize], logits: &mut Vec<f32>) -> Result<(), DeviceError>;

    /// Bytes of the pieces that can be saved to host memory; none if no piece can be.
    fn piece_bytes(&self) -> Option<PieceBytes> {
        None
    }

    /// Takes the host memory that transfers copy to and from, once, before the first step.
    ///
    /// # Errors
    /// Too little memory.
    fn take_host_memory(&mut self, _bytes: usize) -> Result<(), DeviceError> {
        Err(DeviceError::Absent(NO_TRANSFER.to_owned()))
    }

    /// Bytes of the host memory for transfers. Running transfers must not touch the range.
    ///
    /// # Panics
    /// If the range is not in the host memory.
    fn host_memory(&mut self, _range: Range<usize>) -> &mut [u8] {
        panic!("{NO_TRANSFER}")
    }

    /// Starts checksums of ranges of host memory, without waiting: all checksums are sent together,
    /// and nothing may write the ranges until then.
    ///
    /// # Panics
    /// If a range is not in the host memory.
    fn sums(&mut self, ranges: Vec<Range<usize>>) -> Receiver<Vec<Sum>> {
        let sums = ranges.into_iter().map(|range| sum(self.host_memory(range)));
        at_once(sums.collect())
    }

    /// Starts to write bytes to a range of host memory of the same length, without waiting: nothing
    /// may use the range until `()` is sent, which takes no longer than a copy.
    ///
    /// # Panics
    /// If the range is not in the host memory.
    fn fill(&mut self, range: Range<usize>, bytes: Vec<u8>) -> Receiver<()> {
        self.host_memory(range).copy_from_slice(&bytes);
        at_once(())
    }

    /// Starts to read a range of host memory, without waiting: nothing may write the range until
    /// the bytes are sent.
    ///
    /// # Panics
    /// If the range is not in the host memory.
    fn copy_out(&mut self, range: Range<usize>) -> Receiver<Vec<u8>> {
        let bytes = self.host_memory(range).to_vec();
        at_once(bytes)
    }

    /// Starts copies of pieces to host memory, as the steps so far leave them, without waiting. No
    /// step may write the pieces until the copies are done.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    fn save(&mut self, _transfers: &[Transfer]) -> Result<(), DeviceError> {
        Err(DeviceError::Failed(NO_TRANSFER.to_owned()))
    }

    /// Starts copies of pieces from host memory, without waiting. No step may use the pieces until
    /// the copies are done, nor may steps that are still running.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    fn restore(&mut self, _transfers: &[Transfer]) -> Result<(), DeviceError> {
        Err(DeviceError::Failed(NO_TRANSFER.to_owned()))
    }

    /// Number of transfers that have ended: they end in the order in which they were started.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    fn transferred(&mut self) -> Result<u64, DeviceError> {
        Ok(0)
    }
}
