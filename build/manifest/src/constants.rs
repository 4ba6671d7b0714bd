//! The list of constants from which both the Rust and the CUDA text of a target are written.

use crate::family::Switch;
use crate::kernels::{TOP_K, distinct, top_k_chunks, top_k_parts};
use crate::schema::hardware::Gpu;
use crate::schema::leaf::KvFormat;
use crate::table::{Format, Role, Row};
use crate::target::Target;
use crate::weights::Part;

/// Value of a constant, with the type that each language gives it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// Rust `usize`, CUDA `int`.
    Size(u64),
    /// `float` in both.
    Single(f64),
    /// `bool` in both.
    Bool(bool),
    /// Storage format of a group of matrices.
    Format(Format),
    /// Storage format of keys and values.
    Kv(KvFormat),
}

/// One named constant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Constant {
    pub name: &'static str,
    pub doc: &'static str,
    pub value: Value,
    /// Whether device code does not read the constant.
    pub of_host: bool,
}

/// Makes constants of rows: comment, name, type and value of each, and `host` where device code
/// does not read it.
macro_rules! constants {
    ($(#[doc = $doc:literal] $name:ident: $type:ident = $value:expr $(, $host:ident)?;)*) => {
        vec![$(Constant {
            name: stringify!($name),
            doc: $doc.trim_ascii(),
            value: Value::$type($value),
            of_host: [$(stringify!($host) == "host",)? false][0],
        },)*]
    };
}

/// Constants that mean the same on the host and on the device.
pub(crate) fn constants(target: &Target) -> Vec<Constant> {
    let mut list = model_constants(target);
    list.extend(format_constants(target));
    list.extend(limit_constants(target));
    list
}

fn model_constants(target: &Target) -> Vec<Constant> {
    let model = &target.model;
    constants! {
        /// Width of the residual stream, padding by zeros included.
        HIDDEN: Size = target.padded(model.hidden);
        /// Channels of the residual stream without padding; norms are over these.
        CHANNELS: Size = model.hidden;
        /// Hidden widths in memory are multiples of this.
        PAD: Size = target.pads()[0], host;
        /// Inner widths in memory are multiples of this.
        PAD_INNER: Size = target.pads()[1], host;
        /// Decoder layers.
        LAYERS: Size = model.layers.count as u64, host;
        /// Rows of the embedding table.
        VOCAB: Size = model.vocab;
        /// Whether the output head is the embedding table.
        TIED_HEAD: Bool = model.tied_head;
        /// Whether some matrices add biases to their results.
        BIASED: Bool = target.has(Switch::Biased);
        /// Factor of the embedding's rows.
        EMBEDDING_SCALE: Single = target.embedding_scale();
        /// Cap of logits, `cap tanh(logit / cap)`; 0 if there is none.
        LOGIT_CAP: Single = model.logit_cap.unwrap_or(0.0);
        /// Epsilon of every norm.
        NORM_EPS: Single = model.norm_eps;
        /// Multi-token-prediction layers (0 or 1).
        MTP_LAYERS: Size = model.mtp.layers, host;
        /// Ids below this can be draft tokens of the multi-token-prediction layer.
        DRAFT_IDS: Size = model.mtp.draft_ids.unwrap_or(model.vocab);
    }
}

/// Groups of matrices that device code has in one format each: name of the constant, and comment.
const GROUPS: [(&str, &str); 5] = [
    ("FORMAT_EMBED", "Embedding table."),
    ("FORMAT_HEAD", "Output head."),
    ("FORMAT_EXPERTS", "Routed experts."),
    ("FORMAT_SHARED_EXPERT", "Shared expert."),
    ("FORMAT_MTP_EXPERTS", "Experts of the prediction layer."),
];

/// Name of the group that a row's matrices are in.
fn group_of(row: &Row) -> Option<&'static str> {
    match (Part::of(row), row.role) {
        (Part::Text, Role::Embedding) => Some("FORMAT_EMBED"),
        (Part::Text, Role::Head) => Some("FORMAT_HEAD"),
        (Part::Text, role) if role.is_expert() => Some("FORMAT_EXPERTS"),
        (Part::Text, role) if role.is_shared_expert() => Some("FORMAT_SHARED_EXPERT"),
        (Part::Mtp, role) if role.is_of_experts() => Some("FORMAT_MTP_EXPERTS"),
        _ => None,
    }
}

/// Formats of each group of matrices that device code takes in one format.
pub(crate) fn group_formats(target: &Target) -> Vec<(Constant, Vec<Format>)> {
    let table = target.table();
    let groups = GROUPS.into_iter();
    let formats = groups.map(|(name, doc)| {
        let rows = table.iter().filter(|row| group_of(row) == Some(name));
        let formats = distinct(rows.filter_map(Row::resident));
        let value = Value::Format(formats.first().copied().unwrap_or(Format::Bf16));
        let constant = Constant {
            name,
            doc,
            value,
            of_host: false,
        };
        (constant, formats)
    });
    formats.collect()
}

fn format_constants(target: &Target) -> Vec<Constant> {
    let groups = group_formats(target).into_iter();
    let mut constants: Vec<Constant> = groups.map(|(constant, _)| constant).collect();
    constants.extend(constants! {
        /// Storage of keys and values.
        FORMAT_KV: Kv = target.leaf.numbers.kv;
    });
    constants
}

fn limit_constants(target: &Target) -> Vec<Constant> {
    let (limits, steps) = (&target.leaf.limits, &target.leaf.steps);
    constants! {
        /// Tokens per KV page; also the grid of prefill chunks.
        PAGE: Size = limits.page;
        /// Longest sequence, prompt and reply, in tokens.
        MAX_CONTEXT: Size = limits.context;
        /// Sequences that may hold a slot at once.
        MAX_SEQUENCES: Size = limits.sequences;
        /// Recurrent states: of sequences, then snapshots for later prompts, then of drafts.
        STATES: Size = target.states(), host;
        /// Recurrent states that are kept as snapshots for later prompts.
        SNAPSHOTS: Size = target.snapshots(), host;
        /// Draft tokens of all sequences that one step may verify.
        DRAFTS: Size = target.drafts();
        /// Requests that may wait for a slot.
        MAX_QUEUED: Size = limits.queued, host;
        /// Prompt tokens that one step may prefill; a multiple of `PAGE`.
        PREFILL_TOKENS: Size = steps.prefill;
        /// Longest time between two tokens of a reply that bounds the prefill beside it, ms.
        REPLY_GAP_MS: Size = target.hardware.reply_gap_ms, host;
        /// KV pages of the whole server at most; memory may have room for fewer.
        KV_PAGES: Size = target.kv_pages(), host;
        /// Largest logits of a row that `top_k` ranks.
        TOP_K: Size = TOP_K;
    }
}

/// Constants of a GPU's kernels.
pub(crate) fn gpu_constants(target: &Target, gpu: &Gpu) -> Vec<Constant> {
    let operands = target.kernels().iter().any(|choice| choice.operands);
    constants! {
        /// Most rows of one launch of `moe`.
        MOE_ROWS: Size = target.moe_rows(gpu.shared_bytes_per_block);
        /// Whether `norm_linear` writes many rows in F16 for `experts`.
        EXPERTS_TAKE_ROUNDED: Bool = target.experts_take_rounded(), host;
        /// Whether `attend` writes rows in F16 in launches with cells.
        ATTEND_ROUNDS: Bool = target.attend_rounds();
        /// Chunks of a row of logits, each computed by one block of the head.
        TOP_K_CHUNKS: Size = top_k_chunks(&target.model, gpu.sms.into());
        /// Parts of a chunk of logits, each ranked by one warp.
        TOP_K_PARTS: Size = top_k_parts(&target.model, gpu.sms.into());
        /// Whether kernels lay out rows as operands of warpgroup instructions.
        OPERANDS: Bool = operands, host;
    }
}
