//! Owners of the pages of the windowed group.
//!
//! A sequence has the pages that its next rows see. Pages that the window has left are freed in the
//! same round, except where a snapshot has them too: a prompt that goes on from a snapshot needs
//! the pages of its window, beside those of all positions.
//!
//! There are as many pages as sequences and snapshots can need at once, so no sequence waits for a
//! page. Pages of an evicted snapshot are freed when its state is lent again.

use step::executor::{BlockTable, PageId, Slot};
use step::{PAGE, Window};

/// Block table of a sequence or a snapshot, without the leading pages that were freed.
#[derive(Clone, Debug, Default)]
struct Table {
    first: usize,
    pages: Vec<PageId>,
}

impl Table {
    fn end(&self) -> usize {
        self.first + self.pages.len()
    }
}

/// Pages of the windowed group, and the block tables of slots and snapshots.
#[derive(Debug)]
pub struct Windows {
    window: Window,
    free: Vec<PageId>,
    /// Number of block tables that have each page.
    holders: Vec<u32>,
    /// Block tables by state: of sequences, then of snapshots.
    tables: Vec<Table>,
}

impl Windows {
    /// Windows in which all pages are free, with `states` for sequences and snapshots.
    pub fn new(window: Window, states: usize) -> Windows {
        Windows {
            window,
            free: (0..window.pages as u32).rev().map(PageId).collect(),
            holders: vec![0; window.pages],
            tables: vec![Table::default(); states],
        }
    }

    /// The block table of a sequence.
    pub fn table(&self, Slot(slot): Slot) -> BlockTable<'_> {
        let Table { first, pages } = &self.tables[slot as usize];
        BlockTable {
            first: *first,
            pages,
        }
    }

    /// Pages of a sequence or a snapshot.
    pub fn pages(&self, slot: Slot) -> &[PageId] {
        self.table(slot).pages
    }

    /// Gives a sequence the pages that its rows from position `start` to `end` read and write.
    ///
    /// # Panics
    /// If no page is free: there are more than sequences and snapshots can need.
    pub fn cover(&mut self, slot: Slot, start: usize, end: usize) {
        self.leave(slot, start);
        let table = &mut self.tables[slot.0 as usize];
        if table.pages.is_empty() {
            table.first = self.window.first_page(start);
        }
        while table.end() < end.div_ceil(PAGE) {
            let page = self.free.pop().expect("a windowed page is free");
            self.holders[page.0 as usize] = 1;
            table.pages.push(page);
        }
    }

    /// Takes back the pages of a sequence that rows from position `next` on do not read.
    pub fn leave(&mut self, slot: Slot, next: usize) {
        let table = &mut self.tables[slot.0 as usize];
        let first = self.window.first_page(next).clamp(table.first, table.end());
        let left: Vec<PageId> = table.pages.drain(..first - table.first).collect();
        table.first = first;
        self.give_back(left);
    }

    /// Gives `to`, instead of its own pages, the pages of `from` that hold positions before
    /// `position` and that rows from `position` on read. These pages then belong to both.
    pub fn share(&mut self, from: Slot, to: Slot, position: usize) {
        self.clear(to);
        let first = self.window.first_page(position);
        let table = &self.tables[from.0 as usize];
        let pages = table.pages[first - table.first..position / PAGE - table.first].to_vec();
        for page in &pages {
            self.holders[page.0 as usize] += 1;
        }
        self.tables[to.0 as usize] = Table { first, pages };
    }

    /// Takes back all pages of a sequence or a snapshot.
    pub fn clear(&mut self, slot: Slot) {
        let table = std::mem::take(&mut self.tables[slot.0 as usize]);
        self.give_back(table.pages);
    }

    fn give_back(&mut self, pages: Vec<PageId>) {
        for page in pages {
            let holders = &mut self.holders[page.0 as usize];
            *holders -= 1;
            if *holders == 0 {
                self.free.push(page);
            }
        }
    }

    /// Number of pages that are not free.
    pub fn used(&self) -> usize {
        self.window.pages - self.free.len()
    }

    /// Compares the counts of block tables by page with the tables.
    ///
    /// # Errors
    /// Names the first page whose count is wrong.
    pub fn check_integrity(&self) -> Result<(), String> {
        let mut found = vec![0; self.holders.len()];
        let used = self.tables.iter().flat_map(|table| &table.pages);
        used.for_each(|page| found[page.0 as usize] += 1);
        for (page, (found, counted)) in found.iter().zip(&self.holders).enumerate() {
            let free = self.free.iter().filter(|free| free.0 as usize == page);
            if found != counted || free.count() != usize::from(*found == 0) {
                return Err(format!(
                    "windowed page {page} has {found} holders, not {counted}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use step::executor::DEPTH_MAX;

    use super::*;

    const POSITIONS: usize = 100;
    const PREFILL: usize = 8 * PAGE;

    fn windows(sequences: usize, snapshots: usize) -> Windows {
        let window = Window::of(POSITIONS, sequences, PREFILL, snapshots);
        Windows::new(window, sequences + 1 + snapshots)
    }

    /// Runs a prompt from `start` to `end` in the largest steps.
    fn prefill(windows: &mut Windows, slot: Slot, start: usize, end: usize) {
        for start in (start..end).step_by(PREFILL) {
            let next = end.min(start + PREFILL);
            windows.cover(slot, start, next);
            windows.leave(slot, next);
        }
    }

    #[test]
    fn a_sequence_has_a_few_pages_however_long_it_grows() {
        let mut windows = windows(1, 1);
        let most = windows.window.sequence_pages();
        prefill(&mut windows, Slot(0), 0, 20 * PREFILL);
        for next in 20 * PREFILL..21 * PREFILL {
            windows.cover(Slot(0), next, next + 1 + DEPTH_MAX);
            let table = windows.table(Slot(0));
            assert!(table.pages.len() <= most);
            assert!(table.first * PAGE <= next - (POSITIONS - 1));
            windows.leave(Slot(0), next + 1);
            assert!(windows.used() <= most);
        }
        windows.clear(Slot(0));
        assert_eq!((windows.used(), windows.check_integrity()), (0, Ok(())));
    }

    #[test]
    fn a_snapshot_keeps_the_last_pages_that_its_sequence_leaves() {
        let mut windows = windows(1, 1);
        let (own, other, snapshot, position) = (Slot(0), Slot(1), Slot(2), 10 * PAGE);
        windows.cover(own, 0, position + PAGE);
        windows.share(own, snapshot, position);
        let pages = windows.pages(snapshot).to_vec();
        assert_eq!(pages.len(), 10 - windows.window.first_page(position));
        prefill(&mut windows, own, position + PAGE, 40 * PAGE);
        windows.clear(own);
        assert_eq!(
            (windows.used(), windows.pages(snapshot)),
            (pages.len(), &pages[..])
        );
        windows.share(snapshot, other, position);
        windows.clear(snapshot);
        windows.cover(other, position, position + 1);
        assert_eq!(windows.pages(other)[..pages.len()], pages);
        windows.leave(other, 40 * PAGE);
        assert_eq!((windows.used(), windows.check_integrity()), (0, Ok(())));
    }

    #[test]
    fn everybody_at_once_has_enough() {
        let (sequences, snapshots) = (3, 2);
        let mut windows = windows(sequences, snapshots);
        for slot in 0..sequences as u32 + 1 {
            let end = PREFILL - PAGE + 1;
            prefill(&mut windows, Slot(slot), 0, end);
            windows.cover(Slot(slot), end, end + 1 + DEPTH_MAX);
            let snapshot = Slot(sequences as u32 + 1 + slot % snapshots as u32);
            windows.share(Slot(slot), snapshot, PREFILL - PAGE);
        }
        windows.leave(Slot(0), PREFILL);
        windows.cover(Slot(0), PREFILL, 2 * PREFILL);
        assert_eq!(windows.check_integrity(), Ok(()));
    }

    #[test]
    fn integrity_sees_a_page_with_a_holder_too_many() {
        let mut windows = windows(1, 1);
        windows.cover(Slot(0), 0, 1);
        windows.holders[0] += 1;
        assert!(windows.check_integrity().is_err());
    }
}
