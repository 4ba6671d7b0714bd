//! NVFP4: E2M1 codes, two a byte, the first in the low half, with an E4M3 scale per 16 columns and
//! a factor or divisor of the matrix. The factor of a rounded matrix is a power of two, so that
//! every weight is exact in BF16, in which a CPU stores the weights.

use super::*;

/// Bits of drawn scales: those that are always set, and those that are drawn: `0.5 .. 1.875`,
/// sixteen steps.
const DRAWN_SCALES: (u8, u8) = (0x30, 0x0f);
/// Largest scale for the largest weight of a matrix, so that larger scales can be tried too.
const SCALE_MAX: f32 = 256.0;
/// Numbers of E4M3 scales that are tried below and above the scale that makes a group's largest
/// weight 6.
const TRIED: [u8; 2] = [3, 6];

pub struct Nvfp4;

impl Codec for Nvfp4 {
    fn values(&self, from: Bits<&[u8]>, _: usize, out: &mut Vec<f32>) {
        let global = from.factors.numbers[0];
        for (group, &scale) in from.codes.chunks_exact(NVFP4_GROUP / 2).zip(from.scales) {
            let scale = E4M3[scale as usize];
            let scale = match from.factors.divide {
                true => scale / global,
                false => scale * global,
            };
            for &byte in group {
                out.push(E2M1[(byte & 15) as usize] * scale);
                out.push(E2M1[(byte >> 4) as usize] * scale);
            }
        }
    }

    fn read(&self, rows: &MatrixRows<'_>, codes: &mut [u8], scales: &mut [u8]) -> Filled {
        rows.read(Elements, |columns| columns / 2, codes, |_, _| Ok(()))?;
        rows.read(
            Scales,
            |columns| columns / NVFP4_GROUP,
            scales,
            |_, _| Ok(()),
        )?;
        let divide = rows.weight.stored_format() == Format::Nvfp4CompressedTensors;
        let numbers = rows.numbers(if divide { Divisor } else { Factor })?;
        Ok(Factors { numbers, divide })
    }

    fn round(&self, from: Exact<'_>, codes: &mut [u8], scales: &mut [u8]) -> Filled {
        let factor = factor((from.largest)()?);
        let groups = from.weights.as_chunks::<NVFP4_GROUP>().0;
        let codes = codes.as_chunks_mut::<{ NVFP4_GROUP / 2 }>().0;
        for ((group, codes), scale) in groups.iter().zip(codes).zip(scales) {
            let code = scale_of(group, factor);
            let inverse = 1.0 / (E4M3[usize::from(code)] * factor);
            for (pair, byte) in group.as_chunks::<2>().0.iter().zip(codes) {
                let [low, high] = pair.map(|x| e2m1_code(round_e2m1(x * inverse)));
                *byte = low | high << 4;
            }
            *scale = code;
        }
        Ok(vec![factor].into())
    }

    fn draw(&self, piece: &Piece, columns: usize, gain: f32) -> Numbers {
        let divisor = E2M1_RMS * e4m3_rms(DRAWN_SCALES) * (columns as f32).sqrt();
        match piece.purpose {
            Elements => Numbers::Bytes((0, 0xff)),
            Scales => Numbers::Bytes(DRAWN_SCALES),
            Divisor => Numbers::F32(Range::factor(divisor / gain)),
            _ => Numbers::F32(Range::factor(gain / divisor)),
        }
    }

    fn sample(&self, format: Format, n: usize, k: usize, chance: &mut dyn Chance) -> Bits {
        let codes = chance.bytes(n * k / 2, 0..=255);
        // Drawn scales are subnormal and normal E4M3, none of them negative or not a number.
        let scales = chance.bytes(n * k / NVFP4_GROUP, 1..=0x50);
        let divide = format == Format::Nvfp4CompressedTensors;
        let numbers = vec![if divide { 77.0 } else { 0.013 }];
        Bits::new(Coding::Nvfp4, codes, scales, Factors { numbers, divide })
    }

    fn order(&self, codes: &mut [u8]) -> f32 {
        in_words(codes, word);
        128.0
    }
}

/// Factor of all weights of an NVFP4 matrix whose largest magnitude is `largest`: the least power
/// of two under which no group asks for a scale above `SCALE_MAX`.
pub fn factor(largest: f32) -> f32 {
    let wanted = largest.max(LEAST) / (E2M1_MAX * SCALE_MAX);
    let below = f32::from_bits(wanted.to_bits() & f32::INFINITY.to_bits());
    if below < wanted { 2.0 * below } else { below }
}

/// Code of the scale of the least error for a group.
fn scale_of(group: &[f32; NVFP4_GROUP], factor: f32) -> u8 {
    const LARGEST: u8 = 0x7e;
    let nearest = e4m3_code(round_e4m3(largest(group) / (E2M1_MAX * factor)));
    let [below, above] = TRIED;
    let tried = nearest.saturating_sub(below).max(1)..=nearest.saturating_add(above).min(LARGEST);
    let scale = least(tried.map(|code| E4M3[usize::from(code)]), |scale| {
        let mut sums = [0.0; LANES];
        error(&mut sums, group, scale * factor, round_e2m1);
        sums.iter().sum()
    });
    e4m3_code(scale)
}

/// Reorders the codes of eight columns: even ones into the low half of a word, odd ones into the
/// high half. Of the four of a half the first has its sign in bit 15 and its magnitude in bits 11
/// .. 9, as an F16 has them; the others in bits 12 and 8 .. 6, 14 and 2 .. 0, 13 and 5 .. 3.
pub fn word(word: u32) -> u32 {
    let even = |word: u32| {
        let nibbles = word & 0x0f0f_0f0f;
        let bytes = (nibbles | nibbles >> 4) & 0x00ff_00ff;
        (bytes | bytes >> 8) & 0xffff
    };
    let halves = even(word) | even(word >> 4) << 16;
    let of_both = |bits: u32| halves & (bits | bits << 16);
    let first = of_both(0x0008) << 12 | of_both(0x0007) << 9;
    let second = of_both(0x0080) << 5 | of_both(0x0070) << 2;
    let third = of_both(0x0800) << 3 | of_both(0x0700) >> 8;
    let fourth = of_both(0x8000) >> 2 | of_both(0x7000) >> 9;
    first | second | third | fourth
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(codes: &[u8], scales: &[u8], number: f32, divide: bool) -> Vec<f32> {
        let (numbers, mut out) = (vec![number], Vec::new());
        let bits = Bits::new(Coding::Nvfp4, codes, scales, Factors { numbers, divide });
        Nvfp4.values(bits, 2 * codes.len(), &mut out);
        out
    }

    #[test]
    fn the_low_nibble_is_first() {
        let codes = [0x21, 0xf7, 0, 0, 0, 0, 0, 0x90];
        let out = values(&codes, &[0x40], 0.5, false);
        assert_eq!(out[..4], [0.5, 1.0, 6.0, -6.0]);
        assert_eq!(out[14..], [0.0, -0.5]);
    }

    #[test]
    fn compressed_tensors_divides_by_the_global_scale() {
        let codes: Vec<u8> = (0..8).map(|i| i * 0x11).collect();
        let multiplied = values(&codes, &[0x38], 0.25, false);
        let divided = values(&codes, &[0x38], 4.0, true);
        assert_eq!(multiplied, divided);
    }

    #[test]
    fn codes_of_a_word_are_in_the_order_of_decoding() {
        let magnitudes = [6 << 3, 4, 2 << 6, 0, 7 << 3, 5, 3 << 6, 1 << 9];
        let [even, odd] = [0, 4].map(|at| magnitudes[at..][..4].iter().sum::<u32>());
        assert_eq!(word(0x7654_3210), odd << 16 | even);
        let signs = [0, 4, 8, 12].map(|at| word(8 << (2 * at)));
        assert_eq!(signs, [1 << 15, 1 << 12, 1 << 14, 1 << 13]);
    }
}
