//! `targets/<hw>/<model>/<quant>.toml`: one binary.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::table::Format;

/// Rounding of rows before they are multiplied by weights.
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

/// Storage of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KvFormat {
    /// 4 bytes an element.
    F32,
    /// 2 bytes an element.
    Bf16,
    /// A byte of E4M3 an element, and one of a power of two a position of a head.
    Fp8,
}

/// Choices of one binary beside the facts of its hardware and its model.
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
    /// Storage of matrices: the first rule that names one decides.
    pub format: Vec<FormatRule>,
    /// Formats of numbers that no checkpoint holds.
    pub numbers: Numbers,
    /// Capacities.
    pub limits: Limits,
    /// Sizes of steps.
    pub steps: Steps,
    /// Kernels other than the hardware's, by name of the op, or of the op and a shape.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub op: BTreeMap<String, Op>,
}

/// Derivation of weights from a published checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Derive {
    /// Change that is made to every tensor.
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

/// Storage of some matrices, as the checkpoint has them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FormatRule {
    /// Names of the matrices, in which `*` stands for any text.
    pub r#match: Patterns,
    /// Decoder layers that the rule is for; absent: all, and what is no layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<Vec<usize>>,
    /// The format in the checkpoint.
    pub r#as: Format,
    /// The format in memory, where it holds fewer bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident: Option<Format>,
}

/// A pattern of names, or several.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "OneOrMore", into = "OneOrMore")]
pub struct Patterns(Vec<String>);

impl Patterns {
    /// Each of them.
    pub fn patterns(&self) -> &[String] {
        &self.0
    }
}

impl From<String> for Patterns {
    fn from(pattern: String) -> Patterns {
        Patterns(vec![pattern])
    }
}

#[derive(Deserialize, Serialize)]
#[serde(untagged, expecting = "expected a pattern of names, or a list of them")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl From<OneOrMore> for Patterns {
    fn from(patterns: OneOrMore) -> Patterns {
        match patterns {
            OneOrMore::One(pattern) => pattern.into(),
            OneOrMore::More(patterns) => Patterns(patterns),
        }
    }
}

impl From<Patterns> for OneOrMore {
    fn from(patterns: Patterns) -> OneOrMore {
        match <[String; 1]>::try_from(patterns.0) {
            Ok([pattern]) => OneOrMore::One(pattern),
            Err(patterns) => OneOrMore::More(patterns),
        }
    }
}

/// Numbers that a step makes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Numbers {
    /// Keys and values.
    pub kv: KvFormat,
    /// Operands that experts of NVFP4 multiply their weights by.
    #[serde(default, skip_serializing_if = "Rows::are_exact")]
    pub experts_rows: Rows,
    /// Hidden and inner widths become multiples of this by channels of zeros, where kernels take no
    /// others; absent: 1. For matrices of no fp8.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub pad: u64,
    /// Inner widths become multiples of this one in place of `pad`; absent: of `pad`.
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
    /// Tokens that the KV pages of all sequences hold together; a multiple of `page`, `context` at
    /// least and `sequences * context` at most.
    pub kv_tokens: u64,
    /// Recurrent states that are kept for prompts to come, beside those of sequences; only of
    /// models that have such states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<u64>,
    /// Draft tokens of all sequences that one step may verify; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drafts: Option<u64>,
    /// Requests that may wait for a slot, at least 1.
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
    /// Kernel's name: algorithm and data type.
    pub kernel: String,
    /// Threads of a block; a multiple of 32, 32 ..= 1024.
    pub threads: u64,
    /// Most rows of a launch, of `moe` alone; absent: as many as a block has room to plan.
    pub rows: Option<u64>,
    /// Why this kernel and these numbers.
    pub why: String,
}
