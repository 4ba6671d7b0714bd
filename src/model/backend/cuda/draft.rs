//! Drafts that the GPU draws itself, and the page-locked memory through which the host reads them.

use std::ops::Range;

use ffi::{CudaError, Device, Event, PinnedBuf, Stream, ops};

use super::steps::SHAPES;
use super::{Cuda, Host, Tensor, count, memory, refused};
use crate::ops::ENDS_MAX;
use crate::ops::{Batch, Draft, RANKED};
use crate::target::VOCAB;
use step::executor::{DEPTH_MAX, DeviceError, Drafted, TokenId, UNIFORMS};

/// Numbers of a sequence in `DraftBuffers::accepted`: accepted drafts, and the next token.
const ACCEPTED: usize = 2;
// Sampling rules have positions as F32, which must be exact.
const _: () = assert!(crate::target::MAX_CONTEXT <= 1 << 24);
// Predictions advance the tiles of drafts' rows for one attention shape only.
const _: () = assert!(crate::target::MTP_LAYERS == 0 || SHAPES == 1);

/// Drafts in page-locked memory, written by the device and read by the host after a wait.
pub struct DraftBuffers {
    /// Accepted drafts of sequences, `[ENDS_MAX][ACCEPTED]`.
    accepted: PinnedBuf<u32>,
    /// Drafted tokens by depth, `[DEPTH_MAX][ENDS_MAX]`.
    drafts: PinnedBuf<u32>,
    /// Stream of copies, which run in parallel with operations.
    beside: Stream,
    /// Event in the stream of operations, after the rows to be read. Events in the stream of
    /// copies: `copied` after the batch of drafts, `asked` after the rows that were asked for.
    made: Event,
    copied: Event,
    asked: Event,
}

impl DraftBuffers {
    pub fn new(device: &Device) -> Result<DraftBuffers, DeviceError> {
        Ok(DraftBuffers {
            accepted: memory::locked(device, ENDS_MAX * ACCEPTED)?,
            drafts: memory::locked(device, DEPTH_MAX * ENDS_MAX)?,
            beside: Stream::open(device).map_err(refused)?,
            made: Event::open(device).map_err(refused)?,
            copied: Event::open(device).map_err(refused)?,
            asked: Event::open(device).map_err(refused)?,
        })
    }

    /// Number of accepted drafts of a sequence, and its `depth` new drafts.
    fn of(&self, sequence: usize, depth: usize) -> Drafted {
        let [accepted, token] = self.accepted.as_chunks::<ACCEPTED>().0[sequence];
        let mut drafted = Drafted {
            accepted: accepted as usize,
            token,
            ..Drafted::default()
        };
        let drafts = self.drafts.chunks(ENDS_MAX).take(depth);
        let drafts = drafts.map(|of| of[sequence] as TokenId);
        drafted
            .drafts
            .iter_mut()
            .zip(drafts)
            .for_each(|(to, draft)| *to = draft);
        drafted
    }
}

impl Cuda {
    /// Queues the copy of the batch of drafts, and makes operations wait for it.
    fn copy_drafts(&mut self, drafts: &Batch) -> Result<(), CudaError> {
        let DraftBuffers { beside, copied, .. } = &self.drafts;
        self.step.drafts.begun = true;
        // SAFETY: `begun` is false only after a wait for all operations on the previous batch,
        // which had waited for that batch's copy; and no wait has failed.
        unsafe { self.step.drafts.begin(drafts, beside)? };
        copied.record(beside)?;
        copied.hold(&self.queue.stream)
    }

    /// Queues the copy of `rows` of `x` after all operations so far, and marks its end.
    fn copy_and_mark(
        &mut self,
        x: &Tensor,
        rows: Range<usize>,
        out: &mut Host,
    ) -> Result<(), CudaError> {
        let DraftBuffers {
            beside,
            made,
            asked,
            ..
        } = &self.drafts;
        let from = x.guard + rows.start * x.width;
        made.record(&self.queue.stream)?;
        made.hold(beside)?;
        // SAFETY: `out` lives until the wait for the mark, and is read after it.
        unsafe {
            x.values
                .download_unwaited(from, &mut out.memory[..out.len], beside)?
        };
        asked.record(beside)
    }

    /// Waits for the copies in the stream of copies.
    pub(super) fn wait_beside(&mut self) {
        let waited = self.drafts.beside.synchronize();
        self.queue.failures.waited(waited);
    }
}

impl Draft for Cuda {
    fn begin_drafts(&mut self, drafts: &Batch) {
        if self.step.drafts.begun {
            self.queue.wait();
        }
        match self.queue.failures.is_lost() {
            true => self.step.drafts.lose(),
            false => {
                let copied = self.copy_drafts(drafts);
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
                let waited = self.drafts.asked.wait();
                self.queue.failures.waited(waited);
            }
        }
        // Operations on the batch of drafts may still be running.
        self.step.now.begun = false;
        self.queue.failures.reported().map_err(refused)
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
        let rules = self.step.drafts.rules().cast();
        let [starts, next_tokens, next_positions, tiles] = self.step.drafts.moved_on();
        let accepted = self.drafts.accepted.as_mut_ptr();
        // SAFETY: shapes are checked; all lists suffice for ENDS_MAX rows, of which each span has
        // its own, and spans are filled up to as many as rows; the host reads `accepted` after a
        // wait only.
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

    fn draft(&mut self, logits: &Tensor, on: bool) {
        assert!(logits.width <= VOCAB && logits.rows <= ENDS_MAX);
        let rules = self.step.drafts.rules().cast();
        let [starts, tokens, positions, tiles] = self.step.drafts.moved_on();
        let drafts = self.drafts.drafts.as_mut_ptr();
        // SAFETY: shapes are checked; the lists and `orders` suffice for ENDS_MAX rows, `drafts`
        // for as many at each depth; the host reads `drafts` after a wait only.
        self.queue.launch("draft", |stream| unsafe {
            ops::atlas_draft(
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

    fn read_drafts(
        &mut self,
        depth: usize,
        sequences: usize,
        drafted: &mut Vec<Drafted>,
    ) -> Result<(), DeviceError> {
        self.queue.wait();
        self.step.passed();
        self.queue.failures.reported().map_err(refused)?;
        drafted.extend((0..sequences).map(|sequence| self.drafts.of(sequence, depth)));
        Ok(())
    }
}
