//! A checkpoint of the target's exact tensors that no file holds: drawn numbers for measurements.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::checkpoint::Checkpoint;
use super::format::FP8_BLOCK;
use super::header::{Dtype, TensorInfo};
use super::layout::{self, Expected};
use super::progress::Progress;
use super::source::Source;

/// Drawn bytes that every tensor takes its own from.
const POOL_BYTES: usize = 8 << 20;
/// Distance of the places that two tensors start at in the pool; odd, so that all are visited.
const STRIDE: usize = 1_299_709;

/// Root mean square of drawn E2M1 codes.
const E2M1_RMS: f32 = 2.9;
/// Root mean square of the E4M3 codes that are drawn for weights, up to 1.
const E4M3_RMS: f32 = 0.29;
/// E4M3 of 1.
const E4M3_ONE: u8 = 0x38;

/// What a tensor holds. Matrices have a standard deviation of `1 / sqrt(K)`, so that activations
/// neither grow nor vanish.
#[derive(Clone, Copy, Debug)]
enum Content {
    /// BF16 of `-scale .. scale`.
    Bf16(f32),
    /// The same F32.
    F32(f32),
    /// Any bytes: two E2M1 codes each.
    Codes,
    /// E4M3 of `-1 .. 1`.
    E4m3,
    /// One byte.
    Byte(u8),
    /// One BF16.
    Constant(f32),
}

struct Piece {
    start: u64,
    content: Content,
}

/// The content of all tensors, one after the other.
pub struct Seeded {
    pieces: Vec<Piece>,
    bytes: u64,
    pool: Vec<u8>,
}

/// Opens the drawn checkpoint; the same for every run of a target.
pub fn open_seeded(progress: Arc<Progress>) -> Checkpoint {
    let expected = layout::expected(&layout::model(&|_| false));
    let (mut pieces, mut tensors, mut start) = (Vec::new(), BTreeMap::new(), 0);
    for (name, expected) in expected
        .into_iter()
        .filter(|(_, expected)| !expected.optional)
    {
        let dtype = expected.dtypes[0];
        let elements: usize = expected.shape.iter().product();
        let end = start + (elements * dtype.bytes()) as u64;
        let content = content(&name, dtype, &expected);
        pieces.push(Piece { start, content });
        let shape = expected.shape;
        let info = TensorInfo {
            dtype,
            shape,
            bytes: start..end,
        };
        tensors.insert(name, (0, info));
        start = end;
    }
    let seeded = Seeded {
        pieces,
        bytes: start,
        pool: pool(),
    };
    Checkpoint::of_seeded(Source::Seeded(seeded), tensors, progress)
}

fn content(name: &str, dtype: Dtype, expected: &Expected) -> Content {
    let columns = expected.shape.last().copied().unwrap_or(1) as f32;
    match dtype {
        Dtype::U8 => Content::Codes,
        Dtype::F32 if name.ends_with("global_scale") => {
            Content::F32(E2M1_RMS * (target_columns(name)).sqrt())
        }
        Dtype::F32 => Content::F32(1.0),
        Dtype::F8E4M3 if name.ends_with("weight_scale") => Content::Byte(E4M3_ONE),
        Dtype::F8E4M3 => Content::E4m3,
        _ if name.ends_with("weight_scale_inv") => {
            let columns = columns * FP8_BLOCK as f32;
            Content::Constant(1.0 / (E4M3_RMS * columns.sqrt()))
        }
        _ if expected.shape.len() == 2 => Content::Bf16((3.0 / columns).sqrt()),
        _ => Content::Bf16(0.5),
    }
}

/// Columns of the matrix that an NVFP4 scale belongs to.
fn target_columns(name: &str) -> f32 {
    let columns = match name {
        name if name.contains("down_proj") && name.contains("shared") => {
            crate::target::SHARED_INTERMEDIATE
        }
        name if name.contains("down_proj") => crate::target::EXPERT_INTERMEDIATE,
        name if name.contains("o_proj") => crate::target::HEADS * crate::target::HEAD_DIM,
        _ => crate::target::HIDDEN,
    };
    columns as f32
}

/// SplitMix64 of one seed.
fn pool() -> Vec<u8> {
    let mut state = 0u64;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    (0..POOL_BYTES / 8)
        .flat_map(|_| next().to_le_bytes())
        .collect()
}

impl Seeded {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills `out` from `offset` on; it lies in one tensor and starts at an element.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let index = self.pieces.partition_point(|piece| piece.start <= offset) - 1;
        let piece = &self.pieces[index];
        let mut at = (index * STRIDE + (offset - piece.start) as usize) % POOL_BYTES;
        at -= at % 4;
        let drawn = self.pool[at..].iter().chain(self.pool.iter().cycle());
        match piece.content {
            Content::Byte(byte) => out.fill(byte),
            Content::Constant(value) => fill(out, bf16(value)),
            Content::F32(value) => fill(out, value.to_le_bytes()),
            Content::Codes => copy(&self.pool, at, out),
            Content::E4m3 => {
                copy(&self.pool, at, out);
                // Without the exponent's highest bit: below 1, and never NaN.
                out.iter_mut().for_each(|code| *code &= 0xb7);
            }
            Content::Bf16(scale) => {
                for (out, drawn) in out.chunks_exact_mut(2).zip(drawn.step_by(2)) {
                    let unit = f32::from(*drawn as i8) / 128.0;
                    out.copy_from_slice(&bf16(unit * scale));
                }
            }
        }
    }
}

/// Copies from `at` on, around the end of the pool.
fn copy(pool: &[u8], mut at: usize, mut out: &mut [u8]) {
    while !out.is_empty() {
        let (now, rest) = out.split_at_mut(out.len().min(pool.len() - at));
        now.copy_from_slice(&pool[at..at + now.len()]);
        (out, at) = (rest, 0);
    }
}

fn fill<const BYTES: usize>(out: &mut [u8], value: [u8; BYTES]) {
    let places = out.chunks_exact_mut(BYTES);
    places.for_each(|place| place.copy_from_slice(&value));
}

/// The BF16 towards zero.
fn bf16(value: f32) -> [u8; 2] {
    ((value.to_bits() >> 16) as u16).to_le_bytes()
}
