//! The gate of an MLP.

use super::{Dense, Route};
use crate::shapes;

/// A gated MLP of one shape, beside its products.
pub trait Gate<M: shapes::Mlp>: Dense {
    /// `out[r, i]` is the shape's `ACTIVATION` of `gate[r, i]` and `up[r, i]`.
    /// `gate, up, out [R, INTERMEDIATE]`.
    fn swiglu(&mut self, gate: &Self::Tensor, up: &Self::Tensor, out: &mut Self::Tensor);
}

/// Operations of an MLP and of experts beside each other.
pub trait Both<S: shapes::Both>: Gate<S::Mlp> + Route<S::Experts> {}

impl<S: shapes::Both, B: Gate<S::Mlp> + Route<S::Experts>> Both<S> for B {}
