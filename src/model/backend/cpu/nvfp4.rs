//! Rows rounded to NVFP4, as block-scaled tensor instructions multiply them: E2M1 numbers with an
//! E4M3 scale per 16 columns and a power of two per row.

use crate::target::NVFP4_GROUP;
use crate::weights::format::power_of_two;
use crate::weights::rounding::{E2M1_MAX, round_e2m1, round_e4m3};

/// Exponent of a row's scaling: its largest magnitude is brought to `2^10 .. 2^11`.
const EXPONENT: i32 = 10;
/// Exponent of the power of two below which the magnitudes of a row lose accuracy.
const EXPONENT_MIN: i32 = -100;

/// Rounds a row of whole groups of 16. A group with a NaN or infinite number becomes NaN.
pub fn round(row: &mut [f32]) {
    let largest = |x: &[f32]| x.iter().fold(0, |most, x| x.abs().to_bits().max(most));
    let exponent = (largest(row) >> 23) as i32 - 127;
    let exponent = exponent.clamp(EXPONENT_MIN, 127);
    let up = power_of_two(EXPONENT - exponent);
    let factor = power_of_two(exponent - EXPONENT);
    for group in row.chunks_exact_mut(NVFP4_GROUP) {
        let largest = f32::from_bits(largest(group));
        if !largest.is_finite() {
            group.fill(f32::NAN);
            continue;
        }
        let scale = round_e4m3(largest * up / E2M1_MAX);
        let inverse = if scale > 0.0 { up / scale } else { 0.0 };
        for x in group {
            *x = round_e2m1(*x * inverse) * scale * factor;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use step::random::Random;

    #[test]
    fn the_error_is_below_that_of_a_scale_and_half_a_step() {
        let mut random = Random::new(5);
        for scale in [1e-20, 1.0, 3e10] {
            let row: Vec<f32> = random.normal(512).iter().map(|x| x * scale).collect();
            let mut rounded = row.clone();
            round(&mut rounded);
            for (group, rounded) in row.chunks(NVFP4_GROUP).zip(rounded.chunks(NVFP4_GROUP)) {
                let largest = group.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                for (x, rounded) in group.iter().zip(rounded) {
                    // Half a step of 2 in 6, and a scale that is a sixteenth too small.
                    assert!(
                        (x - rounded).abs() <= largest * (1.0 / 6.0 + 1.0 / 16.0),
                        "{x}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_power_of_two_changes_nothing_but_the_size() {
        let mut row = Random::new(6).normal(64);
        let mut small: Vec<f32> = row.iter().map(|x| x * 0.0625).collect();
        round(&mut row);
        round(&mut small);
        assert!(row.iter().zip(&small).all(|(x, y)| x * 0.0625 == *y));
    }

    #[test]
    fn what_is_no_number_spoils_its_group_alone() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut row = [1.0; 3 * NVFP4_GROUP];
            row[NVFP4_GROUP + 3] = bad;
            round(&mut row);
            let (before, rest) = row.split_at(NVFP4_GROUP);
            let (spoiled, after) = rest.split_at(NVFP4_GROUP);
            assert!(before.iter().chain(after).all(|x| x.is_finite()));
            assert!(spoiled.iter().all(|x| x.is_nan()));
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        let mut row = [0.0; NVFP4_GROUP];
        round(&mut row);
        assert_eq!(row, [0.0; NVFP4_GROUP]);
    }
}
