//! Executor of a loaded model on a backend.

use std::ops::Range;
use std::sync::mpsc::Receiver;

use super::blocks::{ROUTER_LOGITS, Runs};
use crate::ops::{
    Batch, ENDS_MAX, Hidden, LOGITS_ROWS_MAX, ONE_BY_ONE, Program, RANKED, ROWS_MAX, Side,
    VERIFIED_MAX,
};
use crate::shapes::PageGroup;
use crate::target;
use crate::weights::{Checkpoint, Stage, WeightsError};
use step::executor::{
    DEPTH_MAX, DeviceError, Drafted, Drafting, Executor, PageId, Patience, Ranked, SeqRows, Slot,
    TokenId,
};
use step::transfer::{PieceBytes, Sum, Transfer};

use super::decoder::{self, HookPoint, Model, Scratch};
use super::ledger::Plan;
use super::pools::Pools;

/// Elements that the host reads at once, at most.
const TAKEN: usize = LOGITS_ROWS_MAX * target::VOCAB;
const _: () = assert!(TAKEN >= ROUTER_LOGITS && TAKEN >= target::HIDDEN);

/// Model on a backend, with its caches and the workspace of a step.
pub struct Runner<B: Runs> {
    ops: B,
    model: Model<B>,
    pools: Pools<B::Pool>,
    scratch: Scratch<B>,
    batch: Batch,
    /// Rows of the predictions after the first one.
    draft_batch: Batch,
    /// Numbers of drafts of each sequence, and of sequences, that `drafted` waits for.
    pending: (usize, usize),
    /// Whether the logits of the last call are a prediction's, which has a tensor of its own.
    predicted: bool,
    /// Ranking of the last step's rows, if the backend ranks rows.
    ranked: B::Host,
    /// Logits of the row that was read last.
    logits: B::Host,
    others: B::Host,
    /// Whether `logits_of` has overwritten the logits of the last step.
    displaced: bool,
}

impl<B: Runs> Runner<B> {
    /// Loads the checkpoint's weights onto `ops`, and takes all memory of `plan`; the backend takes
    /// no more afterwards.
    ///
    /// # Errors
    /// `WeightsError` naming the file and tensor that cannot be used.
    ///
    /// # Panics
    /// If buffers take more than the plan says.
    pub fn load(
        mut ops: B,
        checkpoint: &Checkpoint,
        plan: &Plan,
    ) -> Result<Runner<B>, WeightsError> {
        checkpoint.progress().enter(Stage::Loading);
        let mut pools = Pools::new(&ops, checkpoint.layout(), plan.page_counts())?;
        let model = decoder::load(&mut ops, checkpoint, &mut pools)?;
        checkpoint.check_unchanged()?;
        let scratch = Scratch::new(&ops, checkpoint.layout())?;
        let mut runner = Runner {
            ranked: ops.host(ENDS_MAX * RANKED)?,
            logits: ops.host(target::VOCAB)?,
            others: ops.host(TAKEN)?,
            displaced: false,
            ops,
            model,
            pools,
            scratch,
            batch: Batch::of_groups(plan.page_counts()),
            draft_batch: Batch::of_drafts(plan.pages),
            pending: (0, 0),
            predicted: false,
        };
        checkpoint.progress().enter(Stage::Recording);
        runner.record()?;
        if let Some(taken) = runner.ops.seal() {
            let planned = plan.buffer_bytes();
            assert!(taken <= planned, "{taken} bytes of {planned} planned ones");
        }
        Ok(runner)
    }

    /// Records steps of every number of replies, with drafts and without.
    fn record(&mut self) -> Result<(), DeviceError> {
        for rows in 1..=target::MAX_SEQUENCES {
            self.fill_short(rows, 1)?;
            self.record_program(Program::Decode)?;
            if self.model.prediction.is_some() {
                self.record_program(Program::Draft)?;
                self.record_program(Program::DraftOn)?;
            }
        }
        for rows in 2..=VERIFIED_MAX {
            self.fill_short(rows, ONE_BY_ONE)?;
            self.record_program(Program::Verify)?;
            if self.model.prediction.is_some() {
                self.record_program(Program::DraftVerified)?;
            }
        }
        Ok(())
    }

    /// Fills the batch with `rows` rows, `each` rows of every sequence but the last.
    fn fill_short(&mut self, rows: usize, each: usize) -> Result<(), DeviceError> {
        let sequence = |index: usize| {
            let count = each.min(rows - index * each);
            SeqRows {
                logits: count,
                ..SeqRows::of(
                    Slot(index as u32),
                    0,
                    &[0; ONE_BY_ONE][..count],
                    &[PageId(0)],
                )
            }
        };
        let sequences = (0..rows.div_ceil(each)).map(sequence);
        let sequences = sequences.collect::<Vec<_>>();
        if each == 1 {
            self.draft_batch.fill(&sequences)?;
        }
        self.batch.fill(&sequences)?;
        self.batch.draw_tokens(true);
        Ok(())
    }

    fn record_program(&mut self, program: Program) -> Result<(), DeviceError> {
        let (model, s) = (&mut self.model, &mut self.scratch);
        let batch = match program {
            Program::DraftOn => &self.draft_batch,
            _ => &self.batch,
        };
        self.ops.record(program, batch, |ops| match program {
            Program::Decode | Program::Verify => decoder::forward(ops, model, s, batch),
            Program::Draft | Program::DraftVerified => {
                decoder::draft(ops, model, s, batch, Hidden::OfRows);
            }
            Program::DraftOn => decoder::draft(ops, model, s, batch, Hidden::OfWanted),
        })
    }

    /// Runs `operations`, as recorded for one of `programs` if one of these takes the batch.
    fn run(
        &mut self,
        programs: &[Program],
        operations: impl FnOnce(&mut B, &mut Model<B>, &mut Scratch<B>, &Batch),
    ) {
        let (model, s, batch) = (&mut self.model, &mut self.scratch, &self.batch);
        let takes = |program: &&Program| program.takes(batch);
        let operations = |ops: &mut B| operations(ops, model, s, batch);
        self.ops.begin(batch);
        match programs.iter().find(takes) {
            Some(&program) => self.ops.run(program, batch, operations),
            None => operations(&mut self.ops),
        }
        self.displaced = false;
    }

    /// Predicts once more after the last prediction, for the rows of `draft_batch`.
    fn draft_on(&mut self) {
        let (model, s, batch) = (&mut self.model, &mut self.scratch, &self.draft_batch);
        self.ops.run(Program::DraftOn, batch, |ops| {
            decoder::draft(ops, model, s, batch, Hidden::OfWanted);
        });
    }

    /// Programs of the batch and of a prediction after it, if both and `DraftOn` are recorded.
    fn recorded_with_drafts(&self) -> Option<[Program; 2]> {
        let (rows, sequences) = (self.batch.rows(), self.batch.spans().len());
        let programs = match self.batch.is_decode() {
            true => [Program::Decode, Program::Draft],
            false => [Program::Verify, Program::DraftVerified],
        };
        let recorded = |program, rows| self.ops.launches(program, rows).is_some();
        let takes = |program: &Program| program.takes(&self.batch) && recorded(*program, rows);
        let all = programs.iter().all(takes) && recorded(Program::DraftOn, sequences);
        all.then_some(programs)
    }

    /// Runs the multi-token-prediction layer on the rows of the last `step` or `draft`.
    ///
    /// `next` has the token after each row. `logits` are then those of the token after `next`. The
    /// layer has keys and values of its own in the same pages, so it sees only positions that it
    /// has run on.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    ///
    /// # Panics
    /// Unless the target has an MTP layer and `next` has one token per row.
    pub fn draft(&mut self, next: &[TokenId]) -> Result<(), DeviceError> {
        self.batch.replace_tokens(next)?;
        let programs = [Program::Draft, Program::DraftVerified];
        self.run(&programs, |ops, model, s, batch| {
            decoder::draft(ops, model, s, batch, Hidden::OfRows);
        });
        self.finish_prediction()
    }

    /// Layers of the model, for tests that change their weights.
    #[cfg(feature = "testing")]
    pub fn layers(&mut self) -> &mut [decoder::Layer<B>] {
        &mut self.model.layers
    }

    /// Number of launches of a recorded decode step of so many rows, if the backend records steps.
    pub fn launches(&self, rows: usize) -> Option<usize> {
        self.ops.launches(Program::Decode, rows)
    }

    /// Bytes that all matrices take on the device.
    pub fn matrix_bytes(&self) -> u64 {
        self.ops.matrix_bytes()
    }
}

impl<B: Runs> Runner<B> {
    /// `step` without recorded programs.
    pub fn step_eagerly(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        self.fill(rows)?;
        self.ops.begin(&self.batch);
        decoder::forward(
            &mut self.ops,
            &mut self.model,
            &mut self.scratch,
            &self.batch,
        );
        self.finish()
    }

    /// `step_eagerly`; appends the logits of each layer's router to `routers`, `[layers, rows,
    /// ROUTER_LOGITS]`. Waits after every layer, but runs the same operations.
    pub fn step_with_routers(
        &mut self,
        rows: &[SeqRows<'_>],
        routers: &mut Vec<f32>,
    ) -> Result<(), DeviceError> {
        routers.clear();
        self.step_watched(rows, |taker, part| match part {
            HookPoint::FeedForward => taker.take_router(routers),
            HookPoint::Embedding | HookPoint::Mixer => Ok(()),
        })
    }

    /// `step_eagerly` that calls `look` after each hook point. Waits where activations are taken,
    /// but runs the same operations.
    ///
    /// # Errors
    /// Errors of `step`, and the first error of `look`.
    pub fn step_watched(
        &mut self,
        rows: &[SeqRows<'_>],
        mut look: impl FnMut(&mut Taker<'_, B>, HookPoint) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.fill(rows)?;
        self.ops.begin(&self.batch);
        let (model, s, rows) = (&mut self.model, &mut self.scratch, self.batch.rows());
        let (host, mut seen) = (&mut self.others, Ok(()));
        decoder::forward_watched(&mut self.ops, model, s, &self.batch, |ops, s, part| {
            if seen.is_ok() {
                let mut taker = Taker { ops, s, rows, host };
                seen = look(&mut taker, part);
            }
        });
        seen?;
        self.finish()
    }

    /// Waits for the step, and reads the ranking of its rows.
    fn finish(&mut self) -> Result<(), DeviceError> {
        (self.displaced, self.predicted) = (false, false);
        self.take_ranked()
    }

    /// Waits for a prediction, and reads the ranking of its rows.
    fn finish_prediction(&mut self) -> Result<(), DeviceError> {
        decoder::rank_prediction(&mut self.ops, &mut self.scratch);
        (self.displaced, self.predicted) = (false, true);
        self.take_ranked()
    }

    fn take_ranked(&mut self) -> Result<(), DeviceError> {
        let rows = match B::RANKS {
            true => self.batch.wanted().len(),
            false => 0,
        };
        let s = &self.scratch;
        let predicted = s.predicted.as_ref().filter(|_| self.predicted);
        let ranked = predicted.map_or(&s.ranked, |of| &of.ranked);
        self.ops.read(ranked, 0..rows, &mut self.ranked)
    }

    fn fill(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        let count: usize = rows.iter().map(|sequence| sequence.tokens.len()).sum();
        if count > ROWS_MAX {
            return Err(DeviceError::Failed(format!(
                "step of {count} rows, at most {ROWS_MAX}"
            )));
        }
        self.batch.fill(rows)
    }
}

/// Access to the activations of a step at a hook point.
pub struct Taker<'a, B: Runs> {
    ops: &'a mut B,
    s: &'a Scratch<B>,
    /// Number of rows of the step.
    rows: usize,
    host: &'a mut B::Host,
}

impl<B: Runs> Taker<'_, B> {
    /// Appends all rows of a tensor of `width` elements a row to `taken`.
    pub fn take(
        &mut self,
        of: impl Fn(&Scratch<B>) -> &B::Tensor,
        width: usize,
        taken: &mut Vec<f32>,
    ) -> Result<(), DeviceError> {
        let at_once = TAKEN / width;
        for first in (0..self.rows).step_by(at_once) {
            let rows = first..self.rows.min(first + at_once);
            self.ops.read(of(self.s), rows, self.host)?;
            taken.extend_from_slice(self.host);
        }
        Ok(())
    }

    /// Appends the logits of the layer's router, `[rows, ROUTER_LOGITS]`; none without a router.
    pub fn take_router(&mut self, taken: &mut Vec<f32>) -> Result<(), DeviceError> {
        match self.s.router() {
            Some(_) => self.take(|s| s.router().expect("a router is"), ROUTER_LOGITS, taken),
            None => Ok(()),
        }
    }
}

impl<B: Runs> Executor for Runner<B> {
    const VOCAB: usize = target::VOCAB;
    const PATIENCE: Option<Patience> = B::PATIENCE;

    fn pages(&self) -> Option<usize> {
        Some(self.batch.page_count(PageGroup::Whole))
    }

    fn step(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        self.fill(rows)?;
        self.run(&[Program::Decode, Program::Verify], decoder::forward);
        self.finish()
    }

    fn ranked(&self, index: usize) -> Option<Ranked<'_>> {
        B::RANKS.then(|| Ranked::new(&self.ranked[index * RANKED..][..RANKED]))
    }

    fn logits(&mut self, index: usize) -> Result<&[f32], DeviceError> {
        if self.displaced {
            self.ops.begin(&self.batch);
            decoder::logits(&mut self.ops, &self.model, &mut self.scratch, &self.batch);
            self.displaced = false;
        }
        let (row, s) = (index..index + 1, &self.scratch);
        let predicted = s.predicted.as_ref().filter(|_| self.predicted);
        let logits = predicted.map_or(&s.logits, |of| &of.logits);
        self.ops.read(logits, row, &mut self.logits)?;
        Ok(&self.logits)
    }

    fn predicts(&self) -> bool {
        self.model.prediction.is_some()
    }

    fn predict(&mut self, next: &[TokenId], wanted: &[usize]) -> Result<(), DeviceError> {
        self.batch.want(wanted.to_vec())?;
        self.draft(next)
    }

    fn predict_on(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        self.draft_batch.fill(rows)?;
        self.ops.begin(&self.draft_batch);
        self.draft_on();
        self.finish_prediction()
    }

    fn step_draft(&mut self, rows: &[SeqRows<'_>], by: &Drafting<'_>) -> Result<bool, DeviceError> {
        self.fill(rows)?;
        let Some([step, draft]) = self.recorded_with_drafts() else {
            return Ok(false);
        };
        assert!((1..=DEPTH_MAX).contains(&by.depth) && by.rows.len() == rows.len());
        self.draft_batch.fill(by.rows)?;
        self.draft_batch.draw_by(by.draws);
        let (ops, batch) = (&mut self.ops, &mut self.batch);
        let (model, s) = (&mut self.model, &mut self.scratch);
        batch.draw_tokens(true);
        ops.begin(batch);
        ops.run(step, batch, |ops| decoder::forward(ops, model, s, batch));
        ops.begin_drafts(&self.draft_batch);
        ops.ask(&s.ranked, 0..batch.rows(), &mut self.ranked);
        batch.want_of_each();
        let batch = &*batch;
        ops.run(draft, batch, |ops| {
            decoder::draft(ops, model, s, batch, Hidden::OfRows);
        });
        (1..by.depth).for_each(|_| self.draft_on());
        self.batch.draw_tokens(false);
        (self.displaced, self.predicted) = (false, false);
        self.pending = (by.depth, rows.len());
        self.ops.read_asked()?;
        Ok(true)
    }

    fn drafted(&mut self, drafted: &mut Vec<Drafted>) -> Result<(), DeviceError> {
        let (depth, sequences) = self.pending;
        drafted.clear();
        self.ops.read_drafts(depth, sequences, drafted)
    }

    fn logits_of(&mut self, rows: &[usize], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        if rows.len() > LOGITS_ROWS_MAX {
            let (asked, most) = (rows.len(), LOGITS_ROWS_MAX);
            return Err(DeviceError::Failed(format!(
                "logits of {asked} rows, at most {most} at once"
            )));
        }
        let wanted = self.batch.want(rows.to_vec())?;
        self.ops.begin(&self.batch);
        decoder::logits(&mut self.ops, &self.model, &mut self.scratch, &self.batch);
        self.batch.want(wanted)?;
        (self.displaced, self.predicted) = (true, false);
        let rows = 0..rows.len();
        self.ops
            .read(&self.scratch.logits, rows, &mut self.others)?;
        logits.clear();
        logits.extend_from_slice(&self.others);
        Ok(())
    }

    fn piece_bytes(&self) -> Option<PieceBytes> {
        Some(self.pools.bytes())
    }

    fn take_host_memory(&mut self, bytes: usize) -> Result<(), DeviceError> {
        self.ops.take_host_memory(bytes)
    }

    fn host_memory(&mut self, range: Range<usize>) -> &mut [u8] {
        self.ops.host_bytes(range)
    }

    fn sums(&mut self, ranges: Vec<Range<usize>>) -> Receiver<Vec<Sum>> {
        self.ops.sums(ranges)
    }

    fn fill(&mut self, range: Range<usize>, bytes: Vec<u8>) -> Receiver<()> {
        self.ops.fill(range, bytes)
    }

    fn copy_out(&mut self, range: Range<usize>) -> Receiver<Vec<u8>> {
        self.ops.copy_out(range)
    }

    fn save(&mut self, transfers: &[Transfer]) -> Result<(), DeviceError> {
        self.ops.copy(&self.pools.copied(transfers), Side::Host)
    }

    fn restore(&mut self, transfers: &[Transfer]) -> Result<(), DeviceError> {
        self.ops.copy(&self.pools.copied(transfers), Side::Device)
    }

    fn transferred(&mut self) -> Result<u64, DeviceError> {
        self.ops.copied()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::cpu::Cpu;
    use crate::backend::simulated::Host;
    use crate::weights;

    /// A host whose memory the model shares refuses to take more than is free then, whatever was
    /// free when the model was planned; caches that can be given up are free.
    #[test]
    fn a_host_that_has_filled_up_meanwhile_is_refused() {
        const RESERVE: u64 = 1 << 20;
        let checkpoint = weights::open_seeded_layers(1, Arc::default());
        let plan = Plan::largest::<Cpu>(checkpoint.layout());
        let host = Host::new("load", RESERVE);
        host.caches(plan.bytes() + RESERVE);
        Plan::within::<Cpu>(host.budget.available(), checkpoint.layout()).unwrap();
        Runner::load(Cpu::on(&host), &checkpoint, &plan).unwrap_or_else(|error| panic!("{error}"));
        host.caches(2 * RESERVE);
        let refused = Runner::load(Cpu::on(&host), &checkpoint, &plan).err();
        let Some(WeightsError::Device(DeviceError::Memory(text))) = refused else {
            panic!("{refused:?}")
        };
        assert!(text.contains("1 MiB may be taken now"), "{text}");
    }
}
