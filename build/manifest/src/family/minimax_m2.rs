//! `minimax_m2`: attention whose queries and keys are normed over all heads of a row, and experts
//! that a corrected sigmoid chooses in every layer.

use super::blocks::{minimax_experts, plain};
use super::{FeedForward, INTERMEDIATE, Switch, Traits, USUAL};
use crate::numbers::{ROTARY_DIM, TURNED_ELEMENTS};

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
    rows: |target| plain(target, minimax_experts),
    has: &[Switch::RowsNormed, Switch::Sigmoid],
    ..USUAL
};
