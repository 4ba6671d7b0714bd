//! Weights of head norms, and attention sinks, as cases draw them.

use super::{Probe, Random};
use model::shapes;
use step::executor::DeviceError;

/// Returns `values`, or None for latent attention (MLA), which reads its values from the keys.
pub(super) fn beside<A: shapes::Attention, T>(values: &T) -> Option<&T> {
    (!A::LATENT).then_some(values)
}

/// Weights of the norms of queries and of keys, each where the shape has it, and sinks.
#[derive(Clone)]
pub(super) struct Norms<V> {
    pub norms: [Option<V>; 2],
    /// Scores of the attention sinks.
    pub sinks: Option<V>,
}

impl Norms<Vec<f32>> {
    pub fn draw<A: shapes::Attention>(random: &mut Random) -> Norms<Vec<f32>> {
        let mut gains = |size| (size > 0).then(|| random.gains(size));
        let [of_q, of_k] = A::NORMS.map(&mut gains);
        Norms {
            norms: [of_q.map(scaled::<A>), of_k],
            sinks: A::SINKS.then(|| random.bf16(A::HEADS, 2.0)),
        }
    }

    pub fn load<B: Probe>(&self, b: &mut B) -> Result<Norms<B::Vector>, DeviceError> {
        let mut load = |vector: &Option<Vec<f32>>| {
            let loaded = vector.as_ref().map(|vector| b.vector_of(vector));
            loaded.transpose()
        };
        let [of_q, of_k] = &self.norms;
        Ok(Norms {
            norms: [load(of_q)?, load(of_k)?],
            sinks: load(&self.sinks)?,
        })
    }
}

impl<V> Norms<V> {
    pub fn each(&self) -> [Option<&V>; 2] {
        self.norms.each_ref().map(Option::as_ref)
    }

    pub fn sinks(&self) -> Option<&V> {
        self.sinks.as_ref()
    }
}

/// Random norms whose gains make queries short, for small scores; gains as drawn where the shape
/// norms no queries.
pub(super) fn short_norms<A: shapes::Attention>(random: &mut Random) -> Norms<Vec<f32>> {
    let drawn = Norms::draw::<A>(random);
    let [Some(_), of_k] = drawn.norms else {
        return drawn;
    };
    let around_zero = random.bf16(A::HEAD_DIM, 0.25);
    let of_q = around_zero.into_iter().map(|w| 0.5 + w).collect();
    Norms {
        norms: [Some(scaled::<A>(of_q)), of_k],
        ..drawn
    }
}

/// Gains of queries that make scores as small as those of shapes that divide by the root of the
/// head's width.
fn scaled<A: shapes::Attention>(gains: Vec<f32>) -> Vec<f32> {
    let small = 1.0 / (A::SCALE * (A::HEAD_DIM as f32).sqrt());
    gains.into_iter().map(|gain| gain * small).collect()
}
