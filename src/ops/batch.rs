//! The rows of one step, flattened for the operations.

use std::ops::Range;

use super::{CELL, ONE_BY_ONE};
use crate::engine::executor::{DeviceError, PageId, Rows, Slot};
use crate::engine::request::TokenId;
use crate::target::{MAX_CONTEXT, MAX_SEQUENCES, PAGE, VOCAB};

/// The rows of one sequence within the step.
#[derive(Clone, Debug)]
pub struct Span {
    pub slot: Slot,
    /// Position of the first row in the sequence.
    pub start: usize,
    /// Rows of the step.
    pub rows: Range<usize>,
    /// Where the sequence's page table lies in `Batch::pages`.
    pub pages: Range<usize>,
}

impl Span {
    /// Rows that are taken in cells: all that begin on the grid, but for a short last cell.
    pub fn in_cells(&self) -> Range<usize> {
        let rows = self.rows.len();
        let taken = match rows % CELL {
            _ if !self.start.is_multiple_of(CELL) => 0,
            short @ 1..=ONE_BY_ONE => rows - short,
            _ => rows,
        };
        self.rows.start..self.rows.start + taken
    }

    /// Rows that are taken one by one.
    pub fn behind_cells(&self) -> Range<usize> {
        self.in_cells().end..self.rows.end
    }
}

/// One step's rows. Storage is reused from step to step.
#[derive(Debug)]
pub struct Batch {
    page_count: usize,
    /// Token of each row.
    pub tokens: Vec<TokenId>,
    /// Position of each row in its sequence.
    pub positions: Vec<usize>,
    /// Index into `spans` of each row.
    pub span_of: Vec<usize>,
    pub spans: Vec<Span>,
    /// Page tables of all spans, one after the other.
    pub pages: Vec<PageId>,
    /// Rows whose logits are wanted, ascending.
    pub wanted: Vec<usize>,
}

impl Batch {
    /// No rows; those to come have pages below `page_count`.
    pub fn new(page_count: usize) -> Batch {
        Batch {
            page_count,
            tokens: Vec::new(),
            positions: Vec::new(),
            span_of: Vec::new(),
            spans: Vec::new(),
            pages: Vec::new(),
            wanted: Vec::new(),
        }
    }

    /// Replaces the content by `rows`.
    ///
    /// # Errors
    /// `DeviceError` naming the field when a token, slot, page or length is out of range.
    pub fn fill(&mut self, rows: &[Rows<'_>]) -> Result<(), DeviceError> {
        self.clear();
        for sequence in rows {
            self.check(sequence)?;
            self.push(sequence);
        }
        Ok(())
    }

    /// Whether every sequence has one row, whose logits are wanted: a step of decoding.
    pub fn is_decode(&self) -> bool {
        self.spans.len() == self.rows() && self.wanted.len() == self.rows()
    }

    /// Pages of the caches.
    pub fn page_count(&self) -> usize {
        self.page_count
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Page table of the sequence that `row` belongs to.
    pub fn pages_of(&self, row: usize) -> &[PageId] {
        &self.pages[self.spans[self.span_of[row]].pages.clone()]
    }

    fn check(&self, rows: &Rows<'_>) -> Result<(), DeviceError> {
        let fail = |what: String| Err(DeviceError::Failed(format!("slot {}: {what}", rows.slot.0)));
        let end = rows.start + rows.tokens.len();
        if rows.slot.0 as usize >= MAX_SEQUENCES {
            return fail(format!("slots end at {MAX_SEQUENCES}"));
        }
        if rows.tokens.is_empty() || end > MAX_CONTEXT {
            return fail(format!(
                "rows {}..{end} of a context of {MAX_CONTEXT}",
                rows.start
            ));
        }
        if rows.pages.len() * PAGE < end {
            return fail(format!(
                "{} pages do not hold {end} tokens",
                rows.pages.len()
            ));
        }
        if let Some(page) = rows
            .pages
            .iter()
            .find(|page| page.0 as usize >= self.page_count)
        {
            return fail(format!("page {} of {}", page.0, self.page_count));
        }
        if let Some(token) = rows.tokens.iter().find(|&&token| token as usize >= VOCAB) {
            return fail(format!("token {token} of a vocabulary of {VOCAB}"));
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.span_of.clear();
        self.spans.clear();
        self.pages.clear();
        self.wanted.clear();
    }

    fn push(&mut self, sequence: &Rows<'_>) {
        let first = self.tokens.len();
        let end = first + sequence.tokens.len();
        let page = self.pages.len();
        self.tokens.extend_from_slice(sequence.tokens);
        self.positions
            .extend(sequence.start..sequence.start + sequence.tokens.len());
        self.span_of.resize(end, self.spans.len());
        self.pages.extend_from_slice(sequence.pages);
        self.spans.push(Span {
            slot: sequence.slot,
            start: sequence.start,
            rows: first..end,
            pages: page..self.pages.len(),
        });
        if sequence.logits {
            self.wanted.push(end - 1);
        }
    }
}
