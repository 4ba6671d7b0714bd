//! Who owns which slot and which KV page.
//!
//! A sequence gets all the pages it can ever need when it is admitted, so it never has to be
//! evicted, recomputed or moved while it runs.

use crate::executor::{PageId, Slot};
use crate::target;

/// Pages that hold `tokens` positions.
pub fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(target::PAGE)
}

/// Slots, and the pages behind them.
#[derive(Debug)]
pub struct Kv {
    pages_total: usize,
    pages_free: Vec<PageId>,
    slots_free: Vec<Slot>,
    /// Pages of each slot, in the order of the positions they hold; empty for a free slot.
    tables: Vec<Vec<PageId>>,
}

impl Kv {
    /// Everything free; no sequence has more than `context` tokens. The lowest ids are handed out
    /// first.
    pub fn new(slots: usize, pages: usize, context: usize) -> Self {
        let table_len = pages.min(pages_for(context));
        Kv {
            pages_total: pages,
            pages_free: (0..pages as u32).rev().map(PageId).collect(),
            slots_free: (0..slots as u32).rev().map(Slot).collect(),
            tables: (0..slots).map(|_| Vec::with_capacity(table_len)).collect(),
        }
    }

    /// Slots that nobody owns.
    pub fn slots_free(&self) -> usize {
        self.slots_free.len()
    }

    /// Takes a slot and `pages` pages, or nothing at all when either is short.
    pub fn reserve(&mut self, pages: usize) -> Option<Slot> {
        assert!(pages > 0, "a sequence holds at least one token");
        let left = self.pages_free.len().checked_sub(pages)?;
        let slot = self.slots_free.pop()?;
        let table = &mut self.tables[slot.0 as usize];
        assert!(table.is_empty(), "{slot:?} was free but owns pages");
        table.extend(self.pages_free.drain(left..).rev());
        Some(slot)
    }

    /// Gives back a slot and its pages.
    pub fn release(&mut self, slot: Slot) {
        let table = &mut self.tables[slot.0 as usize];
        assert!(!table.is_empty(), "{slot:?} released twice");
        self.pages_free.extend(table.drain(..).rev());
        self.slots_free.push(slot);
    }

    /// The page table of a slot.
    pub fn pages(&self, slot: Slot) -> &[PageId] {
        &self.tables[slot.0 as usize]
    }

    /// Pages that sequences own.
    pub fn pages_used(&self) -> usize {
        self.tables.iter().map(Vec::len).sum()
    }

    /// Whether no page and no slot was lost or made: cheap enough for every step.
    pub fn is_conserved(&self, sequences: usize) -> bool {
        self.pages_used() + self.pages_free.len() == self.pages_total
            && sequences + self.slots_free.len() == self.tables.len()
    }

    /// Looks at each page and slot: each has exactly one owner.
    ///
    /// # Errors
    /// Names the first page or slot with none or several.
    pub fn check_integrity(&self) -> Result<(), String> {
        let mut page_owners = vec![0_u32; self.pages_total];
        for page in self.pages_free.iter().chain(self.tables.iter().flatten()) {
            page_owners[page.0 as usize] += 1;
        }
        if let Some(page) = page_owners.iter().position(|&owners| owners != 1) {
            return Err(format!("KV page {page} has {} owners", page_owners[page]));
        }
        for slot in 0..self.tables.len() {
            let free = self
                .slots_free
                .iter()
                .filter(|free| free.0 as usize == slot)
                .count();
            let owns_pages = usize::from(!self.tables[slot].is_empty());
            if free + owns_pages != 1 {
                return Err(format!(
                    "slot {slot} is free {free} times, in use {owns_pages} times"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_for_rounds_up() {
        let page = target::PAGE;
        assert_eq!([1, page, page + 1, 2 * page].map(pages_for), [1, 1, 2, 2]);
    }

    #[test]
    fn reserve_takes_all_or_nothing() {
        let mut kv = Kv::new(2, 5, target::MAX_CONTEXT);
        assert_eq!(kv.reserve(6), None);
        assert_eq!(kv.pages_used(), 0);
        assert!(kv.reserve(3).is_some());
        assert_eq!(kv.reserve(3), None);
        assert!(kv.reserve(1).is_some());
        assert_eq!(kv.reserve(1), None, "a page is left but no slot");
        assert_eq!(kv.check_integrity(), Ok(()));
    }

    #[test]
    fn released_pages_and_slots_return() {
        let mut kv = Kv::new(1, 4, target::MAX_CONTEXT);
        let slot = kv.reserve(4).unwrap();
        kv.release(slot);
        assert_eq!(kv.pages_used(), 0);
        assert_eq!(kv.reserve(4), Some(slot));
    }

    #[test]
    fn two_sequences_share_no_page() {
        let mut kv = Kv::new(2, 6, target::MAX_CONTEXT);
        let (a, b) = (kv.reserve(3).unwrap(), kv.reserve(3).unwrap());
        assert!(kv.pages(a).iter().all(|page| !kv.pages(b).contains(page)));
    }

    #[test]
    #[should_panic(expected = "released twice")]
    fn a_double_release_is_caught() {
        let mut kv = Kv::new(1, 1, target::MAX_CONTEXT);
        let slot = kv.reserve(1).unwrap();
        kv.release(slot);
        kv.release(slot);
    }

    #[test]
    fn conservation_sees_a_lost_page_and_a_lost_slot() {
        let mut kv = Kv::new(2, 4, target::MAX_CONTEXT);
        let slot = kv.reserve(2).unwrap();
        assert!(kv.is_conserved(1));
        assert!(!kv.is_conserved(0), "a slot without a sequence");
        kv.tables[slot.0 as usize].pop();
        assert!(!kv.is_conserved(1));
    }

    #[test]
    fn integrity_sees_a_page_with_two_owners() {
        let mut kv = Kv::new(2, 4, target::MAX_CONTEXT);
        let slot = kv.reserve(2).unwrap();
        let page = kv.pages(slot)[0];
        kv.pages_free[0] = page;
        assert!(kv.is_conserved(1), "the counts agree");
        assert!(kv.check_integrity().is_err());
    }

    #[test]
    fn integrity_sees_a_slot_that_nobody_has_and_one_that_is_free_twice() {
        let mut kv = Kv::new(2, 4, target::MAX_CONTEXT);
        kv.reserve(2).unwrap();
        let lost = kv.slots_free.pop().unwrap();
        let told = format!("slot {} is free 0 times, in use 0 times", lost.0);
        assert_eq!(kv.check_integrity(), Err(told));
        kv.slots_free.extend([lost, lost]);
        let told = format!("slot {} is free 2 times, in use 0 times", lost.0);
        assert_eq!(kv.check_integrity(), Err(told));
    }
}
