//! Pools of KV pages of each group, and of recurrent states. A piece is a page or a state with its
//! parts of all layers, which is saved and restored as a whole.
//!
//! Memory is split between the groups when the server starts. A windowed group has as many pages as
//! sequences, a step's prompts and snapshots can need at once (`step::Window`), so that a step
//! never waits for one; the rest goes to the group of all positions.

use super::Runs;
use crate::ops::{Copied, PAGE_GROUPS, PoolRegion};
use crate::shapes::PageGroup;
use crate::target::{STATES, WINDOW};
use crate::weights::Layout;
use step::executor::DeviceError;
use step::transfer::{PIECE_ALIGN, Piece, PieceBytes, Transfer};

/// Bytes of a page of a group; 0 if the model does not have the group.
pub fn page_bytes<B: Runs>(model: Layout, group: PageGroup) -> usize {
    let of_blocks = model.blocks().map(|block| block.page_bytes::<B>(group));
    of_blocks.sum::<usize>().next_multiple_of(PIECE_ALIGN)
}

/// Bytes of a recurrent state; 0 without one.
pub fn state_bytes<B: Runs>(model: Layout) -> usize {
    let of_blocks = model.blocks().flat_map(|block| block.state_bytes::<B>());
    of_blocks.sum::<usize>().next_multiple_of(PIECE_ALIGN)
}

/// Ranges of each layer's keys and values in a page of each group, and of each matrix state and
/// each convolution's tail in a state.
#[cfg(feature = "testing")]
pub fn parts<B: Runs>(model: Layout) -> [Vec<std::ops::Range<usize>>; 3] {
    let ranges = |all: Vec<usize>| {
        let mut end = 0;
        let range = |bytes: &usize| {
            end += bytes;
            end - bytes..end
        };
        all.iter()
            .map(range)
            .filter(|range| !range.is_empty())
            .collect()
    };
    let page = |group| {
        let of_blocks = model.blocks().map(|block| block.page_bytes::<B>(group));
        ranges(of_blocks.collect())
    };
    let states = model.blocks().flat_map(|block| block.state_bytes::<B>());
    let states = ranges(states.copied().collect());
    [page(PageGroup::Whole), page(PageGroup::Window), states]
}

/// The pools of a model's pages and states.
pub struct Pools<P> {
    pages: [Pool<P>; PAGE_GROUPS],
    states: Pool<P>,
}

/// Pieces of one kind.
struct Pool<P> {
    count: usize,
    /// Bytes of a piece.
    bytes: usize,
    /// Memory of all pieces; None if a piece has no bytes.
    memory: Option<P>,
    /// Regions that were given to layers so far, in the order of layers.
    regions: Vec<PoolRegion<P>>,
}

impl<P: Clone> Pools<P> {
    /// Takes the memory of so many pages of each group, and of all states.
    pub fn new<B: Runs<Pool = P>>(
        ops: &B,
        model: Layout,
        pages: [usize; 2],
    ) -> Result<Pools<P>, DeviceError> {
        let groups = [PageGroup::Whole, PageGroup::Window];
        let mut pools = Vec::with_capacity(PAGE_GROUPS);
        for (group, count) in groups.into_iter().zip(pages).take(PAGE_GROUPS) {
            pools.push(Pool::new(ops, count, page_bytes::<B>(model, group))?);
        }
        let pages = pools.try_into().ok().expect("a pool of each group");
        Ok(Pools {
            pages,
            states: Pool::new(ops, STATES, state_bytes::<B>(model))?,
        })
    }

    /// Bytes of the pieces that a tier of the cache saves.
    pub fn bytes(&self) -> PieceBytes {
        let window = self.pages.get(PageGroup::Window as usize);
        let window = window.map_or(0, |pool| pool.bytes);
        let snapshot = WINDOW.map_or(0, |of| of.snapshot_pages()) * window;
        assert!(
            snapshot == 0 || self.states.bytes == 0,
            "a model has states or a window"
        );
        PieceBytes {
            page: self.pages[0].bytes,
            state: self.states.bytes + snapshot,
            window,
        }
    }

    /// Gives the next layer `bytes` of every page of a group; returns the region of these bytes.
    pub fn page(&mut self, group: PageGroup, bytes: usize) -> PoolRegion<P> {
        self.pages[group as usize].give(bytes)
    }

    /// Gives the next layer `bytes` of every state; returns the region of these bytes.
    pub fn state(&mut self, bytes: usize) -> PoolRegion<P> {
        self.states.give(bytes)
    }

    /// Converts transfers to the copies that a device makes.
    pub fn copied(&self, transfers: &[Transfer]) -> Vec<Copied<'_, P>> {
        let copied = |transfer: &Transfer| {
            let (pool, piece) = match transfer.piece {
                Piece::Page(page) => (&self.pages[0], page.0),
                Piece::Window(page) => (&self.pages[PAGE_GROUPS - 1], page.0),
                Piece::State(slot) => (&self.states, slot.0),
            };
            Copied {
                regions: &pool.regions,
                piece: piece as usize,
                at: transfer.at,
            }
        };
        transfers.iter().map(copied).collect()
    }
}

impl<P: Clone> Pool<P> {
    fn new<B: Runs<Pool = P>>(ops: &B, count: usize, bytes: usize) -> Result<Self, DeviceError> {
        let memory = (bytes > 0).then(|| ops.pool(count, bytes));
        Ok(Pool {
            count,
            bytes,
            memory: memory.transpose()?,
            regions: Vec::new(),
        })
    }

    /// Gives the next layer `bytes` of every piece of this pool; returns the region of these bytes.
    fn give(&mut self, bytes: usize) -> PoolRegion<P> {
        let before: usize = self.regions.iter().map(|region| region.stride).sum();
        assert!(before + bytes <= self.bytes, "a layer that no plan has");
        let region = PoolRegion {
            pool: self.memory.clone().expect("it has bytes"),
            at: before * self.count,
            stride: bytes,
        };
        self.regions.push(region.clone());
        region
    }
}
