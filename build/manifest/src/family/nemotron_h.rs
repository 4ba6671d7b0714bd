//! `nemotron_h`: each layer is Mamba-2, attention without positions, or experts of two matrices.

use super::blocks::nemotron;
use super::{Activation, FeedForward, MOE, Mixers, Switch, Traits, USUAL, Words, word};

pub(super) const TRAITS: Traits = Traits {
    name: "nemotron_h",
    types: &["nemotron_h"],
    classes: &["NemotronHForCausalLM"],
    mixers: Mixers::Mamba,
    feed_forward: FeedForward::ExpertBeside,
    activation: Activation::Relu2,
    words: Words {
        experts: word("moe.experts", &["/n_routed_experts"]),
        intermediate: MOE.intermediate,
    },
    rows: nemotron,
    has: &[Switch::Unturned, Switch::Sigmoid],
    ..USUAL
};
