//! Rounding of weights to a format of fewer bits: each to the nearest code, under the scale of its
//! block that leaves the least squared error. Bits depend on the weights alone, not on the machine
//! or on how weights are cut into parts.

/// Largest magnitude of E2M1.
pub const E2M1_MAX: f32 = 6.0;
/// Largest magnitude of E4M3.
pub const E4M3_MAX: f32 = 448.0;
/// Magnitude below which weights count as zero: no model has weights that small beside normal ones.
pub const LEAST: f32 = 1e-30;
/// Number of sums of squares that are accumulated in parallel.
pub const LANES: usize = 16;

/// The magnitude rounded to `BITS` bits of its mantissa, ties to even.
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
    // The last bit of `large` is worth `step`.
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
pub fn e2m1_code(x: f32) -> u8 {
    let size = x.abs();
    let code = match size < 1.0 {
        true => (size * 2.0) as u32,
        // There is one mantissa bit below the exponent; 1.0 is code 2.
        false => (size.to_bits() >> 22) - (1f32.to_bits() >> 22) + 2,
    };
    code as u8 | u8::from(x.is_sign_negative()) << 3
}

/// Code of an E4M3 number.
pub fn e4m3_code(x: f32) -> u8 {
    let size = x.abs();
    let code = match size < 1.0 / 64.0 {
        true => (size * 512.0) as u32,
        // There are three mantissa bits below the exponent; 2^-6 is code 8.
        false => (size.to_bits() >> 20) - ((1.0f32 / 64.0).to_bits() >> 20) + 8,
    };
    code as u8 | u8::from(x.is_sign_negative()) << 7
}

/// The largest magnitude of some values.
pub fn largest(values: &[f32]) -> f32 {
    let most = values.iter().fold(0, |most, x| x.abs().to_bits().max(most));
    f32::from_bits(most)
}

/// Squared error of weights that are rounded to multiples of a scale. The order of additions is
/// that of `LANES` lanes, whatever instructions the machine has.
#[inline(always)]
pub fn error(sums: &mut [f32; LANES], x: &[f32], scale: f32, round: impl Fn(f32) -> f32) {
    let inverse = 1.0 / scale;
    for part in x.chunks(LANES) {
        for (sum, x) in sums.iter_mut().zip(part) {
            let off = round(x * inverse) * scale - x;
            *sum += off * off;
        }
    }
}

/// The scale of the least error; of equal ones the first.
pub fn least(scales: impl Iterator<Item = f32>, error: impl Fn(f32) -> f32) -> f32 {
    let errors = scales.map(|scale| (error(scale), scale));
    let least = errors.reduce(|least, next| if next.0 < least.0 { next } else { least });
    least.map_or(1.0, |(_, scale)| scale)
}

/// The nearest F16, ties to even. `x` is at most 65,504 in magnitude.
pub fn round_f16(x: f32) -> f32 {
    const SMALLEST_NORMAL: f32 = 1.0 / (1 << 14) as f32;
    let binade = f32::from_bits(x.to_bits() & 0x7f80_0000);
    let unit = binade.max(SMALLEST_NORMAL) / 1024.0;
    (x / unit).round_ties_even() * unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::format::{E2M1, E4M3};

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
