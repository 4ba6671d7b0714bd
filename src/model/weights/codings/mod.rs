//! Codings of weights on the host, one file each: their values, and how weights are read, rounded,
//! drawn and laid into panels. A new coding is a row of the manifest's table, a file here and one
//! beside `cuda/tile/codings.cuh`, and a line in the list of each side.

mod bf16;
mod fp8;
mod mxfp4;
mod nvfp4;

use std::ops::RangeInclusive;

use ::host::threads::fill_by_parts;

use super::checkpoint::MatrixRows;
use super::draw::{E2M1_RMS, Numbers, Range, e4m3_rms};
use super::error::{WeightsError, Wrong};
use super::format::{self, E2M1, E4M3, power_of_two};
use super::rounding::{
    E2M1_MAX, LANES, LEAST, e2m1_code, e4m3_code, error, largest, least, round_e2m1, round_e4m3,
};
use super::stored::{Bits, Factors};
use crate::target::Purpose::{Divisor, Elements, Factor, Scales};
use crate::target::{Coding, FP8_BLOCK, Format, MXFP4_GROUP, NVFP4_GROUP, Piece};

/// Rows of `k` exact weights that are to be rounded, and the largest magnitude of the whole matrix.
pub struct Exact<'a> {
    pub weights: &'a [f32],
    pub k: usize,
    pub largest: &'a dyn Fn() -> Result<f32, WeightsError>,
}

/// A source of random numbers.
pub trait Chance {
    fn bytes(&mut self, count: usize, range: RangeInclusive<u8>) -> Vec<u8>;

    /// Random BF16 numbers in `-scale .. scale`.
    fn bf16(&mut self, count: usize, scale: f32) -> Vec<f32>;
}

/// Factors of the rows that were read or rounded.
type Filled = Result<Factors, WeightsError>;

/// A coding of weights. Reading and rounding fill codes and scales of exactly the needed length.
pub trait Codec: Sync {
    /// Appends rows of `k` weights as exact F32.
    fn values(&self, from: Bits<&[u8]>, k: usize, out: &mut Vec<f32>);

    /// Reads rows of the checkpoint's tensors into codes and scales.
    fn read(&self, rows: &MatrixRows<'_>, codes: &mut [u8], scales: &mut [u8]) -> Filled;

    /// Rounds rows of weights, with the scales of the least error.
    fn round(&self, _: Exact<'_>, _codes: &mut [u8], _scales: &mut [u8]) -> Filled {
        unreachable!("manifests round weights to no such format")
    }

    /// Content of a tensor of a drawn matrix of `columns`, whose weights have a standard deviation
    /// of `gain / sqrt(columns)`.
    fn draw(&self, piece: &Piece, columns: usize, gain: f32) -> Numbers;

    /// Random bits of a matrix `[n, k]` in a format, such as loading accepts.
    fn sample(&self, format: Format, n: usize, k: usize, chance: &mut dyn Chance) -> Bits;

    /// Puts the codes of whole words into the order in which the device decodes them. Returns the
    /// power of two that decoding leaves out, which the factor of a row or block includes.
    fn order(&self, codes: &mut [u8]) -> f32;
}

impl Coding {
    pub const fn codec(self) -> &'static dyn Codec {
        match self {
            Coding::Bf16 => &bf16::Bf16,
            Coding::Nvfp4 => &nvfp4::Nvfp4,
            Coding::Fp8 => &fp8::Fp8,
            Coding::Mxfp4 => &mxfp4::Mxfp4,
        }
    }
}

/// Reorders the codes of each word; the loop is compiled for each order, to vector instructions.
#[inline(always)]
fn in_words(codes: &mut [u8], order: impl Fn(u32) -> u32 + Sync) {
    fill_by_parts(codes.as_chunks_mut::<4>().0, 1, |_, words| {
        for word in words {
            *word = order(u32::from_le_bytes(*word)).to_le_bytes();
        }
    });
}

#[cfg(test)]
mod tests;
