//! Number formats of weights, and their exact F32 values.

/// Value of each E2M1 code: bit 3 is the sign.
pub const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

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

/// `2^exponent`, exactly, from the smallest subnormal on.
pub fn power_of_two(exponent: i32) -> f32 {
    match exponent {
        -126.. => f32::from_bits(((exponent + 127) as u32) << 23),
        _ => f32::from_bits(1 << (exponent + 149)),
    }
}

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

/// Index of the first difference of two lists of little-endian BF16; zeros of both signs equal.
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
