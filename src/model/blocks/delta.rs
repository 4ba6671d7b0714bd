//! Recurrent mixers: Gated DeltaNet and Mamba-2.

use super::{Block, Loader, Pass, Stream};
use crate::ops::{self, Decay, Delta, GatedDelta};
use crate::shapes;
use crate::target::Role;
use crate::weights::WeightsError;
use step::executor::DeviceError;

/// Projections, convolution, decay and states of one layer.
pub struct DeltaNet<B: Delta<D>, D: shapes::Delta> {
    qkv: B::Matrix,
    z: B::Matrix,
    /// Projection to the strength of updates; none in Mamba-2.
    b: Option<B::Matrix>,
    a: B::Matrix,
    out: B::Matrix,
    conv: B::Vector,
    /// Bias of the convolution: Mamba-2 alone has it.
    conv_bias: Option<B::Vector>,
    decay: Decay<B::Vector>,
    pub(crate) norm: B::Vector,
    state: B::LayerStates,
}

/// Workspace of a step for a recurrent mixer.
pub struct Scratch<T> {
    qkv: T,
    conv: T,
    z: T,
    b: T,
    a: T,
}

impl<D: shapes::Delta, B: Delta<D>> Block<B> for DeltaNet<B, D> {
    type Scratch = Scratch<B::Tensor>;

    const WIDTHS: &'static [usize] = &[D::QKV, D::QKV, D::VALUES, D::VALUE_HEADS, D::VALUE_HEADS];
    const MIXED: usize = D::VALUES;
    /// Bytes of the matrix states, then of the convolution tails.
    const STATE_BYTES: &'static [usize] = &<B as Delta<D>>::STATE_BYTES;

    fn load(loader: &mut Loader<'_, B>) -> Result<Self, WeightsError> {
        let states = loader.states(B::STATE_BYTES.iter().sum())?;
        let mut of_mamba = |role| D::MAMBA.then(|| loader.vector(role)).transpose();
        let (conv_bias, skip) = (of_mamba(Role::ConvBias)?, of_mamba(Role::Skip)?);
        let decay = if D::MAMBA {
            Role::TimeStep
        } else {
            Role::GdnDecay
        };
        Ok(DeltaNet {
            conv_bias,
            qkv: loader.matrix(Role::GdnQkv)?,
            z: loader.matrix(Role::GdnGate)?,
            b: match D::MAMBA {
                true => None,
                false => Some(loader.matrix(Role::GdnBeta)?),
            },
            a: loader.matrix(decay)?,
            out: loader.matrix(Role::GdnOutput)?,
            conv: loader.vector(Role::GdnConv)?,
            decay: Decay {
                a_log: loader.vector(Role::GdnDecayRate)?,
                dt_bias: loader.vector(Role::GdnDecayBias)?,
                skip,
            },
            norm: loader.vector(Role::GdnNorm)?,
            state: loader.ops.state_at(states),
        })
    }

    fn scratch(ops: &B, rows: usize) -> Result<Self::Scratch, DeviceError> {
        Ok(Scratch {
            qkv: ops.tensor(rows, D::QKV)?,
            conv: ops.tensor(rows, D::QKV)?,
            z: ops.tensor(rows, D::VALUES)?,
            b: ops.tensor(rows, D::VALUE_HEADS)?,
            a: ops.tensor(rows, D::VALUE_HEADS)?,
        })
    }

    fn run(&mut self, ops: &mut B, pass: Pass<'_, B>, own: &mut Self::Scratch) {
        let mut projections = vec![
            (&self.qkv, &mut own.qkv),
            (&self.z, &mut own.z),
            (&self.a, &mut own.a),
        ];
        let strengths = self.b.as_ref();
        projections.extend(strengths.map(|strengths| (strengths, &mut own.b)));
        let Stream { residual, x, .. } = &mut *pass.stream;
        ops.norm_linear(residual, &pass.norms.before, x, false, &mut projections);
        match pass.batch.is_short() {
            true => self.few(ops, pass, own),
            false => self.prompt(ops, pass, own),
        }
    }
}

impl<D: shapes::Delta, B: Delta<D>> DeltaNet<B, D> {
    /// Runs steps with few rows: decoding, verified drafts and short prompts.
    fn few(&mut self, ops: &mut B, pass: Pass<'_, B>, own: &mut Scratch<B::Tensor>) {
        let Pass { stream, batch, .. } = pass;
        let input = ops::DeltaNet {
            rows: GatedDelta {
                qkv: &own.qkv,
                b: if D::MAMBA { &own.a } else { &own.b },
                a: &own.a,
                decay: &self.decay,
            },
            z: &own.z,
            conv: (&self.conv, self.conv_bias.as_ref()),
            norm: &self.norm,
        };
        let (conv, mixed) = (&mut own.conv, &mut stream.mixed);
        ops.delta_net(input, conv, &mut self.state, batch, mixed);
        ops.gather_add(&mut stream.residual, |ops, sum| {
            ops.linear_add(mixed, &self.out, sum);
        });
    }

    /// Runs steps with prompts: heads are normed within the product that reads them.
    fn prompt(&mut self, ops: &mut B, pass: Pass<'_, B>, own: &mut Scratch<B::Tensor>) {
        let Pass { stream, batch, .. } = pass;
        let taps = (&self.conv, self.conv_bias.as_ref());
        ops.conv_silu(&own.qkv, taps, &mut self.state, batch, &mut own.conv);
        let input = GatedDelta {
            qkv: &own.conv,
            b: if D::MAMBA { &own.a } else { &own.b },
            a: &own.a,
            decay: &self.decay,
        };
        let (mixed, residual) = (&mut stream.mixed, &mut stream.residual);
        ops.gated_delta(input, &mut self.state, batch, mixed);
        ops.gather_add(residual, |ops, sum| {
            ops.gated_linear_add(mixed, &self.norm, &own.z, &self.out, sum);
        });
    }
}
