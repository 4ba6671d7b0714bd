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
    /// The family's mixer with a recurrent state for each sequence.
    Recurrent(&'static Recurs),
    /// Attention over all positions.
    Attention,
    /// Attention over a window of positions.
    Sliding,
    /// No mixer: the layer is its feed-forward alone.
    None,
}

/// Part of a layer after its mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedForward {
    /// One gated MLP.
    Mlp,
    /// Mixture of experts.
    Moe,
    /// MLP and mixture of experts side by side; their results are added.
    Both,
    /// No feed-forward: the layer is its mixer alone.
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
    /// `{"name": NAME, "parameters": {JSON}}` as the whole reply.
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
    /// Name of the model, for people.
    pub title: String,
    /// Model id that the API reports.
    pub id: String,
    /// Family, which decides layer math and tensor names.
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
    /// Number by whose square root attention scores are divided, in families whose configurations
    /// state it; absent: the width of a head.
    pub query_pre_attn_scalar: Option<u64>,
    /// Softcap of the output logits, `cap tanh(logit / cap)`; absent: none.
    pub logit_cap: Option<f64>,
    /// The decoder layers.
    pub layers: Layers,
    /// Full-attention layers.
    pub attention: Attention,
    /// Sliding-window attention layers, in families where their heads have another shape.
    pub sliding: Option<Attention>,
    /// Latents of attention, in families whose layers attend over them.
    pub latent: Option<Latent>,
    /// Gated DeltaNet layers, in families that have them.
    pub gdn: Option<Gdn>,
    /// Mamba-2 layers, in families that have them.
    pub mamba: Option<Mamba>,
    /// Numbers of the family's recurrent mixer, where it has no table of its own name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mixer: BTreeMap<String, u64>,
    /// Mixture of experts, in models with layers that have one.
    pub moe: Option<Moe>,
    /// MLP, in models with layers that have one.
    pub mlp: Option<Mlp>,
    /// Multi-token prediction; absent: none.
    #[serde(default)]
    pub mtp: Mtp,
    /// Vision tower of the checkpoint; not served, it counts in the checkpoint's size alone.
    pub vision: Option<Unused>,
    /// Tokens and text conventions; absent for a model without a tokenizer.
    pub chat: Option<Chat>,
    /// Sampling of requests that state no values.
    pub sampling: Sampling,
    /// Published weights, by name of their quantisation; a leaf with this name uses them.
    #[serde(default)]
    pub checkpoint: BTreeMap<String, Checkpoint>,
}

impl Model {
    /// Mixer of each layer.
    pub(crate) fn mixers(&self) -> Vec<Mixer> {
        self.layers.repeated(&self.layers.period)
    }

    /// Feed-forwards of the first layers; later layers repeat them.
    pub(crate) fn feed_forward(&self) -> Vec<FeedForward> {
        match &self.layers.feed_forward[..] {
            [] => vec![self.family.traits().feed_forward.usual()],
            listed => listed.to_vec(),
        }
    }

    /// Feed-forward of each layer.
    pub(crate) fn feed_forwards(&self) -> Vec<FeedForward> {
        self.layers.repeated(&self.feed_forward())
    }

    /// Dimensions of the recurrent mixer; zeros in a model without one.
    pub(crate) fn gdn(&self) -> Gdn {
        self.recurrence().unwrap_or_default()
    }

    /// Dimensions of the recurrent mixer; those of Mamba-2 as Gated DeltaNet's.
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

    /// Elements of a latent; 0 without latents.
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
    /// Mixers of the first layers, repeated up to `count`, which their number divides. Absent in
    /// families whose layers all have one mixer.
    #[serde(
        default = "attention_alone",
        skip_serializing_if = "is_attention_alone"
    )]
    pub period: Vec<Mixer>,
    /// Feed-forwards of the first layers, repeated as `period` is. Absent where every layer has the
    /// family's usual one.
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
    /// Elements of a head; over latents, stored elements of a position: rotated ones, and a latent.
    pub head_dim: u64,
    /// Leading elements of a head that RoPE rotates: even, 2 ..= `head_dim`. Absent in families
    /// whose attention has no positions.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rotary_dim: u64,
    /// Pairs that are rotated of those in `rotary_dim`, the first ones; absent: all.
    pub turned_pairs: Option<u64>,
    /// Positions that a query sees, its own the last: in `[sliding]`, or in `[attention]` where
    /// windowed layers have heads of the same shape; absent: all positions up to its own.
    pub window: Option<u64>,
    /// Base of RoPE, above 1; absent where `rotary_dim` is.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub rope_theta: f64,
    /// Scaling of RoPE for long contexts by Llama 3.1's rule; absent: none.
    pub rope_scaling: Option<RopeScaling>,
    /// Scaling of RoPE for long contexts by YaRN, in place of `rope_scaling`; absent: none.
    pub yarn: Option<Yarn>,
}

/// The scaling YaRN (`rope_type` "yarn" of the transformers library): pairs that make less than
/// `beta_slow` turns in `original_max_position` positions are slowed by `factor`, those that make
/// more than `beta_fast` are not, those between partly. Source: arXiv 2309.00071.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Yarn {
    /// Divisor of slow frequencies, at least 1.
    pub factor: f64,
    /// Turns in the first context from which a frequency is not slowed; above `beta_slow`.
    pub beta_fast: f64,
    /// Turns in the first context up to which a frequency is slowed by the whole factor; above 0.
    pub beta_slow: f64,
    /// Context of the training before the scaling, tokens.
    pub original_max_position: u64,
    /// Whether the ramp between slowed and other frequencies starts and ends at whole pairs.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub truncate: bool,
    /// Factor of queries and of keys; absent: `0.1 ln(factor) + 1`.
    pub attention_factor: Option<f64>,
    /// Number `n` whose `(0.1 n ln(factor) + 1)^2` scores are multiplied by; absent: by nothing.
    pub mscale_all_dim: Option<f64>,
}

/// The scaling of Llama 3.1 (`rope_type` "llama3" of the transformers library).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RopeScaling {
    /// Divisor of low frequencies, at least 1.
    pub factor: f64,
    /// Wavelengths above `original_max_position / low_freq_factor` are low frequencies; above 0.
    pub low_freq_factor: f64,
    /// Wavelengths below `original_max_position / high_freq_factor` are high frequencies; above
    /// `low_freq_factor`.
    pub high_freq_factor: f64,
    /// Context of the training before the scaling, tokens.
    pub original_max_position: u64,
}

impl Attention {
    /// Rows of `k_proj` and of `v_proj`.
    pub(crate) fn kv_rows(&self) -> u64 {
        self.kv_heads * self.head_dim
    }

    /// Rotated share of a head.
    pub(crate) fn turned_share(&self) -> f64 {
        let turned = self.turned_pairs.map_or(self.rotary_dim, |pairs| 2 * pairs);
        turned as f64 / self.head_dim as f64
    }

    /// Columns of `o_proj`.
    pub(crate) fn o_columns(&self) -> u64 {
        self.heads * self.head_dim
    }
}

/// Numbers of attention over latents (MLA) that the table `[attention]` does not have.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Latent {
    /// Width of a query's latent, between the two products that make queries.
    pub query_rank: u64,
    /// Elements of a head's query and key that are not rotated.
    pub nope_dim: u64,
    /// Elements of a head's value.
    pub value_dim: u64,
    /// Factor `b` of queries' growth: they are multiplied by `1 + b ln(1 + position / original)`,
    /// the quotient rounded down, `original` from YaRN; absent: they do not grow.
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
    /// Groups of heads that share `B` and `C`, at least 1.
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
    /// Inner width of the shared expert, in families with one.
    pub shared_intermediate: Option<u64>,
    /// Width of the latents that routed experts read and make, in families where they may do so;
    /// absent: they read and make hidden states.
    pub latent: Option<u64>,
    /// Factor of routed experts' weights, in families whose router scores are sigmoids.
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
    /// Tokens that can be drafted: ids below this, where a vocabulary of merged pairs has the
    /// frequent tokens; absent: all. A draft reads as many rows of the head.
    pub draft_ids: Option<u64>,
}

/// Tensors of a checkpoint that the server does not read.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Unused {
    /// Number of the tensors.
    pub tensors: u64,
    /// Size of the tensors together, bytes.
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
    /// Text that opens reasoning, a token and any text after it; absent, as the next three keys, in
    /// a model that does not reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub think_open: String,
    /// Token that begins `think_open`, below `vocab`.
    pub think_open_id: Option<u64>,
    /// Text that closes reasoning.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub think_close: String,
    /// Token that `think_close` is, below `vocab`.
    pub think_close_id: Option<u64>,
    /// Tokens of the tokenizer that no merge makes, the framing of conversations among them.
    pub added_tokens: AddedTokens,
    /// Tokenizer's file name in the weights directory.
    pub tokenizer: String,
    /// Chat template's file name in the weights directory. A file of this name beside `model.toml`
    /// that is no file of the checkpoint is compiled in.
    pub template: String,
}

/// Tokens with consecutive ids.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AddedTokens {
    /// Id of the first token.
    pub first: u64,
    /// Text of each token, in the order of ids; empty where it is not known.
    pub texts: Vec<String>,
}

/// Sampling of requests that state no values.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// Temperature, 0 ..= 2; 0 takes the most likely token.
    pub temperature: f64,
    /// Number of most likely tokens that are sampled from, at most `vocab`; 0: all.
    pub top_k: u32,
    /// Probability that the smallest set of tokens sampled from reaches, in (0, 1].
    pub top_p: f64,
}

/// Part of a checkpoint whose experts may share tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StackedIn {
    Layers,
    Mtp,
}

/// Form of a release's files: their names, and the keys of its configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Files as the transformers library reads them.
    #[default]
    Transformers,
    /// Files in Mistral's own form.
    Mistral,
}

impl Form {
    fn is_usual(&self) -> bool {
        *self == Form::default()
    }

    /// The form whose file of dimensions has this name.
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

    /// File of all tensors; an index of several files has this name and `.index.json`.
    pub(crate) const fn weights(self) -> &'static str {
        match self {
            Form::Transformers => "model.safetensors",
            Form::Mistral => "consolidated.safetensors",
        }
    }
}

/// One published set of weights of the model.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Repository, `owner/name`; absent for weights that are kept beside `model.toml`.
    pub repository: Option<String>,
    /// Commit of `repository`; absent while it is not known.
    pub revision: Option<String>,
    /// Form of its files and of its configuration; absent: that of the transformers library.
    #[serde(default, skip_serializing_if = "Form::is_usual")]
    pub form: Form,
    /// Tensors in all files, as published; absent: the number that follows from the facts.
    pub tensors: Option<u64>,
    /// Bytes of all tensors without file headers, as published; absent: the sum that follows from
    /// the facts. Vectors are BF16 or F32 at the publisher's choice.
    pub tensor_bytes: Option<u64>,
    /// Formats whose matrices have a scale of their input in this checkpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_scales: Vec<Format>,
    /// Parts whose routed experts are two tensors a layer, `gate_up_proj` and `down_proj`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacked_experts: Vec<StackedIn>,
    /// Whether attention layers carry scales of stored keys and values, which are not used.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub kv_scales: bool,
    /// Whether the head is stored although it is equal to the embedding table.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub tied_head_stored: bool,
    /// Whether the checkpoint lacks the multi-token-prediction layer.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub without_mtp: bool,
    /// Nats per token of the text that a start is checked with, measured by an outside reference on
    /// these weights; absent while not measured.
    pub text_nll: Option<f64>,
    /// Packages that the files are made from; absent where the files are published as such.
    pub source: Option<Source>,
    /// Every file of the checkpoint, or `[]` while digests are not known.
    pub files: Vec<File>,
}

/// Packages that hold the weights in another form.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Parts of the weight file, in order.
    pub parts: Vec<Part>,
    /// Format of the weight file.
    pub format: SourceFormat,
    /// Element type of the files that are made.
    pub elements: Elements,
}

/// A part of the weight file, inside a package.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// File of the Python package index: `<name>-<version>-<python>-<abi>-<platforms>.whl`.
    pub wheel: String,
    /// SHA-256 of the wheel in lower-case hexadecimal.
    pub sha256: String,
    /// Path of the part inside the wheel.
    pub member: String,
}

/// A format of weight files that the pipeline can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceFormat {
    /// The file of llama.cpp: weights, tokenizer and template in one.
    Gguf,
}

/// Element type of a checkpoint that the pipeline makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Elements {
    /// F32: every number exactly.
    F32,
    /// BF16: every number rounded to the nearest.
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
    /// SHA-256 of the file in lower-case hexadecimal.
    pub sha256: String,
}
