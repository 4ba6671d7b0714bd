//! Checksums of pages and states in host memory, a few at a time.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::Receiver;

use super::host_pool::HostPool;
use step::executor::Executor;
use step::transfer::{Piece, PieceBytes, Sum};

/// Bytes of pieces whose checksums are computed in one batch.
const TOGETHER: usize = 8 << 20;
/// Largest number of batches that are computed at once.
const UNDER_WAY_MAX: usize = 128;

/// Checksums of pieces, in the order of the pieces.
#[derive(Debug, Default)]
pub struct Sums {
    pieces: Vec<Piece>,
    asked: usize,
    coming: VecDeque<Receiver<Vec<Sum>>>,
    came: Vec<Sum>,
}

impl Sums {
    pub fn of(pieces: Vec<Piece>) -> Sums {
        Sums {
            pieces,
            ..Sums::default()
        }
    }

    /// Pieces whose checksums have come, and the checksums.
    pub fn found(&self) -> impl Iterator<Item = (Piece, Sum)> {
        self.pieces.iter().copied().zip(self.came.iter().copied())
    }

    /// Takes the checksums that have come and asks for more; returns whether all have come.
    pub fn go_on(&mut self, device: &mut impl Executor, on: &HostPool, bytes: PieceBytes) -> bool {
        while self.asked < self.pieces.len() && self.coming.len() < UNDER_WAY_MAX {
            let ranges = self.next(on, bytes);
            self.asked += ranges.len();
            self.coming.push_back(device.sums(ranges));
        }
        while let Some(sums) = self.coming.front().and_then(|first| first.try_recv().ok()) {
            self.came.extend(sums);
            self.coming.pop_front();
        }
        self.came.len() == self.pieces.len()
    }

    /// Ranges of host memory of the next batch of pieces.
    fn next(&self, on: &HostPool, bytes: PieceBytes) -> Vec<Range<usize>> {
        let mut sum = 0;
        let rest = self.pieces[self.asked..].iter();
        let next = rest.take_while(|piece| {
            let is_first = sum == 0;
            sum += bytes.of(**piece);
            is_first || sum <= TOGETHER
        });
        next.map(|piece| on.range(*piece, bytes)).collect()
    }
}
