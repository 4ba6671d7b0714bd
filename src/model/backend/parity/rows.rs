//! Operations whose rows are all by themselves: what they are run on.
//!
//! Inputs are BF16 values, which F16 holds too unless they are tiny, so that rounding the operands
//! of tensor instructions loses nothing; what is left is rounding inside an op.

use super::{F32_CHAIN, Probe, Random};
use crate::backend::Backend;
use crate::backend::cpu::Cpu;
use crate::ops::{Batch, Device};
use crate::target::{KV_PAGES, MAX_CONTEXT, MAX_SEQUENCES, PAGE, PREFILL_TOKENS, VOCAB};
use step::executor::{BlockTable, DeviceError, PageId, Rows, Slot, States, TokenId};

/// Rows that have a case: single rows, and both sides of every size that a step is cut at.
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

/// An operation whose rows are all by themselves, with its weights.
pub trait RowOp {
    /// Name of the operation.
    fn op(&self) -> &'static str;

    /// Name of its case of so many rows.
    fn case(&self, rows: usize) -> String {
        rows.to_string()
    }

    /// Widths of its inputs.
    fn widths(&self) -> Vec<usize>;

    /// Largest norm-wise difference.
    fn limit(&self) -> f64 {
        F32_CHAIN
    }

    /// Whether a step may have as many rows for it.
    fn takes(&self, _rows: usize) -> bool {
        true
    }

    /// Whether every result is of one row.
    fn is_by_row(&self) -> bool {
        true
    }

    /// Which of so many rows are wanted and have results, if not all.
    fn wanted(&self, _rows: usize) -> Option<Vec<usize>> {
        None
    }

    /// Changes drawn inputs, which are those of `widths`.
    fn alter(&self, _inputs: &mut [Vec<f32>]) {}

    /// What is compared of the tensors that an operation left: parts that have a norm each.
    fn parts(&self, left: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        left
    }
}

/// Such an operation on a backend.
pub trait RowOpOn<B: Probe>: RowOp {
    /// Puts the weights on the backend.
    fn load(&self, b: &mut B) -> Result<Loaded<'_, B>, DeviceError>;
}

/// Runs the operation on a step's inputs, and leaves there all tensors that are compared: inputs
/// too, which show what it wrote that it must not.
pub type Loaded<'a, B> =
    Box<dyn Fn(&mut B, &mut Tensors<B>, &Batch) -> Result<(), DeviceError> + 'a>;

/// Tensors of a step.
pub type Tensors<B> = Vec<<B as Device>::Tensor>;

/// An operation on the device and on the CPU.
pub trait RowCase: RowOpOn<Cpu> + RowOpOn<Backend> {}

impl<T: RowOpOn<Cpu> + RowOpOn<Backend>> RowCase for T {}

/// An operation on the rows of some inputs.
pub struct Rowwise<'a> {
    op: &'a dyn RowCase,
    rows: usize,
    /// Width and values of each input.
    inputs: Vec<(usize, Vec<f32>)>,
    /// Token and position of each row.
    places: Vec<(TokenId, usize)>,
}

impl<'a> Rowwise<'a> {
    /// Random rows.
    pub fn draw(random: &mut Random, op: &'a dyn RowCase, rows: usize) -> Rowwise<'a> {
        // Rows of different magnitude: the residual grows with depth.
        let mut input = |width: &usize| {
            let values = (0..rows).flat_map(|row| random.bf16(*width, (1 + row % 9) as f32));
            values.collect::<Vec<f32>>()
        };
        let widths = op.widths();
        let mut inputs: Vec<_> = widths.iter().map(&mut input).collect();
        op.alter(&mut inputs);
        // As many sequences as there may be, each from its own position on.
        let length = rows.div_ceil(MAX_SEQUENCES);
        let place = |row: usize| {
            let start = row / length * 97 % (MAX_CONTEXT - length);
            ((row * 331 % VOCAB) as TokenId, start + row % length)
        };
        Rowwise {
            op,
            rows,
            inputs: widths.into_iter().zip(inputs).collect(),
            places: (0..rows).map(place).collect(),
        }
    }

    /// Name of the case.
    pub fn case(&self) -> String {
        self.op.case(self.rows)
    }

    /// Rows that have results.
    pub fn with_results(&self) -> Vec<usize> {
        let all = || (0..self.rows).collect();
        self.op.wanted(self.rows).unwrap_or_else(all)
    }

    /// The case's row `row` alone.
    pub fn row(&self, row: usize) -> Rowwise<'a> {
        let part = |(width, values): &(usize, Vec<f32>)| {
            (*width, values[row * width..][..*width].to_vec())
        };
        Rowwise {
            op: self.op,
            rows: 1,
            inputs: self.inputs.iter().map(part).collect(),
            places: vec![self.places[row]],
        }
    }

    /// Runs the operation that `loaded` is; what is compared of it, by row.
    pub fn run<B: Probe>(
        &self,
        b: &mut B,
        loaded: &Loaded<'_, B>,
    ) -> Result<Vec<Vec<f32>>, DeviceError> {
        let given = self.inputs.iter();
        let given = given.map(|(width, values)| b.given(*width, values));
        let mut tensors = given.collect::<Result<Vec<_>, _>>()?;
        let batch = self.batch()?;
        b.begin(&batch);
        loaded(b, &mut tensors, &batch)?;
        let left = tensors.iter().map(|tensor| b.seen(tensor));
        Ok(self.op.parts(left.collect::<Result<Vec<_>, _>>()?))
    }

    fn batch(&self) -> Result<Batch, DeviceError> {
        let pages: Vec<_> = (0..MAX_CONTEXT.div_ceil(PAGE) as u32).map(PageId).collect();
        let tokens: Vec<TokenId> = self.places.iter().map(|place| place.0).collect();
        let length = self.rows.div_ceil(MAX_SEQUENCES);
        let sequences = self.places.chunks(length).zip(tokens.chunks(length));
        let rows = sequences.enumerate().map(|(slot, (places, tokens))| Rows {
            states: States::own(Slot(slot as u32)),
            start: places[0].1,
            tokens,
            pages: &pages,
            window: BlockTable::whole(&pages),
            behind: &[],
            logits: 1,
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
