//! Drafts of the prediction layer, made behind a step for the next one.
//!
//! The layer runs over every row of a step, so that it knows prompts; then, for replies, once more
//! for each further draft. Drafts are drawn with the request's own random numbers, by the sampler,
//! or ahead of it by the device.

use std::time::{Duration, Instant};

use super::Engine;
use super::drafts::Drafter;
use super::kv::Kv;
use super::scheduler::Plan;
use super::sequence::Sequence;
use super::speculate::{self, DEPTH_MAX, Made, Reply, Speculate};
use super::trust::Maker;
use step::executor::{Ahead, DeviceError, Draw, Executor, PageId, SeqRows, Slot, TokenId};

/// Token of a row that no known one follows.
const NONE: TokenId = 0;
/// Drafts that the device makes while the host goes on.
#[derive(Debug)]
pub(super) struct Drawn {
    /// Replies that they are for, and the tokens that each had before the step.
    replies: Vec<(Slot, usize)>,
    /// Drafts of each.
    pub depth: usize,
}

/// Steps of a kind that are measured at the start; the shortest counts.
pub(super) const MEASURED: usize = 3;

/// Runs the planned rows, and behind them `depth` predictions for each reply, if the device can.
pub(super) fn step_ahead<E: Executor>(
    executor: &mut E,
    rows: &[SeqRows<'_>],
    (plan, running, kv): (&Plan, &[Sequence], &Kv),
    depth: usize,
) -> Result<Option<Drawn>, DeviceError> {
    let scheduled = plan.scheduled.iter();
    let replies = || scheduled.clone().map(|of| (&running[of.index], of.tokens));
    let room = replies().map(|(reply, rows)| reply.room_ahead(rows, kv));
    let depth = room.fold(depth, usize::min);
    let last = replies().map(|(reply, rows)| reply.row_ahead((rows, depth), kv));
    let last: Vec<_> = last.collect();
    let draws = replies().map(|(reply, _)| reply.draw().unwrap_or_default());
    let draws: Vec<_> = draws.collect();
    let ahead = Ahead {
        depth,
        rows: &last,
        draws: &draws,
    };
    let runs = executor.step_ahead(rows, &ahead)?;
    let known = replies().map(|(reply, _)| (reply.slot, reply.known()));
    Ok(runs.then(|| Drawn {
        replies: known.collect(),
        depth,
    }))
}

impl<E: Executor> Engine<E> {
    /// Whether the prediction layer drafts: it is there, and might pay. Measures what rows and
    /// predictions take, before there is any sequence.
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
            self.drafter = Drafter::Prediction;
        }
        Ok(())
    }

    /// The shortest time that `run` takes.
    fn measure(
        &mut self,
        mut run: impl FnMut(&mut Self) -> Result<(), DeviceError>,
    ) -> Result<Duration, DeviceError> {
        let mut shortest = Duration::MAX;
        for _ in 0..MEASURED {
            let begun = Instant::now();
            run(self)?;
            // A device may still be at work.
            self.executor.logits(0)?;
            shortest = shortest.min(begun.elapsed());
        }
        Ok(shortest)
    }

    /// Predictions, `depth` of them, behind a step of one row.
    fn try_predictions(&mut self, depth: usize) -> Result<(), DeviceError> {
        let row = |start| SeqRows::of(Slot(0), start, &[NONE], &[PageId(0)]);
        let ahead = Ahead {
            depth,
            rows: &[row(depth)],
            draws: &[Draw::default()],
        };
        if self.executor.step_ahead(&[row(0)], &ahead)? {
            return self.executor.guessed(&mut self.guessed);
        }
        self.executor.step(&[row(0)])?;
        self.executor.predict(&[NONE], &[0])?;
        for pass in 1..depth {
            self.executor.predict_on(&[row(pass)])?;
        }
        Ok(())
    }

    /// A step of so many rows of a sequence that there is not.
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

    /// Drafts behind the rows of this step, for the next one.
    pub(super) fn predict(&mut self) -> Result<(), DeviceError> {
        if !matches!(self.drafter, Drafter::Prediction) {
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
        for pass in 1..=depth {
            self.take_predicted(&replies)?;
            if pass < depth {
                self.predict_on(&replies)?;
            }
        }
        if !prompts {
            let took = (self.now)() - begun;
            self.costs.note_predictions(replies.len(), depth, took);
        }
        Ok(())
    }

    /// Drafts that the device is to make of every reply behind the planned rows, if it knows about
    /// how each of them chooses, and there are replies only.
    pub(super) fn depth_ahead(&mut self) -> usize {
        let replies: Vec<_> = self.plan.scheduled.iter().map(|of| of.index).collect();
        let knows = |index: usize| {
            !self.candidates[index].is_prompt() && self.running[index].draw().is_some()
        };
        let predicts = matches!(self.drafter, Drafter::Prediction);
        match predicts && replies.iter().all(|&index| knows(index)) {
            true => self.depth(&replies),
            false => 0,
        }
    }

    /// Waits for drafts that the device makes, and gives them to their replies, as far as it was
    /// right in what these chose.
    pub(super) fn take_drawn(&mut self) -> Result<(), DeviceError> {
        let Some(Drawn { replies, depth }) = self.drawn.take() else {
            return Ok(());
        };
        let begun = (self.now)();
        self.executor.guessed(&mut self.guessed)?;
        let took = (self.now)() - begun;
        self.costs.note_predictions(replies.len(), depth, took);
        for ((slot, known), guessed) in replies.into_iter().zip(&self.guessed) {
            let reply = self.running.iter_mut().find(|reply| reply.slot == slot);
            if let Some(reply) = reply {
                reply.take_guessed(known, guessed, depth);
            }
        }
        Ok(())
    }

    /// The token behind each row of this step; the last rows that hold of sequences that are
    /// replying, and their indices in `running`.
    fn predicted_rows(&mut self) -> (Vec<TokenId>, Vec<usize>, Vec<usize>) {
        let (mut next, mut wanted, mut replies) = (Vec::new(), Vec::new(), Vec::new());
        for scheduled in &self.plan.scheduled {
            let index = scheduled.index;
            let (first, start) = (next.len(), self.candidates[index].computed);
            let sequence = &mut self.running[index];
            let behind = start + 1..=start + scheduled.tokens;
            next.extend(behind.map(|position| sequence.token(position).unwrap_or(NONE)));
            if let Some(last) = sequence.begin_prediction() {
                wanted.push(first + last - start);
                replies.push(index);
            }
        }
        (next, wanted, replies)
    }

    /// Tokens to draft for each reply.
    fn depth(&mut self, replies: &[usize]) -> usize {
        if replies.is_empty() {
            return 0;
        }
        let (speculate, drafts) = (self.limits.speculate, self.limits.drafts);
        if let Speculate::Depth(depth) = speculate {
            return depth.min(drafts);
        }
        self.replies.clear();
        let predicted = replies.iter();
        let predicted = predicted.map(|&index| self.running[index].predicted_reply());
        self.replies.extend(predicted);
        let depth = self.paying_depth();
        if depth == 0 {
            for &index in replies {
                self.running[index].predict_nothing();
            }
        }
        depth
    }

    /// Drafts that pay of any of `self.replies`.
    fn paying_depth(&mut self) -> usize {
        let replies = self.replies.iter_mut();
        replies.for_each(|reply| reply.drafts = DEPTH_MAX);
        // States that drafts of this step have are free behind it.
        let most = (self.limits.drafts, Made::ByPredictions);
        let speculate = self.limits.speculate;
        speculate::choose(speculate, &self.costs, most, &mut self.replies);
        let chosen = self.replies.iter().map(|reply| reply.drafts);
        chosen.max().unwrap_or(0)
    }

    /// Whether predictions might pay for as many replies as run: else the layer need not know their
    /// prompts, which it takes its time for.
    fn may_draft(&mut self) -> bool {
        if self.limits.speculate != Speculate::Auto {
            return true;
        }
        self.replies.clear();
        let new = self.running.iter().map(|_| Reply::new(Maker::Predictions));
        self.replies.extend(new);
        self.paying_depth() > 0
    }

    /// Chooses the next draft of each reply, by what the last prediction is ranked by, or else from
    /// its logits.
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

    /// Predicts behind the last draft of each reply.
    fn predict_on(&mut self, replies: &[usize]) -> Result<(), DeviceError> {
        let rows = replies.iter();
        let rows = rows.map(|&index| self.running[index].predicted_row(&self.kv));
        let rows: Vec<SeqRows<'_>> = rows.collect();
        self.executor.predict_on(&rows)
    }
}
