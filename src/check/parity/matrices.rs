//! Shapes of the target's matrices, from its table of tensors, and random weights for them.

use std::ops::RangeInclusive;

use super::Random;
use model::target::{BIASED, Format, Role, Site};
use model::weights::codings::Chance;
use model::weights::{Layout, Stored};

/// Rows, columns and format of a matrix, in this order.
pub type Shape = (usize, usize, Format);

/// Matrices of the `roles` that a site has, in this order, for each different set in decoder
/// layers, and for the prediction layer, whose formats often differ.
pub fn blocks(roles: &[Role]) -> Vec<Vec<Shape>> {
    let layout = Layout::whole();
    let of_site = |site| {
        let roles = roles.iter().filter(|role| layout.has(**role, site));
        let weights = roles.map(|role| layout.weight(*role, site));
        let shapes = weights.map(|weight| (weight.n(), weight.k(), weight.format()));
        (site == Site::Prediction, shapes.collect())
    };
    let mut sites = roles.iter().map(|role| layout.sites(*role).collect());
    let sites = sites.find(|sites: &Vec<Site>| !sites.is_empty());
    let ways: Vec<(bool, Vec<Shape>)> = once(sites.unwrap_or_default().into_iter().map(of_site));
    ways.into_iter().map(|way| way.1).collect()
}

/// Elements of `all` without duplicates, in the order of first occurrence.
pub fn once<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for item in all {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    distinct
}

impl Chance for Random {
    fn bytes(&mut self, count: usize, range: RangeInclusive<u8>) -> Vec<u8> {
        Random::bytes(self, count, range)
    }

    fn bf16(&mut self, count: usize, scale: f32) -> Vec<f32> {
        Random::bf16(self, count, scale)
    }
}

/// Random weights `[n, k]` of a format.
pub fn stored(random: &mut Random, (n, k, format): Shape) -> Stored {
    let bits = format.coding().codec().sample(format, n, k, random);
    let bias = if BIASED {
        random.bf16(n, 0.1)
    } else {
        Vec::new()
    };
    Stored { n, k, bits, bias }
}
