//! `qwen3_5`: layers of Gated DeltaNet and of gated attention, an MLP in every layer.

use super::blocks::{experts, hybrid};
use super::recurrent::{GDN, gdn};
use super::{Mixers, QWEN_WINDOW, Switch, Traits, USUAL};

pub(super) const TRAITS: Traits = Traits {
    name: "qwen3_5",
    types: &["qwen3_5_text", "qwen3_5"],
    classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    mixers: Mixers::Hybrid,
    recurs: Some(&GDN),
    window_switch: QWEN_WINDOW,
    rows: |target| hybrid(target, gdn, experts),
    has: &[Switch::Gated, Switch::Normed, Switch::PlusOne],
    ..USUAL
};
