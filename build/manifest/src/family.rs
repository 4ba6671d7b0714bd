//! Families of models: what of a model follows from its family alone, and which tensors its
//! checkpoints have.

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

/// Layer math that a model follows, and the names of its tensors: a file of `family/` each.
#[derive(Clone, Copy)]
pub struct Family(&'static Traits);

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
    /// The mixer among them that keeps a state of each sequence.
    pub recurs: Option<&'static Recurs>,
    /// Part of a layer behind its mixer.
    pub feed_forward: FeedForward,
    /// Function of gate and up of an MLP, or of experts.
    pub activation: Activation,
    /// Number whose root attention's scores are divided by.
    pub scale: Scale,
    /// Switches that are on.
    pub has: &'static [Switch],
    /// The head is the embedding table where configurations do not say.
    pub tied: bool,
    /// Configurations need not state an attention head's width where it is the hidden width's
    /// share.
    pub default_head_dim: bool,
    /// Configurations must state that weights of experts are normed: the library would not.
    pub states_norm: bool,
    /// Switch of the window of positions, where the library has one: off, it ignores the window.
    pub window_switch: Option<&'static str>,
    /// Statements that its configurations alone make about the layers' math.
    pub stated: &'static [Stated],
    /// Numbers that its configurations have other words for than most.
    pub words: &'static [Word],
    /// Tensors of a checkpoint, matrices in BF16.
    rows: fn(&Target) -> Vec<Row>,
}

/// Facts of most families.
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
    /// Attention in every layer that does not recur.
    Attention,
    /// Gated DeltaNet in some layers, attention in others.
    Hybrid,
    /// Attention over a window in some layers, over all positions in others.
    Sliding,
    /// Attention in every layer, in one shape but for the window.
    Windowed,
    /// Mamba-2, attention over all positions or nothing; what follows is nothing, or alone.
    Mamba,
}

impl Mixers {
    /// Whether some layers attend over a window.
    pub(crate) fn slide(self) -> bool {
        matches!(self, Mixers::Sliding | Mixers::Windowed)
    }

    /// Whether models may have a layer of multi-token prediction.
    pub(crate) fn predict(self) -> bool {
        matches!(self, Mixers::Hybrid | Mixers::Mamba)
    }
}

/// Numbers whose root attention's scores are divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Elements of a head.
    Head,
    /// A fact of the model.
    Stated,
    /// Scores are as they are.
    One,
}

/// Functions of gate and up, as `shapes::Activation` of the server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    Silu,
    GeluTanh,
    Clamped,
    /// Squares of positive ups; there is no gate.
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

    /// Names of the gate's function in configurations.
    pub(crate) fn words(self) -> &'static [&'static str] {
        match self {
            Activation::Silu | Activation::Clamped => &["silu", "swish"],
            Activation::GeluTanh => &["gelu_pytorch_tanh"],
            Activation::Relu2 => &["relu2"],
        }
    }
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
    /// Routed experts, and one that every row visits, without a gate.
    UngatedShared,
    /// Routed experts, and one beside them that every row visits with weight 1.
    ExpertBeside,
}

impl FeedForward {
    /// The part in layers of which the manifest does not say it.
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

/// Key of a number, and pointers to it in configurations, today's first.
pub(crate) type Word = (&'static str, &'static [&'static str]);

impl Traits {
    /// Words of the family for a number, if it has some of its own.
    pub(crate) fn word(&self, key: &str) -> Option<&'static [&'static str]> {
        let word = self.words.iter().find(|(its, _)| *its == key);
        word.map(|(_, pointers)| *pointers)
    }
}

/// Words for layers over all positions beside those with a window, whose heads are others: pairs
/// that turn, and the base of their frequencies.
const GLOBAL_KV_HEADS: Word = ("attention.kv_heads", &["/num_global_key_value_heads"]);
const GLOBAL_HEAD_DIM: Word = ("attention.head_dim", &["/global_head_dim"]);
const GLOBAL_TURNED: Word = (
    TURNED_PAIRS,
    &["/rope_parameters/full_attention/partial_rotary_factor"],
);
const GLOBAL_THETA: Word = (ROPE_THETA, &["/rope_parameters/full_attention/rope_theta"]);

/// Inner width of experts in models without MLPs.
const INTERMEDIATE: Word = ("moe.intermediate", &["/intermediate_size"]);

/// Switch of the window in Qwen's configurations.
const QWEN_WINDOW: Option<&str> = Some("/use_sliding_window");

/// The families of some files.
macro_rules! families {
    ($($name:ident)*) => {
        impl Family {
            /// Each of them.
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

    /// Parts of the layers' math that the model has, in words. Models with the same words differ in
    /// sizes and names.
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

    /// Every tensor that the target's checkpoint has beside a vision tower, matrices in BF16: the
    /// leaf's rules say what they are.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows = (self.traits().rows)(self);
        rows.retain(|row| row.sites.iter().next().is_some());
        rows
    }
}
