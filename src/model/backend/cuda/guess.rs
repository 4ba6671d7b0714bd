//! Predictions ahead of the host on the GPU, and what the host reads of them.

use std::ops::Range;

use ffi::{CudaError, Device, Event, PinnedBuf, Stream, ops};

use super::steps::SHAPES;
use super::{Cuda, Host, Tensor, count, memory, refused};
use crate::ops::ENDS_MAX;
use crate::ops::{Batch, Guess, RANKED};
use crate::target::VOCAB;
use step::executor::{DEPTH_MAX, DeviceError, Guessed, TokenId, UNIFORMS};

/// Numbers of what was accepted of a sequence: drafts that hold, and the token behind them.
const ACCEPTED: usize = 2;
// Positions are numbers of rules, which are F32.
const _: () = assert!(crate::target::MAX_CONTEXT <= 1 << 24);
// Tiles of rows ahead move on for one attention shape only.
const _: () = assert!(crate::target::MTP_LAYERS == 0 || SHAPES == 1);

/// Guesses in page-locked memory, which the device writes and the host reads behind a wait.
pub struct Guesses {
    /// `[ENDS_MAX][ACCEPTED]`.
    accepted: PinnedBuf<u32>,
    /// `[DEPTH_MAX][ENDS_MAX]`.
    drafts: PinnedBuf<u32>,
    /// Copies beside the operations, which do not wait for each other.
    beside: Stream,
    /// Marks in the stream of operations behind what is to be read, and beside it behind the copy
    /// of the batch ahead and behind what was asked for.
    made: Event,
    copied: Event,
    asked: Event,
}

impl Guesses {
    pub fn new(device: &Device) -> Result<Guesses, DeviceError> {
        Ok(Guesses {
            accepted: memory::locked(device, ENDS_MAX * ACCEPTED)?,
            drafts: memory::locked(device, DEPTH_MAX * ENDS_MAX)?,
            beside: Stream::open(device).map_err(refused)?,
            made: Event::open(device).map_err(refused)?,
            copied: Event::open(device).map_err(refused)?,
            asked: Event::open(device).map_err(refused)?,
        })
    }

    /// Guess of a sequence, of so many passes.
    fn of(&self, sequence: usize, passes: usize) -> Guessed {
        let [held, token] = self.accepted.as_chunks::<ACCEPTED>().0[sequence];
        let mut guessed = Guessed {
            held: held as usize,
            token,
            ..Guessed::default()
        };
        let drafts = self.drafts.chunks(ENDS_MAX).take(passes);
        let drafts = drafts.map(|pass| pass[sequence] as TokenId);
        guessed
            .drafts
            .iter_mut()
            .zip(drafts)
            .for_each(|(to, draft)| *to = draft);
        guessed
    }
}

impl Cuda {
    /// Queues the copy of the batch ahead, and has operations wait for it.
    fn copy_ahead(&mut self, ahead: &Batch) -> Result<(), CudaError> {
        let Guesses { beside, copied, .. } = &self.guesses;
        self.step.ahead.begun = true;
        // SAFETY: `begun` is false behind a wait for all operations on the batch before alone,
        // which waited for its copy; and no wait has failed.
        unsafe { self.step.ahead.begin(ahead, beside)? };
        copied.record(beside)?;
        copied.hold(&self.queue.stream)
    }

    /// Queues the copy of `rows` of `x` behind all operations so far, and marks its end.
    fn copy_and_mark(
        &mut self,
        x: &Tensor,
        rows: Range<usize>,
        out: &mut Host,
    ) -> Result<(), CudaError> {
        let Guesses {
            beside,
            made,
            asked,
            ..
        } = &self.guesses;
        let from = x.guard + rows.start * x.width;
        made.record(&self.queue.stream)?;
        made.hold(beside)?;
        // SAFETY: `out` is read behind the wait for the mark, and as long as that.
        unsafe {
            x.values
                .download_unwaited(from, &mut out.memory[..out.len], beside)?
        };
        asked.record(beside)
    }

    /// Waits for the copies beside operations.
    pub(super) fn wait_beside(&mut self) {
        let waited = self.guesses.beside.synchronize();
        self.queue.failures.waited(waited);
    }
}

impl Guess for Cuda {
    fn begin_ahead(&mut self, ahead: &Batch) {
        if self.step.ahead.begun {
            self.queue.wait();
        }
        match self.queue.failures.is_lost() {
            true => self.step.ahead.lose(),
            false => {
                let copied = self.copy_ahead(ahead);
                self.queue.failures.queued(copied);
            }
        }
    }

    fn ask(&mut self, x: &Tensor, rows: Range<usize>, out: &mut Host) {
        assert!(rows.end <= x.rows);
        out.len = rows.len() * x.width;
        if !self.queue.failures.any() {
            let asked = self.copy_and_mark(x, rows, out);
            self.queue.failures.queued(asked);
        }
    }

    fn read_asked(&mut self) -> Result<(), DeviceError> {
        match self.queue.failures.any() {
            true => self.queue.wait(),
            false => {
                let waited = self.guesses.asked.wait();
                self.queue.failures.waited(waited);
            }
        }
        // Operations on the batch ahead may still be under way.
        self.step.now.begun = false;
        self.queue.failures.told().map_err(refused)
    }

    fn accept(&mut self, ranked: &Tensor, batch: &Batch) {
        if !batch.accepts() {
            return;
        }
        assert_eq!((ranked.rows, ranked.width), (batch.rows(), RANKED));
        assert!(batch.rows() <= ENDS_MAX);
        self.step.now.want(batch);
        let step = self.step.of(batch);
        let (accepts, spans, positions) = (step.accepts(), step.span_list(), step.positions());
        let [tokens, wanted] = self.step.now.replaced();
        let rules = self.step.ahead.rules().cast();
        let [starts, next_tokens, next_positions, tiles] = self.step.ahead.moved_on();
        let accepted = self.guesses.accepted.as_mut_ptr();
        // SAFETY: shapes are checked; all lists have room for ENDS_MAX rows, of which each span
        // has its own, and spans are filled up to as many as rows; the host reads `accepted` behind
        // a wait only.
        self.queue.launch("accept", |stream| unsafe {
            ops::atlas_accept(
                accepts,
                ranked.as_ptr(),
                spans,
                positions,
                tokens,
                wanted,
                rules,
                starts,
                next_tokens,
                next_positions,
                tiles,
                accepted,
                count(ranked.rows),
                count(batch.rows()),
                count(UNIFORMS),
                stream,
            )
        });
    }

    fn guess(&mut self, logits: &Tensor, on: bool) {
        assert!(logits.width <= VOCAB && logits.rows <= ENDS_MAX);
        let rules = self.step.ahead.rules().cast();
        let [starts, tokens, positions, tiles] = self.step.ahead.moved_on();
        let drafts = self.guesses.drafts.as_mut_ptr();
        // SAFETY: shapes are checked; the lists and `orders` have room for ENDS_MAX rows, `drafts`
        // for as many in each pass; the host reads those behind a wait only.
        self.queue.launch("guess", |stream| unsafe {
            ops::atlas_guess(
                logits.as_ptr(),
                self.orders.as_ptr(),
                rules,
                starts,
                tokens,
                positions,
                tiles,
                drafts,
                count(logits.rows),
                count(logits.width),
                count(UNIFORMS),
                count(DEPTH_MAX),
                count(ENDS_MAX),
                u32::from(on),
                stream,
            )
        });
        self.queue.end_graph();
    }

    fn read_guesses(
        &mut self,
        passes: usize,
        sequences: usize,
        guessed: &mut Vec<Guessed>,
    ) -> Result<(), DeviceError> {
        self.queue.wait();
        self.step.passed();
        self.queue.failures.told().map_err(refused)?;
        guessed.extend((0..sequences).map(|sequence| self.guesses.of(sequence, passes)));
        Ok(())
    }
}
