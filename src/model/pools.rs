//! Memory of what sequences leave behind: KV pages and recurrent states. All layers of a page lie
//! side by side, and so do those of a state: each is a piece that one copy saves or restores.

use super::Runs;
use crate::ops::{Copied, Place};
use crate::target::STATES;
use crate::weights::Layout;
use step::executor::DeviceError;
use step::transfer::{PIECE_ALIGN, Piece, PieceBytes, Transfer};

/// Bytes of a model's pieces.
pub fn piece_bytes<B: Runs>(model: Layout) -> PieceBytes {
    let sum = |of_layers: u64| (of_layers as usize).next_multiple_of(PIECE_ALIGN);
    let blocks = || model.blocks();
    PieceBytes {
        page: sum(blocks().map(|block| block.page_bytes::<B>()).sum()),
        state: sum(blocks().flat_map(|block| block.state_bytes::<B>()).sum()),
    }
}

/// Ranges of each layer's keys and values in a page, and of each matrix and each convolution's tail
/// in a state.
#[cfg(test)]
pub fn parts<B: Runs>(model: Layout) -> [Vec<std::ops::Range<usize>>; 2] {
    let ranges = |all: Vec<u64>| {
        let mut end = 0;
        let range = |bytes: &u64| {
            end += *bytes as usize;
            end - *bytes as usize..end
        };
        all.iter()
            .map(range)
            .filter(|range| !range.is_empty())
            .collect()
    };
    let states = model.blocks().flat_map(|block| block.state_bytes::<B>());
    [
        ranges(
            model
                .blocks()
                .map(|block| block.page_bytes::<B>())
                .collect(),
        ),
        ranges(states.copied().collect()),
    ]
}

/// The pieces of a model.
pub struct Pools<P> {
    bytes: PieceBytes,
    pages: P,
    /// None where the model has no states.
    states: Option<P>,
    /// What layers have of a piece by now.
    given: PieceBytes,
}

impl<P: Clone> Pools<P> {
    /// Takes the memory of `pages` pages and of all states.
    ///
    /// # Errors
    /// Too little memory.
    pub fn new<B: Runs<Pool = P>>(
        ops: &B,
        model: Layout,
        pages: usize,
    ) -> Result<Pools<P>, DeviceError> {
        let bytes = piece_bytes::<B>(model);
        let states = (bytes.state > 0).then(|| ops.pool(STATES, bytes.state));
        Ok(Pools {
            bytes,
            pages: ops.pool(pages, bytes.page)?,
            states: states.transpose()?,
            given: PieceBytes { page: 0, state: 0 },
        })
    }

    pub fn bytes(&self) -> PieceBytes {
        self.bytes
    }

    /// The next layer's part of each page.
    pub fn page(&mut self, bytes: usize) -> Place<P> {
        let pool = self.pages.clone();
        let at = give(&mut self.given.page, bytes, self.bytes.page);
        Place { pool, at }
    }

    /// The next layer's part of each state.
    #[cfg_attr(not(has = "delta"), expect(dead_code, reason = "no layer has a state"))]
    pub fn state(&mut self, bytes: usize) -> Place<P> {
        let pool = self.states.clone().expect("a model with states");
        let at = give(&mut self.given.state, bytes, self.bytes.state);
        Place { pool, at }
    }

    /// Transfers as a device copies them.
    pub fn copied(&self, transfers: &[Transfer]) -> Vec<Copied<'_, P>> {
        let copied = |transfer: &Transfer| {
            let (pool, piece) = match transfer.piece {
                Piece::Page(page) => (&self.pages, page.0),
                Piece::State(slot) => (self.states.as_ref().expect("a model with states"), slot.0),
            };
            Copied {
                pool,
                piece: piece as usize,
                at: transfer.at,
            }
        };
        transfers.iter().map(copied).collect()
    }
}

/// Adds a layer's bytes to those that are given of a piece; where they begin.
fn give(given: &mut usize, bytes: usize, all: usize) -> usize {
    let at = *given;
    *given += bytes;
    assert!(*given <= all, "a layer that no plan has");
    at
}
