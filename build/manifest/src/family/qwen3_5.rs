//! `qwen3_5`: Gated DeltaNet and gated attention in turn, an MLP in every layer.

use super::blocks::{experts, gdn, hybrid};
use super::{FeedForward, MLP, Mixers, QWEN_WINDOW, Traits};
use crate::table::Row;
use crate::target::Target;

pub(super) const TRAITS: Traits = Traits {
    name: "qwen3_5",
    types: &["qwen3_5_text", "qwen3_5"],
    classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    mixers: Mixers::Hybrid,
    feed_forward: FeedForward::Mlp,
    gated: true,
    normed: true,
    plus_one: true,
    default_head_dim: false,
    states_norm: false,
    window_switch: QWEN_WINDOW,
    words: MLP,
    rows,
};

fn rows(target: &Target) -> Vec<Row> {
    hybrid(target, gdn, experts)
}
