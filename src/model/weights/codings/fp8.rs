//! FP8: E4M3 codes with a scale in F32 per block of 128 x 128.

use super::*;

/// Bits of drawn codes: those always set, and those drawn; codes are below 1 and never NaN.
pub const DRAWN: (u8, u8) = (0, 0xb7);
/// Value to which the first tried scale brings a block's largest weight; rounded to 448.
const FIRST: f32 = 464.0;
/// Number of scales that are tried after the first one, over an octave and a little.
const TRIED: u32 = 34;
/// Step between two scales in the bits of an F32: 32 to an octave.
const STEP: u32 = 1 << 18;

pub struct Fp8;

impl Codec for Fp8 {
    fn values(&self, from: Bits<&[u8]>, k: usize, out: &mut Vec<f32>) {
        let blocks = k.div_ceil(FP8_BLOCK);
        for (row, codes) in from.codes.chunks_exact(k).enumerate() {
            let scales = &from.factors.numbers[row / FP8_BLOCK * blocks..][..blocks];
            for (codes, scale) in codes.chunks(FP8_BLOCK).zip(scales) {
                out.extend(codes.iter().map(|&code| E4M3[code as usize] * scale));
            }
        }
    }

    fn read(&self, rows: &MatrixRows<'_>, codes: &mut [u8], _: &mut [u8]) -> Filled {
        let nan = |code: &u8| (code & 0x7f == 0x7f).then_some(Wrong::NotFinite);
        let check = |first, part: &[u8]| rows.check(Elements, first, part, nan);
        rows.read(Elements, |columns| columns, codes, check)?;
        let k = rows.weight.k();
        if rows.weight.stored_format() == Format::Fp8Tensor {
            let blocks = Coding::Fp8.factors_of(codes.len() / k, k);
            return Ok(vec![rows.numbers(Factor)?[0]; blocks].into());
        }
        let blocks = k.div_ceil(FP8_BLOCK);
        let scales = rows.numbers(Scales)?;
        let of_stretch = |stretch: &std::ops::Range<usize>| {
            let first = stretch.start / FP8_BLOCK * blocks;
            &scales[first..][..stretch.len().div_ceil(FP8_BLOCK) * blocks]
        };
        let scales = rows.stretches.iter().flat_map(of_stretch);
        Ok(scales.copied().collect::<Vec<_>>().into())
    }

    fn round(&self, from: Exact<'_>, codes: &mut [u8], _: &mut [u8]) -> Filled {
        let (k, weights) = (from.k, from.weights);
        let mut scales = Vec::new();
        let bands = weights.chunks(FP8_BLOCK * k);
        for (band, codes) in bands.zip(codes.chunks_mut(FP8_BLOCK * k)) {
            for start in (0..k).step_by(FP8_BLOCK) {
                let columns = start..k.min(start + FP8_BLOCK);
                let block = band.chunks_exact(k).map(|row| &row[columns.clone()]);
                let scale = scale_of(block.clone());
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
        Ok(scales.into())
    }

    fn draw(&self, piece: &Piece, columns: usize, gain: f32) -> Numbers {
        let size = |columns: usize| e4m3_rms(DRAWN) * (columns as f32).sqrt();
        match piece.purpose {
            Elements => Numbers::Bytes(DRAWN),
            Factor => Numbers::F32(Range::factor(gain / size(columns))),
            _ => Numbers::Bf16(Range::factor(gain / size(piece.shape[1] * FP8_BLOCK))),
        }
    }

    fn sample(&self, _: Format, n: usize, k: usize, chance: &mut dyn Chance) -> Bits {
        let number = |code: u8| if code & 0x7f == 0x7f { code ^ 1 } else { code };
        let codes = chance.bytes(n * k, 0..=255).into_iter().map(number);
        let codes = codes.collect();
        let scales = chance.bf16(Coding::Fp8.factors_of(n, k), 1e-3).into_iter();
        let scales: Vec<f32> = scales.map(|scale| scale.abs() + 1e-3).collect();
        Bits::new(Coding::Fp8, codes, Vec::new(), scales.into())
    }

    fn order(&self, codes: &mut [u8]) -> f32 {
        in_words(codes, word);
        256.0
    }
}

/// Scale of the least error of a block, given by its rows.
fn scale_of<'a>(block: impl Iterator<Item = &'a [f32]> + Clone) -> f32 {
    let rows = block.clone().map(largest);
    let most = rows.fold(LEAST, f32::max) / FIRST;
    let first = most.to_bits() / STEP * STEP;
    let tried = (0..=TRIED).map(|at| f32::from_bits(first + at * STEP));
    least(tried, |scale| {
        let mut sums = [0.0; LANES];
        for row in block.clone() {
            error(&mut sums, row, scale, round_e4m3);
        }
        sums.iter().sum()
    })
}

/// Reorders the codes of four columns. Columns 0 and 1 go into the low and high half of a word,
/// each as an F16 has it: the sign in bit 15, exponent and mantissa in bits 13 .. 7. Columns 2 and
/// 3 go into the bits that are left: the sign in bit 14, the rest in bits 6 .. 0.
pub fn word(word: u32) -> u32 {
    // Combines two bytes to a word, one in each half.
    let halves = |low: u32, high: u32| low & 0xff | (high & 0xff) << 16;
    let of_both = |halves: u32, bits: u32| halves & (bits | bits << 16);
    let (whole, between) = (halves(word, word >> 8), halves(word >> 16, word >> 24));
    let whole = of_both(whole, 0x80) << 8 | of_both(whole, 0x7f) << 7;
    whole | of_both(between, 0x80) << 7 | of_both(between, 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fp8_scales_cover_ragged_edges() {
        let (n, k) = (130, 131);
        let codes = vec![0x38; n * k];
        let (mut out, factors) = (Vec::new(), vec![1.0, 2.0, 3.0, 4.0].into());
        Fp8.values(Bits::new(Coding::Fp8, &codes, &[], factors), k, &mut out);
        assert_eq!(out.len(), n * k);
        assert_eq!([out[0], out[127], out[128], out[130]], [1.0, 1.0, 2.0, 2.0]);
        assert_eq!([out[128 * k], out[129 * k + 130]], [3.0, 4.0]);
    }

    #[test]
    fn codes_of_a_word_are_in_the_order_of_decoding() {
        assert_eq!(word(0x0000_00ff), 0x0000_bf80);
        assert_eq!(word(0x0000_ff00), 0xbf80_0000);
        assert_eq!(word(0x00ff_0000), 0x0000_407f);
        assert_eq!(word(0xff00_0000), 0x407f_0000);
        assert_eq!(word(0x0091_0000), 0x0000_4011);
    }
}
