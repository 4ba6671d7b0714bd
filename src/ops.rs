//! The operations a model is written in, each with its formula, shapes and effects.
//!
//! A backend implements the primitives. Fused operations have a default body that defines them by
//! primitives; a backend may override any of them, and must then agree with the default.
//!
//! Notation: `R` rows of the step, `x[r, i]` element `i` of row `r`, `H` the hidden size.
//! Every result row is a function of its own sequence only, never of the other rows of the step.

use std::ops::{Deref, Range};

use crate::engine::executor::{DeviceError, Patience};
use crate::target::{self, Format, TOP_K, VOCAB};
use crate::weights::{MatrixSource, VectorSource, WeightsError};

mod batch;

pub use batch::{Batch, Span};

/// Positions of a cell of a sequence, counted from its start. What a prompt has of a cell is in one
/// step.
pub const CELL: usize = 64;
/// Rows of a cell that `Ops::gated_delta` and `Ops::attend` take one by one, at most. If a step has
/// more of a cell, from its first position on, a backend may take them together, in other
/// arithmetic: the choice depends on the prompt alone. Decode and verification never have more.
pub const ONE_BY_ONE: usize = 8;

/// Elements of a row that `Ops::top_k` leaves.
pub const RANKED: usize = 2 * TOP_K + 1;
// Ids are elements of it, and `f32` holds whole numbers up to 2^24.
const _: () = assert!(TOP_K <= VOCAB && VOCAB <= 1 << 24);

/// What one call moves and computes at least: the numerator of a roofline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes read and written that no cache can save.
    pub bytes: u64,
    /// Multiplications and additions.
    pub flops: u64,
}

impl Cost {
    /// `out[r, n] = sum_k x[r, k] w[n, k]` with `weight_bits` per stored weight and F32 rows.
    pub const fn linear(rows: usize, n: usize, k: usize, weight_bits: usize) -> Cost {
        Cost {
            bytes: (n * k * weight_bits / 8 + 4 * rows * (n + k)) as u64,
            flops: (2 * rows * n * k) as u64,
        }
    }

    /// Reads a row, writes one; a multiply-add for the mean and two more per element.
    pub const fn rms_norm(rows: usize, width: usize, element_bytes: usize) -> Cost {
        Cost {
            bytes: (rows * width * 2 * element_bytes) as u64,
            flops: (rows * width * 4) as u64,
        }
    }

    /// One query row of every head over `context` positions.
    pub const fn attend(context: usize, element_bytes: usize) -> Cost {
        let kv = 2 * context * target::KV_HEADS * target::HEAD_DIM;
        let macs = 2 * context * target::HEADS * target::HEAD_DIM;
        Cost {
            bytes: (kv * element_bytes) as u64,
            flops: (2 * macs) as u64,
        }
    }

    /// One row through the state of every value head: state read and written once.
    pub const fn gated_delta() -> Cost {
        let state = target::GDN_VALUE_HEADS * target::GDN_KEY_DIM * target::GDN_VALUE_DIM;
        Cost {
            bytes: (8 * state) as u64,
            flops: (7 * state) as u64,
        }
    }

    /// Sum of two costs.
    pub const fn and(self, other: Cost) -> Cost {
        Cost {
            bytes: self.bytes + other.bytes,
            flops: self.flops + other.flops,
        }
    }

    /// The cost of `n` such calls.
    pub const fn times(self, n: usize) -> Cost {
        Cost {
            bytes: self.bytes * n as u64,
            flops: self.flops * n as u64,
        }
    }
}

/// A sequence of operations that is run again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The model's forward pass.
    Forward,
    /// The multi-token-prediction layer.
    Draft,
}

/// Semantic operations of the `qwen3_5_moe` family.
///
/// Outputs (`out`) get the rows of their input; their storage is reused from step to step. Shapes
/// that do not fit are programming errors and abort.
pub trait Ops {
    /// Activations `[rows, width]`, F32 or the backend's activation type.
    type Tensor;
    /// Weights `[N, K]` in the backend's layout.
    type Matrix;
    /// Weights `[N]`.
    type Vector;
    /// The experts of one layer, the shared one last: gate, up `[I, H]` and down `[H, I]` of each.
    type Experts;
    /// Chosen experts and their weights for each row.
    type Routing;
    /// Keys and values of one attention layer: pages of `target::PAGE` tokens.
    type KvCache;
    /// Convolution tail and matrix state of one Gated DeltaNet layer for every slot.
    type GdnState;
    /// Memory of the host that `read` fills: as many elements as were read last.
    type Host: Deref<Target = [f32]>;

    /// Whether rows of logits are ranked where they are, because to take them to the host costs
    /// more.
    const RANKS: bool;
    /// Bytes of a number that `conv_silu` or `gated_delta` leaves of a row that a cell takes.
    const CELL_BYTES: usize;
    /// How long a step or a `read` behind it may take.
    const PATIENCE: Option<Patience>;

    /// Bytes that a matrix `[n, k]` stored as `format` takes once it is loaded, at most.
    fn matrix_bytes_max(n: usize, k: usize, format: Format) -> u64
    where
        Self: Sized;
    /// Bytes of all matrices loaded so far.
    fn matrix_bytes(&self) -> u64;
    /// What may be taken of the device's memory in all, bytes, by what is known since it was
    /// opened; none if the system does not tell.
    fn room(&self) -> Option<u64>;

    /// Loads matrices with the same `K`, stacked along `N` in the order given.
    ///
    /// # Errors
    /// `WeightsError` when the checkpoint cannot be read or holds a value that is not finite.
    fn load_matrix(&mut self, parts: &[MatrixSource<'_>]) -> Result<Self::Matrix, WeightsError>;
    /// Loads a vector. `# Errors` as `load_matrix`.
    fn load_vector(&mut self, part: &VectorSource<'_>) -> Result<Self::Vector, WeightsError>;
    /// Loads `(gate, up, down)` of each expert, the shared one last. `# Errors` as `load_matrix`.
    fn load_experts(
        &mut self,
        parts: &[[MatrixSource<'_>; 3]],
    ) -> Result<Self::Experts, WeightsError>;

    /// Storage for activations of at most `rows` rows of `width` elements.
    ///
    /// # Errors
    /// Too little memory; so below.
    fn tensor(&self, rows: usize, width: usize) -> Result<Self::Tensor, DeviceError>;
    /// Storage for the routing of a step.
    fn routing(&self) -> Result<Self::Routing, DeviceError>;
    /// Memory of the host for `read` of at most `len` elements.
    fn host(&self, len: usize) -> Result<Self::Host, DeviceError>;
    /// An empty cache of one attention layer, of at most `target::KV_PAGES` pages.
    fn kv_cache(&self, pages: usize) -> Result<Self::KvCache, DeviceError>;
    /// Zero state of one Gated DeltaNet layer.
    fn gdn_state(&self) -> Result<Self::GdnState, DeviceError>;

    /// Takes no memory from here on: to ask for some is a programming error and panics. What the
    /// buffers take by then, if the backend knows it.
    fn seal(&mut self) -> Option<u64> {
        None
    }

    /// Makes the rows of a step known to the device. Every operation until the next `begin` gets
    /// the same batch, or none, whatever is read in between; it stays as it is until a `read`.
    fn begin(&mut self, batch: &Batch);

    /// Runs `operations` on `batch`: the same calls on the same storage for a program and a number
    /// of rows, whatever else is in the batch. A backend may record and replay them.
    fn run(&mut self, _: Program, batch: &Batch, operations: impl FnOnce(&mut Self))
    where
        Self: Sized,
    {
        self.begin(batch);
        operations(self);
    }

    /// Prepares `run` for batches like this one, without running anything. It keeps the addresses
    /// of all storage that `operations` use: weights, caches and tensors must stay where they are,
    /// and `run` of this program on so many rows must get the same ones, for as long as there is a
    /// backend. So a program is recorded once for each number of rows.
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

    /// Launches of the recorded program on so many rows, where the backend has one.
    fn launches(&self, _: Program, _rows: usize) -> Option<usize> {
        None
    }

    /// `out[r] = table[batch.tokens[r]]`. `table [VOCAB, H]`, `out [R, H]`.
    fn embed(&mut self, table: &Self::Matrix, batch: &Batch, out: &mut Self::Tensor);

    /// `out[r] = x[r] * rsqrt(mean(x[r]^2) + NORM_EPS) * w`. `x, out [R, W]`, `w [W]`.
    fn rms_norm(&mut self, x: &Self::Tensor, w: &Self::Vector, out: &mut Self::Tensor);

    /// `out[r, n] = sum_k x[r, k] w[n, k]`. `x [R, K]`, `w [N, K]`, `out [R, N]`.
    fn linear(&mut self, x: &Self::Tensor, w: &Self::Matrix, out: &mut Self::Tensor);

    /// `residual[r, n] += sum_k x[r, k] w[n, k]`, the sum being one number before it is added.
    /// `x [R, K]`, `w [N, K]`, `residual [R, N]`.
    fn linear_add(&mut self, x: &Self::Tensor, w: &Self::Matrix, residual: &mut Self::Tensor);

    /// `rms_norm` of `residual`, then `linear` of that with each of `parts`, four at most. `x` is
    /// storage for the normed rows, which are left there if `keep`.
    fn norm_linear(
        &mut self,
        residual: &Self::Tensor,
        norm: &Self::Vector,
        x: &mut Self::Tensor,
        _keep: bool,
        parts: &mut [(&Self::Matrix, &mut Self::Tensor)],
    ) {
        self.rms_norm(residual, norm, x);
        for (matrix, out) in parts {
            self.linear(x, matrix, out);
        }
    }

    /// Norms and rotates queries and keys, in place, and writes each row's keys and values at its
    /// position of its sequence. Per head of `HEAD_DIM`: RMS norm, then rotary
    /// embedding of the first `ROTARY_DIM` elements, pairs `(i, i + ROTARY_DIM / 2)`, by the angle
    /// `position * ROPE_THETA^(-2 i / ROTARY_DIM)`. `q` has a query and a gate per head,
    /// `[R, HEADS * 2 * HEAD_DIM]`; gates are left alone. `k, v [R, KV_HEADS * HEAD_DIM]`; what is
    /// left in `k` is not specified. `norms` are of queries and of keys, `[HEAD_DIM]` each.
    fn store_kv(
        &mut self,
        q: &mut Self::Tensor,
        k: &mut Self::Tensor,
        v: &Self::Tensor,
        norms: [&Self::Vector; 2],
        cache: &mut Self::KvCache,
        batch: &Batch,
    );

    /// Causal attention: `out[r, h] = sum_j softmax_j(q[r, h] . k[j, g] / sqrt(HEAD_DIM)) v[j, g]`
    /// over positions `j` up to the row's own, `g = h / (HEADS / KV_HEADS)`, then
    /// `out[r, h] *= sigmoid(gate[r, h])`, element by element. `q` holds a query and a gate per
    /// head, `[R, HEADS * 2 * HEAD_DIM]`; `out [R, HEADS * HEAD_DIM]`. Rows are taken one by one,
    /// or in cells as [`ONE_BY_ONE`] states.
    fn attend(
        &mut self,
        q: &Self::Tensor,
        cache: &Self::KvCache,
        batch: &Batch,
        out: &mut Self::Tensor,
    );

    /// `store_kv`, then `attend`, bit by bit. What is left in `q` and `k` is not specified.
    fn attention(
        &mut self,
        input: Qkv<'_, Self>,
        cache: &mut Self::KvCache,
        batch: &Batch,
        out: &mut Self::Tensor,
    ) {
        store_and_attend(self, input, cache, batch, out);
    }

    /// Causal depthwise convolution and SiLU over each sequence's rows:
    /// `out[t, c] = silu(sum_j w[c, j] x[t - (GDN_CONV - 1) + j, c])`. Inputs before the step's
    /// first row come from the slot's convolution tail (zero at position 0), which is replaced by
    /// the last `GDN_CONV - 1` inputs. `x, out [R, C]`, `w [C * GDN_CONV]`, `C` the width of q, k
    /// and v.
    fn conv_silu(
        &mut self,
        x: &Self::Tensor,
        w: &Self::Vector,
        state: &mut Self::GdnState,
        batch: &Batch,
        out: &mut Self::Tensor,
    );

    /// Gated delta rule on each sequence's state `S [GDN_KEY_DIM, GDN_VALUE_DIM]` of
    /// each value head `h`, with key head `h / (GDN_VALUE_HEADS / GDN_KEY_HEADS)`:
    /// `q, k` scaled to unit length (`x * rsqrt(sum x^2 + 1e-6)`), `q /= sqrt(GDN_KEY_DIM)`,
    /// `S *= exp(-exp(a_log[h]) * softplus(a[r, h] + dt_bias[h]))`,
    /// `d = (v - S^T k) * sigmoid(b[r, h])`, `S += k d^T`, `out[r, h] = S^T q`.
    /// `qkv [R, q | k | v]`, `b, a [R, GDN_VALUE_HEADS]`,
    /// `out [R, GDN_VALUE_HEADS * GDN_VALUE_DIM]`.
    /// The state of a row at position 0 starts at zero. Rows are taken one by one, or in cells as
    /// [`ONE_BY_ONE`] states.
    fn gated_delta(
        &mut self,
        input: GatedDelta<'_, Self>,
        state: &mut Self::GdnState,
        batch: &Batch,
        out: &mut Self::Tensor,
    );

    /// Per head of `GDN_VALUE_DIM`, in place: `x = x * rsqrt(mean(x^2) + NORM_EPS) * w * silu(z)`.
    /// `x, z [R, GDN_VALUE_HEADS * GDN_VALUE_DIM]`, `w [GDN_VALUE_DIM]`.
    fn gated_rms_norm(&mut self, x: &mut Self::Tensor, w: &Self::Vector, z: &Self::Tensor);

    /// `gated_rms_norm` of `x`, then `linear_add` of that. What is left in `x` is not specified.
    /// `w [H, GDN_VALUE_HEADS * GDN_VALUE_DIM]`, `residual [R, H]`.
    fn gated_linear_add(
        &mut self,
        x: &mut Self::Tensor,
        norm: &Self::Vector,
        z: &Self::Tensor,
        w: &Self::Matrix,
        residual: &mut Self::Tensor,
    ) {
        self.gated_rms_norm(x, norm, z);
        self.linear_add(x, w, residual);
    }

    /// `conv_silu`, `gated_delta` and `gated_rms_norm`. `qkv [R, q | k | v]`; `conv` is storage of
    /// that shape; `z, out [R, GDN_VALUE_HEADS * GDN_VALUE_DIM]`.
    fn delta_net(
        &mut self,
        input: DeltaNet<'_, Self>,
        conv: &mut Self::Tensor,
        state: &mut Self::GdnState,
        batch: &Batch,
        out: &mut Self::Tensor,
    ) {
        let DeltaNet { qkv, z, b, a, .. } = input;
        self.conv_silu(qkv, input.conv, state, batch, conv);
        let delta = GatedDelta {
            qkv: conv,
            b,
            a,
            a_log: input.a_log,
            dt_bias: input.dt_bias,
        };
        self.gated_delta(delta, state, batch, out);
        self.gated_rms_norm(out, input.norm, z);
    }

    /// Softmax over all experts, the `EXPERTS_PER_TOKEN` most likely (lower index on a tie), their
    /// weights scaled to sum 1; then the shared expert, its weight the sigmoid of the last logit.
    /// `logits [R, EXPERTS + 1]`.
    fn route(&mut self, logits: &Self::Tensor, routing: &mut Self::Routing);

    /// `residual[r] += sum_e weight[r, e] * down_e(silu(gate_e x[r]) * up_e x[r])` over the row's
    /// experts, added in the order of the routing, the shared one last. `x, residual [R, H]`.
    ///
    /// Where `target::EXPERTS_ROWS_NVFP4` says so, experts of NVFP4 multiply rows that are rounded
    /// to it, before `gate` and `up` and again before `down`: a row is multiplied by the power of
    /// two that brings its largest magnitude to `2^10 .. 2^11`; 16 columns share a scale, the E4M3
    /// nearest to a sixth of their largest magnitude; each becomes the nearest E2M1 times that.
    fn experts(
        &mut self,
        x: &Self::Tensor,
        routing: &Self::Routing,
        experts: &Self::Experts,
        residual: &mut Self::Tensor,
    );

    /// `route` into `routing`, then `experts`; what is left in `routing` is not specified.
    fn moe(
        &mut self,
        x: &Self::Tensor,
        logits: &Self::Tensor,
        routing: &mut Self::Routing,
        experts: &Self::Experts,
        residual: &mut Self::Tensor,
    ) {
        self.route(logits, routing);
        self.experts(x, routing, experts, residual);
    }

    /// `out[r] = a[r] | b[r]`. `a, b [R, W]`, `out [R, 2 W]`.
    fn concat(&mut self, a: &Self::Tensor, b: &Self::Tensor, out: &mut Self::Tensor);

    /// `out[i] = x[batch.wanted[i]]`. `x [R, W]`, `out [batch.wanted.len(), W]`.
    fn select(&mut self, x: &Self::Tensor, batch: &Batch, out: &mut Self::Tensor);

    /// Ranks each row: `out[r]` is the ids of its [`target::TOP_K`] largest logits, descending, the
    /// lower id first on a tie; then these logits; then `sum_i exp(logits[r, i] - max(logits[r]))`,
    /// not a number if a logit is not finite. `logits [R, VOCAB]`, `out [R, RANKED]`.
    fn top_k(&mut self, logits: &Self::Tensor, out: &mut Self::Tensor);

    /// `rms_norm` of `residual`; of its wanted rows `linear` with `w`, and `top_k` where rows are
    /// ranked; bit by bit. What is left in `out.last` is not specified.
    fn lm_head(
        &mut self,
        residual: &Self::Tensor,
        norm: &Self::Vector,
        w: &Self::Matrix,
        batch: &Batch,
        out: Ends<'_, Self>,
    ) {
        norm_and_rank(self, residual, norm, w, batch, out);
    }

    /// Copies `rows` of `x` to the host, when all operations so far are done.
    ///
    /// # Errors
    /// `DeviceError` when an operation of this step failed on the device.
    fn read(
        &mut self,
        x: &Self::Tensor,
        rows: Range<usize>,
        out: &mut Self::Host,
    ) -> Result<(), DeviceError>;
}

/// What `Ops::lm_head` leaves.
pub struct Ends<'a, B: Ops + ?Sized> {
    /// Normed rows, `[R, H]`.
    pub x: &'a mut B::Tensor,
    /// Room for the wanted ones of them.
    pub last: &'a mut B::Tensor,
    /// `[batch.wanted.len(), VOCAB]`.
    pub logits: &'a mut B::Tensor,
    /// `[batch.wanted.len(), RANKED]`.
    pub ranked: &'a mut B::Tensor,
}

/// What `Ops::lm_head` is, operation by operation.
pub fn norm_and_rank<B: Ops + ?Sized>(
    ops: &mut B,
    residual: &B::Tensor,
    norm: &B::Vector,
    w: &B::Matrix,
    batch: &Batch,
    out: Ends<'_, B>,
) {
    ops.rms_norm(residual, norm, out.x);
    ops.select(out.x, batch, out.last);
    ops.linear(out.last, w, out.logits);
    if B::RANKS {
        ops.top_k(out.logits, out.ranked);
    }
}

/// Inputs of `Ops::attention`, which are those of `Ops::store_kv`.
pub struct Qkv<'a, B: Ops + ?Sized> {
    pub q: &'a mut B::Tensor,
    pub k: &'a mut B::Tensor,
    pub v: &'a B::Tensor,
    pub norms: [&'a B::Vector; 2],
}

/// What `Ops::attention` is, in two operations.
pub fn store_and_attend<B: Ops + ?Sized>(
    ops: &mut B,
    input: Qkv<'_, B>,
    cache: &mut B::KvCache,
    batch: &Batch,
    out: &mut B::Tensor,
) {
    let Qkv { q, k, v, norms } = input;
    ops.store_kv(q, k, v, norms, cache, batch);
    ops.attend(q, cache, batch, out);
}

/// Inputs of `Ops::gated_delta`.
pub struct GatedDelta<'a, B: Ops + ?Sized> {
    pub qkv: &'a B::Tensor,
    pub b: &'a B::Tensor,
    pub a: &'a B::Tensor,
    pub a_log: &'a B::Vector,
    pub dt_bias: &'a B::Vector,
}

/// Inputs of `Ops::delta_net`.
pub struct DeltaNet<'a, B: Ops + ?Sized> {
    pub qkv: &'a B::Tensor,
    pub z: &'a B::Tensor,
    pub b: &'a B::Tensor,
    pub a: &'a B::Tensor,
    pub conv: &'a B::Vector,
    pub a_log: &'a B::Vector,
    pub dt_bias: &'a B::Vector,
    pub norm: &'a B::Vector,
}
