//! Attention over latents of earlier positions (MLA).

use super::{Block, Loader, Pass, Stream};
use crate::ops::{Attend, Batch, Dense, Qkv};
use crate::shapes::{self, Attention as _, PageGroup, Temperature};
use crate::target::Role;
use crate::weights::WeightsError;
use step::executor::DeviceError;

/// Attention over one latent of each position (MLA): the matrices from latents to keys and values
/// are multiplied into queries and results, so all query heads ask one key head.
pub trait Shape: Send + Sync + 'static {
    /// Shape of the attention over the latents.
    type Attention: shapes::Attention;
    /// Width between the two products that make queries.
    const QUERY_RANK: usize;
    /// Elements of a head's query that are multiplied into a query of latents.
    const NOPE_DIM: usize;
    /// Elements of a head's result.
    const RESULT_DIM: usize;
    /// Factor of queries that grows with their positions; none: 1.
    const TEMPERATURE: Option<Temperature>;

    /// Elements of a head's query: those for latents, then rotated ones, pairs `(2i, 2i + 1)`.
    const QUERY: usize = Self::NOPE_DIM + Self::Attention::ROTARY_DIM;
    /// Width of the queries of all heads.
    const QUERIES: usize = Self::Attention::HEADS * Self::QUERY;
    /// Width of the results of all heads.
    const RESULTS: usize = Self::Attention::HEADS * Self::RESULT_DIM;
    /// Fails to compile where the shape's numbers contradict each other.
    const CHECK: () = assert!(Self::Attention::LATENT && Self::Attention::KV_HEADS == 1);
}

/// Operations of attention over latents, beside products with whole rows.
pub trait Ops<L: Shape>: Dense + Attend<L::Attention> {
    /// Queries of latents: `q[r, h] = f(r) (turned | sum_d x[r, h, d] w[h NOPE_DIM + d])`, where
    /// `turned` are the elements of `x[r, h]` after the first `NOPE_DIM`, those with even index
    /// before those with odd index, and `f` is the `TEMPERATURE` at the row's position. `x [R,
    /// QUERIES]`, `w [HEADS NOPE_DIM, VALUE_DIM]`, `q [R, HEADS HEAD_DIM]`.
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

/// Projections, matrices between latents and heads, and the cache of one layer.
pub struct Latent<B: Ops<L>, L: Shape> {
    /// First product of queries, before the norm `query_norm` and the product `query_up`.
    query_down: B::Matrix,
    query_norm: B::Vector,
    query_up: B::Matrix,
    /// Product that makes rotated elements and a latent, which `norm` norms.
    down: B::Matrix,
    norm: B::Vector,
    /// Matrix that makes each head's keys of a latent, as `values` makes its values.
    keys: B::Matrix,
    values: B::Matrix,
    o: B::Matrix,
    cache: <B as Attend<L::Attention>>::KvCache,
}

/// Workspace of a step for attention over latents.
pub struct Scratch<T> {
    /// Rows between the two products that make queries, before and after the norm.
    down: [T; 2],
    queries: T,
    /// Queries of latents.
    q: T,
    k: T,
    /// Weighted sums of latents, by head.
    latents: T,
}

impl<L: Shape, B: Ops<L>> Block<B> for Latent<B, L> {
    type Scratch = Scratch<B::Tensor>;

    const WIDTHS: &'static [usize] = &[
        L::QUERY_RANK,
        L::QUERY_RANK,
        L::QUERIES,
        L::Attention::QUERIES,
        L::Attention::KEYS,
        L::Attention::MIXED,
    ];
    const MIXED: usize = L::RESULTS;
    const PAGE_BYTES: usize = <B as Attend<L::Attention>>::PAGE_BYTES;
    const PAGES: PageGroup = L::Attention::PAGES;

    fn load(loader: &mut Loader<'_, B>) -> Result<Self, WeightsError> {
        let () = L::CHECK;
        Ok(Latent {
            query_down: loader.matrix(Role::QueryDown)?,
            query_norm: loader.vector(Role::QueryDownNorm)?,
            query_up: loader.matrix(Role::QueryUp)?,
            down: loader.matrix(Role::LatentDown)?,
            norm: loader.vector(Role::LatentNorm)?,
            keys: loader.matrix(Role::LatentKeys)?,
            values: loader.matrix(Role::LatentValues)?,
            o: loader.matrix(Role::Output)?,
            cache: loader.cache::<L::Attention>()?,
        })
    }

    fn scratch(ops: &B, rows: usize) -> Result<Self::Scratch, DeviceError> {
        let tensor = |width| ops.tensor(rows, width);
        Ok(Scratch {
            down: [tensor(L::QUERY_RANK)?, tensor(L::QUERY_RANK)?],
            queries: tensor(L::QUERIES)?,
            q: tensor(L::Attention::QUERIES)?,
            k: tensor(L::Attention::KEYS)?,
            latents: tensor(L::Attention::MIXED)?,
        })
    }

    fn run(&mut self, ops: &mut B, pass: Pass<'_, B>, own: &mut Self::Scratch) {
        let (norms, batch) = (pass.norms, pass.batch);
        let Stream { residual, x, mixed } = pass.stream;
        let [down, normed] = &mut own.down;
        let mut projections = [(&self.query_down, &mut *down), (&self.down, &mut own.k)];
        ops.norm_linear(residual, &norms.before, x, false, &mut projections);
        ops.rms_norm(down, &self.query_norm, normed, None);
        ops.linear(normed, &self.query_up, &mut own.queries);
        ops.latent_queries(&own.queries, &self.keys, batch, &mut own.q);
        let input = Qkv {
            q: &mut own.q,
            k: &mut own.k,
            v: None,
            norms: [None, Some(&self.norm)],
            sinks: None,
        };
        ops.attention(input, &mut self.cache, batch, &mut own.latents);
        ops.latent_results(&own.latents, &self.values, mixed);
        norms.add(ops, mixed, &self.o, x, residual);
    }
}
