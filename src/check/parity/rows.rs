//! Operations whose rows are independent, and the inputs of their cases.
//!
//! Inputs are BF16 values, which F16 holds exactly unless they are tiny: rounding the operands of
//! tensor instructions loses nothing, and only rounding inside an op remains.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::{F32_CHAIN, Probe, Random};
use model::backend::Backend;
use model::backend::cpu::Cpu;
use model::ops::{Batch, Device};
use model::target::{KV_PAGES, MAX_CONTEXT, MAX_SEQUENCES, PAGE, PREFILL_TOKENS, VOCAB};
use step::executor::{DeviceError, PageId, SeqRows, Slot, TokenId};

/// Numbers of rows of cases: one row, and both sides of every size at which steps are cut.
pub const ROWS: [usize; 18] = [
    1,
    2,
    7,
    8,
    9,
    16,
    17,
    MAX_SEQUENCES - 1,
    MAX_SEQUENCES,
    MAX_SEQUENCES + 1,
    63,
    64,
    65,
    128,
    129,
    PREFILL_TOKENS - 1,
    PREFILL_TOKENS,
    PREFILL_TOKENS + 1,
];

/// Leading rows that the CPU computes without sampling.
const WHOLE_ROWS: usize = 256;
/// Rows of a tensor instruction's result tile: a sample has one row of each tile.
const TILE_ROWS: usize = 8;
/// Rows at whose multiples a block's tile may end: a sample has the rows on both sides.
const BLOCK_ROWS: usize = 64;

/// Numbers of sampled rows, so that every tile of results has some: all leading rows, then a random
/// one of each eight, and those at edges.
pub(super) fn sampled(random: &mut Random, rows: usize) -> Vec<usize> {
    let tiles = (0..rows).step_by(TILE_ROWS);
    let drawn = tiles.map(|tile| tile + random.below(TILE_ROWS.min(rows - tile)));
    let ends = (0..rows).step_by(BLOCK_ROWS);
    let ends = ends.flat_map(|start| [start, rows.min(start + BLOCK_ROWS) - 1]);
    let first = 0..rows.min(WHOLE_ROWS);
    let all: BTreeSet<usize> = drawn.chain(ends).chain(first).collect();
    all.into_iter().collect()
}

/// The given rows of `values`, which has `count` rows.
pub(super) fn gathered(values: &[f32], count: usize, rows: &[usize]) -> Vec<f32> {
    let width = values.len() / count;
    let of_row = |row: &usize| &values[row * width..][..width];
    rows.iter().map(of_row).collect::<Vec<_>>().concat()
}

/// An operation whose rows are independent, with its weights.
pub trait RowOp {
    /// Name of the operation, and the widths of its inputs.
    fn about(&self) -> (&'static str, Vec<usize>);

    fn op(&self) -> &'static str {
        self.about().0
    }

    /// Name of the operation's case of `rows` rows.
    fn case(&self, rows: usize) -> String {
        rows.to_string()
    }

    fn widths(&self) -> Vec<usize> {
        self.about().1
    }

    /// Largest norm-wise error of a result.
    fn limit(&self) -> f64 {
        F32_CHAIN
    }

    /// Whether a step may have `rows` rows for the operation.
    fn takes(&self, _rows: usize) -> bool {
        true
    }

    /// Whether every result belongs to one row.
    fn is_by_row(&self) -> bool {
        true
    }

    /// Whether results depend on the positions of rows in their sequences.
    fn is_placed(&self) -> bool {
        false
    }

    /// Numbers of the rows that have results; none: all rows.
    fn wanted(&self, _rows: usize) -> Option<Vec<usize>> {
        None
    }

    /// Changes drawn inputs, in the order of `about`'s widths.
    fn alter(&self, _inputs: &mut [Vec<f32>]) {}

    /// Results split into parts that are compared with a norm each.
    fn parts(&self, left: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        left
    }
}

/// An operation with independent rows, on a backend.
pub trait RowOpOn<B: Probe>: RowOp {
    /// Loads the weights into the backend.
    fn load(&self, b: &mut B) -> Result<Loaded<'_, B>, DeviceError>;
}

/// Call of an operation on a step's tensors. All compared tensors stay in the list, inputs too,
/// which shows writes to them.
pub type Loaded<'a, B> =
    Box<dyn Fn(&mut B, &mut Tensors<B>, &Batch) -> Result<(), DeviceError> + 'a>;

/// Input tensors, then result tensors of a step.
pub type Tensors<B> = Vec<<B as Device>::Tensor>;

/// An operation that can run on the device and on the CPU.
pub trait RowCase: RowOpOn<Cpu> + RowOpOn<Backend> {}

impl<T: RowOpOn<Cpu> + RowOpOn<Backend>> RowCase for T {}

/// Token and position of each row: rows are dealt to as many sequences as a step may have, which
/// begin at different positions. Tokens are the numbers of rows.
fn tokens_of(rows: usize) -> Vec<(TokenId, usize)> {
    let length = rows.div_ceil(MAX_SEQUENCES);
    let token = |row: usize| {
        let start = row / length * 97 % (MAX_CONTEXT - length);
        ((row * 331 % VOCAB) as TokenId, start + row % length)
    };
    (0..rows).map(token).collect()
}

/// An operation with inputs for some rows.
pub struct Rowwise<'a> {
    op: &'a dyn RowCase,
    rows: usize,
    /// Width and values of each input; values may have more rows than are used.
    inputs: Vec<(usize, Rc<Vec<f32>>)>,
    /// Token and position of each row.
    tokens: Vec<(TokenId, usize)>,
}

impl<'a> Rowwise<'a> {
    /// Random inputs for `rows` rows.
    pub fn draw(random: &mut Random, op: &'a dyn RowCase, rows: usize) -> Rowwise<'a> {
        // Magnitudes of rows differ, since the residual grows with depth.
        let mut input =
            |&width: &usize| random.scaled(rows * width, |at| (1 + at / width % 9) as f32);
        let widths = op.widths();
        let mut inputs: Vec<_> = widths.iter().map(&mut input).collect();
        op.alter(&mut inputs);
        Rowwise {
            op,
            rows,
            inputs: widths
                .into_iter()
                .zip(inputs.into_iter().map(Rc::new))
                .collect(),
            tokens: tokens_of(rows),
        }
    }

    /// Name of the case, with its number of rows.
    pub fn case(&self) -> String {
        self.op.case(self.rows)
    }

    /// Numbers of the rows that have results.
    pub fn with_results(&self) -> Vec<usize> {
        let all = || (0..self.rows).collect();
        self.op.wanted(self.rows).unwrap_or_else(all)
    }

    /// The case with the given rows alone.
    pub fn some(&self, rows: &[usize]) -> Rowwise<'a> {
        let inputs = self.inputs.iter();
        let inputs = inputs.map(|(width, values)| {
            let of_case = &values[..self.rows * width];
            (*width, Rc::new(gathered(of_case, self.rows, rows)))
        });
        Rowwise {
            op: self.op,
            rows: rows.len(),
            inputs: inputs.collect(),
            tokens: rows.iter().map(|row| self.tokens[*row]).collect(),
        }
    }

    /// The case with its first rows, in sequences of their own.
    pub fn first(&self, rows: usize) -> Rowwise<'a> {
        Rowwise {
            op: self.op,
            rows,
            inputs: self.inputs.clone(),
            tokens: tokens_of(rows),
        }
    }

    /// Runs the operation `loaded`; returns its compared parts, of all rows or the given `rows`.
    pub fn run<B: Probe>(
        &self,
        b: &mut B,
        loaded: &Loaded<'_, B>,
        rows: Option<&[usize]>,
    ) -> Result<Vec<Vec<f32>>, DeviceError> {
        let given = self.inputs.iter();
        let given = given.map(|(width, values)| b.given(*width, &values[..self.rows * width]));
        let mut tensors = given.collect::<Result<Vec<_>, _>>()?;
        let batch = self.batch()?;
        b.begin(&batch);
        loaded(b, &mut tensors, &batch)?;
        let left = tensors.iter().map(|tensor| match rows {
            Some(rows) => b.rows_seen(tensor, rows),
            None => b.seen(tensor),
        });
        Ok(self.op.parts(left.collect::<Result<Vec<_>, _>>()?))
    }

    fn batch(&self) -> Result<Batch, DeviceError> {
        let pages: Vec<_> = (0..MAX_CONTEXT.div_ceil(PAGE) as u32).map(PageId).collect();
        let tokens: Vec<TokenId> = self.tokens.iter().map(|token| token.0).collect();
        let length = self.rows.div_ceil(MAX_SEQUENCES);
        let sequences = self.tokens.chunks(length).zip(tokens.chunks(length));
        let rows = sequences.enumerate().map(|(slot, (placed, tokens))| {
            SeqRows::of(Slot(slot as u32), placed[0].1, tokens, &pages)
        });
        let rows: Vec<_> = rows.collect();
        let mut batch = Batch::new(KV_PAGES);
        batch.fill(&rows)?;
        if let Some(wanted) = self.op.wanted(self.rows) {
            batch.want(wanted)?;
        }
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{F16_OPERANDS, distance};
    use super::*;

    /// Eight rows of eight columns that are zeros, wherever they are.
    #[test]
    fn one_wrong_tile_is_further_off_than_any_limit() {
        let (rows, width, mut random) = (1000, 256, Random::seeded(5));
        let wanted = random.scaled(rows * width, |at| (1 + at / width % 9) as f32);
        let sample = sampled(&mut random, rows);
        for tile in (0..rows).step_by(TILE_ROWS) {
            let mut found = wanted.clone();
            let of_tile = found[tile * width..].chunks_exact_mut(width);
            for row in of_tile.take(TILE_ROWS) {
                row[tile / TILE_ROWS..][..8].fill(0.0);
            }
            let [found, wanted] = [&found, &wanted].map(|of| gathered(of, rows, &sample));
            let error = distance(&found, &wanted).unwrap();
            assert!(error > F16_OPERANDS, "rows from {tile} on: {error}");
        }
    }

    #[test]
    fn a_sample_has_rows_of_every_tile_and_both_sides_of_every_edge() {
        for rows in [257, 1000, 8191, 8192, 8193] {
            let sample = sampled(&mut Random::seeded(3), rows);
            assert!(sample.is_sorted() && sample.len() < WHOLE_ROWS + rows / 5);
            for tile in (0..rows).step_by(TILE_ROWS) {
                let of_tile = |row: &usize| (tile..tile + TILE_ROWS).contains(row);
                assert!(sample.iter().any(of_tile), "{tile} of {rows}");
            }
            let ends = (0..rows).filter(|row| [0, BLOCK_ROWS - 1].contains(&(row % BLOCK_ROWS)));
            assert!(ends.chain([rows - 1]).all(|row| sample.contains(&row)));
        }
        let [one, other] = [1, 2].map(|seed| sampled(&mut Random::seeded(seed), 1000));
        assert_ne!(one, other, "another seed has other rows");
    }
}
