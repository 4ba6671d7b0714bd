//! `gemma3`: attention with normed queries and keys, over a window in most layers, and an MLP in
//! every layer. The results of attention and MLP are normed before they are added.

use super::{Activation, Mixers, Scale, Switch, Traits, USUAL};
use crate::numbers::ROPE_THETA;

pub(super) const TRAITS: Traits = Traits {
    name: "gemma3",
    types: &["gemma3_text"],
    classes: &["Gemma3ForCausalLM"],
    mixers: Mixers::Sliding,
    words: &[(
        ROPE_THETA,
        &["/rope_parameters/full_attention/rope_theta", "/rope_theta"],
    )],
    activation: Activation::GeluTanh,
    scale: Scale::Stated,
    tied: true,
    has: &[
        Switch::Normed,
        Switch::Sandwiched,
        Switch::ScaledEmbedding,
        Switch::PlusOne,
    ],
    ..USUAL
};
