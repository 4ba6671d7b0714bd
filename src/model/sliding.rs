//! Decoders whose layers attend to a window of positions or to all, each kind in its own shape.

use std::iter;

use super::blocks::{self, Attention, Either, Sited};
use super::feed_forward::Feeds;
use crate::ops::{Attend, Guess};
use crate::shapes::Attention as _;
use crate::target::{self, Full, MIXERS, Role, Site, Sliding};
use crate::weights::Layout;

/// Operations that the family is written in.
pub trait Runs: Feeds + Guess + Attend<Full> + Attend<Sliding> {}

impl<B: Feeds + Guess + Attend<Full> + Attend<Sliding>> Runs for B {}

/// Token mixer of a layer.
pub type Mixer<B> = Either<Attention<B, Sliding>, Attention<B, Full>>;

impl<B: Runs> Sited for Attention<B, Sliding> {
    fn is_at(site: Site) -> bool {
        slides(site)
    }
}

/// Width of what a mixer leaves before its last product.
pub const MIXED: usize = if Full::MIXED > Sliding::MIXED {
    Full::MIXED
} else {
    Sliding::MIXED
};

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
