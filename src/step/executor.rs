//! The engine's view of a model on a device: one step over rows of several sequences.

use std::ops::Range;
use std::sync::mpsc::Receiver;
use std::time::Duration;

pub use crate::ids::{PageId, Slot};
use crate::transfer::{PieceBytes, Sum, Transfer, at_once, sum};
use crate::{ONE_BY_ONE, PAGE};

/// Index into the vocabulary.
pub type TokenId = u32;

/// Recurrent states that a sequence's rows read and write. A state that nobody writes any more is a
/// snapshot: any number of sequences may go on from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct States {
    /// Read before the first row, unless that is at position 0, which starts from a zero state.
    pub from: Slot,
    /// Written behind the last row.
    pub to: Slot,
    /// Written beside that: a state in the middle of the rows.
    pub kept: Option<Kept>,
}

/// A state behind some of a sequence's rows of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Rows that it is behind: whole cells of the prompt, which begin with the first row.
    pub rows: usize,
    pub slot: Slot,
}

impl States {
    /// One that is read and written.
    pub fn own(slot: Slot) -> States {
        States {
            from: slot,
            to: slot,
            kept: None,
        }
    }

    /// States that are written, but those behind drafts.
    pub fn written(&self) -> impl Iterator<Item = Slot> + use<> {
        [Some(self.to), self.kept.map(|kept| kept.slot)]
            .into_iter()
            .flatten()
    }
}

/// Block table of a page group, from the first page on that rows still read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockTable<'a> {
    /// Pages of the sequence before those.
    pub first: usize,
    /// Page `i` holds positions `(first + i) * PAGE ..`.
    pub pages: &'a [PageId],
}

impl<'a> BlockTable<'a> {
    /// One of every page of a sequence.
    pub fn whole(pages: &'a [PageId]) -> BlockTable<'a> {
        BlockTable { first: 0, pages }
    }

    /// Page of a position.
    ///
    /// # Panics
    /// If the table does not have it.
    pub fn page(&self, position: usize) -> PageId {
        self.pages[position / PAGE - self.first]
    }

    /// Pages up to its last one, those before it among them.
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
    /// Token ids, at least one.
    pub tokens: &'a [TokenId],
    /// Block table of the group of all positions. Covers `start + tokens.len()`.
    pub pages: &'a [PageId],
    /// Block table of the windowed group, if the model has one: of what the rows see. Rows of
    /// predictions need none.
    pub window: BlockTable<'a>,
    /// States written behind each row but the last one, where the rows are drafts of which only the
    /// first may hold: then the sequence goes on from the state behind the last that does. Empty
    /// where all rows hold, or the model has no states. May have `states.from`.
    pub draft_states: &'a [Slot],
    /// Last rows whose logits are wanted: none inside a prompt, one at its end, all of drafts.
    pub logits: usize,
}

impl<'a> SeqRows<'a> {
    /// Rows of a sequence whose state is in a slot of its own: none is a draft, the last one's
    /// logits are wanted, and the windowed group has the same block table.
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

/// Drafts of a sequence in one step, at most: rows of a cell are taken one by one up to
/// [`ONE_BY_ONE`], and the first is of a token that is known.
pub const DEPTH_MAX: usize = ONE_BY_ONE - 1;

/// Numbers of a rule: of the positions behind a step's rows of a sequence, and of its predictions.
pub const UNIFORMS: usize = ONE_BY_ONE + DEPTH_MAX;

/// Rule by which a device draws tokens of a sequence ahead of the host: about that of its request,
/// since a draft may be any token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Draw {
    /// 0: the most likely token.
    pub temperature: f32,
    /// Most likely tokens that are drawn from; 0: as many as the device likes.
    pub top_k: u32,
    pub top_p: f32,
    /// Relative to the most likely token.
    pub min_p: f32,
    /// Position of the token behind the step's first row.
    pub position: usize,
    /// Numbers in [0, 1), of that position and of each behind it.
    pub uniforms: [f32; UNIFORMS],
}

/// Predictions that follow a step, each by the tokens that the device draws itself.
#[derive(Clone, Copy, Debug)]
pub struct Ahead<'a> {
    /// Predictions, from 1 to `DEPTH_MAX`.
    pub depth: usize,
    /// Row of each sequence at the last position that a prediction may have. Its token does not
    /// matter.
    pub rows: &'a [SeqRows<'a>],
    /// Rule of each sequence.
    pub draws: &'a [Draw],
}

/// Tokens that a device drew of a sequence behind a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guessed {
    /// Drafts of the step that hold, if it is right.
    pub held: usize,
    /// Token behind those.
    pub token: TokenId,
    /// Predictions that were asked for, behind that token.
    pub drafts: [TokenId; DEPTH_MAX],
}

const NO_PREDICTION: &str = "there is no prediction layer";
const NO_TRANSFER: &str = "nothing of it can be kept outside";

/// The largest logits of a row.
#[derive(Clone, Copy, Debug)]
pub struct Ranked<'a> {
    ids: &'a [f32],
    logits: &'a [f32],
    /// `sum_i exp(logit[i] - largest)` over the whole row; not a number if a logit is not finite.
    pub sum: f32,
}

impl<'a> Ranked<'a> {
    /// Ranking from a row of `ops::Dense::top_k`: ids, which are whole numbers, logits, and the
    /// sum.
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

/// The device cannot be used, or no longer; the process cannot go on serving.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// It has too little free memory.
    #[error("{0}")]
    Memory(String),
    /// There is none that this binary can use.
    #[error("{0}")]
    Absent(String),
    /// A call failed.
    #[error("{0}")]
    Failed(String),
    /// Weights that are read where they lie are no longer to be read there.
    #[error("{0}")]
    Weights(String),
}

/// Longest time of a device's call, if more can only mean that the device is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Any call but the next.
    pub call: Duration,
    /// Factor by which a step may take longer in which a sequence has several rows.
    pub prompt: u32,
}

/// A model bound to a device. Row results depend on the row's own sequence only, never on which
/// other rows share the step.
pub trait Executor {
    /// Vocabulary size: floats per row of logits.
    const VOCAB: usize;
    /// None: calls may take any time.
    const PATIENCE: Option<Patience> = None;

    /// KV pages that it has; none if any number will do.
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

    /// Whether it has a prediction layer, which drafts tokens.
    fn predicts(&self) -> bool {
        false
    }

    /// Runs the prediction layer on every row of the last step, when nothing more is asked of that.
    /// `next` has the token behind each row. The logits are then those of the token behind that, of
    /// the rows of `wanted`, ascending, at most one of each sequence and draft.
    ///
    /// The layer keeps keys and values of its own in the same pages: it knows of a position what
    /// was predicted there last.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    fn predict(&mut self, _next: &[TokenId], _wanted: &[usize]) -> Result<(), DeviceError> {
        Err(DeviceError::Failed(NO_PREDICTION.to_owned()))
    }

    /// Runs it once more behind the rows that the last prediction was wanted of: a row for each, in
    /// their order, at the position behind, of the token that was drafted.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    fn predict_on(&mut self, _rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        Err(DeviceError::Failed(NO_PREDICTION.to_owned()))
    }

    /// `step` over replies and their drafts, all logits wanted, and behind it, while the host goes
    /// on, predictions: `Executor::guessed` waits for them. The device draws the tokens that they
    /// need by `ahead`. False, and nothing was run, where it cannot.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    fn step_ahead(&mut self, _rows: &[SeqRows<'_>], _: &Ahead<'_>) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Waits for what follows the last `step_ahead`, and gives what was drawn of each sequence.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    fn guessed(&mut self, _guessed: &mut Vec<Guessed>) -> Result<(), DeviceError> {
        Err(DeviceError::Failed(NO_PREDICTION.to_owned()))
    }

    /// Computes the logits of other rows of the last step, with the bits that they have as the last
    /// row of a sequence. `rows` counts the rows of the step from 0, in the order in which its
    /// sequences were given: ascending, from 1 to `Facts::sequences` of them.
    ///
    /// `logits` is cleared and filled with `VOCAB` floats for each of `rows`.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    fn logits_of(&mut self, rows: &[usize], logits: &mut Vec<f32>) -> Result<(), DeviceError>;

    /// Bytes of what can be kept outside of the device; none if nothing can.
    fn piece_bytes(&self) -> Option<PieceBytes> {
        None
    }

    /// Takes the host's room for transfers, once, before the first step.
    ///
    /// # Errors
    /// Too little memory.
    fn take_room(&mut self, _bytes: usize) -> Result<(), DeviceError> {
        Err(DeviceError::Absent(NO_TRANSFER.to_owned()))
    }

    /// Bytes of the host's room. Transfers that run must not touch the range.
    ///
    /// # Panics
    /// If the range is not in the room.
    fn room(&mut self, _range: Range<usize>) -> &mut [u8] {
        panic!("{NO_TRANSFER}")
    }

    /// Starts checksums of ranges of the host's room, which come together, and does not wait for
    /// them: nothing may write there until then.
    ///
    /// # Panics
    /// If a range is not in the room.
    fn sums(&mut self, ranges: Vec<Range<usize>>) -> Receiver<Vec<Sum>> {
        let sums = ranges.into_iter().map(|range| sum(self.room(range)));
        at_once(sums.collect())
    }

    /// Starts to write bytes to a range of the host's room of their length, and does not wait for
    /// it: nothing may use the range until it is told, which takes no longer than a copy.
    ///
    /// # Panics
    /// If the range is not in the room.
    fn fill(&mut self, range: Range<usize>, bytes: Vec<u8>) -> Receiver<()> {
        self.room(range).copy_from_slice(&bytes);
        at_once(())
    }

    /// Starts to read a range of the host's room, likewise: nothing may write there.
    ///
    /// # Panics
    /// If the range is not in the room.
    fn copy_out(&mut self, range: Range<usize>) -> Receiver<Vec<u8>> {
        let bytes = self.room(range).to_vec();
        at_once(bytes)
    }

    /// Starts copies to the host's room of pieces as the steps so far leave them, and does not wait
    /// for them. No step may write the pieces until they are done.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    fn save(&mut self, _transfers: &[Transfer]) -> Result<(), DeviceError> {
        Err(DeviceError::Failed(NO_TRANSFER.to_owned()))
    }

    /// Starts copies from the host's room, and does not wait for them. No step may use the pieces
    /// until they are done, and those before must not.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    fn restore(&mut self, _transfers: &[Transfer]) -> Result<(), DeviceError> {
        Err(DeviceError::Failed(NO_TRANSFER.to_owned()))
    }

    /// Transfers that are done since the start: they end in the order in which they were started.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    fn transferred(&mut self) -> Result<u64, DeviceError> {
        Ok(0)
    }
}
