//! `sliding`: attention with normed queries and keys, over a window in some layers, over all
//! positions in others, and an MLP in every layer. No library's: it is for drawn models, which try
//! layers of two shapes.

use super::{GLOBAL, Mixers, Traits, USUAL};

pub(super) const TRAITS: Traits = Traits {
    name: "sliding",
    types: &["sliding"],
    classes: &["SlidingForCausalLM"],
    mixers: Mixers::Sliding,
    attention: &GLOBAL,
    normed: true,
    ..USUAL
};
