//! Decode steps and prompts, timed through the calls that the engine makes.

use std::time::Instant;

use check::{rings_fitting, window_ring};
use model::target::{MAX_CONTEXT, MAX_SEQUENCES, PAGE, PREFILL_TOKENS, VOCAB};
use step::executor::{BlockTable, DeviceError, Executor, PageId, SeqRows, Slot, TokenId};

/// Distance in the vocabulary of one synthetic token from the next; it and the vocabulary's size
/// have no common factor.
const STRIDE: usize = 7919;

/// Tokens of a step of `rows` rows, which differ from row to row and from step to step.
pub fn drawn(step: usize, rows: usize) -> Vec<TokenId> {
    let token = |row: usize| ((step * rows + row) * STRIDE % VOCAB) as TokenId;
    (0..rows).map(token).collect()
}

/// Page tables of `sequences` sequences, each with room for `positions` positions.
pub fn tables(sequences: usize, positions: usize) -> Vec<Vec<PageId>> {
    let each = positions.div_ceil(PAGE);
    let table = |index: usize| (index * each..(index + 1) * each).map(|id| PageId(id as u32));
    (0..sequences).map(|index| table(index).collect()).collect()
}

/// Seconds that `run` takes.
pub fn seconds(run: impl FnOnce() -> Result<(), DeviceError>) -> Result<f64, DeviceError> {
    let start = Instant::now();
    run()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Decode steps of `rows` sequences after `context` tokens each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decode {
    pub rows: usize,
    pub context: usize,
}

impl Decode {
    /// Whether the target has enough slots and, with `pages` KV pages, enough pages for `steps`
    /// steps.
    pub fn fits(&self, steps: usize, pages: usize) -> bool {
        let each = (self.context + steps).div_ceil(PAGE);
        self.rows <= MAX_SEQUENCES
            && self.context + steps <= MAX_CONTEXT
            && self.rows * each <= pages
            && self.rows <= rings_fitting(self.context + steps, 1)
    }

    /// Seconds of each of `steps` steps. The context is not computed before: the time of a step
    /// does not depend on the content of the pages. Each row has another token in each step.
    pub fn run<E: Executor>(
        &self,
        executor: &mut E,
        steps: usize,
    ) -> Result<Vec<f64>, DeviceError> {
        let tables = tables(self.rows, self.context + steps);
        let ring = |row| window_ring(row, self.context + steps, 1);
        let windows: Vec<_> = (0..self.rows).map(ring).collect();
        let step = |step: usize| {
            let tokens = drawn(step, self.rows);
            let row = |row: usize| SeqRows {
                window: BlockTable::whole(&windows[row]),
                ..SeqRows::of(
                    Slot(row as u32),
                    self.context + step,
                    &tokens[row..=row],
                    &tables[row],
                )
            };
            let rows: Vec<_> = (0..self.rows).map(row).collect();
            seconds(|| executor.step(&rows))
        };
        (0..steps).map(step).collect()
    }
}

/// Seconds of a prompt of `tokens` tokens, up to the logits for the reply's first token.
pub fn prefill<E: Executor>(executor: &mut E, tokens: usize) -> Result<f64, DeviceError> {
    let prompt = drawn(0, tokens);
    let pages = tables(1, tokens).concat();
    let window = window_ring(0, tokens, PREFILL_TOKENS);
    seconds(|| {
        for (index, chunk) in prompt.chunks(PREFILL_TOKENS).enumerate() {
            let first = index * PREFILL_TOKENS;
            let rows = SeqRows {
                window: BlockTable::whole(&window),
                logits: usize::from(first + chunk.len() == tokens),
                ..SeqRows::of(Slot(0), first, chunk, &pages)
            };
            executor.step(&[rows])?;
        }
        Ok(())
    })
}
