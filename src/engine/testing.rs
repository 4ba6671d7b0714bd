//! Drawn rules of sampling, for tests of the engine and of what is above it, and the rooms of two
//! such tests.

#[path = "equivalence_tests.rs"]
pub mod equivalence;
#[path = "simulator_tests.rs"]
#[cfg_attr(
    not(test),
    allow(
        dead_code,
        unused_imports,
        reason = "tests of other crates need half of it"
    )
)]
pub(crate) mod simulator;

use step::executor::TokenId;
use step::random::Random;

use super::adaptive::Sections;
use super::request::{Dry, Sampling, Xtc};
use super::thinking::ThinkingBudget;

/// Token that ends replies of the simulator's requests, and that some rules favour.
pub const STOP: TokenId = 7;

/// Rules of any kind, most of them of few kinds at once, for a vocabulary.
pub fn sampling(random: &mut Random, vocab: usize) -> Sampling {
    Sampling {
        temperature: random.pick(&[0.0, 0.0, 0.7, 1.5]),
        top_k: random.pick(&[0, 1, 5, 1000]),
        top_p: random.pick(&[1.0, 0.9, 0.3]),
        min_p: random.pick(&[0.0, 0.0, 0.1]),
        presence_penalty: random.pick(&[0.0, 0.0, 1.0]),
        frequency_penalty: random.pick(&[0.0, 0.0, -0.5]),
        repetition_penalty: random.pick(&[1.0, 1.0, 1.3]),
        logit_bias: if random.chance(0.2) {
            vec![(STOP, 1.5)]
        } else {
            vec![]
        },
        dry: Dry {
            multiplier: random.pick(&[0.0, 0.0, 0.0, 1.0]),
            ..Dry::default()
        },
        top_n_sigma: random.pick(&[0.0, 0.0, 0.0, 1.0]),
        typical_p: random.pick(&[1.0, 1.0, 1.0, 0.5]),
        xtc: Xtc {
            probability: random.pick(&[0.0, 0.0, 0.0, 0.5]),
            ..Xtc::default()
        },
        min_tokens: random.pick(&[0, 0, 0, 4]),
        allowed: match random.chance(0.05) {
            true => (0..vocab as TokenId).step_by(2).collect(),
            false => vec![],
        },
        bad_words: match random.chance(0.1) {
            true => vec![vec![6], vec![7, 8]],
            false => vec![],
        },
        seed: random.below(1 << 30) as u64,
        adaptive: random.chance(0.1).then_some(Sections {
            reasoning: Some([2, 3]),
            calls: Some([4, 5]),
            constrained: false,
        }),
        thinking_budget: random.chance(0.2).then(|| ThinkingBudget {
            tokens: random.below(20),
            close: vec![2],
            ending: vec![3, 2, 4],
        }),
    }
}
