//! Memory of what sequences leave behind: KV pages and recurrent states. What all layers have of a
//! page, or of a state, is a piece, which is saved and restored as one.

use super::Runs;
use crate::ops::{Copied, Place};
use crate::target::STATES;
use crate::weights::Layout;
use step::executor::DeviceError;
use step::transfer::{PIECE_ALIGN, Piece, PieceBytes, Transfer};

/// Bytes of a model's pieces.
pub fn piece_bytes<B: Runs>(model: Layout) -> PieceBytes {
    let sum = |of_layers: usize| of_layers.next_multiple_of(PIECE_ALIGN);
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
    /// Pieces that there are, and the memory of states if the model has some.
    pages: (usize, P),
    states: Option<P>,
    /// Parts that layers have by now, in the order of the layers.
    of_pages: Vec<Place<P>>,
    of_states: Vec<Place<P>>,
}

impl<P: Clone> Pools<P> {
    /// Takes the memory of `pages` pages and of all states.
    pub fn new<B: Runs<Pool = P>>(
        ops: &B,
        model: Layout,
        pages: usize,
    ) -> Result<Pools<P>, DeviceError> {
        let bytes = piece_bytes::<B>(model);
        let states = (bytes.state > 0).then(|| ops.pool(STATES, bytes.state));
        Ok(Pools {
            bytes,
            pages: (pages, ops.pool(pages, bytes.page)?),
            states: states.transpose()?,
            of_pages: Vec::new(),
            of_states: Vec::new(),
        })
    }

    pub fn bytes(&self) -> PieceBytes {
        self.bytes
    }

    /// The next layer's part of each page.
    pub fn page(&mut self, bytes: usize) -> Place<P> {
        let (count, pool) = &self.pages;
        give(&mut self.of_pages, pool, [*count, bytes, self.bytes.page])
    }

    /// The next layer's part of each state.
    #[cfg_attr(not(has = "delta"), expect(dead_code, reason = "no layer has a state"))]
    pub fn state(&mut self, bytes: usize) -> Place<P> {
        let pool = self.states.as_ref().expect("a model with states");
        give(&mut self.of_states, pool, [STATES, bytes, self.bytes.state])
    }

    /// Transfers as a device copies them.
    pub fn copied(&self, transfers: &[Transfer]) -> Vec<Copied<'_, P>> {
        let copied = |transfer: &Transfer| {
            let (places, piece) = match transfer.piece {
                Piece::Page(page) => (&self.of_pages, page.0),
                Piece::State(slot) => (&self.of_states, slot.0),
            };
            Copied {
                places,
                piece: piece as usize,
                at: transfer.at,
            }
        };
        transfers.iter().map(copied).collect()
    }
}

/// The next layer's place in a pool: `bytes` of each of `count` pieces, which have `all`.
fn give<P: Clone>(
    given: &mut Vec<Place<P>>,
    pool: &P,
    [count, bytes, all]: [usize; 3],
) -> Place<P> {
    let before: usize = given.iter().map(|place| place.stride).sum();
    assert!(before + bytes <= all, "a layer that no plan has");
    let place = Place {
        pool: pool.clone(),
        at: before * count,
        stride: bytes,
    };
    given.push(place.clone());
    place
}
