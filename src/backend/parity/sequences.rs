//! Operations that keep something of each sequence from step to step: what they are run on.

use super::{Probe, Random};
use crate::backend::Backend;
use crate::backend::cpu::Cpu;
use crate::executor::{DeviceError, PageId, Rows, Slot, States};
use crate::ops::{Batch, Device, ONE_BY_ONE};
use crate::target::{KV_PAGES, MAX_SEQUENCES, PAGE, PREFILL_TOKENS};

/// An operation that keeps something of each sequence, with its weights.
pub trait SequenceOp {
    /// Name of the operation.
    fn op(&self) -> &'static str;

    /// Widths of its inputs.
    fn widths(&self) -> Vec<usize>;

    /// Largest norm-wise difference; `has_cells` says whether a backend may take rows together.
    fn limit(&self, has_cells: bool) -> f64;
}

/// Such an operation on a backend.
pub trait SequenceOpOn<B: Probe>: SequenceOp {
    /// Puts the weights on the backend, beside what no sequence has written to yet.
    ///
    /// # Errors
    /// The backend failed.
    fn open(&self, b: &mut B) -> Result<Opened<'_, B>, DeviceError>;
}

/// Runs the operation on a step's inputs; its results.
pub type Opened<'a, B> =
    Box<dyn FnMut(&mut B, &mut [Tensor<B>], &Batch) -> Result<Tensor<B>, DeviceError> + 'a>;

type Tensor<B> = <B as Device>::Tensor;

/// An operation on the device and on the CPU.
pub trait SequenceCase: SequenceOpOn<Cpu> + SequenceOpOn<Backend> {}

impl<T: SequenceOpOn<Cpu> + SequenceOpOn<Backend>> SequenceCase for T {}

/// Steps: of each the parts, which are a sequence and its rows.
pub type Steps = Vec<Vec<(usize, usize)>>;

/// Steps of one and of several sequences, prefill and decode, at the edges of pages and splits.
pub fn schedules() -> Vec<Steps> {
    let one = |rows: usize| vec![vec![(0, rows)]];
    let decode = |rows: usize| vec![vec![(0, rows)], vec![(0, 1)], vec![(0, 1)], vec![(0, 3)]];
    let prefill = PREFILL_TOKENS.min(256);
    let every = (0..MAX_SEQUENCES.min(16)).map(|sequence| (sequence, 1 + sequence % 3));
    let every: Vec<_> = every.collect();
    vec![
        one(1),
        one(2),
        one(63),
        one(64),
        one(65),
        decode(63),
        decode(prefill - 2),
        vec![vec![(0, prefill)], vec![(0, 64)], vec![(0, 1)]],
        vec![every.clone(), every.clone(), every],
        vec![
            vec![(0, 64), (1, 5)],
            vec![(0, 1), (1, 1), (2, prefill - 64)],
            vec![(2, 1), (0, 1)],
        ],
    ]
}

/// Sequences of random rows, and the steps that they are run in.
pub struct Sequences<'a> {
    op: &'a dyn SequenceCase,
    /// Inputs of each sequence: width and values.
    inputs: Vec<Vec<(usize, Vec<f32>)>>,
    steps: Steps,
}

impl<'a> Sequences<'a> {
    /// Sequences as long as the sum of their parts.
    pub fn draw(random: &mut Random, op: &'a dyn SequenceCase, steps: Steps) -> Sequences<'a> {
        let count = steps.iter().flatten().map(|part| part.0).max().unwrap_or(0) + 1;
        let widths = op.widths();
        let mut sequence = |index: usize| {
            let rows = rows_of(&steps, index);
            let inputs = widths.iter();
            inputs
                .map(|&width| (width, random.bf16(rows * width, 2.0)))
                .collect()
        };
        Sequences {
            op,
            inputs: (0..count).map(&mut sequence).collect(),
            steps,
        }
    }

    /// Name of the operation.
    pub fn op(&self) -> &'static str {
        self.op.op()
    }

    /// Name of the case.
    pub fn case(&self) -> String {
        let step = |parts: &Vec<(usize, usize)>| {
            let rows: Vec<_> = parts.iter().map(|part| part.1.to_string()).collect();
            rows.join("+")
        };
        let steps: Vec<_> = self.steps.iter().map(step).collect();
        steps.join(" ")
    }

    /// Largest norm-wise difference.
    pub fn limit(&self) -> f64 {
        let mut parts = self.steps.iter().flatten();
        self.op.limit(parts.any(|part| part.1 > ONE_BY_ONE))
    }

    /// The same sequences in other steps.
    pub fn in_steps(&self, steps: Steps) -> Sequences<'a> {
        Sequences {
            op: self.op,
            inputs: self.inputs.clone(),
            steps,
        }
    }

    /// The first sequence, which has `rows`, in steps of `chunk` rows.
    pub fn cut(&self, rows: usize, chunk: usize) -> Sequences<'a> {
        let steps = (0..rows).step_by(chunk);
        let steps = steps.map(|done| vec![(0, chunk.min(rows - done))]);
        self.in_steps(steps.collect())
    }

    /// Sequence by sequence, in the parts that each has here.
    pub fn alone(&self) -> Sequences<'a> {
        let of = |index: usize| {
            let parts = self.steps.iter().flatten();
            parts
                .filter(move |part| part.0 == index)
                .map(|&part| vec![part])
        };
        self.in_steps((0..self.inputs.len()).flat_map(of).collect())
    }

    /// The op's results on the CPU for each sequence, all rows.
    ///
    /// # Errors
    /// The backend failed; so below.
    pub fn on_cpu(&self, cpu: &mut Cpu) -> Result<Vec<Vec<f32>>, DeviceError> {
        self.run(self.op, cpu)
    }

    /// Those on the device.
    pub fn on_device(&self, device: &mut Backend) -> Result<Vec<Vec<f32>>, DeviceError> {
        self.run(self.op, device)
    }

    fn run<B: Probe>(
        &self,
        op: &(impl SequenceOpOn<B> + ?Sized),
        b: &mut B,
    ) -> Result<Vec<Vec<f32>>, DeviceError> {
        let mut opened = op.open(b)?;
        let mut results = vec![Vec::new(); self.inputs.len()];
        let mut done = vec![0; self.inputs.len()];
        for parts in &self.steps {
            let batch = self.batch(parts, &done)?;
            let inputs = (0..self.inputs[0].len()).map(|input| {
                let (width, values) = self.rows(parts, &done, input);
                b.given(width, &values)
            });
            let mut x = inputs.collect::<Result<Vec<_>, _>>()?;
            b.begin(&batch);
            let out = opened(b, &mut x, &batch)?;
            let out = b.seen(&out)?;
            let mut at = 0;
            for &(sequence, rows) in parts {
                let len = rows * (out.len() / batch.rows());
                results[sequence].extend_from_slice(&out[at..at + len]);
                at += len;
                done[sequence] += rows;
            }
        }
        Ok(results)
    }

    fn rows(&self, parts: &[(usize, usize)], done: &[usize], input: usize) -> (usize, Vec<f32>) {
        let width = self.inputs[0][input].0;
        let part = |&(sequence, rows): &(usize, usize)| {
            let values = &self.inputs[sequence][input].1;
            &values[done[sequence] * width..][..rows * width]
        };
        (width, parts.iter().flat_map(part).copied().collect())
    }

    fn batch(&self, parts: &[(usize, usize)], done: &[usize]) -> Result<Batch, DeviceError> {
        let count = self.inputs.len();
        let length = |sequence: usize| {
            let (width, values) = &self.inputs[sequence][0];
            values.len() / width
        };
        let table = |sequence: usize| dealt(sequence, count, length(sequence));
        let tables: Vec<_> = (0..count).map(table).collect();
        let tokens = vec![0; parts.iter().map(|part| part.1).max().unwrap_or(0)];
        let rows = parts.iter().map(|&(sequence, rows)| Rows {
            states: States::own(Slot((MAX_SEQUENCES - 1 - sequence) as u32)),
            start: done[sequence],
            tokens: &tokens[..rows],
            pages: &tables[sequence],
            behind: &[],
            logits: 1,
        });
        let mut batch = Batch::new(KV_PAGES);
        batch.fill(&rows.collect::<Vec<_>>())?;
        Ok(batch)
    }
}

/// Pages for `rows` rows of one of `count` sequences. They are dealt in turn, so that no table is a
/// range.
pub(super) fn dealt(sequence: usize, count: usize, rows: usize) -> Vec<PageId> {
    let page = |index: usize| PageId((KV_PAGES - 1 - index * count - sequence) as u32);
    (0..rows.div_ceil(PAGE)).map(page).collect()
}

fn rows_of(steps: &[Vec<(usize, usize)>], sequence: usize) -> usize {
    let parts = steps.iter().flatten();
    parts
        .filter(|part| part.0 == sequence)
        .map(|part| part.1)
        .sum()
}
