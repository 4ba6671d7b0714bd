//! Replies with drafts, of which some are rejected, have the bits of plain decoding.

use super::{
    Chooser, Extent, Rule, Sequence, Trace, Trial, Tried, in_chunks, pages, prefill, prompt, seen,
};
use model::ops::{CELL, ONE_BY_ONE, VERIFIED_MAX};
use model::target::{DRAFTS, MAX_SEQUENCES, PREFILL_TOKENS, SNAPSHOTS, STATES, VOCAB};
use model::{Runner, Runs};
use step::executor::{
    DEPTH_MAX, DeviceError, Drafted, Drafting, Draw, Executor, PageId, SeqRows, Slot, States,
    TokenId,
};

/// Number of greedy tokens of a reply: drafts cross the end of a cell.
const STEPS: usize = 12;
/// Largest top-k of a rule by which a device draws drafts.
const RULE_TOP_K: usize = 32;
/// Longest prompt, tokens.
const PROMPT_MAX: usize = 2 * CELL;

/// Compares replies with drafts at random positions with plain replies.
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
        let own = pages(0, length + STEPS + ONE_BY_ONE);
        let sequence = Sequence::new(0, own, prompt(trial, length));
        let wanted = in_chunks(runner, &sequence, STEPS, || PREFILL_TOKENS)?;
        let found = drafted(runner, &sequence, &wanted, trial)?;
        compared.add(&found, &wanted);
    }
    trial.tell(compared);
    Ok(())
}

/// Runs the sequence alone, with tokens of `wanted` as drafts, of which some are made wrong.
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
        let draft_states = states(from, depth);
        let rows = SeqRows {
            states: States {
                from,
                ..States::own(sequence.slot)
            },
            draft_states: &draft_states,
            logits: tokens.len(),
            ..sequence.rows(sequence.prompt.len() + known, &tokens)
        };
        runner.step(&[rows])?;
        for row in 0..=right.min(depth) {
            trace.push(seen(runner, row)?);
        }
        from = draft_states.get(right).copied().unwrap_or(sequence.slot);
    }
    Ok(trace)
}

/// States after each of `depth` drafts, with `from` among them where it is a draft's state; none if
/// the model has no states.
fn states(from: Slot, depth: usize) -> Vec<Slot> {
    let first = MAX_SEQUENCES + SNAPSHOTS;
    let others = (first..STATES).map(|state| Slot(state as u32));
    let own = (from.0 as usize >= first).then_some(from);
    let others = others.filter(|state| *state != from);
    own.into_iter().chain(others).take(depth).collect()
}

/// Largest number of sequences of a step with predictions.
const PREDICTED_MAX: usize = if MAX_SEQUENCES < 3 { MAX_SEQUENCES } else { 3 };

/// Compares drafts that the device draws ahead of the host, from logits of the model and of each
/// prediction, with the drafts that the host draws by the same random rules.
pub(super) fn predictions<B: Runs>(
    runner: &mut Runner<B>,
    extent: Extent,
    trial: &mut impl Trial,
) -> Result<(), DeviceError> {
    // Devices draw drafts by rankings, so backends without rankings have nothing to compare.
    if !(B::RANKS && runner.predicts()) {
        return Ok(());
    }
    let case = format!("{} steps", extent.cuts);
    let mut compared = Tried::nothing(&case, "drafts of the device = of the host");
    for _ in 0..extent.cuts {
        let replies = (0..1 + trial.below(PREDICTED_MAX)).map(|at| Reply::drawn(runner, at, trial));
        let replies = replies.collect::<Result<Vec<_>, _>>()?;
        let depth = 1 + trial.below(DEPTH_MAX);
        let Some(drafted) = drafts_of_device(runner, &replies, depth)? else {
            return Ok(()); // This backend records nothing.
        };
        compare(runner, &replies, (&drafted, depth), &mut compared)?;
    }
    trial.tell(compared);
    Ok(())
}

/// A sequence without a prompt: a first token, then drafts.
struct Reply {
    slot: Slot,
    pages: Vec<PageId>,
    /// First token, then drafts, some of which are right.
    tokens: Vec<TokenId>,
    draw: Draw,
    chooser: Chooser,
    /// Whether `chooser` draws at random; otherwise it takes the most likely token.
    draws: bool,
}

impl Reply {
    fn drawn<B: Runs>(
        runner: &mut Runner<B>,
        at: usize,
        trial: &mut impl Trial,
    ) -> Result<Reply, DeviceError> {
        let rule = rule(trial);
        let (draw, chooser) = trial.chooser(&rule);
        let mut reply = Reply {
            slot: Slot(at as u32),
            pages: pages(at, ONE_BY_ONE + DEPTH_MAX),
            tokens: prompt(trial, 1),
            draw,
            chooser,
            draws: rule.temperature > 0.0,
        };
        let most = ONE_BY_ONE
            .min(VERIFIED_MAX / PREDICTED_MAX)
            .min(1 + DRAFTS / PREDICTED_MAX);
        for _ in 0..trial.below(most) {
            runner.step(&[reply.rows(0, &reply.tokens)])?;
            let right = reply.choice(runner, reply.tokens.len() - 1, reply.tokens.len());
            let wrong = trial.below(VOCAB) as TokenId;
            reply
                .tokens
                .push(if trial.below(4) > 0 { right } else { wrong });
        }
        Ok(reply)
    }

    fn rows<'a>(&'a self, start: usize, tokens: &'a [TokenId]) -> SeqRows<'a> {
        SeqRows {
            logits: tokens.len(),
            ..SeqRows::of(self.slot, start, tokens, &self.pages)
        }
    }

    /// Token at `position`, chosen by the ranking of row `row` of the last step or prediction.
    fn choice<B: Runs>(&self, runner: &Runner<B>, row: usize, position: usize) -> TokenId {
        let ranked = runner.ranked(row).expect("rows are ranked");
        (self.chooser)(&ranked, position)
    }

    /// Tokens chosen after each of the reply's rows, of which the first is row `first` of the step.
    fn choices<B: Runs>(&self, runner: &Runner<B>, first: usize) -> Vec<TokenId> {
        let rows = 0..self.tokens.len();
        rows.map(|row| self.choice(runner, first + row, row + 1))
            .collect()
    }
}

/// Drafts that the device makes after a step of all rows; none on a backend that makes no drafts.
fn drafts_of_device<B: Runs>(
    runner: &mut Runner<B>,
    replies: &[Reply],
    depth: usize,
) -> Result<Option<Vec<Drafted>>, DeviceError> {
    let steps: Vec<_> = replies
        .iter()
        .map(|reply| reply.rows(0, &reply.tokens))
        .collect();
    let last = |reply: &Reply| reply.tokens.len() + depth - 2;
    let rows: Vec<_> = replies
        .iter()
        .map(|reply| reply.rows(last(reply), &[0]))
        .collect();
    let draws: Vec<_> = replies.iter().map(|reply| reply.draw).collect();
    let drafting = Drafting {
        depth,
        rows: &rows,
        draws: &draws,
    };
    let mut drafted = Vec::new();
    if !runner.step_draft(&steps, &drafting)? {
        return Ok(None);
    }
    runner.drafted(&mut drafted)?;
    Ok(Some(drafted))
}

/// Compares drafts of the device with the host's choices.
fn compare<B: Runs>(
    runner: &mut Runner<B>,
    replies: &[Reply],
    (drafted, depth): (&[Drafted], usize),
    compared: &mut Tried,
) -> Result<(), DeviceError> {
    let mut same = |same: bool| {
        compared.rows += 1;
        compared.different += usize::from(!same);
    };
    let steps: Vec<_> = replies
        .iter()
        .map(|reply| reply.rows(0, &reply.tokens))
        .collect();
    runner.step(&steps)?;
    let (mut next, mut wanted) = (Vec::new(), Vec::new());
    for (reply, drafted) in replies.iter().zip(drafted) {
        let first = next.len();
        let choices = reply.choices(runner, first);
        let pairs = choices.iter().zip(&reply.tokens[1..]);
        let accepted = pairs.take_while(|(chosen, draft)| chosen == draft).count();
        same((accepted, choices[accepted]) == (drafted.accepted, drafted.token));
        wanted.push(first + accepted);
        next.extend(choices);
    }
    runner.predict(&next, &wanted)?;
    for pass in 0..depth {
        let drafts: Vec<_> = drafted.iter().map(|drafted| drafted.drafts[pass]).collect();
        for (row, (reply, draft)) in replies.iter().zip(&drafts).enumerate() {
            let position = drafted[row].accepted + 2 + pass;
            let chosen = reply.choice(runner, row, position);
            // A device's random draw has only the likeliest token of each part of the vocabulary.
            same(chosen == *draft || reply.draws);
        }
        let rows = replies
            .iter()
            .enumerate()
            .map(|(row, reply)| reply.rows(drafted[row].accepted + 1 + pass, &drafts[row..=row]));
        runner.predict_on(&rows.collect::<Vec<_>>())?;
    }
    Ok(())
}

/// A random sampling rule.
fn rule(trial: &mut impl Trial) -> Rule {
    Rule {
        temperature: [0.0, 0.5, 1.0][trial.below(3)],
        top_k: 1 + trial.below(RULE_TOP_K) as u32,
        top_p: [0.5, 0.9, 1.0][trial.below(3)],
        min_p: [0.0, 0.1][trial.below(2)],
        seed: trial.below(1 << 30) as u64,
    }
}
