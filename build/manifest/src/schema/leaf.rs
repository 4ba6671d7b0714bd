//! `targets/<hw>/<model>/<quant>.toml`: one binary.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How the elements of a weight matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// BF16.
    Bf16,
    /// compressed-tensors NVFP4: packed E2M1, E4M3 per 16 columns, divided by one F32.
    Nvfp4CompressedTensors,
    /// modelopt NVFP4: packed E2M1, E4M3 per 16 columns, multiplied by one F32.
    Nvfp4Modelopt,
    /// E4M3 with a BF16 scale per 128 x 128 block.
    Fp8Block128,
}

impl Format {
    /// Packed E2M1 with an E4M3 scale per 16 columns.
    pub fn is_nvfp4(self) -> bool {
        matches!(self, Format::Nvfp4CompressedTensors | Format::Nvfp4Modelopt)
    }
}

/// What rows are rounded to before they are multiplied by weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// Not at all on a CPU, to what tensor instructions of two bytes take on a GPU.
    #[default]
    Exact,
    /// To NVFP4 again for each product: E2M1, E4M3 per 16 columns, a power of two per row.
    Nvfp4,
}

impl Rows {
    fn are_exact(&self) -> bool {
        *self == Rows::Exact
    }
}

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KvFormat {
    /// 4 bytes an element.
    F32,
    /// 2 bytes an element.
    Bf16,
}

/// What one binary fixes beside the facts of its hardware and its model.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Leaf {
    /// Name of a file of `targets/_hw`; equals the first folder of the leaf's path.
    pub hw: String,
    /// Name of a folder of `targets/_model`; equals the second folder of the leaf's path.
    pub model: String,
    /// Whether the checkpoint is compiled into the binary; its files are then in this repository.
    #[serde(default)]
    pub embed: bool,
    /// Key of the model's `[checkpoint]` that is read; absent where it is the leaf's own name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// Makes this target's weights from another checkpoint of the model; absent when published.
    pub derive: Option<Derive>,
    /// Storage formats by group of matrices.
    pub quant: Quant,
    /// Capacities.
    pub limits: Limits,
    /// Sizes of steps.
    pub steps: Steps,
    /// Kernel of each op, by name of the op; empty for a CPU target.
    #[serde(default)]
    pub op: BTreeMap<String, Op>,
}

/// How weights are made from a published checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Derive {
    /// What is done to every tensor.
    pub transformation: Transformation,
    /// Quantisation whose checkpoint is read; a key of the model's `[checkpoint]`.
    pub from: String,
}

/// A transformation of a whole checkpoint that loses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transformation {
    /// Every quantised matrix becomes BF16; refused where a value is not exact.
    Dequantise,
}

/// Storage formats, as the checkpoint has them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Quant {
    /// Embedding table.
    pub embed: Format,
    /// Output head.
    pub head: Format,
    /// Gated DeltaNet `in_proj_qkv`, `in_proj_z`, `out_proj`.
    pub gdn: Format,
    /// Attention `q_proj`, `k_proj`, `v_proj`, `o_proj`.
    pub attention: Format,
    /// Routed experts.
    pub experts: Format,
    /// What experts of NVFP4 multiply their weights by.
    #[serde(default, skip_serializing_if = "Rows::are_exact")]
    pub experts_rows: Rows,
    /// Shared expert.
    pub shared_expert: Format,
    /// Attention of the prediction layer; absent where the model has none.
    pub mtp_attention: Option<Format>,
    /// Routed and shared experts of the prediction layer; absent where the model has none.
    pub mtp_experts: Option<Format>,
    /// Keys and values.
    pub kv: KvFormat,
}

/// Capacities of the server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Sequences that may hold a slot at once, at least 1.
    pub sequences: u64,
    /// Longest sequence, prompt and reply, tokens; a multiple of `page`, at most `max_position`.
    pub context: u64,
    /// Tokens that the KV pages of all sequences hold together; a multiple of `page`, `context` at
    /// least and `sequences * context` at most.
    pub kv_tokens: u64,
    /// Requests that may wait for a slot, at least 1.
    pub queued: u64,
    /// Tokens per KV page, a multiple of 64.
    pub page: u64,
}

/// Sizes of steps.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Steps {
    /// Rows of decode steps, ascending; the last one is `limits.sequences`.
    pub decode: Vec<u64>,
    /// Prompt tokens that one step may prefill, a multiple of `page`, at most `kv_tokens`.
    pub prefill: u64,
}

/// The kernel of one op.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Op {
    /// Kernel's name: algorithm and data type.
    pub kernel: String,
    /// Threads of a block; a multiple of 32, 32 ..= 1024.
    pub threads: u64,
    /// Why this kernel and these numbers.
    pub why: String,
}
