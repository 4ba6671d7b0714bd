//! BF16 weights, which the GPU stores as F16.

use super::*;

pub struct Bf16;

impl Codec for Bf16 {
    fn values(&self, from: Bits<&[u8]>, _: usize, out: &mut Vec<f32>) {
        format::bf16_values(from.codes, out);
    }

    fn read(&self, rows: &MatrixRows<'_>, codes: &mut [u8], _: &mut [u8]) -> Filled {
        let look = |first: usize, part: &[u8]| {
            check(rows, first / 2, part)?;
            rows.check_tied(first, part)
        };
        match rows.weight.stored_format() {
            Format::F32 => read_narrow(rows, codes)?,
            _ => rows.read(Elements, |columns| 2 * columns, codes, look)?,
        }
        Ok(Factors::default())
    }

    fn draw(&self, piece: &Piece, _: usize, gain: f32) -> Numbers {
        let columns = piece.shape.last().copied().unwrap_or(1);
        Numbers::Bf16(Range::matrix(columns).times(gain))
    }

    fn sample(&self, _: Format, n: usize, k: usize, chance: &mut dyn Chance) -> Bits {
        let codes = chance.bf16(n * k, 0.1).into_iter();
        let codes = codes.flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes());
        let codes = codes.collect();
        Bits::new(Coding::Bf16, codes, Vec::new(), Factors::default())
    }

    /// Converts BF16 to F16; the compiler makes vector instructions of the loop.
    fn order(&self, codes: &mut [u8]) -> f32 {
        fill_by_parts(codes.as_chunks_mut::<2>().0, 1, |_, codes| {
            for code in codes {
                *code = f16(u16::from_le_bytes(*code)).to_le_bytes();
            }
        });
        1.0
    }
}

/// Refuses weights of 2^16 or more, since tensor instructions take them as F16. `first`: index of
/// the first element in the tensor.
fn check(rows: &MatrixRows<'_>, first: usize, bytes: &[u8]) -> Result<(), WeightsError> {
    const END: u16 = (127 + 16) << 7;
    rows.check(Elements, first, bytes.as_chunks().0, |&weight| {
        let value = format::bf16(weight);
        let wrong = match value.is_finite() {
            true => Wrong::TooLarge(value),
            false => Wrong::NotFinite,
        };
        (u16::from_le_bytes(weight) & 0x7fff >= END).then_some(wrong)
    })
}

/// Reads weights stored as F32, all of which must be BF16 numbers.
fn read_narrow(rows: &MatrixRows<'_>, codes: &mut [u8]) -> Result<(), WeightsError> {
    let look = |first: usize, part: &[u8]| {
        let weights: &[[u8; 4]] = part.as_chunks().0;
        rows.check(Elements, first / 4, weights, |weight| {
            let wide = format::narrow(*weight).is_none();
            wide.then(|| Wrong::Narrow(f32::from_le_bytes(*weight)))
        })?;
        let narrow = weights.iter().filter_map(|&weight| format::narrow(weight));
        let narrow: Vec<u8> = narrow.flatten().collect();
        check(rows, first / 4, &narrow)
    };
    let mut wide = vec![0; 2 * codes.len()];
    rows.read(Elements, |columns| 4 * columns, &mut wide, look)?;
    let codes = codes.as_chunks_mut().0.iter_mut();
    for (to, &from) in codes.zip(wide.as_chunks().0) {
        *to = format::narrow(from).expect("was checked");
    }
    Ok(())
}

/// The F16 of a BF16 below 2^16; loading refuses others. From 2^-17 on both are the same number;
/// below, the nearest multiple of 2^-24, ties to even.
#[inline(always)]
fn f16(bf16: u16) -> u16 {
    const SMALLEST_NORMAL: u16 = 113 << 7;
    let magnitude = bf16 & 0x7fff;
    // The exponent's bias is 112 smaller in F16, the mantissa three bits longer.
    let normal = magnitude.wrapping_sub(112 << 7) << 3;
    // The last bit of a number from 0.5 to 1 is worth 2^-24, so the addition rounds to it.
    let subnormal = (f32::from_bits(u32::from(magnitude) << 16) + 0.5).to_bits() as u16;
    let is_normal = magnitude >= SMALLEST_NORMAL;
    (if is_normal { normal } else { subnormal }) | bf16 & 0x8000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::rounding::round_f16;

    #[test]
    fn bf16_becomes_the_nearest_f16() {
        for magnitude in 0..143 << 7 {
            for bf16 in [magnitude, magnitude | 0x8000] {
                let value = f32::from_bits(u32::from(bf16) << 16);
                let code = f16(bf16);
                let (exponent, mantissa) = (i32::from(code >> 10 & 31), f32::from(code & 1023));
                let found = match exponent {
                    0 => mantissa * 2f32.powi(-24),
                    _ => (1024.0 + mantissa) * 2f32.powi(exponent - 25),
                };
                let found = found.copysign(if code >> 15 == 1 { -1.0 } else { 1.0 });
                assert_eq!(
                    found.to_bits(),
                    round_f16(value).to_bits(),
                    "{bf16:#x} {value:e}"
                );
            }
        }
    }
}
