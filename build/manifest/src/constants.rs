//! The flat list of constants that Rust and CUDA text are both written from.

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
    /// Storage of a group of matrices.
    Format(Format),
    /// Storage of keys and values.
    Kv(KvFormat),
}

/// One named constant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Constant {
    pub name: &'static str,
    pub doc: &'static str,
    pub value: Value,
}

fn size(name: &'static str, value: u64, doc: &'static str) -> Constant {
    Constant {
        name,
        doc,
        value: Value::Size(value),
    }
}

fn format(name: &'static str, value: Format, doc: &'static str) -> Constant {
    Constant {
        name,
        doc,
        value: Value::Format(value),
    }
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
    let tied = Value::Bool(model.tied_head);
    let eps = Value::Single(model.norm_eps);
    let biased = Value::Bool(target.has(Switch::Biased));
    vec![
        size(
            "HIDDEN",
            target.padded(model.hidden),
            "Width of the residual stream, zeros up to a multiple that kernels take included.",
        ),
        size(
            "CHANNELS",
            model.hidden,
            "Channels of the residual stream, over which norms are.",
        ),
        size(
            "PAD",
            target.pads()[0],
            "Hidden widths in memory are multiples of it.",
        ),
        size(
            "PAD_INNER",
            target.pads()[1],
            "Inner widths in memory are multiples of it.",
        ),
        size("LAYERS", model.layers.count as u64, "Decoder layers."),
        size("VOCAB", model.vocab, "Rows of the embedding table."),
        Constant {
            name: "TIED_HEAD",
            doc: "Whether the output head is the embedding table.",
            value: tied,
        },
        Constant {
            name: "BIASED",
            doc: "Whether some matrices have biases of their results.",
            value: biased,
        },
        Constant {
            name: "EMBEDDING_SCALE",
            doc: "Factor of the rows of the embedding.",
            value: Value::Single(target.embedding_scale()),
        },
        Constant {
            name: "LOGIT_CAP",
            doc: "Bound that logits approach, as a hyperbolic tangent does; 0 if there is none.",
            value: Value::Single(model.logit_cap.unwrap_or(0.0)),
        },
        Constant {
            name: "NORM_EPS",
            doc: "Epsilon of every norm.",
            value: eps,
        },
        size(
            "MTP_LAYERS",
            model.mtp.layers,
            "Multi-token-prediction layers (0 or 1).",
        ),
        size(
            "DRAFT_IDS",
            model.mtp.draft_ids.unwrap_or(model.vocab),
            "Ids below this are drafted by that layer.",
        ),
    ]
}

/// Matrices that device code takes in one format each: name of the constant, whose format it is,
/// and what it is for.
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
        let first = formats.first().copied().unwrap_or(Format::Bf16);
        (format(name, first, doc), formats)
    });
    formats.collect()
}

fn format_constants(target: &Target) -> Vec<Constant> {
    let groups = group_formats(target).into_iter();
    let mut constants: Vec<Constant> = groups.map(|(constant, _)| constant).collect();
    constants.push(Constant {
        name: "FORMAT_KV",
        doc: "Keys and values.",
        value: Value::Kv(target.leaf.numbers.kv),
    });
    constants
}

fn limit_constants(target: &Target) -> Vec<Constant> {
    let (limits, steps) = (&target.leaf.limits, &target.leaf.steps);
    vec![
        size(
            "PAGE",
            limits.page,
            "Tokens per KV page; also the grid of prefill chunks.",
        ),
        size(
            "MAX_CONTEXT",
            limits.context,
            "Longest sequence, prompt and reply, in tokens.",
        ),
        size(
            "MAX_SEQUENCES",
            limits.sequences,
            "Sequences that may hold a slot at once.",
        ),
        size(
            "STATES",
            target.states(),
            "Recurrent states: of sequences, then snapshots for prompts to come, then of drafts.",
        ),
        size(
            "SNAPSHOTS",
            target.snapshots(),
            "Recurrent states kept for prompts to come.",
        ),
        size(
            "DRAFTS",
            target.drafts(),
            "Draft tokens of all sequences that one step may verify.",
        ),
        size(
            "MAX_QUEUED",
            limits.queued,
            "Requests that may wait for a slot.",
        ),
        size(
            "PREFILL_TOKENS",
            steps.prefill,
            "Prompt tokens that one step may prefill; a multiple of `PAGE`.",
        ),
        size(
            "REPLY_GAP_MS",
            target.hardware.reply_gap_ms,
            "Longest time between two tokens of a reply that prompts are cut to, ms.",
        ),
        size(
            "KV_PAGES",
            target.kv_pages(),
            "KV pages of the whole server, at most: memory may have room for fewer.",
        ),
        size(
            "TOP_K",
            TOP_K,
            "Largest logits of a row that `top_k` ranks.",
        ),
    ]
}
