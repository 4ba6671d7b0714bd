//! Parts of sequences that can lie outside of the device: KV pages and recurrent states.

use crate::executor::{PageId, Slot};

/// Part of a sequence that is copied as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Piece {
    /// Keys and values of a page in all layers, those of the prediction layer among them.
    Page(PageId),
    /// A recurrent state of all layers.
    State(Slot),
}

/// Copy between a piece and the host's room, from `at` bytes behind the start of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub piece: Piece,
    pub at: usize,
}

/// Bytes of pieces, multiples of [`PIECE_ALIGN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceBytes {
    pub page: usize,
    /// 0 where the model has no states.
    pub state: usize,
}

/// Alignment of pieces in the host's room, bytes: that of a direct read of a disk.
pub const PIECE_ALIGN: usize = 4096;

impl PieceBytes {
    /// Bytes of a piece.
    pub fn of(&self, piece: Piece) -> usize {
        match piece {
            Piece::Page(_) => self.page,
            Piece::State(_) => self.state,
        }
    }
}
