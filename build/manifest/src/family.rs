//! Families of models: the facts that hold for every model of a family, and the tensors of its
//! checkpoints.

mod blocks;
mod gemma3;
mod gemma4;
mod gpt_oss;
mod llama;
mod minimax_m2;
mod mistral4;
mod mixtral;
mod nemotron_h;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod recurrent;
mod sliding;
mod switches;

use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[cfg(test)]
pub(crate) use self::recurrent::GDN;
pub(crate) use self::recurrent::MAMBA;
pub use self::recurrent::Recurs;
use self::switches::stated;
pub(crate) use self::switches::{Stated, Switch};
use crate::numbers::{ROPE_THETA, TURNED_PAIRS};
use crate::schema::model as schema;
use crate::table::Row;
use crate::target::Target;

/// A family of models: layer math and names of tensors. Each has a file in `family/`.
#[derive(Clone, Copy)]
pub struct Family(&'static Traits);

/// Facts that hold for every model of a family.
pub(crate) struct Traits {
    /// Name in manifests.
    pub name: &'static str,
    /// `model_type` of the family's configurations, the text model's first.
    pub types: &'static [&'static str],
    /// `architectures` of the family's configurations, the text model's first.
    pub classes: &'static [&'static str],
    /// Token mixers of the family's layers.
    pub mixers: Mixers,
    /// The mixer of the family that has a recurrent state for each sequence.
    pub recurs: Option<&'static Recurs>,
    /// Part of a layer after its mixer.
    pub feed_forward: FeedForward,
    /// Activation of MLPs and experts.
    pub activation: Activation,
    /// Number by whose square root attention scores are divided.
    pub scale: Scale,
    /// Switches of layer math that are on.
    pub has: &'static [Switch],
    /// Whether the head is the embedding table where configurations do not say.
    pub tied: bool,
    /// Whether configurations may omit the width of a head that is hidden width over heads.
    pub default_head_dim: bool,
    /// Whether configurations must state that expert weights are normalised: there is no default.
    pub states_norm: bool,
    /// Pointer of the switch that turns the window of positions on, if transformers has one.
    pub window_switch: Option<&'static str>,
    /// Statements about layer math that only this family's configurations make.
    pub stated: &'static [Stated],
    /// Numbers with keys of their own in this family's configurations.
    pub words: &'static [Word],
    /// Tensors of a checkpoint, with matrices in BF16.
    rows: fn(&Target) -> Vec<Row>,
}

/// Traits that most families share.
const USUAL: Traits = Traits {
    name: "",
    types: &[],
    classes: &[],
    mixers: Mixers::Attention,
    recurs: None,
    feed_forward: FeedForward::Mlp,
    activation: Activation::Silu,
    scale: Scale::Head,
    has: &[],
    tied: false,
    default_head_dim: false,
    states_norm: false,
    window_switch: None,
    stated: &[],
    words: &[],
    rows: |target| blocks::plain(target, blocks::experts),
};

/// Token mixers of a family's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mixers {
    /// Attention in every layer that has no recurrent mixer.
    Attention,
    /// Gated DeltaNet in some layers, attention in the others.
    Hybrid,
    /// Attention over a window in some layers, over all positions with other heads in other layers.
    Sliding,
    /// Attention in every layer, over a window in some, all with heads of one shape.
    Windowed,
    /// Mamba-2, attention or no mixer; a feed-forward stands alone in its layer.
    Mamba,
}

impl Mixers {
    /// Whether some layers attend over a window and have a shape of their own.
    pub(crate) fn slide(self) -> bool {
        matches!(self, Mixers::Sliding | Mixers::Windowed)
    }

    /// Whether models may have a multi-token-prediction layer.
    pub(crate) fn predict(self) -> bool {
        matches!(self, Mixers::Hybrid | Mixers::Mamba)
    }
}

/// Number by whose square root attention scores are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Width of a head.
    Head,
    /// A number that the manifest states.
    Stated,
    /// One: scores are not divided.
    One,
}

/// Activation of MLPs and experts, as in `shapes::Activation` of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    Silu,
    GeluTanh,
    Clamped,
    /// Squared ReLU of up; there is no gate.
    Relu2,
}

impl Activation {
    /// Name in device code.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Activation::Silu => "silu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::Clamped => "clamped",
            Activation::Relu2 => "relu2",
        }
    }

    /// Names of the activation in configurations.
    pub(crate) fn words(self) -> &'static [&'static str] {
        match self {
            Activation::Silu | Activation::Clamped => &["silu", "swish"],
            Activation::GeluTanh => &["gelu_pytorch_tanh"],
            Activation::Relu2 => &["relu2"],
        }
    }
}

/// Part of a family's layers after the mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeedForward {
    /// One gated MLP.
    Mlp,
    /// Routed experts.
    Experts,
    /// Routed experts, and a shared one whose weight is a gate of the row.
    SharedExpert,
    /// Routed experts, and a shared one without a gate.
    UngatedShared,
    /// Routed experts, and an MLP beside them that counts as a shared expert of weight 1.
    ExpertBeside,
}

impl FeedForward {
    /// The part of a layer whose manifest names none.
    pub(crate) fn usual(self) -> schema::FeedForward {
        match self {
            FeedForward::Mlp => schema::FeedForward::Mlp,
            FeedForward::Experts
            | FeedForward::SharedExpert
            | FeedForward::UngatedShared
            | FeedForward::ExpertBeside => schema::FeedForward::Moe,
        }
    }
}

/// Key of a number, and its pointers in configurations, the present form's first.
pub(crate) type Word = (&'static str, &'static [&'static str]);

impl Traits {
    /// The family's own pointers for a number, if it has some.
    pub(crate) fn word(&self, key: &str) -> Option<&'static [&'static str]> {
        let word = self.words.iter().find(|(its, _)| *its == key);
        word.map(|(_, pointers)| *pointers)
    }
}

/// Number of key-value heads in layers over all positions, where layers with a window have other
/// heads.
const GLOBAL_KV_HEADS: Word = ("attention.kv_heads", &["/num_global_key_value_heads"]);
/// Width of heads in layers over all positions, where layers with a window have other heads.
const GLOBAL_HEAD_DIM: Word = ("attention.head_dim", &["/global_head_dim"]);
/// Rotated share of heads in layers over all positions.
const GLOBAL_TURNED: Word = (
    TURNED_PAIRS,
    &["/rope_parameters/full_attention/partial_rotary_factor"],
);
/// Base of RoPE in layers over all positions.
const GLOBAL_THETA: Word = (ROPE_THETA, &["/rope_parameters/full_attention/rope_theta"]);

/// Inner width of experts in families without MLPs.
const INTERMEDIATE: Word = ("moe.intermediate", &["/intermediate_size"]);

/// Pointer of the window's switch in Qwen's configurations.
const QWEN_WINDOW: Option<&str> = Some("/use_sliding_window");

/// Declares the modules of families, and the list of all.
macro_rules! families {
    ($($name:ident)*) => {
        impl Family {
            /// All families.
            pub(crate) const ALL: &[Family] = &[$(Family(&$name::TRAITS)),*];
            const NAMES: &[&str] = &[$($name::TRAITS.name),*];
        }
    };
}

families! {
    gemma3 gemma4 gpt_oss llama minimax_m2 mistral4 mixtral nemotron_h qwen3 qwen3_5 qwen3_5_moe
    qwen3_moe qwen3_next sliding
}

impl Family {
    pub(crate) const fn traits(self) -> &'static Traits {
        self.0
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Family) -> bool {
        self.0.name == other.0.name
    }
}

impl Serialize for Family {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.0.name)
    }
}

impl<'de> Deserialize<'de> for Family {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Family, D::Error> {
        let name = String::deserialize(from)?;
        let is = |family: &&Family| family.0.name == name;
        let found = Family::ALL.iter().find(is).copied();
        found.ok_or_else(|| Error::unknown_variant(&name, Family::NAMES))
    }
}

impl Target {
    /// Facts of the model's family.
    pub(crate) fn traits(&self) -> &'static Traits {
        self.model.family.traits()
    }

    /// Whether a switch of the family is on.
    pub(crate) fn has(&self, switch: Switch) -> bool {
        self.traits().has(switch)
    }

    /// Parts of layer math that the model has, in words; equal lists mean models that differ in
    /// sizes and names alone.
    pub fn math(&self) -> Vec<String> {
        let Traits {
            mixers,
            feed_forward,
            activation,
            scale,
            has,
            ..
        } = self.traits();
        let each = [
            format!("{mixers:?}"),
            format!("{feed_forward:?}"),
            format!("{activation:?}"),
            format!("{scale:?}"),
        ];
        let on = has.iter().map(|switch| format!("{switch:?}"));
        on.chain(each).collect()
    }

    /// Every tensor of the target's checkpoint but the vision tower's, with matrices in BF16;
    /// format rules replace this.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows = (self.traits().rows)(self);
        rows.retain(|row| row.sites.iter().next().is_some());
        rows
    }
}
