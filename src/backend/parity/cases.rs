//! One table of cases for every backend: what an op is run on, and how near its results must be.
//!
//! Inputs are BF16 values, so that rounding the operands of tensor instructions loses nothing; what
//! is left is rounding inside an op.

use super::{BF16_STORED, F32_CHAIN, Random};
use crate::engine::executor::{DeviceError, PageId, Rows, Slot};
use crate::engine::request::TokenId;
use crate::ops::{Batch, Ops};
use crate::target::{
    self, EXPERT_INTERMEDIATE, EXPERTS, Format, GDN_VALUE_DIM, GDN_VALUE_HEADS, HEAD_DIM, HEADS,
    HIDDEN, KV_HEADS, KV_PAGES, MAX_CONTEXT, MAX_SEQUENCES, PAGE, PREFILL_TOKENS,
    SHARED_INTERMEDIATE, VOCAB,
};
use crate::weights::{Bits, GDN_QKV, GDN_VALUES, Global, Stored};

/// A backend that cases can be run on.
pub trait Probe: Ops {
    /// A tensor with `values`.
    fn given(&mut self, width: usize, values: &[f32]) -> Result<Self::Tensor, DeviceError>;
    /// A tensor for `rows x width` results, full of what is not a number.
    fn room(&mut self, rows: usize, width: usize) -> Result<Self::Tensor, DeviceError>;
    fn matrix_of(&mut self, stored: &Stored) -> Result<Self::Matrix, DeviceError>;
    fn vector_of(&mut self, values: &[f32]) -> Result<Self::Vector, DeviceError>;
    fn experts_of(&mut self, stored: &[[Stored; 3]]) -> Result<Self::Experts, DeviceError>;
    /// The values of a tensor; fails if memory around it was written.
    fn seen(&mut self, tensor: &Self::Tensor) -> Result<Vec<f32>, DeviceError>;
}

/// Rows that have a case: single rows, and both sides of every size that a step is cut at.
pub const ROWS: [usize; 14] = [
    1,
    2,
    7,
    8,
    9,
    MAX_SEQUENCES - 1,
    MAX_SEQUENCES,
    MAX_SEQUENCES + 1,
    63,
    64,
    65,
    PREFILL_TOKENS - 1,
    PREFILL_TOKENS,
    PREFILL_TOKENS + 1,
];

/// An op whose rows are all by themselves, with its weights.
#[derive(Clone)]
pub enum Kind {
    Embed(Stored),
    Add,
    RmsNorm(Vec<f32>),
    AddRmsNorm(Vec<f32>),
    Linear(Stored),
    /// Weight and stride.
    NormRope(Vec<f32>, usize),
    AttentionGate,
    GatedRmsNorm(Vec<f32>),
    /// `route` and `experts`, which reads what `route` has chosen.
    Experts(Vec<[Stored; 3]>),
    SiluMul,
    AddGated,
    Concat,
    Select,
}

/// The weights of a kind on a backend.
pub enum Loaded<B: Ops> {
    Nothing,
    Vector(B::Vector),
    Matrix(B::Matrix),
    Experts(B::Experts),
}

impl Kind {
    /// Puts the weights on a backend.
    ///
    /// # Errors
    /// The backend failed.
    pub fn load<B: Probe>(&self, b: &mut B) -> Result<Loaded<B>, DeviceError> {
        Ok(match self {
            Kind::Embed(w) | Kind::Linear(w) => Loaded::Matrix(b.matrix_of(w)?),
            Kind::RmsNorm(w)
            | Kind::AddRmsNorm(w)
            | Kind::NormRope(w, _)
            | Kind::GatedRmsNorm(w) => Loaded::Vector(b.vector_of(w)?),
            Kind::Experts(w) => Loaded::Experts(b.experts_of(w)?),
            _ => Loaded::Nothing,
        })
    }
}

/// An op on the rows of some inputs.
#[derive(Clone)]
pub struct Rowwise<'a> {
    pub kind: &'a Kind,
    pub rows: usize,
    /// Width and values of each input.
    inputs: Vec<(usize, Vec<f32>)>,
    /// Token and position of each row.
    places: Vec<(TokenId, usize)>,
}

impl<'a> Rowwise<'a> {
    /// Random rows for `kind`.
    pub fn draw(random: &mut Random, kind: &'a Kind, rows: usize) -> Rowwise<'a> {
        let widths: &[usize] = match kind {
            Kind::Embed(_) => &[],
            Kind::Add | Kind::Concat | Kind::AddRmsNorm(_) => &[HIDDEN, HIDDEN],
            Kind::RmsNorm(_) | Kind::Select => &[HIDDEN],
            Kind::Linear(w) => &[w.k],
            Kind::NormRope(_, stride) if *stride > HEAD_DIM => &[HEADS * 2 * HEAD_DIM],
            Kind::NormRope(..) => &[KV_HEADS * HEAD_DIM],
            Kind::AttentionGate => &[HEADS * HEAD_DIM, HEADS * 2 * HEAD_DIM],
            Kind::GatedRmsNorm(_) => &[GDN_VALUES, GDN_VALUES],
            Kind::Experts(_) => &[EXPERTS, HIDDEN],
            Kind::SiluMul => &[2 * SHARED_INTERMEDIATE],
            Kind::AddGated => &[HIDDEN, HIDDEN, 1],
        };
        // Rows of different magnitude: the residual grows with depth.
        let mut input = |width: usize| {
            let values = (0..rows).flat_map(|row| random.bf16(width, (1 + row % 9) as f32));
            (width, values.collect())
        };
        let inputs = widths.iter().map(|&width| input(width)).collect();
        // As many sequences as there may be, each from its own position on.
        let length = rows.div_ceil(MAX_SEQUENCES);
        let place = |row: usize| {
            let start = row / length * 97 % (MAX_CONTEXT - length);
            ((row * 331 % VOCAB) as TokenId, start + row % length)
        };
        Rowwise {
            kind,
            rows,
            inputs,
            places: (0..rows).map(place).collect(),
        }
    }

    pub fn op(&self) -> &'static str {
        match self.kind {
            Kind::Embed(_) => "embed",
            Kind::Add => "add",
            Kind::RmsNorm(_) => "rms_norm",
            Kind::AddRmsNorm(_) => "add_rms_norm",
            Kind::Linear(_) => "linear",
            Kind::NormRope(..) => "norm_rope",
            Kind::AttentionGate => "attention_gate",
            Kind::GatedRmsNorm(_) => "gated_rms_norm",
            Kind::Experts(_) => "experts",
            Kind::SiluMul => "silu_mul",
            Kind::AddGated => "add_gated",
            Kind::Concat => "concat",
            Kind::Select => "select",
        }
    }

    pub fn case(&self) -> String {
        match self.kind {
            Kind::Linear(w) => format!("{} x {} x {} {}", self.rows, w.n, w.k, name(&w.bits)),
            Kind::Experts(w) => format!("{} {}", self.rows, name(&w[0][0].bits)),
            Kind::NormRope(_, stride) => format!("{} by {stride}", self.rows),
            _ => format!("{}", self.rows),
        }
    }

    /// Largest norm-wise difference.
    pub fn limit(&self) -> f64 {
        match self.kind {
            // The product of gate and up is rounded to BF16 on its way to `down`, whose sums cancel
            // in part: the error stays, the norm shrinks.
            Kind::Experts(_) => 2.0 * BF16_STORED,
            _ => F32_CHAIN,
        }
    }

    /// The case's row `row` alone.
    pub fn row(&self, row: usize) -> Rowwise<'a> {
        let part = |(width, values): &(usize, Vec<f32>)| {
            (*width, values[row * width..][..*width].to_vec())
        };
        Rowwise {
            kind: self.kind,
            rows: 1,
            inputs: self.inputs.iter().map(part).collect(),
            places: vec![self.places[row]],
        }
    }

    fn batch(&self) -> Result<Batch, DeviceError> {
        let pages: Vec<_> = (0..MAX_CONTEXT.div_ceil(PAGE) as u32).map(PageId).collect();
        let tokens: Vec<TokenId> = self.places.iter().map(|place| place.0).collect();
        let length = self.rows.div_ceil(MAX_SEQUENCES);
        let sequences = self.places.chunks(length).zip(tokens.chunks(length));
        let rows = sequences.enumerate().map(|(slot, (places, tokens))| Rows {
            slot: Slot(slot as u32),
            start: places[0].1,
            tokens,
            pages: &pages,
            logits: true,
        });
        let rows: Vec<_> = rows.collect();
        let mut batch = Batch::default();
        batch.fill(&rows)?;
        Ok(batch)
    }

    /// Runs the op; every tensor that it saw, by row.
    ///
    /// # Errors
    /// The backend failed.
    ///
    /// # Panics
    /// Unless `weights` are those of the kind.
    pub fn run<B: Probe>(
        &self,
        b: &mut B,
        weights: &Loaded<B>,
    ) -> Result<Vec<Vec<f32>>, DeviceError> {
        let given = self.inputs.iter();
        let mut x = given
            .map(|(width, values)| b.given(*width, values))
            .collect::<Result<Vec<_>, _>>()?;
        let mut out = b.room(self.rows, self.out_width())?;
        let batch = self.batch()?;
        b.begin(&batch);
        match (self.kind, weights) {
            (Kind::Embed(_), Loaded::Matrix(w)) => b.embed(w, &batch, &mut out),
            (Kind::Linear(_), Loaded::Matrix(w)) => b.linear(&x[0], w, &mut out),
            (Kind::RmsNorm(_), Loaded::Vector(w)) => b.rms_norm(&x[0], w, &mut out),
            (Kind::AddRmsNorm(_), Loaded::Vector(w)) => {
                let (residual, x) = x.split_at_mut(1);
                b.add_rms_norm(&mut residual[0], &x[0], w, &mut out);
            }
            (Kind::NormRope(_, stride), Loaded::Vector(w)) => {
                b.norm_rope(&mut x[0], *stride, w, &batch);
            }
            (Kind::GatedRmsNorm(_), Loaded::Vector(w)) => {
                let (x, z) = x.split_at_mut(1);
                b.gated_rms_norm(&mut x[0], w, &z[0]);
            }
            (Kind::Experts(_), Loaded::Experts(w)) => {
                let mut routing = b.routing()?;
                b.route(&x[0], &mut routing);
                b.experts(&x[1], &routing, w, &mut out);
            }
            (kind, Loaded::Nothing) => plain(kind, b, &mut x, &batch, &mut out),
            _ => unreachable!("these are weights of another kind"),
        }
        let mut seen = x.iter().map(|x| b.seen(x)).collect::<Result<Vec<_>, _>>()?;
        if self.has_out() {
            seen.push(b.seen(&out)?);
        }
        Ok(seen)
    }

    /// Whether every result is a row of the case.
    pub fn is_by_row(&self) -> bool {
        !matches!(self.kind, Kind::Select)
    }

    fn has_out(&self) -> bool {
        !matches!(
            self.kind,
            Kind::Add
                | Kind::NormRope(..)
                | Kind::AttentionGate
                | Kind::GatedRmsNorm(_)
                | Kind::AddGated
        )
    }

    fn out_width(&self) -> usize {
        match self.kind {
            Kind::Linear(w) => w.n,
            Kind::SiluMul => SHARED_INTERMEDIATE,
            Kind::Concat => 2 * HIDDEN,
            _ => HIDDEN,
        }
    }
}

/// An op without weights.
fn plain<B: Probe>(
    kind: &Kind,
    b: &mut B,
    x: &mut [B::Tensor],
    batch: &Batch,
    out: &mut B::Tensor,
) {
    let (first, rest) = x.split_at_mut(1);
    match kind {
        Kind::Add => b.add(&mut first[0], &rest[0]),
        Kind::AttentionGate => b.attention_gate(&mut first[0], &rest[0]),
        Kind::AddGated => b.add_gated(&mut first[0], &rest[0], &rest[1]),
        Kind::SiluMul => b.silu_mul(&first[0], out),
        Kind::Concat => b.concat(&first[0], &rest[0], out),
        Kind::Select => b.select(&first[0], batch, out),
        _ => unreachable!("this kind has weights"),
    }
}

fn name(bits: &Bits) -> &'static str {
    match bits {
        Bits::Bf16(_) => "bf16",
        Bits::Nvfp4 { .. } => "nvfp4",
        Bits::Fp8 { .. } => "fp8",
    }
}

/// Random weights `[n, k]` of a format.
pub fn stored(random: &mut Random, n: usize, k: usize, format: Format) -> Stored {
    let bits = match format {
        Format::Bf16 => {
            let values = random.bf16(n * k, 0.1);
            let bytes = values
                .iter()
                .flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes());
            Bits::Bf16(bytes.collect())
        }
        Format::Nvfp4CompressedTensors | Format::Nvfp4Modelopt => Bits::Nvfp4 {
            codes: random.bytes(n * k / 2, 0..=255),
            // Subnormal and normal E4M3, none of them negative or not a number.
            scales: random.bytes(n * k / 16, 1..=0x50),
            global: match format {
                Format::Nvfp4Modelopt => Global::Multiply(0.013),
                _ => Global::Divide(77.0),
            },
        },
        Format::Fp8Block128 => Bits::Fp8 {
            codes: random
                .bytes(n * k, 0..=255)
                .into_iter()
                .map(|code| if code & 0x7f == 0x7f { code ^ 1 } else { code })
                .collect(),
            scales: random
                .bf16(n.div_ceil(128) * k.div_ceil(128), 1e-3)
                .into_iter()
                .map(|scale| scale.abs() + 1e-3)
                .collect(),
        },
    };
    Stored { n, k, bits }
}

/// Every matrix that `linear` meets in this target.
pub fn matrices() -> Vec<(usize, usize, Format)> {
    let (heads, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    let mut all = vec![
        (GDN_QKV, HIDDEN, target::FORMAT_GDN),
        (GDN_VALUES, HIDDEN, target::FORMAT_GDN),
        (HIDDEN, GDN_VALUES, target::FORMAT_GDN),
        (GDN_VALUE_HEADS, HIDDEN, Format::Bf16),
        (EXPERTS, HIDDEN, Format::Bf16),
        (1, HIDDEN, Format::Bf16),
        (HIDDEN, 2 * HIDDEN, Format::Bf16),
        (
            2 * SHARED_INTERMEDIATE,
            HIDDEN,
            target::FORMAT_SHARED_EXPERT,
        ),
        (HIDDEN, SHARED_INTERMEDIATE, target::FORMAT_SHARED_EXPERT),
    ];
    for format in [target::FORMAT_ATTENTION, target::FORMAT_MTP_ATTENTION] {
        all.push((2 * heads, HIDDEN, format));
        all.push((kv, HIDDEN, format));
        all.push((HIDDEN, heads, format));
    }
    all.dedup();
    all
}

/// Every row-wise op with random weights, `linear` left out.
pub fn kinds(random: &mut Random) -> Vec<Kind> {
    let mut kinds = vec![
        Kind::Embed(stored(random, VOCAB, HIDDEN, target::FORMAT_EMBED)),
        Kind::Add,
        Kind::RmsNorm(random.bf16(HIDDEN, 0.5)),
        Kind::AddRmsNorm(random.bf16(HIDDEN, 0.5)),
        Kind::NormRope(random.bf16(HEAD_DIM, 0.5), 2 * HEAD_DIM),
        Kind::NormRope(random.bf16(HEAD_DIM, 0.5), HEAD_DIM),
        Kind::AttentionGate,
        Kind::GatedRmsNorm(random.bf16(GDN_VALUE_DIM, 0.5)),
        Kind::SiluMul,
        Kind::AddGated,
        Kind::Concat,
        Kind::Select,
    ];
    let mut formats = vec![target::FORMAT_EXPERTS, target::FORMAT_MTP_EXPERTS];
    formats.dedup();
    kinds.extend(formats.into_iter().map(|format| {
        let (i, h) = (EXPERT_INTERMEDIATE, HIDDEN);
        let shapes = [(i, h), (i, h), (h, i)];
        let expert = |_| shapes.map(|(n, k)| stored(random, n, k, format));
        Kind::Experts((0..EXPERTS).map(expert).collect())
    }));
    kinds
}

/// An op that keeps something of each sequence from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// `store_kv` and `attend`.
    Attention,
    ConvSilu,
    GatedDelta,
}

/// Sequences of random rows, and the steps that they are run in.
pub struct Sequences {
    pub memory: Memory,
    /// Inputs of each sequence: width and values.
    inputs: Vec<Vec<(usize, Vec<f32>)>>,
    weights: Vec<Vec<f32>>,
    /// Each step's parts: sequence and rows.
    pub steps: Vec<Vec<(usize, usize)>>,
}

impl Sequences {
    /// Sequences as long as the sum of their parts.
    pub fn draw(random: &mut Random, memory: Memory, steps: Vec<Vec<(usize, usize)>>) -> Sequences {
        let count = steps.iter().flatten().map(|part| part.0).max().unwrap_or(0) + 1;
        let (widths, weights): (&[usize], Vec<Vec<f32>>) = match memory {
            Memory::Attention => {
                const KV: usize = KV_HEADS * HEAD_DIM;
                (&[HEADS * 2 * HEAD_DIM, KV, KV], Vec::new())
            }
            Memory::ConvSilu => {
                let taps = random.bf16(GDN_QKV * target::GDN_CONV, 0.5);
                (&[GDN_QKV], vec![taps])
            }
            Memory::GatedDelta => {
                let heads = GDN_VALUE_HEADS;
                let weights = vec![random.bf16(heads, 1.0), random.bf16(heads, 1.0)];
                (&[GDN_QKV, GDN_VALUE_HEADS, GDN_VALUE_HEADS], weights)
            }
        };
        let mut sequence = |index: usize| {
            let rows: usize = rows_of(&steps, index);
            let inputs = widths.iter();
            inputs
                .map(|&width| (width, random.bf16(rows * width, 2.0)))
                .collect()
        };
        Sequences {
            memory,
            inputs: (0..count).map(&mut sequence).collect(),
            weights,
            steps,
        }
    }

    pub fn op(&self) -> &'static str {
        match self.memory {
            Memory::Attention => "attend",
            Memory::ConvSilu => "conv_silu",
            Memory::GatedDelta => "gated_delta",
        }
    }

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
        match self.memory {
            // Weights of values are rounded to BF16.
            Memory::Attention => BF16_STORED,
            Memory::ConvSilu => F32_CHAIN,
            // Errors are carried from row to row.
            Memory::GatedDelta => 10.0 * F32_CHAIN,
        }
    }

    /// The same sequences in other steps.
    pub fn in_steps(&self, steps: Vec<Vec<(usize, usize)>>) -> Sequences {
        Sequences {
            memory: self.memory,
            inputs: self.inputs.clone(),
            weights: self.weights.clone(),
            steps,
        }
    }

    /// Sequence by sequence, in the parts that each has here.
    pub fn alone(&self) -> Sequences {
        let of = |index: usize| {
            let parts = self.steps.iter().flatten();
            parts
                .filter(move |part| part.0 == index)
                .map(|&part| vec![part])
        };
        self.in_steps((0..self.inputs.len()).flat_map(of).collect())
    }

    /// The op's results for each sequence, all rows.
    ///
    /// # Errors
    /// The backend failed.
    pub fn run<B: Probe>(&self, b: &mut B) -> Result<Vec<Vec<f32>>, DeviceError> {
        let mut cache = b.kv_cache()?;
        let mut state = b.gdn_state()?;
        let weights = self.weights.iter().map(|w| b.vector_of(w));
        let weights = weights.collect::<Result<Vec<_>, _>>()?;
        let mut results = vec![Vec::new(); self.inputs.len()];
        let mut done = vec![0; self.inputs.len()];
        for parts in &self.steps {
            let batch = self.batch(parts, &done)?;
            let inputs = (0..self.inputs[0].len()).map(|input| {
                let (width, values) = self.rows(parts, &done, input);
                b.given(width, &values)
            });
            let x = inputs.collect::<Result<Vec<_>, _>>()?;
            let width = self.out_width();
            let mut out = b.room(batch.rows(), width)?;
            b.begin(&batch);
            match self.memory {
                Memory::Attention => {
                    b.store_kv(&x[1], &x[2], &mut cache, &batch);
                    b.attend(&x[0], &cache, &batch, &mut out);
                }
                Memory::ConvSilu => b.conv_silu(&x[0], &weights[0], &mut state, &batch, &mut out),
                Memory::GatedDelta => {
                    let input = crate::ops::GatedDelta {
                        qkv: &x[0],
                        b: &x[1],
                        a: &x[2],
                        a_log: &weights[0],
                        dt_bias: &weights[1],
                    };
                    b.gated_delta(input, &mut state, &batch, &mut out);
                }
            }
            let out = b.seen(&out)?;
            let mut at = 0;
            for &(sequence, rows) in parts {
                results[sequence].extend_from_slice(&out[at..at + rows * width]);
                at += rows * width;
                done[sequence] += rows;
            }
        }
        Ok(results)
    }

    fn out_width(&self) -> usize {
        match self.memory {
            Memory::Attention => HEADS * HEAD_DIM,
            Memory::ConvSilu => GDN_QKV,
            Memory::GatedDelta => GDN_VALUES,
        }
    }

    fn rows(&self, parts: &[(usize, usize)], done: &[usize], input: usize) -> (usize, Vec<f32>) {
        let width = self.inputs[0][input].0;
        let part = |&(sequence, rows): &(usize, usize)| {
            let values = &self.inputs[sequence][input].1;
            &values[done[sequence] * width..][..rows * width]
        };
        (width, parts.iter().flat_map(part).copied().collect())
    }

    /// Pages are dealt to sequences in turn, so that no table is a range.
    fn batch(&self, parts: &[(usize, usize)], done: &[usize]) -> Result<Batch, DeviceError> {
        let count = self.inputs.len();
        let table = |sequence: usize| {
            let pages = rows_of(&self.all_steps(), sequence).div_ceil(PAGE);
            let page = move |index: usize| PageId((KV_PAGES - 1 - index * count - sequence) as u32);
            (0..pages).map(page).collect::<Vec<_>>()
        };
        let tables: Vec<_> = (0..count).map(table).collect();
        let tokens = vec![0; parts.iter().map(|part| part.1).max().unwrap_or(0)];
        let rows = parts.iter().map(|&(sequence, rows)| Rows {
            slot: Slot((MAX_SEQUENCES - 1 - sequence) as u32),
            start: done[sequence],
            tokens: &tokens[..rows],
            pages: &tables[sequence],
            logits: true,
        });
        let mut batch = Batch::default();
        batch.fill(&rows.collect::<Vec<_>>())?;
        Ok(batch)
    }

    /// One step with every sequence whole, for its length.
    fn all_steps(&self) -> Vec<Vec<(usize, usize)>> {
        let whole = |(index, inputs): (usize, &Vec<(usize, Vec<f32>)>)| {
            (index, inputs[0].1.len() / inputs[0].0)
        };
        vec![self.inputs.iter().enumerate().map(whole).collect()]
    }
}

fn rows_of(steps: &[Vec<(usize, usize)>], sequence: usize) -> usize {
    let parts = steps.iter().flatten();
    parts
        .filter(|part| part.0 == sequence)
        .map(|part| part.1)
        .sum()
}
