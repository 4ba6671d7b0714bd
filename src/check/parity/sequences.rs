//! Operations with a cache or a state of each sequence, and the inputs of their cases.

use super::{Probe, Random};
use model::backend::Backend;
use model::backend::cpu::Cpu;
use model::ops::{Batch, Device, ONE_BY_ONE};
use model::target::{KV_PAGES, MAX_SEQUENCES, PAGE, PREFILL_TOKENS, STATES};
use step::executor::{DeviceError, PageId, SeqRows, Slot, States};

/// An operation with a cache or a state of each sequence, and with its weights.
pub trait SequenceOp {
    /// Name of the operation, and the widths of its inputs.
    fn about(&self) -> (&'static str, Vec<usize>);

    fn op(&self) -> &'static str {
        self.about().0
    }

    fn widths(&self) -> Vec<usize> {
        self.about().1
    }

    /// Largest norm-wise error of a result; `has_cells`: a backend may compute rows in cells.
    fn limit(&self, has_cells: bool) -> f64;

    /// Results in the form that is compared.
    fn compared(&self, left: Vec<f32>) -> Vec<f32> {
        left
    }
}

/// An operation on sequences, on a backend.
pub trait SequenceOpOn<B: Probe>: SequenceOp {
    /// Loads the weights into the backend, with an empty cache or state.
    fn open(&self, b: &mut B) -> Result<Opened<'_, B>, DeviceError>;
}

/// Call of an operation on a step's inputs; returns its results.
pub type Opened<'a, B> =
    Box<dyn FnMut(&mut B, &mut [Tensor<B>], &Batch) -> Result<Tensor<B>, DeviceError> + 'a>;

type Tensor<B> = <B as Device>::Tensor;

/// An operation that can run on the device and on the CPU.
pub trait SequenceCase: SequenceOpOn<Cpu> + SequenceOpOn<Backend> {}

impl<T: SequenceOpOn<Cpu> + SequenceOpOn<Backend>> SequenceCase for T {}

/// Steps, each a list of parts: index of a sequence, and number of its rows.
pub type Steps = Vec<Vec<(usize, usize)>>;

/// Whether there are enough states for as many drafts as a sequence may have in a step, beside the
/// states that two sequences continue from.
pub const CAN_DRAFT: bool = STATES > MAX_SEQUENCES + ONE_BY_ONE;

/// Rows of one sequence in a step.
struct Chunk {
    sequence: usize,
    rows: usize,
    /// Number of the part's last rows that are rejected drafts.
    drafts: usize,
}

/// Progress of each sequence between steps.
struct Progress {
    /// Number of each sequence's rows that are done, rejected drafts left out.
    done: Vec<usize>,
    /// State of each sequence after its done rows.
    states: Vec<Slot>,
}

impl Progress {
    fn new(count: usize) -> Progress {
        Progress {
            done: vec![0; count],
            states: (0..count).map(own_slot).collect(),
        }
    }

    /// States after each row of a part but the last, if the part has drafts. No other sequence
    /// continues from these. If this sequence continues from a draft state, that one is the last.
    fn draft_states(&self, part: &Chunk) -> Vec<Slot> {
        let count = match part.drafts {
            0 => 0,
            drafts => part.rows + drafts - 1,
        };
        let lent = (MAX_SEQUENCES..STATES).map(|state| Slot(state as u32));
        let mut draft_states: Vec<Slot> = lent
            .filter(|state| !self.states.contains(state))
            .take(count)
            .collect();
        let from = self.states[part.sequence];
        if from != own_slot(part.sequence)
            && let Some(last) = draft_states.last_mut()
        {
            *last = from;
        }
        draft_states
    }

    fn advance(&mut self, part: &Chunk, draft_states: &[Slot]) {
        let state = draft_states.get(part.rows - 1).copied();
        self.states[part.sequence] = state.unwrap_or(own_slot(part.sequence));
        self.done[part.sequence] += part.rows;
    }
}

fn own_slot(sequence: usize) -> Slot {
    Slot((MAX_SEQUENCES - 1 - sequence) as u32)
}

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

/// Random inputs of sequences, and the steps in which they run.
pub struct Sequences<'a> {
    op: &'a dyn SequenceCase,
    /// Inputs of each sequence, each with width and values.
    inputs: Vec<Vec<(usize, Vec<f32>)>>,
    steps: Steps,
    /// Whether few rows of a step's first sequence are followed by rejected drafts.
    drafts: bool,
}

impl<'a> Sequences<'a> {
    /// Sequences of random rows, each as long as its chunks of all steps together.
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
            drafts: false,
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

    /// Largest norm-wise error of a result.
    pub fn limit(&self) -> f64 {
        let mut parts = self.steps.iter().flatten();
        self.op.limit(parts.any(|part| part.1 > ONE_BY_ONE))
    }

    /// Copy with the same inputs, divided into `steps`.
    pub fn in_steps(&self, steps: Steps) -> Sequences<'a> {
        Sequences {
            op: self.op,
            inputs: self.inputs.clone(),
            steps,
            drafts: false,
        }
    }

    /// Copy with rejected drafts after few rows of the first sequence of each step.
    pub fn with_drafts(&self) -> Sequences<'a> {
        Sequences {
            drafts: true,
            ..self.in_steps(self.steps.clone())
        }
    }

    /// The first sequence alone, of `rows` rows, in steps of `chunk` rows.
    pub fn cut(&self, rows: usize, chunk: usize) -> Sequences<'a> {
        let steps = (0..rows).step_by(chunk);
        let steps = steps.map(|done| vec![(0, chunk.min(rows - done))]);
        self.in_steps(steps.collect())
    }

    /// The sequences one after another, each with its own rows of every step.
    pub fn alone(&self) -> Sequences<'a> {
        let of = |index: usize| {
            let parts = self.steps.iter().flatten();
            parts
                .filter(move |part| part.0 == index)
                .map(|&part| vec![part])
        };
        self.in_steps((0..self.inputs.len()).flat_map(of).collect())
    }

    /// The CPU's results for each sequence, all rows.
    pub fn on_cpu(&self, cpu: &mut Cpu) -> Result<Vec<Vec<f32>>, DeviceError> {
        self.run(self.op, cpu)
    }

    /// The device's results for each sequence, all rows.
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
        let mut progress = Progress::new(self.inputs.len());
        for (step, parts) in self.steps.iter().enumerate() {
            let parts = self.parts(step, parts);
            let states = parts.iter().map(|part| progress.draft_states(part));
            let draft_states: Vec<_> = states.collect();
            let batch = self.batch(&parts, &progress, &draft_states)?;
            let inputs = (0..self.inputs[0].len()).map(|input| {
                let (width, values) = self.rows(&parts, &progress.done, input);
                b.given(width, &values)
            });
            let mut x = inputs.collect::<Result<Vec<_>, _>>()?;
            b.begin(&batch);
            let out = opened(b, &mut x, &batch)?;
            let out = op.compared(b.seen(&out)?);
            let (mut at, width) = (0, out.len() / batch.rows());
            for (part, draft_states) in parts.iter().zip(&draft_states) {
                results[part.sequence].extend_from_slice(&out[at..][..part.rows * width]);
                at += (part.rows + part.drafts) * width;
                progress.advance(part, draft_states);
            }
        }
        Ok(results)
    }

    /// The parts of a step; the number of drafts varies from step to step.
    fn parts(&self, step: usize, parts: &[(usize, usize)]) -> Vec<Chunk> {
        let parts = parts.iter().enumerate();
        let part = |(index, &(sequence, rows)): (usize, &(usize, usize))| Chunk {
            sequence,
            rows,
            drafts: match ONE_BY_ONE.checked_sub(rows) {
                Some(most @ 1..) if self.drafts && index == 0 => most - step % most,
                _ => 0,
            },
        };
        parts.map(part).collect()
    }

    /// Values of an input. Drafts have the sequence's first values, the last draft infinities,
    /// which must not affect earlier rows.
    fn rows(&self, parts: &[Chunk], done: &[usize], input: usize) -> (usize, Vec<f32>) {
        let width = self.inputs[0][input].0;
        let part = |part: &Chunk| {
            let values = &self.inputs[part.sequence][input].1;
            let rows = &values[done[part.sequence] * width..][..part.rows * width];
            let finite = part.drafts.saturating_sub(1);
            let drafts = values.iter().copied().cycle().take(finite * width);
            let infinite = std::iter::repeat_n(f32::INFINITY, (part.drafts - finite) * width);
            let drafts = drafts.chain(infinite);
            rows.iter().copied().chain(drafts).collect::<Vec<f32>>()
        };
        (width, parts.iter().flat_map(part).collect())
    }

    fn batch(
        &self,
        parts: &[Chunk],
        progress: &Progress,
        draft_states: &[Vec<Slot>],
    ) -> Result<Batch, DeviceError> {
        let count = self.inputs.len();
        let length = |sequence: usize| {
            let (width, values) = &self.inputs[sequence][0];
            values.len() / width + if self.drafts { ONE_BY_ONE } else { 0 }
        };
        let table = |sequence: usize| dealt(sequence, count, length(sequence));
        let tables: Vec<_> = (0..count).map(table).collect();
        let longest = parts.iter().map(|part| part.rows + part.drafts).max();
        let tokens = vec![0; longest.unwrap_or(0)];
        let rows = parts.iter().zip(draft_states).map(|(part, draft_states)| {
            let (of, tokens) = (part.sequence, &tokens[..part.rows + part.drafts]);
            SeqRows {
                states: States {
                    from: progress.states[of],
                    ..States::own(own_slot(of))
                },
                draft_states,
                ..SeqRows::of(own_slot(of), progress.done[of], tokens, &tables[of])
            }
        });
        let mut batch = Batch::new(KV_PAGES);
        batch.fill(&rows.collect::<Vec<_>>())?;
        Ok(batch)
    }
}

/// Block table of `rows` rows of one of `count` sequences. Pages are dealt round-robin from the
/// last one down, so that no table is a range.
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
