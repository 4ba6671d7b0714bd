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
mod sliding;

use crate::schema::model::{self as schema, Family};
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
    /// Words for the attention over all positions.
    pub attention: &'static AttentionWords,
    /// Part of a layer behind its mixer.
    pub feed_forward: FeedForward,
    /// Attention knows where tokens are.
    pub rotary: bool,
    /// Attention is over latents, whose heads are made of them.
    pub latent: bool,
    /// Each query comes with a gate of the head's result.
    pub gated: bool,
    /// Queries and keys have an RMS norm of each head.
    pub normed: bool,
    /// Queries and keys have one norm over all heads of a row.
    pub rows_normed: bool,
    /// Products of attention, router and experts have biases.
    pub biased: bool,
    /// Each query head's softmax counts a learned score beside those of positions.
    pub sinks: bool,
    /// Function of gate and up of an MLP, or of experts.
    pub activation: Activation,
    /// Norms stand behind blocks, too: the result of each is normed before it is added.
    pub sandwiched: bool,
    /// Rows of the embedding are multiplied by the root of their width.
    pub scaled_embedding: bool,
    /// Number whose root attention's scores are divided by.
    pub scale: Scale,
    /// Values have an RMS norm of each head, without weights.
    pub values_normed: bool,
    /// Layers over all positions take values from the projection of keys.
    pub keys_are_values: bool,
    /// Hidden states are multiplied by a number of each layer behind it.
    pub layer_scalars: bool,
    /// Layers may have experts beside their MLP.
    pub both: bool,
    /// Routers' scores are sigmoids, which learned numbers correct in the choice alone.
    pub sigmoid: bool,
    /// The weight of a chosen expert is multiplied by a learned number of its own.
    pub experts_scaled: bool,
    /// Words for the experts that a row visits.
    pub chosen: &'static str,
    /// The head is the embedding table where configurations do not say.
    pub tied: bool,
    /// Weights of norms are stored less one, but for those of Gated DeltaNet.
    pub plus_one: bool,
    /// Configurations need not state an attention head's width where it is the hidden width's
    /// share.
    pub default_head_dim: bool,
    /// Configurations must state that weights of experts are normed: the library would not.
    pub states_norm: bool,
    /// Switch of the window of positions, where the library has one: off, it ignores the window.
    pub window_switch: Option<&'static str>,
    /// Words of its configurations for the feed-forward part.
    pub words: Words,
    /// Tensors of a checkpoint, matrices in BF16.
    rows: fn(&Target) -> Vec<Row>,
}

/// Facts of most families.
const USUAL: Traits = Traits {
    name: "",
    types: &[],
    classes: &[],
    mixers: Mixers::Attention,
    attention: &ATTENTION,
    feed_forward: FeedForward::Mlp,
    rotary: true,
    latent: false,
    gated: false,
    normed: false,
    rows_normed: false,
    biased: false,
    sinks: false,
    activation: Activation::Silu,
    sandwiched: false,
    scaled_embedding: false,
    scale: Scale::Head,
    values_normed: false,
    keys_are_values: false,
    layer_scalars: false,
    both: false,
    sigmoid: false,
    experts_scaled: false,
    chosen: "/num_experts_per_tok",
    tied: false,
    plus_one: false,
    default_head_dim: false,
    states_norm: false,
    window_switch: None,
    words: MLP,
    rows: |target| blocks::plain(target, blocks::experts),
};

/// Token mixers of a family's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mixers {
    /// Attention in every layer.
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

/// Pointers into a configuration.
pub(crate) struct Words {
    /// Routed experts of a layer: the library takes either name, and writes either.
    pub experts: Word,
    /// Inner width of the MLP, or of a routed expert.
    pub intermediate: &'static str,
}

/// Key of a fact in manifests, and pointers to it in configurations, today's first.
pub(crate) struct Word {
    pub key: &'static str,
    pub pointers: &'static [&'static str],
}

/// Words for the facts of an attention.
pub(crate) struct AttentionWords {
    pub heads: Word,
    pub kv_heads: Word,
    pub head_dim: Word,
    /// Configurations state its share of the head's width.
    pub rotary_dim: Word,
    pub rope_theta: Word,
}

const fn word(key: &'static str, pointers: &'static [&'static str]) -> Word {
    Word { key, pointers }
}

/// Elements of a head that turn, where configurations state them in place of their share.
pub(crate) const ROTARY_DIM: &str = "/rotary_dim";

/// Words of models whose layers attend in one shape.
const ATTENTION: AttentionWords = AttentionWords {
    heads: word("attention.heads", &["/num_attention_heads"]),
    kv_heads: word("attention.kv_heads", &["/num_key_value_heads"]),
    head_dim: word("attention.head_dim", &["/head_dim"]),
    rotary_dim: word(
        "attention.rotary_dim",
        &[
            "/rope_parameters/partial_rotary_factor",
            "/partial_rotary_factor",
        ],
    ),
    rope_theta: word(
        "attention.rope_theta",
        &["/rope_parameters/rope_theta", "/rope_theta"],
    ),
};

/// Words for layers over all positions beside those with a window, as Gemma 4 has them.
const GLOBAL: AttentionWords = AttentionWords {
    heads: word("attention.heads", &["/num_attention_heads"]),
    kv_heads: word("attention.kv_heads", &["/num_global_key_value_heads"]),
    head_dim: word("attention.head_dim", &["/global_head_dim"]),
    rotary_dim: word(
        "attention.turned_pairs",
        &["/rope_parameters/full_attention/partial_rotary_factor"],
    ),
    rope_theta: word(
        "attention.rope_theta",
        &["/rope_parameters/full_attention/rope_theta"],
    ),
};

/// Words for layers over all positions beside those with a window, in the same heads.
const ALIKE: AttentionWords = AttentionWords {
    rope_theta: word(
        "attention.rope_theta",
        &["/rope_parameters/full_attention/rope_theta", "/rope_theta"],
    ),
    ..ATTENTION
};

/// Words for layers with a window.
pub(crate) const SLIDING: AttentionWords = AttentionWords {
    heads: word("sliding.heads", &["/num_attention_heads"]),
    kv_heads: word("sliding.kv_heads", &["/num_key_value_heads"]),
    head_dim: word("sliding.head_dim", &["/head_dim"]),
    rotary_dim: word(
        "sliding.rotary_dim",
        &["/rope_parameters/sliding_attention/partial_rotary_factor"],
    ),
    rope_theta: word(
        "sliding.rope_theta",
        &[
            "/rope_parameters/sliding_attention/rope_theta",
            "/rope_local_base_freq",
        ],
    ),
};

/// Positions of a window.
pub(crate) const WINDOW: Word = word("sliding.window", &["/sliding_window"]);

/// Routed experts of a layer.
const EXPERTS: Word = word("moe.experts", &["/num_experts", "/num_local_experts"]);
/// Routed experts of a layer, where one more is shared.
const ROUTED: Word = word("moe.experts", &["/n_routed_experts", "/num_local_experts"]);

/// Switch of the window in Qwen's configurations.
const QWEN_WINDOW: Option<&str> = Some("/use_sliding_window");

pub(crate) const MLP: Words = Words {
    experts: EXPERTS,
    intermediate: "/intermediate_size",
};

pub(crate) const MOE: Words = Words {
    experts: EXPERTS,
    intermediate: "/moe_intermediate_size",
};

impl Family {
    /// Each of them.
    pub(crate) const ALL: [Family; 14] = [
        Family::Gemma3,
        Family::Gemma4,
        Family::GptOss,
        Family::Llama,
        Family::MinimaxM2,
        Family::Mistral4,
        Family::Mixtral,
        Family::NemotronH,
        Family::Qwen3,
        Family::Qwen3Moe,
        Family::Qwen3Next,
        Family::Qwen35,
        Family::Qwen35Moe,
        Family::Sliding,
    ];

    pub(crate) const fn traits(self) -> &'static Traits {
        match self {
            Family::Gemma3 => &gemma3::TRAITS,
            Family::Gemma4 => &gemma4::TRAITS,
            Family::GptOss => &gpt_oss::TRAITS,
            Family::Llama => &llama::TRAITS,
            Family::MinimaxM2 => &minimax_m2::TRAITS,
            Family::Mistral4 => &mistral4::TRAITS,
            Family::Mixtral => &mixtral::TRAITS,
            Family::NemotronH => &nemotron_h::TRAITS,
            Family::Qwen3 => &qwen3::TRAITS,
            Family::Qwen3Moe => &qwen3_moe::TRAITS,
            Family::Qwen3Next => &qwen3_next::TRAITS,
            Family::Qwen35 => &qwen3_5::TRAITS,
            Family::Qwen35Moe => &qwen3_5_moe::TRAITS,
            Family::Sliding => &sliding::TRAITS,
        }
    }
}

impl Target {
    /// Facts of the model's family.
    pub(crate) fn traits(&self) -> &'static Traits {
        self.model.family.traits()
    }

    /// Parts of the layers' math that the model has, in words. Models with the same words differ in
    /// sizes and names.
    pub fn math(&self) -> Vec<String> {
        // A new trait is math, or is a name or a word.
        let Traits {
            mixers,
            feed_forward,
            activation,
            scale,
            rotary,
            latent,
            gated,
            normed,
            rows_normed,
            biased,
            sinks,
            sandwiched,
            scaled_embedding,
            values_normed,
            keys_are_values,
            layer_scalars,
            both,
            sigmoid,
            experts_scaled,
            plus_one,
            name: _,
            types: _,
            classes: _,
            attention: _,
            chosen: _,
            tied: _,
            default_head_dim: _,
            states_norm: _,
            window_switch: _,
            words: _,
            rows: _,
        } = self.traits();
        let switches = [
            ("rotary", rotary),
            ("latent", latent),
            ("gated", gated),
            ("normed", normed),
            ("rows_normed", rows_normed),
            ("biased", biased),
            ("sinks", sinks),
            ("sandwiched", sandwiched),
            ("scaled_embedding", scaled_embedding),
            ("values_normed", values_normed),
            ("keys_are_values", keys_are_values),
            ("layer_scalars", layer_scalars),
            ("both", both),
            ("sigmoid", sigmoid),
            ("experts_scaled", experts_scaled),
            ("plus_one", plus_one),
        ];
        let on = switches.into_iter().filter(|(_, is_on)| **is_on);
        let on = on.map(|(name, _)| name.to_owned());
        let each = [
            format!("{mixers:?}"),
            format!("{feed_forward:?}"),
            format!("{activation:?}"),
            format!("{scale:?}"),
        ];
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
