//! Checks of the GPU's ops against the CPU's.

#[cfg(has = "delta")]
#[path = "cuda/delta.rs"]
mod delta;
#[cfg(has = "experts")]
#[path = "cuda/experts.rs"]
mod experts;
#[path = "cuda/pack.rs"]
mod pack;

use super::parity::{self, Probe, ProbeAttention, Random, Report};
use super::selfcheck::Tolerance;
use ffi::DeviceBuf;
use model::backend::cuda::panels::Panels;
use model::backend::cuda::{Cuda, KvCache, Launchers, Matrix, Tensor, Vector, memory, refused};
use model::ops::{Batch, Dense, Device, Ends};
use model::target::{Role, Site};
use model::weights::{Layout, MatrixSource, Stored, WeightsError};
use step::executor::DeviceError;

/// Stand-in for Gated DeltaNet in the checks of a model that has none.
#[cfg(not(has = "delta"))]
mod delta {
    use super::{Cuda, Tensor};

    /// Returns the values as they are: without Gated DeltaNet no rows are in F16.
    pub fn widened(_: &Cuda, _: &Tensor, _: &[usize], values: Vec<f32>) -> Vec<f32> {
        values
    }
}

/// Stand-in for experts in the checks of a model that has none.
#[cfg(not(has = "experts"))]
mod experts {
    use super::{Cuda, Report};
    use model::weights::{Checkpoint, WeightsError};

    /// Does nothing: without experts all matrices are packed alike.
    pub fn pack(_: &mut Report, _: &mut Cuda, _: &Checkpoint) -> Result<(), WeightsError> {
        Ok(())
    }
}

/// Distance that the self-check before serving allows from golden log-probabilities, which are of
/// F32 arithmetic. Here operands of products are rounded to F16, a relative 2^-12 each, in every
/// layer, and a router beside a near tie may choose another expert: a logit then moves by some
/// thousandths of the largest one. Logits of tokens of very small probability are large sums with
/// the other sign and move by more, which changes no distribution.
pub const GOLDEN_TOLERANCE: Tolerance = Tolerance {
    relative: 5e-3,
    floor: -7.0,
};

/// Elements before and after every array, which no kernel may touch.
const GUARD: usize = 4096;
/// Byte that fills guards and outputs: four of them are a NaN, so unwritten results are found.
const POISON: u8 = 0xff;

impl Probe for Cuda {
    fn given(&mut self, width: usize, values: &[f32]) -> Result<Tensor, DeviceError> {
        let mut tensor = self.empty(values.len() / width, width)?;
        let written = tensor.values.upload(GUARD, values, &self.queue.stream);
        written.map_err(refused)?;
        Ok(tensor)
    }

    fn empty(&mut self, rows: usize, width: usize) -> Result<Tensor, DeviceError> {
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
            rounded: false,
            guard: GUARD,
        })
    }

    fn matrix_of(&mut self, stored: &Stored) -> Result<Matrix, DeviceError> {
        let panels = Panels::stacked(std::slice::from_ref(stored));
        Ok(Matrix {
            n: panels.n,
            k: panels.k,
            storage: panels.storage,
            bytes: self.filled(&panels.bytes)?,
        })
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

    fn rows_seen(&mut self, tensor: &Tensor, rows: &[usize]) -> Result<Vec<f32>, DeviceError> {
        self.passed()?;
        let values = &tensor.values;
        let width = tensor.width / if tensor.rounded { 2 } else { 1 };
        let stream = &self.queue.stream;
        let mut found = vec![0.0f32; rows.len() * width];
        let mut rest = &mut found[..];
        for run in rows.chunk_by(|row, next| row + 1 == *next) {
            let (to, after) = rest.split_at_mut(run.len() * width);
            rest = after;
            let read = values.download(GUARD + run[0] * width, to, stream);
            read.map_err(refused)?;
        }
        let mut guards = [0.0f32; 2 * GUARD];
        let (before, after) = guards.split_at_mut(GUARD);
        let read = values.download(0, before, stream);
        let read = read.and_then(|()| values.download(values.len() - GUARD, after, stream));
        read.map_err(refused)?;
        let poison = u32::from_ne_bytes([POISON; 4]);
        match guards.iter().all(|element| element.to_bits() == poison) {
            true if tensor.rounded => Ok(wide(&found)),
            true => Ok(delta::widened(self, tensor, rows, found)),
            false => Err(DeviceError::Failed(
                "memory around an array was written".into(),
            )),
        }
    }

    fn seen(&mut self, tensor: &Tensor) -> Result<Vec<f32>, DeviceError> {
        self.rows_seen(tensor, &(0..tensor.rows).collect::<Vec<_>>())
    }
}

impl<A: Launchers> ProbeAttention<A> for Cuda {
    fn cached(&mut self, cache: &KvCache<A>) -> Result<Vec<f32>, DeviceError> {
        let all = cache.region.pool.download(&self.queue.stream);
        let all = all.map_err(refused)?;
        let wide = all.as_chunks().0.iter();
        let wide = wide.map(|of| f32::from_bits(u32::from(u16::from_ne_bytes(*of)) << 16));
        Ok(wide.collect())
    }
}

/// Values of pairs of F16, each widened to an F32.
fn wide(pairs: &[f32]) -> Vec<f32> {
    let pairs = pairs.iter().map(|pair| pair.to_bits());
    let halves = pairs.flat_map(|pair| [pair as u16, (pair >> 16) as u16]);
    halves.map(f32_of_f16).collect()
}

/// The value of an IEEE 754 binary16 number.
fn f32_of_f16(bits: u16) -> f32 {
    let (exponent, fraction) = (u32::from(bits >> 10 & 0x1f), u32::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction as f32 / (1 << 24) as f32,
        0x1f => f32::from_bits(0xff << 23 | fraction << 13),
        _ => f32::from_bits((exponent + 127 - 15) << 23 | fraction << 13),
    };
    if bits >> 15 == 0 { size } else { -size }
}

/// Compares every op of the device with the CPU's on every case.
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

/// Reports the first byte of `found` that differs from `wanted`.
fn compare_bytes(report: &mut Report, case: &str, found: &[u8], wanted: &[u8]) {
    assert_eq!(found.len(), wanted.len());
    let first = found.iter().zip(wanted).position(|(a, b)| a != b);
    let differing = format!("bytes from {} on", first.unwrap_or(0));
    let about = ("pack", case, "cuda = host");
    report.same(about, &differing, first.is_none());
}

/// The first layer with experts, if there is one.
fn routed() -> Option<Site> {
    Layout::whole().sites(Role::Router).next()
}

/// Loads matrices that are stacked to one, and reports the result under the role's name.
fn loaded(
    report: &mut Report,
    cuda: &mut Cuda,
    sources: &[MatrixSource<'_>],
    role: Role,
) -> Result<(), WeightsError> {
    let found = cuda.load_matrix(sources)?;
    let parts = sources.iter().map(MatrixSource::read);
    let wanted = Panels::stacked(&parts.collect::<Result<Vec<_>, _>>()?);
    let found = contents(cuda, &found.bytes)?;
    compare_bytes(report, &format!("{role:?}"), &found, &wanted.bytes);
    Ok(())
}

fn contents(cuda: &Cuda, buffer: &DeviceBuf<u8>) -> Result<Vec<u8>, DeviceError> {
    let mut bytes = vec![0; buffer.len()];
    buffer
        .download(0, &mut bytes, &cuda.queue.stream)
        .map_err(refused)?;
    Ok(bytes)
}
