//! Replies whose rows are drafts, some of which do not hold, have the bits of plain decoding.

use super::{Extent, Sequence, Trace, Trial, Tried, in_chunks, pages, prefill, prompt, seen};
use crate::executor::{DeviceError, Executor, Rows, Slot, States, TokenId};
use crate::model::{Runner, Runs};
use crate::ops::{CELL, ONE_BY_ONE};
use crate::target::{DRAFTS, MAX_SEQUENCES, PREFILL_TOKENS, SNAPSHOTS, STATES, VOCAB};

/// Tokens of a reply: drafts go over the end of a cell.
const STEPS: usize = 12;
/// Longest prompt.
const PROMPT_MAX: usize = 2 * CELL;

/// Tries replies with drafts at random places, each beside a plain one.
pub(super) fn drafts<B: Runs>(
    runner: &mut Runner<B>,
    extent: Extent,
    trial: &mut impl Trial,
) -> Result<(), DeviceError> {
    if DRAFTS == 0 {
        return Ok(());
    }
    let case = format!("{} replies", extent.cuts);
    let mut compared = Tried::nothing(&case, "with drafts = without");
    for at in 0..extent.cuts {
        trial.trying(extent.sequences + 2 * extent.cuts + at, extent.trials());
        let length = 1 + trial.below(PROMPT_MAX);
        let sequence = Sequence {
            slot: Slot(0),
            pages: pages(0, length + STEPS + ONE_BY_ONE),
            prompt: prompt(trial, length),
            begin: None,
            kept: None,
        };
        let wanted = in_chunks(runner, &sequence, STEPS, || PREFILL_TOKENS)?;
        let found = drafted(runner, &sequence, &wanted, trial)?;
        compared.add(&found, &wanted);
    }
    trial.tell(compared);
    Ok(())
}

/// The sequence alone, some of what follows as drafts, of which some are wrong.
fn drafted<B: Runs>(
    runner: &mut Runner<B>,
    sequence: &Sequence,
    wanted: &Trace,
    trial: &mut impl Trial,
) -> Result<Trace, DeviceError> {
    let mut trace = vec![prefill(runner, sequence, || PREFILL_TOKENS)?];
    let mut from = sequence.slot;
    while trace.len() < wanted.len() {
        let known = trace.len() - 1;
        let depth = trial
            .below(ONE_BY_ONE.min(1 + DRAFTS))
            .min(wanted.len() - trace.len() - 1);
        let mut tokens: Vec<TokenId> = wanted[known..=known + depth]
            .iter()
            .map(|seen| seen.0)
            .collect();
        let right = trial.below(depth + 1);
        if let Some(wrong) = tokens.get_mut(1 + right) {
            *wrong = (*wrong + 1) % VOCAB as TokenId;
        }
        let behind = states(from, depth);
        let rows = Rows {
            states: States {
                from,
                ..States::own(sequence.slot)
            },
            start: sequence.prompt.len() + known,
            tokens: &tokens,
            pages: &sequence.pages,
            behind: &behind,
            logits: tokens.len(),
        };
        runner.step(&[rows])?;
        for row in 0..=right.min(depth) {
            trace.push(seen(runner, row)?);
        }
        from = behind.get(right).copied().unwrap_or(sequence.slot);
    }
    Ok(trace)
}

/// States behind so many drafts, the one that they go on from among them; none if the model has
/// no states.
fn states(from: Slot, depth: usize) -> Vec<Slot> {
    let first = MAX_SEQUENCES + SNAPSHOTS;
    let others = (first..STATES).map(|state| Slot(state as u32));
    let own = (from.0 as usize >= first).then_some(from);
    let others = others.filter(|state| *state != from);
    own.into_iter().chain(others).take(depth).collect()
}
