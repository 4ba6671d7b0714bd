//! `mixtral`: attention and experts in every layer.

use super::blocks::{mixtral_experts, plain};
use super::{EXPERTS, FeedForward, Traits, USUAL, Words};

pub(super) const TRAITS: Traits = Traits {
    name: "mixtral",
    types: &["mixtral"],
    classes: &["MixtralForCausalLM"],
    feed_forward: FeedForward::Experts,
    default_head_dim: true,
    words: Words {
        experts: EXPERTS,
        intermediate: "/intermediate_size",
    },
    rows: |target| plain(target, mixtral_experts),
    ..USUAL
};
