//! Operations of any model: embedding, norms, products and the head.

use super::{Batch, Device};
use crate::target::LOGIT_CAP;

/// Operations that every model has, whatever its kinds of layers. The traits of kinds of layers
/// have the layer's dimensions as a parameter.
pub trait Dense: Device {
    /// `out[r] = table[batch.tokens[r]] * EMBEDDING_SCALE`. `table [VOCAB, H]`, `out [R, H]`.
    fn embed(&mut self, table: &Self::Matrix, batch: &Batch, out: &mut Self::Tensor);

    /// `out[r] = y[r]`, `y[r] = x[r] * rsqrt(mean(x[r]^2) + NORM_EPS) * w`, or with a factor
    /// `out[r] = (out[r] + y[r]) * adds`. `x, out [R, W]`, `w [W]`; with a factor `W` is `HIDDEN`.
    fn rms_norm(
        &mut self,
        x: &Self::Tensor,
        w: &Self::Vector,
        out: &mut Self::Tensor,
        adds: Option<f32>,
    );

    /// `out[r, n] = sum_k x[r, k] w[n, k]`, plus `bias[n]` where the matrix has biases: biases
    /// belong to the matrix, in every product. `x [R, K]`, `w [N, K]`, `out [R, N]`.
    fn linear(&mut self, x: &Self::Tensor, w: &Self::Matrix, out: &mut Self::Tensor);

    /// `residual[r, n] += sum_k x[r, k] w[n, k]`; the sum is rounded to one number before its
    /// addition. `x [R, K]`, `w [N, K]`, `residual [R, N]`.
    fn linear_add(&mut self, x: &Self::Tensor, w: &Self::Matrix, residual: &mut Self::Tensor);

    /// `rms_norm` of `residual`, then `linear` of the normed rows with each of `parts`, four at
    /// most. `x` is workspace for the normed rows, which stay there if `keep`.
    fn norm_linear(
        &mut self,
        residual: &Self::Tensor,
        norm: &Self::Vector,
        x: &mut Self::Tensor,
        _keep: bool,
        parts: &mut [(&Self::Matrix, &mut Self::Tensor)],
    ) {
        self.rms_norm(residual, norm, x, None);
        for (matrix, out) in parts {
            self.linear(x, matrix, out);
        }
    }

    /// `out[r] = a[r] | b[r]`. `a, b [R, W]`, `out [R, 2 W]`.
    fn concat(&mut self, a: &Self::Tensor, b: &Self::Tensor, out: &mut Self::Tensor);

    /// `rms_norm` of `embed`, beside `rms_norm` of `hidden`: `out[r] = embedding | hidden`, with
    /// the bits of these operations. `hidden [R, H]`, `out [R, 2 H]`.
    fn embed_beside(
        &mut self,
        table: &Self::Matrix,
        hidden: &Self::Tensor,
        norms: BesideNorms<'_, Self>,
        batch: &Batch,
        workspace: [&mut Self::Tensor; 2],
        out: &mut Self::Tensor,
    ) {
        let [normed, other] = workspace;
        self.embed(table, batch, other);
        self.rms_norm(other, norms.embedding, normed, None);
        self.rms_norm(hidden, norms.hidden, other, None);
        self.concat(normed, other, out);
    }

    /// `out[i] = x[batch.wanted[i]]`. `x [R, W]`, `out [batch.wanted.len(), W]`.
    fn select(&mut self, x: &Self::Tensor, batch: &Batch, out: &mut Self::Tensor);

    /// `logits[r, i] = LOGIT_CAP * tanh(logits[r, i] / LOGIT_CAP)`, of models with a cap.
    /// `logits [R, IDS]`.
    fn cap_logits(&mut self, logits: &mut Self::Tensor);

    /// `x[i] = max(x[i], 0)^2`.
    fn relu2(&mut self, x: &mut Self::Tensor);

    /// Ranks each row: `out[r]` is the ids of its `target::TOP_K` largest logits, descending, the
    /// lower id first on a tie; then these logits; then `sum_i exp(logits[r, i] - max(logits[r]))`,
    /// not a number if a logit is not finite. `logits [R, IDS]`, `out [R, RANKED]`.
    fn top_k(&mut self, logits: &Self::Tensor, out: &mut Self::Tensor);

    /// `rms_norm` of the rows of `residual` that `out.hidden` says; of the wanted ones `linear`
    /// with the first `out.ids` rows of `w` or more, `cap_logits` where there is a cap, and `top_k`
    /// where rows are ranked; with the bits of these operations. The content left in the other one
    /// of `out.x` and `out.last` is not specified.
    fn lm_head(
        &mut self,
        residual: &Self::Tensor,
        norm: &Self::Vector,
        w: &Self::Matrix,
        batch: &Batch,
        out: Ends<'_, Self>,
    ) {
        norm_and_rank(self, residual, norm, w, batch, out);
    }
}

/// Weights of the norms of [`Dense::embed_beside`], `[H]`.
pub struct BesideNorms<'a, B: Device + ?Sized> {
    pub embedding: &'a B::Vector,
    pub hidden: &'a B::Vector,
}

/// Normed hidden states that [`Dense::lm_head`] stores, and that a prediction continues from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// Hidden states of every row, in `Ends::x`.
    OfRows,
    /// Hidden states of the wanted rows, in `Ends::last`.
    OfWanted,
}

/// Tensors that [`Dense::lm_head`] fills.
pub struct Ends<'a, B: Device + ?Sized> {
    /// Rows whose normed hidden states `lm_head` stores: all in `x`, or the wanted ones in `last`.
    pub hidden: Hidden,
    /// Normed rows, `[R, H]`, or workspace for the wanted ones of `residual`.
    pub x: &'a mut B::Tensor,
    /// Normed rows that are wanted, `[batch.wanted.len(), H]`, or workspace for these.
    pub last: &'a mut B::Tensor,
    /// Number of logits of each row, of the lowest ids: `VOCAB`, or fewer for a draft.
    pub ids: usize,
    /// Logits of the wanted rows, `[batch.wanted.len(), IDS]`, where `IDS` is `ids` or more.
    pub logits: &'a mut B::Tensor,
    /// Ranking of the wanted rows, `[batch.wanted.len(), RANKED]`; none if rows are not ranked.
    pub ranked: Option<&'a mut B::Tensor>,
}

/// [`Dense::lm_head`], operation by operation, with all rows of `w`.
pub fn norm_and_rank<B: Dense + ?Sized>(
    ops: &mut B,
    residual: &B::Tensor,
    norm: &B::Vector,
    w: &B::Matrix,
    batch: &Batch,
    out: Ends<'_, B>,
) {
    norm_and_rank_by(ops, residual, norm, batch, out, |ops, x, _, logits| {
        ops.linear(x, w, logits);
    });
}

/// [`norm_and_rank`] with another product: `product(ops, x, ids, logits)` leaves in `logits` those
/// of the rows of `x`, of `ids` ids or more.
pub fn norm_and_rank_by<B: Dense + ?Sized>(
    ops: &mut B,
    residual: &B::Tensor,
    norm: &B::Vector,
    batch: &Batch,
    out: Ends<'_, B>,
    product: impl FnOnce(&mut B, &B::Tensor, usize, &mut B::Tensor),
) {
    match out.hidden {
        Hidden::OfRows => {
            ops.rms_norm(residual, norm, out.x, None);
            ops.select(out.x, batch, out.last);
        }
        Hidden::OfWanted => {
            ops.select(residual, batch, out.x);
            ops.rms_norm(out.x, norm, out.last, None);
        }
    }
    product(ops, out.last, out.ids, out.logits);
    cap(ops, out.logits);
    if let Some(ranked) = out.ranked
        && B::RANKS
    {
        ops.top_k(out.logits, ranked);
    }
}

/// [`Dense::cap_logits`] in models with a cap.
pub fn cap<B: Dense + ?Sized>(ops: &mut B, logits: &mut B::Tensor) {
    if LOGIT_CAP > 0.0 {
        ops.cap_logits(logits);
    }
}
