//! Decoders whose layers mix by Gated DeltaNet or by gated attention: Qwen3.5, Qwen3.6, Qwen3-Next.

use super::blocks::{self, Attention, Block, DeltaNet, Loader, Stream};
use super::feed_forward::Feeds;
use crate::executor::DeviceError;
use crate::ops::{Attend, Batch, Delta};
use crate::shapes::{Attention as _, Delta as _};
use crate::target::{Full, Gdn, Role};
use crate::weights::{Layout, WeightsError};

/// Operations that the family is written in.
pub trait Runs: Feeds + Attend<Full> + Delta<Gdn> {}

impl<B: Feeds + Attend<Full> + Delta<Gdn>> Runs for B {}

/// Token mixer of a layer.
pub enum Mixer<B: Runs> {
    Delta(DeltaNet<B, Gdn>),
    Attention(Attention<B, Full>),
}

/// Storage of a step of either.
pub struct Scratch<B: Runs> {
    delta: <DeltaNet<B, Gdn> as Block<B>>::Scratch,
    attention: <Attention<B, Full> as Block<B>>::Scratch,
}

/// Width of what a mixer leaves before its last product.
pub const MIXED: usize = if Full::MIXED > Gdn::VALUES {
    Full::MIXED
} else {
    Gdn::VALUES
};

impl<B: Runs> Block<B> for Mixer<B> {
    type Scratch = Scratch<B>;

    const WIDTHS: &'static [usize] = &[
        Gdn::QKV,
        Gdn::QKV,
        Gdn::VALUES,
        Gdn::VALUE_HEADS,
        Gdn::VALUE_HEADS,
        Full::QUERIES,
        Full::KEYS,
        Full::KEYS,
    ];

    fn load(loader: &mut Loader<'_, B>) -> Result<Self, WeightsError> {
        match loader.has(Role::GdnQkv) {
            true => Ok(Mixer::Delta(DeltaNet::load(loader)?)),
            false => Ok(Mixer::Attention(Attention::load(loader)?)),
        }
    }

    fn scratch(ops: &B, rows: usize) -> Result<Scratch<B>, DeviceError> {
        Ok(Scratch {
            delta: DeltaNet::<B, Gdn>::scratch(ops, rows)?,
            attention: Attention::<B, Full>::scratch(ops, rows)?,
        })
    }

    fn run(
        &mut self,
        ops: &mut B,
        norm: &B::Vector,
        stream: &mut Stream<B>,
        own: &mut Scratch<B>,
        batch: &Batch,
    ) {
        match self {
            Mixer::Delta(delta) => delta.run(ops, norm, stream, &mut own.delta, batch),
            Mixer::Attention(attention) => {
                attention.run(ops, norm, stream, &mut own.attention, batch);
            }
        }
    }
}

/// Name of a layer's mixer, for people.
pub fn mixer_name(layout: Layout, layer: usize) -> &'static str {
    match layout.has(Role::GdnQkv, crate::target::Site::Layer(layer)) {
        true => "gdn",
        false => "attention",
    }
}

/// Bytes of the caches of so many pages: a buffer per attention layer.
pub fn caches(layout: Layout, pages: usize) -> impl Iterator<Item = u64> {
    let of_layer = pages as u64 * blocks::page_bytes::<Full>();
    layout.sites(Role::Key).map(move |_| of_layer)
}

/// Bytes of the states of so many sequences: two buffers per recurrent layer.
pub fn states(layout: Layout, sequences: usize) -> impl Iterator<Item = u64> {
    let of_layer = move |_| blocks::state_bytes::<Gdn>(sequences);
    layout.sites(Role::GdnQkv).flat_map(of_layer)
}
