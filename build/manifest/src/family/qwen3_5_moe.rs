//! `qwen3_5_moe`: layers of Gated DeltaNet and of gated attention, experts in every layer.

use super::blocks::{hybrid, shared_expert};
use super::recurrent::{GDN, gdn};
use super::{FeedForward, Mixers, QWEN_WINDOW, Switch, Traits, USUAL};

pub(super) const TRAITS: Traits = Traits {
    name: "qwen3_5_moe",
    types: &["qwen3_5_moe_text", "qwen3_5_moe"],
    classes: &[
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    ],
    mixers: Mixers::Hybrid,
    recurs: Some(&GDN),
    feed_forward: FeedForward::SharedExpert,
    window_switch: QWEN_WINDOW,
    rows: |target| hybrid(target, gdn, shared_expert),
    has: &[Switch::Gated, Switch::Normed, Switch::PlusOne],
    ..USUAL
};
