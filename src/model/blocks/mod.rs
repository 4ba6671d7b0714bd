//! Blocks that layers are made of, each generic over its shape: weights, workspace of a step,
//! operations. A kind of block that no layer of the target has is not compiled.

mod any;
#[cfg(has = "attention")]
mod attention;
#[cfg(has = "both")]
mod both;
#[cfg(has = "delta")]
mod delta;
#[cfg(has = "experts")]
pub(crate) mod experts;
#[cfg(has = "latent")]
pub mod latent;
mod loader;
#[cfg(has = "mlp")]
mod mlp;

pub use any::{AnyBlock, Runs, Scratch};
pub use loader::{Loader, Memory};

use crate::ops::{Batch, Dense, Device};
use crate::shapes::{PageGroup, largest};
use crate::target::{HIDDEN, each_experts};
use crate::weights::WeightsError;
use step::executor::DeviceError;

/// Numbers of routed experts of a layer, and of those that a row visits; 0 without experts.
pub const ROUTED: [usize; 2] = [
    largest(&each_experts![E => <E as crate::shapes::Experts>::COUNT]),
    largest(&each_experts![E => <E as crate::shapes::Experts>::PER_TOKEN]),
];
/// Logits of a router: of every expert, then of the shared one's gate; 0 without a router.
pub const ROUTER_LOGITS: usize =
    largest(&each_experts![E => <E as crate::shapes::Experts>::LOGITS]);
/// Whether experts of NVFP4 multiply rows that are rounded to NVFP4.
pub const ROWS_NVFP4: bool =
    largest(&each_experts![E => <E as crate::shapes::Experts>::ROWS_NVFP4 as usize]) > 0;

/// Block of a layer that adds to the residual stream: a token mixer, or a feed-forward block.
pub trait Block<B: Device>: Sized {
    /// Workspace of a step, shared by all layers.
    type Scratch;

    /// Widths of the tensors of `Scratch`, in its order.
    const WIDTHS: &'static [usize];
    /// Width of the block's output in `Stream::mixed`.
    const MIXED: usize = 0;
    /// Elements of a vector of zeros that the block has beside its weights.
    const ZEROS: usize = 0;
    /// Bytes of the block's cache in a page; 0 without a cache.
    const PAGE_BYTES: usize = 0;
    /// Group of the pages of the block's cache.
    const PAGES: PageGroup = PageGroup::Whole;
    /// Bytes of a sequence in each buffer of the block's recurrent states.
    const STATE_BYTES: &'static [usize] = &[];

    /// Reads the weights of a site, and takes the memory of the block's cache and states.
    ///
    /// # Errors
    /// `WeightsError` naming the file and tensor that cannot be used.
    fn load(loader: &mut Loader<'_, B>) -> Result<Self, WeightsError>;

    /// Workspace for steps of at most `rows` rows.
    ///
    /// # Errors
    /// Too little memory.
    fn scratch(ops: &B, rows: usize) -> Result<Self::Scratch, DeviceError>;

    /// Adds to `stream.residual` the block's output for its normed rows.
    fn run(&mut self, ops: &mut B, pass: Pass<'_, B>, own: &mut Self::Scratch);

    /// Logits of a router that the last `run` left, `[rows, ROUTER_LOGITS]`, if the block has one.
    fn router(_: &Self::Scratch) -> Option<&B::Tensor> {
        None
    }
}

/// Inputs of a block in a step.
pub struct Pass<'a, B: Device> {
    pub norms: &'a Norms<B::Vector>,
    pub stream: &'a mut Stream<B>,
    pub batch: &'a Batch,
}

/// Weights of the norms around a block.
pub struct Norms<V> {
    /// Norm of the block's input.
    pub before: V,
    /// Norm of the block's output, if any, and the factor of hidden states after the addition.
    pub after: Option<(V, f32)>,
}

impl<V> Norms<V> {
    /// Adds a block's last product to the residual stream; `workspace` is as wide as the stream.
    pub fn add<B: Dense<Vector = V>>(
        &self,
        ops: &mut B,
        x: &B::Tensor,
        w: &B::Matrix,
        workspace: &mut B::Tensor,
        residual: &mut B::Tensor,
    ) {
        let Some((after, factor)) = &self.after else {
            return ops.gather_add(residual, |ops, sum| ops.linear_add(x, w, sum));
        };
        ops.gather(workspace, |ops, sum| ops.linear(x, w, sum));
        ops.rms_norm(workspace, after, residual, Some(*factor));
    }
}

/// Activations of a step's rows between blocks.
pub struct Stream<B: Device> {
    /// Hidden states, `[rows, HIDDEN]`.
    pub residual: B::Tensor,
    /// Workspace for normed hidden states.
    pub x: B::Tensor,
    /// Workspace for a mixer's output before its last product.
    pub mixed: B::Tensor,
}

impl<B: Device> Stream<B> {
    /// Widths of the stream's tensors, in the order of fields; `mixed` is that of the widest mixer.
    pub const fn widths(mixed: usize) -> [usize; 3] {
        [HIDDEN, HIDDEN, mixed]
    }

    /// Tensors for at most `rows` rows.
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
