//! Matrices of the target, as its table of tensors has them, and random weights like theirs.

use super::Random;
use model::target::{BIASED, Coding, Format, Role, Site};
use model::weights::{Bits, Global, Layout, Stored};

/// Rows, columns and format of a matrix.
pub type Shape = (usize, usize, Format);

/// Matrices of the `roles` that a site has, in this order, once for each way in which decoder
/// layers have them and once for the prediction's: those are other matrices, often of another
/// format.
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

/// Each of `all` once, in the order of their first occurrence.
pub fn once<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for item in all {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    distinct
}

/// Random weights `[n, k]` of a format.
pub fn stored(random: &mut Random, (n, k, format): Shape) -> Stored {
    let bits = match format.coding() {
        Coding::Bf16 => Bits::Bf16(random.bf16_bytes(n * k, 0.1)),
        Coding::Nvfp4 => Bits::Nvfp4 {
            codes: random.bytes(n * k / 2, 0..=255),
            // Subnormal and normal E4M3, none of them negative or not a number.
            scales: random.bytes(n * k / 16, 1..=0x50),
            global: match format {
                Format::Nvfp4Modelopt => Global::Multiply(0.013),
                _ => Global::Divide(77.0),
            },
        },
        Coding::Mxfp4 => {
            let codes = random.bytes(n * k / 2, 0..=255);
            // Powers as far apart as kernels take them in a row.
            let scales = random.bytes(n * k / 16, 0..=24);
            let power = |at: u8| (at + 6) << 2;
            Bits::Mxfp4 {
                codes,
                scales: scales.into_iter().map(power).collect(),
                factors: (0..n).map(|row| 0.5f32.powi(18 + row as i32 % 5)).collect(),
            }
        }
        Coding::Fp8 => Bits::Fp8 {
            codes: random
                .bytes(n * k, 0..=255)
                .into_iter()
                .map(|code| if code & 0x7f == 0x7f { code ^ 1 } else { code })
                .collect(),
            scales: random
                .bf16(n.div_ceil(128) * k.div_ceil(128), 1e-3)
                .into_iter()
                .map(|scale| scale.abs() + 1e-3)
                .collect(),
        },
    };
    let bias = if BIASED {
        random.bf16(n, 0.1)
    } else {
        Vec::new()
    };
    Stored { n, k, bits, bias }
}
