//! Host memory, split by use: pages and states lie in slabs, each of which has one state or as many
//! pages as fit into its bytes. An empty slab may become either again.

use std::collections::BTreeSet;
use std::ops::Range;

use step::executor::{PageId, Slot};
use step::transfer::{Piece, PieceBytes, Sum};

/// Free and used pages and states of host memory.
#[derive(Debug)]
pub struct HostPool {
    page_bytes: usize,
    /// Number of pages that fit into a slab.
    pages_each: usize,
    slabs_free: Vec<u32>,
    /// Free pages of slabs that have pages.
    free: BTreeSet<u32>,
    /// Number of used pages of each slab.
    used: Vec<usize>,
    /// Checksums of the pieces in host memory, by the first page of a piece.
    sums: Vec<Sum>,
}

impl HostPool {
    /// Pool of at most `bytes` bytes, all of them free.
    pub fn new(bytes: usize, pieces: PieceBytes) -> HostPool {
        let pages_each = pieces.state.div_ceil(pieces.page).max(1);
        let slabs = bytes / (pages_each * pieces.page);
        HostPool {
            page_bytes: pieces.page,
            pages_each,
            slabs_free: (0..slabs as u32).rev().collect(),
            free: BTreeSet::new(),
            used: vec![0; slabs],
            sums: vec![0; slabs * pages_each],
        }
    }

    pub fn slabs(&self) -> usize {
        self.used.len()
    }

    /// Number of pages that fit into the whole pool.
    pub fn pages(&self) -> usize {
        self.slabs() * self.pages_each
    }

    pub fn pages_free(&self) -> usize {
        self.free.len() + self.slabs_free.len() * self.pages_each
    }

    pub fn slabs_free(&self) -> usize {
        self.slabs_free.len()
    }

    pub fn slabs_of_pages(&self) -> usize {
        self.used.iter().filter(|used| **used > 0).count()
    }

    pub fn pages_used(&self) -> usize {
        self.used.iter().sum()
    }

    pub fn take_page(&mut self) -> Option<PageId> {
        if self.free.is_empty() {
            let first = self.slabs_free.pop()? * self.pages_each as u32;
            self.free.extend(first..first + self.pages_each as u32);
        }
        let page = self.free.pop_first()?;
        self.used[page as usize / self.pages_each] += 1;
        Some(PageId(page))
    }

    pub fn give_page(&mut self, PageId(page): PageId) {
        let slab = page as usize / self.pages_each;
        self.free.insert(page);
        self.used[slab] -= 1;
        if self.used[slab] == 0 {
            let first = (slab * self.pages_each) as u32;
            let own = first..first + self.pages_each as u32;
            self.free.retain(|page| !own.contains(page));
            self.slabs_free.push(slab as u32);
        }
    }

    pub fn take_state(&mut self) -> Option<Slot> {
        self.slabs_free.pop().map(Slot)
    }

    pub fn give_state(&mut self, Slot(slab): Slot) {
        self.slabs_free.push(slab);
    }

    /// Number of pages before a page or a state of host memory.
    fn before(&self, piece: Piece) -> usize {
        match piece {
            Piece::Page(PageId(page)) => page as usize,
            Piece::State(Slot(slab)) => slab as usize * self.pages_each,
            Piece::Window(_) => unreachable!("windowed pages lie where a state would"),
        }
    }

    /// Offset of a page or a state in host memory, in bytes.
    pub fn at(&self, piece: Piece) -> usize {
        self.page_bytes * self.before(piece)
    }

    /// Bytes of a page or a state in host memory.
    pub fn range(&self, piece: Piece, bytes: PieceBytes) -> Range<usize> {
        let at = self.at(piece);
        at..at + bytes.of(piece)
    }

    /// Checksum of the bytes that were written to a page or a state.
    pub fn sum(&self, piece: Piece) -> Sum {
        self.sums[self.before(piece)]
    }

    pub fn set_sum(&mut self, piece: Piece, sum: Sum) {
        let at = self.before(piece);
        self.sums[at] = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_has_a_state_or_pages_and_either_when_it_is_empty_again() {
        let pieces = PieceBytes {
            page: 4096,
            state: 3 * 4096 - 1,
            window: 0,
        };
        let mut host = HostPool::new(10 * 4096, pieces);
        assert_eq!((host.slabs(), host.pages()), (3, 9));
        let state = host.take_state().unwrap();
        let pages: Vec<_> = std::iter::from_fn(|| host.take_page()).collect();
        assert_eq!((pages.len(), host.pages_free()), (6, 0));
        let whole = |piece, bytes| host.at(piece)..host.at(piece) + bytes;
        let mut ranges = vec![whole(Piece::State(state), pieces.state)];
        ranges.extend(pages.iter().map(|page| whole(Piece::Page(*page), 4096)));
        ranges.sort_by_key(|range| range.start);
        assert!(ranges.is_sorted_by(|a, b| a.end <= b.start), "{ranges:?}");
        pages[..3].iter().for_each(|page| host.give_page(*page));
        assert!(host.take_state().is_some() && host.take_state().is_none());
        host.give_state(state);
        assert_eq!(host.pages_free(), 3);
    }
}
