//! Attention over a paged cache of keys and values.

use super::{Batch, Device, PoolRegion};
use crate::shapes;
use step::executor::DeviceError;
use step::transfer::PIECE_ALIGN;

/// Operations of attention of one shape.
pub trait Attend<A: shapes::Attention>: Device {
    /// Keys and values of one attention layer, in pages of `target::PAGE` tokens.
    type KvCache;

    /// Bytes of a page of one layer's cache.
    const PAGE_BYTES: usize;

    /// The cache of a layer in this region of the pool, of at most `target::KV_PAGES` pages.
    fn cache_at(&self, region: PoolRegion<Self::Pool>) -> Self::KvCache;

    /// An empty cache of one layer with memory of its own, whose pages do not touch.
    fn kv_cache(&self, pages: usize) -> Result<Self::KvCache, DeviceError> {
        let stride = Self::PAGE_BYTES + PIECE_ALIGN;
        let (pool, at) = (self.pool(pages, stride)?, PIECE_ALIGN);
        Ok(self.cache_at(PoolRegion { pool, at, stride }))
    }

    /// Norms and rotates queries and keys, in place, and writes each row's keys and values at its
    /// position of its sequence. Per head of `HEAD_DIM`: RMS norm times `w` of its last elements,
    /// as many as `NORMS` says, then rotary embedding of the first `ROTARY_DIM` elements, pairs
    /// `(i, i + ROTARY_DIM / 2)`, by the angle `position * ROPE.frequency(i)`. `q [R, QUERIES]` has
    /// a query per head and, where the shape is `GATED`, a gate after it, which is left alone.
    /// `k [R, KEYS]`, `v [R, VALUES]`, none where values are latents of keys; heads of `v` are
    /// divided by their RMS where values are `VALUES_NORMED`; what is left in `k` is not specified.
    /// `norms` are of queries and of keys, none where the shape has none.
    fn store_kv(
        &mut self,
        q: &mut Self::Tensor,
        k: &mut Self::Tensor,
        v: Option<&Self::Tensor>,
        norms: [Option<&Self::Vector>; 2],
        cache: &mut Self::KvCache,
        batch: &Batch,
    );

    /// Causal attention: `out[r, h] = sum_j softmax_j(SCALE q[r, h] . k[j, g]) v[j, g]`
    /// over positions `j` up to the row's own, `v` being the last `VALUE_DIM` elements of `k` where
    /// values are its latents, of a shape with a `WINDOW` the last so many of them;
    /// `g = h / GROUP`; the softmax of a shape with `SINKS` counts `sinks[h]`, `[HEADS]`, as the
    /// score of one more position, whose value is zero. Then, where the shape is `GATED`,
    /// `out[r, h] *= sigmoid(gate[r, h])`, element by element. `q [R, QUERIES]` as `store_kv`
    /// leaves it; `out [R, MIXED]`. Rows are taken one by one, or in cells as
    /// [`super::ONE_BY_ONE`] states.
    fn attend(
        &mut self,
        q: &Self::Tensor,
        cache: &Self::KvCache,
        sinks: Option<&Self::Vector>,
        batch: &Batch,
        out: &mut Self::Tensor,
    );

    /// `store_kv`, then `attend`, with the same bits. The contents of `q` and `k` are lost.
    fn attention(
        &mut self,
        input: Qkv<'_, Self>,
        cache: &mut Self::KvCache,
        batch: &Batch,
        out: &mut Self::Tensor,
    ) {
        store_and_attend::<A, Self>(self, input, cache, batch, out);
    }
}

/// Inputs of [`Attend::attention`]: those of [`Attend::store_kv`], and the sinks of
/// [`Attend::attend`].
pub struct Qkv<'a, B: Device + ?Sized> {
    pub q: &'a mut B::Tensor,
    pub k: &'a mut B::Tensor,
    pub v: Option<&'a B::Tensor>,
    pub norms: [Option<&'a B::Vector>; 2],
    pub sinks: Option<&'a B::Vector>,
}

/// [`Attend::attention`] by its two operations.
pub fn store_and_attend<A: shapes::Attention, B: Attend<A> + ?Sized>(
    ops: &mut B,
    input: Qkv<'_, B>,
    cache: &mut B::KvCache,
    batch: &Batch,
    out: &mut B::Tensor,
) {
    let Qkv {
        q,
        k,
        v,
        norms,
        sinks,
    } = input;
    ops.store_kv(q, k, v, norms, cache, batch);
    ops.attend(q, cache, sinks, batch, out);
}
