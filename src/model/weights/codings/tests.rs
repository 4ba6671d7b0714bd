//! Rounding, of every coding that weights are rounded to.

use super::*;
use crate::target::NVFP4_GROUP;
use crate::weights::Stored;
use crate::weights::format::E4M3;
use crate::weights::rounding::{E4M3_MAX, largest, round_e2m1, round_e4m3};
use step::random::Random;

const ROUNDED: [Coding; 2] = [Coding::Nvfp4, Coding::Fp8];

fn rounded(coding: Coding, weights: &[f32], k: usize) -> Stored {
    let (n, bias) = (weights.len() / k, Vec::new());
    let [codes, scales] = coding.sections(n, k);
    let (mut codes, mut scales) = (vec![0; codes], vec![0; scales]);
    let largest = &|| Ok(largest(weights));
    let exact = Exact {
        weights,
        k,
        largest,
    };
    let factors = coding.codec().round(exact, &mut codes, &mut scales);
    let bits = Bits::new(coding, codes, scales, factors.unwrap());
    Stored { n, k, bits, bias }
}

fn off(weights: &[f32], found: &[f32]) -> f64 {
    let off = weights.iter().zip(found).map(|(x, y)| f64::from(x - y));
    off.map(|off| off * off).sum()
}

/// Weights of a format are among those that its scales allow: rounding keeps them.
#[test]
fn weights_of_the_format_stay_as_they_are() {
    let mut random = Random::new(8);
    let (n, k) = (130, 144);
    let weights = random.normal(n * k);
    for coding in ROUNDED {
        let once = rounded(coding, &weights, k).values();
        assert_eq!(rounded(coding, &once, k).values(), once);
    }
}

#[test]
fn every_weight_of_nvfp4_is_exact_in_bf16() {
    let weights: Vec<f32> = Random::new(3).normal(144 * 32);
    let weights: Vec<f32> = weights.iter().map(|x| x * 0.037).collect();
    let values = rounded(Coding::Nvfp4, &weights, 144).values();
    assert!(values.iter().all(|value| value.to_bits() & 0xffff == 0));
}

/// All E4M3 scales of a group, and many of a block, are tried here.
#[test]
fn the_searched_scales_are_about_the_best() {
    let k = 128;
    let weights = Random::new(4).normal(k * 128);
    let found = off(&weights, &rounded(Coding::Nvfp4, &weights, k).values());
    let factor = nvfp4::factor(largest(&weights));
    let best = |x: &[f32]| {
        let of = |scale: &f32| {
            let scale = scale * factor;
            let rounded: Vec<f32> = x.iter().map(|x| round_e2m1(x / scale) * scale).collect();
            off(x, &rounded)
        };
        E4M3[1..0x7f].iter().map(of).fold(f64::INFINITY, f64::min)
    };
    let all: f64 = weights.chunks(NVFP4_GROUP).map(best).sum();
    assert!(found <= all * 1.001, "{found} {all}");
    let found = off(&weights, &rounded(Coding::Fp8, &weights, k).values());
    let of = |scale: f32| {
        let rounded: Vec<f32> = weights
            .iter()
            .map(|x| round_e4m3(x / scale) * scale)
            .collect();
        off(&weights, &rounded)
    };
    let all = (0..400).map(|at| of(largest(&weights) / E4M3_MAX * (0.8 + 0.004 * at as f32)));
    let all = all.fold(f64::INFINITY, f64::min);
    assert!(found <= all * 1.01, "{found} {all}");
}

#[test]
fn zeros_and_small_weights_are_no_numbers_of_another_kind() {
    for size in [0.0, 1e-38, 1.5 / 1024.0, 49152.0] {
        let weights = vec![size; 256 * 4];
        for coding in ROUNDED {
            let values = rounded(coding, &weights, 256).values();
            assert!(
                values
                    .iter()
                    .all(|x| (x - size).abs() <= 1e-3 * size.max(1e-27))
            );
        }
    }
}
