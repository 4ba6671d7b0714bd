//! Device: storage, the order of operations, and copies to the host.

use std::ops::{Deref, Range};
use std::sync::mpsc::Receiver;

use super::Batch;
use crate::target::{Format, STATES};
use crate::weights::{MatrixSource, VectorSource, WeightsError};
use step::executor::{DeviceError, Patience};
use step::transfer::{PIECE_ALIGN, Sum, at_once, sum};

/// Sequence of operations that a backend may record and replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Forward pass with one row of each sequence.
    Decode,
    /// Forward pass with drafts: up to `ONE_BY_ONE` rows of each sequence, all logits wanted.
    Verify,
    /// Multi-token-prediction (MTP) layer after `Decode`.
    Draft,
    /// Multi-token-prediction layer after `Verify`, with the logits of some of the rows wanted.
    DraftVerified,
    /// Multi-token-prediction layer after a prediction, for a row of each sequence.
    DraftOn,
}

impl Program {
    /// Whether the program runs on batches of this shape.
    pub fn takes(self, batch: &Batch) -> bool {
        match self {
            Program::Decode | Program::Draft | Program::DraftOn => batch.is_decode(),
            Program::Verify => batch.is_short() && batch.wants_all(),
            Program::DraftVerified => batch.is_short(),
        }
    }
}

/// One layer's part of every piece of a pool. These parts are contiguous in the pool, since an
/// operation reads one layer's part of many pieces.
#[derive(Clone, Debug)]
pub struct PoolRegion<P> {
    pub pool: P,
    /// Bytes from the pool's start to the part of the first piece.
    pub at: usize,
    /// Bytes from the part of a piece to the part of the next piece.
    pub stride: usize,
}

impl<P> PoolRegion<P> {
    /// Range in the pool of the layer's part of a piece.
    pub fn range(&self, piece: usize) -> Range<usize> {
        let start = self.at + piece * self.stride;
        start..start + self.stride
    }
}

/// Copy of a piece: the piece's part in each of the regions, and the copy's offset in host memory,
/// where the parts follow each other.
#[derive(Clone, Copy, Debug)]
pub struct Copied<'a, P> {
    pub regions: &'a [PoolRegion<P>],
    pub piece: usize,
    /// Offset of the copy in host memory, bytes.
    pub at: usize,
}

/// Side to which a piece is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Host,
    Device,
}

/// A device that has a model's numbers and computes on them.
pub trait Device {
    /// Activations `[rows, width]`, F32 or the backend's activation type.
    type Tensor;
    /// Weights `[N, K]` in the backend's layout.
    type Matrix;
    /// Weights `[N]`.
    type Vector;
    /// Host memory that `read` fills; derefs to the elements of the last `read`.
    type Host: Deref<Target = [f32]>;
    /// Memory of pieces of one size; clones share the memory.
    type Pool: Clone;

    /// Whether the device ranks rows of logits, because copying them to the host costs more.
    const RANKS: bool;
    /// Longest time of a step, or of a `read` after a step.
    const PATIENCE: Option<Patience>;

    /// Largest number of bytes that a matrix `[n, k]` stored as `format` takes once it is loaded.
    fn matrix_bytes_max(n: usize, k: usize, format: Format) -> u64
    where
        Self: Sized;
    /// Bytes of all matrices loaded so far.
    fn matrix_bytes(&self) -> u64;
    /// Bytes of the device's memory that may be taken in all, as of the opening of the device; none
    /// if the system does not say.
    fn available(&self) -> Option<u64>;

    /// Loads matrices with the same `K`, stacked along `N` in the order given.
    ///
    /// # Errors
    /// `WeightsError` when the checkpoint cannot be read or holds a value that is not finite.
    fn load_matrix(&mut self, parts: &[MatrixSource<'_>]) -> Result<Self::Matrix, WeightsError>;
    /// Loads a vector. `# Errors` as `load_matrix`.
    fn load_vector(&mut self, part: &VectorSource<'_>) -> Result<Self::Vector, WeightsError>;
    /// A vector of zeros.
    ///
    /// # Errors
    /// Too little memory.
    fn zeros(&mut self, elements: usize) -> Result<Self::Vector, DeviceError>;

    /// Adds a block's contribution to the residual stream: `residual[r] += sum over ranks of c[r]`,
    /// where `contribute` adds `c` to a tensor. Heads, columns and experts of a block are divided
    /// among ranks, so that each rank has a part of every sum; biases belong to the first rank. A
    /// rank that is alone has the whole sum, and adds it to the residual stream where it is
    /// computed.
    fn gather_add(
        &mut self,
        residual: &mut Self::Tensor,
        contribute: impl FnOnce(&mut Self, &mut Self::Tensor),
    ) {
        contribute(self, residual);
    }

    /// Leaves a block's contribution in `out`, for a norm of the whole contribution:
    /// `out[r] = sum over ranks of c[r]`, where `contribute` leaves `c` in a tensor.
    fn gather(
        &mut self,
        out: &mut Self::Tensor,
        contribute: impl FnOnce(&mut Self, &mut Self::Tensor),
    ) {
        contribute(self, out);
    }

    /// Memory of `pieces` pieces of `bytes` bytes each, all bits zero.
    fn pool(&self, pieces: usize, bytes: usize) -> Result<Self::Pool, DeviceError>;
    /// Zero states of one layer with memory of their own, `bytes` each; states do not touch.
    fn states(&self, bytes: usize) -> Result<PoolRegion<Self::Pool>, DeviceError> {
        let (at, stride) = (PIECE_ALIGN, bytes + PIECE_ALIGN);
        let pool = self.pool(STATES, stride)?;
        Ok(PoolRegion { pool, at, stride })
    }
    /// Takes the host memory that pieces are copied to and from, once.
    fn take_host_memory(&mut self, bytes: usize) -> Result<(), DeviceError>;
    /// Bytes of the host memory that no running copy touches.
    ///
    /// # Panics
    /// If the range is not in the host memory.
    fn host_bytes(&mut self, range: Range<usize>) -> &mut [u8];
    /// Starts checksums of ranges of the host memory, as [`Executor::sums`] does.
    ///
    /// [`Executor::sums`]: step::executor::Executor::sums
    fn sums(&mut self, ranges: Vec<Range<usize>>) -> Receiver<Vec<Sum>> {
        let sums = ranges.into_iter().map(|range| sum(self.host_bytes(range)));
        at_once(sums.collect())
    }
    /// Starts to write bytes to a range of the host memory, as [`Executor::fill`] does.
    ///
    /// [`Executor::fill`]: step::executor::Executor::fill
    fn fill(&mut self, range: Range<usize>, bytes: Vec<u8>) -> Receiver<()> {
        self.host_bytes(range).copy_from_slice(&bytes);
        at_once(())
    }
    /// Starts to read a range of the host memory, as [`Executor::copy_out`] does.
    ///
    /// [`Executor::copy_out`]: step::executor::Executor::copy_out
    fn copy_out(&mut self, range: Range<usize>) -> Receiver<Vec<u8>> {
        let bytes = self.host_bytes(range).to_vec();
        at_once(bytes)
    }
    /// Starts copies of pieces, after all operations so far; copies end in the order in which they
    /// are started. Later operations do not wait for them.
    ///
    /// # Errors
    /// The device failed; likewise in the functions below.
    ///
    /// # Panics
    /// If a range is not in the memory.
    fn copy(&mut self, copies: &[Copied<'_, Self::Pool>], to: Side) -> Result<(), DeviceError>;
    /// Number of copies that have ended since the start.
    fn copied(&mut self) -> Result<u64, DeviceError>;

    /// Storage for activations of at most `rows` rows of `width` elements.
    fn tensor(&self, rows: usize, width: usize) -> Result<Self::Tensor, DeviceError>;
    /// Buffer of the host for `read` of at most `len` elements.
    fn host(&self, len: usize) -> Result<Self::Host, DeviceError>;

    /// Forbids to take memory from here on: a later request is a programming error and panics.
    /// Returns the bytes that the buffers take by then, if the backend knows.
    fn seal(&mut self) -> Option<u64> {
        None
    }

    /// Makes the rows of a step known to the device. Every operation until the next `begin` gets
    /// the same batch, or none, whatever is read in between; the batch is unchanged until a `read`.
    fn begin(&mut self, batch: &Batch);

    /// Runs `operations` on `batch`, which was passed to `begin` and which the program takes: the
    /// same calls on the same storage for a program and a number of rows, whatever else is in the
    /// batch. A backend may record the calls and replay them.
    fn run(&mut self, _: Program, _: &Batch, operations: impl FnOnce(&mut Self))
    where
        Self: Sized,
    {
        operations(self);
    }

    /// Prepares `run` for batches like this one, without running anything. The record keeps the
    /// addresses of all storage that `operations` use: weights, caches and tensors must stay where
    /// they are, and `run` of this program on so many rows must get the same ones, for as long as
    /// there is a backend. So a program is recorded once for each number of rows.
    ///
    /// # Errors
    /// `DeviceError` when the device cannot record.
    ///
    /// # Panics
    /// If the program is recorded for so many rows already.
    fn record(
        &mut self,
        _: Program,
        _: &Batch,
        _: impl FnOnce(&mut Self),
    ) -> Result<(), DeviceError>
    where
        Self: Sized,
    {
        Ok(())
    }

    /// Number of launches of the recorded program on so many rows, if the backend has recorded it.
    fn launches(&self, _: Program, _rows: usize) -> Option<usize> {
        None
    }

    /// Copies `rows` of `x` to the host, when all operations so far are done.
    fn read(
        &mut self,
        x: &Self::Tensor,
        rows: Range<usize>,
        out: &mut Self::Host,
    ) -> Result<(), DeviceError>;
}
