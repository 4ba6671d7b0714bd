//! The list of constants from which both the Rust and the CUDA text of a target are written.

use crate::family::Switch;
use crate::kernels::{TOP_K, distinct};
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
}

/// Makes constants of rows: comment, name, type and value of each.
macro_rules! constants {
    ($(#[doc = $doc:literal] $name:ident: $type:ident = $value:expr;)*) => {
        vec![$(Constant {
            name: stringify!($name),
            doc: $doc.trim_ascii(),
            value: Value::$type($value),
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
        PAD: Size = target.pads()[0];
        /// Inner widths in memory are multiples of this.
        PAD_INNER: Size = target.pads()[1];
        /// Decoder layers.
        LAYERS: Size = model.layers.count as u64;
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
        MTP_LAYERS: Size = model.mtp.layers;
        /// Ids below this can be draft tokens of the multi-token-prediction layer.
        DRAFT_IDS: Size = model.mtp.draft_ids.unwrap_or(model.vocab);
    }
}

/// Groups of matrices that device code has in one format each: name of the constant, roles, whether
/// the group is of the prediction layer, and comment.
const GROUPS: [(&str, &[Role], bool, &str); 5] = [
    (
        "FORMAT_EMBED",
        &[Role::Embedding],
        false,
        "Embedding table.",
    ),
    ("FORMAT_HEAD", &[Role::Head], false, "Output head."),
    ("FORMAT_EXPERTS", EXPERTS, false, "Routed experts."),
    (
        "FORMAT_SHARED_EXPERT",
        SHARED_EXPERT,
        false,
        "Shared expert.",
    ),
    (
        "FORMAT_MTP_EXPERTS",
        MTP_EXPERTS,
        true,
        "Experts of the prediction layer.",
    ),
];

const EXPERTS: &[Role] = &[Role::ExpertGate, Role::ExpertUp, Role::ExpertDown];
const SHARED_EXPERT: &[Role] = &[Role::SharedGate, Role::SharedUp, Role::SharedDown];
const MTP_EXPERTS: &[Role] = &[
    Role::ExpertGate,
    Role::ExpertUp,
    Role::ExpertDown,
    Role::SharedGate,
    Role::SharedUp,
    Role::SharedDown,
];

/// Formats of each group of matrices that device code takes in one format.
pub(crate) fn group_formats(target: &Target) -> Vec<(Constant, Vec<Format>)> {
    let table = target.table();
    let groups = GROUPS.into_iter();
    let formats = groups.map(|(name, roles, predicts, doc)| {
        let of_group = |row: &&Row| {
            let prediction = Part::of(row) == Part::Mtp;
            roles.contains(&row.role) && prediction == predicts
        };
        let rows = table.iter().filter(of_group);
        let formats = distinct(rows.filter_map(Row::resident));
        let value = Value::Format(formats.first().copied().unwrap_or(Format::Bf16));
        (Constant { name, doc, value }, formats)
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
        STATES: Size = target.states();
        /// Recurrent states that are kept as snapshots for later prompts.
        SNAPSHOTS: Size = target.snapshots();
        /// Draft tokens of all sequences that one step may verify.
        DRAFTS: Size = target.drafts();
        /// Requests that may wait for a slot.
        MAX_QUEUED: Size = limits.queued;
        /// Prompt tokens that one step may prefill; a multiple of `PAGE`.
        PREFILL_TOKENS: Size = steps.prefill;
        /// Longest time between two tokens of a reply that bounds the prefill beside it, ms.
        REPLY_GAP_MS: Size = target.hardware.reply_gap_ms;
        /// KV pages of the whole server at most; memory may have room for fewer.
        KV_PAGES: Size = target.kv_pages();
        /// Largest logits of a row that `top_k` ranks.
        TOP_K: Size = TOP_K;
    }
}
