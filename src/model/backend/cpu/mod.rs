//! The reference backend: F32 throughout, any host.
//!
//! Simplicity and correctness come before speed: every reduction is the plain sum in index order,
//! so the bits of a row depend on nothing but its sequence. Threads split rows, heads or columns,
//! never a sum.

mod attention;
mod clock;
mod delta;
mod elementwise;
mod experts;
mod kv_fp8;
mod lanes;
mod matrix;
mod nvfp4;
pub(crate) mod pieces;
pub(crate) mod pool;
pub(crate) mod share;
// A target of every group of operations.
#[cfg(all(test, has = "delta", has = "experts"))]
mod mamba_tests;
#[cfg(test)]
mod tests;
mod wide;

use std::ops::Range;
use std::sync::Arc;

use crate::backend::budget::Budget;
use crate::backend::host_memory;
use crate::backend::mapping::Mapping;
use crate::ops::{
    Batch, Copied, Dense, Device, Draft, Ends, Footprint, Gate, HostMemory, RANKED, Side,
    norm_and_rank_by,
};
use crate::shapes;
use crate::target::{EMBEDDING_SCALE, Format, HOST_RESERVE, LOGIT_CAP, TOP_K};
use crate::weights::{MatrixSource, Reader, VectorSource, WeightsError};
use host::threads;
use step::executor::{DeviceError, Patience};
use step::ranking;

use attention::Ropes;
pub use attention::as_cached;
pub use matrix::Matrix;
use pieces::Pieces;
use pool::Pool;

/// Multiply-adds from which on a task is worth a thread of its own.
const TASK_WORK: usize = 1 << 14;
/// Tasks per thread of one operation, so that a thread that comes late takes fewer.
const TASKS_PER_THREAD: usize = 4;
/// Rows for which a tensor has memory before it grows.
const ROWS_AT_FIRST: usize = 64;
/// Largest number of threads of `Cpu::default`; more do not help one stream of a small model.
pub const THREADS_MAX: usize = 8;

/// The host's processor.
pub struct Cpu {
    pub(crate) pool: Pool,
    ropes: Ropes,
    experts: experts::Scratch,
    delta: delta::Scratch,
    /// Results of `linear_add` before their addition.
    sums: Tensor,
    /// Bytes of all matrices loaded.
    matrix_bytes: u64,
    /// The mapped file of weights that are used in place.
    mapping: Option<Arc<Mapping>>,
    budget: Budget,
    host_copies: pieces::HostCopies,
    /// Factor of blocks' contributions, which are then computed apart and added, as several ranks
    /// would. None: computed in place.
    #[cfg(any(test, feature = "testing"))]
    pub contributions: Option<f32>,
}

/// Activations `[rows, width]`.
#[derive(Debug, Default)]
pub struct Tensor {
    pub rows: usize,
    pub(crate) width: usize,
    pub(crate) values: Vec<f32>,
}

impl Tensor {
    /// `values [rows, width]`, row by row.
    pub fn of(width: usize, values: Vec<f32>) -> Tensor {
        assert!(values.len().is_multiple_of(width));
        Tensor {
            rows: values.len() / width,
            width,
            values,
        }
    }

    /// Sets the shape; the content is unspecified.
    pub(crate) fn shape(&mut self, rows: usize, width: usize) -> &mut [f32] {
        (self.rows, self.width) = (rows, width);
        self.values.resize(rows * width, 0.0);
        &mut self.values
    }

    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.width..][..self.width]
    }

    fn rows_mut(&mut self) -> std::slice::ChunksExactMut<'_, f32> {
        self.values.chunks_exact_mut(self.width)
    }
}

impl Cpu {
    /// A backend of `threads` threads, the caller of the operations included.
    pub fn new(threads: usize) -> Cpu {
        Cpu {
            pool: Pool::new(threads),
            ropes: Ropes::default(),
            experts: experts::Scratch::default(),
            delta: delta::Scratch::default(),
            sums: Tensor::default(),
            matrix_bytes: 0,
            mapping: None,
            budget: Budget::default(),
            host_copies: pieces::HostCopies::default(),
            #[cfg(any(test, feature = "testing"))]
            contributions: None,
        }
    }

    /// One that takes its memory of a simulated host.
    #[cfg(test)]
    pub fn on(host: &crate::backend::simulated::Host) -> Cpu {
        Cpu {
            budget: host.budget.clone(),
            ..Cpu::new(1)
        }
    }
}

impl Default for Cpu {
    /// One thread per core, up to a limit.
    fn default() -> Cpu {
        Cpu::new(threads::cores().min(THREADS_MAX))
    }
}

impl Cpu {
    fn matrix(&mut self, parts: &[MatrixSource<'_>]) -> Result<Matrix, WeightsError> {
        let matrix = match MatrixSource::packed(parts)? {
            None => repacked(parts)?,
            Some(stack) => {
                let n = parts.iter().map(|part| part.shape().0).sum();
                Matrix::of_packed(stack, [n, parts[0].shape().1])?
            }
        };
        let bias = parts.iter().map(|part| part.bias(0..part.shape().0));
        let bias = bias.collect::<Result<Vec<_>, _>>()?.concat();
        let matrix = matrix.biased(&bias);
        self.mapping = self.mapping.take().or_else(|| matrix.mapping().cloned());
        self.matrix_bytes += matrix.bytes();
        Ok(matrix)
    }

    /// Fails if another process is about to change the mapped file: results of its weights must not
    /// be used then.
    fn check_weights(&self) -> Result<(), DeviceError> {
        let checked = self
            .mapping
            .as_ref()
            .map_or(Ok(()), |mapping| mapping.check());
        checked.map_err(DeviceError::Weights)
    }
}

/// One matrix from parts of a checkpoint, which are repacked into panels.
fn repacked(parts: &[MatrixSource<'_>]) -> Result<Matrix, WeightsError> {
    let stored = parts.iter().map(MatrixSource::read);
    Ok(Matrix::of_stored(&stored.collect::<Result<Vec<_>, _>>()?))
}

/// Facts on how this device reads packed weights. A change of what `pack` returns needs another
/// version of the layout.
pub const READER: Reader = Reader {
    layout: 1,
    maps: true,
};

/// Stacks matrices in the layout of memory, whether of experts or not.
///
/// # Errors
/// Errors of `load_matrix`.
pub fn pack(parts: &[MatrixSource<'_>], _: bool) -> Result<(String, Vec<u8>), WeightsError> {
    let matrix = repacked(parts)?;
    let (storage, bytes) = matrix.stored();
    Ok((storage.to_string(), bytes.to_vec()))
}

/// Largest number of bytes that these matrices take in memory: 0 for mapped ones.
fn bytes_of<'a>(parts: impl IntoIterator<Item = &'a MatrixSource<'a>>) -> u64 {
    let bytes = |part: &MatrixSource<'_>| {
        let (n, k) = part.shape();
        Cpu::matrix_bytes_max(n, k, part.format())
    };
    let own = parts.into_iter().filter(|part| !part.is_mapped());
    own.map(bytes).sum()
}

/// Splits `count` equal items of `work` multiply-adds each into tasks of the pool.
pub(crate) fn split(pool: &mut Pool, count: usize, work: usize, run: impl Fn(Range<usize>) + Sync) {
    let tasks = (count * work / TASK_WORK)
        .clamp(1, pool.threads() * TASKS_PER_THREAD)
        .min(count);
    if tasks <= 1 {
        return run(0..count);
    }
    pool.run(tasks, |task| {
        run(count * task / tasks..count * (task + 1) / tasks)
    });
}

impl Device for Cpu {
    type Tensor = Tensor;
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Host = Vec<f32>;
    type Pool = Pieces;

    const RANKS: bool = false;
    /// No limit on the time of a step: a slow host is no fault.
    const PATIENCE: Option<Patience> = None;

    fn matrix_bytes_max(n: usize, k: usize, format: Format) -> u64 {
        matrix::bytes_max(n, k, format == Format::Bf16)
    }

    fn matrix_bytes(&self) -> u64 {
        self.matrix_bytes
    }

    fn available(&self) -> Option<u64> {
        host_memory::available()
    }

    fn load_matrix(&mut self, parts: &[MatrixSource<'_>]) -> Result<Matrix, WeightsError> {
        self.budget.check(bytes_of(parts))?;
        self.matrix(parts)
    }

    fn load_vector(&mut self, part: &VectorSource<'_>) -> Result<Vec<f32>, WeightsError> {
        let values = part.read_f32()?;
        self.budget.check(size_of_val(&values[..]) as u64)?;
        Ok(values)
    }

    fn zeros(&mut self, elements: usize) -> Result<Vec<f32>, DeviceError> {
        Ok(vec![0.0; elements])
    }

    fn pool(&self, pieces: usize, bytes: usize) -> Result<Pieces, DeviceError> {
        self.pieces(pieces, bytes)
    }

    fn take_host_memory(&mut self, bytes: usize) -> Result<(), DeviceError> {
        self.take_bytes(bytes)
    }

    fn host_bytes(&mut self, range: Range<usize>) -> &mut [u8] {
        self.host_copies.range(range)
    }

    fn copy(&mut self, copies: &[Copied<'_, Pieces>], to: Side) -> Result<(), DeviceError> {
        self.host_copies.copy(copies, to);
        Ok(())
    }

    fn copied(&mut self) -> Result<u64, DeviceError> {
        Ok(self.host_copies.copied())
    }

    fn tensor(&self, rows: usize, width: usize) -> Result<Tensor, DeviceError> {
        self.budget
            .check((rows * width * size_of::<f32>()) as u64)?;
        Ok(Tensor {
            rows: 0,
            width,
            values: Vec::with_capacity(rows.min(ROWS_AT_FIRST) * width),
        })
    }

    /// The buffer starts empty and grows as it is read into: most hosts have less memory than rows
    /// of logits could take.
    fn host(&self, _: usize) -> Result<Vec<f32>, DeviceError> {
        Ok(Vec::new())
    }

    /// Nothing to do: operations read the batch itself.
    fn begin(&mut self, _: &Batch) {}

    fn read(
        &mut self,
        x: &Tensor,
        rows: Range<usize>,
        out: &mut Vec<f32>,
    ) -> Result<(), DeviceError> {
        out.clear();
        out.extend_from_slice(&x.values[rows.start * x.width..rows.end * x.width]);
        self.check_weights()
    }

    #[cfg(any(test, feature = "testing"))]
    fn gather_add(
        &mut self,
        residual: &mut Tensor,
        contribute: impl FnOnce(&mut Cpu, &mut Tensor),
    ) {
        let Some(factor) = self.contributions else {
            return contribute(self, residual);
        };
        let mut own = Tensor::default();
        own.shape(residual.rows, residual.width);
        contribute(self, &mut own);
        let pairs = residual.values.iter_mut().zip(&own.values);
        pairs.for_each(|(residual, own)| *residual += factor * own);
    }

    #[cfg(any(test, feature = "testing"))]
    fn gather(&mut self, out: &mut Tensor, contribute: impl FnOnce(&mut Cpu, &mut Tensor)) {
        contribute(self, out);
        let factor = self.contributions.unwrap_or(1.0);
        out.values.iter_mut().for_each(|out| *out *= factor);
    }
}

/// Memory beside weights, caches and activations: none, since no driver takes memory, and
/// operations allocate buffers as they run.
impl Footprint for Cpu {
    const RESERVE_BYTES: u64 = match HOST_RESERVE {
        Some(bytes) => bytes,
        None => 0,
    };
    const CONTEXT_BYTES: u64 = 0;
    const GRAPH_LAYER_BYTES: u64 = 0;
    const LOCKED_BYTES: u64 = 0;

    fn buffer_bytes(bytes: u64) -> u64 {
        bytes
    }

    fn workspace() -> impl Iterator<Item = usize> {
        std::iter::empty()
    }

    fn host_memory() -> HostMemory {
        host_memory::memory()
    }
}

impl Draft for Cpu {}

impl Cpu {
    /// `linear` with the first `n` rows of a matrix.
    pub fn linear_of_first(&mut self, x: &Tensor, w: &Matrix, n: usize, out: &mut Tensor) {
        assert_eq!(x.width, w.k);
        let out = out.shape(x.rows, n);
        matrix::linear_of_first(&mut self.pool, &x.values, w, n, out);
    }
}

impl Dense for Cpu {
    fn embed(&mut self, table: &Matrix, batch: &Batch, out: &mut Tensor) {
        out.shape(batch.rows(), table.k);
        for (row, &token) in out.rows_mut().zip(batch.tokens()) {
            table.row(token as usize, row);
            row.iter_mut().for_each(|x| *x *= EMBEDDING_SCALE);
        }
    }

    fn rms_norm(&mut self, x: &Tensor, w: &Vec<f32>, out: &mut Tensor, adds: Option<f32>) {
        match adds {
            Some(_) => assert_eq!((out.rows, out.width), (x.rows, x.width)),
            None => out.shape(x.rows, x.width).fill(0.0),
        }
        for (row, out) in out.rows_mut().enumerate() {
            elementwise::add_rms_norm(x.row(row), w, out);
            if let Some(factor) = adds {
                out.iter_mut().for_each(|out| *out *= factor);
            }
        }
    }

    fn linear(&mut self, x: &Tensor, w: &Matrix, out: &mut Tensor) {
        self.linear_of_first(x, w, w.n, out);
    }

    fn linear_add(&mut self, x: &Tensor, w: &Matrix, residual: &mut Tensor) {
        assert_eq!((residual.rows, residual.width), (x.rows, w.n));
        let mut sums = std::mem::take(&mut self.sums);
        self.linear(x, w, &mut sums);
        let pairs = residual.values.iter_mut().zip(&sums.values);
        pairs.for_each(|(residual, sum)| *residual += sum);
        self.sums = sums;
    }

    fn concat(&mut self, a: &Tensor, b: &Tensor, out: &mut Tensor) {
        assert_eq!((a.rows, a.width), (b.rows, b.width));
        out.shape(a.rows, a.width + b.width);
        for (row, out) in out.rows_mut().enumerate() {
            out[..a.width].copy_from_slice(a.row(row));
            out[a.width..].copy_from_slice(b.row(row));
        }
    }

    fn select(&mut self, x: &Tensor, batch: &Batch, out: &mut Tensor) {
        out.shape(batch.wanted().len(), x.width);
        for (out, &row) in out.rows_mut().zip(batch.wanted()) {
            out.copy_from_slice(x.row(row));
        }
    }

    fn lm_head(
        &mut self,
        residual: &Tensor,
        norm: &Vec<f32>,
        w: &Matrix,
        batch: &Batch,
        out: Ends<'_, Cpu>,
    ) {
        norm_and_rank_by(self, residual, norm, batch, out, |cpu, x, ids, logits| {
            cpu.linear_of_first(x, w, ids, logits);
        });
    }

    fn cap_logits(&mut self, logits: &mut Tensor) {
        let values = logits.values.iter_mut();
        values.for_each(|logit| *logit = LOGIT_CAP * libm::tanhf(*logit / LOGIT_CAP));
    }

    fn relu2(&mut self, x: &mut Tensor) {
        let squared = |x: &mut f32| *x = elementwise::positive(*x).powi(2);
        x.values.iter_mut().for_each(squared);
    }

    fn top_k(&mut self, logits: &Tensor, out: &mut Tensor) {
        out.shape(logits.rows, RANKED);
        for (row, out) in out.rows_mut().enumerate() {
            out.copy_from_slice(&ranking::ranked(logits.row(row), TOP_K));
        }
    }
}

impl<M: shapes::Mlp> Gate<M> for Cpu {
    fn swiglu(&mut self, gate: &Tensor, up: &Tensor, out: &mut Tensor) {
        assert_eq!((gate.width, up.width), (M::INTERMEDIATE, M::INTERMEDIATE));
        assert_eq!(gate.rows, up.rows);
        let out = out.shape(gate.rows, gate.width);
        elementwise::gated(M::ACTIVATION, &gate.values, &up.values, out);
    }
}
