//! Predictions that run ahead of the host, which reads meanwhile what the step before has given.

use std::ops::Range;

use super::{Batch, Device};
use step::executor::{DeviceError, Guessed};

/// Guesses of what the host will choose. A backend that records no program is never asked for
/// any, and has the bodies that are here.
pub trait Guess: Device {
    /// `begin` of the batch ahead, beside the operations so far, which may be under way.
    fn begin_ahead(&mut self, _ahead: &Batch) {}

    /// Begins to copy `rows` of `x` to the host, behind all operations so far: `Guess::read_asked`
    /// waits.
    fn ask(&mut self, _x: &Self::Tensor, _rows: Range<usize>, _out: &mut Self::Host) {}

    /// Waits for what was asked for, but not for operations behind that.
    fn read_asked(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Guesses which token comes behind each row of `batch`, if tokens of that are drawn ahead, by
    /// the rules of the batch ahead: it is the row's token from here on. All rows are ranked. One
    /// row of each sequence is wanted: the device takes the one behind which no draft holds, and
    /// the row ahead is at the next position.
    fn accept(&mut self, _ranked: &Self::Tensor, _batch: &Batch) {}

    /// Guesses the next draft of each row of `logits`, which `Dense::lm_head` has left last, by the
    /// rules of the batch ahead, where it becomes the token of the row; behind a prediction on that
    /// batch (`on`) its rows move on by a position.
    fn guess(&mut self, _logits: &Self::Tensor, _on: bool) {}

    /// Waits for all operations, and appends the guesses of so many sequences in `passes`.
    fn read_guesses(
        &mut self,
        _passes: usize,
        _sequences: usize,
        _guessed: &mut Vec<Guessed>,
    ) -> Result<(), DeviceError> {
        Ok(())
    }
}
