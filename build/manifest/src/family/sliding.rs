//! `sliding`: attention with normed queries and keys, over a window in some layers, over all
//! positions in others, and an MLP in every layer. No library's: it is for drawn models, which try
//! layers of two shapes.

use super::blocks::{experts, plain};
use super::{FeedForward, MLP, Mixers, Traits};
use crate::table::Row;
use crate::target::Target;

pub(super) const TRAITS: Traits = Traits {
    name: "sliding",
    types: &["sliding"],
    classes: &["SlidingForCausalLM"],
    mixers: Mixers::Sliding,
    feed_forward: FeedForward::Mlp,
    gated: false,
    normed: true,
    plus_one: false,
    default_head_dim: false,
    states_norm: false,
    window_switch: None,
    words: MLP,
    rows,
};

fn rows(target: &Target) -> Vec<Row> {
    plain(target, experts)
}
