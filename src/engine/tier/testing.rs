//! A device that has nothing but copies to and from host memory.

use std::ops::Range;
use std::sync::mpsc::Receiver;

use step::executor::{DeviceError, Executor, SeqRows, TokenId};
use step::transfer::{PieceBytes, Sum, Transfer, at_once};

/// Bytes of a page and of a state, about as a model of 35 billion parameters has them.
pub const PIECES: PieceBytes = PieceBytes {
    page: 1_310_720,
    state: 48 * 1_310_720,
    window: 0,
};

/// The device. Its copies end at once, or not before they are asked to.
#[derive(Debug, Default)]
pub struct Copying {
    pub started: Vec<Transfer>,
    /// Copies that have ended, if they do not at once.
    pub ended: Option<u64>,
    /// Where a piece lies in host memory that has changed.
    pub changed: Option<usize>,
}

impl Executor for Copying {
    const VOCAB: usize = 1;

    fn step(&mut self, _: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        unreachable!("it computes nothing")
    }

    fn logits(&mut self, _: usize) -> Result<&[f32], DeviceError> {
        unreachable!("it computes nothing")
    }

    fn logits_of(&mut self, _: &[usize], _: &mut Vec<f32>) -> Result<(), DeviceError> {
        unreachable!("it computes nothing")
    }

    fn sums(&mut self, ranges: Vec<Range<usize>>) -> Receiver<Vec<Sum>> {
        let sum = |range: Range<usize>| Sum::from(self.changed == Some(range.start));
        at_once(ranges.into_iter().map(sum).collect())
    }

    fn save(&mut self, transfers: &[Transfer]) -> Result<(), DeviceError> {
        self.started.extend(transfers);
        Ok(())
    }

    fn restore(&mut self, transfers: &[Transfer]) -> Result<(), DeviceError> {
        self.save(transfers)
    }

    fn transferred(&mut self) -> Result<u64, DeviceError> {
        Ok(self.ended.unwrap_or(self.started.len() as u64))
    }
}

/// A prompt of whole pages, and its last token.
pub fn prompt(pages: usize) -> Vec<TokenId> {
    (0..=(pages * step::PAGE) as TokenId).collect()
}
