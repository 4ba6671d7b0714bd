//! `qwen3_next`: as `qwen3_5_moe`, with the inputs of Gated DeltaNet in two tensors.

use super::blocks::{hybrid, interleaved_gdn, shared_expert};
use super::{FeedForward, Mixers, QWEN_WINDOW, Switch, Traits, USUAL};

pub(super) const TRAITS: Traits = Traits {
    name: "qwen3_next",
    types: &["qwen3_next"],
    classes: &["Qwen3NextForCausalLM"],
    mixers: Mixers::Hybrid,
    feed_forward: FeedForward::SharedExpert,
    window_switch: QWEN_WINDOW,
    rows: |target| hybrid(target, interleaved_gdn, shared_expert),
    has: &[Switch::Gated, Switch::Normed, Switch::PlusOne],
    ..USUAL
};
