//! Queries of latents, and results of what is mixed of them.

use super::{Attend, Batch, Dense};
use crate::shapes;

/// Attention over latents of one shape, beside its products with whole rows.
pub trait Latent<L: shapes::Latent>: Dense + Attend<L::Attention> {
    /// Queries of latents: `q[r, h] = f(r) (turned | sum_d x[r, h, d] w[h NOPE_DIM + d])`, where
    /// `turned` are the elements of `x[r, h]` behind the first `NOPE_DIM`, those of even places
    /// before those of odd ones, and `f` is the `TEMPERATURE` at the row's position.
    /// `x [R, QUERIES]`, `w [HEADS NOPE_DIM, VALUE_DIM]`, `q [R, HEADS HEAD_DIM]`.
    fn latent_queries(
        &mut self,
        x: &Self::Tensor,
        w: &Self::Matrix,
        batch: &Batch,
        q: &mut Self::Tensor,
    );

    /// Results of heads: `out[r, h, n] = sum_k mixed[r, h, k] w[h RESULT_DIM + n, k]`.
    /// `mixed [R, HEADS VALUE_DIM]`, `w [HEADS RESULT_DIM, VALUE_DIM]`, `out [R, RESULTS]`.
    fn latent_results(&mut self, mixed: &Self::Tensor, w: &Self::Matrix, out: &mut Self::Tensor);
}
