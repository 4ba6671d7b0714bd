//! `gemma4`: blocks of `gemma3`. Layers over all positions have heads of their own, whose values
//! are keys before these are normed; values are normed; each layer scales the hidden states. Some
//! models have experts beside the MLP of each layer.

use super::blocks::{gemma4_experts, plain};
use super::{
    Activation, GLOBAL_HEAD_DIM, GLOBAL_KV_HEADS, GLOBAL_THETA, GLOBAL_TURNED, Mixers, Scale,
    Switch, Traits, USUAL,
};

pub(super) const TRAITS: Traits = Traits {
    name: "gemma4",
    types: &["gemma4_text", "gemma4"],
    classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    mixers: Mixers::Sliding,
    activation: Activation::GeluTanh,
    words: &[
        GLOBAL_KV_HEADS,
        GLOBAL_HEAD_DIM,
        GLOBAL_TURNED,
        GLOBAL_THETA,
        ("moe.experts_per_token", &["/top_k_experts"]),
    ],
    scale: Scale::One,
    tied: true,
    rows: |target| plain(target, gemma4_experts),
    has: &[
        Switch::Normed,
        Switch::Sandwiched,
        Switch::ScaledEmbedding,
        Switch::ValuesNormed,
        Switch::KeysAreValues,
        Switch::LayerScalars,
        Switch::Both,
        Switch::ExpertsScaled,
    ],
    ..USUAL
};
