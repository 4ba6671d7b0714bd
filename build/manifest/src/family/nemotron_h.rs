//! `nemotron_h`: each layer is Mamba-2, attention without positions, or experts of two matrices.

use super::blocks::nemotron;
use super::{Activation, FeedForward, Mixers, Switch, Traits, USUAL};

pub(super) const TRAITS: Traits = Traits {
    name: "nemotron_h",
    types: &["nemotron_h"],
    classes: &["NemotronHForCausalLM"],
    mixers: Mixers::Mamba,
    feed_forward: FeedForward::ExpertBeside,
    activation: Activation::Relu2,
    words: &[
        ("moe.experts", &["/n_routed_experts"]),
        (
            "moe.shared_intermediate",
            &["/moe_shared_expert_intermediate_size"],
        ),
    ],
    rows: nemotron,
    has: &[Switch::Unturned, Switch::Sigmoid],
    ..USUAL
};
