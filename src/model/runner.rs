//! A loaded model as the engine sees it.

use crate::engine::executor::{DeviceError, Executor, LOGITS_ROWS_MAX, Rows};
use crate::engine::request::TokenId;
use crate::ops::{Batch, Ops};
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
}

impl<B: Ops> Runner<B> {
    /// Loads the checkpoint's weights onto `ops`.
    ///
    /// # Errors
    /// `WeightsError` naming the file and tensor that cannot be used.
    pub fn load(mut ops: B, checkpoint: &Checkpoint) -> Result<Runner<B>, WeightsError> {
        let model = parts::load(&mut ops, checkpoint)?;
        let scratch = Scratch::new(&ops);
        Ok(Runner {
            ops,
            model,
            scratch,
            batch: Batch::default(),
        })
    }

    /// Runs the multi-token-prediction layer on the rows of the last `step` or `draft`.
    ///
    /// `next` holds the token after each row, in row order. `logits` is filled as by `step`, with
    /// the distribution of the token after `next`. The layer keeps keys and values of its own in
    /// the same pages, so it sees only positions that were drafted.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    ///
    /// # Panics
    /// Unless the target has such a layer and `next` has one token per row.
    pub fn draft(&mut self, next: &[TokenId], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        assert_eq!(next.len(), self.batch.rows());
        self.batch.tokens.copy_from_slice(next);
        qwen3_5_moe::draft(
            &mut self.ops,
            &mut self.model,
            &mut self.scratch,
            &self.batch,
        );
        self.read_logits(logits)
    }

    /// Bytes that the matrices take on the device.
    pub fn matrix_bytes(&self) -> u64 {
        self.ops.matrix_bytes()
    }

    fn read_logits(&mut self, logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        logits.clear();
        self.ops.read(&self.scratch.logits, logits)
    }
}

impl<B: Ops> Executor for Runner<B> {
    const VOCAB: usize = target::VOCAB;

    fn step(&mut self, rows: &[Rows<'_>], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        let count: usize = rows.iter().map(|sequence| sequence.tokens.len()).sum();
        if count > ROWS_MAX {
            return Err(DeviceError(format!(
                "step of {count} rows, at most {ROWS_MAX}"
            )));
        }
        self.batch.fill(rows)?;
        qwen3_5_moe::forward(
            &mut self.ops,
            &mut self.model,
            &mut self.scratch,
            &self.batch,
        );
        self.read_logits(logits)
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
        qwen3_5_moe::logits(&mut self.ops, &self.model, &mut self.scratch, rows);
        self.read_logits(logits)
    }
}
