//! Steps of sequences with draft tokens, and the predictions after these steps, through the calls
//! that the engine makes.

use std::fmt;

use super::run::{drawn, seconds, tables};
use check::{rings_fitting, window_ring};
use model::ops::ENDS_MAX;
use model::target::{MAX_CONTEXT, MAX_SEQUENCES, PAGE, SNAPSHOTS, STATES};
use step::executor::{
    BlockTable, DeviceError, Drafting, Draw, Executor, PageId, SeqRows, Slot, States,
};

/// A step of sequences with `depth` draft tokens each, all of which are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drafted {
    pub sequences: usize,
    /// Draft tokens of each sequence.
    pub depth: usize,
    /// Tokens of each sequence before the first row of the step.
    pub context: usize,
}

impl fmt::Display for Drafted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x depth {}", self.sequences, self.depth)
    }
}

impl Drafted {
    /// Number of rows in the step.
    pub fn rows(&self) -> usize {
        self.sequences * self.each()
    }

    /// Number of draft tokens in the step.
    pub fn drafts(&self) -> usize {
        self.sequences * self.depth
    }

    /// Number of rows of each sequence.
    fn each(&self) -> usize {
        1 + self.depth
    }

    /// Positions of a sequence up to the end of its rows and of the draft tokens for its next step.
    fn end(&self) -> usize {
        self.context + self.each() + self.depth
    }

    /// Whether the target has enough rows for the step, positions for a sequence and, with `pages`
    /// KV pages, enough pages. Draft states may use any free slot, so that more draft tokens can be
    /// timed than the engine tries.
    pub fn fits(&self, pages: usize) -> bool {
        self.sequences <= MAX_SEQUENCES
            && self.rows() <= ENDS_MAX
            && self.sequences + self.draft_states().concat().len() <= STATES
            && self.end() <= MAX_CONTEXT
            && self.sequences * self.end().div_ceil(PAGE) <= pages
            && self.sequences <= rings_fitting(self.end(), self.each())
    }

    /// Block table of each sequence.
    fn tables(&self) -> Vec<Vec<PageId>> {
        tables(self.sequences, self.end())
    }

    /// Block table of each sequence in the windowed group, if the model has one.
    fn windows(&self) -> Vec<Vec<PageId>> {
        let ring = |index| window_ring(index, self.end(), self.each());
        (0..self.sequences).map(ring).collect()
    }

    /// Slots for the states after the draft tokens of each sequence; none if the model has no
    /// states.
    fn draft_states(&self) -> Vec<Vec<Slot>> {
        let each = if SNAPSHOTS > 0 { self.depth } else { 0 };
        let first = |index: usize| self.sequences + index * each;
        let of = |index: usize| (first(index)..first(index) + each).map(|id| Slot(id as u32));
        (0..self.sequences)
            .map(|index| of(index).collect())
            .collect()
    }

    /// Calls `run` with the rows of a step, whose tokens depend on `round`.
    fn with_rows<T>(&self, round: usize, run: impl FnOnce(&[SeqRows<'_>]) -> T) -> T {
        let (tokens, tables) = (drawn(round, self.rows()), self.tables());
        let (windows, draft_states) = (self.windows(), self.draft_states());
        let rows = tokens.chunks(self.each()).enumerate();
        let rows = rows.map(|(index, tokens)| SeqRows {
            states: States::own(Slot(index as u32)),
            start: self.context,
            tokens,
            pages: &tables[index],
            window: BlockTable::whole(&windows[index]),
            draft_states: &draft_states[index],
            logits: tokens.len(),
        });
        run(&rows.collect::<Vec<_>>())
    }

    /// Calls `run` with one row of each sequence, for draft pass `pass` after the step.
    fn with_row_after<T>(&self, pass: usize, run: impl FnOnce(&[SeqRows<'_>]) -> T) -> T {
        let (tokens, tables) = (drawn(pass, self.sequences), self.tables());
        let rows = tables.iter().enumerate().map(|(index, pages)| SeqRows {
            window: BlockTable::default(),
            ..SeqRows::of(
                Slot(index as u32),
                self.context + self.depth + pass,
                &tokens[index..=index],
                pages,
            )
        });
        run(&rows.collect::<Vec<_>>())
    }

    /// Runs one step.
    pub fn step<E: Executor>(&self, executor: &mut E, round: usize) -> Result<(), DeviceError> {
        self.with_rows(round, |rows| executor.step(rows))
    }

    /// Runs a step after which the device predicts `depth` draft tokens itself; false if it cannot.
    fn step_draft<E: Executor>(&self, executor: &mut E, round: usize) -> Result<bool, DeviceError> {
        let draws = vec![Draw::default(); self.sequences];
        self.with_row_after(self.depth - 1, |last| {
            let drafting = Drafting {
                depth: self.depth,
                rows: last,
                draws: &draws,
            };
            self.with_rows(round, |rows| executor.step_draft(rows, &drafting))
        })
    }

    /// Predicts `depth` draft tokens after a step whose drafts are accepted; the host starts each
    /// pass.
    fn predict<E: Executor>(&self, executor: &mut E, round: usize) -> Result<(), DeviceError> {
        let last = (1..=self.sequences).map(|count| count * self.each() - 1);
        executor.predict(&drawn(round + 1, self.rows()), &last.collect::<Vec<_>>())?;
        (1..self.depth)
            .try_for_each(|pass| self.with_row_after(pass, |rows| executor.predict_on(rows)))
    }

    /// Seconds of each of `rounds` steps.
    pub fn steps<E: Executor>(
        &self,
        executor: &mut E,
        rounds: usize,
    ) -> Result<Vec<f64>, DeviceError> {
        let rounds = 0..rounds;
        let times = rounds.map(|round| seconds(|| self.step(executor, round)));
        times.collect()
    }

    /// Seconds of the predictions after each of `rounds` steps, from the end of the step:
    /// predictions that the device starts itself if it can, else those that the host starts one by
    /// one after `step`.
    pub fn predictions<E: Executor>(
        &self,
        executor: &mut E,
        rounds: usize,
        step: impl Fn(&Drafted, &mut E, usize) -> Result<(), DeviceError>,
    ) -> Result<Vec<f64>, DeviceError> {
        let (rounds, mut drafted) = (0..rounds, Vec::new());
        let times = rounds.map(|round| match self.step_draft(executor, round)? {
            true => seconds(|| executor.drafted(&mut drafted)),
            false => {
                step(self, executor, round)?;
                seconds(|| self.predict(executor, round))
            }
        });
        times.collect()
    }
}
