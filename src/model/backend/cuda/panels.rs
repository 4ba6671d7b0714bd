//! Panels made on the host: contents of packed files, reference for `cuda/ops/pack`, and inputs of
//! the other operations' comparisons.

use super::storage::{BLOCK_COLUMNS, BLOCK_ROWS, Order, PANEL_ROWS, Storage};
use crate::target::Owner;
use crate::weights::{Bits, Stored};
use ::host::threads::fill_by_parts;

/// Adjacent bytes of one row in a panel.
const RUN_BYTES: usize = 64;

/// A matrix `[n, k]` ready for the device.
pub struct Panels {
    pub n: usize,
    pub k: usize,
    pub storage: Storage,
    pub bytes: Vec<u8>,
}

/// Source of a row of panels: matrix and row; None for a row of zeros.
type SourceRow = Option<(usize, usize)>;

impl Panels {
    /// Panels of `parts`, which have the same `k` and storage, stacked.
    pub fn stacked(parts: &[Stored]) -> Panels {
        Panels::new(parts, Order::Stacked, Storage::Panels(parts[0].bits.coding))
    }

    /// Panels of gate and up with eight rows of each in turn, so that one lane gets both numbers of
    /// a pair; and panels of down.
    pub fn of_expert(matrices: &[Stored]) -> [Panels; 2] {
        let storage = |part: &Stored| Storage::Panels(part.bits.coding).of_experts();
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
    /// Sources of the rows of `parts` in the panels' order, with zeros up to a whole panel.
    fn source_rows(self, parts: &[Stored]) -> Vec<SourceRow> {
        const HALF: usize = PANEL_ROWS / 2;
        let mut rows: Vec<SourceRow> = match self {
            Order::Stacked => {
                let parts = parts.iter().enumerate();
                let rows =
                    parts.flat_map(|(part, stored)| (0..stored.n).map(move |row| (part, row)));
                rows.map(Some).collect()
            }
            Order::Interleaved => {
                let n = parts[0].n;
                assert!(parts.len() == 2 && n == parts[1].n && n.is_multiple_of(HALF));
                let source = |row: usize| {
                    let (panel, at) = (row / PANEL_ROWS, row % PANEL_ROWS);
                    Some((at / HALF, panel * HALF + at % HALF))
                };
                (0..2 * n).map(source).collect()
            }
        };
        rows.resize(rows.len().next_multiple_of(PANEL_ROWS), None);
        rows
    }
}

/// Writes the panels of `parts`, which have the same `k` and coding, to `out`, which is as long.
fn fill(parts: &[Stored], order: Order, storage: Storage, out: &mut [u8]) {
    let k = parts[0].k;
    let coding = storage.coding();
    assert!(k.is_multiple_of(coding.columns()));
    let fits = |part: &Stored| part.k == k && part.bits.coding == coding;
    assert!(parts.iter().all(fits));
    let rows = order.source_rows(parts);
    let sections = storage.sections(rows.len(), k);
    assert_eq!(out.len(), sections.iter().sum::<usize>());
    let (out_codes, rest) = out.split_at_mut(sections[0]);
    let (out_scales, rest) = rest.split_at_mut(sections[1]);
    let (out_factors, out_biases) = rest.split_at_mut(sections[2]);
    let biases = out_biases.as_chunks_mut().0;
    for (out, source) in biases.iter_mut().zip(&rows) {
        *out = bias(parts, *source).to_le_bytes();
    }
    let [row_bytes, scale_bytes] = coding.sections(1, k);
    runs::<RUN_BYTES>(parts, &rows, row_bytes, |bits| &bits.codes, out_codes);
    let left_out = match storage {
        Storage::BlockScaled => in_lanes(out_codes),
        Storage::Panels(_) => coding.codec().order(out_codes),
    };
    let of_groups: fn(&Bits) -> &[u8] = |bits| &bits.scales;
    match coding.sections(1, 8 * RUN_BYTES / coding.bits() as usize)[1] {
        0 => block_scales(parts, &rows, left_out, out_scales),
        1 => runs::<1>(parts, &rows, scale_bytes, of_groups, out_scales),
        2 => runs::<2>(parts, &rows, scale_bytes, of_groups, out_scales),
        4 => runs::<4>(parts, &rows, scale_bytes, of_groups, out_scales),
        8 => runs::<8>(parts, &rows, scale_bytes, of_groups, out_scales),
        bytes => unreachable!("no coding has {bytes} bytes of scales beside a run"),
    }
    let factors = out_factors.as_chunks_mut().0;
    for (out, source) in factors.iter_mut().zip(&rows) {
        *out = (factor(parts, *source, 0) * left_out).to_le_bytes();
    }
}

/// Cuts the `row_bytes` of each row into runs of `RUN` bytes and puts the runs of a panel's rows
/// side by side: `[panel][run][row]`.
fn runs<const RUN: usize>(
    parts: &[Stored],
    rows: &[SourceRow],
    row_bytes: usize,
    bytes_of: fn(&Bits) -> &[u8],
    out: &mut [u8],
) {
    let panel_bytes = PANEL_ROWS * row_bytes;
    fill_by_parts(out, panel_bytes, |first, panels| {
        let rows = rows[first / row_bytes..].chunks_exact(PANEL_ROWS);
        for (panel, rows) in panels.chunks_exact_mut(panel_bytes).zip(rows) {
            let panel = panel.as_chunks_mut::<RUN>().0;
            for (at, source) in rows.iter().enumerate() {
                let to = panel[at..].iter_mut().step_by(PANEL_ROWS);
                match *source {
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

/// Puts every fourth word of a run side by side, since one lane loads these words. Returns the
/// factor that decoding leaves out, which is 1.
fn in_lanes(codes: &mut [u8]) -> f32 {
    for run in codes.as_chunks_mut::<RUN_BYTES>().0 {
        let words = *run;
        for (at, to) in run.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            to.copy_from_slice(&words[(at % 4 * 4 + at / 4) * 4..][..4]);
        }
    }
    1.0
}

/// Factor of a row's sums, or of the row's sums over one block of columns.
fn factor(parts: &[Stored], source: SourceRow, block: usize) -> f32 {
    source.map_or(0.0, |(part, row)| {
        let Stored { bits, k, .. } = &parts[part];
        bits.factors.of(match bits.coding.factors() {
            Owner::None | Owner::Matrix => 0,
            Owner::Rows => row,
            Owner::Blocks => row / BLOCK_ROWS * (k / BLOCK_COLUMNS) + block,
        })
    })
}

/// Bias of a row's sums.
fn bias(parts: &[Stored], source: SourceRow) -> f32 {
    let bias = source.and_then(|(part, row)| parts[part].bias.get(row));
    bias.copied().unwrap_or(0.0)
}

/// Appends scales of blocks, if there are any: `[panel][block of columns][half of the panel]`.
fn block_scales(parts: &[Stored], rows: &[SourceRow], left_out: f32, out: &mut [u8]) {
    let blocks = parts[0].k / BLOCK_COLUMNS;
    let mut out = out.as_chunks_mut().0.iter_mut();
    for panel in rows.chunks_exact(PANEL_ROWS) {
        for block in 0..blocks {
            for (half, out) in panel.chunks_exact(PANEL_ROWS / 2).zip(&mut out) {
                *out = (factor(parts, half[0], block) * left_out).to_le_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Coding;

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
            bits: Bits::new(Coding::Bf16, bf16, Vec::new(), Vec::new().into()),
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
    fn gate_and_up_alternate_by_eight_rows() {
        let part = |code| {
            let bits = Bits {
                coding: Coding::Nvfp4,
                codes: vec![code; 8 * 64],
                scales: vec![code; 8 * 8],
                factors: vec![f32::from(code)].into(),
            };
            Stored {
                n: 8,
                k: 128,
                bits,
                bias: Vec::new(),
            }
        };
        let panels = Panels::new(
            &[part(1), part(2)],
            Order::Interleaved,
            Storage::Panels(Coding::Nvfp4),
        );
        assert_eq!(
            (panels.n, panels.bytes.len()),
            (16, 16 * 64 + 16 * 8 + 16 * 4)
        );
        let word_at = |row: usize| *panels.bytes[row * RUN_BYTES..].first_chunk().unwrap();
        let words = [7, 8].map(|row| u32::from_le_bytes(word_at(row)));
        let ordered = [1, 2].map(|code| {
            let mut word = [code; 4];
            Coding::Nvfp4.codec().order(&mut word);
            u32::from_le_bytes(word)
        });
        assert_eq!(words, ordered);
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
        let bits = Bits {
            coding: Coding::Fp8,
            codes: vec![0; 256 * 256],
            scales: Vec::new(),
            factors: vec![1.0, 2.0, 3.0, 4.0].into(),
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
            Storage::Panels(Coding::Fp8).bytes(256, 256)
        );
        assert_eq!(scales[..4], 256f32.to_le_bytes());
        assert_eq!(scales[8..12], 512f32.to_le_bytes());
        assert_eq!(scales[8 * 16..][..4], 768f32.to_le_bytes());
    }
}
