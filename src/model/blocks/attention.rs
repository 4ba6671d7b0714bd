//! Attention over all earlier positions of a sequence.

use super::{Block, Loader, Pass, Stream};
use crate::ops::{Attend, Dense, Qkv};
use crate::shapes::{self, PageGroup};
use crate::target::{CHANNELS, HIDDEN, Role};
use crate::weights::WeightsError;
use step::executor::DeviceError;

/// Projections of one layer, norms of heads where the shape has them, and the cache.
pub struct Attention<B: Attend<A>, A: shapes::Attention> {
    q: B::Matrix,
    k: B::Matrix,
    v: B::Matrix,
    o: B::Matrix,
    /// Weights of the norms of queries and of keys, by head or by whole row.
    pub(crate) norms: Option<[B::Vector; 2]>,
    /// Scores of the shape's sinks, by query head.
    sinks: Option<B::Vector>,
    cache: B::KvCache,
}

/// Workspace of a step for attention.
pub struct Scratch<T> {
    q: T,
    k: T,
    v: T,
    /// Queries and keys that are normed by whole row.
    normed: Option<[T; 2]>,
}

impl<A: shapes::Attention, B: Dense + Attend<A>> Block<B> for Attention<B, A> {
    type Scratch = Scratch<B::Tensor>;

    const WIDTHS: &'static [usize] = match A::ROWS_NORMED {
        false => &[A::QUERIES, A::KEYS, A::VALUES],
        true => &[A::QUERIES, A::KEYS, A::VALUES, A::QUERIES, A::KEYS],
    };
    const MIXED: usize = A::MIXED;
    const PAGE_BYTES: usize = <B as Attend<A>>::PAGE_BYTES;
    const PAGES: PageGroup = A::PAGES;

    fn load(loader: &mut Loader<'_, B>) -> Result<Self, WeightsError> {
        const {
            // A norm over the hidden width leaves out the padding of hidden states.
            let is_padded = CHANNELS != HIDDEN;
            let is_hidden = A::QUERIES == HIDDEN || A::KEYS == HIDDEN;
            assert!(!(A::ROWS_NORMED && is_padded && is_hidden));
        }
        Ok(Attention {
            q: loader.matrix(Role::Query)?,
            k: loader.matrix(Role::Key)?,
            v: loader.matrix(Role::Value)?,
            o: loader.matrix(Role::Output)?,
            norms: match A::NORMED || A::ROWS_NORMED {
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
            normed: match A::ROWS_NORMED {
                true => Some([ops.tensor(rows, A::QUERIES)?, ops.tensor(rows, A::KEYS)?]),
                false => None,
            },
        })
    }

    fn run(&mut self, ops: &mut B, pass: Pass<'_, B>, own: &mut Self::Scratch) {
        let (norms, batch) = (pass.norms, pass.batch);
        let Stream { residual, x, mixed } = pass.stream;
        let Scratch { q, k, v, normed } = own;
        let mut projections = [(&self.q, &mut *q), (&self.k, &mut *k), (&self.v, &mut *v)];
        ops.norm_linear(residual, &norms.before, x, false, &mut projections);
        let gains = self.norms.as_ref().map(|norms| norms.each_ref());
        let (q, k, of_heads) = match (gains, normed) {
            (Some([of_q, of_k]), Some([normed_q, normed_k])) => {
                ops.rms_norm(q, of_q, normed_q, None);
                ops.rms_norm(k, of_k, normed_k, None);
                (normed_q, normed_k, None)
            }
            (gains, _) => (q, k, gains),
        };
        let sinks = self.sinks.as_ref();
        let input = Qkv {
            q,
            k,
            v: Some(v),
            norms: of_heads.map_or([None; 2], |norms| norms.map(Some)),
            sinks,
        };
        ops.attention(input, &mut self.cache, batch, mixed);
        norms.add(ops, mixed, &self.o, x, residual);
    }
}
