//! A backend that times every operation of another and knows what it moves.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use model::backend::clock::{Clock, Timed};
use model::ops::{
    Attend, Batch, BesideNorms, Copied, Cost, Delta, DeltaNet, Dense, Device, Ends, ExpertSource,
    Gate, GatedDelta, Guess, Hidden, Latent, Logits, Place, Qkv, RANKED, Route, Side, Span, Taps,
    norm_and_rank, store_and_attend,
};
use model::shapes::{self, Attention as _};
use model::target::Format;
use model::weights::{MatrixSource, VectorSource, WeightsError};
use step::executor::{DeviceError, Patience};

/// Which operation on what: `n` and `k` are those of its matrix, or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label {
    pub op: &'static str,
    pub n: usize,
    pub k: usize,
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub label: Label,
    pub cost: Cost,
    pub seconds: f64,
}

/// Where calls are told.
pub type Sink = Rc<RefCell<Vec<Call>>>;

/// Runs and times the operations of `B` one by one, without a recorded step.
pub struct Metered<B: Device + Timed> {
    inner: B,
    clock: B::Clock,
    begun: Option<<B::Clock as Clock>::Mark>,
    ends: Vec<(Label, Cost, <B::Clock as Clock>::Mark)>,
    failed: Option<DeviceError>,
    sink: Sink,
}

/// A tensor, and the shape and the size that the last operation gave it.
pub struct Shaped<T> {
    inner: T,
    rows: usize,
    width: usize,
    /// Of one pass over it.
    bytes: u64,
}

/// Weights, their shape, and their bytes on the device.
pub struct Weighed<M> {
    inner: M,
    n: usize,
    k: usize,
    bytes: u64,
}

impl<T> Shaped<T> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn shape(&mut self, rows: usize, width: usize) {
        (self.rows, self.width) = (rows, width);
        self.bytes = (rows * width * size_of::<f32>()) as u64;
    }

    /// Of a step's rows, a number of those in cells being of `cell_bytes`.
    fn shape_with_cells(&mut self, batch: &Batch, width: usize, cell_bytes: usize) {
        self.shape(batch.rows(), width);
        let in_cells: usize = batch.spans().iter().map(|span| span.in_cells().len()).sum();
        self.bytes -= (in_cells * width * (size_of::<f32>() - cell_bytes)) as u64;
    }
}

/// Different experts that rows visit, if all are as likely.
pub fn distinct_experts<E: shapes::Experts>(rows: usize) -> f64 {
    let (all, each) = (E::COUNT as f64, E::PER_TOKEN as f64);
    all * (1.0 - (1.0 - each / all).powi(rows as i32))
}

impl<B: Device + Timed> Metered<B> {
    /// Calls go to `sink` when their results are read.
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
    fn tell(&mut self) -> Result<(), DeviceError> {
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

    fn done(&mut self, op: &'static str, (n, k): (usize, usize), bytes: u64, flops: u64) {
        let (label, cost) = (Label { op, n, k }, Cost { bytes, flops });
        if let Some(mark) = self.mark() {
            self.ends.push((label, cost, mark));
        }
    }
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

    fn matrix_bytes(&self) -> u64 {
        self.inner.matrix_bytes()
    }

    fn room(&self) -> Option<u64> {
        let room = self.inner.room()?;
        Some(room.saturating_sub(self.clock.bytes()))
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

    fn zeros(&mut self, elements: usize) -> Result<Self::Vector, DeviceError> {
        self.inner.zeros(elements)
    }

    fn load_vector(&mut self, part: &VectorSource<'_>) -> Result<Self::Vector, WeightsError> {
        self.inner.load_vector(part)
    }

    fn pool(&self, pieces: usize, bytes: usize) -> Result<Self::Pool, DeviceError> {
        self.inner.pool(pieces, bytes)
    }

    fn take_room(&mut self, bytes: usize) -> Result<(), DeviceError> {
        self.inner.take_room(bytes)
    }

    fn host_room(&mut self, range: Range<usize>) -> &mut [u8] {
        self.inner.host_room(range)
    }

    fn copy(&mut self, copies: &[Copied<'_, Self::Pool>], to: Side) -> Result<(), DeviceError> {
        self.inner.copy(copies, to)
    }

    fn copied(&mut self) -> Result<u64, DeviceError> {
        self.inner.copied()
    }

    fn tensor(&self, rows: usize, width: usize) -> Result<Self::Tensor, DeviceError> {
        Ok(Shaped {
            inner: self.inner.tensor(rows, width)?,
            rows: 0,
            width,
            bytes: 0,
        })
    }

    fn host(&self, len: usize) -> Result<Self::Host, DeviceError> {
        self.inner.host(len)
    }

    fn begin(&mut self, batch: &Batch) {
        self.inner.begin(batch);
        self.ends.clear();
        if let Err(error) = self.clock.hold() {
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
        self.tell()
    }
}

impl<B: Device + Timed> Guess for Metered<B> {}

impl<B: Dense + Timed> Dense for Metered<B> {
    fn embed(&mut self, table: &Self::Matrix, batch: &Batch, out: &mut Self::Tensor) {
        self.inner.embed(&table.inner, batch, &mut out.inner);
        out.shape(batch.rows(), table.k);
        let table_rows = table.bytes / table.n as u64 * batch.rows() as u64;
        self.done("embed", (0, 0), table_rows + out.bytes(), 0);
    }

    fn rms_norm(
        &mut self,
        x: &Self::Tensor,
        w: &Self::Vector,
        out: &mut Self::Tensor,
        adds: Option<f32>,
    ) {
        self.inner.rms_norm(&x.inner, w, &mut out.inner, adds);
        out.shape(x.rows, x.width);
        self.done(
            "rms_norm",
            (0, 0),
            (2 + u64::from(adds.is_some())) * x.bytes(),
            0,
        );
    }

    fn relu2(&mut self, x: &mut Self::Tensor) {
        self.inner.relu2(&mut x.inner);
        self.done("relu2", (0, 0), 2 * x.bytes(), 0);
    }

    fn cap_logits(&mut self, logits: &mut Self::Tensor) {
        self.inner.cap_logits(&mut logits.inner);
        self.done("cap_logits", (0, 0), 2 * logits.bytes(), 0);
    }

    fn linear(&mut self, x: &Self::Tensor, w: &Self::Matrix, out: &mut Self::Tensor) {
        self.inner.linear(&x.inner, &w.inner, &mut out.inner);
        out.shape(x.rows, w.n);
        let flops = (2 * x.rows * w.n * w.k) as u64;
        // The head has no row in a step that ends within a prompt.
        let read = if x.rows == 0 { 0 } else { w.bytes };
        let bytes = read + x.bytes() + out.bytes();
        self.done("linear", (w.n, w.k), bytes, flops);
    }

    fn linear_add(&mut self, x: &Self::Tensor, w: &Self::Matrix, residual: &mut Self::Tensor) {
        let inner = &mut residual.inner;
        self.inner.linear_add(&x.inner, &w.inner, inner);
        let flops = (2 * x.rows * w.n * w.k) as u64;
        let bytes = w.bytes + x.bytes() + 2 * residual.bytes();
        self.done("linear_add", (w.n, w.k), bytes, flops);
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
        let (mut bytes, mut n) = (x.bytes() * (1 + u64::from(keep)), 0);
        for (w, out) in parts {
            out.shape(x.rows, w.n);
            bytes += w.bytes + out.bytes();
            n += w.n;
        }
        let flops = (2 * x.rows * n * x.width) as u64;
        self.done("norm_linear", (n, x.width), bytes, flops);
    }

    fn concat(&mut self, a: &Self::Tensor, b: &Self::Tensor, out: &mut Self::Tensor) {
        self.inner.concat(&a.inner, &b.inner, &mut out.inner);
        out.shape(a.rows, a.width + b.width);
        self.done("concat", (0, 0), 2 * out.bytes(), 0);
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
        let room = [&mut normed.inner, &mut other.inner];
        let (table_of, hidden_of, to) = (&table.inner, &hidden.inner, &mut out.inner);
        self.inner
            .embed_beside(table_of, hidden_of, norms, batch, room, to);
        out.shape(batch.rows(), 2 * table.k);
        let table_rows = table.bytes / table.n as u64 * batch.rows() as u64;
        let bytes = table_rows + hidden.bytes() + out.bytes();
        self.done("embed_beside", (0, 0), bytes, 0);
    }

    fn select(&mut self, x: &Self::Tensor, batch: &Batch, out: &mut Self::Tensor) {
        self.inner.select(&x.inner, batch, &mut out.inner);
        out.shape(batch.wanted().len(), x.width);
        self.done("select", (0, 0), 2 * out.bytes(), 0);
    }

    fn top_k(&mut self, logits: &Self::Tensor, out: &mut Self::Tensor) {
        self.inner.top_k(&logits.inner, &mut out.inner);
        out.shape(logits.rows, RANKED);
        self.done("top_k", (0, 0), logits.bytes() + out.bytes(), 0);
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
        let read = if rows == 0 { 0 } else { part_of(w, ids) };
        let mut bytes = read + 2 * normed.bytes() + logits.bytes();
        if let Some(ranked) = ranked
            && B::RANKS
        {
            ranked.shape(rows, RANKED);
            bytes += ranked.bytes();
        }
        let flops = (2 * rows * ids * w.k) as u64;
        self.done("lm_head", (ids, w.k), bytes, flops);
    }
}

/// Bytes of the first `ids` rows of a matrix.
fn part_of<M>(w: &Weighed<M>, ids: usize) -> u64 {
    w.bytes * ids as u64 / w.n as u64
}

impl<M: shapes::Mlp, B: Gate<M> + Timed> Gate<M> for Metered<B> {
    fn swiglu(&mut self, gate: &Self::Tensor, up: &Self::Tensor, out: &mut Self::Tensor) {
        self.inner.swiglu(&gate.inner, &up.inner, &mut out.inner);
        out.shape(gate.rows, gate.width);
        self.done("swiglu", (0, 0), 3 * out.bytes(), 0);
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
        // Rows are read, and read and written again; activations are written and read.
        let bytes = read + 3 * residual.bytes() + 2 * (rows * inner * size_of::<f32>()) as u64;
        let flops = (6 * rows * inner * residual.width) as u64;
        self.done("mlp", (inner, residual.width), bytes, flops);
    }
}

impl<A: shapes::Attention, B: Attend<A> + Timed> Attend<A> for Metered<B> {
    type KvCache = B::KvCache;

    const PAGE_BYTES: usize = B::PAGE_BYTES;

    fn cache_at(&self, place: Place<Self::Pool>) -> Self::KvCache {
        self.inner.cache_at(place)
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
        let (queries, keys) = (&mut q.inner, &mut k.inner);
        self.inner
            .store_kv(queries, keys, v.map(|v| &v.inner), norms, cache, batch);
        // Gates are left alone.
        let rotated = q.bytes();
        // Bytes written of a row are those read of a position.
        let kept = Cost::attend::<A>(k.rows).bytes;
        let bytes = rotated + k.bytes() + v.map_or(0, Shaped::bytes) + kept;
        self.done("store_kv", (0, 0), bytes, 0);
    }

    fn attend(
        &mut self,
        q: &Self::Tensor,
        cache: &Self::KvCache,
        sinks: Option<&Self::Vector>,
        batch: &Batch,
        out: &mut Self::Tensor,
    ) {
        let to = &mut out.inner;
        self.inner.attend(&q.inner, cache, sinks, batch, to);
        out.shape(q.rows, A::MIXED);
        let cost = attend_cost::<A>(batch);
        self.done(
            "attend",
            (0, 0),
            cost.bytes + q.bytes() + out.bytes(),
            cost.flops,
        );
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
        let given = q.bytes() + k.bytes() + v.map_or(0, Shaped::bytes);
        let inner = Qkv {
            q: &mut q.inner,
            k: &mut k.inner,
            v: v.map(|v| &v.inner),
            norms,
            sinks,
        };
        self.inner.attention(inner, cache, batch, &mut out.inner);
        out.shape(batch.rows(), A::MIXED);
        // What a row stores is written and need not be read again: of the cache each position
        // moves once.
        let cost = attend_cost::<A>(batch);
        let bytes = given + cost.bytes + out.bytes();
        self.done("attention", (0, 0), bytes, cost.flops);
    }
}

impl<L: shapes::Latent, B: Latent<L> + Timed> Latent<L> for Metered<B> {
    fn latent_queries(
        &mut self,
        x: &Self::Tensor,
        w: &Self::Matrix,
        batch: &Batch,
        q: &mut Self::Tensor,
    ) {
        self.inner
            .latent_queries(&x.inner, &w.inner, batch, &mut q.inner);
        q.shape(x.rows, L::Attention::QUERIES);
        let (bytes, flops) = (w.bytes + x.bytes() + q.bytes(), 2 * x.rows * w.n * w.k);
        self.done("latent_queries", (w.n, w.k), bytes, flops as u64);
    }

    fn latent_results(&mut self, mixed: &Self::Tensor, w: &Self::Matrix, out: &mut Self::Tensor) {
        self.inner
            .latent_results(&mixed.inner, &w.inner, &mut out.inner);
        out.shape(mixed.rows, L::RESULTS);
        let (bytes, flops) = (
            w.bytes + mixed.bytes() + out.bytes(),
            2 * mixed.rows * w.n * w.k,
        );
        self.done("latent_results", (w.n, w.k), bytes, flops as u64);
    }
}

impl<D: shapes::Delta, B: Delta<D> + Timed> Delta<D> for Metered<B> {
    type State = B::State;

    const CELL_BYTES: usize = B::CELL_BYTES;

    const STATE_BYTES: [usize; 2] = B::STATE_BYTES;

    fn state_at(&self, place: Place<Self::Pool>) -> Self::State {
        self.inner.state_at(place)
    }

    fn conv_silu(
        &mut self,
        x: &Self::Tensor,
        taps: Taps<'_, Self>,
        state: &mut Self::State,
        batch: &Batch,
        out: &mut Self::Tensor,
    ) {
        self.inner
            .conv_silu(&x.inner, taps, state, batch, &mut out.inner);
        out.shape_with_cells(batch, x.width, <B as Delta<D>>::CELL_BYTES);
        let bytes = x.bytes() + out.bytes() + conv_bytes::<D>(batch);
        self.done("conv_silu", (0, 0), bytes, 0);
    }

    fn gated_delta(
        &mut self,
        input: GatedDelta<'_, Self>,
        state: &mut Self::State,
        batch: &Batch,
        out: &mut Self::Tensor,
    ) {
        let given = input.qkv.bytes() + input.b.bytes() + input.a.bytes();
        let inner = GatedDelta {
            qkv: &input.qkv.inner,
            b: &input.b.inner,
            a: &input.a.inner,
            a_log: input.a_log,
            dt_bias: input.dt_bias,
            skip: input.skip,
        };
        self.inner.gated_delta(inner, state, batch, &mut out.inner);
        out.shape_with_cells(batch, D::VALUES, <B as Delta<D>>::CELL_BYTES);
        let (states, flops) = (
            Cost::gated_delta::<D>().times(batch.spans().len()).bytes,
            Cost::gated_delta::<D>().times(batch.rows()).flops,
        );
        self.done("gated_delta", (0, 0), states + given + out.bytes(), flops);
    }

    fn gated_rms_norm(&mut self, x: &mut Self::Tensor, w: &Self::Vector, z: &Self::Tensor) {
        Delta::<D>::gated_rms_norm(&mut self.inner, &mut x.inner, w, &z.inner);
        let before = x.bytes();
        x.shape(z.rows, z.width);
        let bytes = before + z.bytes() + x.bytes();
        self.done("gated_rms_norm", (0, 0), bytes, 0);
    }

    fn gated_linear_add(
        &mut self,
        x: &mut Self::Tensor,
        norm: &Self::Vector,
        z: &Self::Tensor,
        w: &Self::Matrix,
        residual: &mut Self::Tensor,
    ) {
        let inner = &mut residual.inner;
        Delta::<D>::gated_linear_add(
            &mut self.inner,
            &mut x.inner,
            norm,
            &z.inner,
            &w.inner,
            inner,
        );
        let flops = (2 * x.rows * w.n * w.k) as u64;
        let bytes = w.bytes + x.bytes() + z.bytes() + 2 * residual.bytes();
        self.done("gated_linear_add", (w.n, w.k), bytes, flops);
    }

    fn delta_net(
        &mut self,
        input: DeltaNet<'_, Self>,
        conv: &mut Self::Tensor,
        state: &mut Self::State,
        batch: &Batch,
        out: &mut Self::Tensor,
    ) {
        let given = [input.qkv, input.z, input.b, input.a].map(Shaped::bytes);
        let inner = DeltaNet {
            qkv: &input.qkv.inner,
            z: &input.z.inner,
            b: &input.b.inner,
            a: &input.a.inner,
            conv: input.conv,
            a_log: input.a_log,
            dt_bias: input.dt_bias,
            skip: input.skip,
            norm: input.norm,
        };
        let room = &mut conv.inner;
        self.inner
            .delta_net(inner, room, state, batch, &mut out.inner);
        out.shape(batch.rows(), D::VALUES);
        let states = Cost::gated_delta::<D>().times(batch.spans().len()).bytes;
        let flops = Cost::gated_delta::<D>().times(batch.rows()).flops;
        let bytes = states + conv_bytes::<D>(batch) + given.iter().sum::<u64>() + out.bytes();
        self.done("delta_net", (0, 0), bytes, flops);
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

    fn routing(&self) -> Result<Self::Routing, DeviceError> {
        self.inner.routing()
    }

    fn route(
        &mut self,
        logits: &Self::Tensor,
        per_expert: Option<&Self::Vector>,
        routing: &mut Self::Routing,
    ) {
        self.inner.route(&logits.inner, per_expert, routing);
        self.done("route", (0, 0), logits.bytes(), 0);
    }

    fn experts(
        &mut self,
        x: &Self::Tensor,
        routing: &Self::Routing,
        experts: &Self::Experts,
        residual: &mut Self::Tensor,
    ) {
        let inner = &mut residual.inner;
        self.inner.experts(&x.inner, routing, &experts.inner, inner);
        let cost = experts_cost::<E, _, _>(x, experts);
        self.done("experts", (experts.n, experts.k), cost.bytes, cost.flops);
    }

    fn moe(
        &mut self,
        x: &Self::Tensor,
        (logits, per_expert): Logits<'_, Self>,
        routing: &mut Self::Routing,
        experts: &Self::Experts,
        residual: &mut Self::Tensor,
    ) {
        let (choice, inner) = ((&logits.inner, per_expert), &mut residual.inner);
        self.inner
            .moe(&x.inner, choice, routing, &experts.inner, inner);
        let cost = experts_cost::<E, _, _>(x, experts);
        let bytes = cost.bytes + logits.bytes();
        self.done("moe", (experts.n, experts.k), bytes, cost.flops);
    }
}

/// The weights of the experts that rows visit, if all are as likely, and the shared one's; rows in,
/// the residual in and out.
fn experts_cost<E: shapes::Experts, T, M>(x: &Shaped<T>, experts: &Weighed<M>) -> Cost {
    let visited = distinct_experts::<E>(x.rows) + E::HAS_SHARED as f64;
    let share = visited / E::ALL as f64;
    let read = (experts.bytes as f64 * share) as u64;
    let turns = x.rows * E::TURNS;
    Cost {
        bytes: read + 3 * x.bytes(),
        flops: (2 * (E::INPUTS + 1) * turns * experts.n * experts.k) as u64,
    }
}

/// Of a convolution beside its rows: its weights, and the inputs of earlier steps that it reads and
/// those that it leaves.
fn conv_bytes<D: shapes::Delta>(batch: &Batch) -> u64 {
    let tap = D::QKV * size_of::<f32>();
    let tails = 2 * batch.spans().len() * (D::CONV - 1);
    ((D::CONV + tails) * tap) as u64
}

/// Keys and values of every sequence once, products of every row.
fn attend_cost<A: shapes::Attention>(batch: &Batch) -> Cost {
    let of_span = |span: &Span| {
        let end = span.start + span.rows.len();
        Cost::attend::<A>(end - A::first_seen(span.start)).bytes
    };
    let of_row = |&position: &usize| {
        let seen = position + 1 - A::first_seen(position);
        Cost::attend::<A>(seen).flops
    };
    Cost {
        bytes: batch.spans().iter().map(of_span).sum(),
        flops: batch.positions().iter().map(of_row).sum(),
    }
}
