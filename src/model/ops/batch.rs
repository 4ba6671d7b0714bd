//! Rows of one step, flattened for the operations.

use std::ops::Range;

use super::{CELL, ONE_BY_ONE};
use crate::ops::ENDS_MAX;
use crate::shapes::{self, PageGroup};
use crate::target::{MAX_CONTEXT, PAGE, SNAPSHOTS, STATES, VOCAB, WINDOW};
use step::executor::{
    BlockTable, DeviceError, Draw, PageId, SeqRows, Slot, Snapshot, States, TokenId,
};

/// Number of slots that sequences may have: as many as states, or one more than a step has
/// sequences if the model has no states.
const SLOTS: usize = if SNAPSHOTS > 0 { STATES } else { STATES + 1 };

/// Page groups of the model: all positions' and, if a layer has a window, the windowed one.
pub const PAGE_GROUPS: usize = if WINDOW.is_some() { 2 } else { 1 };

/// Rows of one sequence within a batch.
#[derive(Clone, Debug)]
pub struct SeqSpan {
    pub states: States,
    /// Range of the sequence's states in `Batch::draft_states`.
    pub draft_states: Range<usize>,
    /// Position of the first row in the sequence.
    pub start: usize,
    /// Range of the sequence's rows in the batch.
    pub rows: Range<usize>,
    /// Block table in each group: pages left out before it, and its range of `Batch::pages`.
    tables: [(usize, Range<usize>); PAGE_GROUPS],
}

impl SeqSpan {
    /// Rows that are computed in cells: none unless the first is at a multiple of `CELL`; else all
    /// but those of a last cell of at most `ONE_BY_ONE` rows.
    pub fn in_cells(&self) -> Range<usize> {
        let rows = self.rows.len();
        let taken = match rows % CELL {
            _ if !self.start.is_multiple_of(CELL) => 0,
            short @ 1..=ONE_BY_ONE => rows - short,
            _ => rows,
        };
        self.rows.start..self.rows.start + taken
    }

    /// Rows of a sequence that has neither drafts nor pages.
    #[cfg(test)]
    pub fn without_pages(start: usize, rows: Range<usize>) -> SeqSpan {
        SeqSpan {
            states: States::own(Slot(0)),
            draft_states: 0..0,
            start,
            rows,
            tables: Default::default(),
        }
    }

    /// Rows that are computed one by one.
    pub fn one_by_one(&self) -> Range<usize> {
        self.in_cells().end..self.rows.end
    }
}

/// Rows of one step. All indices are checked, since operations address memory by them. Storage is
/// reused from step to step.
#[derive(Debug)]
pub struct Batch {
    /// Number of pages in the pool of each group.
    page_counts: [usize; 2],
    tokens: Vec<TokenId>,
    positions: Vec<usize>,
    /// Index into `spans` of each row's sequence.
    span_of: Vec<usize>,
    spans: Vec<SeqSpan>,
    pages: Vec<PageId>,
    draft_states: Vec<Slot>,
    wanted: Vec<usize>,
    /// Sampling rules of the rows of a batch of drafts; empty in other batches.
    draws: Vec<Draw>,
    is_of_drafts: bool,
    accepts: bool,
}

impl Batch {
    /// Empty batch, for rows with pages below `page_count` in each group.
    pub fn new(page_count: usize) -> Batch {
        Batch::of_groups([page_count; 2])
    }

    /// Empty batch, for rows with pages below the count of their group.
    pub fn of_groups(page_counts: [usize; 2]) -> Batch {
        Batch {
            page_counts,
            tokens: Vec::new(),
            positions: Vec::new(),
            span_of: Vec::new(),
            spans: Vec::new(),
            pages: Vec::new(),
            draft_states: Vec::new(),
            wanted: Vec::new(),
            draws: Vec::new(),
            is_of_drafts: false,
            accepts: false,
        }
    }

    /// Batch for predictions after the first one, beside the batch of their step: a device has both
    /// at once, and advances this one from prediction to prediction. The prediction layer sees all
    /// positions, so every table is that of the group of all positions.
    pub fn of_drafts(page_count: usize) -> Batch {
        Batch {
            is_of_drafts: true,
            ..Batch::new(page_count)
        }
    }

    /// Whether the batch is for predictions after the first one.
    pub fn is_of_drafts(&self) -> bool {
        self.is_of_drafts
    }

    /// Gives each row a sampling rule by which its drafts are drawn.
    ///
    /// # Panics
    /// Unless there is one rule for each row.
    pub fn draw_by(&mut self, draws: &[Draw]) {
        assert_eq!(draws.len(), self.rows());
        self.draws.clear();
        self.draws.extend_from_slice(draws);
    }

    /// Sampling rules of the rows; none if the batch has no rules.
    pub fn draws(&self) -> &[Draw] {
        &self.draws
    }

    /// Replaces the content by `rows`.
    ///
    /// # Errors
    /// `DeviceError` naming the field when a token, slot, page or length is out of range, or a
    /// state that a sequence writes is another's. The batch has no rows then.
    pub fn fill(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        self.clear();
        let filled = rows.iter().try_for_each(|sequence| {
            self.check(sequence)?;
            self.push(sequence);
            Ok(())
        });
        let filled = filled.and_then(|()| self.check_owners());
        let filled = filled.and_then(|()| match self.wanted.len() {
            ..=ENDS_MAX => Ok(()),
            wanted => fail(format!("logits of {wanted} rows, at most {ENDS_MAX}")),
        });
        if filled.is_err() {
            self.clear();
        }
        filled
    }

    /// Gives each row another token.
    ///
    /// # Errors
    /// `DeviceError` naming a token that the vocabulary does not have.
    ///
    /// # Panics
    /// Unless there is one token for each row.
    pub fn replace_tokens(&mut self, tokens: &[TokenId]) -> Result<(), DeviceError> {
        check_tokens(tokens).or_else(fail)?;
        self.tokens.copy_from_slice(tokens);
        Ok(())
    }

    /// Sets the rows whose logits are wanted; returns the rows that were wanted before.
    ///
    /// # Errors
    /// `DeviceError` when `rows` are not ascending rows of the batch.
    pub fn want(&mut self, rows: Vec<usize>) -> Result<Vec<usize>, DeviceError> {
        let ascend = rows.is_sorted_by(|a, b| a < b);
        if !ascend || rows.last().is_some_and(|&row| row >= self.rows()) {
            return fail(format!("logits of rows {rows:?} of {}", self.rows()));
        }
        Ok(std::mem::replace(&mut self.wanted, rows))
    }

    /// Sets whether the device draws the tokens after the batch's rows, which predictions continue.
    pub fn draw_tokens(&mut self, on: bool) {
        self.accepts = on;
    }

    /// Whether the device draws the tokens after the batch's rows.
    pub fn accepts(&self) -> bool {
        self.accepts
    }

    /// Sets one row of each sequence as wanted, which the device picks when it accepts drafts.
    pub fn want_of_each(&mut self) {
        self.wanted.clear();
        self.wanted
            .extend(self.spans.iter().map(|span| span.rows.end - 1));
    }

    /// Whether every sequence has one row, whose logits are wanted: a step of decoding.
    pub fn is_decode(&self) -> bool {
        self.spans.len() == self.rows() && self.wants_all()
    }

    /// Whether all sequences have at most `ONE_BY_ONE` rows: drafts, or ends of prompts.
    pub fn is_short(&self) -> bool {
        let short = |span: &SeqSpan| span.rows.len() <= ONE_BY_ONE;
        self.spans.iter().all(short)
    }

    /// Whether the logits of every row are wanted.
    pub fn wants_all(&self) -> bool {
        self.wanted.len() == self.rows()
    }

    /// Number of pages in the pool of a group.
    pub fn page_count(&self, group: PageGroup) -> usize {
        self.page_counts[group as usize]
    }

    /// Token of each row.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Position of each row in its sequence.
    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// Rows of each sequence; no state that one sequence writes is read or written by another.
    pub fn spans(&self) -> &[SeqSpan] {
        &self.spans
    }

    /// Rows whose logits are wanted, ascending.
    pub fn wanted(&self) -> &[usize] {
        &self.wanted
    }

    /// Block table of a sequence in a group of pages, with all positions that the sequence's rows
    /// read in pages of the group.
    pub fn table(&self, span: &SeqSpan, group: PageGroup) -> BlockTable<'_> {
        let (first, pages) = span.tables[group as usize].clone();
        BlockTable {
            first,
            pages: &self.pages[pages],
        }
    }

    /// States written after each row of a sequence but the last one, if its rows are drafts and
    /// the model has states.
    pub fn draft_states(&self, span: &SeqSpan) -> &[Slot] {
        &self.draft_states[span.draft_states.clone()]
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Block table of the sequence that `row` belongs to, for a shape of attention.
    pub fn table_of<A: shapes::Attention>(&self, row: usize) -> BlockTable<'_> {
        self.table(&self.spans[self.span_of[row]], A::PAGES)
    }

    fn check(&self, rows: &SeqRows<'_>) -> Result<(), DeviceError> {
        let states = rows.states;
        let fail = |what: String| fail(format!("slot {}: {what}", states.to.0));
        let (start, end) = (rows.start, rows.start.saturating_add(rows.tokens.len()));
        let drafts = rows.draft_states;
        let used = || {
            states
                .written()
                .chain([states.from])
                .chain(drafts.iter().copied())
        };
        if used().any(|slot| slot.0 as usize >= SLOTS) {
            return fail(format!("{states:?}, slots end at {SLOTS}"));
        }
        if let Some(Snapshot { rows: head, .. }) = states.snapshot
            && !(is_on_grid(start) && head > 0 && is_on_grid(head) && head <= rows.tokens.len())
        {
            return fail(format!(
                "a state behind {head} of {} rows from position {start} on is of no whole cells",
                rows.tokens.len()
            ));
        }
        if rows.tokens.is_empty() || end > MAX_CONTEXT {
            return fail(format!("rows {start}..{end} of a context of {MAX_CONTEXT}"));
        }
        let count = rows.tokens.len();
        if !drafts.is_empty() && (drafts.len() + 1 != count || count > ONE_BY_ONE) {
            let states = drafts.len();
            return fail(format!("{states} states behind the drafts of {count} rows"));
        }
        if rows.logits > count {
            return fail(format!("logits of {} of {count} rows", rows.logits));
        }
        for (table, count) in self.tables(rows).iter().zip(self.page_counts) {
            if table.end() * PAGE < end {
                return fail(format!("{} pages do not hold {end} tokens", table.end()));
            }
            if let Some(page) = table.pages.iter().find(|page| page.0 as usize >= count) {
                return fail(format!("page {} of {count}", page.0));
            }
        }
        check_tokens(rows.tokens).or_else(fail)
    }

    /// Block tables of a sequence's rows, by group.
    fn tables<'a>(&self, rows: &SeqRows<'a>) -> [BlockTable<'a>; PAGE_GROUPS] {
        let mut tables = [BlockTable::whole(rows.pages); PAGE_GROUPS];
        let window = tables.get_mut(PageGroup::Window as usize);
        if let Some(window) = window.filter(|_| !self.is_of_drafts) {
            *window = rows.window;
        }
        tables
    }

    /// Checks that each written state has one writer, and no other reader.
    fn check_owners(&self) -> Result<(), DeviceError> {
        let mut users = [(0_usize, 0_usize); SLOTS];
        for span in &self.spans {
            let (states, draft_states) = (span.states, self.draft_states(span));
            let written = states.written().chain(draft_states.iter().copied());
            written.for_each(|slot| users[slot.0 as usize].0 += 1);
            if states.from != states.to && !draft_states.contains(&states.from) {
                users[states.from.0 as usize].1 += 1;
            }
        }
        let clash = |&(writers, readers): &(usize, usize)| writers > 1 || writers * readers > 0;
        match users.iter().position(clash) {
            Some(slot) => fail(format!("slot {slot}: two sequences of a step have it")),
            None => Ok(()),
        }
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.span_of.clear();
        self.spans.clear();
        self.pages.clear();
        self.draft_states.clear();
        self.wanted.clear();
        self.draws.clear();
        self.accepts = false;
    }

    fn push(&mut self, sequence: &SeqRows<'_>) {
        let first = self.tokens.len();
        let end = first + sequence.tokens.len();
        self.tokens.extend_from_slice(sequence.tokens);
        self.positions
            .extend(sequence.start..sequence.start + sequence.tokens.len());
        self.span_of.resize(end, self.spans.len());
        let tables = self.tables(sequence).map(|table| {
            let start = self.pages.len();
            self.pages.extend_from_slice(table.pages);
            (table.first, start..self.pages.len())
        });
        let first_state = self.draft_states.len();
        self.draft_states.extend_from_slice(sequence.draft_states);
        self.spans.push(SeqSpan {
            states: sequence.states,
            draft_states: first_state..self.draft_states.len(),
            start: sequence.start,
            rows: first..end,
            tables,
        });
        self.wanted.extend(end - sequence.logits..end);
    }
}

fn fail<T>(what: String) -> Result<T, DeviceError> {
    Err(DeviceError::Failed(what))
}

fn is_on_grid(position: usize) -> bool {
    position.is_multiple_of(CELL)
}

fn check_tokens(tokens: &[TokenId]) -> Result<(), String> {
    match tokens.iter().find(|&&token| token as usize >= VOCAB) {
        None => Ok(()),
        Some(token) => Err(format!("token {token} of a vocabulary of {VOCAB}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::MAX_SEQUENCES;
    use step::executor::Slot;

    const PAGES: usize = 2;

    fn rows(slot: u32, tokens: &[TokenId]) -> SeqRows<'_> {
        SeqRows::of(Slot(slot), 0, tokens, &[PageId(PAGES as u32 - 1)])
    }

    #[test]
    fn rows_off_the_grid_and_a_short_end_are_computed_one_by_one() {
        let off_the_grid = SeqSpan::without_pages(1, 3..3 + CELL);
        assert!(off_the_grid.in_cells().is_empty());
        let on_it = SeqSpan::without_pages(CELL, 3..3 + CELL + ONE_BY_ONE);
        assert_eq!(on_it.one_by_one().len(), ONE_BY_ONE);
        let long_end = SeqSpan::without_pages(0, 0..CELL + ONE_BY_ONE + 1);
        assert!(long_end.one_by_one().is_empty());
    }

    fn filled(rows: &[SeqRows<'_>]) -> Result<Batch, String> {
        let mut batch = Batch::new(PAGES);
        let done = batch.fill(rows).map_err(|error| error.to_string());
        done.map(|()| batch)
    }

    #[test]
    fn two_sequences_of_a_step_have_two_slots() {
        let twice = filled(&[rows(0, &[1]), rows(1, &[1]), rows(0, &[2])]);
        assert!(twice.unwrap_err().contains("slot 0: two sequences"));
        let mut batch = filled(&[rows(0, &[1]), rows(1, &[1])]).unwrap();
        batch.fill(&[rows(1, &[1])]).unwrap();
    }

    #[test]
    fn a_state_that_is_written_is_nobody_elses() {
        let reading = |slot, from| SeqRows {
            states: States {
                from: Slot(from),
                ..States::own(Slot(slot))
            },
            ..rows(slot, &[1])
        };
        const { assert!(MAX_SEQUENCES > 2) };
        filled(&[reading(0, 2), reading(1, 2)]).unwrap();
        let read = filled(&[reading(0, 1), rows(1, &[1])]);
        assert!(read.unwrap_err().contains("slot 1: two sequences"));
    }

    #[test]
    fn a_snapshot_is_taken_after_whole_cells() {
        let tokens = [1; CELL + 1];
        let saving = |start, rows, slot| SeqRows {
            states: States {
                snapshot: Some(Snapshot {
                    rows,
                    slot: Slot(slot),
                }),
                ..States::own(Slot(0))
            },
            start,
            tokens: &tokens,
            pages: &[PageId(0), PageId(1)],
            window: BlockTable::whole(&[PageId(0), PageId(1)]),
            draft_states: &[],
            logits: 0,
        };
        filled(&[saving(0, CELL, 1)]).unwrap();
        for (start, rows) in [(0, 0), (0, CELL - 1), (0, 2 * CELL), (1, CELL)] {
            let refused = filled(&[saving(start, rows, 1)]).unwrap_err();
            assert!(refused.contains("no whole cells"), "{refused}");
        }
        let own = filled(&[saving(0, CELL, 0)]).unwrap_err();
        assert!(own.contains("slot 0: two sequences"), "{own}");
    }

    #[test]
    fn states_after_drafts_are_the_sequences_own() {
        fn drafting(slot: u32, from: u32, draft_states: &[Slot]) -> SeqRows<'_> {
            SeqRows {
                states: States {
                    from: Slot(from),
                    ..States::own(Slot(slot))
                },
                draft_states,
                logits: 3,
                ..rows(slot, &[1, 2, 3])
            }
        }
        let batch = filled(&[drafting(0, 3, &[Slot(2), Slot(3)]), rows(1, &[1])]).unwrap();
        assert_eq!(batch.draft_states(&batch.spans()[0]), [Slot(2), Slot(3)]);
        assert_eq!(batch.draft_states(&batch.spans()[1]), []);
        assert_eq!(batch.wanted(), [0, 1, 2, 3]);
        for draft_states in [[Slot(2), Slot(2)], [Slot(2), Slot(0)], [Slot(1), Slot(2)]] {
            let clash = filled(&[drafting(0, 0, &draft_states), rows(1, &[1])]).unwrap_err();
            assert!(clash.contains("two sequences"), "{clash}");
        }
        let short = filled(&[drafting(0, 0, &[Slot(2)])]).unwrap_err();
        assert!(
            short.contains("1 states behind the drafts of 3 rows"),
            "{short}"
        );
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let none = VOCAB as TokenId;
        let beyond = |pages, start| SeqRows {
            pages,
            window: BlockTable::whole(pages),
            start,
            ..rows(0, &[1])
        };
        let page = [PageId(PAGES as u32)];
        for (rows, named) in [
            (rows(SLOTS as u32, &[1]), "slots end"),
            (rows(0, &[]), "rows 0..0"),
            (rows(0, &[1, none]), "token"),
            (
                SeqRows {
                    logits: 2,
                    ..rows(0, &[1])
                },
                "logits of 2 of 1 rows",
            ),
            (beyond(&page, 0), "page 2 of 2"),
            (beyond(&[], 0), "0 pages do not hold 1 "),
            (beyond(&page, PAGE), "1 pages do not hold"),
            (beyond(&page, usize::MAX), "of a context"),
        ] {
            let refused = filled(&[rows]).unwrap_err();
            assert!(refused.contains(named), "{refused}");
        }
    }

    #[test]
    fn drafted_tokens_are_of_the_vocabulary() {
        let mut batch = filled(&[rows(0, &[1, 2])]).unwrap();
        batch.replace_tokens(&[3, VOCAB as TokenId - 1]).unwrap();
        let refused = batch.replace_tokens(&[3, VOCAB as TokenId]).unwrap_err();
        assert!(refused.to_string().contains("of a vocabulary of"));
        assert_eq!(batch.tokens(), [3, VOCAB as TokenId - 1]);
    }

    #[test]
    fn wanted_rows_are_rows_of_the_batch() {
        let mut batch = filled(&[rows(0, &[1, 2, 3])]).unwrap();
        assert_eq!(batch.want(vec![0, 2]).unwrap(), [2]);
        for rows in [vec![3], vec![1, 1], vec![2, 0]] {
            batch.want(rows).unwrap_err();
        }
        assert_eq!(batch.wanted(), [0, 2]);
    }
}
