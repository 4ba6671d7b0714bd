//! Draft tokens that the device draws itself, while the host reads the results of the step before.

use std::ops::Range;

use super::{Batch, Device};
use step::executor::{DeviceError, Drafted};

/// Operations of a step that is followed by predictions without the host in between. Only a backend
/// that records programs is asked for them; the bodies here are those of all others.
pub trait Draft: Device {
    /// `begin` of the batch of drafts. Operations so far may be under way and have the step's
    /// batch.
    fn begin_drafts(&mut self, _drafts: &Batch) {}

    /// Begins to copy `rows` of `x` to the host, after all operations so far: `Draft::read_asked`
    /// waits.
    fn ask(&mut self, _x: &Self::Tensor, _rows: Range<usize>, _out: &mut Self::Host) {}

    /// Waits for what was asked for, but not for operations queued after that.
    fn read_asked(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Draws the token after each row of `batch`, if `Batch::accepts`, by the rules of the batch of
    /// drafts: it is the row's token from here on. All rows are ranked. One row of each sequence is
    /// wanted: the device takes the one after the last accepted draft, and the sequence's row in
    /// the batch of drafts moves to the next position.
    fn accept(&mut self, _ranked: &Self::Tensor, _batch: &Batch) {}

    /// Draws the next draft of each row of `logits`, which `Dense::lm_head` has left last, by the
    /// rules of the batch of drafts, where it becomes the token of the row; after a prediction on
    /// that batch (`on`) its rows move on by a position.
    fn draft(&mut self, _logits: &Self::Tensor, _on: bool) {}

    /// Waits for all operations, and appends what was drawn of so many sequences, `depth` drafts
    /// each.
    fn read_drafts(
        &mut self,
        _depth: usize,
        _sequences: usize,
        _drafted: &mut Vec<Drafted>,
    ) -> Result<(), DeviceError> {
        Ok(())
    }
}
