//! Tensors of the blocks that families are made of, under the names that most of them give.

use std::borrow::Cow;

use crate::schema::model::{Mixer, Model};
use crate::table::{Format, Kind, Role, Row, Run, Sites};
use crate::target::Target;

/// Layers of one kind, and what the names of their tensors begin with.
pub(super) struct Place {
    prefix: &'static str,
    sites: Sites,
}

impl Place {
    /// The decoder's layers with `mixer`, or all of them.
    pub(super) fn decoder(target: &Target, mixer: Option<Mixer>) -> Place {
        let mixers = target.mixers().into_iter().enumerate();
        let layers = mixers.filter(|(_, each)| mixer.is_none_or(|mixer| mixer == *each));
        Place {
            prefix: "model.layers.{layer}",
            sites: Sites::Layers(layers.map(|(layer, _)| layer).collect()),
        }
    }

    /// The layer of multi-token prediction; nowhere if the model has none.
    pub(super) fn prediction(model: &Model) -> Place {
        let none = Sites::Layers(Cow::Borrowed(&[]));
        Place {
            prefix: "mtp.layers.0",
            sites: if model.mtp.layers > 0 {
                Sites::Prediction
            } else {
                none
            },
        }
    }

    fn matrix(&self, role: Role, name: &str, n: u64, k: u64) -> Row {
        let name = format!("{}.{name}", self.prefix);
        matrix(role, name, self.sites.clone(), [n, k])
    }

    fn vector(&self, role: Role, name: &str, shape: &[u64], plus_one: bool) -> Row {
        let name = format!("{}.{name}", self.prefix);
        vector(role, name, self.sites.clone(), shape, plus_one)
    }

    fn unused(&self, role: Role, name: &str) -> Row {
        Row {
            kind: Kind::Unused,
            ..self.vector(role, name, &[], false)
        }
    }
}

fn sizes(sizes: &[u64]) -> Cow<'static, [usize]> {
    sizes.iter().map(|&size| size as usize).collect()
}

/// `count` rows from `first` on, of `total`.
fn run(total: u64, first: u64, count: u64) -> Run {
    Run {
        groups: 1,
        stride: total as usize,
        first: first as usize,
        rows: count as usize,
    }
}

fn matrix(role: Role, name: impl Into<String>, sites: Sites, [n, k]: [u64; 2]) -> Row {
    Row {
        role,
        name: Cow::Owned(name.into()),
        sites,
        copies: 1,
        shape: sizes(&[n, k]),
        runs: Cow::Owned(vec![run(n, 0, n)]),
        kind: Kind::Matrix(Format::Bf16),
    }
}

fn vector(role: Role, name: impl Into<String>, sites: Sites, shape: &[u64], plus_one: bool) -> Row {
    Row {
        role,
        name: Cow::Owned(name.into()),
        sites,
        copies: 1,
        shape: sizes(shape),
        runs: Cow::Borrowed(&[]),
        kind: Kind::Vector { plus_one },
    }
}

/// Embedding, last norm and head.
pub(super) fn ends(model: &Model) -> Vec<Row> {
    let table = [model.vocab, model.hidden];
    let mut rows = vec![
        matrix(Role::Embedding, "model.embed_tokens", Sites::Whole, table),
        vector(
            Role::FinalNorm,
            "model.norm.weight",
            Sites::Whole,
            &[model.hidden],
            true,
        ),
    ];
    if !model.tied_head {
        rows.push(matrix(Role::Head, "lm_head", Sites::Whole, table));
    }
    rows
}

/// Norms before a layer's mixer and before its MLP.
pub(super) fn norms(model: &Model, place: &Place) -> Vec<Row> {
    let norm = |role, name| place.vector(role, name, &[model.hidden], true);
    vec![
        norm(Role::InputNorm, "input_layernorm.weight"),
        norm(Role::PostNorm, "post_attention_layernorm.weight"),
    ]
}

/// Grouped-query attention.
pub(super) fn attention(model: &Model, place: &Place) -> Vec<Row> {
    let (attention, hidden) = (&model.attention, model.hidden);
    let (q, kv, o) = (
        attention.q_rows(),
        attention.kv_rows(),
        attention.o_columns(),
    );
    let norm = |role, name| place.vector(role, name, &[attention.head_dim], true);
    vec![
        place.matrix(Role::Query, "self_attn.q_proj", q, hidden),
        place.matrix(Role::Key, "self_attn.k_proj", kv, hidden),
        place.matrix(Role::Value, "self_attn.v_proj", kv, hidden),
        place.matrix(Role::Output, "self_attn.o_proj", hidden, o),
        norm(Role::QueryNorm, "self_attn.q_norm.weight"),
        norm(Role::KeyNorm, "self_attn.k_norm.weight"),
        place.unused(Role::KeyScale, "self_attn.k_proj.k_scale"),
        place.unused(Role::ValueScale, "self_attn.v_proj.v_scale"),
    ]
}

/// Gated DeltaNet with a projection for each of its inputs.
pub(super) fn gdn(model: &Model, place: &Place) -> Vec<Row> {
    let (gdn, hidden) = (&model.gdn, model.hidden);
    let (qkv, z, heads) = (gdn.qkv_rows(), gdn.z_rows(), gdn.value_heads);
    let vector = |role, name, shape: &[u64]| place.vector(role, name, shape, false);
    vec![
        place.matrix(Role::GdnQkv, "linear_attn.in_proj_qkv", qkv, hidden),
        place.matrix(Role::GdnGate, "linear_attn.in_proj_z", z, hidden),
        place.matrix(Role::GdnBeta, "linear_attn.in_proj_b", heads, hidden),
        place.matrix(Role::GdnDecay, "linear_attn.in_proj_a", heads, hidden),
        place.matrix(Role::GdnOutput, "linear_attn.out_proj", hidden, z),
        vector(
            Role::GdnConv,
            "linear_attn.conv1d.weight",
            &[qkv, 1, gdn.conv_kernel],
        ),
        vector(Role::GdnDecayRate, "linear_attn.A_log", &[heads]),
        vector(Role::GdnDecayBias, "linear_attn.dt_bias", &[heads]),
        vector(Role::GdnNorm, "linear_attn.norm.weight", &[gdn.value_dim]),
    ]
}

/// Router, routed experts, and the shared one.
pub(super) fn moe(target: &Target, place: &Place) -> Vec<Row> {
    let (moe, hidden) = (&target.model.moe, target.model.hidden);
    let checkpoint = target.checkpoint();
    let mut rows = match checkpoint.is_some_and(|checkpoint| checkpoint.stacked_experts) {
        true => stacked_experts(&target.model, place),
        false => experts(&target.model, place),
    };
    let shared = moe.shared_intermediate;
    let named = |role, name: &str, n, k| place.matrix(role, &format!("mlp.{name}"), n, k);
    rows.extend([
        named(Role::Router, "gate", moe.experts, hidden),
        named(Role::SharedGate, "shared_expert.gate_proj", shared, hidden),
        named(Role::SharedUp, "shared_expert.up_proj", shared, hidden),
        named(Role::SharedDown, "shared_expert.down_proj", hidden, shared),
        named(Role::SharedRouter, "shared_expert_gate", 1, hidden),
    ]);
    rows
}

/// A tensor for each matrix of each expert.
fn experts(model: &Model, place: &Place) -> Vec<Row> {
    let (inner, hidden) = (model.moe.intermediate, model.hidden);
    let expert = |role, name: &str, n, k| Row {
        copies: model.moe.experts as usize,
        ..place.matrix(role, &format!("mlp.experts.{{expert}}.{name}"), n, k)
    };
    vec![
        expert(Role::ExpertGate, "gate_proj", inner, hidden),
        expert(Role::ExpertUp, "up_proj", inner, hidden),
        expert(Role::ExpertDown, "down_proj", hidden, inner),
    ]
}

/// Two tensors for all experts: gate rows come before those of up.
fn stacked_experts(model: &Model, place: &Place) -> Vec<Row> {
    let (inner, hidden, copies) = (model.moe.intermediate, model.hidden, model.moe.experts);
    let part = |role, name: &str, [n, k]: [u64; 2], [first, count]: [u64; 2]| Row {
        copies: copies as usize,
        shape: sizes(&[copies, n, k]),
        runs: Cow::Owned(vec![run(n, first, count)]),
        ..place.matrix(role, &format!("mlp.experts.{name}"), n, k)
    };
    let (both, down) = ([2 * inner, hidden], [hidden, inner]);
    vec![
        part(Role::ExpertGate, "gate_up_proj", both, [0, inner]),
        part(Role::ExpertUp, "gate_up_proj", both, [inner, inner]),
        part(Role::ExpertDown, "down_proj", down, [0, hidden]),
    ]
}

/// What surrounds the layer of multi-token prediction.
pub(super) fn prediction(model: &Model, place: &Place) -> Vec<Row> {
    let (hidden, sites) = (model.hidden, &place.sites);
    let norm = |role, name: &str| vector(role, name, sites.clone(), &[hidden], true);
    let fusion = [hidden, 2 * hidden];
    vec![
        norm(Role::EmbeddingNorm, "mtp.pre_fc_norm_embedding.weight"),
        norm(Role::HiddenNorm, "mtp.pre_fc_norm_hidden.weight"),
        matrix(Role::Fusion, "mtp.fc", sites.clone(), fusion),
        norm(Role::FinalNorm, "mtp.norm.weight"),
    ]
}
