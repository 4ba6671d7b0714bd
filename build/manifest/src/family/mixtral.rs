//! `mixtral`: attention and experts in every layer.

use super::blocks::{mixtral_experts, plain};
use super::{EXPERTS, FeedForward, Mixers, Traits, Words};
use crate::table::Row;
use crate::target::Target;

pub(super) const TRAITS: Traits = Traits {
    name: "mixtral",
    types: &["mixtral"],
    classes: &["MixtralForCausalLM"],
    mixers: Mixers::Attention,
    feed_forward: FeedForward::Experts,
    gated: false,
    normed: false,
    plus_one: false,
    default_head_dim: true,
    states_norm: false,
    window_switch: None,
    words: Words {
        experts: EXPERTS,
        intermediate: "/intermediate_size",
    },
    rows,
};

fn rows(target: &Target) -> Vec<Row> {
    plain(target, mixtral_experts)
}
