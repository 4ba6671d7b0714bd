//! The GPU's ops against the CPU's.

#[cfg(has = "delta")]
mod delta;
#[cfg(has = "experts")]
mod experts;
mod pack;

use ffi::ops::atlas_bf16;

use super::attend::{KvCache, Launchers};
use super::panels::Panels;
use super::{Cuda, Matrix, NEEDED, Tensor, Vector, memory, refused};
use crate::backend::parity::{self, Probe, ProbeAttention, Random, Report};
use crate::ops::{Batch, Dense, Device, Ends};
use crate::target;
use crate::weights::Stored;
use step::executor::DeviceError;

/// What Gated DeltaNet's checks take of a model that has none.
#[cfg(not(has = "delta"))]
mod delta {
    use super::{Cuda, Tensor};

    /// The values themselves: no rows are F16.
    pub fn widened(_: &Cuda, _: &Tensor, values: Vec<f32>) -> Vec<f32> {
        values
    }
}

/// What experts' checks take of a model that has none.
#[cfg(not(has = "experts"))]
mod experts {
    use super::{Cuda, Report};
    use crate::weights::{Checkpoint, WeightsError};

    /// Nothing: an MLP's matrices are loaded as all others.
    pub fn pack(_: &mut Report, _: &mut Cuda, _: &Checkpoint) -> Result<(), WeightsError> {
        Ok(())
    }
}

/// Elements before and after every array, which no kernel may touch.
const GUARD: usize = 4096;
/// Fills guards and outputs: as an F32 it is not a number, so what was not written is found.
const POISON: u8 = 0xff;

impl Probe for Cuda {
    fn given(&mut self, width: usize, values: &[f32]) -> Result<Tensor, DeviceError> {
        let mut tensor = self.room(values.len() / width, width)?;
        let written = tensor.values.upload(GUARD, values, &self.queue.stream);
        written.map_err(refused)?;
        Ok(tensor)
    }

    fn room(&mut self, rows: usize, width: usize) -> Result<Tensor, DeviceError> {
        let len = rows * width + 2 * GUARD;
        let mut values = memory::buffer(&self.device, len)?;
        values
            .fill_bytes(POISON, &self.queue.stream)
            .map_err(refused)?;
        Ok(Tensor {
            rows,
            width,
            values,
            cells_f16: false,
            guard: GUARD,
        })
    }

    fn matrix_of(&mut self, stored: &Stored) -> Result<Matrix, DeviceError> {
        self.matrix(&Panels::stacked(std::slice::from_ref(stored)))
    }

    fn vector_of(&mut self, values: &[f32]) -> Result<Vector, DeviceError> {
        Ok(Vector(self.filled(values)?))
    }

    fn norm_linear_rounded(
        &mut self,
        residual: &Tensor,
        norm: &Vector,
        x: &mut Tensor,
        parts: &mut [(&Matrix, &mut Tensor)],
    ) -> Result<(), DeviceError> {
        self.norm_linear(residual, norm, x, true, parts);
        Ok(())
    }

    fn lm_head_rounded(
        &mut self,
        residual: &Tensor,
        norm: &Vector,
        w: &Matrix,
        batch: &Batch,
        out: Ends<'_, Cuda>,
    ) -> Result<(), DeviceError> {
        self.lm_head(residual, norm, w, batch, out);
        Ok(())
    }

    fn seen(&mut self, tensor: &Tensor) -> Result<Vec<f32>, DeviceError> {
        let mut found = self.host(tensor.values.len())?;
        self.read(tensor, 0..tensor.rows, &mut found)?;
        let mut all = vec![0.0f32; tensor.values.len()];
        tensor
            .values
            .download(0, &mut all, &self.queue.stream)
            .map_err(refused)?;
        let poison = u32::from_ne_bytes([POISON; 4]);
        let len = tensor.values.len() - 2 * GUARD;
        let mut guards = all[..GUARD].iter().chain(&all[GUARD + len..]);
        match guards.all(|element| element.to_bits() == poison) {
            true => Ok(delta::widened(self, tensor, found.to_vec())),
            false => Err(DeviceError::Failed(
                "memory around an array was written".into(),
            )),
        }
    }
}

impl<A: Launchers> ProbeAttention<A> for Cuda {
    fn kept(&mut self, cache: &KvCache<A>) -> Result<Vec<f32>, DeviceError> {
        let mut all = vec![atlas_bf16 { bits: 0 }; cache.elements.len()];
        let read = cache.elements.download(0, &mut all, &self.queue.stream);
        read.map_err(refused)?;
        let wide = all
            .iter()
            .map(|of| f32::from_bits(u32::from(of.bits) << 16));
        Ok(wide.collect())
    }
}

impl Cuda {
    fn matrix(&self, panels: &Panels) -> Result<Matrix, DeviceError> {
        Ok(Matrix {
            n: panels.n,
            k: panels.k,
            storage: panels.storage,
            bytes: self.filled(&panels.bytes)?,
        })
    }
}

/// Compares every op with the CPU on every case.
pub fn parity(report: &mut Report, random: &mut Random) {
    let mut cuda = match Cuda::open() {
        Ok(cuda) => cuda,
        Err(why) => return report.push("", "", "the GPU can be used", why.to_string(), false),
    };
    if report.wants("pack") {
        pack::parity(report, random, &mut cuda);
    }
    parity::compare(report, random, &mut cuda);
}

/// Of the GPU's SMs those that this binary runs on, if not on all.
pub fn partition() -> Option<String> {
    let sms = target::PARTITION?;
    Some(match ffi::probe() {
        Ok(info) => format!("{sms} of {} SMs", info.multiprocessors),
        Err(_) => format!("{sms} SMs"),
    })
}

/// What `doctor` says about the GPU.
///
/// # Errors
/// Why it cannot be used, and what to do about it.
pub fn describe() -> Result<String, String> {
    let info = ffi::probe().map_err(|why| why.to_string())?;
    let ((major, minor), driver) = (info.compute_capability, info.driver_cuda);
    let used = match target::PARTITION {
        Some(sms) => format!(" of which it uses {sms}"),
        None => String::new(),
    };
    let text = format!(
        "{}, compute capability {major}.{minor}, {} SMs{used}, {:.1} GiB, driver for CUDA {}.{}",
        info.name,
        info.multiprocessors,
        info.memory_bytes as f64 / f64::from(1 << 30),
        driver.0,
        driver.1
    );
    match info.check(&NEEDED) {
        Ok(()) => Ok(text),
        Err(why) => Err(format!("{text}; {why}")),
    }
}
