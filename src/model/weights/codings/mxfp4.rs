//! MXFP4: E2M1 codes in the order of NVFP4; for each 16 columns the upper byte of an F16, a power
//! of two or zero; a factor of each row, another power of two.

use super::nvfp4::word;
use super::*;

/// Exponent that the largest power of two of a row gets in F16.
const POWER_MAX: i32 = 15;
/// Exponent of the smallest power with which kernels decode every code exactly.
const POWER_MIN: i32 = -9;

pub struct Mxfp4;

impl Codec for Mxfp4 {
    fn values(&self, from: Bits<&[u8]>, k: usize, out: &mut Vec<f32>) {
        let groups = from.scales.chunks_exact(k / NVFP4_GROUP);
        let rows = from.codes.chunks_exact(k / 2).zip(groups);
        for ((codes, powers), factor) in rows.zip(&from.factors.numbers) {
            for (codes, &power) in codes.chunks_exact(NVFP4_GROUP / 2).zip(powers) {
                let power = match power {
                    0 => 0.0,
                    power => power_of_two(i32::from(power >> 2) - 15),
                };
                // The product `power * factor` may be too small for F32; in this order the value is
                // exact.
                let value = |code: u8| E2M1[usize::from(code)] * power * factor;
                let codes = codes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
                out.extend(codes.map(value));
            }
        }
    }

    fn read(&self, rows: &MatrixRows<'_>, codes: &mut [u8], scales: &mut [u8]) -> Filled {
        let k = rows.weight.k();
        rows.read(Elements, |columns| columns / 2, codes, |_, _| Ok(()))?;
        let mut powers = vec![0; codes.len() / (MXFP4_GROUP / 2)];
        rows.read(
            Scales,
            |columns| columns / MXFP4_GROUP,
            &mut powers,
            |_, _| Ok(()),
        )?;
        let powers = powers.chunks_exact(k / MXFP4_GROUP);
        let all = codes.chunks_exact(k / 2).zip(powers);
        let all = all.zip(scales.chunks_exact_mut(k / NVFP4_GROUP));
        let factors = all.enumerate().map(|(row, ((codes, powers), scales))| {
            powers_of(codes, powers, scales).map_err(|(group, wrong)| {
                let row = rows.stretches.iter().cloned().flatten().nth(row);
                let groups = rows.weight.stored()[1] / MXFP4_GROUP;
                rows.wrong(Scales, row.unwrap_or(0) * groups + group, wrong)
            })
        });
        Ok(factors.collect::<Result<Vec<_>, _>>()?.into())
    }

    fn draw(&self, piece: &Piece, columns: usize, gain: f32) -> Numbers {
        let power = (gain / (E2M1_RMS * (columns as f32).sqrt())).log2().round();
        match piece.purpose {
            Elements => Numbers::Bytes((0, 0xff)),
            // Drawn exponents are even, or one above an even one.
            _ => Numbers::Bytes(((power as i32 + 127) as u8 & !1, 1)),
        }
    }

    fn sample(&self, _: Format, n: usize, k: usize, chance: &mut dyn Chance) -> Bits {
        let codes = chance.bytes(n * k / 2, 0..=255);
        // Drawn powers differ in a row by no more than kernels allow.
        let scales = chance.bytes(n * k / NVFP4_GROUP, 0..=24);
        let factors = (0..n).map(|row| 0.5f32.powi(18 + row as i32 % 5));
        let scales = scales.into_iter().map(|at| (at + 6) << 2).collect();
        Bits::new(
            Coding::Mxfp4,
            codes,
            scales,
            factors.collect::<Vec<_>>().into(),
        )
    }

    fn order(&self, codes: &mut [u8]) -> f32 {
        in_words(codes, word);
        16384.0
    }
}

/// Converts the powers of a row of MXFP4 to those that kernels take: `value = e2m1 * e8m0`, of
/// codes as NVFP4 has them and E8M0 powers for each 32 columns (OCP Microscaling Formats 1.0),
/// becomes `e2m1 * power * factor`. Fills `out` with the upper byte of an F16, the power, for each
/// 16 columns, 0 where all codes are 0; returns the factor.
///
/// # Errors
/// The group whose power is not finite, or too small beside the row's largest.
fn powers_of(codes: &[u8], powers: &[u8], out: &mut [u8]) -> Result<f32, (usize, Wrong)> {
    out.fill(0);
    let groups = codes.chunks_exact(MXFP4_GROUP / 2).zip(powers);
    let groups = groups.map(|(codes, &power)| {
        let counts = codes.iter().any(|byte| byte & 0x77 != 0);
        counts.then_some(i32::from(power))
    });
    let Some(most) = groups.clone().flatten().max() else {
        return Ok(0.0);
    };
    let pairs = out.chunks_exact_mut(MXFP4_GROUP / NVFP4_GROUP);
    for (group, (power, pair)) in groups.zip(pairs).enumerate() {
        let Some(power) = power else { continue };
        match power - most + POWER_MAX {
            _ if most == 255 => return Err((group, Wrong::NotFinite)),
            ..POWER_MIN => return Err((group, Wrong::Apart)),
            at => pair.fill(((at + 15) << 2) as u8),
        }
    }
    Ok(power_of_two(most - 127 - POWER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of a row, by the definition of MXFP4 and by way of powers.
    fn both(codes: &[u8], powers: &[u8]) -> [Vec<u64>; 2] {
        let defined = codes.chunks_exact(MXFP4_GROUP / 2).zip(powers);
        let defined = defined.flat_map(|(codes, &power)| {
            let power = 2f64.powi(i32::from(power) - 127);
            let value = move |code: u8| f64::from(E2M1[usize::from(code)]) * power;
            codes
                .iter()
                .flat_map(move |byte| [value(byte & 15), value(byte >> 4)])
        });
        let mut scales = vec![0xff; codes.len() / (NVFP4_GROUP / 2)];
        let factor = powers_of(codes, powers, &mut scales).expect("powers that are near");
        let bits = Bits::new(Coding::Mxfp4, codes, &scales[..], vec![factor].into());
        let mut values = Vec::new();
        Mxfp4.values(bits, 2 * codes.len(), &mut values);
        let bits = |value: f64| (value + 0.0).to_bits();
        let found = values.into_iter().map(|value| bits(f64::from(value)));
        [defined.map(bits).collect(), found.collect()]
    }

    #[test]
    fn mxfp4_has_the_bits_of_its_definition() {
        let codes: Vec<u8> = (0..3 * MXFP4_GROUP as u8 / 2)
            .map(|i| i.wrapping_mul(37))
            .collect();
        for powers in [[127, 120, 103], [24, 0, 1], [254, 240, 230], [3, 27, 12]] {
            let most = powers.iter().max().unwrap();
            // Six times the largest power is not finite.
            if *most < 253 {
                let [defined, found] = both(&codes, &powers);
                assert_eq!(defined, found, "{powers:?}");
            }
        }
    }

    #[test]
    fn powers_outside_the_kernels_range_are_reported() {
        let codes = [0x11; MXFP4_GROUP];
        let mut out = [0; 4];
        let mut of = |codes: &[u8], powers| powers_of(codes, powers, &mut out);
        let apart = of(&codes, &[120, 95]);
        assert!(matches!(apart, Err((1, Wrong::Apart))));
        let infinite = of(&codes, &[255, 255]);
        assert!(matches!(infinite, Err((0, Wrong::NotFinite))));
        let zeros = of(&[0x88; MXFP4_GROUP], &[1, 255]);
        assert!(matches!(zeros, Ok(0.0)));
        assert_eq!(out, [0; 4]);
    }
}
