//! `llama`: attention and an MLP in every layer; Mistral too.

use super::blocks::{experts, plain};
use super::{FeedForward, MLP, Mixers, Traits};
use crate::table::Row;
use crate::target::Target;

pub(super) const TRAITS: Traits = Traits {
    name: "llama",
    types: &["llama", "mistral"],
    classes: &["LlamaForCausalLM", "MistralForCausalLM"],
    mixers: Mixers::Attention,
    feed_forward: FeedForward::Mlp,
    gated: false,
    normed: false,
    plus_one: false,
    default_head_dim: true,
    states_norm: false,
    window_switch: None,
    words: MLP,
    rows,
};

fn rows(target: &Target) -> Vec<Row> {
    plain(target, experts)
}
