//! Attention over all earlier positions of a sequence.

use super::{Block, Loader, Norms, Stream};
use crate::ops::{Attend, Batch, Dense, Qkv};
use crate::shapes::{self, PageGroup};
use crate::target::Role;
use crate::weights::WeightsError;
use step::executor::DeviceError;

/// Projections, norms of heads where the shape has them, and the cache of one layer.
pub struct Attention<B: Attend<A>, A: shapes::Attention> {
    q: B::Matrix,
    k: B::Matrix,
    v: B::Matrix,
    o: B::Matrix,
    /// Weights of the norms of queries and of keys.
    pub(crate) norms: Option<[B::Vector; 2]>,
    /// Scores of the shape's sinks.
    sinks: Option<B::Vector>,
    cache: B::KvCache,
}

/// Storage of a step.
pub struct Scratch<T> {
    q: T,
    k: T,
    v: T,
}

impl<A: shapes::Attention, B: Dense + Attend<A>> Block<B> for Attention<B, A> {
    type Scratch = Scratch<B::Tensor>;

    const WIDTHS: &'static [usize] = &[A::QUERIES, A::KEYS, A::VALUES];
    const MIXED: usize = A::MIXED;
    const PAGE_BYTES: usize = <B as Attend<A>>::PAGE_BYTES;
    const PAGES: PageGroup = A::PAGES;

    fn load(loader: &mut Loader<'_, B>) -> Result<Self, WeightsError> {
        Ok(Attention {
            q: loader.matrix(Role::Query)?,
            k: loader.matrix(Role::Key)?,
            v: loader.matrix(Role::Value)?,
            o: loader.matrix(Role::Output)?,
            norms: match A::NORMED {
                true => Some([
                    loader.vector(Role::QueryNorm)?,
                    loader.vector(Role::KeyNorm)?,
                ]),
                false => None,
            },
            sinks: match A::SINKS {
                true => Some(loader.vector(Role::Sinks)?),
                false => None,
            },
            cache: loader.cache()?,
        })
    }

    fn scratch(ops: &B, rows: usize) -> Result<Self::Scratch, DeviceError> {
        Ok(Scratch {
            q: ops.tensor(rows, A::QUERIES)?,
            k: ops.tensor(rows, A::KEYS)?,
            v: ops.tensor(rows, A::VALUES)?,
        })
    }

    fn run(
        &mut self,
        ops: &mut B,
        norms: &Norms<B::Vector>,
        stream: &mut Stream<B>,
        own: &mut Self::Scratch,
        batch: &Batch,
    ) {
        let Stream { residual, x, mixed } = stream;
        let Scratch { q, k, v } = own;
        let mut projections = [(&self.q, &mut *q), (&self.k, &mut *k), (&self.v, &mut *v)];
        ops.norm_linear(residual, &norms.before, x, false, &mut projections);
        let norms_of_heads = self.norms.as_ref();
        let of_heads = [0, 1].map(|at| norms_of_heads.map(|norms| &norms[at]));
        let sinks = self.sinks.as_ref();
        let input = Qkv {
            q,
            k,
            v: Some(v),
            norms: of_heads,
            sinks,
        };
        ops.attention(input, &mut self.cache, batch, mixed);
        norms.add(ops, mixed, &self.o, x, residual);
    }
}
