//! Pieces of the cache that can be saved to host memory and restored: KV pages and states.

use std::sync::mpsc::{self, Receiver};

use crate::ids::{PageId, Slot};

/// Part of the cache that is copied as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Piece {
    /// Keys and values of a page of the group of all positions, in all its layers and in the
    /// prediction layer.
    Page(PageId),
    /// Recurrent state, in all recurrent layers.
    State(Slot),
    /// Keys and values of a page of the windowed group, in all layers of the group.
    Window(PageId),
}

/// Copy between a piece and host memory, where the copy begins at `at` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub piece: Piece,
    pub at: usize,
}

/// Bytes of each kind of piece, multiples of [`PIECE_ALIGN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceBytes {
    pub page: usize,
    /// Bytes of a snapshot: a recurrent state, or all pages of the windowed group that a snapshot
    /// has. 0 if the model has neither.
    pub state: usize,
    /// Bytes of a page of the windowed group; 0 if the model has no such group.
    pub window: usize,
}

/// Alignment of pieces in host memory, bytes: that of a direct read of a disk.
pub const PIECE_ALIGN: usize = 4096;

/// CRC-32 of a piece: detects every change within 32 consecutive bits, and misses one in four
/// billion of all others.
pub type Sum = u32;

/// Receiver of a result that exists already, for devices that compute results at once.
pub fn at_once<T>(it: T) -> Receiver<T> {
    let (give, come) = mpsc::channel();
    // The send cannot fail: the receiver is alive.
    let _ = give.send(it);
    come
}

/// Checksum of bytes.
pub fn sum(bytes: &[u8]) -> Sum {
    crc32fast::hash(bytes)
}

impl PieceBytes {
    /// Bytes of a piece of this kind.
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
