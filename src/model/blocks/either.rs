//! Layers of two kinds: one block or another.

use super::{Block, Loader, Stream};
use crate::ops::{Batch, Device};
use crate::target::Site;
use crate::weights::WeightsError;
use step::executor::DeviceError;

/// A block that some layers have, where others have another one.
pub trait Sited {
    /// Whether the layer at a site has it.
    fn is_at(site: Site) -> bool;
}

/// The block of a layer of either kind.
pub enum Either<F, S> {
    First(F),
    Second(S),
}

impl<B: Device, F: Block<B> + Sited, S: Block<B>> Block<B> for Either<F, S> {
    type Scratch = (F::Scratch, S::Scratch);

    fn widths() -> impl Iterator<Item = usize> {
        F::widths().chain(S::widths())
    }

    fn load(loader: &mut Loader<'_, B>) -> Result<Self, WeightsError> {
        match F::is_at(loader.site) {
            true => Ok(Either::First(F::load(loader)?)),
            false => Ok(Either::Second(S::load(loader)?)),
        }
    }

    fn scratch(ops: &B, rows: usize) -> Result<Self::Scratch, DeviceError> {
        Ok((F::scratch(ops, rows)?, S::scratch(ops, rows)?))
    }

    fn run(
        &mut self,
        ops: &mut B,
        norm: &B::Vector,
        stream: &mut Stream<B>,
        (first, second): &mut Self::Scratch,
        batch: &Batch,
    ) {
        match self {
            Either::First(block) => block.run(ops, norm, stream, first, batch),
            Either::Second(block) => block.run(ops, norm, stream, second, batch),
        }
    }
}
