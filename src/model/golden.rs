//! The model against golden files of another implementation.
//!
//! Runs for whatever target the build names, when the repository holds its weights.

use super::tests::{alone, decode, folder, runner};
use super::*;
use crate::engine::executor::Executor;
use crate::engine::request::TokenId;
use crate::target::{self, VOCAB};
use crate::weights::layout;

/// Largest difference of a logit between two F32 implementations that add in different orders.
const LOGIT_TOLERANCE: f32 = 1e-4;
/// Share of first drafts of `tiny` that must be right, over its golden replies.
const ACCEPTANCE_LEAST: f64 = 0.7;

/// The long golden sequence.
struct Golden {
    tokens: Vec<TokenId>,
    positions: Vec<usize>,
    /// By tensor name: prefill, decode, mtp.
    logits: Vec<(String, Vec<f32>)>,
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
        let names = ["prefill", "decode", "mtp"]
            .into_iter()
            .filter(|name| !header[name].is_null());
        Golden {
            tokens: words("tokens"),
            positions: words("positions").into_iter().map(|p| p as usize).collect(),
            logits: names.map(|name| (name.to_string(), floats(name))).collect(),
        }
    }

    fn of(&self, name: &str) -> Option<&[f32]> {
        self.logits
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, logits)| &logits[..])
    }

    /// Largest difference between `found(position)` and the golden logits.
    fn difference(&self, name: &str, mut found: impl FnMut(usize) -> Vec<f32>) -> f32 {
        let golden = self
            .of(name)
            .expect(name)
            .chunks_exact(VOCAB)
            .zip(&self.positions);
        let mut largest = 0.0f32;
        for (expected, &position) in golden {
            for (found, expected) in found(position).iter().zip(expected) {
                assert!(found.is_finite());
                largest = largest.max((found - expected).abs());
            }
        }
        largest
    }
}

#[test]
fn the_weights_take_no_more_than_the_ledger_says() {
    let Some(runner) = runner(1) else { return };
    let plan = Plan::largest(&layout::model(&|_| false));
    let most = plan.entries().next().unwrap().bytes;
    let taken = runner.matrix_bytes();
    assert!(taken > 0 && taken <= most, "{taken} of {most}");
}

#[test]
fn prefill_agrees_with_the_reference() {
    let Some(mut runner) = runner(1) else { return };
    let golden = Golden::read();
    let largest = golden.difference("prefill", |position| {
        let mut sequence = alone(&golden.tokens[..=position]);
        while sequence.done <= position {
            let count = (position + 1 - sequence.done).min(target::PREFILL_TOKENS);
            runner.step(&[sequence.rows(count)]).unwrap();
            sequence.done += count;
        }
        runner.logits(0).unwrap().to_vec()
    });
    println!(
        "{}: largest difference of a prefill logit {largest:e}",
        target::MODEL
    );
    assert!(largest <= LOGIT_TOLERANCE, "{largest:e}");
}

#[test]
fn decode_agrees_with_the_reference() {
    let Some(mut runner) = runner(1) else { return };
    let golden = Golden::read();
    let found = decode(&mut runner, &golden.tokens);
    let largest = golden.difference("decode", |position| found[position].clone());
    println!(
        "{}: largest difference of a decode logit {largest:e}",
        target::MODEL
    );
    assert!(largest <= LOGIT_TOLERANCE, "{largest:e}");
}

#[test]
fn drafts_agree_with_the_reference() {
    let Some(mut runner) = runner(1) else { return };
    let golden = Golden::read();
    if golden.of("mtp").is_none() {
        return;
    }
    let mut sequence = alone(&golden.tokens);
    let mut drafts = Vec::new();
    // Odd chunks, so that drafts of several rows and of one row are both covered.
    for count in [5, 1, 60, 1, 1].into_iter().chain(std::iter::repeat(1)) {
        if sequence.done + count >= golden.tokens.len() {
            break;
        }
        runner.step(&[sequence.rows(count)]).unwrap();
        let next = &golden.tokens[sequence.done + 1..sequence.done + 1 + count];
        runner.draft(next).unwrap();
        sequence.done += count;
        drafts.resize(sequence.done, None);
        drafts[sequence.done - 1] = Some(runner.logits(0).unwrap().to_vec());
    }
    let mut compared = 0;
    for (expected, &position) in golden
        .of("mtp")
        .unwrap()
        .chunks_exact(VOCAB)
        .zip(&golden.positions)
    {
        let Some(found) = &drafts[position] else {
            continue;
        };
        let difference = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        let largest = difference.fold(0.0, f32::max);
        assert!(
            largest <= LOGIT_TOLERANCE,
            "position {position}: {largest:e}"
        );
        compared += 1;
    }
    assert!(compared >= 5, "{compared} positions compared");
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
