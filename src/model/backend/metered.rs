//! A backend that times every operation of another backend, and knows the bytes that it moves.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use crate::backend::clock::{Clock, Timed};
use crate::ops::{
    Attend, Batch, BesideNorms, Copied, Cost, Delta, DeltaNet, Dense, Device, Draft, Ends,
    ExpertSource, Gate, GatedDelta, Hidden, Logits, PoolRegion, Qkv, RANKED, Route, SeqSpan, Side,
    Taps, norm_and_rank, store_and_attend,
};
use crate::shapes;
use crate::target::Format;
use crate::weights::{MatrixSource, VectorSource, WeightsError};
use step::executor::{DeviceError, Patience};

/// Operation that was measured, and the shape `[n, k]` of its matrix, or 0 without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label {
    pub op: &'static str,
    pub n: usize,
    pub k: usize,
}

/// One timed call of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub label: Label,
    pub cost: Cost,
    pub seconds: f64,
}

/// List that receives the measured calls.
pub type Sink = Rc<RefCell<Vec<Call>>>;

/// Runs and times the operations of `B` one by one, without a recorded step.
pub struct Metered<B: Device + Timed> {
    pub(crate) inner: B,
    clock: B::Clock,
    begun: Option<<B::Clock as Clock>::Mark>,
    ends: Vec<(Label, Cost, <B::Clock as Clock>::Mark)>,
    failed: Option<DeviceError>,
    sink: Sink,
}

/// A tensor, with the shape and the bytes that the last operation gave it.
pub struct Shaped<T> {
    pub(crate) inner: T,
    pub(crate) rows: usize,
    width: usize,
    /// Bytes of the tensor's rows.
    pub(crate) bytes: u64,
}

/// Weights, their shape, and their bytes on the device.
pub struct Weighed<M> {
    pub(crate) inner: M,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) bytes: u64,
}

impl<T> Shaped<T> {
    pub(crate) fn shape(&mut self, rows: usize, width: usize) {
        (self.rows, self.width) = (rows, width);
        self.bytes = (rows * width * size_of::<f32>()) as u64;
    }

    /// Sets the shape to a step's rows; numbers of rows in cells have `cell_bytes` each.
    fn shape_with_cells(&mut self, batch: &Batch, width: usize, cell_bytes: usize) {
        self.shape(batch.rows(), width);
        let in_cells: usize = batch.spans().iter().map(|span| span.in_cells().len()).sum();
        self.bytes -= (in_cells * width * (size_of::<f32>() - cell_bytes)) as u64;
    }
}

impl<M> Weighed<M> {
    /// Bytes of `rows` rows of the tensor.
    fn bytes_of(&self, rows: usize) -> u64 {
        self.bytes * rows as u64 / self.n as u64
    }
}

/// Expected number of different experts that rows visit, if all are equally likely.
pub fn distinct_experts<E: shapes::Experts>(rows: usize) -> f64 {
    let (all, each) = (E::COUNT as f64, E::PER_TOKEN as f64);
    all * (1.0 - (1.0 - each / all).powi(rows as i32))
}

impl<B: Device + Timed> Metered<B> {
    /// A backend that times the operations of `inner`; calls go to `sink` when results are read.
    ///
    /// # Errors
    /// Too little memory for the clock.
    pub fn new(inner: B, sink: Sink) -> Result<Metered<B>, DeviceError> {
        Ok(Metered {
            clock: inner.clock()?,
            inner,
            sink,
            begun: None,
            ends: Vec::new(),
            failed: None,
        })
    }

    /// Appends the calls since `begin` to the sink.
    fn report(&mut self) -> Result<(), DeviceError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let Some(mut before) = self.begun.take() else {
            return Ok(());
        };
        for (label, cost, end) in self.ends.drain(..) {
            let seconds = self.clock.seconds(&before, &end)?;
            self.sink.borrow_mut().push(Call {
                label,
                cost,
                seconds,
            });
            before = end;
        }
        Ok(())
    }

    fn mark(&mut self) -> Option<<B::Clock as Clock>::Mark> {
        match self.clock.mark() {
            Ok(mark) => Some(mark),
            Err(error) => {
                self.failed.get_or_insert(error);
                None
            }
        }
    }

    pub(crate) fn done(&mut self, op: &'static str, spent: OpCost) {
        let OpCost {
            matrix: (n, k),
            bytes,
            flops,
        } = spent;
        let (label, cost) = (Label { op, n, k }, Cost { bytes, flops });
        if let Some(mark) = self.mark() {
            self.ends.push((label, cost, mark));
        }
    }
}

/// Shape of the matrix that a call is reported with, if it has one, and the bytes and operations of
/// the call.
#[derive(Default)]
pub(crate) struct OpCost {
    matrix: (usize, usize),
    bytes: u64,
    flops: u64,
}

/// Cost of an operation that only moves bytes.
pub(crate) fn moves(bytes: u64) -> OpCost {
    OpCost {
        bytes,
        ..OpCost::default()
    }
}

/// Cost of multiplying `rows` rows by a matrix `[n, k]`.
pub(crate) fn multiplies(rows: usize, (n, k): (usize, usize), bytes: u64) -> OpCost {
    OpCost {
        matrix: (n, k),
        bytes,
        flops: (2 * rows * n * k) as u64,
    }
}

/// Type of an argument: a wrapper of `Metered` for a type of the inner device, or a type that is
/// passed on as it is.
macro_rules! argument {
    (tensor) => {
        &Self::Tensor
    };
    (out) => {
        &mut Self::Tensor
    };
    (matrix) => {
        &Self::Matrix
    };
    (experts) => {
        &Self::Experts
    };
    ($type:ty) => {
        $type
    };
}

/// The argument as the inner device takes it.
macro_rules! unwrapped {
    ($name:ident tensor) => {
        &$name.inner
    };
    ($name:ident out) => {
        &mut $name.inner
    };
    ($name:ident matrix) => {
        &$name.inner
    };
    ($name:ident experts) => {
        &$name.inner
    };
    ($name:ident $type:ty) => {
        $name
    };
}

/// Operations that the inner device runs, one a row: arguments, and a block with the cost, which
/// also sets the shapes of results.
macro_rules! metered {
    ($group:path: $($op:ident($($name:ident[$($kind:tt)+])+) $cost:block)+) => {$(
        fn $op(&mut self, $($name: argument!($($kind)+)),+) {
            <B as $group>::$op(&mut self.inner, $(unwrapped!($name $($kind)+)),+);
            self.done(stringify!($op), $cost);
        }
    )+};
}

/// Functions whose calls are passed on to the inner device untimed.
macro_rules! forwarded {
    ($(fn $name:ident(&$this:ident $(, $argument:ident: $type:ty)*) $(-> $out:ty)?;)+) => {$(
        fn $name(&$this $(, $argument: $type)*) $(-> $out)? {
            $this.inner.$name($($argument),*)
        }
    )+};
    ($(fn $name:ident(&mut $this:ident $(, $argument:ident: $type:ty)*) $(-> $out:ty)?;)+) => {$(
        fn $name(&mut $this $(, $argument: $type)*) $(-> $out)? {
            $this.inner.$name($($argument),*)
        }
    )+};
}

impl<B: Device + Timed> Device for Metered<B> {
    type Tensor = Shaped<B::Tensor>;
    type Matrix = Weighed<B::Matrix>;
    type Vector = B::Vector;
    type Host = B::Host;
    type Pool = B::Pool;

    const RANKS: bool = B::RANKS;
    const PATIENCE: Option<Patience> = B::PATIENCE;

    fn matrix_bytes_max(n: usize, k: usize, format: Format) -> u64 {
        B::matrix_bytes_max(n, k, format)
    }

    forwarded! {
        fn matrix_bytes(&self) -> u64;
        fn pool(&self, pieces: usize, bytes: usize) -> Result<Self::Pool, DeviceError>;
        fn host(&self, len: usize) -> Result<Self::Host, DeviceError>;
    }

    forwarded! {
        fn zeros(&mut self, elements: usize) -> Result<Self::Vector, DeviceError>;
        fn load_vector(&mut self, part: &VectorSource<'_>) -> Result<Self::Vector, WeightsError>;
        fn take_host_memory(&mut self, bytes: usize) -> Result<(), DeviceError>;
        fn host_bytes(&mut self, range: Range<usize>) -> &mut [u8];
        fn copy(&mut self, copies: &[Copied<'_, Self::Pool>], to: Side) -> Result<(), DeviceError>;
        fn copied(&mut self) -> Result<u64, DeviceError>;
    }

    fn available(&self) -> Option<u64> {
        let available = self.inner.available()?;
        Some(available.saturating_sub(self.clock.bytes()))
    }

    fn seal(&mut self) -> Option<u64> {
        let taken = self.inner.seal()?;
        Some(taken - self.clock.bytes())
    }

    fn load_matrix(&mut self, parts: &[MatrixSource<'_>]) -> Result<Self::Matrix, WeightsError> {
        let before = self.inner.matrix_bytes();
        let inner = self.inner.load_matrix(parts)?;
        Ok(Weighed {
            inner,
            n: parts.iter().map(|part| part.shape().0).sum(),
            k: parts[0].shape().1,
            bytes: self.inner.matrix_bytes() - before,
        })
    }

    fn tensor(&self, rows: usize, width: usize) -> Result<Self::Tensor, DeviceError> {
        Ok(Shaped {
            inner: self.inner.tensor(rows, width)?,
            rows: 0,
            width,
            bytes: 0,
        })
    }

    fn begin(&mut self, batch: &Batch) {
        self.inner.begin(batch);
        self.ends.clear();
        if let Err(error) = self.clock.occupy() {
            self.failed.get_or_insert(error);
        }
        self.begun = self.mark();
    }

    fn read(
        &mut self,
        x: &Self::Tensor,
        rows: Range<usize>,
        out: &mut Self::Host,
    ) -> Result<(), DeviceError> {
        self.inner.read(&x.inner, rows, out)?;
        self.report()
    }
}

impl<B: Device + Timed> Draft for Metered<B> {}

impl<B: Dense + Timed> Dense for Metered<B> {
    metered! { Dense:
        embed(table[matrix] batch[&Batch] out[out]) {
            out.shape(batch.rows(), table.k);
            moves(table.bytes_of(batch.rows()) + out.bytes)
        }
        rms_norm(x[tensor] w[&Self::Vector] out[out] adds[Option<f32>]) {
            out.shape(x.rows, x.width);
            moves((2 + u64::from(adds.is_some())) * x.bytes)
        }
        relu2(x[out]) {
            moves(2 * x.bytes)
        }
        cap_logits(logits[out]) {
            moves(2 * logits.bytes)
        }
        linear(x[tensor] w[matrix] out[out]) {
            out.shape(x.rows, w.n);
            // A step that ends within a prompt has no row for the head.
            let read = if x.rows == 0 { 0 } else { w.bytes };
            multiplies(x.rows, (w.n, w.k), read + x.bytes + out.bytes)
        }
        linear_add(x[tensor] w[matrix] residual[out]) {
            multiplies(x.rows, (w.n, w.k), w.bytes + x.bytes + 2 * residual.bytes)
        }
        concat(a[tensor] b[tensor] out[out]) {
            out.shape(a.rows, a.width + b.width);
            moves(2 * out.bytes)
        }
        select(x[tensor] batch[&Batch] out[out]) {
            out.shape(batch.wanted().len(), x.width);
            moves(2 * out.bytes)
        }
        top_k(logits[tensor] out[out]) {
            out.shape(logits.rows, RANKED);
            moves(logits.bytes + out.bytes)
        }
    }

    fn norm_linear(
        &mut self,
        residual: &Self::Tensor,
        norm: &Self::Vector,
        x: &mut Self::Tensor,
        keep: bool,
        parts: &mut [(&Self::Matrix, &mut Self::Tensor)],
    ) {
        let inner = parts.iter_mut();
        let mut inner: Vec<_> = inner.map(|(w, out)| (&w.inner, &mut out.inner)).collect();
        self.inner
            .norm_linear(&residual.inner, norm, &mut x.inner, keep, &mut inner);
        x.shape(residual.rows, residual.width);
        let (mut bytes, mut n) = (x.bytes * (1 + u64::from(keep)), 0);
        for (w, out) in parts {
            out.shape(x.rows, w.n);
            bytes += w.bytes + out.bytes;
            n += w.n;
        }
        self.done("norm_linear", multiplies(x.rows, (n, x.width), bytes));
    }

    fn embed_beside(
        &mut self,
        table: &Self::Matrix,
        hidden: &Self::Tensor,
        norms: BesideNorms<'_, Self>,
        batch: &Batch,
        [normed, other]: [&mut Self::Tensor; 2],
        out: &mut Self::Tensor,
    ) {
        let norms = BesideNorms {
            embedding: norms.embedding,
            hidden: norms.hidden,
        };
        let workspace = [&mut normed.inner, &mut other.inner];
        let (table_of, hidden_of, to) = (&table.inner, &hidden.inner, &mut out.inner);
        self.inner
            .embed_beside(table_of, hidden_of, norms, batch, workspace, to);
        out.shape(batch.rows(), 2 * table.k);
        let bytes = table.bytes_of(batch.rows()) + hidden.bytes + out.bytes;
        self.done("embed_beside", moves(bytes));
    }

    fn lm_head(
        &mut self,
        residual: &Self::Tensor,
        norm: &Self::Vector,
        w: &Self::Matrix,
        batch: &Batch,
        out: Ends<'_, Self>,
    ) {
        if out.hidden == Hidden::OfRows && !batch.wants_all() {
            return norm_and_rank(self, residual, norm, w, batch, out);
        }
        let Ends {
            hidden,
            x,
            last,
            ids,
            logits,
            mut ranked,
        } = out;
        let inner = Ends {
            hidden,
            x: &mut x.inner,
            last: &mut last.inner,
            ids,
            logits: &mut logits.inner,
            ranked: ranked.as_deref_mut().map(|ranked| &mut ranked.inner),
        };
        let head = &w.inner;
        self.inner
            .lm_head(&residual.inner, norm, head, batch, inner);
        let rows = batch.wanted().len();
        let normed = match hidden {
            Hidden::OfRows => x,
            Hidden::OfWanted => last,
        };
        normed.shape(rows, residual.width);
        logits.shape(rows, ids);
        let read = if rows == 0 { 0 } else { w.bytes_of(ids) };
        let mut bytes = read + 2 * normed.bytes + logits.bytes;
        if let Some(ranked) = ranked
            && B::RANKS
        {
            ranked.shape(rows, RANKED);
            bytes += ranked.bytes;
        }
        self.done("lm_head", multiplies(rows, (ids, w.k), bytes));
    }
}

impl<M: shapes::Mlp, B: Gate<M> + Timed> Gate<M> for Metered<B> {
    metered! { Gate<M>:
        swiglu(gate[tensor] up[tensor] out[out]) {
            out.shape(gate.rows, gate.width);
            moves(3 * out.bytes)
        }
    }

    fn mlp(
        &mut self,
        residual: &mut Self::Tensor,
        norm: &Self::Vector,
        weights: [&Self::Matrix; 3],
        x: &mut Self::Tensor,
        own: [&mut Self::Tensor; 3],
    ) {
        let (rows, inner) = (residual.rows, weights[2].k);
        let own = own.map(|tensor| {
            tensor.shape(rows, inner);
            &mut tensor.inner
        });
        let matrices = weights.map(|w| &w.inner);
        self.inner
            .mlp(&mut residual.inner, norm, matrices, &mut x.inner, own);
        x.shape(rows, residual.width);
        let read: u64 = weights.iter().map(|w| w.bytes).sum();
        // Rows are read once, and read and written once more; activations are written and read.
        let bytes = read + 3 * residual.bytes + 2 * (rows * inner * size_of::<f32>()) as u64;
        let cost = multiplies(3 * rows, (inner, residual.width), bytes);
        self.done("mlp", cost);
    }
}

impl<A: shapes::Attention, B: Attend<A> + Timed> Attend<A> for Metered<B> {
    type KvCache = B::KvCache;

    const PAGE_BYTES: usize = B::PAGE_BYTES;

    fn cache_at(&self, region: PoolRegion<Self::Pool>) -> Self::KvCache {
        self.inner.cache_at(region)
    }

    fn store_kv(
        &mut self,
        q: &mut Self::Tensor,
        k: &mut Self::Tensor,
        v: Option<&Self::Tensor>,
        norms: [Option<&Self::Vector>; 2],
        cache: &mut Self::KvCache,
        batch: &Batch,
    ) {
        let (queries, keys, values) = (&mut q.inner, &mut k.inner, v.map(|v| &v.inner));
        self.inner
            .store_kv(queries, keys, values, norms, cache, batch);
        // Gates are not moved. A row writes as many bytes of keys and values as a position has.
        let cached = Cost::attend::<A>(k.rows).bytes;
        let bytes = q.bytes + k.bytes + v.map_or(0, |v| v.bytes) + cached;
        self.done("store_kv", moves(bytes));
    }

    metered! { Attend<A>:
        attend(
            q[tensor] cache[&Self::KvCache] sinks[Option<&Self::Vector>] batch[&Batch] out[out]
        ) {
            out.shape(q.rows, A::MIXED);
            attend_cost::<A>(batch, q.bytes + out.bytes)
        }
    }

    fn attention(
        &mut self,
        input: Qkv<'_, Self>,
        cache: &mut Self::KvCache,
        batch: &Batch,
        out: &mut Self::Tensor,
    ) {
        if !batch.is_decode() {
            return store_and_attend::<A, Self>(self, input, cache, batch, out);
        }
        let Qkv {
            q,
            k,
            v,
            norms,
            sinks,
        } = input;
        let given = q.bytes + k.bytes + v.map_or(0, |v| v.bytes);
        let inner = Qkv {
            q: &mut q.inner,
            k: &mut k.inner,
            v: v.map(|v| &v.inner),
            norms,
            sinks,
        };
        self.inner.attention(inner, cache, batch, &mut out.inner);
        out.shape(batch.rows(), A::MIXED);
        // Rows that cells write need not be read again, so each position of the cache moves once.
        self.done("attention", attend_cost::<A>(batch, given + out.bytes));
    }
}

impl<D: shapes::Delta, B: Delta<D> + Timed> Delta<D> for Metered<B> {
    type LayerStates = B::LayerStates;

    const CELL_BYTES: usize = B::CELL_BYTES;

    const STATE_BYTES: [usize; 2] = B::STATE_BYTES;

    fn state_at(&self, region: PoolRegion<Self::Pool>) -> Self::LayerStates {
        self.inner.state_at(region)
    }

    metered! { Delta<D>:
        conv_silu(
            x[tensor] taps[Taps<'_, Self>] state[&mut Self::LayerStates] batch[&Batch] out[out]
        ) {
            out.shape_with_cells(batch, x.width, <B as Delta<D>>::CELL_BYTES);
            moves(x.bytes + out.bytes + conv_bytes::<D>(batch))
        }
        gated_rms_norm(x[out] w[&Self::Vector] z[tensor]) {
            let before = x.bytes;
            x.shape(z.rows, z.width);
            moves(before + z.bytes + x.bytes)
        }
        gated_linear_add(
            x[out] norm[&Self::Vector] z[tensor] w[matrix] residual[out]
        ) {
            let bytes = w.bytes + x.bytes + z.bytes + 2 * residual.bytes;
            multiplies(x.rows, (w.n, w.k), bytes)
        }
    }

    fn gated_delta(
        &mut self,
        input: GatedDelta<'_, Self>,
        state: &mut Self::LayerStates,
        batch: &Batch,
        out: &mut Self::Tensor,
    ) {
        let given = input.qkv.bytes + input.b.bytes + input.a.bytes;
        let inner = unwrapped_rows(&input);
        self.inner.gated_delta(inner, state, batch, &mut out.inner);
        out.shape_with_cells(batch, D::VALUES, <B as Delta<D>>::CELL_BYTES);
        self.done("gated_delta", states_cost::<D>(batch, given + out.bytes));
    }

    fn delta_net(
        &mut self,
        input: DeltaNet<'_, Self>,
        conv: &mut Self::Tensor,
        state: &mut Self::LayerStates,
        batch: &Batch,
        out: &mut Self::Tensor,
    ) {
        let DeltaNet { rows, z, .. } = &input;
        let given = [rows.qkv, z, rows.b, rows.a].map(|rows| rows.bytes);
        let inner = DeltaNet {
            rows: unwrapped_rows(rows),
            z: &z.inner,
            conv: input.conv,
            norm: input.norm,
        };
        let workspace = &mut conv.inner;
        self.inner
            .delta_net(inner, workspace, state, batch, &mut out.inner);
        out.shape(batch.rows(), D::VALUES);
        let rows = conv_bytes::<D>(batch) + given.iter().sum::<u64>() + out.bytes;
        self.done("delta_net", states_cost::<D>(batch, rows));
    }
}

impl<E: shapes::Experts, B: Route<E> + Timed> Route<E> for Metered<B> {
    type Experts = Weighed<B::Experts>;
    type Routing = B::Routing;

    fn load_experts(&mut self, parts: &[ExpertSource<'_>]) -> Result<Self::Experts, WeightsError> {
        let before = self.inner.matrix_bytes();
        let inner = self.inner.load_experts(parts)?;
        let (n, k) = parts[0].inputs[0].shape();
        Ok(Weighed {
            inner,
            n,
            k,
            bytes: self.inner.matrix_bytes() - before,
        })
    }

    forwarded! {
        fn routing(&self) -> Result<Self::Routing, DeviceError>;
    }

    metered! { Route<E>:
        route(logits[tensor] bias[Option<&Self::Vector>] routing[&mut Self::Routing]) {
            moves(logits.bytes)
        }
        experts(x[tensor] routing[&Self::Routing] experts[experts] to[out]) {
            to.shape(x.rows, E::WIDTH);
            experts_cost::<E, _, _>(x, experts, 0)
        }
    }

    fn moe(
        &mut self,
        x: &Self::Tensor,
        (logits, per_expert): Logits<'_, Self>,
        routing: &mut Self::Routing,
        experts: &Self::Experts,
        to: &mut Self::Tensor,
    ) {
        let (choice, inner) = ((&logits.inner, per_expert), &mut to.inner);
        self.inner
            .moe(&x.inner, choice, routing, &experts.inner, inner);
        to.shape(x.rows, E::WIDTH);
        let cost = experts_cost::<E, _, _>(x, experts, logits.bytes);
        self.done("moe", cost);
    }
}

/// Cost of experts: weights of the experts that rows visit, if all are equally likely, and of the
/// shared one; rows and their sums read and written; `logits` bytes of a router.
fn experts_cost<E: shapes::Experts, T, M>(
    x: &Shaped<T>,
    experts: &Weighed<M>,
    logits: u64,
) -> OpCost {
    let visited = distinct_experts::<E>(x.rows) + E::HAS_SHARED as f64;
    let share = visited / E::ALL as f64;
    let read = (experts.bytes as f64 * share) as u64;
    let products = (E::INPUTS + 1) * x.rows * E::ASSIGNED;
    multiplies(
        products,
        (experts.n, experts.k),
        read + 3 * x.bytes + logits,
    )
}

fn unwrapped_rows<'a, B: Device + Timed>(rows: &GatedDelta<'a, Metered<B>>) -> GatedDelta<'a, B> {
    GatedDelta {
        qkv: &rows.qkv.inner,
        b: &rows.b.inner,
        a: &rows.a.inner,
        decay: rows.decay,
    }
}

/// Cost of a recurrent layer: states of every sequence once, `rows` bytes of rows, the update rule
/// for every row.
fn states_cost<D: shapes::Delta>(batch: &Batch, rows: u64) -> OpCost {
    let each = Cost::gated_delta::<D>();
    OpCost {
        bytes: rows + each.times(batch.spans().len()).bytes,
        flops: each.times(batch.rows()).flops,
        ..OpCost::default()
    }
}

/// Bytes of a convolution without its rows: weights, and the tail that it reads and writes.
fn conv_bytes<D: shapes::Delta>(batch: &Batch) -> u64 {
    let tap = D::QKV * size_of::<f32>();
    let tails = 2 * batch.spans().len() * (D::CONV - 1);
    ((D::CONV + tails) * tap) as u64
}

/// Cost of attention: keys and values of every sequence once, `rows` bytes of rows, products of
/// every row.
fn attend_cost<A: shapes::Attention>(batch: &Batch, rows: u64) -> OpCost {
    let of_span = |span: &SeqSpan| {
        let end = span.start + span.rows.len();
        Cost::attend::<A>(end - A::first_seen(span.start)).bytes
    };
    let of_row = |&position: &usize| {
        let seen = position + 1 - A::first_seen(position);
        Cost::attend::<A>(seen).flops
    };
    OpCost {
        bytes: rows + batch.spans().iter().map(of_span).sum::<u64>(),
        flops: batch.positions().iter().map(of_row).sum(),
        ..OpCost::default()
    }
}
