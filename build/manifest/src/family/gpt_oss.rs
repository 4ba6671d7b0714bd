//! `gpt_oss`: attention with sinks, over a window in every other layer, and MXFP4 experts. Each
//! product has a bias; an expert's gate is clamped.

use std::borrow::Cow;

use super::blocks::{Place, plain, stacked_experts};
use super::{Activation, FeedForward, INTERMEDIATE, Mixers, Switch, Traits, USUAL};
use crate::schema::model::FeedForward as Part;
use crate::table::{Role, Row, Run};
use crate::target::Target;

pub(super) const TRAITS: Traits = Traits {
    name: "gpt_oss",
    types: &["gpt_oss"],
    classes: &["GptOssForCausalLM"],
    mixers: Mixers::Windowed,
    feed_forward: FeedForward::Experts,
    activation: Activation::Clamped,
    words: &[INTERMEDIATE],
    rows: |target| {
        let mut rows = plain(target, experts);
        rows.extend(biased(target));
        rows
    },
    has: &[Switch::Biased, Switch::Sinks],
    ..USUAL
};

/// Router and experts of gpt-oss: rows of gate and up alternate in one tensor.
fn experts(target: &Target, place: &Place) -> Vec<Row> {
    let mut rows = stacked_experts(target, place, "mlp.experts");
    for row in &mut rows {
        let inner = row.n();
        let turn = |first| Run {
            groups: inner,
            stride: 2,
            first,
            rows: 1,
        };
        match row.role {
            Role::Router => row.name = Cow::Owned(format!("{}mlp.router", place.prefix)),
            Role::ExpertGate => row.runs = Cow::Owned(vec![turn(0)]),
            Role::ExpertUp => row.runs = Cow::Owned(vec![turn(1)]),
            _ => {}
        }
    }
    rows
}

/// Biases of attention, router and experts, and the attention sinks.
fn biased(target: &Target) -> Vec<Row> {
    let (model, moe) = (&target.model, target.model.moe());
    let (hidden, experts) = (model.hidden, moe.experts);
    let mut rows = Vec::new();
    for each in target.attentions() {
        let layers = Place::mixing(target, |mixer| mixer == each.mixer);
        let block = layers.within("self_attn");
        let own = |role, name, size| block.vector(role, name, &[size]);
        let (kv, o) = (each.facts.kv_rows(), each.facts.o_columns());
        rows.extend([
            own(Role::QueryBias, "q_proj.bias", o),
            own(Role::KeyBias, "k_proj.bias", kv),
            own(Role::ValueBias, "v_proj.bias", kv),
            own(Role::OutputBias, "o_proj.bias", hidden),
            own(Role::Sinks, "sinks", each.facts.heads),
        ]);
    }
    let block = Place::feeding(target, |part| part == Part::Moe).within("mlp");
    let (both, down) = ([experts, 2 * moe.intermediate], [experts, hidden]);
    rows.extend([
        block.vector(Role::RouterBias, "router.bias", &[experts]),
        block.vector(Role::ExpertInBias, "experts.gate_up_proj_bias", &both),
        block.vector(Role::ExpertDownBias, "experts.down_proj_bias", &down),
    ]);
    rows
}
