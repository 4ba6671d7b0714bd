//! The gate of an MLP.

use super::{Dense, Route};
use crate::shapes;

/// Operations of a gated MLP of one shape, beside its products.
pub trait Gate<M: shapes::Mlp>: Dense {
    /// `out[r, i]` is the shape's `ACTIVATION` of `gate[r, i]` and `up[r, i]`.
    /// `gate, up, out [R, INTERMEDIATE]`.
    fn swiglu(&mut self, gate: &Self::Tensor, up: &Self::Tensor, out: &mut Self::Tensor);

    /// `norm_linear` with the first two of `weights`, gate and up, `swiglu` of both, and
    /// `linear_add` of the activations with the third, by `gather_add`. `x` is workspace for normed
    /// rows, `own` for gates, ups and activations, whose content is unspecified afterwards.
    fn mlp(
        &mut self,
        residual: &mut Self::Tensor,
        norm: &Self::Vector,
        weights: [&Self::Matrix; 3],
        x: &mut Self::Tensor,
        own: [&mut Self::Tensor; 3],
    ) {
        let ([gate, up, down], [gates, ups, act]) = (weights, own);
        let mut products = [(gate, &mut *gates), (up, &mut *ups)];
        self.norm_linear(residual, norm, x, false, &mut products);
        self.swiglu(gates, ups, act);
        self.gather_add(residual, |ops, sum| ops.linear_add(act, down, sum));
    }
}

/// Operations of an MLP and of experts beside each other.
pub trait Both<S: shapes::Both>: Gate<S::Mlp> + Route<S::Experts> {}

impl<S: shapes::Both, B: Gate<S::Mlp> + Route<S::Experts>> Both<S> for B {}
