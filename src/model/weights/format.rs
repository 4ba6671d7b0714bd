//! Number formats of weights, and their exact F32 values.

/// Value of each E2M1 code: bit 3 is the sign.
pub const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

pub use crate::target::{FP8_BLOCK, MXFP4_GROUP, NVFP4_GROUP};

/// Value of an E4M3 code of the "fn" kind: no infinities, `0x7f` and `0xff` are NaN.
pub const fn e4m3(code: u8) -> f32 {
    let exponent = (code >> 3) & 15;
    let mantissa = (code & 7) as u32;
    let magnitude = if code & 0x7f == 0x7f {
        f32::NAN
    } else if exponent == 0 {
        mantissa as f32 / 512.0
    } else {
        f32::from_bits(((exponent as u32 + 120) << 23) | (mantissa << 20))
    };
    if code & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// `e4m3` of every code.
pub const E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = e4m3(code as u8);
        code += 1;
    }
    table
};

/// Value of a BF16 given as little-endian bytes.
pub fn bf16(bytes: [u8; 2]) -> f32 {
    f32::from_bits((u16::from_le_bytes(bytes) as u32) << 16)
}

/// The BF16 of a little-endian F32, if no bit of it is lost.
pub fn narrow([low, high, bf16 @ ..]: [u8; 4]) -> Option<[u8; 2]> {
    (low | high == 0).then_some(bf16)
}

/// Appends the values of little-endian BF16.
pub fn bf16_values(bytes: &[u8], out: &mut Vec<f32>) {
    out.extend(bytes.chunks_exact(2).map(|b| bf16([b[0], b[1]])));
}

/// The first number in which two lists of little-endian BF16 differ; zeros of both signs are equal.
pub fn bf16_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    if a == b {
        return None;
    }
    let mut pairs = a.as_chunks().0.iter().zip(b.as_chunks().0);
    pairs.position(|(&a, &b)| bf16(a) != bf16(b))
}

/// Appends the values of little-endian F32.
pub fn f32_values(bytes: &[u8], out: &mut Vec<f32>) {
    out.extend(
        bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
    );
}

/// Appends NVFP4 `[N, K]`: codes two to a byte, low nibble first, `[N, K / 2]`; E4M3 scales
/// `[N, K / 16]`; `value = e2m1 * (e4m3 * global)`, or `e4m3 / global` when `divide`.
pub fn nvfp4_values(codes: &[u8], scales: &[u8], global: f32, divide: bool, out: &mut Vec<f32>) {
    for (group, &scale) in codes.chunks_exact(NVFP4_GROUP / 2).zip(scales) {
        let scale = E4M3[scale as usize];
        let scale = if divide {
            scale / global
        } else {
            scale * global
        };
        for &byte in group {
            out.push(E2M1[(byte & 15) as usize] * scale);
            out.push(E2M1[(byte >> 4) as usize] * scale);
        }
    }
}

/// Largest power of two of a row as an F16 holds it, and the smallest beside which kernels have
/// every code exactly.
const POWER_MAX: i32 = 15;
const POWER_MIN: i32 = -9;

/// The group of a row whose power of two is not finite, or too small beside the row's largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfit {
    pub group: usize,
    pub finite: bool,
}

/// Powers of a row of MXFP4 as kernels take them: `value = e2m1 * e8m0` of codes as NVFP4 has them
/// and E8M0 powers for each 32 columns (OCP Microscaling Formats 1.0) becomes
/// `e2m1 * power * factor`. Fills `out` with the upper byte of an F16, the power, for each 16
/// columns, 0 where all codes are; gives the factor.
///
/// # Errors
/// The group that this cannot say.
pub fn mxfp4_powers(codes: &[u8], powers: &[u8], out: &mut [u8]) -> Result<f32, Unfit> {
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
        let (at, finite) = (power - most + POWER_MAX, most < 255);
        if at < POWER_MIN || !finite {
            return Err(Unfit { group, finite });
        }
        pair.fill(((at + 15) << 2) as u8);
    }
    Ok(power_of_two(most - 127 - POWER_MAX))
}

/// `2^exponent`, exactly, from the smallest subnormal on.
fn power_of_two(exponent: i32) -> f32 {
    match exponent {
        -126.. => f32::from_bits(((exponent + 127) as u32) << 23),
        _ => f32::from_bits(1 << (exponent + 149)),
    }
}

/// Appends the values of codes and powers that `mxfp4_powers` made of rows, and of their factors.
pub fn powers_values(codes: &[u8], powers: &[u8], factors: &[f32], out: &mut Vec<f32>) {
    let groups = powers.len() / factors.len().max(1);
    for (row, &factor) in factors.iter().enumerate() {
        let of_row = (row * groups..(row + 1) * groups)
            .zip(codes[row * groups * NVFP4_GROUP / 2..].chunks_exact(NVFP4_GROUP / 2));
        for (group, codes) in of_row {
            let power = match powers[group] {
                0 => 0.0,
                power => power_of_two(i32::from(power >> 2) - 15),
            };
            // Both are powers of two, whose product need not be one: in this order a value is.
            let value = |code: u8| E2M1[usize::from(code)] * power * factor;
            out.extend(
                codes
                    .iter()
                    .flat_map(|byte| [value(byte & 15), value(byte >> 4)]),
            );
        }
    }
}

/// Appends FP8 `[N, K]` with a scale per 128x128 block, `[ceil(N / 128), ceil(K / 128)]`:
/// `value = e4m3 * scale`.
pub fn fp8_values(codes: &[u8], scales: &[f32], k: usize, out: &mut Vec<f32>) {
    let blocks = k.div_ceil(FP8_BLOCK);
    for (row, codes) in codes.chunks_exact(k).enumerate() {
        let scales = &scales[row / FP8_BLOCK * blocks..][..blocks];
        for (codes, scale) in codes.chunks(FP8_BLOCK).zip(scales) {
            out.extend(codes.iter().map(|&code| E4M3[code as usize] * scale));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_e2m1_code_has_its_value() {
        let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0f32];
        for code in 0..16 {
            let sign = if code & 8 == 0 { 1.0 } else { -1.0 };
            let expected = sign * magnitudes[code & 7];
            assert_eq!(E2M1[code].to_bits(), expected.to_bits(), "code {code}");
        }
    }

    #[test]
    fn an_f32_is_narrow_where_a_bf16_has_its_value() {
        for code in 0..=u16::MAX {
            let value = bf16(code.to_le_bytes());
            assert_eq!(narrow(value.to_le_bytes()), Some(code.to_le_bytes()));
            for bit in 0..16 {
                let wide = f32::from_bits(value.to_bits() | 1 << bit);
                assert_eq!(narrow(wide.to_le_bytes()), None, "{code:#x} {bit}");
            }
        }
    }

    /// By the definition: sign, 4 exponent bits of bias 7, 3 mantissa bits.
    #[test]
    fn every_e4m3_code_has_its_value() {
        for code in 0..=255u8 {
            let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
            let exponent = i32::from((code >> 3) & 15);
            let fraction = f64::from(code & 7) / 8.0;
            let expected = match exponent {
                15 if code & 7 == 7 => f64::NAN,
                0 => sign * fraction * 2f64.powi(-6),
                _ => sign * (1.0 + fraction) * 2f64.powi(exponent - 7),
            };
            let value = f64::from(E4M3[code as usize]);
            assert!(
                value == expected || value.is_nan() && expected.is_nan(),
                "code {code:#x}"
            );
        }
        assert_eq!(E4M3[0x7e], 448.0);
        assert!(E4M3[0x80].is_sign_negative());
    }

    #[test]
    fn nvfp4_takes_the_low_nibble_first() {
        let mut out = Vec::new();
        let codes = [0x21, 0xf7, 0, 0, 0, 0, 0, 0x90];
        nvfp4_values(&codes, &[0x40], 0.5, false, &mut out);
        assert_eq!(out[..4], [0.5, 1.0, 6.0, -6.0]);
        assert_eq!(out[14..], [0.0, -0.5]);
    }

    #[test]
    fn compressed_tensors_divides_by_the_global_scale() {
        let (mut multiplied, mut divided) = (Vec::new(), Vec::new());
        let codes: Vec<u8> = (0..8).map(|i| i * 0x11).collect();
        nvfp4_values(&codes, &[0x38], 0.25, false, &mut multiplied);
        nvfp4_values(&codes, &[0x38], 4.0, true, &mut divided);
        assert_eq!(multiplied, divided);
    }

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
        let factor = mxfp4_powers(codes, powers, &mut scales).expect("powers that are near");
        let mut values = Vec::new();
        powers_values(codes, &scales, &[factor], &mut values);
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
    fn powers_that_kernels_cannot_have_are_told() {
        let codes = [0x11; MXFP4_GROUP];
        let mut out = [0; 4];
        let unfit = |powers| mxfp4_powers(&codes, powers, &mut [0; 4]).unwrap_err();
        assert_eq!(
            unfit(&[120, 95]),
            Unfit {
                group: 1,
                finite: true
            }
        );
        assert!(!unfit(&[255, 255]).finite);
        assert_eq!(
            mxfp4_powers(&[0x88; MXFP4_GROUP], &[1, 255], &mut out),
            Ok(0.0)
        );
        assert_eq!(out, [0; 4]);
    }

    #[test]
    fn fp8_scales_cover_ragged_edges() {
        let (n, k) = (130, 131);
        let codes = vec![0x38; n * k];
        let mut out = Vec::new();
        fp8_values(&codes, &[1.0, 2.0, 3.0, 4.0], k, &mut out);
        assert_eq!(out.len(), n * k);
        assert_eq!([out[0], out[127], out[128], out[130]], [1.0, 1.0, 2.0, 2.0]);
        assert_eq!([out[128 * k], out[129 * k + 130]], [3.0, 4.0]);
    }

    #[test]
    fn numbers_of_bf16_differ_by_value() {
        let bytes = |values: [u16; 4]| values.map(u16::to_le_bytes).concat();
        let one = bytes([0x3f80, 0, 0xbf80, 0x4000]);
        assert_eq!(bf16_difference(&one, &one), None);
        let signed = bytes([0x3f80, 0x8000, 0xbf80, 0x4000]);
        assert_eq!(bf16_difference(&one, &signed), None);
        let other = bytes([0x3f80, 0x8000, 0xbf80, 0x4001]);
        assert_eq!(bf16_difference(&one, &other), Some(3));
        let none = bytes([0x7fc0, 0, 0xbf80, 0x4000]);
        assert_eq!(bf16_difference(&none, &other), Some(0));
    }

    #[test]
    fn bf16_is_the_upper_half_of_f32() {
        for bits in [0u16, 0x3f80, 0xbf80, 0x7f80, 0x0001, 0x8000] {
            assert_eq!(bf16(bits.to_le_bytes()).to_bits(), u32::from(bits) << 16);
        }
    }
}
