//! Recurrent mixers: a causal convolution, then the gated delta rule on a state per value head, or
//! Mamba-2's.

use super::{Batch, Dense, Device, PoolRegion};
use crate::shapes;
use step::executor::DeviceError;

/// Operations of Gated DeltaNet or Mamba-2 of one shape.
pub trait Delta<D: shapes::Delta>: Dense {
    /// Convolution tail and matrix state of one layer for every slot.
    type LayerStates;

    /// Bytes of a number in the results of `conv_silu` and `gated_delta` for rows in cells.
    const CELL_BYTES: usize;

    /// Bytes of one layer's part of a state: matrix states, then the convolution tail.
    const STATE_BYTES: [usize; 2];

    /// The states of a layer in this region of the pool.
    fn state_at(&self, region: PoolRegion<Self::Pool>) -> Self::LayerStates;

    /// Zero states of one layer with memory of their own; the states of slots do not touch.
    fn delta_state(&self) -> Result<Self::LayerStates, DeviceError> {
        let region = self.states(Self::STATE_BYTES.iter().sum())?;
        Ok(self.state_at(region))
    }

    /// Causal depthwise convolution and SiLU over each sequence's rows, `w, bias` being the taps:
    /// `out[t, c] = silu(bias[c] + sum_j w[c, j] x[t - (CONV - 1) + j, c])`. Inputs before the
    /// step's first row come from the slot's convolution tail (zero at position 0), which is
    /// replaced by the last `CONV - 1` inputs. `x, out [R, QKV]`, `w [QKV * CONV]`, `bias [QKV]`.
    fn conv_silu(
        &mut self,
        x: &Self::Tensor,
        taps: Taps<'_, Self>,
        state: &mut Self::LayerStates,
        batch: &Batch,
        out: &mut Self::Tensor,
    );

    /// Gated delta rule on each sequence's state `S [KEY_DIM, VALUE_DIM]` of
    /// each value head `h`, with key head `h / GROUP`:
    /// `q, k` scaled to unit length (`x * rsqrt(sum x^2 + 1e-6)`), `q /= sqrt(KEY_DIM)`,
    /// `S *= exp(-exp(a_log[h]) * softplus(a[r, h] + dt_bias[h]))`,
    /// `d = (v - S^T k) * sigmoid(b[r, h])`, `S += k d^T`, `out[r, h] = S^T q`.
    /// With `MAMBA` queries and keys are as they are, the decay is the same, and with
    /// `d = softplus(a[r, h] + dt_bias[h])`: `S += k (d v)^T`, `out[r, h] = S^T q + skip[h] v`.
    /// `qkv [R, q | k | v]`, `b, a [R, VALUE_HEADS]`, `skip [VALUE_HEADS]`, `out [R, VALUES]`.
    /// The state of a row at position 0 starts at zero. Rows are taken one by one, or in cells as
    /// [`super::ONE_BY_ONE`] states.
    fn gated_delta(
        &mut self,
        input: GatedDelta<'_, Self>,
        state: &mut Self::LayerStates,
        batch: &Batch,
        out: &mut Self::Tensor,
    );

    /// Per head of `VALUE_DIM`, in place: `x = x * rsqrt(mean(x^2) + NORM_EPS) * w * silu(z)`. With
    /// `MAMBA` per `NORM` elements, gated first: `y = x * silu(z)`,
    /// `x = y * rsqrt(mean(y^2) + NORM_EPS) * w`. `x, z [R, VALUES]`, `w [GAINS]`.
    fn gated_rms_norm(&mut self, x: &mut Self::Tensor, w: &Self::Vector, z: &Self::Tensor);

    /// `gated_rms_norm` of `x`, then `linear_add` of the result. The content left in `x` is not
    /// specified. `w [H, VALUES]`, `residual [R, H]`.
    fn gated_linear_add(
        &mut self,
        x: &mut Self::Tensor,
        norm: &Self::Vector,
        z: &Self::Tensor,
        w: &Self::Matrix,
        residual: &mut Self::Tensor,
    ) {
        self.gated_rms_norm(x, norm, z);
        self.linear_add(x, w, residual);
    }

    /// `conv_silu`, `gated_delta` and `gated_rms_norm`. `qkv [R, QKV]`; `conv` is workspace of that
    /// shape; `z, out [R, VALUES]`.
    fn delta_net(
        &mut self,
        input: DeltaNet<'_, Self>,
        conv: &mut Self::Tensor,
        state: &mut Self::LayerStates,
        batch: &Batch,
        out: &mut Self::Tensor,
    ) {
        let DeltaNet { rows, z, .. } = input;
        self.conv_silu(rows.qkv, input.conv, state, batch, conv);
        self.gated_delta(GatedDelta { qkv: conv, ..rows }, state, batch, out);
        self.gated_rms_norm(out, input.norm, z);
    }
}

/// Weights of a convolution by channel, and its biases if the convolution has some.
pub type Taps<'a, B> = (&'a <B as Device>::Vector, Option<&'a <B as Device>::Vector>);

/// Inputs of [`Delta::gated_delta`].
pub struct GatedDelta<'a, B: Device + ?Sized> {
    pub qkv: &'a B::Tensor,
    /// Gates of updates; not read with `MAMBA`.
    pub b: &'a B::Tensor,
    pub a: &'a B::Tensor,
    pub decay: &'a Decay<B::Vector>,
}

/// Weights of the recurrent rule, by head.
pub struct Decay<V> {
    pub a_log: V,
    pub dt_bias: V,
    /// Factor of values in the result; with `MAMBA` alone.
    pub skip: Option<V>,
}

/// Inputs of [`Delta::delta_net`].
pub struct DeltaNet<'a, B: Device + ?Sized> {
    /// Inputs of the recurrent rule, before the convolution.
    pub rows: GatedDelta<'a, B>,
    pub z: &'a B::Tensor,
    pub conv: Taps<'a, B>,
    pub norm: &'a B::Vector,
}
