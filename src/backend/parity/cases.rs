//! One table of cases for every backend: what an op is run on, and how near its results must be.
//!
//! Inputs are BF16 values, which F16 holds too unless they are tiny, so that rounding the operands
//! of tensor instructions loses nothing; what is left is rounding inside an op.

use super::{BF16_STORED, F16_OPERANDS, F16_STORED, F32_CHAIN, Random};
use crate::engine::executor::{DeviceError, PageId, Rows, Slot};
use crate::engine::request::TokenId;
use crate::model::Runs;
use crate::ops::{Batch, Ends, ONE_BY_ONE, Qkv, RANKED, store_and_attend};
use crate::shapes::{Attention as _, Delta as _, Experts as _};
use crate::target::{
    self, Format, Full, Gdn, HIDDEN, KV_PAGES, MAX_CONTEXT, MAX_SEQUENCES, Moe, PAGE,
    PREFILL_TOKENS, TOP_K, VOCAB,
};
use crate::weights::{Bits, Global, Stored};

/// A backend that cases can be run on.
pub trait Probe: Runs {
    /// A tensor with `values`.
    fn given(&mut self, width: usize, values: &[f32]) -> Result<Self::Tensor, DeviceError>;
    /// A tensor for `rows x width` results, full of what is not a number.
    fn room(&mut self, rows: usize, width: usize) -> Result<Self::Tensor, DeviceError>;
    fn matrix_of(&mut self, stored: &Stored) -> Result<Self::Matrix, DeviceError>;
    fn vector_of(&mut self, values: &[f32]) -> Result<Self::Vector, DeviceError>;
    fn experts_of(&mut self, stored: &[[Stored; 3]]) -> Result<Self::Experts, DeviceError>;
    /// `norm_linear`, the products being of normed rows that are rounded to F16 first, as a device
    /// rounds them; without that, sums that cancel would differ by any factor.
    fn norm_linear_rounded(
        &mut self,
        residual: &Self::Tensor,
        norm: &Self::Vector,
        x: &mut Self::Tensor,
        parts: &mut [(&Self::Matrix, &mut Self::Tensor)],
    ) -> Result<(), DeviceError>;
    /// `gated_linear_add`, rounded as that is.
    fn gated_linear_add_rounded(
        &mut self,
        x: &mut Self::Tensor,
        norm: &Self::Vector,
        z: &Self::Tensor,
        w: &Self::Matrix,
        residual: &mut Self::Tensor,
    ) -> Result<(), DeviceError>;
    /// `lm_head` of rows that rank, rounded as that is.
    fn lm_head_rounded(
        &mut self,
        residual: &Self::Tensor,
        norm: &Self::Vector,
        w: &Self::Matrix,
        batch: &Batch,
        out: Ends<'_, Self>,
    ) -> Result<(), DeviceError>;
    /// The values of a tensor; fails if memory around it was written.
    fn seen(&mut self, tensor: &Self::Tensor) -> Result<Vec<f32>, DeviceError>;
    /// All keys and values of a cache, in the order that the backend keeps them in.
    fn kept(&mut self, cache: &Self::KvCache) -> Result<Vec<f32>, DeviceError>;
}

/// How a case has rows attend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// `store_kv`, then `attend`.
    Apart,
    /// `attention`.
    Together,
}

impl Calls {
    pub(super) fn attention<B: Runs>(
        self,
        b: &mut B,
        input: Qkv<'_, B>,
        cache: &mut B::KvCache,
        batch: &Batch,
        out: &mut B::Tensor,
    ) {
        match self {
            Calls::Apart => store_and_attend(b, input, cache, batch, out),
            Calls::Together => b.attention(input, cache, batch, out),
        }
    }
}

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

/// An op whose rows are all by themselves, with its weights.
#[derive(Clone)]
pub enum Kind {
    Embed(Stored),
    RmsNorm(Vec<f32>),
    Linear(Stored),
    LinearAdd(Stored),
    /// Norm, and matrices of one layer.
    NormLinear(Vec<f32>, Vec<Stored>),
    GatedRmsNorm(Vec<f32>),
    /// Norm, and the matrix.
    GatedLinearAdd(Vec<f32>, Stored),
    /// `moe`, which is `route` and `experts`.
    Moe(Vec<[Stored; 3]>),
    Concat,
    Select,
    TopK,
    /// Norm, and the matrix.
    LmHead(Vec<f32>, Stored),
}

/// The weights of a kind on a backend.
pub enum Loaded<B: Runs> {
    Nothing,
    Vector(B::Vector),
    Matrix(B::Matrix),
    Normed(B::Vector, Vec<B::Matrix>),
    Experts(B::Experts),
}

impl Kind {
    pub fn op(&self) -> &'static str {
        match self {
            Kind::Embed(_) => "embed",
            Kind::RmsNorm(_) => "rms_norm",
            Kind::Linear(_) => "linear",
            Kind::LinearAdd(_) => "linear_add",
            Kind::NormLinear(..) => "norm_linear",
            Kind::GatedRmsNorm(_) => "gated_rms_norm",
            Kind::GatedLinearAdd(..) => "gated_linear_add",
            Kind::Moe(_) => "moe",
            Kind::Concat => "concat",
            Kind::Select => "select",
            Kind::TopK => "top_k",
            Kind::LmHead(..) => "lm_head",
        }
    }

    /// Whether a step may have as many rows for it.
    pub fn takes(&self, rows: usize) -> bool {
        !matches!(self, Kind::TopK | Kind::LmHead(..)) || rows <= MAX_SEQUENCES
    }

    /// Puts the weights on a backend.
    ///
    /// # Errors
    /// The backend failed.
    pub fn load<B: Probe>(&self, b: &mut B) -> Result<Loaded<B>, DeviceError> {
        Ok(match self {
            Kind::Embed(w) | Kind::Linear(w) | Kind::LinearAdd(w) => {
                Loaded::Matrix(b.matrix_of(w)?)
            }
            Kind::RmsNorm(w) | Kind::GatedRmsNorm(w) => Loaded::Vector(b.vector_of(w)?),
            Kind::NormLinear(norm, parts) => {
                let parts = parts.iter().map(|part| b.matrix_of(part));
                let parts = parts.collect::<Result<Vec<_>, _>>()?;
                Loaded::Normed(b.vector_of(norm)?, parts)
            }
            Kind::GatedLinearAdd(norm, w) | Kind::LmHead(norm, w) => {
                Loaded::Normed(b.vector_of(norm)?, vec![b.matrix_of(w)?])
            }
            Kind::Moe(w) => Loaded::Experts(b.experts_of(w)?),
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
        let widths = match kind {
            Kind::Embed(_) => vec![],
            Kind::Concat => vec![HIDDEN, HIDDEN],
            Kind::RmsNorm(_) | Kind::NormLinear(..) | Kind::Select | Kind::LmHead(..) => {
                vec![HIDDEN]
            }
            Kind::Linear(w) => vec![w.k],
            Kind::LinearAdd(w) => vec![w.k, w.n],
            Kind::GatedRmsNorm(_) => vec![Gdn::VALUES, Gdn::VALUES],
            Kind::GatedLinearAdd(..) => vec![Gdn::VALUES, Gdn::VALUES, HIDDEN],
            Kind::Moe(_) => vec![Moe::COUNT + 1, HIDDEN, HIDDEN],
            Kind::TopK => vec![VOCAB],
        };
        // Rows of different magnitude: the residual grows with depth.
        let mut input = |width: usize| {
            let values = (0..rows).flat_map(|row| random.bf16(width, (1 + row % 9) as f32));
            (width, values.collect::<Vec<f32>>())
        };
        let mut inputs: Vec<_> = widths.into_iter().map(&mut input).collect();
        // Of whole numbers so many are equal that ranking them has a way of its own.
        if matches!(kind, Kind::TopK) {
            for logits in inputs[0].1.chunks_exact_mut(VOCAB).skip(1).step_by(3) {
                logits.iter_mut().for_each(|logit| *logit = logit.round());
            }
        }
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
        self.kind.op()
    }

    pub fn case(&self) -> String {
        match self.kind {
            Kind::Linear(w) | Kind::LinearAdd(w) => {
                format!("{} x {} x {} {}", self.rows, w.n, w.k, name(&w.bits))
            }
            Kind::GatedLinearAdd(_, w) | Kind::LmHead(_, w) => {
                format!("{} {}", self.rows, name(&w.bits))
            }
            Kind::NormLinear(_, w) => format!("{} {}", self.rows, name(&w[0].bits)),
            Kind::Moe(w) => format!("{} {}", self.rows, name(&w[0][0].bits)),
            _ => format!("{}", self.rows),
        }
    }

    /// Largest norm-wise difference.
    pub fn limit(&self) -> f64 {
        match self.kind {
            // What gate and up give is rounded on its way to `down`, whose sums cancel in part: the
            // error stays, the norm shrinks. An element of E2M1 beside the middle of two may be
            // rounded to the other one.
            Kind::Moe(_) if Moe::ROWS_NVFP4 => 2.0 * BF16_STORED,
            Kind::Moe(_) => 2.0 * F16_STORED,
            // A normed element beside the middle of two F16 may be rounded to the other one.
            Kind::NormLinear(..) | Kind::GatedLinearAdd(..) | Kind::LmHead(..) => F16_STORED,
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
        let mut batch = Batch::new(KV_PAGES);
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
            (Kind::LinearAdd(_), Loaded::Matrix(w)) => {
                let (x, residual) = x.split_at_mut(1);
                b.linear_add(&x[0], w, &mut residual[0]);
            }
            (Kind::NormLinear(_, stored), Loaded::Normed(norm, w)) => {
                let rooms = stored.iter().map(|part| b.room(self.rows, part.n));
                let mut rooms = rooms.collect::<Result<Vec<_>, _>>()?;
                let mut parts: Vec<_> = w.iter().zip(&mut rooms).collect();
                b.norm_linear_rounded(&x[0], norm, &mut out, &mut parts)?;
                x.extend(rooms);
            }
            (Kind::GatedRmsNorm(_), Loaded::Vector(w)) => {
                let (x, z) = x.split_at_mut(1);
                b.gated_rms_norm(&mut x[0], w, &z[0]);
            }
            (Kind::GatedLinearAdd(..), Loaded::Normed(norm, w)) => {
                let mut residual = x.pop().expect("the third input");
                let (x, z) = x.split_at_mut(1);
                b.gated_linear_add_rounded(&mut x[0], norm, &z[0], &w[0], &mut residual)?;
                return Ok(vec![b.seen(&residual)?]);
            }
            (Kind::LmHead(..), Loaded::Normed(norm, w)) => {
                return self.lm_head(b, (norm, &w[0]), &x[0], &batch);
            }
            (Kind::Moe(_), Loaded::Experts(w)) => {
                let mut routing = b.routing()?;
                let (x, residual) = x.split_at_mut(2);
                b.moe(&x[1], &x[0], &mut routing, w, &mut residual[0]);
            }
            (kind, Loaded::Nothing) => plain(kind, b, &x, &batch, &mut out),
            _ => unreachable!("these are weights of another kind"),
        }
        let mut seen = x.iter().map(|x| b.seen(x)).collect::<Result<Vec<_>, _>>()?;
        if self.has_out() {
            let out = b.seen(&out)?;
            match self.kind {
                Kind::TopK => seen.extend(ranked_parts(&out)),
                _ => seen.push(out),
            }
        }
        Ok(seen)
    }

    /// Runs `lm_head`: normed rows, logits, those of the ids, ranked ones, and the logarithm of
    /// what all weigh, because a sum of weights is relatively as far off as the largest logit is
    /// in all.
    fn lm_head<B: Probe>(
        &self,
        b: &mut B,
        (norm, w): (&B::Vector, &B::Matrix),
        residual: &B::Tensor,
        batch: &Batch,
    ) -> Result<Vec<Vec<f32>>, DeviceError> {
        let (mut x, mut last) = (b.room(self.rows, HIDDEN)?, b.room(self.rows, HIDDEN)?);
        let (mut logits, mut ranked) = (b.room(self.rows, VOCAB)?, b.room(self.rows, RANKED)?);
        let ends = Ends {
            x: &mut x,
            last: &mut last,
            logits: &mut logits,
            ranked: &mut ranked,
        };
        b.lm_head_rounded(residual, norm, w, batch, ends)?;
        let [x, logits, ranked] = [b.seen(&x)?, b.seen(&logits)?, b.seen(&ranked)?];
        let [ids, largest, sums] = ranked_parts(&ranked);
        let of_ids = logits_at(&logits, &ids);
        let rows = sums.iter().zip(largest.chunks_exact(TOP_K));
        let weights = rows.map(|(sum, largest)| sum.ln() + largest[0]).collect();
        Ok(vec![x, logits, of_ids, largest, weights])
    }

    /// Whether every result is a row of the case.
    pub fn is_by_row(&self) -> bool {
        !matches!(self.kind, Kind::Select)
    }

    fn has_out(&self) -> bool {
        !matches!(
            self.kind,
            Kind::LinearAdd(_) | Kind::GatedRmsNorm(_) | Kind::Moe(_)
        )
    }

    fn out_width(&self) -> usize {
        match self.kind {
            Kind::Linear(w) => w.n,
            Kind::Concat => 2 * HIDDEN,
            Kind::TopK => RANKED,
            _ => HIDDEN,
        }
    }
}

/// Ids, logits and sums, which no common norm is of.
fn ranked_parts(ranked: &[f32]) -> [Vec<f32>; 3] {
    [0..TOP_K, TOP_K..2 * TOP_K, 2 * TOP_K..RANKED].map(|part| {
        let rows = ranked.chunks_exact(RANKED);
        rows.flat_map(|row| row[part.clone()].iter().copied())
            .collect()
    })
}

/// The logits of ids: two that are nearly equal may change places, as numbers they stay near.
fn logits_at(logits: &[f32], ids: &[f32]) -> Vec<f32> {
    let rows = logits.chunks_exact(VOCAB).zip(ids.chunks_exact(TOP_K));
    rows.flat_map(|(row, ids)| ids.iter().map(|&id| row[id as usize]))
        .collect()
}

/// An op without weights.
fn plain<B: Probe>(kind: &Kind, b: &mut B, x: &[B::Tensor], batch: &Batch, out: &mut B::Tensor) {
    match kind {
        Kind::Concat => b.concat(&x[0], &x[1], out),
        Kind::Select => b.select(&x[0], batch, out),
        Kind::TopK => b.top_k(&x[0], out),
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

/// Rows and formats of the matrices that `norm_linear` meets together.
fn projections() -> [Vec<(usize, Format)>; 4] {
    let (heads, kv) = (
        Full::HEADS * Full::HEAD_DIM,
        Full::KV_HEADS * Full::HEAD_DIM,
    );
    let attention = |format| vec![(2 * heads, format), (kv, format), (kv, format)];
    [
        vec![
            (Gdn::QKV, target::FORMAT_GDN),
            (Gdn::VALUES, target::FORMAT_GDN),
            (Gdn::VALUE_HEADS, Format::Bf16),
            (Gdn::VALUE_HEADS, Format::Bf16),
        ],
        attention(target::FORMAT_ATTENTION),
        attention(target::FORMAT_MTP_ATTENTION),
        vec![(Moe::COUNT + 1, Format::Bf16)],
    ]
}

/// Every matrix that `linear` meets in this target.
pub fn matrices() -> Vec<(usize, usize, Format)> {
    let (heads, kv) = (
        Full::HEADS * Full::HEAD_DIM,
        Full::KV_HEADS * Full::HEAD_DIM,
    );
    let mut all = vec![
        (Gdn::QKV, HIDDEN, target::FORMAT_GDN),
        (Gdn::VALUES, HIDDEN, target::FORMAT_GDN),
        (HIDDEN, Gdn::VALUES, target::FORMAT_GDN),
        (Gdn::VALUE_HEADS, HIDDEN, Format::Bf16),
        (Moe::COUNT + 1, HIDDEN, Format::Bf16),
        (HIDDEN, 2 * HIDDEN, Format::Bf16),
    ];
    for format in [target::FORMAT_ATTENTION, target::FORMAT_MTP_ATTENTION] {
        all.push((2 * heads, HIDDEN, format));
        all.push((kv, HIDDEN, format));
        all.push((HIDDEN, heads, format));
    }
    all.dedup();
    all
}

fn head_format() -> Format {
    match target::TIED_HEAD {
        true => target::FORMAT_EMBED,
        false => target::FORMAT_HEAD,
    }
}

/// Every row-wise op with random weights, `linear` left out.
pub fn kinds(random: &mut Random) -> Vec<Kind> {
    let mut kinds = vec![
        Kind::Embed(stored(random, VOCAB, HIDDEN, target::FORMAT_EMBED)),
        Kind::RmsNorm(random.gains(HIDDEN)),
        Kind::GatedRmsNorm(random.bf16(Gdn::VALUE_DIM, 0.5)),
        Kind::Concat,
        Kind::Select,
        Kind::TopK,
        Kind::LmHead(
            random.gains(HIDDEN),
            stored(random, VOCAB, HIDDEN, head_format()),
        ),
        Kind::GatedLinearAdd(
            random.bf16(Gdn::VALUE_DIM, 0.5),
            stored(random, HIDDEN, Gdn::VALUES, target::FORMAT_GDN),
        ),
    ];
    let mut formats = vec![target::FORMAT_EXPERTS, target::FORMAT_MTP_EXPERTS];
    formats.dedup();
    kinds.extend(formats.into_iter().map(|format| {
        let (i, h) = (Moe::INTERMEDIATE, HIDDEN);
        let shapes = [(i, h), (i, h), (h, i)];
        let expert = |_| shapes.map(|(n, k)| stored(random, n, k, format));
        Kind::Moe((0..=Moe::COUNT).map(expert).collect())
    }));
    kinds.extend(projections().map(|parts| {
        let part = |(n, format)| stored(random, n, HIDDEN, format);
        let parts = parts.into_iter().map(part).collect();
        Kind::NormLinear(random.gains(HIDDEN), parts)
    }));
    kinds
}

/// An op that keeps something of each sequence from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// `store_kv` and `attend`.
    Attend,
    /// `attention`, which is both.
    Attention,
    ConvSilu,
    /// `conv_silu` and `gated_delta`: only a device knows how the one leaves rows for the other.
    GatedDelta,
    DeltaNet,
    /// `conv_silu`, `gated_delta` and `gated_linear_add`.
    DeltaNetAdd,
}

impl Memory {
    pub fn op(self) -> &'static str {
        match self {
            Memory::Attend => "attend",
            Memory::Attention => "attention",
            Memory::ConvSilu => "conv_silu",
            Memory::GatedDelta => "gated_delta",
            Memory::DeltaNet => "delta_net",
            Memory::DeltaNetAdd => "gated_linear_add",
        }
    }
}

/// Sequences of random rows, and the steps that they are run in.
pub struct Sequences {
    pub memory: Memory,
    /// Inputs of each sequence: width and values.
    inputs: Vec<Vec<(usize, Vec<f32>)>>,
    weights: Vec<Vec<f32>>,
    /// Of the product, if there is one.
    matrix: Option<Stored>,
    /// Each step's parts: sequence and rows.
    pub steps: Vec<Vec<(usize, usize)>>,
}

impl Sequences {
    /// Sequences as long as the sum of their parts.
    pub fn draw(random: &mut Random, memory: Memory, steps: Vec<Vec<(usize, usize)>>) -> Sequences {
        let count = steps.iter().flatten().map(|part| part.0).max().unwrap_or(0) + 1;
        let (widths, weights): (&[usize], Vec<Vec<f32>>) = match memory {
            Memory::Attend | Memory::Attention => {
                const KV: usize = Full::KV_HEADS * Full::HEAD_DIM;
                let norms = vec![random.gains(Full::HEAD_DIM), random.gains(Full::HEAD_DIM)];
                (&[Full::HEADS * 2 * Full::HEAD_DIM, KV, KV], norms)
            }
            Memory::ConvSilu => {
                let taps = random.bf16(Gdn::QKV * Gdn::CONV, 0.5);
                (&[Gdn::QKV], vec![taps])
            }
            Memory::GatedDelta => {
                let weights = vec![
                    random.bf16(Gdn::QKV * Gdn::CONV, 0.5),
                    random.bf16(Gdn::VALUE_HEADS, 1.0),
                    random.bf16(Gdn::VALUE_HEADS, 1.0),
                ];
                (&[Gdn::QKV, Gdn::VALUE_HEADS, Gdn::VALUE_HEADS], weights)
            }
            Memory::DeltaNet | Memory::DeltaNetAdd => {
                let heads = Gdn::VALUE_HEADS;
                let weights = vec![
                    random.bf16(Gdn::QKV * Gdn::CONV, 0.5),
                    random.bf16(heads, 1.0),
                    random.bf16(heads, 1.0),
                    random.bf16(Gdn::VALUE_DIM, 0.5),
                ];
                (&[Gdn::QKV, Gdn::VALUES, heads, heads], weights)
            }
        };
        let mut sequence = |index: usize| {
            let rows: usize = rows_of(&steps, index);
            let inputs = widths.iter();
            inputs
                .map(|&width| (width, random.bf16(rows * width, 2.0)))
                .collect()
        };
        let inputs = (0..count).map(&mut sequence).collect();
        let has_matrix = memory == Memory::DeltaNetAdd;
        let mut drawn = || stored(random, HIDDEN, Gdn::VALUES, target::FORMAT_GDN);
        Sequences {
            memory,
            inputs,
            weights,
            matrix: has_matrix.then(&mut drawn),
            steps,
        }
    }

    pub fn op(&self) -> &'static str {
        self.memory.op()
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
            // Queries, keys and the weights of values are rounded to BF16 behind the norms.
            Memory::Attend | Memory::Attention => 2.0 * BF16_STORED,
            // What cells take is stored as F16.
            Memory::ConvSilu if self.has_cells() => F16_OPERANDS / 2.0,
            Memory::ConvSilu => F32_CHAIN,
            // A normed element beside the middle of two F16 may be rounded to the other one.
            Memory::DeltaNetAdd if !self.has_cells() => F16_STORED,
            Memory::DeltaNetAdd => F16_OPERANDS,
            Memory::GatedDelta | Memory::DeltaNet if self.has_cells() => F16_OPERANDS,
            // Errors are carried from row to row.
            Memory::GatedDelta | Memory::DeltaNet => 10.0 * F32_CHAIN,
        }
    }

    /// Whether a backend may take rows together.
    fn has_cells(&self) -> bool {
        self.steps.iter().flatten().any(|part| part.1 > ONE_BY_ONE)
    }

    /// The same sequences in other steps.
    pub fn in_steps(&self, steps: Vec<Vec<(usize, usize)>>) -> Sequences {
        Sequences {
            memory: self.memory,
            inputs: self.inputs.clone(),
            weights: self.weights.clone(),
            matrix: self.matrix.clone(),
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
        let mut cache = b.kv_cache(KV_PAGES)?;
        let mut state = b.delta_state()?;
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
            let mut x = inputs.collect::<Result<Vec<_>, _>>()?;
            let width = self.out_width();
            let mut out = b.room(batch.rows(), width)?;
            b.begin(&batch);
            match self.memory {
                Memory::Attend | Memory::Attention => {
                    let calls = match self.memory {
                        Memory::Attend => Calls::Apart,
                        _ => Calls::Together,
                    };
                    let (q, kv) = x.split_at_mut(1);
                    let (k, v) = kv.split_at_mut(1);
                    let input = Qkv {
                        q: &mut q[0],
                        k: &mut k[0],
                        v: &v[0],
                        norms: Some([&weights[0], &weights[1]]),
                    };
                    calls.attention(b, input, &mut cache, &batch, &mut out);
                }
                Memory::ConvSilu => b.conv_silu(&x[0], &weights[0], &mut state, &batch, &mut out),
                Memory::GatedDelta => {
                    let mut conv = b.room(batch.rows(), Gdn::QKV)?;
                    b.conv_silu(&x[0], &weights[0], &mut state, &batch, &mut conv);
                    let input = crate::ops::GatedDelta {
                        qkv: &conv,
                        b: &x[1],
                        a: &x[2],
                        a_log: &weights[1],
                        dt_bias: &weights[2],
                    };
                    b.gated_delta(input, &mut state, &batch, &mut out);
                }
                Memory::DeltaNetAdd => {
                    let mut conv = b.room(batch.rows(), Gdn::QKV)?;
                    b.conv_silu(&x[0], &weights[0], &mut state, &batch, &mut conv);
                    let input = crate::ops::GatedDelta {
                        qkv: &conv,
                        b: &x[2],
                        a: &x[3],
                        a_log: &weights[1],
                        dt_bias: &weights[2],
                    };
                    let mut mixed = b.room(batch.rows(), Gdn::VALUES)?;
                    b.gated_delta(input, &mut state, &batch, &mut mixed);
                    out = b.given(width, &vec![0.0; batch.rows() * width])?;
                    let matrix = self.matrix.as_ref().expect("the case has a product");
                    let matrix = b.matrix_of(matrix)?;
                    b.gated_linear_add_rounded(&mut mixed, &weights[3], &x[1], &matrix, &mut out)?;
                }
                Memory::DeltaNet => {
                    let input = crate::ops::DeltaNet {
                        qkv: &x[0],
                        z: &x[1],
                        b: &x[2],
                        a: &x[3],
                        conv: &weights[0],
                        a_log: &weights[1],
                        dt_bias: &weights[2],
                        norm: &weights[3],
                    };
                    let mut conv = b.room(batch.rows(), Gdn::QKV)?;
                    b.delta_net(input, &mut conv, &mut state, &batch, &mut out);
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
            Memory::Attend | Memory::Attention => Full::HEADS * Full::HEAD_DIM,
            Memory::ConvSilu => Gdn::QKV,
            Memory::GatedDelta | Memory::DeltaNet => Gdn::VALUES,
            Memory::DeltaNetAdd => HIDDEN,
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

    fn batch(&self, parts: &[(usize, usize)], done: &[usize]) -> Result<Batch, DeviceError> {
        let count = self.inputs.len();
        let all = self.all_steps();
        let table = |sequence: usize| dealt(sequence, count, rows_of(&all, sequence));
        let tables: Vec<_> = (0..count).map(table).collect();
        let tokens = vec![0; parts.iter().map(|part| part.1).max().unwrap_or(0)];
        let rows = parts.iter().map(|&(sequence, rows)| Rows {
            slot: Slot((MAX_SEQUENCES - 1 - sequence) as u32),
            start: done[sequence],
            tokens: &tokens[..rows],
            pages: &tables[sequence],
            logits: true,
        });
        let mut batch = Batch::new(KV_PAGES);
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
