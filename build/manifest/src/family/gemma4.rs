//! `gemma4`: blocks of `gemma3`. Layers over all positions have heads of their own, whose values
//! are keys before these are normed; values are normed; each layer scales the hidden states.

use super::{Activation, GLOBAL, Mixers, Scale, Traits, USUAL};

pub(super) const TRAITS: Traits = Traits {
    name: "gemma4",
    types: &["gemma4_text", "gemma4"],
    classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    mixers: Mixers::Sliding,
    attention: &GLOBAL,
    activation: Activation::GeluTanh,
    normed: true,
    values_normed: true,
    keys_are_values: true,
    sandwiched: true,
    layer_scalars: true,
    scaled_embedding: true,
    scale: Scale::One,
    tied: true,
    ..USUAL
};
