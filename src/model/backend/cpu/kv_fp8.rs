//! Keys and values as FP8 pages hold them: E4M3 numbers times a power of two for each position of a
//! head, the smallest power with which the position's largest number is in the range of E4M3.

use crate::weights::format::power_of_two;
use crate::weights::rounding::{E4M3_MAX, round_e4m3};

/// Exponent of the smallest power of two, whose product with any E4M3 number is normal in BF16.
const EXPONENT_MIN: i32 = -117;
/// Exponent of the largest power of two that the GPU's kernels can store.
const EXPONENT_MAX: i32 = 7;
/// Power of two of the binade of `E4M3_MAX`.
const E4M3_EXPONENT: i32 = 8;

/// Rounds a position of a head; the whole position becomes NaN if a number is NaN or above 57,344
/// in magnitude.
pub fn round(head: &mut [f32]) {
    let largest = head.iter().fold(0, |most, x| x.abs().to_bits().max(most));
    if largest > (E4M3_MAX * power_of_two(EXPONENT_MAX)).to_bits() {
        return head.fill(f32::NAN);
    }
    let exponent = ((largest >> 23) as i32 - 127 - E4M3_EXPONENT).max(EXPONENT_MIN);
    let above = f32::from_bits(largest) * power_of_two(-exponent) > E4M3_MAX;
    let exponent = exponent + i32::from(above);
    let (down, factor) = (power_of_two(-exponent), power_of_two(exponent));
    for x in head {
        *x = (round_e4m3(x.abs() * down) * factor).copysign(*x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::format::E4M3;
    use step::random::Random;

    #[test]
    fn numbers_of_the_format_stay_as_they_are() {
        for exponent in [-117, -3, 0, 7] {
            let factor = power_of_two(exponent);
            let head: Vec<f32> = E4M3[..0x7f].iter().map(|x| x * factor).collect();
            let mut rounded = head.clone();
            round(&mut rounded);
            assert_eq!(rounded, head);
        }
    }

    #[test]
    fn the_error_of_large_numbers_is_half_a_step() {
        let mut random = Random::new(5);
        for scale in [1e-20, 1.0, 3e3] {
            let head: Vec<f32> = random.normal(256).iter().map(|x| x * scale).collect();
            let mut rounded = head.clone();
            round(&mut rounded);
            let largest = head.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            for (x, rounded) in head.iter().zip(&rounded) {
                // A sixteenth of a number, or of the smallest normal one, 2^-6 beside 224.
                let step = x.abs().max(largest / 224.0 / 64.0) / 16.0;
                assert!((x - rounded).abs() <= step, "{x}");
            }
        }
    }

    #[test]
    fn what_is_too_large_or_no_number_spoils_its_head() {
        for spoils in [57_345.0, f32::INFINITY, f32::NAN] {
            let mut head = [1.0, spoils];
            round(&mut head);
            assert!(head.iter().all(|x| x.is_nan()));
        }
        let mut zeros = [0.0; 4];
        round(&mut zeros);
        assert_eq!(zeros, [0.0; 4]);
    }
}
