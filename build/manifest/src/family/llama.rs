//! `llama`: attention and an MLP in every layer; Mistral too.

use super::{Traits, USUAL};

pub(super) const TRAITS: Traits = Traits {
    name: "llama",
    types: &["llama", "mistral"],
    classes: &["LlamaForCausalLM", "MistralForCausalLM"],
    default_head_dim: true,
    ..USUAL
};
