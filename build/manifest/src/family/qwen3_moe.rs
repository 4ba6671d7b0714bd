//! `qwen3_moe`: attention with normed queries and keys, and experts in every layer; the text side
//! of Qwen3-VL too.

use super::{FeedForward, QWEN_WINDOW, Switch, Traits, USUAL};

pub(super) const TRAITS: Traits = Traits {
    name: "qwen3_moe",
    types: &["qwen3_moe", "qwen3_vl_moe_text", "qwen3_vl_moe"],
    classes: &["Qwen3MoeForCausalLM", "Qwen3VLMoeForConditionalGeneration"],
    feed_forward: FeedForward::Experts,
    states_norm: true,
    window_switch: QWEN_WINDOW,
    has: &[Switch::Normed],
    ..USUAL
};
