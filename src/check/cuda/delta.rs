//! Cases of recurrent mixers on the GPU.

use crate::parity::ProbeDelta;
use model::backend::cuda::{Cuda, Matrix, Tensor, Vector};
use model::ops::Delta;
use model::shapes::Delta as _;
use model::target::Recurrent;
use step::executor::DeviceError;

impl ProbeDelta<Recurrent> for Cuda {
    fn gated_linear_add_rounded(
        &mut self,
        x: &mut Tensor,
        norm: &Vector,
        z: &Tensor,
        w: &Matrix,
        residual: &mut Tensor,
    ) -> Result<(), DeviceError> {
        self.gated_linear_add(x, norm, z, w, residual);
        Ok(())
    }
}

/// The `values` of a step's rows of `tensor`, with rows that are stored as F16 widened to F32.
pub fn widened(cuda: &Cuda, tensor: &Tensor, rows: &[usize], mut values: Vec<f32>) -> Vec<f32> {
    let rows = rows.iter().zip(values.chunks_exact_mut(tensor.width));
    for (_, row) in rows.filter(|(row, _)| tensor.cells_f16 && cuda.step.now.is_in_cell(**row)) {
        // Queries and keys precede values; a result has values alone.
        let keys = row.len() - Recurrent::VALUES;
        let (keys, values) = row.split_at_mut(keys);
        let keys = keys.chunks_exact_mut(Recurrent::KEY_DIM);
        for head in keys.chain(values.chunks_exact_mut(Recurrent::VALUE_DIM)) {
            head.copy_from_slice(&super::wide(&head[..head.len() / 2]));
        }
    }
    values
}
