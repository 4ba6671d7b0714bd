//! `gpt_oss`: attention with sinks, over a window in every other layer, and experts of MXFP4. Each
//! product has a bias; the gate of an expert is clamped.

use super::blocks::{biased, gpt_oss_experts, plain};
use super::{Activation, FeedForward, INTERMEDIATE, Mixers, Switch, Traits, USUAL};

pub(super) const TRAITS: Traits = Traits {
    name: "gpt_oss",
    types: &["gpt_oss"],
    classes: &["GptOssForCausalLM"],
    mixers: Mixers::Windowed,
    feed_forward: FeedForward::Experts,
    activation: Activation::Clamped,
    words: &[INTERMEDIATE],
    rows: |target| {
        let mut rows = plain(target, gpt_oss_experts);
        rows.extend(biased(target));
        rows
    },
    has: &[Switch::Biased, Switch::Sinks],
    ..USUAL
};
