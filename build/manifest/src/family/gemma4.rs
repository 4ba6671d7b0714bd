//! `gemma4`: blocks of `gemma3`. Layers over all positions have heads of another shape, and their
//! values are the keys before the keys' norm; values are normed; each layer ends in a factor of the
//! hidden states. Some models have experts beside every layer's MLP.

use std::borrow::Cow;

use super::blocks::{GATED, Place, named_experts, plain, stacked_experts};
use super::{
    Activation, GLOBAL_HEAD_DIM, GLOBAL_KV_HEADS, GLOBAL_THETA, GLOBAL_TURNED, Mixers, Scale,
    Switch, Traits, USUAL,
};
use crate::table::{Role, Row};
use crate::target::Target;

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
    rows: |target| plain(target, experts),
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

/// Router and experts of Gemma 4, the norms around experts, and the norm after the MLP beside them.
fn experts(target: &Target, place: &Place) -> Vec<Row> {
    let checkpoint = target.checkpoint();
    let mut rows = match checkpoint.is_some_and(|checkpoint| !checkpoint.stacked_experts.is_empty())
    {
        true => stacked_experts(target, place, "experts"),
        false => named_experts(target, place, "moe", GATED),
    };
    let router = rows.iter_mut().find(|row| row.role == Role::Router);
    router.expect("experts have a router").name =
        Cow::Owned(format!("{}router.proj", place.prefix));
    let (hidden, experts) = ([target.model.hidden], [target.model.moe().experts]);
    let norm = |role, name| place.vector(role, name, &hidden);
    rows.extend([
        norm(Role::RouterNorm, "router.scale"),
        place.vector(Role::ExpertScales, "router.per_expert_scale", &experts),
        norm(Role::MlpNorm, "post_feedforward_layernorm_1.weight"),
        norm(Role::ExpertsInputNorm, "pre_feedforward_layernorm_2.weight"),
        norm(Role::ExpertsNorm, "post_feedforward_layernorm_2.weight"),
    ]);
    rows
}
