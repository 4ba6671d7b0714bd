//! `sliding`: attention with normed queries and keys, over a window in some layers, over all
//! positions in others, and an MLP in every layer. No library's: it is for drawn models, which try
//! layers of two shapes.

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
