//! Sixteen F32 values, processed element by element.
//!
//! `super::wide` has the same operations in registers.

use std::array::from_fn;

pub const LANES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub struct Lanes(pub [f32; LANES]);

impl Lanes {
    pub const ZERO: Lanes = Lanes([0.0; LANES]);

    /// The first sixteen elements of `values`.
    #[inline(always)]
    pub fn load(values: &[f32]) -> Lanes {
        let values: &[f32; LANES] = values.first_chunk().expect("sixteen values");
        Lanes(*values)
    }

    /// Up to sixteen elements of `values`, the rest zero.
    #[inline(always)]
    pub fn load_part(values: &[f32]) -> Lanes {
        if values.len() >= LANES {
            return Lanes::load(values);
        }
        Lanes(from_fn(|lane| values.get(lane).copied().unwrap_or(0.0)))
    }

    /// Writes as many elements as `out` takes, at most sixteen.
    #[inline(always)]
    pub fn store(self, out: &mut [f32]) {
        match out.first_chunk_mut() {
            Some(all) => *all = self.0,
            None => out.copy_from_slice(&self.0[..out.len()]),
        }
    }

    #[inline(always)]
    pub fn sub(self, b: Lanes) -> Lanes {
        Lanes(from_fn(|lane| self.0[lane] - b.0[lane]))
    }

    #[inline(always)]
    pub fn map(self, f: impl Fn(f32) -> f32) -> Lanes {
        Lanes(from_fn(|lane| f(self.0[lane])))
    }
}

/// Largest argument of `exp`; the result is well below the largest F32. Arguments below `-EXP_MAX`
/// give about 1e-38, which is lost in the sums here.
const EXP_MAX: f32 = 87.0;
/// Number whose addition and subtraction rounds to an integer (1.5 * 2^23).
const ROUND: f32 = 12_582_912.0;
/// Upper part of ln 2, with so few bits that its integer multiples are exact.
const LN2_HIGH: f32 = 0.693_359_4;
/// ln 2 less `LN2_HIGH`.
const LN2_LOW: f32 = -2.121_944_4e-4;

/// `e^x` to 2 units in the last place, `x` clamped to `-87 ..= 87`.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let x = x.clamp(-EXP_MAX, EXP_MAX);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    // Taylor series around 0 for |r| <= ln 2 / 2.
    let p = 1.0 / 5040.0;
    let p = p * r + 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    let p = p * r + 1.0;
    let p = p * r + 1.0;
    let exponent = shifted
        .to_bits()
        .wrapping_sub(ROUND.to_bits())
        .wrapping_add(127);
    p * f32::from_bits(exponent << 23)
}

#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_the_exact_value() {
        for step in -86_000..=86_000 {
            let x = step as f32 * 1e-3;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(
                error < 2.0 * f64::from(f32::EPSILON),
                "exp({x}): relative error {error:e}"
            );
        }
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn exp_keeps_extremes_finite_and_passes_nan() {
        assert!(exp(f32::INFINITY).is_finite());
        assert!(exp(f32::NEG_INFINITY) > 0.0 && exp(f32::NEG_INFINITY) < 1e-37);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn a_short_slice_is_padded_and_stored_short() {
        let lanes = Lanes::load_part(&[1.0, 2.0]);
        assert_eq!(lanes.0[..3], [1.0, 2.0, 0.0]);
        let mut out = [9.0; 2];
        lanes.store(&mut out);
        assert_eq!(out, [1.0, 2.0]);
    }
}
