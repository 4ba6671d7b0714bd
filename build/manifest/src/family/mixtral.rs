//! `mixtral`: attention and experts in every layer.

use super::blocks::{mixtral_experts, plain};
use super::{FeedForward, INTERMEDIATE, Traits, USUAL};

pub(super) const TRAITS: Traits = Traits {
    name: "mixtral",
    types: &["mixtral"],
    classes: &["MixtralForCausalLM"],
    feed_forward: FeedForward::Experts,
    default_head_dim: true,
    words: &[INTERMEDIATE],
    rows: |target| plain(target, mixtral_experts),
    ..USUAL
};
