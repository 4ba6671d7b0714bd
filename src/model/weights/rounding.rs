//! Weights rounded to a format of fewer bits: each to the nearest code, under the scale of its
//! block that leaves the least squared error.
//!
//! The factor of an NVFP4 matrix is a power of two, so that every weight is exact in BF16, in which
//! a CPU keeps it. The same weights give the same bits, on any machine and in any parts.

use super::format::{E4M3, FP8_BLOCK, NVFP4_GROUP};

/// Largest magnitudes of E2M1 and of E4M3.
pub const E2M1_MAX: f32 = 6.0;
pub const E4M3_MAX: f32 = 448.0;
/// Largest scale that the largest weight of a matrix asks for: larger ones may be better.
const SCALE_MAX: f32 = 256.0;
/// Weights below this are zeros beside those of any model.
const LEAST: f32 = 1e-30;
/// E4M3 scales that are tried below and above the one that makes a group's largest weight 6.
const NVFP4_TRIED: [u8; 2] = [3, 6];
/// Largest weight of a block under the first scale that is tried: up to 464 is rounded to 448.
const FP8_FIRST: f32 = 464.0;
/// Scales that are tried behind it, an octave and a little.
const FP8_TRIED: u32 = 34;
/// The step between two of them in the bits of an F32, 32 to an octave.
const FP8_STEP: u32 = 1 << 18;
/// Sums of squares that are added up side by side.
const LANES: usize = 16;

/// The magnitude with so many bits of its mantissa, ties to even.
#[inline(always)]
fn keep<const BITS: u32>(size: f32) -> f32 {
    let dropped = f32::MANTISSA_DIGITS - 1 - BITS;
    let bits = size.to_bits();
    let up = (1 << (dropped - 1)) - 1 + (bits >> dropped & 1);
    f32::from_bits((bits + up) >> dropped << dropped)
}

/// The magnitude as a multiple of `step`, ties to even; for less than 2^22 steps.
#[inline(always)]
fn multiple(size: f32, step: f32) -> f32 {
    // The last bit of this number is worth a step.
    let large = 1.5 * (1 << (f32::MANTISSA_DIGITS - 1)) as f32 * step;
    (size + large) - large
}

/// The nearest E2M1 number, on a tie the one with an even code.
#[inline(always)]
pub fn round_e2m1(x: f32) -> f32 {
    let size = x.abs().min(E2M1_MAX);
    let nearest = if size < 1.0 {
        multiple(size, 0.5)
    } else {
        keep::<1>(size)
    };
    nearest.copysign(x)
}

/// The nearest E4M3 number, on a tie the one with an even code.
#[inline(always)]
pub fn round_e4m3(x: f32) -> f32 {
    let size = x.abs().min(E4M3_MAX);
    let nearest = if size < 1.0 / 64.0 {
        multiple(size, 1.0 / 512.0)
    } else {
        keep::<3>(size)
    };
    nearest.copysign(x)
}

/// Code of an E2M1 number.
fn e2m1_code(x: f32) -> u8 {
    let size = x.abs();
    let code = match size < 1.0 {
        true => (size * 2.0) as u32,
        // One mantissa bit below the exponent; 1.0 is code 2.
        false => (size.to_bits() >> 22) - (1f32.to_bits() >> 22) + 2,
    };
    code as u8 | u8::from(x.is_sign_negative()) << 3
}

/// Code of an E4M3 number.
fn e4m3_code(x: f32) -> u8 {
    let size = x.abs();
    let code = match size < 1.0 / 64.0 {
        true => (size * 512.0) as u32,
        // Three mantissa bits below the exponent; 2^-6 is code 8.
        false => (size.to_bits() >> 20) - ((1.0f32 / 64.0).to_bits() >> 20) + 8,
    };
    code as u8 | u8::from(x.is_sign_negative()) << 7
}

/// The largest magnitude.
pub fn largest(values: &[f32]) -> f32 {
    let most = values.iter().fold(0, |most, x| x.abs().to_bits().max(most));
    f32::from_bits(most)
}

/// Squared error of weights that are rounded to multiples of a scale. The order of the sum is that
/// of the lanes, whatever instructions there are.
#[inline(always)]
fn error(sums: &mut [f32; LANES], x: &[f32], scale: f32, round: impl Fn(f32) -> f32) {
    let inverse = 1.0 / scale;
    for part in x.chunks(LANES) {
        for (sum, x) in sums.iter_mut().zip(part) {
            let off = round(x * inverse) * scale - x;
            *sum += off * off;
        }
    }
}

/// The scale of the least error, the first of equal ones.
fn least(scales: impl Iterator<Item = f32>, error: impl Fn(f32) -> f32) -> f32 {
    let errors = scales.map(|scale| (error(scale), scale));
    let least = errors.reduce(|least, next| if next.0 < least.0 { next } else { least });
    least.map_or(1.0, |(_, scale)| scale)
}

/// Factor of all weights of an NVFP4 matrix whose largest magnitude is `largest`: the least power
/// of two under which no group asks for a scale above `SCALE_MAX`.
pub fn nvfp4_factor(largest: f32) -> f32 {
    let wanted = largest.max(LEAST) / (E2M1_MAX * SCALE_MAX);
    let below = f32::from_bits(wanted.to_bits() & f32::INFINITY.to_bits());
    if below < wanted { 2.0 * below } else { below }
}

/// Fills E2M1 `codes`, two a byte, and E4M3 `scales` for weights in rows of whole groups.
pub fn to_nvfp4(weights: &[f32], factor: f32, codes: &mut [u8], scales: &mut [u8]) {
    let groups = weights.as_chunks::<NVFP4_GROUP>().0;
    let codes = codes.as_chunks_mut::<{ NVFP4_GROUP / 2 }>().0;
    for ((group, codes), scale) in groups.iter().zip(codes).zip(scales) {
        let code = nvfp4_scale(group, factor);
        let inverse = 1.0 / (E4M3[usize::from(code)] * factor);
        let pairs = group.as_chunks::<2>().0.iter().zip(codes);
        for (pair, byte) in pairs {
            let [low, high] = pair.map(|x| e2m1_code(round_e2m1(x * inverse)));
            *byte = low | high << 4;
        }
        *scale = code;
    }
}

/// Code of a group's scale.
fn nvfp4_scale(group: &[f32; NVFP4_GROUP], factor: f32) -> u8 {
    const LARGEST: u8 = 0x7e;
    let nearest = e4m3_code(round_e4m3(largest(group) / (E2M1_MAX * factor)));
    let [below, above] = NVFP4_TRIED;
    let tried = nearest.saturating_sub(below).max(1)..=nearest.saturating_add(above).min(LARGEST);
    let scale = least(tried.map(|code| E4M3[usize::from(code)]), |scale| {
        let mut sums = [0.0; LANES];
        error(&mut sums, group, scale * factor, round_e2m1);
        sums.iter().sum()
    });
    e4m3_code(scale)
}

/// Fills E4M3 `codes` for rows of `k` weights; the scales of their blocks of 128 x 128.
pub fn to_fp8(weights: &[f32], k: usize, codes: &mut [u8]) -> Vec<f32> {
    let mut scales = Vec::new();
    let bands = weights.chunks(FP8_BLOCK * k);
    for (band, codes) in bands.zip(codes.chunks_mut(FP8_BLOCK * k)) {
        for start in (0..k).step_by(FP8_BLOCK) {
            let columns = start..k.min(start + FP8_BLOCK);
            let block = band.chunks_exact(k).map(|row| &row[columns.clone()]);
            let scale = fp8_scale(block.clone());
            let inverse = 1.0 / scale;
            let rows = codes.chunks_exact_mut(k);
            for (row, codes) in block.zip(rows.map(|row| &mut row[columns.clone()])) {
                for (x, code) in row.iter().zip(codes) {
                    *code = e4m3_code(round_e4m3(x * inverse));
                }
            }
            scales.push(scale);
        }
    }
    scales
}

/// Scale of a block, given by its rows.
fn fp8_scale<'a>(block: impl Iterator<Item = &'a [f32]> + Clone) -> f32 {
    let rows = block.clone().map(largest);
    let most = rows.fold(LEAST, f32::max) / FP8_FIRST;
    let first = most.to_bits() / FP8_STEP * FP8_STEP;
    let tried = (0..=FP8_TRIED).map(|at| f32::from_bits(first + at * FP8_STEP));
    least(tried, |scale| {
        let mut sums = [0.0; LANES];
        for row in block.clone() {
            error(&mut sums, row, scale, round_e4m3);
        }
        sums.iter().sum()
    })
}

/// The nearest F16, ties to even. `x` is one of at most 65,504 in magnitude.
pub fn round_f16(x: f32) -> f32 {
    const SMALLEST_NORMAL: f32 = 1.0 / (1 << 14) as f32;
    let binade = f32::from_bits(x.to_bits() & 0x7f80_0000);
    let unit = binade.max(SMALLEST_NORMAL) / 1024.0;
    (x / unit).round_ties_even() * unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::testing::Random;
    use crate::weights::format::E2M1;
    use crate::weights::{Bits, Global, Stored};

    /// Each of the ascending `values` and what lies between two of them is rounded to the nearer
    /// one, and the middle to the one with the even index.
    fn rounds(values: &[f32], round: fn(f32) -> f32) {
        for (at, pair) in values.windows(2).enumerate() {
            let middle = (pair[0] + pair[1]) / 2.0;
            assert_eq!(round(pair[0]), pair[0]);
            assert_eq!(round(middle.next_down()), pair[0], "below {middle}");
            assert_eq!(round(middle), pair[at % 2], "{middle}");
            assert_eq!(round(middle.next_up()), pair[1], "above {middle}");
        }
        let last = values[values.len() - 1];
        assert_eq!([round(last), round(2.0 * last)], [last; 2]);
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest_e2m1() {
        rounds(&E2M1[..8], round_e2m1);
        assert_eq!(round_e2m1(-2.6), -3.0);
    }

    #[test]
    fn scales_are_rounded_to_the_nearest_e4m3() {
        rounds(&E4M3[..0x7f], round_e4m3);
    }

    #[test]
    fn every_number_has_its_code() {
        for code in 0..16 {
            assert_eq!(e2m1_code(E2M1[usize::from(code)]), code);
        }
        for code in (0..=u8::MAX).filter(|code| code & 0x7f != 0x7f) {
            assert_eq!(e4m3_code(E4M3[usize::from(code)]), code);
        }
    }

    fn nvfp4(weights: &[f32], k: usize) -> Stored {
        let factor = nvfp4_factor(largest(weights));
        let (mut codes, mut scales) = (vec![0; weights.len() / 2], vec![0; weights.len() / 16]);
        to_nvfp4(weights, factor, &mut codes, &mut scales);
        let global = Global::Multiply(factor);
        let bits = Bits::Nvfp4 {
            codes,
            scales,
            global,
        };
        stored(weights, k, bits)
    }

    fn fp8(weights: &[f32], k: usize) -> Stored {
        let mut codes = vec![0; weights.len()];
        let scales = to_fp8(weights, k, &mut codes);
        stored(weights, k, Bits::Fp8 { codes, scales })
    }

    fn stored(weights: &[f32], k: usize, bits: Bits) -> Stored {
        let (n, bias) = (weights.len() / k, Vec::new());
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
        for round in [nvfp4, fp8] {
            let once = round(&weights, k).values();
            assert_eq!(round(&once, k).values(), once);
        }
    }

    #[test]
    fn every_weight_of_nvfp4_is_exact_in_bf16() {
        let weights: Vec<f32> = Random::new(3).normal(144 * 32);
        let weights: Vec<f32> = weights.iter().map(|x| x * 0.037).collect();
        let values = nvfp4(&weights, 144).values();
        assert!(values.iter().all(|value| value.to_bits() & 0xffff == 0));
    }

    /// All E4M3 scales of a group, and many of a block, are tried here.
    #[test]
    fn the_searched_scales_are_about_the_best() {
        let k = 128;
        let weights = Random::new(4).normal(k * 128);
        let found = off(&weights, &nvfp4(&weights, k).values());
        let factor = nvfp4_factor(largest(&weights));
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
        let found = off(&weights, &fp8(&weights, k).values());
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
            for round in [nvfp4, fp8] {
                let values = round(&weights, 256).values();
                assert!(
                    values
                        .iter()
                        .all(|x| (x - size).abs() <= 1e-3 * size.max(1e-27))
                );
            }
        }
    }
    #[test]
    fn f16_is_rounded_to_nearest_even() {
        assert_eq!(round_f16(1.0 + 1.0 / 2048.0), 1.0);
        assert_eq!(round_f16(1.0 + 3.0 / 2048.0), 1.0 + 4.0 / 2048.0);
        assert_eq!(round_f16(-1.0 - 1.0 / 1600.0), -1.0 - 2.0 / 2048.0);
        assert_eq!(round_f16(2047.9), 2048.0);
        let quantum = 1.0 / (1 << 24) as f32;
        assert_eq!(
            [1.4, 0.5, -1.5, 0.0].map(|n| round_f16(n * quantum) / quantum),
            [1.0, 0.0, -2.0, 0.0]
        );
    }
}
