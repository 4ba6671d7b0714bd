//! `sliding`: attention with normed queries and keys, over a window in some layers and over all
//! positions in others, and an MLP in every layer. It is no published family: tests draw models of
//! it, whose layers have two shapes.

use super::{
    GLOBAL_HEAD_DIM, GLOBAL_KV_HEADS, GLOBAL_THETA, GLOBAL_TURNED, Mixers, Switch, Traits, USUAL,
};

pub(super) const TRAITS: Traits = Traits {
    name: "sliding",
    types: &["sliding"],
    classes: &["SlidingForCausalLM"],
    mixers: Mixers::Sliding,
    words: &[
        GLOBAL_KV_HEADS,
        GLOBAL_HEAD_DIM,
        GLOBAL_TURNED,
        GLOBAL_THETA,
    ],
    has: &[Switch::Normed],
    ..USUAL
};
