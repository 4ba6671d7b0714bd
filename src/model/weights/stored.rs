//! A matrix in the bits of the checkpoint.

use std::ops::Deref;

use super::rounding::E4M3_MAX;
use crate::target::Coding;

/// Weights `[n, k]` as they are stored, in their own memory or in a part of a larger buffer.
#[derive(Clone, Debug)]
pub struct Stored<Bytes = Vec<u8>> {
    pub n: usize,
    pub k: usize,
    pub bits: Bits<Bytes>,
    /// Biases of the matrix's results, `[n]`; empty if there are none.
    pub bias: Vec<f32>,
}

/// Elements and scales of a coding, row-major.
#[derive(Clone, Debug)]
pub struct Bits<Bytes = Vec<u8>> {
    pub coding: Coding,
    pub codes: Bytes,
    /// Scale codes, a byte for each group of columns; empty where no columns share one.
    pub scales: Bytes,
    pub factors: Factors,
}

impl<Bytes> Bits<Bytes> {
    pub fn new(coding: Coding, codes: Bytes, scales: Bytes, factors: Factors) -> Self {
        Bits {
            coding,
            codes,
            scales,
            factors,
        }
    }
}

/// Numbers beside codes and scales: one for the matrix, or one for each row or block.
#[derive(Clone, Debug, Default)]
pub struct Factors {
    pub numbers: Vec<f32>,
    /// Whether scales are divided by these numbers instead of multiplied.
    pub divide: bool,
}

impl From<Vec<f32>> for Factors {
    fn from(numbers: Vec<f32>) -> Factors {
        let divide = false;
        Factors { numbers, divide }
    }
}

impl Factors {
    /// The factor of the matrix, row or block with this index, rounded to F32.
    pub fn of(&self, index: usize) -> f32 {
        match self.divide {
            true => 1.0 / self.numbers[index],
            false => self.numbers[index],
        }
    }
}

impl<Bytes: Deref<Target = [u8]>> Stored<Bytes> {
    /// The weights as exact F32, row-major.
    pub fn values(&self) -> Vec<f32> {
        let mut out = Vec::with_capacity(self.n * self.k);
        let (bits, factors) = (&self.bits, self.bits.factors.clone());
        let bits = Bits::new(bits.coding, &bits.codes[..], &bits.scales[..], factors);
        bits.coding.codec().values(bits, self.k, &mut out);
        assert_eq!(out.len(), self.n * self.k);
        out
    }

    /// Whether the largest products of codes, scales and factors are certainly finite.
    pub fn is_finite(&self) -> bool {
        let nan = |any, code: &u8| any | (code & 0x7f == 0x7f);
        let factors = &self.bits.factors;
        let finite = |at| (E4M3_MAX * E4M3_MAX * factors.of(at)).is_finite();
        !self.bits.scales.iter().fold(false, nan) && (0..factors.numbers.len()).all(finite)
    }
}
