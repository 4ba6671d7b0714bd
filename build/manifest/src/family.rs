//! Families of models: what of a model follows from its family alone, and which tensors its
//! checkpoints have.

mod blocks;
mod llama;
mod mixtral;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;

use crate::schema::model::Family;
use crate::table::Row;
use crate::target::Target;

/// Facts that hold for every model of a family.
pub(crate) struct Traits {
    /// Name in manifests.
    pub name: &'static str,
    /// `model_type` of its configurations, the text model's first.
    pub types: &'static [&'static str],
    /// `architectures` of its configurations, the text model's first.
    pub classes: &'static [&'static str],
    /// Token mixers of its layers.
    pub mixers: Mixers,
    /// Part of a layer behind its mixer.
    pub feed_forward: FeedForward,
    /// Each query comes with a gate of the head's result.
    pub gated: bool,
    /// Queries and keys have an RMS norm of each head.
    pub normed: bool,
    /// Weights of norms are stored less one, but for those of Gated DeltaNet.
    pub plus_one: bool,
    /// Configurations need not state an attention head's width where it is the hidden width's
    /// share.
    pub default_head_dim: bool,
    /// Configurations must state that weights of experts are normed: the library would not.
    pub states_norm: bool,
    /// Words of its configurations for the feed-forward part.
    pub words: Words,
    /// Tensors of a checkpoint, matrices in BF16.
    rows: fn(&Target) -> Vec<Row>,
}

/// Token mixers of a family's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mixers {
    /// Attention in every layer.
    Attention,
    /// Gated DeltaNet in some layers, attention in others.
    Hybrid,
}

/// Part of a family's layers behind the mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeedForward {
    /// One gated MLP.
    Mlp,
    /// Routed experts.
    Experts,
    /// Routed experts, and one that every row visits, times a gate.
    SharedExpert,
}

/// Pointers into a configuration.
pub(crate) struct Words {
    /// Routed experts of a layer.
    pub experts: &'static str,
    /// Inner width of the MLP, or of a routed expert.
    pub intermediate: &'static str,
}

const MLP: Words = Words {
    experts: "/num_experts",
    intermediate: "/intermediate_size",
};

const MOE: Words = Words {
    experts: "/num_experts",
    intermediate: "/moe_intermediate_size",
};

impl Family {
    /// Each of them.
    pub(crate) const ALL: [Family; 7] = [
        Family::Llama,
        Family::Mixtral,
        Family::Qwen3,
        Family::Qwen3Moe,
        Family::Qwen3Next,
        Family::Qwen35,
        Family::Qwen35Moe,
    ];

    pub(crate) const fn traits(self) -> &'static Traits {
        match self {
            Family::Llama => &llama::TRAITS,
            Family::Mixtral => &mixtral::TRAITS,
            Family::Qwen3 => &qwen3::TRAITS,
            Family::Qwen3Moe => &qwen3_moe::TRAITS,
            Family::Qwen3Next => &qwen3_next::TRAITS,
            Family::Qwen35 => &qwen3_5::TRAITS,
            Family::Qwen35Moe => &qwen3_5_moe::TRAITS,
        }
    }
}

impl Target {
    /// Facts of the model's family.
    pub(crate) fn traits(&self) -> &'static Traits {
        self.model.family.traits()
    }

    /// Every tensor that the target's checkpoint has beside a vision tower, matrices in BF16: the
    /// leaf's rules say what they are.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows = (self.traits().rows)(self);
        rows.retain(|row| row.sites.iter().next().is_some());
        rows
    }
}
