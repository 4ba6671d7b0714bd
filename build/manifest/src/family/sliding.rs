//! `sliding`: attention with normed queries and keys, over a window in some layers, over all
//! positions in others, and an MLP in every layer. No library's: it is for drawn models, which try
//! layers of two shapes.

use super::{GLOBAL, Mixers, Switch, Traits, USUAL};

pub(super) const TRAITS: Traits = Traits {
    name: "sliding",
    types: &["sliding"],
    classes: &["SlidingForCausalLM"],
    mixers: Mixers::Sliding,
    attention: &GLOBAL,
    has: &[Switch::Normed],
    ..USUAL
};
