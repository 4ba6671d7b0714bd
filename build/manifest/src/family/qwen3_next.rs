//! `qwen3_next`: as `qwen3_5_moe`, with the inputs of Gated DeltaNet in two tensors.

use super::blocks::{hybrid, interleaved_gdn, shared_expert};
use super::{FeedForward, MOE, Mixers, QWEN_WINDOW, Traits};
use crate::table::Row;
use crate::target::Target;

pub(super) const TRAITS: Traits = Traits {
    name: "qwen3_next",
    types: &["qwen3_next"],
    classes: &["Qwen3NextForCausalLM"],
    mixers: Mixers::Hybrid,
    feed_forward: FeedForward::SharedExpert,
    gated: true,
    normed: true,
    plus_one: true,
    default_head_dim: false,
    states_norm: false,
    window_switch: QWEN_WINDOW,
    words: MOE,
    rows,
};

fn rows(target: &Target) -> Vec<Row> {
    hybrid(target, interleaved_gdn, shared_expert)
}
