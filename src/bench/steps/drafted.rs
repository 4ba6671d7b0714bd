//! Steps of replies with drafts, and the predictions after them, through the calls that the engine
//! makes.

use std::fmt;
use std::time::Instant;

use super::run::drawn;
use check::{rings_fitting, window_ring};
use model::ops::ENDS_MAX;
use model::target::{MAX_CONTEXT, MAX_SEQUENCES, PAGE, SNAPSHOTS, STATES};
use step::executor::{
    BlockTable, DeviceError, Drafting, Draw, Executor, PageId, SeqRows, Slot, States,
};

/// Replies with `depth` drafts each, all of which are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drafted {
    pub sequences: usize,
    /// Drafts of each reply.
    pub depth: usize,
    /// Tokens of each reply before the first row of a step.
    pub context: usize,
}

impl fmt::Display for Drafted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x depth {}", self.sequences, self.depth)
    }
}

impl Drafted {
    /// Rows of a step.
    pub fn rows(&self) -> usize {
        self.sequences * self.each()
    }

    /// Drafts of a step.
    pub fn drafts(&self) -> usize {
        self.sequences * self.depth
    }

    /// Rows of a sequence.
    fn each(&self) -> usize {
        1 + self.depth
    }

    /// Positions of a sequence up to the end of its rows and of the drafts for its next step.
    fn end(&self) -> usize {
        self.context + self.each() + self.depth
    }

    /// Whether a step of the target has enough rows, a sequence enough positions, and a model of
    /// `pages` KV pages enough of these. States after drafts may be any that no sequence here has,
    /// so that more drafts can be timed than the engine tries.
    pub fn fits(&self, pages: usize) -> bool {
        self.sequences <= MAX_SEQUENCES
            && self.rows() <= ENDS_MAX
            && self.sequences + self.draft_states().concat().len() <= STATES
            && self.end() <= MAX_CONTEXT
            && self.sequences * self.end().div_ceil(PAGE) <= pages
            && self.sequences <= rings_fitting(self.end(), self.each())
    }

    /// Page table of each sequence.
    fn tables(&self) -> Vec<Vec<PageId>> {
        let each = self.end().div_ceil(PAGE);
        let table = |index: usize| (index * each..(index + 1) * each).map(|id| PageId(id as u32));
        let sequences = 0..self.sequences;
        sequences.map(|index| table(index).collect()).collect()
    }

    /// Block table of each sequence in the windowed group, if the model has one.
    fn windows(&self) -> Vec<Vec<PageId>> {
        let ring = |index| window_ring(index, self.end(), self.each());
        (0..self.sequences).map(ring).collect()
    }

    /// States after the drafts of each sequence; none if the model has no states.
    fn draft_states(&self) -> Vec<Vec<Slot>> {
        let each = if SNAPSHOTS > 0 { self.depth } else { 0 };
        let first = |index: usize| self.sequences + index * each;
        let of = |index: usize| (first(index)..first(index) + each).map(|id| Slot(id as u32));
        (0..self.sequences)
            .map(|index| of(index).collect())
            .collect()
    }

    /// Calls `run` with the rows of a step. Each round has other tokens.
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

    /// Calls `run` with one row of each sequence, `pass` positions after the step's last.
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

    /// One step.
    pub fn step<E: Executor>(&self, executor: &mut E, round: usize) -> Result<(), DeviceError> {
        self.with_rows(round, |rows| executor.step(rows))
    }

    /// A step after which the device makes `depth` drafts by itself; false if it cannot.
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

    /// Predicts `depth` drafts after a step whose drafts are accepted; each prediction is started
    /// by the host.
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

    /// Seconds of the predictions after each of `rounds` steps, from the end of the step: those
    /// that the device makes ahead of the host if it can, else those started one by one after a
    /// step by `step`.
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

fn seconds(run: impl FnOnce() -> Result<(), DeviceError>) -> Result<f64, DeviceError> {
    let start = Instant::now();
    run()?;
    Ok(start.elapsed().as_secs_f64())
}
