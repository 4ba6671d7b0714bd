//! Decoders whose layers attend to a window of positions or to all, each kind in its own shape.

use std::iter;

use super::blocks::{self, Attention, Block, Loader, Stream};
use super::feed_forward::Feeds;
use crate::executor::DeviceError;
use crate::ops::{Attend, Batch};
use crate::shapes::Attention as _;
use crate::target::{self, Full, MIXERS, Role, Site, Sliding};
use crate::weights::{Layout, WeightsError};

/// Operations that the family is written in.
pub trait Runs: Feeds + Attend<Full> + Attend<Sliding> {}

impl<B: Feeds + Attend<Full> + Attend<Sliding>> Runs for B {}

/// Token mixer of a layer.
pub enum Mixer<B: Runs> {
    Sliding(Attention<B, Sliding>),
    Full(Attention<B, Full>),
}

/// Storage of a step of either.
pub struct Scratch<B: Runs> {
    sliding: <Attention<B, Sliding> as Block<B>>::Scratch,
    full: <Attention<B, Full> as Block<B>>::Scratch,
}

/// Width of what a mixer leaves before its last product.
pub const MIXED: usize = if Full::MIXED > Sliding::MIXED {
    Full::MIXED
} else {
    Sliding::MIXED
};

impl<B: Runs> Block<B> for Mixer<B> {
    type Scratch = Scratch<B>;

    const WIDTHS: &'static [usize] = &[
        Sliding::QUERIES,
        Sliding::KEYS,
        Sliding::KEYS,
        Full::QUERIES,
        Full::KEYS,
        Full::KEYS,
    ];

    fn load(loader: &mut Loader<'_, B>) -> Result<Self, WeightsError> {
        match slides(loader.site) {
            true => Ok(Mixer::Sliding(Attention::load(loader)?)),
            false => Ok(Mixer::Full(Attention::load(loader)?)),
        }
    }

    fn scratch(ops: &B, rows: usize) -> Result<Scratch<B>, DeviceError> {
        Ok(Scratch {
            sliding: Attention::<B, Sliding>::scratch(ops, rows)?,
            full: Attention::<B, Full>::scratch(ops, rows)?,
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
            Mixer::Sliding(mixer) => mixer.run(ops, norm, stream, &mut own.sliding, batch),
            Mixer::Full(mixer) => mixer.run(ops, norm, stream, &mut own.full, batch),
        }
    }
}

/// Whether the layer at a site attends to a window.
fn slides(site: Site) -> bool {
    matches!(site, Site::Layer(layer) if MIXERS[layer] == target::Mixer::Sliding)
}

/// Name of a layer's mixer, for people.
pub fn mixer_name(_: Layout, layer: usize) -> &'static str {
    match slides(Site::Layer(layer)) {
        true => "sliding",
        false => "attention",
    }
}

/// Bytes of the caches of so many pages: a buffer per layer.
pub fn caches(layout: Layout, pages: usize) -> impl Iterator<Item = u64> {
    let page = |site| match slides(site) {
        true => blocks::page_bytes::<Sliding>(),
        false => blocks::page_bytes::<Full>(),
    };
    layout
        .sites(Role::Key)
        .map(move |site| pages as u64 * page(site))
}

/// None: nothing but keys and values is kept.
pub fn states(_: Layout, _: usize) -> impl Iterator<Item = u64> {
    iter::empty()
}
