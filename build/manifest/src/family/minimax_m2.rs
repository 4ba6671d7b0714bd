//! `minimax_m2`: attention whose queries and keys are normed over all heads of a row, and experts
//! that a corrected sigmoid chooses in every layer.

use super::blocks::{minimax_experts, plain};
use super::{
    ATTENTION, AttentionWords, EXPERTS, FeedForward, ROTARY_DIM, Switch, Traits, USUAL, Words, word,
};

/// Words of attention: elements that turn, or their share.
const TURNED: AttentionWords = AttentionWords {
    rotary_dim: word(
        "attention.rotary_dim",
        &[ROTARY_DIM, "/rope_parameters/partial_rotary_factor"],
    ),
    ..ATTENTION
};

pub(super) const TRAITS: Traits = Traits {
    name: "minimax_m2",
    types: &["minimax_m2"],
    classes: &["MiniMaxM2ForCausalLM"],
    attention: &TURNED,
    feed_forward: FeedForward::Experts,
    words: Words {
        experts: EXPERTS,
        intermediate: "/intermediate_size",
    },
    rows: |target| plain(target, minimax_experts),
    has: &[Switch::RowsNormed, Switch::Sigmoid],
    ..USUAL
};
