//! The reference backend: F32 throughout, any host.
//!
//! Simple and right before quick: every reduction is the plain sum in index order, so the bits of a
//! row depend on nothing but its sequence. Threads split rows, heads or columns, never a sum.

mod attention;
mod clock;
mod elementwise;
mod gdn;
mod lanes;
mod matrix;
mod moe;
mod nvfp4;
mod pool;
#[cfg(test)]
pub(crate) mod random;
mod share;
#[cfg(test)]
mod tests;
mod wide;

use std::ops::Range;

use crate::backend::budget::Budget;
use crate::backend::host;
use crate::engine::executor::{DeviceError, Patience};
use crate::ops::{Batch, GatedDelta, Ops, RANKED};
use crate::ranking;
use crate::target::{self, Format, TOP_K};
use crate::weights::{MatrixSource, VectorSource, WeightsError};

use attention::{KvCache, Rope};
use gdn::GdnState;
pub use matrix::Matrix;
use moe::{Experts, Routing};
use pool::Pool;
use share::Shared;

/// Multiply-adds that are worth handing to another thread.
const TASK_WORK: usize = 1 << 14;
/// Tasks per thread of one operation, so that a thread that comes late takes fewer.
const TASKS_PER_THREAD: usize = 4;
/// Rows that a tensor has room for before it grows.
const ROWS_AT_FIRST: usize = 64;
/// Threads that `Cpu::default` uses at most; more do not help one stream of a small model.
const THREADS_MAX: usize = 8;

/// The host's processor.
pub struct Cpu {
    pool: Pool,
    rope: Rope,
    moe: moe::Scratch,
    gdn: gdn::Scratch,
    /// Of `linear_add`.
    sums: Tensor,
    /// Of all matrices loaded.
    matrix_bytes: u64,
    budget: Budget,
}

/// Activations `[rows, width]`.
#[derive(Debug, Default)]
pub struct Tensor {
    pub rows: usize,
    width: usize,
    values: Vec<f32>,
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
    fn shape(&mut self, rows: usize, width: usize) -> &mut [f32] {
        (self.rows, self.width) = (rows, width);
        self.values.resize(rows * width, 0.0);
        &mut self.values
    }

    fn row(&self, row: usize) -> &[f32] {
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
            rope: Rope::default(),
            moe: moe::Scratch::default(),
            gdn: gdn::Scratch::default(),
            sums: Tensor::default(),
            matrix_bytes: 0,
            budget: Budget::default(),
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
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Cpu::new(cores.min(THREADS_MAX))
    }
}

impl Cpu {
    fn matrix(&mut self, parts: &[MatrixSource<'_>]) -> Result<Matrix, WeightsError> {
        let values = parts
            .iter()
            .map(MatrixSource::read_f32)
            .collect::<Result<Vec<_>, _>>()?;
        let matrix = Matrix::new(parts[0].shape().1, &values);
        self.matrix_bytes += matrix.bytes();
        Ok(matrix)
    }

    /// Norms and rotates heads in place, one every `stride` elements of a row.
    fn norm_rope(&mut self, x: &mut Tensor, stride: usize, w: &[f32], batch: &Batch) {
        self.rope.cover(batch);
        let (rope, width, rows) = (&self.rope, x.width, x.rows);
        let values = Shared::new(&mut x.values);
        split(&mut self.pool, rows, 4 * width, |rows| {
            for row in rows {
                // SAFETY: each row belongs to one task.
                let row_values = unsafe { values.range(row * width..(row + 1) * width) };
                for head in row_values.chunks_exact_mut(stride) {
                    rope.norm_and_rotate(&mut head[..target::HEAD_DIM], w, batch.positions()[row]);
                }
            }
        });
    }
}

/// What matrices of such parts take, at most.
fn bytes_of(parts: &[MatrixSource<'_>]) -> u64 {
    let bytes = |part: &MatrixSource<'_>| {
        let (n, k) = part.shape();
        Cpu::matrix_bytes_max(n, k, part.format())
    };
    parts.iter().map(bytes).sum()
}

/// Splits `count` equal items of `work` multiply-adds each over the pool.
fn split(pool: &mut Pool, count: usize, work: usize, run: impl Fn(Range<usize>) + Sync) {
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

impl Ops for Cpu {
    type Tensor = Tensor;
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Experts = Experts;
    type Routing = Routing;
    type KvCache = KvCache;
    type GdnState = GdnState;
    type Host = Vec<f32>;

    const RANKS: bool = false;
    const CELL_BYTES: usize = size_of::<f32>();
    /// A slow host is no fault.
    const PATIENCE: Option<Patience> = None;

    fn matrix_bytes_max(n: usize, k: usize, format: Format) -> u64 {
        matrix::bytes_max(n, k, format == Format::Bf16)
    }

    fn matrix_bytes(&self) -> u64 {
        self.matrix_bytes
    }

    fn room(&self) -> Option<u64> {
        host::room()
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

    fn load_experts(&mut self, parts: &[[MatrixSource<'_>; 3]]) -> Result<Experts, WeightsError> {
        self.budget.check(bytes_of(parts.as_flattened()))?;
        let mut experts = Experts::stored_as(parts[0][0].format().is_nvfp4());
        for [gate, up, down] in parts {
            experts.gate_up.push(self.matrix(&[*gate, *up])?);
            experts.down.push(self.matrix(&[*down])?);
        }
        Ok(experts)
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

    fn routing(&self) -> Result<Routing, DeviceError> {
        Ok(Routing::default())
    }

    /// Grows with what is read: most hosts have less memory than rows of logits could take.
    fn host(&self, _: usize) -> Result<Vec<f32>, DeviceError> {
        Ok(Vec::new())
    }

    fn kv_cache(&self, pages: usize) -> Result<KvCache, DeviceError> {
        self.budget.check(KvCache::bytes(pages))?;
        Ok(KvCache::new(pages))
    }

    fn gdn_state(&self) -> Result<GdnState, DeviceError> {
        self.budget.check(GdnState::BYTES)?;
        Ok(GdnState::new())
    }

    /// Nothing: operations read the batch where it is.
    fn begin(&mut self, _: &Batch) {}

    fn embed(&mut self, table: &Matrix, batch: &Batch, out: &mut Tensor) {
        out.shape(batch.rows(), table.k);
        for (row, &token) in out.rows_mut().zip(batch.tokens()) {
            table.row(token as usize, row);
        }
    }

    fn rms_norm(&mut self, x: &Tensor, w: &Vec<f32>, out: &mut Tensor) {
        out.shape(x.rows, x.width);
        for (row, out) in out.rows_mut().enumerate() {
            elementwise::rms_norm(x.row(row), w, out);
        }
    }

    fn linear(&mut self, x: &Tensor, w: &Matrix, out: &mut Tensor) {
        assert_eq!(x.width, w.k);
        let out = out.shape(x.rows, w.n);
        matrix::linear(&mut self.pool, &x.values, w, out);
    }

    fn linear_add(&mut self, x: &Tensor, w: &Matrix, residual: &mut Tensor) {
        assert_eq!((residual.rows, residual.width), (x.rows, w.n));
        let mut sums = std::mem::take(&mut self.sums);
        self.linear(x, w, &mut sums);
        let pairs = residual.values.iter_mut().zip(&sums.values);
        pairs.for_each(|(residual, sum)| *residual += sum);
        self.sums = sums;
    }

    fn store_kv(
        &mut self,
        q: &mut Tensor,
        k: &mut Tensor,
        v: &Tensor,
        norms: [&Vec<f32>; 2],
        cache: &mut KvCache,
        batch: &Batch,
    ) {
        self.norm_rope(q, 2 * target::HEAD_DIM, norms[0], batch);
        self.norm_rope(k, target::HEAD_DIM, norms[1], batch);
        for row in 0..batch.rows() {
            let position = batch.positions()[row];
            let page = batch.pages_of(row)[position / target::PAGE];
            cache.store(page, position % target::PAGE, k.row(row), v.row(row));
        }
    }

    fn attend(&mut self, q: &Tensor, cache: &KvCache, batch: &Batch, out: &mut Tensor) {
        out.shape(q.rows, target::HEADS * target::HEAD_DIM);
        let longest = batch
            .positions()
            .iter()
            .max()
            .map_or(0, |position| position + 1);
        let out = Shared::new(&mut out.values);
        let work = 2 * longest * target::HEAD_DIM;
        split(&mut self.pool, q.rows * target::HEADS, work, |items| {
            for item in items {
                let (row, head) = (item / target::HEADS, item % target::HEADS);
                let range = item * target::HEAD_DIM..(item + 1) * target::HEAD_DIM;
                // SAFETY: each row and head belongs to one task.
                let out = unsafe { out.range(range) };
                let query = &q.row(row)[head * 2 * target::HEAD_DIM..][..target::HEAD_DIM];
                let (pages, position) = (batch.pages_of(row), batch.positions()[row]);
                attention::attend(query, cache, head, pages, position, out);
                let gate = &q.row(row)[(2 * head + 1) * target::HEAD_DIM..][..target::HEAD_DIM];
                elementwise::mul_sigmoid(out, gate);
            }
        });
    }

    fn conv_silu(
        &mut self,
        x: &Tensor,
        w: &Vec<f32>,
        state: &mut GdnState,
        batch: &Batch,
        out: &mut Tensor,
    ) {
        out.shape(x.rows, x.width).copy_from_slice(&x.values);
        gdn::conv_silu(&mut self.pool, out, w, state, batch);
    }

    fn gated_delta(
        &mut self,
        input: GatedDelta<'_, Cpu>,
        state: &mut GdnState,
        batch: &Batch,
        out: &mut Tensor,
    ) {
        gdn::gated_delta(&mut self.pool, &mut self.gdn, input, state, batch, out);
    }

    fn gated_rms_norm(&mut self, x: &mut Tensor, w: &Vec<f32>, z: &Tensor) {
        for (row, x) in x.rows_mut().enumerate() {
            let heads = x.chunks_exact_mut(target::GDN_VALUE_DIM);
            for (x, z) in heads.zip(z.row(row).chunks_exact(target::GDN_VALUE_DIM)) {
                elementwise::gated_rms_norm(x, w, z);
            }
        }
    }

    fn route(&mut self, logits: &Tensor, routing: &mut Routing) {
        routing.fill(&logits.values);
    }

    fn experts(&mut self, x: &Tensor, routing: &Routing, experts: &Experts, residual: &mut Tensor) {
        moe::experts(&mut self.pool, &mut self.moe, x, routing, experts, residual);
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

    fn top_k(&mut self, logits: &Tensor, out: &mut Tensor) {
        out.shape(logits.rows, RANKED);
        for (row, out) in out.rows_mut().enumerate() {
            out.copy_from_slice(&ranking::ranked(logits.row(row), TOP_K));
        }
    }

    fn read(
        &mut self,
        x: &Tensor,
        rows: Range<usize>,
        out: &mut Vec<f32>,
    ) -> Result<(), DeviceError> {
        out.clear();
        out.extend_from_slice(&x.values[rows.start * x.width..rows.end * x.width]);
        Ok(())
    }
}
