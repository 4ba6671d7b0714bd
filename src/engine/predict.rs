//! Drafts of the multi-token-prediction (MTP) layer, made after a step for the next one.
//!
//! The layer runs over every row of a step, so that its KV cache has the prompts; then once more
//! for each further draft of a reply. Drafts are drawn with the request's own random numbers, by
//! the sampler, or by the device before the sampler has chosen.

use std::time::{Duration, Instant};

use super::Engine;
use super::acceptance_rate::{AcceptanceRate, Proposer};
use super::drafts::Drafter;
use super::kv::Kv;
use super::scheduler::Plan;
use super::sequence::Sequence;
use super::speculate::{self, DEPTH_MAX, DraftCost, Proposal, Speculate};
use step::executor::{DeviceError, Drafting, Draw, Executor, PageId, SeqRows, Slot, TokenId};

/// Token id in place of a token that is not known yet, and of tokens in measurements.
const NONE: TokenId = 0;

/// Drafts that the device computes while the host samples.
#[derive(Debug)]
pub(super) struct PendingDrafts {
    /// State slot of each drafted sequence, and the number of its tokens before the step.
    sequences: Vec<(Slot, usize)>,
    /// Number of drafts of each sequence.
    pub depth: usize,
}

/// Number of runs of each measurement at the start, of which the shortest counts.
pub(super) const MEASURED: usize = 3;

/// Runs the planned rows, and after them `depth` predictions for each sequence. Returns none, and
/// runs nothing, if the device cannot predict so.
pub(super) fn step_draft<E: Executor>(
    executor: &mut E,
    rows: &[SeqRows<'_>],
    (plan, running, kv): (&Plan, &[Sequence], &Kv),
    depth: usize,
) -> Result<Option<PendingDrafts>, DeviceError> {
    let scheduled = plan.scheduled.iter();
    let replies = || scheduled.clone().map(|of| (&running[of.index], of.tokens));
    let capacity = replies().map(|(reply, rows)| reply.draft_capacity(rows, kv));
    let depth = capacity.fold(depth, usize::min);
    let last = replies().map(|(reply, rows)| reply.last_draft_row((rows, depth), kv));
    let last: Vec<_> = last.collect();
    let draws = replies().map(|(reply, _)| reply.draw().unwrap_or_default());
    let draws: Vec<_> = draws.collect();
    let drafting = Drafting {
        depth,
        rows: &last,
        draws: &draws,
    };
    let runs = executor.step_draft(rows, &drafting)?;
    let known = replies().map(|(reply, _)| (reply.slot, reply.known()));
    Ok(runs.then(|| PendingDrafts {
        sequences: known.collect(),
        depth,
    }))
}

impl<E: Executor> Engine<E> {
    /// Turns the prediction layer on if the model has one that can pay. Measures the times of rows
    /// and predictions, before there is any sequence.
    pub(super) fn choose_drafter(&mut self) -> Result<(), DeviceError> {
        let speculate = self.limits.speculate;
        let asked = self.limits.drafts > 0 && speculate != Speculate::Off;
        if !asked || !self.executor.predicts() {
            return Ok(());
        }
        let most = DEPTH_MAX.min(self.limits.drafts);
        let mut step = Duration::ZERO;
        for rows in [1 + most, 1] {
            step = self.measure(|engine| engine.try_rows(rows))?;
            self.costs.note(rows, step);
        }
        let with = self.measure(|engine| engine.try_predictions(most))?;
        self.costs
            .note_predictions(1, most, with.saturating_sub(step));
        if speculate != Speculate::Auto || self.costs.may_pay(most) {
            self.drafter = Drafter::Mtp;
        }
        Ok(())
    }

    /// Measures the shortest time that `run` takes.
    fn measure(
        &mut self,
        mut run: impl FnMut(&mut Self) -> Result<(), DeviceError>,
    ) -> Result<Duration, DeviceError> {
        let mut shortest = Duration::MAX;
        for _ in 0..MEASURED {
            let begun = Instant::now();
            run(self)?;
            // Waits for the device, which may still be computing.
            self.executor.logits(0)?;
            shortest = shortest.min(begun.elapsed());
        }
        Ok(shortest)
    }

    /// Runs a step of one row, and `depth` predictions after it.
    fn try_predictions(&mut self, depth: usize) -> Result<(), DeviceError> {
        let row = |start| SeqRows::of(Slot(0), start, &[NONE], &[PageId(0)]);
        let drafting = Drafting {
            depth,
            rows: &[row(depth)],
            draws: &[Draw::default()],
        };
        if self.executor.step_draft(&[row(0)], &drafting)? {
            return self.executor.drafted(&mut self.drafted);
        }
        self.executor.step(&[row(0)])?;
        self.executor.predict(&[NONE], &[0])?;
        for draft in 1..depth {
            self.executor.predict_on(&[row(draft)])?;
        }
        Ok(())
    }

    /// Runs a step of so many rows, all but the first being drafts, in memory of no sequence.
    fn try_rows(&mut self, rows: usize) -> Result<(), DeviceError> {
        let first = self.limits.sequences + self.limits.snapshots;
        let states = match self.kv.recurs() {
            true => first..first + rows - 1,
            false => 0..0,
        };
        let draft_states: Vec<Slot> = states.map(|state| Slot(state as u32)).collect();
        self.executor.step(&[SeqRows {
            draft_states: &draft_states,
            logits: rows,
            ..SeqRows::of(Slot(0), 0, &vec![NONE; rows], &[PageId(0)])
        }])
    }

    /// Has the prediction layer draft for the next step, after the rows of this one.
    pub(super) fn predict(&mut self) -> Result<(), DeviceError> {
        if !matches!(self.drafter, Drafter::Mtp) {
            return Ok(());
        }
        let (next, wanted, replies) = self.predicted_rows();
        let depth = self.depth(&replies);
        let mut scheduled = self.plan.scheduled.iter();
        let prompts = scheduled.any(|of| self.candidates[of.index].is_prompt());
        if depth == 0 && !(prompts && self.may_draft()) {
            return Ok(());
        }
        let begun = (self.now)();
        self.executor.predict(&next, &wanted)?;
        for draft in 1..=depth {
            self.take_predicted(&replies)?;
            if draft < depth {
                self.predict_on(&replies)?;
            }
        }
        if !prompts {
            let took = (self.now)() - begun;
            self.costs.note_predictions(replies.len(), depth, took);
        }
        Ok(())
    }

    /// Number of drafts that the device is to compute for each sequence after the planned rows: 0
    /// unless all are replies, each with a rule that the device can draw by.
    pub(super) fn depth_on_device(&mut self) -> usize {
        let replies: Vec<_> = self.plan.scheduled.iter().map(|of| of.index).collect();
        let can_draw = |index: usize| {
            !self.candidates[index].is_prompt() && self.running[index].draw().is_some()
        };
        let predicts = matches!(self.drafter, Drafter::Mtp);
        match predicts && replies.iter().all(|&index| can_draw(index)) {
            true => self.depth(&replies),
            false => 0,
        }
    }

    /// Waits for the device's drafts, and gives them to the sequences whose tokens the device drew
    /// as their samplers did.
    pub(super) fn take_pending_drafts(&mut self) -> Result<(), DeviceError> {
        let Some(PendingDrafts { sequences, depth }) = self.pending_drafts.take() else {
            return Ok(());
        };
        let begun = (self.now)();
        self.executor.drafted(&mut self.drafted)?;
        let took = (self.now)() - begun;
        self.costs.note_predictions(sequences.len(), depth, took);
        for ((slot, known), drafted) in sequences.into_iter().zip(&self.drafted) {
            let mut running = self.running.iter_mut();
            if let Some(sequence) = running.find(|sequence| sequence.slot == slot) {
                sequence.take_drafted(known, drafted, depth);
            }
        }
        Ok(())
    }

    /// The token after each row of this step, `NONE` where unknown; the last accepted row of each
    /// sequence that is replying; and the indices of these sequences in `running`.
    fn predicted_rows(&mut self) -> (Vec<TokenId>, Vec<usize>, Vec<usize>) {
        let (mut next, mut wanted, mut replies) = (Vec::new(), Vec::new(), Vec::new());
        for scheduled in &self.plan.scheduled {
            let index = scheduled.index;
            let (first, start) = (next.len(), self.candidates[index].computed);
            let sequence = &mut self.running[index];
            let after = start + 1..=start + scheduled.tokens;
            next.extend(after.map(|position| sequence.token(position).unwrap_or(NONE)));
            if let Some(last) = sequence.begin_prediction() {
                wanted.push(first + last - start);
                replies.push(index);
            }
        }
        (next, wanted, replies)
    }

    /// Number of tokens to draft for each of some replies: as many as pay.
    fn depth(&mut self, replies: &[usize]) -> usize {
        if replies.is_empty() {
            return 0;
        }
        let (speculate, drafts) = (self.limits.speculate, self.limits.drafts);
        if let Speculate::Depth(depth) = speculate {
            return depth.min(drafts);
        }
        self.proposals.clear();
        let predicted = replies.iter();
        let predicted = predicted.map(|&index| self.running[index].mtp_proposal());
        self.proposals.extend(predicted);
        let depth = self.paying_depth();
        if depth == 0 {
            for &index in replies {
                self.running[index].predict_nothing();
            }
        }
        depth
    }

    /// Largest number of drafts that pay for one of `self.proposals`.
    fn paying_depth(&mut self) -> usize {
        let proposals = self.proposals.iter_mut();
        proposals.for_each(|proposal| proposal.drafts = DEPTH_MAX);
        // All states of drafts count: those that this step uses are free after it.
        let most = (self.limits.drafts, DraftCost::Due);
        let speculate = self.limits.speculate;
        speculate::choose(speculate, &self.costs, most, &mut self.proposals);
        let chosen = self.proposals.iter().map(|proposal| proposal.drafts);
        chosen.max().unwrap_or(0)
    }

    /// Whether predictions can pay for as many replies as there are sequences: else the layer does
    /// not run over prompts, which would take time for nothing.
    fn may_draft(&mut self) -> bool {
        if self.limits.speculate != Speculate::Auto {
            return true;
        }
        self.proposals.clear();
        let new = Proposal::new(Proposer::Mtp, AcceptanceRate::default());
        self.proposals.resize(self.running.len(), new);
        self.paying_depth() > 0
    }

    /// Draws the next draft of each reply from the last prediction, by the device's ranking if that
    /// suffices, or else from the logits.
    fn take_predicted(&mut self, replies: &[usize]) -> Result<(), DeviceError> {
        for (row, &index) in replies.iter().enumerate() {
            let ranked = self.executor.ranked(row);
            if ranked.is_some_and(|ranked| self.running[index].take_predicted_ranked(&ranked)) {
                continue;
            }
            let logits = self.executor.logits(row)?;
            self.running[index].take_predicted(logits, &mut self.scratch);
        }
        Ok(())
    }

    /// Runs the prediction layer on the last draft of each reply.
    fn predict_on(&mut self, replies: &[usize]) -> Result<(), DeviceError> {
        let rows = replies.iter();
        let rows = rows.map(|&index| self.running[index].predicted_row(&self.kv));
        let rows: Vec<SeqRows<'_>> = rows.collect();
        self.executor.predict_on(&rows)
    }
}
