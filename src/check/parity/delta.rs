//! Cases of recurrent mixers.

use std::marker::PhantomData;

use super::dense::{products, projections};
use super::matrices::{blocks, once, stored};
use super::probe::rounded;
use super::rows::{Loaded, RowCase, RowOp, RowOpOn};
use super::sequences::{Opened, SequenceOp, SequenceOpOn};
use super::{F16_OPERANDS, F16_STORED, F32_CHAIN, Group, Probe, Random};
use model::backend::cpu::{self, Cpu};
use model::ops::{self, Batch, Decay, Delta, Dense};
use model::shapes::{self, Delta as _};
use model::target::{HIDDEN, Recurrent, Role};
use model::weights::Stored;
use step::executor::DeviceError;

pub(super) const GROUP: Group = Group {
    by_row: &[
        "gated_rms_norm",
        "gated_linear_add",
        "norm_linear",
        "linear",
        "linear_add",
    ],
    by_sequence: &["conv_silu", "gated_delta", "delta_net", "gated_linear_add"],
    formulas: |_, _| {},
    rows,
    sequences: |random| {
        vec![
            Box::new(Recurs::<Recurrent>::draw(random, Op::ConvSilu)),
            Box::new(Recurs::<Recurrent>::draw(random, Op::GatedDelta)),
            Box::new(Recurs::<Recurrent>::draw(random, Op::DeltaNet)),
            Box::new(DeltaNetAdd {
                layer: Layer::<Recurrent>::draw(random),
                matrix: stored(random, blocks(&[Role::GdnOutput])[0][0]),
            }),
        ]
    },
};

/// Matrices whose products follow a norm.
const ROLES: [Role; 5] = [
    Role::GdnQkv,
    Role::GdnGate,
    Role::GdnDecay,
    Role::TimeStep,
    Role::GdnBeta,
];

/// Cases of independent rows, and of products with the matrices of each kind of block.
fn rows(random: &mut Random) -> Vec<Box<dyn RowCase>> {
    let mut cases: Vec<Box<dyn RowCase>> = vec![Box::new(GatedRmsNorm::<Recurrent> {
        norm: random.bf16(Recurrent::GAINS, 0.5),
        shape: PhantomData,
    })];
    for output in blocks(&[Role::GdnOutput]).concat() {
        cases.push(Box::new(GatedLinearAdd::<Recurrent> {
            norm: random.bf16(Recurrent::GAINS, 0.5),
            matrix: stored(random, output),
            shape: PhantomData,
        }));
    }
    for block in blocks(&ROLES) {
        cases.push(projections(random, &block));
        cases.extend(products(random, once(block)));
    }
    cases.extend(products(random, once(blocks(&[Role::GdnOutput]).concat())));
    cases
}

/// Functions beside the operations of one recurrent shape that cases need of a backend.
pub trait ProbeDelta<D: shapes::Delta>: Probe + Delta<D> {
    /// `gated_linear_add` with rows rounded to F16 as in `norm_linear_rounded`.
    fn gated_linear_add_rounded(
        &mut self,
        x: &mut Self::Tensor,
        norm: &Self::Vector,
        z: &Self::Tensor,
        w: &Self::Matrix,
        residual: &mut Self::Tensor,
    ) -> Result<(), DeviceError>;
}

impl<D: shapes::Delta> ProbeDelta<D> for Cpu {
    fn gated_linear_add_rounded(
        &mut self,
        x: &mut cpu::Tensor,
        norm: &Vec<f32>,
        z: &cpu::Tensor,
        w: &Self::Matrix,
        residual: &mut cpu::Tensor,
    ) -> Result<(), DeviceError> {
        Delta::<D>::gated_rms_norm(self, x, norm, z);
        let rounded = rounded(self, x)?;
        self.linear_add(&rounded, w, residual);
        Ok(())
    }
}

struct GatedRmsNorm<D> {
    norm: Vec<f32>,
    shape: PhantomData<D>,
}

impl<D: shapes::Delta> RowOp for GatedRmsNorm<D> {
    fn about(&self) -> (&'static str, Vec<usize>) {
        ("gated_rms_norm", vec![D::VALUES, D::VALUES])
    }
}

impl<D: shapes::Delta, B: ProbeDelta<D>> RowOpOn<B> for GatedRmsNorm<D> {
    fn load(&self, b: &mut B) -> Result<Loaded<'_, B>, DeviceError> {
        let norm = b.vector_of(&self.norm)?;
        Ok(Box::new(move |b, x, _| {
            let (x, z) = x.split_at_mut(1);
            b.gated_rms_norm(&mut x[0], &norm, &z[0]);
            Ok(())
        }))
    }
}

struct GatedLinearAdd<D> {
    norm: Vec<f32>,
    matrix: Stored,
    shape: PhantomData<D>,
}

impl<D: shapes::Delta> RowOp for GatedLinearAdd<D> {
    fn about(&self) -> (&'static str, Vec<usize>) {
        ("gated_linear_add", vec![D::VALUES, D::VALUES, HIDDEN])
    }

    fn case(&self, rows: usize) -> String {
        format!("{rows} {}", self.matrix.bits.coding.name())
    }

    /// A normed element near the middle between two F16 numbers may be rounded to either.
    fn limit(&self) -> f64 {
        F16_STORED
    }
}

impl<D: shapes::Delta, B: ProbeDelta<D>> RowOpOn<B> for GatedLinearAdd<D> {
    fn load(&self, b: &mut B) -> Result<Loaded<'_, B>, DeviceError> {
        let (norm, matrix) = (b.vector_of(&self.norm)?, b.matrix_of(&self.matrix)?);
        Ok(Box::new(move |b, x, _| {
            let mut residual = x.pop().expect("the third input");
            let (values, z) = x.split_at_mut(1);
            b.gated_linear_add_rounded(&mut values[0], &norm, &z[0], &matrix, &mut residual)?;
            *x = vec![residual];
            Ok(())
        }))
    }
}

/// Weights of a layer, its decay rates included.
struct Layer<D> {
    conv: Vec<f32>,
    /// Biases of the convolution; none but in Mamba-2.
    bias: Option<Vec<f32>>,
    decay: Decay<Vec<f32>>,
    norm: Vec<f32>,
    shape: PhantomData<D>,
}

impl<D: shapes::Delta> Layer<D> {
    fn draw(random: &mut Random) -> Layer<D> {
        Layer {
            conv: random.bf16(D::QKV * D::CONV, 0.5),
            bias: D::MAMBA.then(|| random.bf16(D::QKV, 0.5)),
            decay: Decay {
                skip: D::MAMBA.then(|| random.bf16(D::VALUE_HEADS, 0.5)),
                a_log: random.bf16(D::VALUE_HEADS, 1.0),
                dt_bias: random.bf16(D::VALUE_HEADS, 1.0),
            },
            norm: random.bf16(D::GAINS, 0.5),
            shape: PhantomData,
        }
    }

    fn open<B: ProbeDelta<D>>(&self, b: &mut B) -> Result<OpenLayer<D, B>, DeviceError> {
        Ok(OpenLayer {
            conv: b.vector_of(&self.conv)?,
            bias: self
                .bias
                .as_ref()
                .map(|bias| b.vector_of(bias))
                .transpose()?,
            decay: Decay {
                a_log: b.vector_of(&self.decay.a_log)?,
                dt_bias: b.vector_of(&self.decay.dt_bias)?,
                skip: self
                    .decay
                    .skip
                    .as_ref()
                    .map(|skip| b.vector_of(skip))
                    .transpose()?,
            },
            norm: b.vector_of(&self.norm)?,
            state: b.delta_state()?,
        })
    }
}

/// A layer's weights and states on a backend.
struct OpenLayer<D: shapes::Delta, B: Delta<D>> {
    conv: B::Vector,
    bias: Option<B::Vector>,
    decay: Decay<B::Vector>,
    norm: B::Vector,
    state: B::LayerStates,
}

impl<D: shapes::Delta, B: ProbeDelta<D>> OpenLayer<D, B> {
    fn convolve(
        &mut self,
        b: &mut B,
        qkv: &B::Tensor,
        batch: &Batch,
    ) -> Result<B::Tensor, DeviceError> {
        let mut out = b.empty(batch.rows(), D::QKV)?;
        let taps = (&self.conv, self.bias.as_ref());
        b.conv_silu(qkv, taps, &mut self.state, batch, &mut out);
        Ok(out)
    }

    /// `conv_silu` then `gated_delta`: only the device knows the format of the rows in between.
    fn mix(
        &mut self,
        b: &mut B,
        [qkv, beta, decay]: [&B::Tensor; 3],
        batch: &Batch,
    ) -> Result<B::Tensor, DeviceError> {
        let conv = self.convolve(b, qkv, batch)?;
        let mut out = b.empty(batch.rows(), D::VALUES)?;
        let input = ops::GatedDelta {
            qkv: &conv,
            b: beta,
            a: decay,
            decay: &self.decay,
        };
        b.gated_delta(input, &mut self.state, batch, &mut out);
        Ok(out)
    }

    fn net(&mut self, b: &mut B, x: &[B::Tensor], batch: &Batch) -> Result<B::Tensor, DeviceError> {
        let input = ops::DeltaNet {
            rows: ops::GatedDelta {
                qkv: &x[0],
                b: &x[2],
                a: &x[3],
                decay: &self.decay,
            },
            z: &x[1],
            conv: (&self.conv, self.bias.as_ref()),
            norm: &self.norm,
        };
        let mut conv = b.empty(batch.rows(), D::QKV)?;
        let mut out = b.empty(batch.rows(), D::VALUES)?;
        b.delta_net(input, &mut conv, &mut self.state, batch, &mut out);
        Ok(out)
    }
}

#[derive(Clone, Copy)]
enum Op {
    ConvSilu,
    /// `gated_delta` after `conv_silu`.
    GatedDelta,
    DeltaNet,
}

/// A case of an operation on a layer and its states.
struct Recurs<D> {
    layer: Layer<D>,
    op: Op,
}

impl<D: shapes::Delta> Recurs<D> {
    fn draw(random: &mut Random, op: Op) -> Recurs<D> {
        let layer = Layer::draw(random);
        Recurs { layer, op }
    }
}

impl<D: shapes::Delta> SequenceOp for Recurs<D> {
    fn about(&self) -> (&'static str, Vec<usize>) {
        let heads = D::VALUE_HEADS;
        match self.op {
            Op::ConvSilu => ("conv_silu", vec![D::QKV]),
            Op::GatedDelta => ("gated_delta", vec![D::QKV, heads, heads]),
            Op::DeltaNet => ("delta_net", vec![D::QKV, D::VALUES, heads, heads]),
        }
    }

    fn limit(&self, has_cells: bool) -> f64 {
        match (self.op, has_cells) {
            // Rows that make up whole cells are stored as F16.
            (Op::ConvSilu, true) => F16_OPERANDS / 2.0,
            (Op::ConvSilu, false) => F32_CHAIN,
            (_, true) => F16_OPERANDS,
            // Errors accumulate in the state from row to row.
            (_, false) => 10.0 * F32_CHAIN,
        }
    }
}

impl<D: shapes::Delta, B: ProbeDelta<D>> SequenceOpOn<B> for Recurs<D> {
    fn open(&self, b: &mut B) -> Result<Opened<'_, B>, DeviceError> {
        let mut layer = self.layer.open(b)?;
        Ok(Box::new(move |b, x, batch| match self.op {
            Op::ConvSilu => layer.convolve(b, &x[0], batch),
            Op::GatedDelta => layer.mix(b, [&x[0], &x[1], &x[2]], batch),
            Op::DeltaNet => layer.net(b, x, batch),
        }))
    }
}

/// A case of `conv_silu`, `gated_delta` and `gated_linear_add` together.
struct DeltaNetAdd<D> {
    layer: Layer<D>,
    matrix: Stored,
}

impl<D: shapes::Delta> SequenceOp for DeltaNetAdd<D> {
    fn about(&self) -> (&'static str, Vec<usize>) {
        (
            "gated_linear_add",
            vec![D::QKV, D::VALUES, D::VALUE_HEADS, D::VALUE_HEADS],
        )
    }

    fn limit(&self, has_cells: bool) -> f64 {
        match has_cells {
            true => F16_OPERANDS,
            // A normed element near the middle between two F16 numbers may be rounded to either.
            false => F16_STORED,
        }
    }
}

impl<D: shapes::Delta, B: ProbeDelta<D>> SequenceOpOn<B> for DeltaNetAdd<D> {
    fn open(&self, b: &mut B) -> Result<Opened<'_, B>, DeviceError> {
        let (mut layer, matrix) = (self.layer.open(b)?, b.matrix_of(&self.matrix)?);
        Ok(Box::new(move |b, x, batch| {
            let mut mixed = layer.mix(b, [&x[0], &x[2], &x[3]], batch)?;
            let mut out = b.given(HIDDEN, &vec![0.0; batch.rows() * HIDDEN])?;
            b.gated_linear_add_rounded(&mut mixed, &layer.norm, &x[1], &matrix, &mut out)?;
            Ok(out)
        }))
    }
}
