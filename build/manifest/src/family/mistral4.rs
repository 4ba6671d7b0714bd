//! `mistral4`: attention over latents, routed experts and a shared one. Tensors have the names of
//! the publisher's own code.

use std::borrow::Cow;

use super::blocks::{Place, experts, plain};
use super::{FeedForward, Switch, Traits, USUAL};
use crate::table::{Role, Row};
use crate::target::Target;

pub(super) const TRAITS: Traits = Traits {
    name: "mistral4",
    types: &["mistral4", "mistral3"],
    classes: &["Mistral4ForCausalLM", "Mistral3ForConditionalGeneration"],
    feed_forward: FeedForward::UngatedShared,
    words: &[
        ("moe.experts", &["/n_routed_experts", "/num_local_experts"]),
        ("moe.shared_intermediate", &["/n_shared_experts"]),
    ],
    rows: |target| {
        let mut rows = plain(target, ungated_shared);
        for row in &mut rows {
            let name = row.name.to_string();
            let renamed = NAMES
                .iter()
                .fold(name, |name, [usual, own]| name.replace(usual, own));
            row.name = Cow::Owned(renamed);
        }
        rows
    },
    has: &[Switch::Latent],
    ..USUAL
};

/// Parts of usual tensor names and their replacements, applied in this order.
const NAMES: &[[&str; 2]] = &[
    ["model.embed_tokens", "tok_embeddings"],
    ["model.norm", "norm"],
    ["lm_head", "output"],
    ["model.layers", "layers"],
    ["input_layernorm", "attention_norm"],
    ["post_attention_layernorm", "ffn_norm"],
    ["self_attn.q_a_proj", "attention.wq_a"],
    ["self_attn.q_a_layernorm", "attention.q_a_norm"],
    ["self_attn.q_b_proj", "attention.wq_b"],
    ["self_attn.kv_a_proj_with_mqa", "attention.wkv_a_with_mqa"],
    ["self_attn.kv_a_layernorm", "attention.kv_a_norm"],
    ["self_attn.kv_b_proj", "attention.wkv_b"],
    ["self_attn.o_proj", "attention.wo"],
    ["mlp.shared_experts", "shared_experts"],
    ["mlp.experts", "experts"],
    ["gate_proj", "w1"],
    ["down_proj", "w2"],
    ["up_proj", "w3"],
    ["mlp.gate", "gate"],
    ["mlp", "feed_forward"],
];

/// Router, routed experts and the shared expert, under DeepSeek's names.
fn ungated_shared(target: &Target, place: &Place) -> Vec<Row> {
    let (shared, hidden) = (target.model.moe().shared(), target.model.hidden);
    let block = place.within("mlp.shared_experts");
    let mut rows = experts(target, place);
    rows.extend([
        block.matrix(Role::SharedGate, "gate_proj", shared, hidden),
        block.matrix(Role::SharedUp, "up_proj", shared, hidden),
        block.matrix(Role::SharedDown, "down_proj", hidden, shared),
    ]);
    rows
}
