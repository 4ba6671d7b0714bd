//! The GPU: every operation is one launcher of `ffi/ops.toml`.
//!
//! Activations and recurrent states are F32. KV pages and operands of attention are BF16; other
//! operands of tensor instructions, an expert's addends of a row and rows in cells are F16. Weights
//! are the checkpoint's values, BF16 ones as F16. A call that fails is remembered and reported by
//! the next `read`, as `ops::Device` asks for; until then nothing more is launched. All memory is
//! taken before the first step.

pub mod about;
mod attend;
mod clock;
#[cfg(has = "delta")]
mod delta;
mod dense;
mod draft;
mod failures;
mod footprint;
#[cfg(has = "mlp")]
mod gate;
pub mod jobs;
pub mod load;
pub mod memory;
pub mod packed;
pub mod panels;
pub(crate) mod pieces;
#[cfg(has = "experts")]
mod route;
mod steps;
pub mod storage;

use std::ffi::c_int;
use std::ops::{Deref, Range};
use std::ptr;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use ffi::ops::atlas_stream;
use ffi::{
    CudaError, Device as Gpu, DeviceBuf, Element, Graph, Needed, PinnedBuf, Stream, launched,
};

use crate::blocks::AnyBlock;
use crate::ops::{Batch, Copied, Device, ENDS_MAX, Program, ROWS_MAX, Side};
use crate::shapes::largest;
use crate::target::{
    self, Format, HIDDEN, MAX_SEQUENCES, TOP_K_CHUNKS, TOP_K_PARTS, VOCAB, each_experts, each_mlp,
};
use crate::weights::{MatrixSource, VectorSource, WeightsError};
use step::executor::{DeviceError, Patience};
use step::transfer::Sum;

pub use attend::{KvCache, Launchers};

use draft::DraftBuffers;
use failures::Failures;
use jobs::Wanted;
use load::Loader;
pub use load::READERS;
pub use pieces::copy_threads;
use pieces::{Copies, Pieces};
#[cfg(has = "experts")]
pub use route::Experts;
use steps::Steps;
use storage::{Order, Storage};

/// Stand-ins for the constants of experts, in builds of a model without experts.
#[cfg(not(has = "experts"))]
mod route {
    use ffi::{Device, Stream};
    use step::executor::DeviceError;

    pub const WIDEST_ROW: usize = 0;
    pub const LONGEST: usize = 0;
    pub const OPERAND_BYTES: usize = 0;

    pub struct Workspace;

    impl Workspace {
        pub const BYTES: [usize; 0] = [];

        pub fn new(_: &Device, _: &Stream) -> Result<Workspace, DeviceError> {
            Ok(Workspace)
        }
    }
}

/// Stand-ins for the constants of recurrent layers, in builds of a model without any.
#[cfg(not(has = "delta"))]
mod delta {
    pub const RECORDS: usize = 0;
    pub const ARRIVED: usize = 0;
}

/// GPU that kernels are compiled for, and number of SMs that grids are sized for.
const NEEDED: Needed = Needed {
    compute_capability: target::COMPUTE_CAPABILITY,
    multiprocessors: target::SMS,
    partition: target::PARTITION.is_some(),
};

/// Longest time of a step without a prompt: decoding reads all memory at most once, which takes a
/// GB10 half a second.
const PATIENCE: Duration = Duration::from_secs(4);
/// Factor by which a step with a prompt may take longer. The longest step is a whole prefill at the
/// end of the longest context: of a 35B-A3B with 8192 rows after 122,880 positions, 2.2e14
/// multiplications and additions. At the rates measured on an H200 the step takes 0.4 s; on a GB10,
/// which shares the host's memory, 3 s if the GB10 comes as near to its peak, and a healthy GPU
/// must not be given up.
const PROMPT_PATIENCE: u32 = if target::HOST_RESERVE.is_some() { 3 } else { 1 };
/// Largest number of rows of a step, or of its rows outside of cells, for which kernels that stream
/// keys for few rows are used.
const FEW_ROWS: usize = 64;
/// Rows that are stored together as operands; each expert's rows are padded to a multiple.
const OPERAND_ROWS: usize = 8;
/// Largest number of terms of a product's sum, without products of experts.
const WIDEST: usize = largest(&[2 * HIDDEN, attend::WIDEST, Block::MIXED, WIDEST_MLP]);
/// Inner width of the widest MLP, also of MLPs that run beside experts; 0 without an MLP.
const WIDEST_MLP: usize = most(
    largest(&each_mlp![M => <M as crate::shapes::Mlp>::INTERMEDIATE]),
    largest(&each_experts![E => <E as crate::shapes::Experts>::BESIDE]),
);
/// Elements of a step's widest row: of any operation's tensor, or of a row's results at all of its
/// experts together.
const WIDEST_ROW: usize = largest(&[2 * HIDDEN, Block::WIDEST, route::WIDEST_ROW, WIDEST_MLP]);
/// Blocks of the model.
type Block = AnyBlock<Cuda>;
/// Storages of the matrices of one `norm_linear`, each of which may need another row layout.
const NORMED_STORAGES: usize = 2;
/// Bytes of rows as F16 operands of tensor instructions: rows of the longest sums, or normed rows
/// for `NORMED_STORAGES` layouts.
const ROWS_BYTES: usize =
    2 * ROWS_MAX.next_multiple_of(OPERAND_ROWS) * most(WIDEST, NORMED_STORAGES * HIDDEN);
/// Bytes of `FEW_ROWS` rows in F16, all of which each block of a kernel reads.
const HELD_BYTES: usize = 2 * FEW_ROWS * HIDDEN;
/// Bytes of the operand buffer, which one kernel at a time uses.
const OPERAND_BYTES: usize = largest(&[HELD_BYTES, ROWS_BYTES, route::OPERAND_BYTES]);
/// Bytes that `gated_delta` prepares for a step's cells; while weights are loaded, the weights pass
/// through this memory.
const RECORDS: usize = most(delta::RECORDS, load::RECORDS_MIN);
/// Number of counters of a kernel's blocks: of blocks that have stored their results, for each
/// group of query heads of each tile of few rows; or of blocks that have read their inputs.
const ARRIVED: usize = most(FEW_ROWS * attend::GROUPS, delta::ARRIVED);
// A step of decoding has few rows, so the buffers of `attention` suffice for its splits.
const _: () = assert!(MAX_SEQUENCES <= FEW_ROWS);
/// Number of parts into which `top_k` divides all rows of a step.
const PARTS: usize = ENDS_MAX * TOP_K_CHUNKS * TOP_K_PARTS;

const fn most(a: usize, b: usize) -> usize {
    if a < b { b } else { a }
}

const fn least(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

/// GPU 0 with one stream, bound to the thread that opened it.
pub struct Cuda {
    /// Device handle of the GPU.
    pub device: Gpu,
    /// Bytes of memory that could be taken when the GPU was opened, if known.
    available: Option<u64>,
    /// Stream that operations are launched in.
    pub queue: Queue,
    /// Recorded steps, by program and number of rows.
    graphs: Vec<(Program, usize, Graph)>,
    /// Batches that the operations read.
    pub step: Steps,
    drafts: DraftBuffers,
    copies: Copies,
    /// Loader of weights; None once the first step is recorded.
    loader: Option<Loader>,
    /// Bytes of all matrices loaded so far.
    matrix_bytes: u64,
    attend: attend::Workspace,
    #[cfg_attr(not(has = "experts"), expect(dead_code, reason = "there are none"))]
    experts: route::Workspace,
    /// Counters of blocks, `[FEW_ROWS][GROUPS]`, zero between launches: blocks of a tile of few
    /// rows that have stored their splits; the first counter also blocks that have normed a row or
    /// ranked its logits; or, for each span and key head, blocks that have read their channels.
    arrived: DeviceBuf<u32>,
    /// Records that `gated_delta` prepares for a step's cells; before the first step, rows to
    /// repack.
    records: DeviceBuf<u8>,
    /// Rows of a step in the layout that tensor instructions read.
    operands: DeviceBuf<u8>,
    /// Ids of the ranking of rows of logits, in each of `PARTS`.
    orders: DeviceBuf<u32>,
    /// Sums of exponentials of the logits in each of `PARTS`.
    sums: DeviceBuf<f32>,
}

// Kernels count the elements of a step's rows in 32 bits.
const _: () = assert!(ROWS_MAX * WIDEST_ROW <= i32::MAX as usize);
const _: () = assert!(ENDS_MAX * VOCAB <= i32::MAX as usize);

/// Effect of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Runs,
    Records,
    /// The recorded graph ends here: lists have been written that later kernels may read early,
    /// before earlier launches are done, which kernels do not do across two graphs.
    Recorded,
    /// Operations only set the shapes of their results, because a graph does the computation.
    Replays,
}

/// Stream that operations are launched in, and the failures of launches.
pub struct Queue {
    /// Stream of the operations.
    pub stream: Stream,
    mode: Mode,
    failures: Failures<CudaError>,
}

impl Queue {
    /// Calls a launcher, unless an earlier call failed or a graph does the computation.
    pub(crate) fn launch(
        &mut self,
        op: &'static str,
        launcher: impl FnOnce(*mut atlas_stream) -> c_int,
    ) {
        if self.mode != Mode::Replays && !self.failures.any() {
            assert!(
                self.mode != Mode::Recorded,
                "{op} is behind the end of a graph"
            );
            let code = launcher(self.stream.launcher());
            self.failures.queued(launched(op, code));
        }
    }

    /// Allows no further launch in the graph that is being recorded.
    fn end_graph(&mut self) {
        if self.mode == Mode::Records {
            self.mode = Mode::Recorded;
        }
    }

    /// Waits until all queued work is done.
    fn wait(&mut self) {
        let waited = self.stream.synchronize();
        self.failures.waited(waited);
    }
}

/// Activations `[rows, width]` in F32.
pub struct Tensor {
    /// Number of rows in use.
    pub rows: usize,
    /// Number of elements of a row.
    pub width: usize,
    /// Rows one after another, with a guard before and after all rows.
    pub values: DeviceBuf<f32>,
    /// Whether rows in cells of the step are F16, laid out as in `cuda/tile/head_f16.cuh`.
    pub cells_f16: bool,
    /// Whether all rows are F16, in the first half of the memory; only products read such rows.
    pub rounded: bool,
    /// Elements of each guard, before and after the tensor's own.
    pub guard: usize,
}

/// Weights `[n, k]` in the panels of a storage.
pub struct Matrix {
    /// Number of rows.
    pub n: usize,
    /// Number of columns.
    pub k: usize,
    /// Layout of the matrix in memory.
    pub storage: Storage,
    /// Panels one after another, as `storage` lays them out.
    pub bytes: DeviceBuf<u8>,
}

/// A vector of weights in F32.
pub struct Vector(pub DeviceBuf<f32>);

/// Rows that were read last, in page-locked memory, which the device writes at the full rate of the
/// link.
pub struct Host {
    memory: PinnedBuf<f32>,
    len: usize,
}

impl Deref for Host {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory[..self.len]
    }
}

impl Tensor {
    /// Sets the shape; the content is unspecified.
    pub(crate) fn shape(&mut self, rows: usize, width: usize) -> *mut f32 {
        assert!(rows * width + 2 * self.guard <= self.values.len());
        (self.rows, self.width) = (rows, width);
        (self.cells_f16, self.rounded) = (false, false);
        self.as_mut_ptr()
    }

    pub(crate) fn as_ptr(&self) -> *const f32 {
        assert!(!self.rounded, "rows of F16");
        self.values.as_ptr().wrapping_add(self.guard)
    }

    fn as_mut_ptr(&mut self) -> *mut f32 {
        self.values.as_mut_ptr().wrapping_add(self.guard)
    }

    /// Pointers to rows for a product: F32 rows and memory for operands, or null and F16 rows.
    fn as_factor(&self, operands: &mut DeviceBuf<u8>) -> (*const f32, *mut u8) {
        match self.rounded {
            true => (
                ptr::null(),
                self.values
                    .as_ptr()
                    .wrapping_add(self.guard)
                    .cast_mut()
                    .cast(),
            ),
            false => (self.as_ptr(), operands.as_mut_ptr()),
        }
    }
}

impl Cuda {
    /// Opens GPU 0, which must be the one that this binary is compiled for, and takes the memory
    /// that does not belong to a layer.
    ///
    /// # Errors
    /// Why the GPU cannot be used, and the fix.
    pub fn open() -> Result<Cuda, DeviceError> {
        let device = Gpu::open(&NEEDED).map_err(refused)?;
        let available = memory::available_of(&device)?;
        let stream = Stream::open(&device).map_err(refused)?;
        let mut arrived = memory::buffer(&device, ARRIVED)?;
        arrived.fill_bytes(0, &stream).map_err(refused)?;
        Ok(Cuda {
            available,
            step: Steps::new(&device)?,
            drafts: DraftBuffers::new(&device)?,
            copies: Copies::new(&device)?,
            loader: None,
            matrix_bytes: 0,
            attend: attend::Workspace::new(&device, &stream)?,
            experts: route::Workspace::new(&device, &stream)?,
            arrived,
            records: memory::buffer(&device, RECORDS)?,
            operands: memory::buffer(&device, OPERAND_BYTES)?,
            orders: memory::buffer(&device, PARTS)?,
            sums: memory::buffer(&device, PARTS)?,
            graphs: Vec::new(),
            queue: Queue {
                stream,
                mode: Mode::Runs,
                failures: Failures::default(),
            },
            device,
        })
    }

    fn recorded(&self, program: Program, rows: usize) -> Option<&Graph> {
        let is_it = |graph: &&(Program, usize, Graph)| (graph.0, graph.1) == (program, rows);
        self.graphs.iter().find(is_it).map(|(_, _, graph)| graph)
    }

    /// A buffer of zeros.
    fn zeroed<T: Element>(&self, len: usize) -> Result<DeviceBuf<T>, DeviceError> {
        let mut buffer = memory::buffer(&self.device, len)?;
        buffer.fill_bytes(0, &self.queue.stream).map_err(refused)?;
        Ok(buffer)
    }

    /// A buffer of these values.
    ///
    /// # Errors
    /// Too little memory, or the copy failed.
    pub fn filled<T: Element>(&self, values: &[T]) -> Result<DeviceBuf<T>, DeviceError> {
        let mut buffer = memory::buffer(&self.device, values.len())?;
        buffer
            .upload(0, values, &self.queue.stream)
            .map_err(refused)?;
        Ok(buffer)
    }

    /// Reads matrices into buffers; the device repacks them.
    fn load(
        &mut self,
        matrices: &[Wanted<'_>],
        buffers: &mut [&mut DeviceBuf<u8>],
    ) -> Result<(), WeightsError> {
        let loader = match &mut self.loader {
            Some(loader) => loader,
            none => none.insert(Loader::new(&self.device)?),
        };
        loader.load(matrices, buffers, &mut self.records, &self.queue.stream)
    }
}

pub(crate) fn count(value: usize) -> u32 {
    u32::try_from(value).expect("a step has fewer elements than 2^32")
}

impl Device for Cuda {
    type Tensor = Tensor;
    type Matrix = Matrix;
    type Vector = Vector;
    type Host = Host;
    type Pool = Pieces;

    const RANKS: bool = true;
    const PATIENCE: Option<Patience> = Some(Patience {
        call: PATIENCE,
        prompt: PROMPT_PATIENCE,
    });

    fn matrix_bytes_max(n: usize, k: usize, format: Format) -> u64 {
        Storage::of_format(format).bytes(n, k)
    }

    fn matrix_bytes(&self) -> u64 {
        self.matrix_bytes
    }

    fn available(&self) -> Option<u64> {
        self.available
    }

    fn load_matrix(&mut self, parts: &[MatrixSource<'_>]) -> Result<Matrix, WeightsError> {
        let wanted = Wanted {
            parts: parts.to_vec(),
            order: Order::Stacked,
            storage: Storage::of_format(parts[0].format()),
            to: (0, 0),
        };
        let mut matrix = Matrix {
            n: wanted.rows(),
            k: wanted.columns(),
            storage: wanted.storage,
            bytes: memory::buffer(&self.device, wanted.bytes())?,
        };
        self.load(&[wanted], &mut [&mut matrix.bytes])?;
        self.matrix_bytes += matrix.bytes.bytes() as u64;
        Ok(matrix)
    }

    fn load_vector(&mut self, part: &VectorSource<'_>) -> Result<Vector, WeightsError> {
        Ok(Vector(self.filled(&part.read_f32()?)?))
    }

    fn zeros(&mut self, elements: usize) -> Result<Vector, DeviceError> {
        Ok(Vector(self.zeroed(elements)?))
    }

    fn pool(&self, pieces: usize, bytes: usize) -> Result<Pieces, DeviceError> {
        Ok(Pieces::new(self.zeroed(pieces * bytes)?, bytes))
    }

    fn take_host_memory(&mut self, bytes: usize) -> Result<(), DeviceError> {
        self.copies.take_host_memory(&self.device, bytes)
    }

    fn host_bytes(&mut self, range: Range<usize>) -> &mut [u8] {
        self.copies.host_memory(range)
    }

    fn sums(&mut self, ranges: Vec<Range<usize>>) -> Receiver<Vec<Sum>> {
        self.copies.sums(&ranges)
    }

    fn fill(&mut self, range: Range<usize>, bytes: Vec<u8>) -> Receiver<()> {
        self.copies.fill(range, bytes)
    }

    fn copy_out(&mut self, range: Range<usize>) -> Receiver<Vec<u8>> {
        self.copies.copy_out(range)
    }

    fn copy(&mut self, copies: &[Copied<'_, Pieces>], to: Side) -> Result<(), DeviceError> {
        self.queue_copies(copies, to)
    }

    fn copied(&mut self) -> Result<u64, DeviceError> {
        self.copies_done()
    }

    fn tensor(&self, rows: usize, width: usize) -> Result<Tensor, DeviceError> {
        Ok(Tensor {
            rows: 0,
            width,
            values: memory::buffer(&self.device, rows * width)?,
            cells_f16: false,
            rounded: false,
            guard: 0,
        })
    }

    fn host(&self, len: usize) -> Result<Host, DeviceError> {
        let memory = memory::locked(&self.device, len)?;
        Ok(Host { memory, len: 0 })
    }

    fn seal(&mut self) -> Option<u64> {
        Some(self.device.seal())
    }

    fn begin(&mut self, batch: &Batch) {
        let step = self.step.to_begin(batch);
        if step.begun {
            self.queue.wait();
        }
        if let Some(loader) = &mut self.loader {
            self.queue.failures.waited(loader.finish());
        }
        step.begun = true;
        if self.queue.failures.is_lost() {
            step.lose();
        } else {
            // SAFETY: the stream has passed the previous copy, since `begun` is false only after a
            // wait, and no wait has failed.
            let copied = unsafe { step.begin(batch, &self.queue.stream) };
            self.queue.failures.queued(copied);
        }
    }

    fn run(&mut self, program: Program, batch: &Batch, operations: impl FnOnce(&mut Cuda)) {
        assert!(program.takes(batch));
        let Some(graph) = self.recorded(program, batch.rows()) else {
            return operations(self);
        };
        if !self.queue.failures.any() {
            // SAFETY: the memory that the graph uses belongs to this backend and the one model that
            // it runs, as `record` requires.
            let launched = unsafe { graph.launch(&self.queue.stream) };
            self.queue.failures.queued(launched);
        }
        self.queue.mode = Mode::Replays;
        operations(self);
        self.queue.mode = Mode::Runs;
    }

    fn record(
        &mut self,
        program: Program,
        batch: &Batch,
        operations: impl FnOnce(&mut Cuda),
    ) -> Result<(), DeviceError> {
        assert!(program.takes(batch) && batch.rows() <= ENDS_MAX);
        let is_new = self.recorded(program, batch.rows()).is_none();
        assert!(is_new, "a program is recorded once for a number of rows");
        self.begin(batch);
        self.loader = None;
        let (device, stream) = (self.device.clone(), self.queue.stream.clone());
        self.queue.mode = Mode::Records;
        let graph = Graph::record(&device, &stream, || operations(self));
        self.queue.mode = Mode::Runs;
        self.queue.failures.reported().map_err(refused)?;
        let graph = graph.map_err(refused)?;
        self.graphs.push((program, batch.rows(), graph));
        Ok(())
    }

    fn launches(&self, program: Program, rows: usize) -> Option<usize> {
        self.recorded(program, rows).map(Graph::launches)
    }

    fn read(&mut self, x: &Tensor, rows: Range<usize>, out: &mut Host) -> Result<(), DeviceError> {
        out.len = rows.len() * x.width;
        if self.queue.failures.any() || out.len == 0 {
            return self.passed();
        }
        assert!(rows.end <= x.rows);
        let (from, to) = (x.guard + rows.start * x.width, &mut out.memory[..out.len]);
        // Waits for all earlier operations, and reports their failures.
        let read = x.values.download(from, to, &self.queue.stream);
        self.queue.failures.waited(read);
        self.step.passed();
        self.queue.failures.reported().map_err(refused)
    }
}

impl Cuda {
    /// Waits for all earlier operations.
    ///
    /// # Errors
    /// The first failure of an operation.
    pub fn passed(&mut self) -> Result<(), DeviceError> {
        self.queue.wait();
        self.step.passed();
        self.queue.failures.reported().map_err(refused)
    }
}

impl Drop for Cuda {
    /// Waits for running work, so that no operation uses memory after it is freed.
    fn drop(&mut self) {
        self.queue.wait();
        self.wait_beside();
        let waited = self.copies.wait();
        self.queue.failures.waited(waited);
    }
}

/// Converts an error of CUDA for the boundary to the engine.
pub fn refused(error: impl Into<ffi::Error>) -> DeviceError {
    let error = error.into();
    let text = error.to_string();
    match error {
        _ if error.is_out_of_memory() => DeviceError::Memory(text),
        ffi::Error::Call(_) => DeviceError::Failed(text),
        _ => DeviceError::Absent(text),
    }
}
