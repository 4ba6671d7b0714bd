//! Weights of the norms of heads, and sinks, as cases draw them.

use super::{Probe, Random};
use crate::shapes;
use step::executor::DeviceError;

/// Weights of the norms of queries and of keys, where the shape has them.
pub(super) struct Norms<V> {
    pub norms: Option<[V; 2]>,
    /// Scores of the shape's sinks.
    pub sinks: Option<V>,
}

impl Norms<Vec<f32>> {
    pub fn draw<A: shapes::Attention>(random: &mut Random) -> Norms<Vec<f32>> {
        let mut gains = || random.gains(A::HEAD_DIM);
        Norms {
            norms: A::NORMED.then(|| [scaled::<A>(gains()), gains()]),
            sinks: A::SINKS.then(|| random.bf16(A::HEADS, 2.0)),
        }
    }

    pub fn load<B: Probe>(&self, b: &mut B) -> Result<Norms<B::Vector>, DeviceError> {
        let norms = match &self.norms {
            Some([of_q, of_k]) => Some([b.vector_of(of_q)?, b.vector_of(of_k)?]),
            None => None,
        };
        let sinks = self.sinks.as_ref().map(|sinks| b.vector_of(sinks));
        let sinks = sinks.transpose()?;
        Ok(Norms { norms, sinks })
    }
}

impl<V> Norms<V> {
    pub fn each(&self) -> Option<[&V; 2]> {
        self.norms.as_ref().map(|norms| norms.each_ref())
    }

    pub fn sinks(&self) -> Option<&V> {
        self.sinks.as_ref()
    }
}

/// Norms that make queries short, where the shape has some.
pub(super) fn short_norms<A: shapes::Attention>(random: &mut Random) -> Norms<Vec<f32>> {
    let drawn = Norms::draw::<A>(random);
    let Some([_, of_k]) = drawn.norms else {
        return drawn;
    };
    let around_zero = random.bf16(A::HEAD_DIM, 0.25);
    let of_q = around_zero.into_iter().map(|w| 0.5 + w).collect();
    Norms {
        norms: Some([scaled::<A>(of_q), of_k]),
        ..drawn
    }
}

/// Gains of queries by which scores are as small as those of shapes whose scale is that of their
/// heads.
fn scaled<A: shapes::Attention>(gains: Vec<f32>) -> Vec<f32> {
    let small = 1.0 / (A::SCALE * (A::HEAD_DIM as f32).sqrt());
    gains.into_iter().map(|gain| gain * small).collect()
}
