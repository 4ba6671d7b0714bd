//! The model against golden files of another implementation, and against itself in other batches.
//!
//! Runs for whatever target the build names, when the repository holds its weights.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;
use crate::backend::cpu::Cpu;
use crate::backend::cpu::random::Random;
use crate::engine::executor::{Executor, PageId, Rows, Slot};
use crate::engine::request::TokenId;
use crate::target::{self, EMBEDDED, KV_PAGES, MAX_SEQUENCES, PAGE, VOCAB};
use crate::weights::{self, Progress};

/// Largest difference of a logit between two F32 implementations that add in different orders.
const LOGIT_TOLERANCE: f32 = 1e-4;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("targets/_model")
        .join(target::MODEL)
}

/// The target's model; None when the repository does not hold its weights.
fn runner(threads: usize) -> Option<Runner<Cpu>> {
    let progress = Arc::new(Progress::default());
    let stored = ["model.safetensors", "model.safetensors.index.json"];
    let checkpoint = if !EMBEDDED.is_empty() {
        weights::open_embedded(progress)
    } else if stored.iter().any(|name| folder().join(name).exists()) {
        weights::open(&folder(), progress)
    } else {
        return None;
    };
    let checkpoint = checkpoint.unwrap_or_else(|error| panic!("{error}"));
    Some(Runner::load(Cpu::new(threads), &checkpoint).unwrap_or_else(|error| panic!("{error}")))
}

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

/// A sequence by hand: any slot, any pages.
struct Sequence {
    slot: Slot,
    pages: Vec<PageId>,
    tokens: Vec<TokenId>,
    done: usize,
}

impl Sequence {
    fn rows(&self, count: usize) -> Rows<'_> {
        let tokens = &self.tokens[self.done..self.done + count];
        Rows {
            slot: self.slot,
            start: self.done,
            tokens,
            pages: &self.pages,
            logits: true,
        }
    }
}

fn alone(tokens: &[TokenId]) -> Sequence {
    let pages = (0..tokens.len().div_ceil(PAGE) as u32)
        .map(PageId)
        .collect();
    Sequence {
        slot: Slot(0),
        pages,
        tokens: tokens.to_vec(),
        done: 0,
    }
}

/// Logits after every position, token by token.
fn decode(runner: &mut Runner<Cpu>, tokens: &[TokenId]) -> Vec<Vec<f32>> {
    let mut sequence = alone(tokens);
    let mut all = Vec::new();
    for _ in tokens {
        let mut logits = Vec::new();
        runner.step(&[sequence.rows(1)], &mut logits).unwrap();
        sequence.done += 1;
        all.push(logits);
    }
    all
}

#[test]
fn prefill_agrees_with_the_reference() {
    let Some(mut runner) = runner(2) else { return };
    let golden = Golden::read();
    let largest = golden.difference("prefill", |position| {
        let (mut sequence, mut logits) = (alone(&golden.tokens[..=position]), Vec::new());
        while sequence.done <= position {
            let count = (position + 1 - sequence.done).min(target::PREFILL_TOKENS);
            runner.step(&[sequence.rows(count)], &mut logits).unwrap();
            sequence.done += count;
        }
        logits
    });
    println!(
        "{}: largest difference of a prefill logit {largest:e}",
        target::MODEL
    );
    assert!(largest <= LOGIT_TOLERANCE, "{largest:e}");
}

#[test]
fn decode_agrees_with_the_reference() {
    let Some(mut runner) = runner(2) else { return };
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
    let Some(mut runner) = runner(2) else { return };
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
        let mut logits = Vec::new();
        runner.step(&[sequence.rows(count)], &mut logits).unwrap();
        let next = &golden.tokens[sequence.done + 1..sequence.done + 1 + count];
        runner.draft(next, &mut logits).unwrap();
        sequence.done += count;
        drafts.resize(sequence.done, None);
        drafts[sequence.done - 1] = Some(logits);
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
    let Some(mut runner) = runner(2) else { return };
    let golden = std::fs::read_to_string(folder().join("golden/tokens.json")).unwrap();
    let report = selfcheck(&mut runner, &golden, TOLERANCE_F32).unwrap_or_else(|e| panic!("{e}"));
    assert!(
        report.sequences >= 8 && report.tokens >= 8 * 16,
        "{report:?}"
    );
}

#[test]
fn a_wrong_golden_token_is_found() {
    let Some(mut runner) = runner(2) else { return };
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

/// Deals the sequences' rows into random steps on random slots and pages; every row of logits must
/// have the bits that it has alone, token by token.
#[test]
fn bits_do_not_depend_on_batch_chunk_slot_or_page() {
    const SEQUENCES: usize = 3;
    const TOKENS: usize = 80;
    let Some(mut runner) = runner(3) else { return };
    let mut random = Random::new(11);
    let draw = |random: &mut Random| {
        (0..TOKENS)
            .map(|_| random.below(VOCAB) as TokenId)
            .collect()
    };
    let texts: Vec<Vec<TokenId>> = (0..SEQUENCES).map(|_| draw(&mut random)).collect();
    let expected: Vec<_> = texts
        .iter()
        .map(|tokens| decode(&mut runner, tokens))
        .collect();
    for _ in 0..3 {
        let mut sequences = deal(&texts, &mut random);
        while sequences.iter().any(|sequence| sequence.done < TOKENS) {
            random_step(&mut runner, &mut sequences, &expected, &mut random);
        }
    }
}

/// Puts the texts on random slots and pages.
fn deal(texts: &[Vec<TokenId>], random: &mut Random) -> Vec<Sequence> {
    let mut slots: Vec<u32> = (0..MAX_SEQUENCES as u32).collect();
    let mut pages: Vec<u32> = (0..KV_PAGES as u32).collect();
    let mut take = |from: &mut Vec<u32>| from.swap_remove(random.below(from.len()));
    let sequences = texts.iter().map(|tokens| Sequence {
        slot: Slot(take(&mut slots)),
        pages: (0..tokens.len().div_ceil(PAGE))
            .map(|_| PageId(take(&mut pages)))
            .collect(),
        tokens: tokens.clone(),
        done: 0,
    });
    sequences.collect()
}

fn random_step(
    runner: &mut Runner<Cpu>,
    sequences: &mut [Sequence],
    expected: &[Vec<Vec<f32>>],
    random: &mut Random,
) {
    let mut chosen = Vec::new();
    for (index, sequence) in sequences.iter().enumerate() {
        let left = sequence.tokens.len() - sequence.done;
        let count = [0, 1, 1, 1 + random.below(30)][random.below(4)].min(left);
        if count > 0 {
            chosen.push((index, count));
        }
    }
    let rows: Vec<Rows<'_>> = chosen
        .iter()
        .map(|&(i, count)| sequences[i].rows(count))
        .collect();
    let mut logits = Vec::new();
    runner.step(&rows, &mut logits).unwrap();
    assert_eq!(logits.len(), chosen.len() * VOCAB);
    for (&(index, count), logits) in chosen.iter().zip(logits.chunks_exact(VOCAB)) {
        sequences[index].done += count;
        let alone = &expected[index][sequences[index].done - 1];
        let differing = logits
            .iter()
            .zip(alone)
            .filter(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(
            differing.count(),
            0,
            "sequence {index}, {} tokens",
            sequences[index].done
        );
    }
}

#[test]
fn threads_do_not_change_bits() {
    let (Some(mut one), Some(mut three)) = (runner(1), runner(3)) else {
        return;
    };
    let tokens: Vec<TokenId> = (0..70).map(|i| (i * 37 % VOCAB) as TokenId).collect();
    assert_eq!(decode(&mut one, &tokens), decode(&mut three, &tokens));
}

#[test]
fn rows_out_of_range_are_refused() {
    let Some(mut runner) = runner(1) else { return };
    let mut refuse = |rows: Rows<'_>| runner.step(&[rows], &mut Vec::new()).unwrap_err().0;
    let (slot, pages) = (Slot(0), &[PageId(0)][..]);
    let good = Rows {
        slot,
        start: 0,
        tokens: &[0],
        pages,
        logits: true,
    };
    assert!(
        refuse(Rows {
            tokens: &[VOCAB as u32],
            ..good
        })
        .contains("vocabulary")
    );
    assert!(
        refuse(Rows {
            tokens: &[],
            ..good
        })
        .contains("context")
    );
    assert!(
        refuse(Rows {
            start: target::MAX_CONTEXT,
            ..good
        })
        .contains("context")
    );
    assert!(
        refuse(Rows {
            start: PAGE,
            ..good
        })
        .contains("pages")
    );
    assert!(
        refuse(Rows {
            pages: &[PageId(KV_PAGES as u32)],
            ..good
        })
        .contains("page")
    );
    assert!(
        refuse(Rows {
            slot: Slot(MAX_SEQUENCES as u32),
            ..good
        })
        .contains("slot")
    );
}

#[test]
fn acceptance_counts_drafts() {
    if target::MTP_LAYERS == 0 {
        return;
    }
    let Some(mut runner) = runner(2) else { return };
    let golden = std::fs::read_to_string(folder().join("golden/tokens.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&golden).unwrap();
    let sequences = golden["sequences"].as_array().unwrap();
    let prompt = |sequence: &serde_json::Value| -> Vec<TokenId> {
        serde_json::from_value(sequence["prompt"].clone()).unwrap()
    };
    let prompts: Vec<_> = sequences.iter().map(prompt).collect();
    let counted = acceptance(&mut runner, &prompts, 10).unwrap();
    println!(
        "{}: {:.2} of the drafts accepted",
        target::MODEL,
        counted.rate()
    );
    assert!(
        counted.drafted > 0 && counted.drafted <= 9 * prompts.len(),
        "{counted:?}"
    );
    assert!(counted.accepted <= counted.drafted, "{counted:?}");
}
