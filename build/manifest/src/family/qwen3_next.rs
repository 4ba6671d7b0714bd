//! `qwen3_next`: blocks of `qwen3_5_moe`, with the inputs of Gated DeltaNet in two tensors.

use super::blocks::{Place, hybrid, shared_expert};
use super::recurrent::{GDN, gdn_beside_inputs};
use super::{FeedForward, Mixers, QWEN_WINDOW, Switch, Traits, USUAL};
use crate::table::{Role, Row, Run};
use crate::target::Target;

pub(super) const TRAITS: Traits = Traits {
    name: "qwen3_next",
    types: &["qwen3_next"],
    classes: &["Qwen3NextForCausalLM"],
    mixers: Mixers::Hybrid,
    recurs: Some(&GDN),
    feed_forward: FeedForward::SharedExpert,
    window_switch: QWEN_WINDOW,
    rows: |target| hybrid(target, interleaved_gdn, shared_expert),
    has: &[Switch::Gated, Switch::Normed, Switch::PlusOne],
    ..USUAL
};

/// Gated DeltaNet with two input projections. Their rows are grouped by key head: query, key,
/// values and gates in one, update strengths and decays in the other.
fn interleaved_gdn(target: &Target, place: &Place) -> Vec<Row> {
    let (gdn, hidden) = (target.model.gdn(), target.model.hidden);
    let (key, group) = (gdn.key_dim, gdn.value_heads / gdn.key_heads);
    let value = group * gdn.value_dim;
    let part = |role, name, head: u64, runs: &[[u64; 2]]| {
        let run = |&[first, rows]: &[u64; 2]| Run {
            groups: gdn.key_heads as usize,
            stride: head as usize,
            first: first as usize,
            rows: rows as usize,
        };
        Row {
            runs: runs.iter().map(run).collect(),
            ..place.matrix(role, name, gdn.key_heads * head, hidden)
        }
    };
    let (qkvz, ba) = ("linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba");
    let head = 2 * (key + value);
    let qkv = [[0, key], [key, key], [2 * key, value]];
    let mut rows = gdn_beside_inputs(target, place);
    rows.extend([
        part(Role::GdnQkv, qkvz, head, &qkv),
        part(Role::GdnGate, qkvz, head, &[[2 * key + value, value]]),
        part(Role::GdnBeta, ba, 2 * group, &[[0, group]]),
        part(Role::GdnDecay, ba, 2 * group, &[[group, group]]),
    ]);
    rows
}
