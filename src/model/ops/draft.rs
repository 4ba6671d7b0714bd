//! Draft tokens that the device draws itself, while the host reads the previous step's results.

use std::ops::Range;

use super::{Batch, Device};
use step::executor::{DeviceError, Drafted};

/// Operations of a step that is followed by predictions without the host in between. Only a backend
/// that records programs is asked for them; the default bodies are for all other backends.
pub trait Draft: Device {
    /// `begin` of the batch of drafts. Earlier operations may be running, with the step's batch.
    fn begin_drafts(&mut self, _drafts: &Batch) {}

    /// Starts to copy `rows` of `x` to the host, after all operations so far: `Draft::read_asked`
    /// waits for the copy.
    fn ask(&mut self, _x: &Self::Tensor, _rows: Range<usize>, _out: &mut Self::Host) {}

    /// Waits for the copies that `ask` started, but not for operations queued after them.
    fn read_asked(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Draws the token after each row of `batch`, if `Batch::accepts`, by the rules of the batch of
    /// drafts; the token replaces the row's token. All rows are ranked. One row of each sequence is
    /// wanted: the device takes the one after the last accepted draft, and the sequence's row in
    /// the batch of drafts advances to the next position.
    fn accept(&mut self, _ranked: &Self::Tensor, _batch: &Batch) {}

    /// Draws the next draft of each row of `logits`, which `Dense::lm_head` has left last, by the
    /// rules of the batch of drafts, where it becomes the token of the row; after a prediction on
    /// that batch (`on`) the batch's rows advance by a position.
    fn draft(&mut self, _logits: &Self::Tensor, _on: bool) {}

    /// Waits for all operations, and appends the drawn tokens: `depth` drafts of each sequence.
    fn read_drafts(
        &mut self,
        _depth: usize,
        _sequences: usize,
        _drafted: &mut Vec<Drafted>,
    ) -> Result<(), DeviceError> {
        Ok(())
    }
}
