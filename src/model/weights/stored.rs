//! A matrix in the bits of the checkpoint.

use std::ops::Deref;

use super::format;
use crate::target::Coding;

/// Weights `[n, k]` as they are stored, in memory of their own or in a part of another's.
#[derive(Clone, Debug)]
pub struct Stored<Bytes = Vec<u8>> {
    pub n: usize,
    pub k: usize,
    pub bits: Bits<Bytes>,
    /// Biases of the results, `[n]`; empty if there are none.
    pub bias: Vec<f32>,
}

/// Elements and scales, row-major.
#[derive(Clone, Debug)]
pub enum Bits<Bytes = Vec<u8>> {
    /// Little-endian BF16.
    Bf16(Bytes),
    /// E2M1 codes, two a byte, the first in the low half; E4M3 for each 16 columns.
    Nvfp4 {
        codes: Bytes,
        scales: Bytes,
        global: Global,
    },
    /// E2M1 codes likewise; for each 16 columns the upper byte of an F16, a power of two or zero; a
    /// factor of each row, another power of two.
    Mxfp4 {
        codes: Bytes,
        scales: Bytes,
        factors: Vec<f32>,
    },
    /// E4M3 codes, and a scale for each block of 128 x 128.
    Fp8 { codes: Bytes, scales: Vec<f32> },
}

impl<Bytes> Bits<Bytes> {
    pub const fn coding(&self) -> Coding {
        match self {
            Bits::Bf16(_) => Coding::Bf16,
            Bits::Nvfp4 { .. } => Coding::Nvfp4,
            Bits::Mxfp4 { .. } => Coding::Mxfp4,
            Bits::Fp8 { .. } => Coding::Fp8,
        }
    }

    /// Codes, and the scales that are bytes beside them.
    pub const fn sections(&self) -> (&Bytes, Option<&Bytes>) {
        match self {
            Bits::Bf16(codes) | Bits::Fp8 { codes, .. } => (codes, None),
            Bits::Nvfp4 { codes, scales, .. } | Bits::Mxfp4 { codes, scales, .. } => {
                (codes, Some(scales))
            }
        }
    }
}

/// Meaning of an NVFP4 scale's companion.
#[derive(Clone, Copy, Debug)]
pub enum Global {
    Divide(f32),
    Multiply(f32),
}

impl Global {
    /// The factor of every weight, rounded to F32.
    pub fn factor(self) -> f32 {
        match self {
            Global::Divide(global) => 1.0 / global,
            Global::Multiply(global) => global,
        }
    }
}

impl<Bytes: Deref<Target = [u8]>> Stored<Bytes> {
    /// The weights as exact F32, row-major.
    pub fn values(&self) -> Vec<f32> {
        let mut out = Vec::with_capacity(self.n * self.k);
        match &self.bits {
            Bits::Bf16(bytes) => format::bf16_values(bytes, &mut out),
            Bits::Nvfp4 {
                codes,
                scales,
                global,
            } => {
                let (global, divide) = match *global {
                    Global::Divide(global) => (global, true),
                    Global::Multiply(global) => (global, false),
                };
                format::nvfp4_values(codes, scales, global, divide, &mut out);
            }
            Bits::Mxfp4 {
                codes,
                scales,
                factors,
            } => format::powers_values(codes, scales, factors, &mut out),
            Bits::Fp8 { codes, scales } => format::fp8_values(codes, scales, self.k, &mut out),
        }
        assert_eq!(out.len(), self.n * self.k);
        out
    }

    /// Whether the largest products of codes and scales are certainly finite.
    pub fn is_finite(&self) -> bool {
        const CODE_MAX: f32 = 448.0;
        match &self.bits {
            Bits::Bf16(_) => true,
            Bits::Nvfp4 { scales, global, .. } => {
                let has_nan = scales
                    .iter()
                    .fold(false, |any, code| any | (code & 0x7f == 0x7f));
                !has_nan && (CODE_MAX * CODE_MAX * global.factor()).is_finite()
            }
            // Reading has looked at every power.
            Bits::Mxfp4 { .. } => true,
            Bits::Fp8 { scales, .. } => scales.iter().all(|scale| (CODE_MAX * scale).is_finite()),
        }
    }
}
