//! Bounds against the assertions of device code, and manifests that break them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{BOUNDS, RUN_COLUMNS, SEGMENTS_MAX, segments};
use crate::table::FP8_BLOCK;
use crate::testing::{Scratch, repository, root};

/// Names in device code of a model's facts, and of constants that follow from these alone.
const FACTS: [&str; 28] = [
    "A::k",
    "L::k",
    "kValueDim",
    "kGroups",
    "Delta::k",
    "Experts::k",
    "M::k",
    "HIDDEN",
    "VOCAB",
    "FORMAT_",
    "kHeadDim",
    "kRotaryDim",
    "kHeads",
    "kKvHeads",
    "kGroup",
    "kHeadGroup",
    "kPairs",
    "kExperts",
    "kAssigned",
    "kIntermediate",
    "kInner",
    "kWidth",
    "kChannels",
    "kGatePanels",
    "kK",
    "kMine",
    "kVectors",
    "kRowVectors",
];

/// Assertions without a bound: implied by others, or about a kernel's own choices.
const OTHERS: [(&str, &str); 20] = [
    // Implied by the bounds on heads of latents.
    ("tile/head_product.cuh", "kK % kHeadStep == 0"),
    // Implied by heads of multiples of 64 elements.
    (
        "tile/pages_fp8.cuh",
        "kGroup % target::PAGE == 0 && kRounds % kAtOnce == 0",
    ),
    // About the leaf's formats, on which `check` has rules.
    (
        "tile/pages.cuh",
        "kFp8Pages || target::FORMAT_KV == target::KvFormat::bf16",
    ),
    (
        "ops/embed/rows_f32.cuh",
        "target::FORMAT_EMBED == target::Format::bf16",
    ),
    // About columns, and rows in registers, on which tests below and `check` have rules.
    ("tile/stream.cuh", "W::has(kK)"),
    (
        "tile/stream.cuh",
        "!W::kBlockFactors || (kK / kBlockColumns % 2 == 0 && kCopiedBlocks % 2 == 0)",
    ),
    ("tile/fp4.cuh", "kWidth % kBlockColumns == 0"),
    ("tile/norm.cuh", "kWidth % 4 == 0"),
    ("tile/norm.cuh", "kVectors <= 8"),
    // Implied by keys and values of 128 elements.
    ("ops/conv_silu/channels_f32.cuh", "kChannels % 4 == 0"),
    // Implied by the bound of `route`.
    ("ops/moe/row_f16.cuh", "kAssigned <= tile::kWarpLanes"),
    // About sizes that kernels or leaves fit to the shape.
    ("ops/moe/rows_f16.cuh", "kRowsFit || kRowsMax >= 64"),
    (
        "ops/moe/rows_f16.cuh",
        "kExperts * kOfEach <= Shape::kThreads * kWarmBlocks",
    ),
    ("ops/norm_linear/split_f16.cuh", "kMine <= 16"),
    ("tile/activates_sm90.cuh", "sizeof(Piece) == kPairs * 4"),
    (
        "ops/experts/warpgroups_f16_sm90.cuh",
        "tile::operand_bytes(kSortedMax, Experts::kIntermediate) <= sizeof(float) * kSortedMax * \
         Experts::kIntermediate",
    ),
    (
        "tile/resident.cuh",
        "kTiles * kTileRows <= resident_rows(kK)",
    ),
    (
        "tile/warpgroups_sm90.cuh",
        "!kKnown || kSteps % kUnrolled == 0",
    ),
    (
        "tile/panels.cuh",
        "segments(128) == 1 && segments(768) == 2 && segments(2048) == 8 && \
         segments(5120) == 8 && segments(576) == 2",
    ),
    (
        "ops/gated_delta/columns_f32.cuh",
        "kColumns == tile::kWarpLanes",
    ),
];

fn cuda() -> std::path::PathBuf {
    root().join("cuda")
}

/// Headers below a folder, by their path in `cuda/`.
fn headers(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            headers(&path, found);
        } else if path.extension().is_some_and(|end| end == "cuh") {
            let inside = path.strip_prefix(cuda()).unwrap();
            found.push(inside.to_str().unwrap().to_string());
        }
    }
}

/// Conditions of the static assertions of a header, spaces apart, without their reasons.
fn assertions(header: &str) -> Vec<String> {
    let text = fs::read_to_string(cuda().join(header)).unwrap();
    let starts = text.split("static_assert(").skip(1);
    let conditions = starts.map(|rest| {
        let mut depth = 1;
        let end = rest.find(|letter| {
            depth += i32::from(letter == '(') - i32::from(letter == ')');
            depth == 0
        });
        let words = rest[..end.unwrap()].split_whitespace();
        let whole = words.collect::<Vec<_>>().join(" ");
        whole.split(", \"").next().unwrap().to_string()
    });
    conditions.collect()
}

fn all_headers() -> Vec<String> {
    let mut found = Vec::new();
    headers(&cuda(), &mut found);
    found
}

#[test]
fn every_bound_is_an_assertion_of_device_code() {
    for bound in BOUNDS {
        let found = assertions(bound.file);
        let stands = found.iter().any(|condition| condition == bound.condition);
        assert!(stands, "{} asserts no {}", bound.file, bound.condition);
    }
}

#[test]
fn every_assertion_about_a_model_s_facts_is_a_bound() {
    let bounds = BOUNDS.iter().map(|bound| (bound.file, bound.condition));
    let known: BTreeSet<(&str, &str)> = bounds.chain(OTHERS).collect();
    let mut found = BTreeSet::new();
    for header in all_headers() {
        for condition in assertions(&header) {
            let about = FACTS.iter().any(|fact| condition.contains(fact));
            let key = (header.as_str(), condition.as_str());
            assert!(
                !about || known.contains(&key),
                "{header} asserts {condition}: state a bound"
            );
            found.insert((header.clone(), condition));
        }
    }
    for (file, condition) in OTHERS {
        let stands = found.contains(&(file.to_string(), condition.to_string()));
        assert!(stands, "{file} asserts no {condition} any more");
    }
}

/// Headers that a header includes, itself and theirs among them.
fn included(header: &str, found: &mut BTreeSet<String>) {
    if !found.insert(header.to_string()) {
        return;
    }
    let text = fs::read_to_string(cuda().join(header)).unwrap();
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("#include \""));
    for name in lines.filter_map(|rest| rest.strip_suffix('"')) {
        if cuda().join(name).exists() {
            included(name, found);
        }
    }
}

#[test]
fn a_bound_of_one_kernel_is_asserted_where_that_kernel_is_compiled() {
    let headers = all_headers();
    for bound in BOUNDS {
        let Some([op, kernel]) = bound.kernel else {
            continue;
        };
        let start = format!("ops/{op}/{kernel}");
        let mut found = BTreeSet::new();
        let of_kernel = headers.iter().filter(|header| header.starts_with(&start));
        of_kernel.for_each(|header| included(header, &mut found));
        assert!(found.contains(bound.file), "{op}: {}", bound.file);
    }
}

#[test]
fn numbers_that_bounds_count_with_are_those_of_device_code() {
    let lines = [
        ("tile/panels.cuh", "inline constexpr int kRunBytes = 64;"),
        (
            "tile/panels.cuh",
            "inline constexpr int kRunColumns = kRunBytes / 2;",
        ),
        (
            "tile/panels.cuh",
            "inline constexpr int kBlockColumns = 128;",
        ),
        (
            "tile/panels.cuh",
            "k % (kStorage == Storage::f16 ? kRunColumns : kBlockColumns) == 0",
        ),
        ("tile/panels.cuh", "inline constexpr int kSegmentsMax = 8;"),
        ("tile/panels.cuh", "inline constexpr int kPanelRows = 16;"),
        (
            "tile/resident.cuh",
            "inline constexpr int kResidentRegisters = 128;",
        ),
        (
            "tile/resident.cuh",
            "inline constexpr int kPairColumns = 32;",
        ),
        (
            "tile/resident.cuh",
            "k / segments(k) / kPairColumns * 4 <= kResidentRegisters",
        ),
        ("tile/reduce.cuh", "inline constexpr int kWarpLanes = 32;"),
        ("tile/pages.cuh", "inline constexpr int kPageColumns = 64;"),
        (
            "tile/warpgroups_sm90.cuh",
            "inline constexpr int kConsumers = 2;",
        ),
        (
            "tile/warpgroups_sm90.cuh",
            "inline constexpr int kTilePanels = 4 * kConsumers;",
        ),
        (
            "tile/warpgroups_sm90.cuh",
            "inline constexpr int kRoundColumns = 512;",
        ),
        ("tile/head.cuh", "int kPairs = A::kRotaryDim / 2;"),
        (
            "ops/experts/plan.cuh",
            "inline constexpr int kPlanThreads = 1024;",
        ),
        (
            "ops/experts/parts.cuh",
            "inline constexpr int kPairs = kWidth / 2;",
        ),
        (
            "ops/experts/warpgroups_f16_sm90.cuh",
            "int kBlockPairs = 32;",
        ),
        (
            "tile/activates_sm90.cuh",
            "int kActivatedColumns = kTilePanels * 8;",
        ),
        (
            "ops/gated_delta/columns_f32.cuh",
            "inline constexpr int kColumns = 32;",
        ),
        (
            "ops/moe/rows_f16.cuh",
            "inline constexpr int kChoiceWords = Experts::kPerToken / 2;",
        ),
    ];
    for (file, line) in lines {
        let text = fs::read_to_string(cuda().join(file)).unwrap();
        assert!(text.contains(line), "{file} has no {line}");
    }
    assert_eq!((RUN_COLUMNS, SEGMENTS_MAX, FP8_BLOCK), (32, 8, 128));
    let cut = [128, 768, 2048, 5120, 576, 96, 32].map(segments);
    assert_eq!(cut, [1, 2, 8, 8, 2, 1, 1]);
}

/// The message for a leaf whose model has one line changed.
fn message(leaf: &str, from: &str, to: &str) -> Option<String> {
    let scratch = Scratch::of(leaf);
    let model = leaf.split('/').nth(1).unwrap();
    let file = format!("targets/_model/{model}/model.toml");
    scratch.edit(&file, from, to);
    let text = fs::read_to_string(root().join(&file)).unwrap();
    let sums = text.lines().filter(|line| line.starts_with("tensor"));
    sums.for_each(|line| scratch.edit(&file, line, ""));
    let found = scratch.load(leaf).err()?.to_string();
    let found = found.strip_prefix(&format!("{file}: ")).unwrap_or(&found);
    Some(found.to_string())
}

/// Models for a GPU with one fact changed, and the beginning of the message about it.
const REFUSED: [(&str, &str, &str, &str); 23] = [
    (
        "llama-4",
        "head_dim = 64\nrotary_dim = 64",
        "head_dim = 96\nrotary_dim = 96",
        "attention.head_dim = 96: must be 64, 128, 256 or 512",
    ),
    (
        "llama-4",
        "head_dim = 64\nrotary_dim = 64",
        "head_dim = 80\nrotary_dim = 80",
        "attention.head_dim = 80: must be 64, 128, 256 or 512",
    ),
    (
        "llama-4",
        "head_dim = 64\nrotary_dim = 64",
        "head_dim = 192\nrotary_dim = 192",
        "attention.head_dim = 192: must be 64, 128, 256 or 512",
    ),
    (
        "llama-4",
        "hidden = 128",
        "hidden = 36",
        "hidden = 36: makes 36 columns of ",
    ),
    (
        "llama-4",
        "hidden = 128",
        "hidden = 2688",
        "hidden = 2688: must be cut into segments",
    ),
    (
        "llama-4",
        "intermediate = 384",
        "intermediate = 80",
        "mlp.intermediate = 80: makes 80 columns of model.layers.{layer}.mlp.down_proj; kernels \
         take multiples of 32 in bf16",
    ),
    (
        "llama-4",
        "heads = 8\nkv_heads = 2",
        "heads = 34\nkv_heads = 2",
        "attention.kv_heads = 2: must leave at most 16 query heads",
    ),
    (
        "llama-4",
        "vocab = 331",
        "vocab = 50",
        "vocab = 50: must be at least 64",
    ),
    (
        "qwen3_5-4",
        "rotary_dim = 64",
        "rotary_dim = 32",
        "attention.rotary_dim = 32: must be a multiple of 64",
    ),
    (
        "qwen3_5-4",
        "rotary_dim = 64",
        "rotary_dim = 96",
        "attention.rotary_dim = 96: must be a multiple of 64",
    ),
    (
        "qwen3_5-4",
        "value_heads = 3",
        "value_heads = 5",
        "gdn.value_heads = 5: must be one, three or an even number",
    ),
    (
        "qwen3_5-4",
        "key_dim = 128",
        "key_dim = 64",
        "gdn.key_dim = 64: must be 128",
    ),
    (
        "qwen3_5-4",
        "value_dim = 128",
        "value_dim = 96",
        "gdn.value_dim = 96: must be 128",
    ),
    (
        "qwen3_5-4",
        "conv_kernel = 4",
        "conv_kernel = 3",
        "gdn.conv_kernel = 3: must be 4",
    ),
    (
        "qwen3_next-4",
        "shared_intermediate = 128",
        "shared_intermediate = 256",
        "moe.shared_intermediate = 256: must be moe.intermediate",
    ),
    (
        "qwen3_moe-4",
        "experts_per_token = 2",
        "experts_per_token = 3",
        "moe.experts_per_token = 3: must be even",
    ),
    (
        "qwen3_moe-4",
        "experts = 3",
        "experts = 2000",
        "moe.experts = 2000: must be at most 1024",
    ),
    (
        "qwen3_moe-4",
        "\nintermediate = 128",
        "\nintermediate = 36",
        "moe.intermediate = 36: ",
    ),
    (
        "mistral4-4",
        "heads = 32",
        "heads = 24",
        "attention.kv_heads = 1: must leave at most 16 query heads to a KV head, or a multiple",
    ),
    (
        "mistral4-4",
        "head_dim = 320",
        "head_dim = 384",
        "attention.head_dim = 384: must be 64, 128, 256 or 512",
    ),
    (
        "mistral4-4",
        "head_dim = 320",
        "head_dim = 576",
        "attention.head_dim = 576: must be at most 512",
    ),
    (
        "mistral4-4",
        "nope_dim = 64",
        "nope_dim = 32",
        "latent.nope_dim = 32: must be a multiple of 64",
    ),
    (
        "mistral4-4",
        "\nvalue_dim = 64",
        "\nvalue_dim = 32",
        "latent.value_dim = 32: must be a multiple of 64",
    ),
];

#[test]
fn what_no_kernel_takes_is_refused_by_the_manifest_s_key_on_every_gpu_and_not_on_a_cpu() {
    for (model, from, to, expected) in REFUSED {
        for hw in ["h200", "gb10"] {
            let found = message(&format!("{hw}/random-{model}/bf16"), from, to);
            let found = found.unwrap_or_else(|| panic!("{hw}: {to} is accepted"));
            assert!(found.starts_with(expected), "{hw}: {found}");
        }
        let found = message(&format!("cpu/random-{model}/bf16"), from, to);
        assert_eq!(found, None, "{to}");
    }
}

#[test]
fn a_kernel_that_takes_less_than_others_is_named() {
    let found = message(
        "h200/random-qwen3_moe-4/bf16",
        "\nintermediate = 128",
        "\nintermediate = 192",
    );
    let expected = "targets/_hw/h200.toml: op.experts.kernel = warpgroups_f16: moe.intermediate = \
                    192 must be a multiple of 128: steps are whole (cuda/tile/warpgroups_sm90.cuh \
                    asserts kK % kBlockColumns == 0); name another kernel in \
                    [op.\"experts\"]";
    assert_eq!(found.as_deref(), Some(expected));
    let found = message(
        "gb10/random-qwen3_moe-4/bf16",
        "\nintermediate = 128",
        "\nintermediate = 192",
    );
    assert_eq!(found, None);
}

/// Facts of published models, of which none may be refused.
#[test]
fn what_published_models_have_is_taken() {
    let mut leaves = crate::target::leaves(&root()).unwrap();
    leaves.retain(|leaf| !leaf.starts_with("cpu/"));
    assert!(leaves.len() > 30);
    leaves.iter().for_each(|leaf| drop(repository(leaf)));
}
