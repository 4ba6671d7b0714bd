//! `qwen3`: attention with normed queries and keys, and an MLP in every layer.

use super::{QWEN_WINDOW, Switch, Traits, USUAL};

pub(super) const TRAITS: Traits = Traits {
    name: "qwen3",
    types: &["qwen3"],
    classes: &["Qwen3ForCausalLM"],
    window_switch: QWEN_WINDOW,
    has: &[Switch::Normed],
    ..USUAL
};
