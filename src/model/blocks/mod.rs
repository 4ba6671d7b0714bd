//! Parts that layers are made of, each over its shape: weights, storage of a step, operations. A
//! part that no layer of the target has is not compiled.

mod attention;
#[cfg(model = "hybrid")]
mod delta;
#[cfg(any(model = "hybrid", model = "sliding"))]
mod either;
#[cfg(feed_forward = "experts")]
mod experts;
mod loader;
#[cfg(feed_forward = "mlp")]
mod mlp;

pub use attention::{Attention, page_bytes};
#[cfg(model = "hybrid")]
pub use delta::{DeltaNet, state_bytes};
#[cfg(any(model = "hybrid", model = "sliding"))]
pub use either::{Either, Sited};
#[cfg(feed_forward = "experts")]
pub use experts::Experts;
pub use loader::{Kept, Loader};
#[cfg(feed_forward = "mlp")]
pub use mlp::Mlp;

use crate::ops::{Batch, Device};
use crate::target::HIDDEN;
use crate::weights::WeightsError;
use step::executor::DeviceError;

/// A part of a layer that adds to the residual stream: a token mixer, or what follows it.
pub trait Block<B: Device>: Sized {
    /// Storage that a step of it works in, shared by all layers.
    type Scratch;

    /// Widths of the tensors of `Scratch`, in its order.
    fn widths() -> impl Iterator<Item = usize>;

    /// Reads the weights of a site, and takes what the block keeps from step to step.
    ///
    /// # Errors
    /// `WeightsError` naming the file and tensor that cannot be used.
    fn load(loader: &mut Loader<'_, B>) -> Result<Self, WeightsError>;

    /// Storage for steps of at most `rows` rows.
    ///
    /// # Errors
    /// Too little memory.
    fn scratch(ops: &B, rows: usize) -> Result<Self::Scratch, DeviceError>;

    /// Adds to `stream.residual` what the block makes of its rows, normed by `norm`.
    fn run(
        &mut self,
        ops: &mut B,
        norm: &B::Vector,
        stream: &mut Stream<B>,
        own: &mut Self::Scratch,
        batch: &Batch,
    );

    /// Logits of a router that the last `run` left, `[rows, ROUTER_LOGITS]`, if the block has one.
    fn router(_: &Self::Scratch) -> Option<&B::Tensor> {
        None
    }
}

/// The rows of a step on their way through the layers.
pub struct Stream<B: Device> {
    /// Hidden states, `[rows, HIDDEN]`.
    pub residual: B::Tensor,
    /// Room for normed ones.
    pub x: B::Tensor,
    /// Room for what a mixer makes of them, before its last product.
    pub mixed: B::Tensor,
}

impl<B: Device> Stream<B> {
    /// Widths of its tensors, in their order; `mixed` is that of the widest mixer.
    pub const fn widths(mixed: usize) -> [usize; 3] {
        [HIDDEN, HIDDEN, mixed]
    }

    /// Room for at most `rows` rows.
    ///
    /// # Errors
    /// Too little memory.
    pub fn new(ops: &B, rows: usize, mixed: usize) -> Result<Stream<B>, DeviceError> {
        let [residual, x, mixed] = Self::widths(mixed).map(|width| ops.tensor(rows, width));
        Ok(Stream {
            residual: residual?,
            x: x?,
            mixed: mixed?,
        })
    }
}
