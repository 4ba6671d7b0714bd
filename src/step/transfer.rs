//! Parts of sequences that can lie outside of the device: KV pages and recurrent states.

use std::sync::mpsc::{self, Receiver};

use crate::ids::{PageId, Slot};

/// Part of a sequence that is copied as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Piece {
    /// Keys and values of a page in all layers of the group of all positions, those of the
    /// prediction layer among them.
    Page(PageId),
    /// A recurrent state of all layers.
    State(Slot),
    /// Keys and values of a page of the windowed group, in all layers of that.
    Window(PageId),
}

/// Copy between a piece and host memory, where it begins at `at` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub piece: Piece,
    pub at: usize,
}

/// Bytes of pieces, multiples of [`PIECE_ALIGN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceBytes {
    pub page: usize,
    /// Bytes that a prompt goes on from beside its pages: a recurrent state, or as many pages of
    /// the windowed group as a snapshot has. 0 where the model has neither.
    pub state: usize,
    /// A page of the windowed group; 0 where the model has none.
    pub window: usize,
}

/// Alignment of pieces in host memory, bytes: that of a direct read of a disk.
pub const PIECE_ALIGN: usize = 4096;

/// Tells whether bytes of a piece changed in host memory: any burst of up to 32 bits, and of
/// other changes all but one of four billion.
pub type Sum = u32;

/// A result, of a device that has it at once.
pub fn at_once<T>(it: T) -> Receiver<T> {
    let (give, come) = mpsc::channel();
    // Its receiver is here.
    let _ = give.send(it);
    come
}

/// Checksum of bytes.
pub fn sum(bytes: &[u8]) -> Sum {
    crc32fast::hash(bytes)
}

impl PieceBytes {
    /// Bytes of a piece.
    pub fn of(&self, piece: Piece) -> usize {
        match piece {
            Piece::Page(_) => self.page,
            Piece::State(_) => self.state,
            Piece::Window(_) => self.window,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_flipped_bit_changes_the_sum_anywhere() {
        let mut bytes = vec![0x5A; 1 << 20];
        let before = sum(&bytes);
        for at in (0..bytes.len()).step_by(4099) {
            bytes[at] ^= 1 << (at % 8);
            assert_ne!(sum(&bytes), before, "{at}");
            bytes[at] ^= 1 << (at % 8);
        }
        let begun = Instant::now();
        assert_eq!(sum(&bytes), before);
        let rate = bytes.len() as f64 / begun.elapsed().as_secs_f64() / 1e9;
        println!("{rate:.1} GB/s");
    }
}
