//! Functions beside operations that cases need of a backend.

use super::rows::gathered;
use model::backend::cpu::{self, Cpu};
use model::ops::{Batch, Dense, Device, Ends, Hidden, cap};
use model::weights::Stored;
use model::weights::rounding::round_f16;
use step::executor::DeviceError;

/// A backend on which cases can run.
pub trait Probe: Dense + Sized + 'static {
    /// A tensor with rows of `width` elements that holds `values`.
    fn given(&mut self, width: usize, values: &[f32]) -> Result<Self::Tensor, DeviceError>;
    /// A tensor for `rows x width` results, filled with NaN.
    fn empty(&mut self, rows: usize, width: usize) -> Result<Self::Tensor, DeviceError>;
    fn matrix_of(&mut self, stored: &Stored) -> Result<Self::Matrix, DeviceError>;
    fn vector_of(&mut self, values: &[f32]) -> Result<Self::Vector, DeviceError>;
    /// `norm_linear` with normed rows rounded to F16 before the products, as a device rounds them;
    /// without this rounding, sums that cancel would differ by any factor.
    fn norm_linear_rounded(
        &mut self,
        residual: &Self::Tensor,
        norm: &Self::Vector,
        x: &mut Self::Tensor,
        parts: &mut [(&Self::Matrix, &mut Self::Tensor)],
    ) -> Result<(), DeviceError>;
    /// `lm_head` for ranked rows, with normed rows rounded to F16 as in `norm_linear_rounded`.
    fn lm_head_rounded(
        &mut self,
        residual: &Self::Tensor,
        norm: &Self::Vector,
        w: &Self::Matrix,
        batch: &Batch,
        out: Ends<'_, Self>,
    ) -> Result<(), DeviceError>;
    /// The values of a tensor's `rows`, ascending; fails if memory beside the tensor was written.
    fn rows_seen(&mut self, tensor: &Self::Tensor, rows: &[usize])
    -> Result<Vec<f32>, DeviceError>;
    /// The values of all rows of a tensor; fails if memory beside the tensor was written.
    fn seen(&mut self, tensor: &Self::Tensor) -> Result<Vec<f32>, DeviceError>;
}

impl Probe for Cpu {
    fn given(&mut self, width: usize, values: &[f32]) -> Result<cpu::Tensor, DeviceError> {
        Ok(cpu::Tensor::of(width, values.to_vec()))
    }

    fn empty(&mut self, rows: usize, width: usize) -> Result<cpu::Tensor, DeviceError> {
        Ok(cpu::Tensor::of(width, vec![f32::NAN; rows * width]))
    }

    fn matrix_of(&mut self, stored: &Stored) -> Result<Self::Matrix, DeviceError> {
        let matrix = cpu::Matrix::of_stored(std::slice::from_ref(stored));
        Ok(matrix.biased(&stored.bias))
    }

    fn vector_of(&mut self, values: &[f32]) -> Result<Vec<f32>, DeviceError> {
        Ok(values.to_vec())
    }

    fn norm_linear_rounded(
        &mut self,
        residual: &cpu::Tensor,
        norm: &Vec<f32>,
        x: &mut cpu::Tensor,
        parts: &mut [(&Self::Matrix, &mut cpu::Tensor)],
    ) -> Result<(), DeviceError> {
        self.rms_norm(residual, norm, x, None);
        let rounded = rounded(self, x)?;
        for (matrix, out) in parts {
            self.linear(&rounded, matrix, out);
        }
        Ok(())
    }

    fn lm_head_rounded(
        &mut self,
        residual: &cpu::Tensor,
        norm: &Vec<f32>,
        w: &Self::Matrix,
        batch: &Batch,
        out: Ends<'_, Cpu>,
    ) -> Result<(), DeviceError> {
        let (rows, normed) = match out.hidden {
            Hidden::OfRows => (residual, out.x),
            Hidden::OfWanted => {
                self.select(residual, batch, out.x);
                (&*out.x, out.last)
            }
        };
        self.rms_norm(rows, norm, normed, None);
        let rounded = rounded(self, normed)?;
        self.linear_of_first(&rounded, w, out.ids, out.logits);
        cap(self, out.logits);
        self.top_k(out.logits, out.ranked.expect("rows that rank"));
        Ok(())
    }

    fn rows_seen(&mut self, tensor: &cpu::Tensor, rows: &[usize]) -> Result<Vec<f32>, DeviceError> {
        Ok(gathered(&self.seen(tensor)?, tensor.rows, rows))
    }

    fn seen(&mut self, tensor: &cpu::Tensor) -> Result<Vec<f32>, DeviceError> {
        let mut values = Vec::new();
        self.read(tensor, 0..tensor.rows, &mut values)?;
        Ok(values)
    }
}

/// `x` with elements rounded to F16.
pub(super) fn rounded(cpu: &mut Cpu, x: &cpu::Tensor) -> Result<cpu::Tensor, DeviceError> {
    let values = cpu.seen(x)?;
    let width = values.len() / x.rows;
    Ok(cpu::Tensor::of(width, as_factors(values)))
}

/// Numbers rounded to F16, as products take them: a device may have stored many rows in F16.
pub(super) fn as_factors(values: Vec<f32>) -> Vec<f32> {
    values.into_iter().map(round_f16).collect()
}
