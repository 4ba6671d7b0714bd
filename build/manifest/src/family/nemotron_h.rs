//! `nemotron_h`: a layer is Mamba-2, attention without positions, or experts without gates.

use std::borrow::Cow;

use serde_json::json;

use super::blocks::{Place, attention, router, run};
use super::{Activation, FeedForward, MAMBA, Mixers, Switch, Traits, USUAL, stated};
use crate::schema::model::{FeedForward as Part, Mixer};
use crate::table::{Role, Row};
use crate::target::Target;

pub(super) const TRAITS: Traits = Traits {
    name: "nemotron_h",
    types: &["nemotron_h"],
    classes: &["NemotronHForCausalLM"],
    mixers: Mixers::Mamba,
    recurs: Some(&MAMBA),
    feed_forward: FeedForward::ExpertBeside,
    activation: Activation::Relu2,
    words: &[
        ("mtp.layers", &["/num_nextn_predict_layers"]),
        ("moe.experts", &["/n_routed_experts"]),
        (
            "moe.shared_intermediate",
            &["/moe_shared_expert_intermediate_size"],
        ),
    ],
    stated: stated! {
        "/mlp_hidden_act": |_| json!(["relu2"]);
        "/mamba_hidden_act": |_| json!(["silu"]);
        "/use_conv_bias": |_| json!([true]);
        "/mamba_proj_bias": |_| json!([false]);
        "/n_shared_experts": |_| json!([1]);
        "/mtp_hybrid_override_pattern": |_| json!(["*E"]);
        "/mtp_layers_block_type": |_| json!([["full_attention", "moe"]]);
    },
    rows,
    has: &[Switch::Unturned, Switch::Sigmoid],
    ..USUAL
};

/// Tensors of a Nemotron decoder: each layer has one norm and one block.
fn rows(target: &Target) -> Vec<Row> {
    let (vocab, hidden) = (target.model.vocab, target.model.hidden);
    let at = |place: Place| Place {
        prefix: "backbone.layers.{layer}.".into(),
        ..place
    };
    let mixing = |of: fn(Mixer) -> bool| at(Place::mixing(target, of));
    let feeding = at(Place::feeding(target, |part| part == Part::Moe));
    let norm = |place: &Place, role| place.vector(role, "norm.weight", &[hidden]);
    let whole = Place::whole();
    let mut rows = vec![
        whole.matrix(Role::Embedding, "backbone.embeddings", vocab, hidden),
        whole.vector(Role::FinalNorm, "backbone.norm_f.weight", &[hidden]),
        whole.matrix(Role::Head, "lm_head", vocab, hidden),
        norm(&mixing(|mixer| mixer != Mixer::None), Role::InputNorm),
        norm(&feeding, Role::PostNorm),
    ];
    rows.extend(attending(
        target,
        &mixing(|mixer| mixer == Mixer::Attention),
    ));
    rows.extend(mamba(target, &mixing(Mixer::recurs)));
    rows.extend(experts_and_beside(target, &feeding));
    rows.extend(prediction(target));
    rows
}

/// Multi-token prediction: its attention and its experts are layers of their own in the checkpoint.
fn prediction(target: &Target) -> Vec<Row> {
    let [mixing, feeding] = ["mtp.layers.0.", "mtp.layers.1."].map(|prefix| Place {
        prefix: prefix.into(),
        ..Place::prediction(target)
    });
    let hidden = target.model.hidden;
    let norm = |place: &Place, role, name| place.vector(role, name, &[hidden]);
    let mut rows = vec![
        norm(&mixing, Role::EmbeddingNorm, "enorm.weight"),
        norm(&mixing, Role::HiddenNorm, "hnorm.weight"),
        mixing.matrix(Role::Fusion, "eh_proj", hidden, 2 * hidden),
        norm(&mixing, Role::InputNorm, "norm.weight"),
        norm(&feeding, Role::PostNorm, "norm.weight"),
        norm(&feeding, Role::FinalNorm, "final_layernorm.weight"),
    ];
    rows.extend(attending(target, &mixing));
    rows.extend(experts_and_beside(target, &feeding));
    rows
}

/// Attention under the name `mixer`, which every block has in this family.
fn attending(target: &Target, place: &Place) -> Vec<Row> {
    let mut rows = attention(target, place, &target.model.attention);
    for row in &mut rows {
        row.name = Cow::Owned(row.name.replace("self_attn.", "mixer."));
    }
    rows
}

/// Mamba-2: gate, `x`, `B`, `C` and `dt` are rows of one matrix. In memory the convolution's inputs
/// are ordered as in Gated DeltaNet: `C`, `B`, `x`.
fn mamba(target: &Target, place: &Place) -> Vec<Row> {
    let (gdn, hidden) = (target.model.gdn(), target.model.hidden);
    let (values, keys) = (gdn.z_rows(), gdn.key_heads * gdn.key_dim);
    let (channels, heads) = (gdn.qkv_rows(), gdn.value_heads);
    let total = values + channels + heads;
    let mixed = |total, first: u64| {
        let part = |at, count| run(total, first + at, count);
        let [of_x, of_b, of_c] = [
            part(0, values),
            part(values, keys),
            part(values + keys, keys),
        ];
        Cow::Owned(vec![of_c, of_b, of_x])
    };
    let block = place.within("mixer");
    let input = |role, runs| Row {
        runs,
        ..block.matrix(role, "in_proj", total, hidden)
    };
    let alone = |first, count| Cow::Owned(vec![run(total, first, count)]);
    let of_channels = |role, name: &str, shape: &[u64]| Row {
        runs: mixed(channels, 0),
        ..block.vector(role, name, shape)
    };
    let taps = [channels, 1, gdn.conv_kernel];
    vec![
        input(Role::GdnGate, alone(0, values)),
        input(Role::GdnQkv, mixed(total, values)),
        input(Role::TimeStep, alone(values + channels, heads)),
        block.matrix(Role::GdnOutput, "out_proj", hidden, values),
        of_channels(Role::GdnConv, "conv1d.weight", &taps),
        of_channels(Role::ConvBias, "conv1d.bias", &[channels]),
        block.vector(Role::GdnDecayRate, "A_log", &[heads]),
        block.vector(Role::GdnDecayBias, "dt_bias", &[heads]),
        block.vector(Role::Skip, "D", &[heads]),
        block.vector(Role::GdnNorm, "norm.weight", &[values]),
    ]
}

/// Router, routed experts of two matrices, and the shared expert.
fn experts_and_beside(target: &Target, place: &Place) -> Vec<Row> {
    let (moe, hidden) = (target.model.moe(), target.model.hidden);
    let (inner, shared) = (moe.intermediate, moe.shared());
    let width = moe.latent.unwrap_or(hidden);
    let block = place.within("mixer");
    let expert = |role, name: &str, n, k| Row {
        copies: moe.experts as usize,
        ..block.matrix(role, &format!("experts.{{expert}}.{name}"), n, k)
    };
    let correction = "gate.e_score_correction_bias";
    let mut rows = vec![
        router(target, place, "mixer"),
        block.vector(Role::Correction, correction, &[moe.experts]),
        expert(Role::ExpertUp, "up_proj", inner, width),
        expert(Role::ExpertDown, "down_proj", width, inner),
        block.matrix(Role::MlpUp, "shared_experts.up_proj", shared, hidden),
        block.matrix(Role::MlpDown, "shared_experts.down_proj", hidden, shared),
    ];
    if moe.latent.is_some() {
        rows.extend([
            block.matrix(Role::ExpertsIn, "fc1_latent_proj", width, hidden),
            block.matrix(Role::ExpertsOut, "fc2_latent_proj", hidden, width),
        ]);
    }
    rows
}
