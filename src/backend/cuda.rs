//! The GPU: every operation is one launcher of `ffi/ops.toml`.
//!
//! Activations and recurrent states are F32, the KV pages and what attention multiplies BF16, other
//! operands of tensor instructions, what an expert adds to a row and what cells hold F16. Weights
//! are the checkpoint's values, in F16 where it has BF16.
//! A call that fails is remembered and reported by the next `read`, as `Ops` asks for; until then
//! nothing more is launched. All memory is taken before the first step.

pub mod check;
mod clock;
mod failures;
mod jobs;
mod load;
pub mod memory;
mod panels;
mod step;
mod storage;

use std::ffi::c_int;
use std::ops::{Deref, Range};
use std::ptr;
use std::time::Duration;

use ffi::ops::{self, atlas_bf16, atlas_stream};
use ffi::{CudaError, Device, DeviceBuf, Element, Graph, Needed, PinnedBuf, Stream, launched};

use crate::engine::executor::{DeviceError, Patience};
use crate::model::{ROWS_MAX, Tolerance};
use crate::ops::{
    Batch, DeltaNet, Ends, GatedDelta, Ops, Program, Qkv, RANKED, norm_and_rank, store_and_attend,
};
use crate::target::{
    self, EXPERT_INTERMEDIATE, EXPERTS, EXPERTS_PER_TOKEN, Format, GDN_CONV, GDN_KEY_DIM,
    GDN_VALUE_DIM, GDN_VALUE_HEADS, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, MAX_CONTEXT, MAX_SEQUENCES,
    MOE_ROWS, PAGE, TOP_K_CHUNKS, TOP_K_PARTS, VOCAB,
};
use crate::weights::{GDN_QKV, GDN_VALUES, MatrixSource, VectorSource, WeightsError};

use failures::Failures;
use jobs::Wanted;
use load::Loader;
use step::{CELL_RECORD, CELL_TILE_TOKENS, RECORDS, Step};
use storage::{Order, Storage};

/// The GPU that kernels are compiled for, and how many SMs grids are sized for.
const NEEDED: Needed = Needed {
    compute_capability: target::COMPUTE_CAPABILITY,
    multiprocessors: target::SMS,
    partition: target::PARTITION.is_some(),
};

/// How long a call may take, but for a step with a prompt: a step of decoding reads all memory at
/// most once, which takes a GB10 half a second.
const PATIENCE: Duration = Duration::from_secs(4);
/// How many times as long a step with a prompt may take. The longest is a whole prefill at the end
/// of the longest context: of a 35B-A3B with 8192 rows behind 122,880 positions, 2.2e14
/// multiplications and additions. At the rates measured on an H200 that is 0.4 s; on a GB10, which
/// shares the host's memory, 3 s if that comes as near to its peak, and a healthy one must not be
/// given up.
const PROMPT_PATIENCE: u32 = if target::HOST_RESERVE.is_some() { 3 } else { 1 };
/// Most rows of a step, or of what is in no cell of it, whose kernels stream keys for few rows.
const FEW_ROWS: usize = 64;
/// Positions of a split of attention.
const SPLIT: usize = 256;
/// Rows that lie together as operands, and places of an expert.
const OPERAND_ROWS: usize = 8;
/// Turns of all rows at their experts, the shared one included.
const TURNS: usize = ROWS_MAX * (EXPERTS_PER_TOKEN + 1);
/// Places for them: an expert's are whole groups.
const PLACES: usize =
    (TURNS + (OPERAND_ROWS - 1) * least(TURNS, EXPERTS_ALL)).next_multiple_of(OPERAND_ROWS);
/// Routed experts and the shared one.
const EXPERTS_ALL: usize = EXPERTS + 1;
/// Activations of those rows' experts on their way from block to block of one launch, then what
/// rows have chosen.
const RELAY: usize = (MOE_ROWS + 1) * (EXPERTS_PER_TOKEN + 1) * EXPERT_INTERMEDIATE;
/// What `relay` holds between launches: as an F32 a number that no arithmetic gives, and no choice.
const NOT_YET: u8 = 0xff;
/// Bytes of the plan of `experts`: tiles of 16 bytes, two places; the numbers of tiles, of places
/// and of tiles that are taken.
const PLAN_BYTES: usize = (PLACES * (16 + 2 * 4) + 12).next_multiple_of(16);
/// Longest sum of a product but those of experts.
const WIDEST: usize = most(2 * HIDDEN, most(HEADS * HEAD_DIM, GDN_VALUES));
/// Elements of the widest row of a step: of those that operations take, and of its turns.
const WIDEST_ROW: usize = most(
    most(2 * HEADS * HEAD_DIM, GDN_QKV),
    most(
        2 * HIDDEN,
        (EXPERTS_PER_TOKEN + 1) * most(HIDDEN, EXPERT_INTERMEDIATE),
    ),
);
/// Bytes of rows as operands of warpgroup instructions, which are F16: those of the longest sums,
/// those of two storages, or the places of `experts`.
const WARPGROUP_BYTES: usize = if target::OPERANDS {
    let rows = ROWS_MAX.next_multiple_of(OPERAND_ROWS);
    2 * most(rows * WIDEST, PLACES * HIDDEN)
} else {
    0
};
/// Bytes of rows and places of `experts` as operands of block-scaled instructions, which are NVFP4.
const BLOCK_SCALED_BYTES: usize = if target::EXPERTS_ROWS_NVFP4 {
    nvfp4_bytes(ROWS_MAX, HIDDEN) + nvfp4_bytes(PLACES, EXPERT_INTERMEDIATE)
} else {
    0
};
/// Bytes of few rows that all blocks hold, which are F16.
const HELD_BYTES: usize = 2 * FEW_ROWS * HIDDEN;
/// One kernel at a time has operands.
const OPERAND_BYTES: usize = most(HELD_BYTES, most(WARPGROUP_BYTES, BLOCK_SCALED_BYTES));
/// Results of splits, for few rows: the mix, its largest score and its sum.
const PARTIAL: usize = FEW_ROWS * HEADS * MAX_CONTEXT.div_ceil(SPLIT) * (HEAD_DIM + 2);
/// Numbers of blocks that have stored theirs: a tile of few rows has one, of each KV head.
const ARRIVED: usize = FEW_ROWS * KV_HEADS;
// A step of decoding has few rows, so `attention` has room for its splits.
const _: () = assert!(MAX_SEQUENCES <= FEW_ROWS);
/// Parts of the rows that `top_k` takes.
const PARTS: usize = MAX_SEQUENCES * TOP_K_CHUNKS * TOP_K_PARTS;
/// Rotated pairs of a head.
const PAIRS: usize = target::ROTARY_DIM / 2;

/// Rows of E2M1, an E4M3 scale for each 16 columns, an F32 a row.
const fn nvfp4_bytes(rows: usize, width: usize) -> usize {
    rows * (width / 2 + width / 16 + size_of::<f32>())
}

const fn most(a: usize, b: usize) -> usize {
    if a < b { b } else { a }
}

const fn least(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

/// How near the self-check before serving must come to golden log-probabilities, which are of F32
/// arithmetic. Here operands of products are rounded to F16, a relative 2^-12 each, in every layer,
/// and a router beside a near tie may choose another expert: a logit moves by some thousandths of
/// the largest one then. Logits of tokens that are hardly ever taken are large sums with the other
/// sign and move by more, which changes no distribution.
pub const GOLDEN_TOLERANCE: Tolerance = Tolerance {
    relative: 5e-3,
    floor: -7.0,
};

/// GPU 0 with one stream, bound to the thread that opened it.
pub struct Cuda {
    device: Device,
    /// What could be taken when it was opened, bytes.
    room: Option<u64>,
    queue: Queue,
    /// Recorded steps: program, rows.
    graphs: Vec<(Program, usize, Graph)>,
    step: Step,
    /// Until the first step is recorded.
    loader: Option<Loader>,
    /// Bytes of all matrices loaded so far.
    matrix_bytes: u64,
    /// Whether the batch's copy may still be under way.
    begun: bool,
    /// `[MAX_CONTEXT][PAIRS]` of cosine and sine.
    angles: DeviceBuf<f32>,
    partial: DeviceBuf<f32>,
    /// `[FEW_ROWS][KV_HEADS]`: how many blocks of a tile of few rows have stored their splits, or,
    /// the first one, have normed a row or ranked their logits; zeros between launches.
    arrived: DeviceBuf<u32>,
    plan: DeviceBuf<u8>,
    /// What `gated_delta` prepares of a step's cells; before the first step, rows to be repacked.
    records: DeviceBuf<u8>,
    /// Rows of a step as tensor instructions read them.
    operands: DeviceBuf<u8>,
    /// `[PLACES][EXPERT_INTERMEDIATE]`, or the same as operands in half of the room.
    act: DeviceBuf<f32>,
    /// `[PLACES][HIDDEN / 2]` pairs of F16.
    turns: DeviceBuf<u32>,
    /// `[MOE_ROWS + 1][EXPERTS_PER_TOKEN + 1][EXPERT_INTERMEDIATE]`, `NOT_YET` between launches.
    relay: DeviceBuf<f32>,
    /// What rows of logits are ranked by: orders and sums of `PARTS`.
    orders: DeviceBuf<u32>,
    sums: DeviceBuf<f32>,
}

// Kernels count the elements of a step's rows in 32 bits.
const _: () = assert!(ROWS_MAX * WIDEST_ROW <= i32::MAX as usize);
const _: () = assert!(MAX_SEQUENCES * VOCAB <= i32::MAX as usize);

/// Where launches go.
struct Queue {
    stream: Stream,
    /// Whether operations only shape their results, because a graph does their work.
    replays: bool,
    failures: Failures<CudaError>,
}

impl Queue {
    /// Calls a launcher, unless a call before it failed or a graph does its work.
    fn launch(&mut self, op: &'static str, launcher: impl FnOnce(*mut atlas_stream) -> c_int) {
        if !self.replays && !self.failures.any() {
            let code = launcher(self.stream.launcher());
            self.failures.queued(launched(op, code));
        }
    }

    /// Waits for all that was queued.
    fn wait(&mut self) {
        let waited = self.stream.synchronize();
        self.failures.waited(waited);
    }
}

/// Activations `[rows, width]` in F32.
pub struct Tensor {
    rows: usize,
    width: usize,
    values: DeviceBuf<f32>,
    /// Whether rows that a cell of the step takes are F16, as `cuda/tile/head_f16.cuh` has them.
    cells_f16: bool,
    /// Elements before and after the tensor's own.
    guard: usize,
}

/// Weights `[n, k]` in panels.
pub struct Matrix {
    n: usize,
    k: usize,
    storage: Storage,
    bytes: DeviceBuf<u8>,
}

/// A vector of weights in F32.
pub struct Vector(DeviceBuf<f32>);

/// The experts of one layer, the shared one last, each a matrix of its own behind the one before.
pub struct Experts {
    storage: Storage,
    gate_up: DeviceBuf<u8>,
    down: DeviceBuf<u8>,
}

/// Chosen experts, the shared one last, and their weights: `[TURNS]` each.
pub struct Routing {
    rows: usize,
    chosen: DeviceBuf<u32>,
    weights: DeviceBuf<f32>,
}

/// `[pages][KV_HEADS][keys, values][PAGE * HEAD_DIM]`, a page as `cuda/tile/pages.cuh` has it.
pub struct KvCache(DeviceBuf<atlas_bf16>);

/// Elements of a page of a `KvCache`.
const PAGE_ELEMENTS: usize = KV_HEADS * 2 * PAGE * HEAD_DIM;

impl KvCache {
    fn pages(&self) -> usize {
        self.0.len() / PAGE_ELEMENTS
    }
}

/// State of one Gated DeltaNet layer.
pub struct GdnState {
    /// `[MAX_SEQUENCES][GDN_CONV][GDN_QKV]`: the input of position `p` is at `p % GDN_CONV`.
    tails: DeviceBuf<f32>,
    /// `[MAX_SEQUENCES][GDN_VALUE_HEADS][GDN_VALUE_DIM][GDN_KEY_DIM]`.
    matrices: DeviceBuf<f32>,
}

/// What was read last, in page-locked memory: the device writes it at the full rate of the link.
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
    fn shape(&mut self, rows: usize, width: usize) -> *mut f32 {
        assert!(rows * width + 2 * self.guard <= self.values.len());
        (self.rows, self.width, self.cells_f16) = (rows, width, false);
        self.as_mut_ptr()
    }

    fn as_ptr(&self) -> *const f32 {
        self.values.as_ptr().wrapping_add(self.guard)
    }

    fn as_mut_ptr(&mut self) -> *mut f32 {
        self.values.as_mut_ptr().wrapping_add(self.guard)
    }
}

impl Cuda {
    /// Opens GPU 0, which must be the one that this binary is compiled for, and takes the memory
    /// that does not belong to a layer.
    ///
    /// # Errors
    /// Why it cannot be used, and what to do about it.
    pub fn open() -> Result<Cuda, DeviceError> {
        let device = Device::open(&NEEDED).map_err(refused)?;
        let room = memory::room_of(&device)?;
        let stream = Stream::open(&device).map_err(refused)?;
        let mut angles = memory::buffer(&device, MAX_CONTEXT * 2 * PAIRS)?;
        angles.upload(0, &rotations(), &stream).map_err(refused)?;
        let mut relay = memory::buffer(&device, RELAY)?;
        relay.fill_bytes(NOT_YET, &stream).map_err(refused)?;
        let mut arrived = memory::buffer(&device, ARRIVED)?;
        arrived.fill_bytes(0, &stream).map_err(refused)?;
        Ok(Cuda {
            room,
            step: Step::new(&device)?,
            loader: None,
            matrix_bytes: 0,
            begun: false,
            angles,
            partial: memory::buffer(&device, PARTIAL)?,
            arrived,
            plan: memory::buffer(&device, PLAN_BYTES)?,
            records: memory::buffer(&device, RECORDS)?,
            operands: memory::buffer(&device, OPERAND_BYTES)?,
            act: memory::buffer(&device, PLACES * EXPERT_INTERMEDIATE)?,
            turns: memory::buffer(&device, PLACES * HIDDEN / 2)?,
            relay,
            orders: memory::buffer(&device, PARTS)?,
            sums: memory::buffer(&device, PARTS)?,
            graphs: Vec::new(),
            queue: Queue {
                stream,
                replays: false,
                failures: Failures::default(),
            },
            device,
        })
    }

    fn recorded(&self, program: Program, rows: usize) -> Option<&Graph> {
        let is_it = |graph: &&(Program, usize, Graph)| (graph.0, graph.1) == (program, rows);
        self.graphs.iter().find(is_it).map(|(_, _, graph)| graph)
    }

    /// Which rows of `x`, a tensor of the step, are F16; null if none is.
    fn in_cells(&self, x: &Tensor) -> *const u32 {
        match x.cells_f16 {
            true => self.step.in_cells(),
            false => ptr::null(),
        }
    }

    /// Memory of zeros.
    fn zeroed<T: Element>(&self, len: usize) -> Result<DeviceBuf<T>, DeviceError> {
        let mut buffer = memory::buffer(&self.device, len)?;
        buffer.fill_bytes(0, &self.queue.stream).map_err(refused)?;
        Ok(buffer)
    }

    fn filled<T: Element>(&self, values: &[T]) -> Result<DeviceBuf<T>, DeviceError> {
        let mut buffer = memory::buffer(&self.device, values.len())?;
        buffer
            .upload(0, values, &self.queue.stream)
            .map_err(refused)?;
        Ok(buffer)
    }

    /// Room for the experts of a layer, each `gate_up` and `down` bytes.
    fn experts_room(
        &self,
        storage: Storage,
        [gate_up, down]: [usize; 2],
    ) -> Result<Experts, DeviceError> {
        let room = |bytes| memory::buffer(&self.device, EXPERTS_ALL * bytes);
        Ok(Experts {
            storage,
            gate_up: room(gate_up)?,
            down: room(down)?,
        })
    }

    /// Reads matrices and has the device repack them.
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

/// Frequencies and angles are rounded to F32, as in the models' training code.
fn rotations() -> Vec<f32> {
    let frequency = |pair: usize| {
        libm::pow(
            target::ROPE_THETA,
            -2.0 * pair as f64 / target::ROTARY_DIM as f64,
        ) as f32
    };
    let frequencies: [f32; PAIRS] = std::array::from_fn(frequency);
    let angles = (0..MAX_CONTEXT)
        .flat_map(|position| frequencies.map(|frequency| f64::from(position as f32 * frequency)));
    angles
        .flat_map(|angle| [libm::cos(angle) as f32, libm::sin(angle) as f32])
        .collect()
}

fn count(value: usize) -> u32 {
    u32::try_from(value).expect("a step has fewer elements than 2^32")
}

/// Checks the shapes of queries with their gates, of keys, of values, and of norms of heads.
fn check_projected([q, k, v]: [&Tensor; 3], norms: [&Vector; 2], rows: usize) {
    let (of_kv, of_q) = (KV_HEADS * HEAD_DIM, HEADS * 2 * HEAD_DIM);
    for (tensor, width) in [(q, of_q), (k, of_kv), (v, of_kv)] {
        assert_eq!((tensor.rows, tensor.width), (rows, width));
    }
    assert!(norms.iter().all(|norm| norm.0.len() == HEAD_DIM));
}

impl Ops for Cuda {
    type Tensor = Tensor;
    type Matrix = Matrix;
    type Vector = Vector;
    type Experts = Experts;
    type Routing = Routing;
    type KvCache = KvCache;
    type GdnState = GdnState;
    type Host = Host;

    const RANKS: bool = true;
    const CELL_BYTES: usize = 2;
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

    fn room(&self) -> Option<u64> {
        self.room
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

    fn load_experts(&mut self, parts: &[[MatrixSource<'_>; 3]]) -> Result<Experts, WeightsError> {
        assert_eq!(parts.len(), EXPERTS_ALL);
        let storage = Storage::of_format(parts[0][0].format()).of_experts();
        let wanted = parts.iter().enumerate().flat_map(|(index, expert)| {
            let [gate, up, down] = *expert;
            let both = [
                (vec![gate, up], Order::Interleaved),
                (vec![down], Order::Stacked),
            ];
            let place = move |(buffer, (parts, order))| {
                let mut wanted = Wanted {
                    parts,
                    order,
                    storage,
                    to: (buffer, 0),
                };
                wanted.to.1 = index * wanted.bytes();
                wanted
            };
            both.into_iter().enumerate().map(place)
        });
        let wanted: Vec<_> = wanted.collect();
        let bytes = [wanted[0].bytes(), wanted[1].bytes()];
        let mut experts = self.experts_room(storage, bytes)?;
        self.load(&wanted, &mut [&mut experts.gate_up, &mut experts.down])?;
        self.matrix_bytes += (experts.gate_up.bytes() + experts.down.bytes()) as u64;
        Ok(experts)
    }

    fn tensor(&self, rows: usize, width: usize) -> Result<Tensor, DeviceError> {
        Ok(Tensor {
            rows: 0,
            width,
            values: memory::buffer(&self.device, rows * width)?,
            cells_f16: false,
            guard: 0,
        })
    }

    fn routing(&self) -> Result<Routing, DeviceError> {
        Ok(Routing {
            rows: 0,
            chosen: memory::buffer(&self.device, TURNS)?,
            weights: memory::buffer(&self.device, TURNS)?,
        })
    }

    fn host(&self, len: usize) -> Result<Host, DeviceError> {
        let memory = memory::locked(&self.device, len)?;
        Ok(Host { memory, len: 0 })
    }

    fn kv_cache(&self, pages: usize) -> Result<KvCache, DeviceError> {
        Ok(KvCache(self.zeroed(pages * PAGE_ELEMENTS)?))
    }

    fn gdn_state(&self) -> Result<GdnState, DeviceError> {
        let matrix = GDN_VALUE_HEADS * GDN_VALUE_DIM * GDN_KEY_DIM;
        Ok(GdnState {
            tails: self.zeroed(MAX_SEQUENCES * GDN_CONV * GDN_QKV)?,
            matrices: self.zeroed(MAX_SEQUENCES * matrix)?,
        })
    }

    fn seal(&mut self) -> Option<u64> {
        Some(self.device.seal())
    }

    fn begin(&mut self, batch: &Batch) {
        if self.begun {
            self.queue.wait();
        }
        self.begun = true;
        if self.queue.failures.is_lost() {
            self.step.lose();
        } else {
            // SAFETY: the stream has passed the copy before: `begun` is only false behind a wait,
            // and no wait has failed.
            let copied = unsafe { self.step.begin(batch, &self.queue.stream) };
            self.queue.failures.queued(copied);
        }
    }

    fn run(&mut self, program: Program, batch: &Batch, operations: impl FnOnce(&mut Cuda)) {
        self.begin(batch);
        let recorded = self.recorded(program, batch.rows());
        let Some(graph) = recorded.filter(|_| batch.is_decode()) else {
            return operations(self);
        };
        if !self.queue.failures.any() {
            // SAFETY: the graph's memory is this backend's and that of the one model it runs, as
            // `record` asks for.
            let launched = unsafe { graph.launch(&self.queue.stream) };
            self.queue.failures.queued(launched);
        }
        self.queue.replays = true;
        operations(self);
        self.queue.replays = false;
    }

    fn record(
        &mut self,
        program: Program,
        batch: &Batch,
        operations: impl FnOnce(&mut Cuda),
    ) -> Result<(), DeviceError> {
        assert!(batch.is_decode());
        let is_new = self.recorded(program, batch.rows()).is_none();
        assert!(is_new, "a program is recorded once for a number of rows");
        self.loader = None;
        self.begin(batch);
        let (device, stream) = (self.device.clone(), self.queue.stream.clone());
        let graph = Graph::record(&device, &stream, || operations(self));
        self.queue.failures.told().map_err(refused)?;
        let graph = graph.map_err(refused)?;
        self.graphs.push((program, batch.rows(), graph));
        Ok(())
    }

    fn launches(&self, program: Program, rows: usize) -> Option<usize> {
        self.recorded(program, rows).map(Graph::launches)
    }

    fn embed(&mut self, table: &Matrix, batch: &Batch, out: &mut Tensor) {
        assert_eq!(
            (table.n, table.k, table.storage),
            (VOCAB, HIDDEN, Storage::F16)
        );
        let rows = batch.rows();
        let out = out.shape(rows, HIDDEN);
        let (table, step) = (table.bytes.as_ptr(), self.step.of(batch));
        // SAFETY: `Batch` has checked the tokens; `shape` the room.
        self.queue.launch("embed", |stream| unsafe {
            ops::atlas_embed(table, step.tokens(), out, count(rows), stream)
        });
    }

    fn rms_norm(&mut self, x: &Tensor, w: &Vector, out: &mut Tensor) {
        assert_eq!((x.width, w.0.len()), (HIDDEN, HIDDEN));
        let out = out.shape(x.rows, HIDDEN);
        let rows = count(x.rows);
        // SAFETY: shapes are checked.
        self.queue.launch("rms_norm", |stream| unsafe {
            ops::atlas_rms_norm(x.as_ptr(), w.0.as_ptr(), out, rows, stream)
        });
    }

    fn linear(&mut self, x: &Tensor, w: &Matrix, out: &mut Tensor) {
        assert_eq!(x.width, w.k);
        let out = out.shape(x.rows, w.n);
        let (rows, n, k) = (count(x.rows), count(w.n), count(w.k));
        let (x, format, w) = (x.as_ptr(), w.storage as u32, w.bytes.as_ptr());
        // SAFETY: shapes are checked; the matrix is in panels of its storage.
        self.queue.launch("linear", |stream| unsafe {
            ops::atlas_linear(x, w, out, rows, n, k, format, stream)
        });
    }

    fn linear_add(&mut self, x: &Tensor, w: &Matrix, residual: &mut Tensor) {
        assert_eq!(x.width, w.k);
        assert_eq!((residual.rows, residual.width), (x.rows, w.n));
        let (rows, n, k) = (count(x.rows), count(w.n), count(w.k));
        let (x, format, w) = (x.as_ptr(), w.storage as u32, w.bytes.as_ptr());
        let (operands, residual) = (self.operands.as_mut_ptr(), residual.as_mut_ptr());
        // SAFETY: shapes are checked; the matrix is in panels of its storage; the operands have
        // room for ROWS_MAX rows of the longest sum.
        self.queue.launch("linear_add", |stream| unsafe {
            ops::atlas_linear_add(x, w, operands, residual, rows, n, k, format, stream)
        });
    }

    fn norm_linear(
        &mut self,
        residual: &Tensor,
        norm: &Vector,
        x: &mut Tensor,
        keep: bool,
        parts: &mut [(&Matrix, &mut Tensor)],
    ) {
        assert_eq!((residual.width, norm.0.len()), (HIDDEN, HIDDEN));
        let rows = residual.rows;
        let x = x.shape(rows, HIDDEN);
        // Where a part is missing, there is no row of weights.
        let mut list = [(ptr::null(), ptr::null_mut(), 0, 0); 4];
        for (to, (matrix, out)) in list.iter_mut().zip(parts) {
            assert_eq!(matrix.k, HIDDEN);
            let out = out.shape(rows, matrix.n);
            let format = matrix.storage as u32;
            *to = (matrix.bytes.as_ptr(), out, count(matrix.n), format);
        }
        let [
            (w0, out0, n0, f0),
            (w1, out1, n1, f1),
            (w2, out2, n2, f2),
            (w3, out3, n3, f3),
        ] = list;
        let (residual, norm, rows) = (residual.as_ptr(), norm.0.as_ptr(), count(rows));
        let keep = u32::from(keep);
        let (operands, arrived) = (self.operands.as_mut_ptr(), self.arrived.as_mut_ptr());
        // SAFETY: shapes are checked; matrices are in panels of their storage; the operands have
        // room for FEW_ROWS rows, or for ROWS_MAX for two storages where kernels lay them out, and
        // parts have no more; `arrived` has numbers.
        self.queue.launch("norm_linear", |stream| unsafe {
            ops::atlas_norm_linear(
                residual, norm, x, keep, operands, arrived, w0, out0, n0, f0, w1, out1, n1, f1, w2,
                out2, n2, f2, w3, out3, n3, f3, rows, stream,
            )
        });
    }

    fn store_kv(
        &mut self,
        q: &mut Tensor,
        k: &mut Tensor,
        v: &Tensor,
        norms: [&Vector; 2],
        cache: &mut KvCache,
        batch: &Batch,
    ) {
        check_projected([q, k, v], norms, batch.rows());
        assert!(batch.page_count() <= cache.pages());
        let step = self.step.of(batch);
        // SAFETY: shapes are checked; `Batch` has checked pages, and that positions are below
        // MAX_CONTEXT.
        self.queue.launch("store_kv", |stream| unsafe {
            ops::atlas_store_kv(
                q.as_mut_ptr(),
                k.as_ptr(),
                v.as_ptr(),
                norms[0].0.as_ptr(),
                norms[1].0.as_ptr(),
                self.angles.as_ptr(),
                step.positions(),
                step.table_starts(),
                step.pages(),
                cache.0.as_mut_ptr(),
                count(batch.rows()),
                stream,
            )
        });
    }

    fn attend(&mut self, q: &Tensor, cache: &KvCache, batch: &Batch, out: &mut Tensor) {
        assert_eq!((q.rows, q.width), (batch.rows(), HEADS * 2 * HEAD_DIM));
        assert!(batch.page_count() <= cache.pages());
        let out = out.shape(q.rows, HEADS * HEAD_DIM);
        let step = self.step.of(batch);
        // SAFETY: shapes are checked; `Batch` has checked pages and positions; `partial` and
        // `arrived` have room for the splits of FEW_ROWS, and more rows behind cells use none.
        self.queue.launch("attend", |stream| unsafe {
            ops::atlas_attend(
                q.as_ptr(),
                cache.0.as_ptr(),
                step.positions(),
                step.table_starts(),
                step.pages(),
                step.cell_tile_list(),
                step.tile_list(),
                self.partial.as_mut_ptr(),
                self.arrived.as_mut_ptr(),
                out,
                count(q.rows),
                count(step.cell_tiles),
                count(CELL_TILE_TOKENS),
                count(step.one_by_one),
                count(step.tiles),
                count(step.tile_tokens),
                stream,
            )
        });
    }

    fn attention(
        &mut self,
        input: Qkv<'_, Cuda>,
        cache: &mut KvCache,
        batch: &Batch,
        out: &mut Tensor,
    ) {
        if !batch.is_decode() {
            return store_and_attend(self, input, cache, batch, out);
        }
        let (Qkv { q, k, v, norms }, rows) = (input, batch.rows());
        check_projected([q, k, v], norms, rows);
        let out = out.shape(rows, HEADS * HEAD_DIM);
        assert!(batch.page_count() <= cache.pages());
        let step = self.step.of(batch);
        // SAFETY: shapes are checked; `Batch` has checked pages, and that positions are below
        // MAX_CONTEXT; of decoding no cell takes a row, and each has a tile of its own; `partial`
        // and `arrived` have room for FEW_ROWS, and no step of decoding has more.
        self.queue.launch("attention", |stream| unsafe {
            ops::atlas_attention(
                q.as_ptr(),
                k.as_ptr(),
                v.as_ptr(),
                norms[0].0.as_ptr(),
                norms[1].0.as_ptr(),
                self.angles.as_ptr(),
                step.positions(),
                step.table_starts(),
                step.pages(),
                cache.0.as_mut_ptr(),
                step.tile_list(),
                self.partial.as_mut_ptr(),
                self.arrived.as_mut_ptr(),
                out,
                count(rows),
                stream,
            )
        });
    }

    fn conv_silu(
        &mut self,
        x: &Tensor,
        w: &Vector,
        state: &mut GdnState,
        batch: &Batch,
        out: &mut Tensor,
    ) {
        assert_eq!((x.rows, x.width), (batch.rows(), GDN_QKV));
        assert_eq!(w.0.len(), GDN_QKV * GDN_CONV);
        let to = out.shape(x.rows, GDN_QKV);
        out.cells_f16 = true;
        let step = self.step.of(batch);
        // SAFETY: shapes are checked; `Batch` has checked that slots are slots and differ.
        self.queue.launch("conv_silu", |stream| unsafe {
            ops::atlas_conv_silu(
                x.as_ptr(),
                w.0.as_ptr(),
                state.tails.as_mut_ptr(),
                step.chunk_list(),
                step.positions(),
                step.slots(),
                step.in_cells(),
                to,
                count(x.rows),
                count(step.chunks),
                stream,
            )
        });
    }

    fn gated_delta(
        &mut self,
        input: GatedDelta<'_, Cuda>,
        state: &mut GdnState,
        batch: &Batch,
        out: &mut Tensor,
    ) {
        let GatedDelta {
            qkv,
            b,
            a,
            a_log,
            dt_bias,
        } = input;
        let rows = batch.rows();
        assert_eq!((qkv.rows, qkv.width), (rows, GDN_QKV));
        assert!(qkv.cells_f16);
        assert_eq!((b.rows, b.width), (rows, GDN_VALUE_HEADS));
        assert_eq!((a.rows, a.width), (rows, GDN_VALUE_HEADS));
        let heads = (a_log.0.len(), dt_bias.0.len());
        assert_eq!(heads, (GDN_VALUE_HEADS, GDN_VALUE_HEADS));
        let to = out.shape(rows, GDN_VALUES);
        out.cells_f16 = true;
        let step = self.step.of(batch);
        // SAFETY: shapes are checked; `Batch` has checked that slots are slots and differ;
        // `records` has room for all cells of a step.
        self.queue.launch("gated_delta", |stream| unsafe {
            ops::atlas_gated_delta(
                qkv.as_ptr(),
                b.as_ptr(),
                a.as_ptr(),
                a_log.0.as_ptr(),
                dt_bias.0.as_ptr(),
                state.matrices.as_mut_ptr(),
                step.span_list(),
                step.cell_list(),
                step.run_list(),
                step.positions(),
                step.slots(),
                self.records.as_mut_ptr(),
                to,
                count(rows),
                count(step.spans),
                count(step.cells),
                count(step.runs),
                count(CELL_RECORD),
                stream,
            )
        });
    }

    fn gated_rms_norm(&mut self, x: &mut Tensor, w: &Vector, z: &Tensor) {
        assert_eq!((x.rows, x.width), (z.rows, GDN_VALUES));
        assert_eq!((z.width, w.0.len()), (GDN_VALUES, GDN_VALUE_DIM));
        let (rows, in_cells) = (count(x.rows), self.in_cells(x));
        let (w, z) = (w.0.as_ptr(), z.as_ptr());
        x.cells_f16 = false;
        // SAFETY: shapes are checked.
        self.queue.launch("gated_rms_norm", |stream| unsafe {
            ops::atlas_gated_rms_norm(x.as_mut_ptr(), w, z, in_cells, rows, stream)
        });
    }

    fn gated_linear_add(
        &mut self,
        x: &mut Tensor,
        norm: &Vector,
        z: &Tensor,
        w: &Matrix,
        residual: &mut Tensor,
    ) {
        assert_eq!((x.rows, x.width), (z.rows, GDN_VALUES));
        assert_eq!((z.width, norm.0.len()), (GDN_VALUES, GDN_VALUE_DIM));
        assert_eq!((w.n, w.k), (HIDDEN, GDN_VALUES));
        assert_eq!((residual.rows, residual.width), (x.rows, HIDDEN));
        let (rows, format, in_cells) = (count(x.rows), w.storage as u32, self.in_cells(x));
        let (norm, z, w) = (norm.0.as_ptr(), z.as_ptr(), w.bytes.as_ptr());
        x.cells_f16 = false;
        let (operands, residual) = (self.operands.as_mut_ptr(), residual.as_mut_ptr());
        // SAFETY: shapes are checked; the matrix is in panels of its storage; the operands have
        // room for ROWS_MAX rows of the longest sum.
        self.queue.launch("gated_linear_add", |stream| unsafe {
            let x = x.as_mut_ptr();
            ops::atlas_gated_linear_add(
                x, norm, z, in_cells, w, operands, residual, rows, format, stream,
            )
        });
    }

    fn delta_net(
        &mut self,
        input: DeltaNet<'_, Cuda>,
        conv: &mut Tensor,
        state: &mut GdnState,
        batch: &Batch,
        out: &mut Tensor,
    ) {
        let DeltaNet { qkv, z, b, a, .. } = input;
        let DeltaNet { a_log, dt_bias, .. } = input;
        if !batch.is_decode() {
            self.conv_silu(qkv, input.conv, state, batch, conv);
            let qkv = &*conv;
            let delta = GatedDelta {
                qkv,
                b,
                a,
                a_log,
                dt_bias,
            };
            self.gated_delta(delta, state, batch, out);
            return self.gated_rms_norm(out, input.norm, z);
        }
        let rows = batch.rows();
        assert_eq!((qkv.rows, qkv.width), (rows, GDN_QKV));
        assert_eq!((z.rows, z.width), (rows, GDN_VALUES));
        assert_eq!((b.rows, b.width), (rows, GDN_VALUE_HEADS));
        assert_eq!((a.rows, a.width), (rows, GDN_VALUE_HEADS));
        assert_eq!(input.conv.0.len(), GDN_QKV * GDN_CONV);
        let heads = (a_log.0.len(), dt_bias.0.len());
        assert_eq!(heads, (GDN_VALUE_HEADS, GDN_VALUE_HEADS));
        assert_eq!(input.norm.0.len(), GDN_VALUE_DIM);
        let out = out.shape(rows, GDN_VALUES);
        let step = self.step.of(batch);
        // SAFETY: shapes are checked; `Batch` has checked that slots are slots and differ.
        self.queue.launch("delta_net", |stream| unsafe {
            ops::atlas_delta_net(
                qkv.as_ptr(),
                z.as_ptr(),
                b.as_ptr(),
                a.as_ptr(),
                input.conv.0.as_ptr(),
                a_log.0.as_ptr(),
                dt_bias.0.as_ptr(),
                input.norm.0.as_ptr(),
                state.tails.as_mut_ptr(),
                state.matrices.as_mut_ptr(),
                step.positions(),
                step.slots(),
                out,
                count(rows),
                stream,
            )
        });
    }

    fn route(&mut self, logits: &Tensor, routing: &mut Routing) {
        assert_eq!(logits.width, EXPERTS + 1);
        assert!(logits.rows <= ROWS_MAX);
        routing.rows = logits.rows;
        let rows = count(logits.rows);
        let (chosen, weights) = (routing.chosen.as_mut_ptr(), routing.weights.as_mut_ptr());
        // SAFETY: shapes are checked; a routing has room for ROWS_MAX rows.
        self.queue.launch("route", |stream| unsafe {
            ops::atlas_route(logits.as_ptr(), chosen, weights, rows, stream)
        });
    }

    fn experts(&mut self, x: &Tensor, routing: &Routing, experts: &Experts, residual: &mut Tensor) {
        assert_eq!((x.rows, x.width), (routing.rows, HIDDEN));
        assert_eq!((residual.rows, residual.width), (x.rows, HIDDEN));
        // SAFETY: shapes are checked; the scratch has room for the places of ROWS_MAX rows; both
        // arrays hold all experts' matrices in panels of their storage.
        self.queue.launch("experts", |stream| unsafe {
            ops::atlas_experts(
                x.as_ptr(),
                routing.chosen.as_ptr(),
                routing.weights.as_ptr(),
                experts.gate_up.as_ptr(),
                experts.down.as_ptr(),
                self.plan.as_mut_ptr(),
                self.operands.as_mut_ptr(),
                self.act.as_mut_ptr(),
                self.turns.as_mut_ptr(),
                residual.as_mut_ptr(),
                count(x.rows),
                experts.storage as u32,
                stream,
            )
        });
    }

    fn moe(
        &mut self,
        x: &Tensor,
        logits: &Tensor,
        routing: &mut Routing,
        experts: &Experts,
        residual: &mut Tensor,
    ) {
        let rows = x.rows;
        if rows > MOE_ROWS {
            self.route(logits, routing);
            return self.experts(x, routing, experts, residual);
        }
        assert_eq!((logits.rows, logits.width), (rows, EXPERTS + 1));
        assert_eq!(x.width, HIDDEN);
        assert_eq!((residual.rows, residual.width), (rows, HIDDEN));
        // SAFETY: shapes are checked; the scratch has room for the turns of the rows; both arrays
        // hold all experts' matrices in panels of their storage.
        self.queue.launch("moe", |stream| unsafe {
            ops::atlas_moe(
                x.as_ptr(),
                logits.as_ptr(),
                experts.gate_up.as_ptr(),
                experts.down.as_ptr(),
                routing.chosen.as_mut_ptr(),
                routing.weights.as_mut_ptr(),
                self.plan.as_mut_ptr(),
                self.operands.as_mut_ptr(),
                self.act.as_mut_ptr(),
                self.relay.as_mut_ptr(),
                self.turns.as_mut_ptr(),
                residual.as_mut_ptr(),
                count(rows),
                experts.storage as u32,
                stream,
            )
        });
    }

    fn concat(&mut self, a: &Tensor, b: &Tensor, out: &mut Tensor) {
        assert_eq!((a.rows, a.width), (b.rows, b.width));
        assert!(a.width.is_multiple_of(4));
        let out = out.shape(a.rows, 2 * a.width);
        let (rows, width) = (count(a.rows), count(a.width));
        // SAFETY: shapes are checked.
        self.queue.launch("concat", |stream| unsafe {
            ops::atlas_concat(a.as_ptr(), b.as_ptr(), out, rows, width, stream)
        });
    }

    fn select(&mut self, x: &Tensor, batch: &Batch, out: &mut Tensor) {
        assert_eq!(x.rows, batch.rows());
        assert!(x.width.is_multiple_of(4));
        let wanted = batch.wanted().len();
        let out = out.shape(wanted, x.width);
        let (rows, width) = (count(wanted), count(x.width));
        let step = self.step.of(batch);
        // SAFETY: shapes are checked; `Batch` has checked that wanted rows are rows of it.
        self.queue.launch("select", |stream| unsafe {
            ops::atlas_select(x.as_ptr(), step.wanted_rows(), out, rows, width, stream)
        });
    }

    fn top_k(&mut self, logits: &Tensor, out: &mut Tensor) {
        assert!(logits.width == VOCAB && logits.rows <= MAX_SEQUENCES);
        let rows = count(logits.rows);
        let out = out.shape(logits.rows, RANKED);
        let (orders, sums) = (self.orders.as_mut_ptr(), self.sums.as_mut_ptr());
        // SAFETY: shapes are checked; orders and sums have room for `MAX_SEQUENCES` rows.
        self.queue.launch("top_k", |stream| unsafe {
            ops::atlas_top_k(logits.as_ptr(), orders, sums, out, rows, stream)
        });
    }

    fn lm_head(
        &mut self,
        residual: &Tensor,
        norm: &Vector,
        w: &Matrix,
        batch: &Batch,
        out: Ends<'_, Cuda>,
    ) {
        // A step of decoding wants all its rows.
        if !batch.is_decode() {
            return norm_and_rank(self, residual, norm, w, batch, out);
        }
        let rows = batch.rows();
        assert!(rows <= MAX_SEQUENCES);
        assert_eq!((residual.rows, residual.width), (rows, HIDDEN));
        assert_eq!((norm.0.len(), w.n, w.k), (HIDDEN, VOCAB, HIDDEN));
        let x = out.x.shape(rows, HIDDEN);
        let logits = out.logits.shape(rows, VOCAB);
        let ranked = out.ranked.shape(rows, RANKED);
        // SAFETY: shapes are checked; the matrix is in panels of its storage; orders, sums and the
        // operands have room for `MAX_SEQUENCES` rows; `arrived` has numbers.
        self.queue.launch("lm_head", |stream| unsafe {
            ops::atlas_lm_head(
                residual.as_ptr(),
                norm.0.as_ptr(),
                x,
                self.operands.as_mut_ptr(),
                w.bytes.as_ptr(),
                logits,
                self.orders.as_mut_ptr(),
                self.sums.as_mut_ptr(),
                self.arrived.as_mut_ptr(),
                ranked,
                count(rows),
                w.storage as u32,
                stream,
            )
        });
    }

    fn read(&mut self, x: &Tensor, rows: Range<usize>, out: &mut Host) -> Result<(), DeviceError> {
        out.len = rows.len() * x.width;
        // Waits for all operations before, and tells their failures.
        if self.queue.failures.any() || out.len == 0 {
            self.queue.wait();
        } else {
            assert!(rows.end <= x.rows);
            let (from, to) = (x.guard + rows.start * x.width, &mut out.memory[..out.len]);
            let read = x.values.download(from, to, &self.queue.stream);
            self.queue.failures.waited(read);
        }
        self.begun = false;
        self.queue.failures.told().map_err(refused)
    }
}

impl Drop for Cuda {
    /// Nothing is under way any more when the memory goes that it works in, whoever has that.
    fn drop(&mut self) {
        self.queue.wait();
    }
}

/// What the engine is told of a failure at the boundary.
fn refused(error: impl Into<ffi::Error>) -> DeviceError {
    let error = error.into();
    let text = error.to_string();
    match error.is_out_of_memory() {
        true => DeviceError::Memory(text),
        false => DeviceError::Failed(text),
    }
}
