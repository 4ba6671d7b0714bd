//! Cases on the CPU, whose ops are the reference.

use super::{Probe, round_f16};
use crate::backend::cpu::{self, Cpu};
use crate::engine::executor::DeviceError;
use crate::ops::{Batch, Delta, Dense, Device, Ends};
use crate::shapes::Delta as _;
use crate::target::Gdn;
use crate::weights::{Bits, Stored};

impl Probe for Cpu {
    fn given(&mut self, width: usize, values: &[f32]) -> Result<cpu::Tensor, DeviceError> {
        Ok(cpu::Tensor::of(width, values.to_vec()))
    }

    fn room(&mut self, rows: usize, width: usize) -> Result<cpu::Tensor, DeviceError> {
        Ok(cpu::Tensor::of(width, vec![f32::NAN; rows * width]))
    }

    fn matrix_of(&mut self, stored: &Stored) -> Result<Self::Matrix, DeviceError> {
        Ok(cpu::Matrix::new(stored.k, &[stored.values()]))
    }

    fn vector_of(&mut self, values: &[f32]) -> Result<Vec<f32>, DeviceError> {
        Ok(values.to_vec())
    }

    fn experts_of(&mut self, stored: &[[Stored; 3]]) -> Result<Self::Experts, DeviceError> {
        let mut experts = Self::Experts::stored_as(matches!(stored[0][0].bits, Bits::Nvfp4 { .. }));
        for [gate, up, down] in stored {
            let both = cpu::Matrix::new(gate.k, &[gate.values(), up.values()]);
            experts.gate_up.push(both);
            experts.down.push(self.matrix_of(down)?);
        }
        Ok(experts)
    }

    fn norm_linear_rounded(
        &mut self,
        residual: &cpu::Tensor,
        norm: &Vec<f32>,
        x: &mut cpu::Tensor,
        parts: &mut [(&Self::Matrix, &mut cpu::Tensor)],
    ) -> Result<(), DeviceError> {
        self.rms_norm(residual, norm, x);
        let rounded = self.seen(x)?.into_iter().map(round_f16);
        let rounded = cpu::Tensor::of(norm.len(), rounded.collect());
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
        _: &Batch,
        out: Ends<'_, Cpu>,
    ) -> Result<(), DeviceError> {
        self.norm_linear_rounded(residual, norm, out.x, &mut [(w, out.logits)])?;
        self.top_k(out.logits, out.ranked);
        Ok(())
    }

    fn gated_linear_add_rounded(
        &mut self,
        x: &mut cpu::Tensor,
        norm: &Vec<f32>,
        z: &cpu::Tensor,
        w: &Self::Matrix,
        residual: &mut cpu::Tensor,
    ) -> Result<(), DeviceError> {
        Delta::<Gdn>::gated_rms_norm(self, x, norm, z);
        let rounded = self.seen(x)?.into_iter().map(round_f16);
        let rounded = cpu::Tensor::of(Gdn::VALUES, rounded.collect());
        self.linear_add(&rounded, w, residual);
        Ok(())
    }

    fn seen(&mut self, tensor: &cpu::Tensor) -> Result<Vec<f32>, DeviceError> {
        let mut values = Vec::new();
        self.read(tensor, 0..tensor.rows, &mut values)?;
        Ok(values)
    }

    fn kept(&mut self, cache: &Self::KvCache) -> Result<Vec<f32>, DeviceError> {
        Ok(cache.elements())
    }
}
