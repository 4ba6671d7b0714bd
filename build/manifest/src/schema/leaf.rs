//! `targets/<hw>/<model>/<quant>.toml`: the choices of one binary.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::table::Format;

/// Rounding of an expert's input rows before the products with its weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// No rounding on a CPU; on a GPU to the two-byte type of its tensor instructions.
    #[default]
    Exact,
    /// Rounding to NVFP4 before each product: E2M1, E4M3 per 16 columns, a power of two per row.
    Nvfp4,
}

impl Rows {
    fn are_exact(&self) -> bool {
        *self == Rows::Exact
    }
}

/// Storage format of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KvFormat {
    /// 4 bytes an element.
    F32,
    /// 2 bytes an element.
    Bf16,
    /// E4M3, a byte an element, with a power of two, a byte, for each position of a head.
    Fp8,
}

/// Choices of one binary; facts of its hardware and model are elsewhere.
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
    /// Key of the model's `[checkpoint]` that is read; absent: the leaf's own name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// Derivation of weights from another checkpoint of the model; absent: as published.
    pub derive: Option<Derive>,
    /// Rules on formats of matrices: the first one that names a matrix decides.
    pub format: Vec<FormatRule>,
    /// Formats of keys, values and rows, which no checkpoint decides.
    pub numbers: Numbers,
    /// Capacities of the server.
    pub limits: Limits,
    /// Sizes of the server's steps.
    pub steps: Steps,
    /// Kernels that differ from the hardware's, by name of the op, or of op and shape.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub op: BTreeMap<String, Op>,
}

/// Derivation of weights from a published checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Derive {
    /// Transformation of every matrix.
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

/// Format of some matrices in the checkpoint and in memory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FormatRule {
    /// Patterns of matrix names; `*` is any text.
    pub r#match: Patterns,
    /// Decoder layers of the rule; absent: all layers, and matrices outside of layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<Vec<usize>>,
    /// Format in the checkpoint.
    pub r#as: Format,
    /// Format in memory, if it has fewer bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident: Option<Format>,
}

/// A pattern of names, or several.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged, expecting = "expected a pattern of names, or a list of them")]
pub enum Patterns {
    One(String),
    More(Vec<String>),
}

impl Patterns {
    /// Patterns as a slice in the manifest's order, whether it states one or a list.
    pub fn patterns(&self) -> &[String] {
        match self {
            Patterns::One(pattern) => std::slice::from_ref(pattern),
            Patterns::More(patterns) => patterns,
        }
    }
}

/// Formats of numbers that steps compute.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Numbers {
    /// Format in which keys and values are stored.
    pub kv: KvFormat,
    /// Rounding of the rows that NVFP4 experts multiply.
    #[serde(default, skip_serializing_if = "Rows::are_exact")]
    pub experts_rows: Rows,
    /// Hidden and inner widths are padded with zero channels to multiples of this, for kernels that
    /// take no other widths; absent: 1. Not for matrices in fp8.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub pad: u64,
    /// Inner widths are padded to multiples of this in place of `pad`; absent: of `pad`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pad_inner: Option<u64>,
}

fn one() -> u64 {
    1
}

fn is_one(number: &u64) -> bool {
    *number == 1
}

/// Capacities of the server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Sequences that may hold a slot at once, at least 1.
    pub sequences: u64,
    /// Longest sequence, prompt and reply, tokens; a multiple of `page`, at most `max_position`.
    pub context: u64,
    /// Tokens that the KV pages of all sequences hold together; a multiple of `page`, from
    /// `context` to `sequences * context`.
    pub kv_tokens: u64,
    /// Snapshots of recurrent states kept for later prompts, beside the states of sequences; only
    /// for models with recurrent states or windowed pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<u64>,
    /// Draft tokens of all sequences that one step may verify; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drafts: Option<u64>,
    /// Requests that may wait for a slot, at least 1; more are refused.
    pub queued: u64,
    /// Tokens per KV page, a multiple of 64.
    pub page: u64,
}

/// Sizes of steps.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Steps {
    /// Prompt tokens that one step may prefill, a multiple of `page`, at most `kv_tokens`.
    pub prefill: u64,
}

/// The kernel of one op.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Op {
    /// Name of the kernel: algorithm and data type.
    pub kernel: String,
    /// Threads of a block: a multiple of 32, 32 ..= 1024.
    pub threads: u64,
    /// Most rows of a launch, for `moe` only; absent: as many as a block can plan.
    pub rows: Option<u64>,
    /// Reason for the choice of the kernel and of its numbers.
    pub why: String,
}
