//! Cases of attention: `store_kv`, `attend`, and `attention`, which does both.

use std::marker::PhantomData;

use super::dense::{products, projections};
use super::head_norms::{Norms, beside};
use super::matrices::{blocks, once};
use super::probe::as_factors;
use super::rows::RowCase;
use super::sequences::{Opened, SequenceCase, SequenceOp, SequenceOpOn};
use super::{BF16_STORED, Group, Probe, Random, formula};
use model::backend::cpu::Cpu;
use model::ops::{Attend, Batch, Qkv, store_and_attend};
use model::shapes;
use model::target::{KV_PAGES, Role, each_attention};
use step::executor::DeviceError;

pub(super) const GROUP: Group = Group {
    by_row: &["norm_linear", "linear", "linear_add"],
    by_sequence: &["attend", "attention"],
    formulas: |report, random| {
        if report.wants("attention") {
            each_attention![A => formula::attention::<A>(report, random)];
        }
    },
    rows,
    sequences: |random| {
        let calls = [Calls::Apart, Calls::Together];
        let cases = each_attention![A => calls.map(|calls| {
            Box::new(Attending::<A>::draw(random, calls)) as Box<dyn SequenceCase>
        })];
        cases.into_iter().flatten().collect()
    },
};

/// Largest norm-wise error of attention's results: queries, keys and the weights of values are
/// rounded to BF16, in some models after norms.
pub const LIMIT: f64 = 2.0 * BF16_STORED;

const ROLES: [Role; 4] = [Role::Query, Role::Key, Role::Value, Role::Output];

/// Cases of products with attention's matrices.
fn rows(random: &mut Random) -> Vec<Box<dyn RowCase>> {
    let mut cases = Vec::new();
    for block in blocks(&ROLES)
        .into_iter()
        .filter(|block| block.len() == ROLES.len())
    {
        cases.push(projections(random, &block[..3]));
        cases.extend(products(random, once(block)));
    }
    cases
}

/// Functions beside attention's operations of one shape that cases need of a backend.
pub trait ProbeAttention<A: shapes::Attention>: Probe + Attend<A> {
    /// All keys and values in a cache, in the backend's order.
    fn cached(&mut self, cache: &Self::KvCache) -> Result<Vec<f32>, DeviceError>;
}

impl<A: shapes::Attention> ProbeAttention<A> for Cpu {
    fn cached(&mut self, cache: &<Cpu as Attend<A>>::KvCache) -> Result<Vec<f32>, DeviceError> {
        Ok(cache.elements())
    }
}

/// Operations by which rows of a case attend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// `store_kv` followed by `attend`.
    Apart,
    /// `attention` alone.
    Together,
}

impl Calls {
    pub(super) fn attention<A: shapes::Attention, B: Attend<A>>(
        self,
        b: &mut B,
        input: Qkv<'_, B>,
        cache: &mut B::KvCache,
        batch: &Batch,
        out: &mut B::Tensor,
    ) {
        match self {
            Calls::Apart => store_and_attend::<A, B>(b, input, cache, batch, out),
            Calls::Together => b.attention(input, cache, batch, out),
        }
    }
}

/// Factor of queries that makes scores as small as those of other shapes, where a scaled rotary
/// embedding lengthens queries and keys.
pub(super) fn shortened<A: shapes::Attention>() -> f32 {
    A::ROPE.growth().powi(-2) as f32
}

/// A case of rows that attend to their sequence.
struct Attending<A> {
    calls: Calls,
    norms: Norms<Vec<f32>>,
    shape: PhantomData<A>,
}

impl<A: shapes::Attention> Attending<A> {
    fn draw(random: &mut Random, calls: Calls) -> Attending<A> {
        Attending {
            calls,
            norms: Norms::draw::<A>(random),
            shape: PhantomData,
        }
    }
}

impl<A: shapes::Attention> SequenceOp for Attending<A> {
    fn about(&self) -> (&'static str, Vec<usize>) {
        let op = match self.calls {
            Calls::Apart => "attend",
            Calls::Together => "attention",
        };
        (op, vec![A::QUERIES, A::KEYS, A::KEYS])
    }

    fn limit(&self, _: bool) -> f64 {
        LIMIT
    }

    fn compared(&self, left: Vec<f32>) -> Vec<f32> {
        as_factors(left)
    }
}

impl<A: shapes::Attention, B: ProbeAttention<A>> SequenceOpOn<B> for Attending<A> {
    fn open(&self, b: &mut B) -> Result<Opened<'_, B>, DeviceError> {
        let (norms, mut cache) = (self.norms.load(b)?, b.kv_cache(KV_PAGES)?);
        Ok(Box::new(move |b, x, batch| {
            let mut out = b.empty(batch.rows(), A::MIXED)?;
            let [q, k, v] = x else {
                unreachable!("attention has three inputs");
            };
            let (norms, sinks) = (norms.each(), norms.sinks());
            let input = Qkv {
                q,
                k,
                v: beside::<A, _>(v),
                norms,
                sinks,
            };
            self.calls
                .attention::<A, B>(b, input, &mut cache, batch, &mut out);
            Ok(out)
        }))
    }
}
