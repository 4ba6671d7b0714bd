//! `minimax_m2`: attention whose queries and keys are normed over all heads of a row, and in every
//! layer experts chosen by sigmoid scores with a correction.

use super::blocks::{Place, mixtral_experts, plain};
use super::{FeedForward, INTERMEDIATE, Switch, Traits, USUAL};
use crate::numbers::{ROTARY_DIM, TURNED_ELEMENTS};
use crate::table::{Role, Row};
use crate::target::Target;

pub(super) const TRAITS: Traits = Traits {
    name: "minimax_m2",
    types: &["minimax_m2"],
    classes: &["MiniMaxM2ForCausalLM"],
    feed_forward: FeedForward::Experts,
    words: &[
        INTERMEDIATE,
        (
            ROTARY_DIM,
            &[TURNED_ELEMENTS, "/rope_parameters/partial_rotary_factor"],
        ),
    ],
    rows: |target| plain(target, experts),
    has: &[Switch::RowsNormed, Switch::Sigmoid],
    ..USUAL
};

/// Experts of Mixtral, and the correction of their scores.
fn experts(target: &Target, place: &Place) -> Vec<Row> {
    let name = "block_sparse_moe.e_score_correction_bias";
    let mut rows = mixtral_experts(target, place);
    rows.push(place.vector(Role::Correction, name, &[target.model.moe().experts]));
    rows
}
