//! A loaded model as the engine sees it.

use crate::engine::executor::{DeviceError, Executor, LOGITS_ROWS_MAX, PageId, Rows, Slot};
use crate::engine::request::TokenId;
use crate::ops::{Batch, Ops, Program};
use crate::target;
use crate::weights::{Checkpoint, WeightsError};

use super::parts::{self, Model, Scratch};
use super::qwen3_5_moe;

/// Most rows of one step: a full prefill and one token of every sequence.
pub const ROWS_MAX: usize = target::PREFILL_TOKENS + target::MAX_SEQUENCES;

/// A model on a backend with its caches.
pub struct Runner<B: Ops> {
    ops: B,
    model: Model<B>,
    scratch: Scratch<B>,
    batch: Batch,
    /// Logits of the last step or draft, and those of other rows.
    logits: B::Host,
    others: B::Host,
}

impl<B: Ops> Runner<B> {
    /// Loads the checkpoint's weights onto `ops`.
    ///
    /// # Errors
    /// `WeightsError` naming the file and tensor that cannot be used.
    pub fn load(mut ops: B, checkpoint: &Checkpoint) -> Result<Runner<B>, WeightsError> {
        let model = parts::load(&mut ops, checkpoint)?;
        checkpoint.check_unchanged()?;
        let scratch = Scratch::new(&ops)?;
        let host = || ops.host(target::MAX_SEQUENCES * target::VOCAB);
        let (logits, others) = (host()?, host()?);
        let mut runner = Runner {
            logits,
            others,
            ops,
            model,
            scratch,
            batch: Batch::default(),
        };
        runner.record()?;
        Ok(runner)
    }

    /// Prepares decode steps of every size.
    fn record(&mut self) -> Result<(), DeviceError> {
        for rows in 1..=target::MAX_SEQUENCES {
            let row = |index: usize| Rows {
                slot: Slot(index as u32),
                start: 0,
                tokens: &[0],
                pages: &[PageId(0)],
                logits: true,
            };
            self.batch.fill(&(0..rows).map(row).collect::<Vec<_>>())?;
            let (model, s, batch) = (&mut self.model, &mut self.scratch, &self.batch);
            self.ops.record(Program::Forward, batch, |ops| {
                qwen3_5_moe::forward(ops, model, s, batch);
            })?;
            if model.mtp.is_some() {
                self.ops.record(Program::Draft, batch, |ops| {
                    qwen3_5_moe::draft(ops, model, s, batch);
                })?;
            }
        }
        Ok(())
    }

    /// Runs the multi-token-prediction layer on the rows of the last `step` or `draft`.
    ///
    /// `next` holds the token after each row, in row order. `logits` are then those of the token
    /// after `next`. The layer keeps keys and values of its own in
    /// the same pages, so it sees only positions that were drafted.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    ///
    /// # Panics
    /// Unless the target has such a layer and `next` has one token per row.
    pub fn draft(&mut self, next: &[TokenId]) -> Result<(), DeviceError> {
        assert_eq!(next.len(), self.batch.rows());
        self.batch.tokens.copy_from_slice(next);
        let (model, s, batch) = (&mut self.model, &mut self.scratch, &self.batch);
        self.ops.run(Program::Draft, batch, |ops| {
            qwen3_5_moe::draft(ops, model, s, batch);
        });
        self.ops.read(&self.scratch.logits, &mut self.logits)
    }

    /// Bytes that the matrices take on the device.
    pub fn matrix_bytes(&self) -> u64 {
        self.ops.matrix_bytes()
    }
}

impl<B: Ops> Runner<B> {
    /// `step` without what was recorded for it.
    ///
    /// # Errors
    /// As `step`.
    pub fn step_eagerly(&mut self, rows: &[Rows<'_>]) -> Result<(), DeviceError> {
        self.fill(rows)?;
        self.ops.begin(&self.batch);
        qwen3_5_moe::forward(
            &mut self.ops,
            &mut self.model,
            &mut self.scratch,
            &self.batch,
        );
        self.ops.read(&self.scratch.logits, &mut self.logits)
    }

    fn fill(&mut self, rows: &[Rows<'_>]) -> Result<(), DeviceError> {
        let count: usize = rows.iter().map(|sequence| sequence.tokens.len()).sum();
        if count > ROWS_MAX {
            return Err(DeviceError(format!(
                "step of {count} rows, at most {ROWS_MAX}"
            )));
        }
        self.batch.fill(rows)
    }
}

impl<B: Ops> Executor for Runner<B> {
    const VOCAB: usize = target::VOCAB;

    fn step(&mut self, rows: &[Rows<'_>]) -> Result<(), DeviceError> {
        self.fill(rows)?;
        let (model, s, batch) = (&mut self.model, &mut self.scratch, &self.batch);
        self.ops.run(Program::Forward, batch, |ops| {
            qwen3_5_moe::forward(ops, model, s, batch);
        });
        self.ops.read(&self.scratch.logits, &mut self.logits)
    }

    fn logits(&self) -> &[f32] {
        &self.logits
    }

    fn logits_of(&mut self, rows: &[usize], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        let known = self.batch.rows();
        if rows.len() > LOGITS_ROWS_MAX || rows.iter().any(|&row| row >= known) {
            let most = LOGITS_ROWS_MAX;
            return Err(DeviceError(format!(
                "logits of {} rows of a step of {known}, at most {most} at once",
                rows.len()
            )));
        }
        let wanted = std::mem::replace(&mut self.batch.wanted, rows.to_vec());
        self.ops.begin(&self.batch);
        qwen3_5_moe::logits(&mut self.ops, &self.model, &mut self.scratch, &self.batch);
        self.batch.wanted = wanted;
        self.ops.read(&self.scratch.logits, &mut self.others)?;
        logits.clear();
        logits.extend_from_slice(&self.others);
        Ok(())
    }
}
