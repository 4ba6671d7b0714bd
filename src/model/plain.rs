//! Decoders whose layers all attend alike: Llama, Mixtral, Qwen3.

use std::iter;

use super::blocks::{self, Attention};
use super::feed_forward::Feeds;
use crate::ops::{Attend, Guess};
use crate::shapes::Attention as _;
use crate::target::{Full, Role};
use crate::weights::Layout;

/// Operations that the family is written in.
pub trait Runs: Feeds + Guess + Attend<Full> {}

impl<B: Feeds + Guess + Attend<Full>> Runs for B {}

/// Token mixer of every layer.
pub type Mixer<B> = Attention<B, Full>;

/// Width of what a mixer leaves before its last product.
pub const MIXED: usize = Full::MIXED;

/// Name of a layer's mixer, for people.
pub fn mixer_name(_: Layout, _: usize) -> &'static str {
    "attention"
}

/// Bytes of the caches of so many pages: a buffer per layer.
pub fn caches(layout: Layout, pages: usize) -> impl Iterator<Item = u64> {
    let of_layer = pages as u64 * blocks::page_bytes::<Full>();
    layout.sites(Role::Key).map(move |_| of_layer)
}

/// None: nothing but keys and values is kept.
pub fn states(_: Layout, _: usize) -> impl Iterator<Item = u64> {
    iter::empty()
}
