//! `qwen3`: attention with normed queries and keys, and an MLP in every layer.

use super::blocks::{experts, plain};
use super::{FeedForward, MLP, Mixers, QWEN_WINDOW, Traits};
use crate::table::Row;
use crate::target::Target;

pub(super) const TRAITS: Traits = Traits {
    name: "qwen3",
    types: &["qwen3"],
    classes: &["Qwen3ForCausalLM"],
    mixers: Mixers::Attention,
    feed_forward: FeedForward::Mlp,
    gated: false,
    normed: true,
    plus_one: false,
    default_head_dim: false,
    states_norm: false,
    window_switch: QWEN_WINDOW,
    words: MLP,
    rows,
};

fn rows(target: &Target) -> Vec<Row> {
    plain(target, experts)
}
