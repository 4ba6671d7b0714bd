//! The model against golden files of another implementation.
//!
//! Runs for whatever target the build names, when the repository holds its weights.

use std::sync::Arc;

use super::*;
use crate::tests::alone;
use host::testing::Folder;
use model::backend::cpu::Cpu;
use model::target::{self, Format, Purpose, Role, Site, VOCAB};
use model::testing::{folder, runner};
use model::weights::{self, Checkpoint, Layout, WeightsError, Wrong};
use model::{Plan, Runner};
use step::executor::{Executor, TokenId};

/// Largest difference of a logit of a drawn model, whose reference is of F64, from that.
const DRAWN_DIFFERENCE_MAX: f32 = 1e-4;
/// Share of first drafts of `tiny` that must be right, over its golden replies.
const ACCEPTANCE_LEAST: f64 = 0.7;

/// The long golden sequence.
struct Golden {
    tokens: Vec<TokenId>,
    /// Ascending.
    positions: Vec<usize>,
    /// `[positions][VOCAB]` of the model; of the drafting layer but for the last position, if there
    /// is one.
    logits: Vec<f32>,
    drafts: Option<Vec<f32>>,
}

impl Golden {
    fn read() -> Golden {
        let path = folder().join("golden/logits.safetensors");
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        let words = |name: &str| -> Vec<u32> {
            let offset = |i: usize| header[name]["data_offsets"][i].as_u64().unwrap() as usize;
            let data = &bytes[8 + length..][offset(0)..offset(1)];
            data.chunks_exact(4)
                .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
                .collect()
        };
        let floats = |name: &str| words(name).into_iter().map(f32::from_bits).collect();
        let drafts = !header["drafts"].is_null();
        Golden {
            tokens: words("tokens"),
            positions: words("positions").into_iter().map(|p| p as usize).collect(),
            logits: floats("logits"),
            drafts: drafts.then(|| floats("drafts")),
        }
    }

    /// Asks for the logits at each position that has golden `rows`, ascending; the largest
    /// difference.
    fn difference(&self, rows: &[f32], mut found: impl FnMut(usize) -> Vec<f32>) -> f32 {
        let mut largest = 0.0f32;
        for (expected, &position) in rows.chunks_exact(VOCAB).zip(&self.positions) {
            let allowed = match target::MODEL.starts_with("random-") {
                true => DRAWN_DIFFERENCE_MAX,
                false => TOLERANCE_F32.relative * selfcheck::scale(expected),
            };
            for (found, expected) in found(position).iter().zip(expected) {
                assert!(found.is_finite());
                let difference = (found - expected).abs();
                assert!(
                    difference <= allowed,
                    "position {position}: a logit is {found} instead of {expected}, which may \
                     differ by {allowed:.1e}"
                );
                largest = largest.max(difference);
            }
        }
        largest
    }

    /// Difference of the model, `count` tokens a step at most; the last step before a golden
    /// position takes fewer.
    fn difference_of_model(&self, runner: &mut Runner<Cpu>, count: usize) -> f32 {
        let mut sequence = alone(&self.tokens);
        self.difference(&self.logits, |position| {
            while sequence.done <= position {
                let rows = count.min(position + 1 - sequence.done);
                runner.step(&[sequence.rows(rows)]).unwrap();
                sequence.done += rows;
            }
            runner.logits(0).unwrap().to_vec()
        })
    }
}

#[test]
fn the_weights_take_no_more_than_the_ledger_says() {
    let Some(runner) = runner(1) else { return };
    let plan = Plan::largest::<Cpu>(Layout::whole());
    let most = plan.entries().next().unwrap().bytes;
    let taken = runner.matrix_bytes();
    assert!(taken > 0 && taken <= most, "{taken} of {most}");
}

/// A wrap of a table of angles, or an error of attention after its first split, shows at none of
/// the positions before it.
#[test]
fn the_long_sequence_reaches_beyond_positions_that_may_wrap() {
    if folder().join("golden").exists() {
        let golden = Golden::read();
        let least = if target::MODEL == "tiny" { 2048 } else { 300 };
        assert!(golden.tokens.len() >= least.min(target::MAX_CONTEXT));
        assert_eq!(golden.positions.last(), Some(&(golden.tokens.len() - 1)));
        for boundary in [64, 128, 192, 256, 512, 1024, 1536] {
            let near = [boundary - 1, boundary, boundary + 1];
            let compared = near.iter().all(|at| golden.positions.contains(at));
            assert!(compared || boundary > golden.tokens.len(), "{boundary}");
        }
    }
}

#[test]
fn prefill_agrees_with_the_reference() {
    let Some(mut runner) = runner(1) else { return };
    let most = target::PREFILL_TOKENS;
    let largest = Golden::read().difference_of_model(&mut runner, most);
    println!("{}: prefill differs by {largest:.1e}", target::MODEL);
}

#[test]
fn decode_agrees_with_the_reference() {
    let Some(mut runner) = runner(1) else { return };
    let largest = Golden::read().difference_of_model(&mut runner, 1);
    println!("{}: decode differs by {largest:.1e}", target::MODEL);
}

#[test]
fn drafts_agree_with_the_reference() {
    let Some(mut runner) = runner(1) else { return };
    let golden = Golden::read();
    let Some(drafts) = &golden.drafts else { return };
    let mut sequence = alone(&golden.tokens);
    let largest = golden.difference(drafts, |position| {
        while sequence.done <= position {
            let rows = target::PREFILL_TOKENS.min(position + 1 - sequence.done);
            runner.step(&[sequence.rows(rows)]).unwrap();
            let next = &golden.tokens[sequence.done + 1..][..rows];
            runner.draft(next).unwrap();
            sequence.done += rows;
        }
        runner.logits(0).unwrap().to_vec()
    });
    println!("{}: drafts differ by {largest:.1e}", target::MODEL);
}

/// Elements of a tensor of the checkpoint's only file, each with the error of `read` where its
/// lowest bit is another; none where there is no such tensor.
fn with_other_bits(
    tensor: &str,
    read: impl Fn(&Checkpoint) -> Option<WeightsError>,
) -> Vec<(usize, Option<WeightsError>)> {
    let Ok(mut file) = std::fs::read(folder().join("model.safetensors")) else {
        return Vec::new();
    };
    let data = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..data]).unwrap();
    let offset = |i: usize| header[tensor]["data_offsets"][i].as_u64();
    let (Some(start), Some(end)) = (offset(0), offset(1)) else {
        return Vec::new();
    };
    let scratch = Folder::new();
    std::fs::copy(folder().join("config.json"), scratch.0.join("config.json")).unwrap();
    let size = if header[tensor]["dtype"] == "F32" {
        4
    } else {
        2
    };
    let elements = (end - start) as usize / size;
    let found = [0, elements / 2, elements - 1].map(|index| {
        let low = data + start as usize + size * index;
        file[low] ^= 1;
        std::fs::write(scratch.0.join("model.safetensors"), &file).unwrap();
        file[low] ^= 1;
        let checkpoint = weights::open(&scratch.0, Arc::default()).unwrap();
        (index, read(&checkpoint))
    });
    found.into()
}

/// A stored head that differs from the embedding that it is tied to is taken, as by transformers;
/// one that does not differ is loaded by the tests above.
#[test]
fn a_stored_head_of_other_numbers_is_refused() {
    if !Layout::whole().has(Role::TiedHead, Site::Whole) {
        return;
    }
    let read = |checkpoint: &Checkpoint| checkpoint.matrix(Role::Embedding, Site::Whole).read();
    for (expected, error) in with_other_bits("lm_head.weight", |checkpoint| read(checkpoint).err())
    {
        let Some(WeightsError::Element { index, wrong, .. }) = error else {
            panic!("{expected}: {error:?}");
        };
        assert_eq!((index, wrong), (expected, Wrong::Untied));
    }
}

/// Weights of F32 that are BF16 numbers are loaded by the tests above.
#[test]
fn a_weight_of_f32_that_is_no_bf16_is_refused() {
    let mut matrices = Layout::whole().matrices();
    let Some(wide) = matrices.find(|matrix| matrix.stored_format() == Format::F32) else {
        return;
    };
    let tensor = wide.tensor(Purpose::Elements);
    let found = with_other_bits(&tensor, |checkpoint| checkpoint.source(wide).read().err());
    assert!(!found.is_empty());
    for (expected, error) in found {
        let Some(WeightsError::Element { index, wrong, .. }) = error else {
            panic!("{expected}: {error:?}");
        };
        assert!(
            index == expected && matches!(wrong, Wrong::Narrow(_)),
            "{expected}: {wrong:?}"
        );
    }
}

#[test]
fn golden_tokens_replay() {
    let Some(mut runner) = runner(1) else { return };
    let golden = std::fs::read_to_string(folder().join("golden/tokens.json")).unwrap();
    let report = selfcheck(&mut runner, &golden, TOLERANCE_F32).unwrap_or_else(|e| panic!("{e}"));
    assert!(
        report.sequences >= 8 && report.tokens >= 8 * 16,
        "{report:?}"
    );
}

#[test]
fn a_wrong_golden_token_is_found() {
    let Some(mut runner) = runner(1) else { return };
    let golden = std::fs::read_to_string(folder().join("golden/tokens.json")).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&golden).unwrap();
    let logprob = &mut value["sequences"][2]["top"][3][1][1];
    *logprob = (logprob.as_f64().unwrap() - 0.01).into();
    let error = selfcheck(&mut runner, &value.to_string(), TOLERANCE_F32).unwrap_err();
    assert!(
        matches!(
            error,
            Mismatch::Logprob {
                sequence: 2,
                position: 3,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn acceptance_counts_drafts() {
    if target::MTP_LAYERS == 0 {
        return;
    }
    let Some(mut runner) = runner(1) else { return };
    let golden = std::fs::read_to_string(folder().join("golden/tokens.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&golden).unwrap();
    let sequences = golden["sequences"].as_array().unwrap();
    let exchange = |sequence: &serde_json::Value| {
        let ids = |name: &str| serde_json::from_value(sequence[name].clone()).unwrap();
        Exchange {
            prompt: ids("prompt"),
            reply: ids("tokens"),
        }
    };
    let exchanges: Vec<Exchange> = sequences.iter().map(exchange).collect();
    let counted = acceptance(&mut runner, &exchanges).unwrap();
    if target::MODEL == "tiny" {
        assert!(counted.rate() >= ACCEPTANCE_LEAST, "{counted:?}");
    }
    println!(
        "{}: {:.2} of the drafts accepted",
        target::MODEL,
        counted.rate()
    );
    let drafted: usize = exchanges.iter().map(|given| given.reply.len() - 1).sum();
    assert!(drafted > 0 && counted.drafted == drafted, "{counted:?}");
    assert!(counted.accepted <= counted.drafted, "{counted:?}");
}
