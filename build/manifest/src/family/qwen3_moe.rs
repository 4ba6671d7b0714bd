//! `qwen3_moe`: attention with normed queries and keys, and experts in every layer; the text side
//! of Qwen3-VL too.

use super::blocks::{experts, plain};
use super::{FeedForward, MOE, Mixers, QWEN_WINDOW, Traits};
use crate::table::Row;
use crate::target::Target;

pub(super) const TRAITS: Traits = Traits {
    name: "qwen3_moe",
    types: &["qwen3_moe", "qwen3_vl_moe_text", "qwen3_vl_moe"],
    classes: &["Qwen3MoeForCausalLM", "Qwen3VLMoeForConditionalGeneration"],
    mixers: Mixers::Attention,
    feed_forward: FeedForward::Experts,
    gated: false,
    normed: true,
    plus_one: false,
    default_head_dim: false,
    states_norm: true,
    window_switch: QWEN_WINDOW,
    words: MOE,
    rows,
};

fn rows(target: &Target) -> Vec<Row> {
    plain(target, experts)
}
