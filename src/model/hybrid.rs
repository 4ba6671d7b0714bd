//! Decoders whose layers mix by Gated DeltaNet or by gated attention: Qwen3.5, Qwen3.6, Qwen3-Next.

use super::blocks::{self, Attention, DeltaNet, Either, Sited};
use super::feed_forward::Feeds;
use crate::ops::{Attend, Delta, Guess};
use crate::shapes::{Attention as _, Delta as _};
use crate::target::{self, Full, Gdn, MIXERS, Role, Site};
use crate::weights::Layout;

/// Operations that the family is written in.
pub trait Runs: Feeds + Guess + Attend<Full> + Delta<Gdn> {}

impl<B: Feeds + Guess + Attend<Full> + Delta<Gdn>> Runs for B {}

/// Token mixer of a layer.
pub type Mixer<B> = Either<DeltaNet<B, Gdn>, Attention<B, Full>>;

impl<B: Runs> Sited for DeltaNet<B, Gdn> {
    fn is_at(site: Site) -> bool {
        matches!(site, Site::Layer(layer) if MIXERS[layer] == target::Mixer::Gdn)
    }
}

/// Width of what a mixer leaves before its last product.
pub const MIXED: usize = if Full::MIXED > Gdn::VALUES {
    Full::MIXED
} else {
    Gdn::VALUES
};

/// Name of a layer's mixer, for people.
pub fn mixer_name(layout: Layout, layer: usize) -> &'static str {
    match layout.has(Role::GdnQkv, Site::Layer(layer)) {
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
