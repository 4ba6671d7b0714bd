//! Panels made on the host: what packed files hold, what `cuda/ops/pack` is compared with, and what
//! the other operations' comparisons load.

use super::storage::{BLOCK_COLUMNS, BLOCK_ROWS, GROUP_COLUMNS, Order, PANEL_ROWS, Storage};
use crate::weights::{Bits, Stored};
use ::host::threads::fill_by_parts;

/// Bytes of a row that lie side by side.
const RUN_BYTES: usize = 64;
/// Factor that decoding a weight leaves out of its value: its scale has it.
const NVFP4_FACTOR: f32 = 128.0;
const FP8_FACTOR: f32 = 256.0;
const MXFP4_FACTOR: f32 = 16384.0;

/// A matrix `[n, k]` ready for the device.
pub struct Panels {
    pub n: usize,
    pub k: usize,
    pub storage: Storage,
    pub bytes: Vec<u8>,
}

/// A row of one of several matrices; `None` is a row of zeros.
type Place = Option<(usize, usize)>;

impl Panels {
    /// `parts`, which share `k` and storage, one below the other.
    pub fn stacked(parts: &[Stored]) -> Panels {
        Panels::new(parts, Order::Stacked, Storage::of(&parts[0].bits))
    }

    /// Gate and up, eight rows of each in turn, so that one lane gets both of a pair; and down.
    pub fn of_expert(matrices: &[Stored]) -> [Panels; 2] {
        let storage = |part: &Stored| Storage::of(&part.bits).of_experts();
        let (inputs, down) = matrices.split_at(matrices.len() - 1);
        [
            Panels::new(inputs, Order::of_inputs(inputs.len()), storage(&inputs[0])),
            Panels::new(down, Order::Stacked, storage(&down[0])),
        ]
    }

    pub fn new(parts: &[Stored], order: Order, storage: Storage) -> Panels {
        let n = parts.iter().map(|part| part.n).sum();
        let k = parts[0].k;
        let mut bytes = vec![0; storage.bytes(n, k) as usize];
        fill(parts, order, storage, &mut bytes);
        Panels {
            n,
            k,
            storage,
            bytes,
        }
    }
}

impl Order {
    /// The rows of `parts` in this order, then zeros up to a whole panel.
    fn places(self, parts: &[Stored]) -> Vec<Place> {
        const HALF: usize = PANEL_ROWS / 2;
        let mut rows: Vec<Place> = match self {
            Order::Stacked => {
                let parts = parts.iter().enumerate();
                let rows =
                    parts.flat_map(|(part, stored)| (0..stored.n).map(move |row| (part, row)));
                rows.map(Some).collect()
            }
            Order::Interleaved => {
                let n = parts[0].n;
                assert!(parts.len() == 2 && n == parts[1].n && n.is_multiple_of(HALF));
                let place = |row: usize| {
                    let (panel, at) = (row / PANEL_ROWS, row % PANEL_ROWS);
                    Some((at / HALF, panel * HALF + at % HALF))
                };
                (0..2 * n).map(place).collect()
            }
        };
        rows.resize(rows.len().next_multiple_of(PANEL_ROWS), None);
        rows
    }
}

/// Writes the panels of `parts`, which share `k` and bits that `storage` is for, to `out`, which
/// has just the room.
fn fill(parts: &[Stored], order: Order, storage: Storage, out: &mut [u8]) {
    let k = parts[0].k;
    assert!(k.is_multiple_of(storage.columns()));
    let fits = |part: &Stored| {
        let plain = Storage::of(&part.bits);
        let block_scaled = (plain, storage) == (Storage::Nvfp4, Storage::BlockScaled);
        part.k == k && (storage == plain || block_scaled)
    };
    assert!(parts.iter().all(fits));
    let rows = order.places(parts);
    let sections = storage.sections(rows.len(), k);
    assert_eq!(out.len(), sections.iter().sum::<usize>());
    let (out_codes, rest) = out.split_at_mut(sections[0]);
    let (out_scales, rest) = rest.split_at_mut(sections[1]);
    let (out_factors, out_biases) = rest.split_at_mut(sections[2]);
    let biases = out_biases.as_chunks_mut().0;
    for (out, place) in biases.iter_mut().zip(&rows) {
        *out = bias(parts, *place).to_le_bytes();
    }
    let row_bytes = storage.row_bytes(k);
    runs::<RUN_BYTES>(parts, &rows, row_bytes, codes, out_codes);
    match storage {
        Storage::F16 => in_f16(out_codes),
        Storage::Nvfp4 | Storage::BlockScaled | Storage::Mxfp4 => {
            match storage {
                Storage::BlockScaled => in_lanes(out_codes),
                _ => in_words(out_codes, nvfp4_word),
            }
            const WIDTH: usize = BLOCK_COLUMNS / GROUP_COLUMNS;
            runs::<WIDTH>(parts, &rows, k / GROUP_COLUMNS, scales_of, out_scales);
            let factors = out_factors.as_chunks_mut().0;
            for (out, place) in factors.iter_mut().zip(&rows) {
                let left_out = match storage {
                    Storage::Nvfp4 => NVFP4_FACTOR,
                    Storage::Mxfp4 => MXFP4_FACTOR,
                    _ => 1.0,
                };
                *out = (factor(parts, *place) * left_out).to_le_bytes();
            }
        }
        Storage::Fp8Block128 => {
            in_words(out_codes, fp8_word);
            block_scales(parts, &rows, out_scales);
        }
    }
}

/// Cuts the `row_bytes` of each row into runs of `RUN` bytes and puts the runs of a panel's rows
/// beside each other: `[panel][run][row]`.
fn runs<const RUN: usize>(
    parts: &[Stored],
    rows: &[Place],
    row_bytes: usize,
    bytes_of: fn(&Bits) -> &[u8],
    out: &mut [u8],
) {
    let panel_bytes = PANEL_ROWS * row_bytes;
    fill_by_parts(out, panel_bytes, |first, panels| {
        let rows = rows[first / row_bytes..].chunks_exact(PANEL_ROWS);
        for (panel, rows) in panels.chunks_exact_mut(panel_bytes).zip(rows) {
            let panel = panel.as_chunks_mut::<RUN>().0;
            for (at, place) in rows.iter().enumerate() {
                let to = panel[at..].iter_mut().step_by(PANEL_ROWS);
                match *place {
                    None => to.for_each(|run| *run = [0; RUN]),
                    Some((part, from)) => {
                        let bytes = &bytes_of(&parts[part].bits)[from * row_bytes..][..row_bytes];
                        let runs = to.zip(bytes.as_chunks().0);
                        runs.for_each(|(to, from)| *to = *from);
                    }
                }
            }
        }
    });
}

/// Reorders the codes of each word: a copy of the loop for each order, of vector instructions.
#[inline(always)]
fn in_words(codes: &mut [u8], order: impl Fn(u32) -> u32 + Sync) {
    fill_by_parts(codes.as_chunks_mut::<4>().0, 1, |_, words| {
        for word in words {
            *word = order(u32::from_le_bytes(*word)).to_le_bytes();
        }
    });
}

/// Makes F16 of BF16, in vector instructions.
fn in_f16(codes: &mut [u8]) {
    fill_by_parts(codes.as_chunks_mut::<2>().0, 1, |_, codes| {
        for code in codes {
            *code = f16(u16::from_le_bytes(*code)).to_le_bytes();
        }
    });
}

/// The F16 of a BF16 below 2^16, which is what loading lets through. From 2^-17 on it is the same
/// number; below, the nearest multiple of 2^-24, ties to even.
#[inline(always)]
fn f16(bf16: u16) -> u16 {
    const SMALLEST_NORMAL: u16 = 113 << 7;
    let magnitude = bf16 & 0x7fff;
    // The exponent's bias is 112 less, the mantissa three bits longer.
    let normal = magnitude.wrapping_sub(112 << 7) << 3;
    // The last bit of a number from 0.5 to 1 is worth 2^-24: adding rounds to it.
    let subnormal = (f32::from_bits(u32::from(magnitude) << 16) + 0.5).to_bits() as u16;
    let code = if magnitude < SMALLEST_NORMAL {
        subnormal
    } else {
        normal
    };
    code | bf16 & 0x8000
}

/// Puts the words of a run that one lane takes beside each other: every fourth one.
fn in_lanes(codes: &mut [u8]) {
    for run in codes.as_chunks_mut::<RUN_BYTES>().0 {
        let words = *run;
        for (at, to) in run.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            to.copy_from_slice(&words[(at % 4 * 4 + at / 4) * 4..][..4]);
        }
    }
}

/// Columns 0 and 1 into the low and high half of a word, each as an F16 holds it: the sign in bit
/// 15, exponent and mantissa in bits 13 .. 7. Columns 2 and 3 into the bits that are left: the sign
/// in bit 14, the rest in bits 6 .. 0.
fn fp8_word(word: u32) -> u32 {
    // A byte in each half of a word.
    let halves = |low: u32, high: u32| low & 0xff | (high & 0xff) << 16;
    let of_both = |halves: u32, bits: u32| halves & (bits | bits << 16);
    let (whole, between) = (halves(word, word >> 8), halves(word >> 16, word >> 24));
    let whole = of_both(whole, 0x80) << 8 | of_both(whole, 0x7f) << 7;
    whole | of_both(between, 0x80) << 7 | of_both(between, 0x7f)
}

/// Even columns of 8 into the low half of a word, odd ones into the high half. Of the four of a
/// half the first has its sign in bit 15 and its magnitude in bits 11 .. 9, as an F16 holds them;
/// the others have them in bits 12 and 8 .. 6, 14 and 2 .. 0, 13 and 5 .. 3.
fn nvfp4_word(word: u32) -> u32 {
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

fn codes(bits: &Bits) -> &[u8] {
    bits.sections().0
}

fn scales_of(bits: &Bits) -> &[u8] {
    bits.sections().1.map_or(&[], Vec::as_slice)
}

/// Factor of a row's sums: of its matrix, or its own.
fn factor(parts: &[Stored], place: Place) -> f32 {
    let bits = place.map(|(part, row)| (&parts[part].bits, row));
    match bits {
        Some((Bits::Nvfp4 { global, .. }, _)) => global.factor(),
        Some((Bits::Mxfp4 { factors, .. }, row)) => factors[row],
        _ => 0.0,
    }
}

/// Bias of a row's sums.
fn bias(parts: &[Stored], place: Place) -> f32 {
    let bias = place.and_then(|(part, row)| parts[part].bias.get(row));
    bias.copied().unwrap_or(0.0)
}

/// `[panel][block of columns][half of the panel]`.
fn block_scales(parts: &[Stored], rows: &[Place], out: &mut [u8]) {
    let blocks = parts[0].k / BLOCK_COLUMNS;
    let mut out = out.as_chunks_mut().0.iter_mut();
    for panel in rows.chunks_exact(PANEL_ROWS) {
        for block in 0..blocks {
            for (half, out) in panel.chunks_exact(PANEL_ROWS / 2).zip(&mut out) {
                let scale = match half[0] {
                    Some((part, row)) => match &parts[part].bits {
                        Bits::Fp8 { scales, .. } => scales[row / BLOCK_ROWS * blocks + block],
                        _ => 0.0,
                    },
                    None => 0.0,
                };
                *out = (scale * FP8_FACTOR).to_le_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Global;
    use crate::weights::rounding::round_f16;

    #[test]
    fn a_panel_has_runs_of_its_rows_side_by_side() {
        let (n, k) = (20, 128);
        let bytes = |code: fn(u16) -> u16| -> Vec<u8> {
            let codes = (0..n * k).map(|i| code(i as u16));
            codes.flat_map(u16::to_le_bytes).collect()
        };
        let (bf16, f16) = (bytes(|i| (113 << 7) + i), bytes(|i| (1 << 10) + (i << 3)));
        let panels = Panels::stacked(&[Stored {
            n,
            k,
            bits: Bits::Bf16(bf16),
            bias: Vec::new(),
        }]);
        assert_eq!(panels.bytes.len() as u64, Storage::F16.bytes(n, k));
        // Row 17, columns 32 .. 64: second panel, second run, second row.
        let at = 16 * 2 * k + (16 + 1) * RUN_BYTES;
        assert_eq!(
            panels.bytes[at..][..RUN_BYTES],
            f16[(17 * k + 32) * 2..][..RUN_BYTES]
        );
        assert!(
            panels.bytes[at + 3 * RUN_BYTES..][..RUN_BYTES]
                .iter()
                .all(|&b| b == 0)
        );
    }

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

    #[test]
    fn codes_of_a_word_are_in_the_order_of_decoding() {
        assert_eq!(fp8_word(0x0000_00ff), 0x0000_bf80);
        assert_eq!(fp8_word(0x0000_ff00), 0xbf80_0000);
        assert_eq!(fp8_word(0x00ff_0000), 0x0000_407f);
        assert_eq!(fp8_word(0xff00_0000), 0x407f_0000);
        assert_eq!(fp8_word(0x0091_0000), 0x0000_4011);
        let magnitudes = [6 << 3, 4, 2 << 6, 0, 7 << 3, 5, 3 << 6, 1 << 9];
        let [even, odd] = [0, 4].map(|at| magnitudes[at..][..4].iter().sum::<u32>());
        assert_eq!(nvfp4_word(0x7654_3210), odd << 16 | even);
        let signs = [0, 4, 8, 12].map(|at| nvfp4_word(8 << (2 * at)));
        assert_eq!(signs, [1 << 15, 1 << 12, 1 << 14, 1 << 13]);
    }

    #[test]
    fn gate_and_up_take_turns_of_eight_rows() {
        let part = |code| {
            let bits = Bits::Nvfp4 {
                codes: vec![code; 8 * 64],
                scales: vec![code; 8 * 8],
                global: Global::Multiply(f32::from(code)),
            };
            Stored {
                n: 8,
                k: 128,
                bits,
                bias: Vec::new(),
            }
        };
        let panels = Panels::new(&[part(1), part(2)], Order::Interleaved, Storage::Nvfp4);
        assert_eq!(
            (panels.n, panels.bytes.len()),
            (16, 16 * 64 + 16 * 8 + 16 * 4)
        );
        let word_at = |row: usize| *panels.bytes[row * RUN_BYTES..].first_chunk().unwrap();
        let words = [7, 8].map(|row| u32::from_le_bytes(word_at(row)));
        assert_eq!(words, [0x0101_0101, 0x0202_0202].map(nvfp4_word));
        let scales = &panels.bytes[16 * 64..];
        assert_eq!((scales[7 * 8], scales[8 * 8]), (1, 2));
        assert_eq!(scales[16 * 8..][..4], 128f32.to_le_bytes());
        assert_eq!(scales[16 * 8 + 8 * 4..][..4], 256f32.to_le_bytes());
    }

    #[test]
    fn a_lane_of_block_scaled_instructions_has_its_words_side_by_side() {
        let mut run: Vec<u8> = (0..RUN_BYTES as u8).collect();
        in_lanes(&mut run);
        // Columns 8, 40, 72 and 104 of the run begin the words of the second lane.
        let first: Vec<u8> = run[16..32].iter().step_by(4).copied().collect();
        assert_eq!(first, [4, 20, 36, 52]);
    }

    #[test]
    fn a_half_panel_has_its_blocks_scales() {
        let bits = Bits::Fp8 {
            codes: vec![0; 256 * 256],
            scales: vec![1.0, 2.0, 3.0, 4.0],
        };
        let panels = Panels::stacked(&[Stored {
            n: 256,
            k: 256,
            bits,
            bias: Vec::new(),
        }]);
        let scales = &panels.bytes[256 * 256..];
        assert_eq!(
            panels.bytes.len() as u64,
            Storage::Fp8Block128.bytes(256, 256)
        );
        assert_eq!(scales[..4], 256f32.to_le_bytes());
        assert_eq!(scales[8..12], 512f32.to_le_bytes());
        assert_eq!(scales[8 * 16..][..4], 768f32.to_le_bytes());
    }
}
