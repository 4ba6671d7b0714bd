//! Recurrent mixers: convolution tail and recurrent state, row by row.

use std::marker::PhantomData;
use std::ops::Range;

use crate::ops::{Batch, Delta, GatedDelta, PoolRegion, SeqSpan, Taps};
use crate::shapes;
use step::executor::Slot;

use super::elementwise::{gate, gated_rms_norm, norm};
use super::lanes::{LANES, Lanes, exp, sigmoid, silu};
use super::pieces::{LayerPart, Pieces, Starts};
use super::pool::Pool;
use super::share::Shared;
use super::wide::{Kernel, Vector, widest};
use super::{Cpu, Tensor, split};

/// Largest number of taps of a convolution.
const CONV_MAX: usize = 8;
/// Largest number of inputs that a convolution carries over to the next step.
const TAIL_MAX: usize = CONV_MAX - 1;
/// Term added to the squared length of queries and keys before the scaling to unit length.
const UNIT_EPS: f32 = 1e-6;

/// Layout of the states of a recurrent shape.
trait Lay: shapes::Delta {
    /// Inputs of the convolution that a sequence carries over to the next step.
    const TAIL: usize = Self::CONV - 1;
    /// Groups of value columns; the last may be partly used.
    const COLUMN_LANES: usize = Self::VALUE_DIM.div_ceil(LANES);
    /// Elements of one column group of one head's matrix state.
    const GROUP_STATE: usize = Self::KEY_DIM * LANES;
    /// Elements of one head's matrix state.
    const HEAD_STATE: usize = Self::COLUMN_LANES * Self::GROUP_STATE;
    /// Elements of a slot's matrix states; the tail of the convolution follows them.
    const MATRICES: usize = Self::VALUE_HEADS * Self::HEAD_STATE;
    /// Fails to compile if the convolution is longer than `CONV_MAX`.
    const FITS: () = assert!(Self::CONV <= CONV_MAX);
}

impl<D: shapes::Delta> Lay for D {}

/// States of one layer, of all slots. A slot's part has first the matrix states, `[value
/// head][column group][key dim][16 columns]`, then the tail, `[TAIL][QKV]`, oldest first.
pub struct LayerStates<D> {
    pub(super) part: LayerPart,
    shape: PhantomData<D>,
}

/// States of one layer, of all slots, shared by several threads.
struct SharedStates<'a> {
    elements: Shared<'a, f32>,
    starts: Starts,
}

impl SharedStates<'_> {
    /// Elements of a head's matrix state in a slot.
    fn matrix<D: shapes::Delta>(&self, slot: Slot, head: usize) -> Range<usize> {
        let start = self.starts.of(slot.0) + head * D::HEAD_STATE;
        start..start + D::HEAD_STATE
    }

    /// First element in a slot of the convolution tail's input `index`.
    fn input<D: shapes::Delta>(&self, slot: Slot, index: usize) -> usize {
        self.starts.of(slot.0) + D::MATRICES + index * D::QKV
    }
}

impl<D: shapes::Delta> Delta<D> for Cpu {
    type LayerStates = LayerStates<D>;

    const CELL_BYTES: usize = size_of::<f32>();

    const STATE_BYTES: [usize; 2] = [
        D::MATRICES * size_of::<f32>(),
        D::TAIL * D::QKV * size_of::<f32>(),
    ];

    fn state_at(&self, region: PoolRegion<Pieces>) -> LayerStates<D> {
        let ((), ()) = (D::CHECK, D::FITS);
        LayerStates {
            part: LayerPart::of(region),
            shape: PhantomData,
        }
    }

    fn conv_silu(
        &mut self,
        x: &Tensor,
        taps: Taps<'_, Cpu>,
        state: &mut LayerStates<D>,
        batch: &Batch,
        out: &mut Tensor,
    ) {
        out.shape(x.rows, x.width).copy_from_slice(&x.values);
        conv_silu(&mut self.pool, out, taps, state, batch);
    }

    fn gated_delta(
        &mut self,
        input: GatedDelta<'_, Cpu>,
        state: &mut LayerStates<D>,
        batch: &Batch,
        out: &mut Tensor,
    ) {
        gated_delta(&mut self.pool, &mut self.delta, input, state, batch, out);
    }

    fn gated_rms_norm(&mut self, x: &mut Tensor, w: &Vec<f32>, z: &Tensor) {
        for (row, x) in x.rows_mut().enumerate() {
            if D::MAMBA {
                gate(x, z.row(row));
                let groups = x.chunks_exact_mut(D::NORM).zip(w.chunks_exact(D::NORM));
                groups.for_each(|(x, w)| norm(x, w));
                continue;
            }
            let heads = x.chunks_exact_mut(D::VALUE_DIM);
            for (x, z) in heads.zip(z.row(row).chunks_exact(D::VALUE_DIM)) {
                gated_rms_norm(x, w, z);
            }
        }
    }
}

/// Queries, keys and gates of a step, ready for the recurrence.
#[derive(Default)]
pub struct Scratch {
    /// Queries, `[row][KEYS]`, scaled to length `1 / sqrt(KEY_DIM)`, or unscaled in shapes without
    /// this norm.
    queries: Vec<f32>,
    /// Keys, `[row][KEYS]`, scaled to unit length, or unscaled in shapes without this norm.
    keys: Vec<f32>,
    /// Pairs of gates, `[row][VALUE_HEADS]`: factor of the state, weight of the update.
    gates: Vec<(f32, f32)>,
}

/// Convolution and SiLU of [`crate::ops::Delta::conv_silu`], in place.
fn conv_silu<D: shapes::Delta>(
    pool: &mut Pool,
    x: &mut Tensor,
    (w, bias): Taps<'_, Cpu>,
    state: &mut LayerStates<D>,
    batch: &Batch,
) {
    assert_eq!((x.width, w.len()), (D::QKV, D::QKV * D::CONV));
    let groups = D::QKV.div_ceil(LANES);
    let work = batch.rows() * LANES * (D::CONV + 8);
    let values = Shared::new(&mut x.values);
    let mut elements = state.part.write();
    let states = SharedStates {
        elements: Shared::new(&mut elements),
        starts: state.part.starts,
    };
    split(pool, groups, work, |groups| {
        for group in groups {
            let channels = group * LANES..D::QKV.min((group + 1) * LANES);
            let taps = taps::<D>(w, channels.start, channels.len());
            let bias = bias.map_or(Lanes::ZERO, |bias| {
                Lanes::load_part(&bias[channels.clone()])
            });
            for span in batch.spans() {
                let channels = channels.clone();
                // SAFETY: each group of channels belongs to one task.
                let column = unsafe { Column::<D>::new(&values, &states, batch, span, channels) };
                column.convolve(&taps, bias);
            }
        }
    });
}

/// Weights of a group of channels by tap.
fn taps<D: shapes::Delta>(w: &[f32], first: usize, count: usize) -> [Lanes; CONV_MAX] {
    std::array::from_fn(|tap| {
        let mut lanes = Lanes::ZERO;
        for lane in (0..count).filter(|_| tap < D::CONV) {
            lanes.0[lane] = w[(first + lane) * D::CONV + tap];
        }
        lanes
    })
}

/// A group of channels of one sequence's rows, with its tail.
struct Column<'a, D> {
    values: &'a Shared<'a, f32>,
    states: &'a SharedStates<'a>,
    span: &'a SeqSpan,
    /// States after the sequence's drafts.
    draft_states: &'a [Slot],
    channels: Range<usize>,
    shape: PhantomData<D>,
}

impl<'a, D: shapes::Delta> Column<'a, D> {
    /// # Safety
    /// No other thread touches these channels of the span's rows and of its states' tails.
    unsafe fn new(
        values: &'a Shared<'a, f32>,
        states: &'a SharedStates<'a>,
        batch: &'a Batch,
        span: &'a SeqSpan,
        channels: Range<usize>,
    ) -> Column<'a, D> {
        Column {
            values,
            states,
            span,
            draft_states: batch.draft_states(span),
            channels,
            shape: PhantomData,
        }
    }

    fn convolve(&self, taps: &[Lanes; CONV_MAX], bias: Lanes) {
        let rows = self.span.rows.len();
        let states = self.span.states;
        let tail: [Lanes; TAIL_MAX] = std::array::from_fn(|index| match self.span.start {
            0 => Lanes::ZERO,
            _ if index >= D::TAIL => Lanes::ZERO,
            _ => Lanes::load_part(self.tail(states.from, index)),
        });
        // Inputs are numbered from the tail's oldest entry on.
        let input = |index: usize| match index < D::TAIL {
            true => tail[index],
            false => Lanes::load_part(self.row(index - D::TAIL)),
        };
        let saved = states.snapshot.map(|of| (of.rows, of.slot));
        let drafts = (1..).zip(self.draft_states.iter().copied());
        for (at, slot) in [(rows, states.to)].into_iter().chain(saved).chain(drafts) {
            for index in 0..D::TAIL {
                input(at + index).store(self.tail(slot, index));
            }
        }
        // Last row first, since a row's output overwrites the row's input.
        for row in (0..rows).rev() {
            let mut sum = bias;
            for (tap, weights) in taps[..D::CONV].iter().enumerate() {
                sum = sum.add(weights.mul(input(row + tap)));
            }
            sum.map(silu).store(self.row(row));
        }
    }

    #[allow(clippy::mut_from_ref)] // one live slice at a time, within this thread
    fn row(&self, row: usize) -> &mut [f32] {
        let start = (self.span.rows.start + row) * D::QKV;
        // SAFETY: the contract of `new`.
        unsafe {
            self.values
                .range(start + self.channels.start..start + self.channels.end)
        }
    }

    #[allow(clippy::mut_from_ref)] // as above
    fn tail(&self, slot: Slot, index: usize) -> &mut [f32] {
        let start = self.states.input::<D>(slot, index);
        // SAFETY: the contract of `new`.
        unsafe {
            self.states
                .elements
                .range(start + self.channels.start..start + self.channels.end)
        }
    }
}

fn gated_delta<D: shapes::Delta>(
    pool: &mut Pool,
    scratch: &mut Scratch,
    input: GatedDelta<'_, Cpu>,
    state: &mut LayerStates<D>,
    batch: &Batch,
    out: &mut Tensor,
) {
    scratch.fill::<D>(&input);
    out.shape(batch.rows(), D::VALUES);
    let spans = batch.spans();
    let longest = spans.iter().map(|span| span.rows.len()).max().unwrap_or(0);
    let (scratch, values) = (&*scratch, &input.qkv.values);
    let skip = input.decay.skip.as_deref().unwrap_or_default();
    let out = Shared::new(&mut out.values);
    let mut elements = state.part.write();
    let all = SharedStates {
        elements: Shared::new(&mut elements),
        starts: state.part.starts,
    };
    let items = spans.len() * D::VALUE_HEADS;
    split(pool, items, longest * D::HEAD_STATE * 2, |items| {
        for item in items {
            let (span, head) = (&spans[item / D::VALUE_HEADS], item % D::VALUE_HEADS);
            // SAFETY: each sequence and head belongs to one task, and no task writes a state that
            // several sequences read.
            let states = unsafe { HeadStates::of::<D>(&all, batch, span, head) };
            let run = |rows, state: &mut [f32]| {
                widest(Recurrence {
                    scratch,
                    values,
                    state,
                    skip: skip.get(head).copied().unwrap_or(0.0),
                    rows,
                    head,
                    out: &out,
                    shape: PhantomData::<D>,
                });
            };
            let mut rows = span.rows.clone();
            for (count, copy) in states.copies {
                run(rows.start..rows.start + count, states.to);
                copy.copy_from_slice(states.to);
                rows.start += count;
            }
            run(rows, states.to);
        }
    });
}

/// One head's matrix states that a sequence's rows update.
struct HeadStates<'a> {
    /// State that rows update; at first the state before the first row.
    to: &'a mut [f32],
    /// Copies of the state still to be made: number of rows before the copy, and the copy's memory.
    copies: Vec<(usize, &'a mut [f32])>,
}

impl<'a> HeadStates<'a> {
    /// # Safety
    /// No other thread touches the states that the span writes, or writes the state that it reads.
    unsafe fn of<D: shapes::Delta>(
        all: &'a SharedStates<'_>,
        batch: &Batch,
        span: &SeqSpan,
        head: usize,
    ) -> HeadStates<'a> {
        let states = span.states;
        let saved = states.snapshot.map(|of| (of.rows, of.slot));
        let drafts = batch.draft_states(span).iter().map(|&slot| (1, slot));
        // SAFETY: the contract of this function; all states that the span writes differ.
        let range = |slot: Slot| unsafe { all.elements.range(all.matrix::<D>(slot, head)) };
        let to = range(states.to);
        match span.start {
            0 => to.fill(0.0),
            _ if states.from == states.to => {}
            _ => {
                // SAFETY: the contract of this function; `from` is another state than `to`.
                let from = unsafe { all.elements.read(all.matrix::<D>(states.from, head)) };
                to.copy_from_slice(from);
            }
        }
        let copies = saved.into_iter().chain(drafts);
        HeadStates {
            to,
            copies: copies.map(|(rows, slot)| (rows, range(slot))).collect(),
        }
    }
}

impl Scratch {
    fn fill<D: shapes::Delta>(&mut self, input: &GatedDelta<'_, Cpu>) {
        self.queries.clear();
        self.keys.clear();
        self.gates.clear();
        for row in input.qkv.values.chunks_exact(D::QKV) {
            if D::MAMBA {
                self.queries.extend(&row[..D::KEYS]);
                self.keys.extend(&row[D::KEYS..2 * D::KEYS]);
                continue;
            }
            let scale = 1.0 / (D::KEY_DIM as f32).sqrt();
            append_unit(&row[..D::KEYS], D::KEY_DIM, scale, &mut self.queries);
            let keys = &row[D::KEYS..2 * D::KEYS];
            append_unit(keys, D::KEY_DIM, 1.0, &mut self.keys);
        }
        for (index, (&a, &b)) in input.a.values.iter().zip(&input.b.values).enumerate() {
            let head = index % D::VALUE_HEADS;
            let step = softplus(a + input.decay.dt_bias[head]);
            let weight = if D::MAMBA { step } else { sigmoid(b) };
            self.gates
                .push((exp(-exp(input.decay.a_log[head]) * step), weight));
        }
    }
}

/// Appends each head of `x`, `width` elements, scaled to unit length and multiplied by `scale`.
fn append_unit(x: &[f32], width: usize, scale: f32, out: &mut Vec<f32>) {
    for head in x.chunks_exact(width) {
        let mut sum = 0.0;
        head.iter().for_each(|x| sum += x * x);
        let unit = 1.0 / (sum + UNIT_EPS).sqrt();
        out.extend(head.iter().map(|x| x * unit * scale));
    }
}

/// `ln(1 + e^x)`.
fn softplus(x: f32) -> f32 {
    let x = f64::from(x);
    (x.max(0.0) + libm::log1p(libm::exp(-x.abs()))) as f32
}

/// The rows of one sequence through one value head.
struct Recurrence<'a, D> {
    scratch: &'a Scratch,
    /// Queries, keys and values after the convolution, `[row][q | k | v]`.
    values: &'a [f32],
    /// Matrix state of the head, `[column group][key dim][16 columns]`.
    state: &'a mut [f32],
    /// Factor of the value that is added to the result; 0 with Gated DeltaNet.
    skip: f32,
    /// Range of the sequence's rows in the step.
    rows: Range<usize>,
    head: usize,
    out: &'a Shared<'a, f32>,
    shape: PhantomData<D>,
}

/// Column groups that are computed together, so that their chains of additions overlap.
const GROUPS: usize = 4;

impl<D: shapes::Delta> Kernel for Recurrence<'_, D> {
    #[inline(always)]
    fn run<V: Vector>(mut self) {
        let mut group = 0;
        while group + GROUPS <= D::COLUMN_LANES {
            self.columns::<V, GROUPS>(group);
            group += GROUPS;
        }
        while group < D::COLUMN_LANES {
            self.columns::<V, 1>(group);
            group += 1;
        }
    }
}

impl<D: shapes::Delta> Recurrence<'_, D> {
    /// Computes all rows on `G` column groups, whose state stays in the first-level cache.
    #[inline(always)]
    fn columns<V: Vector, const G: usize>(&mut self, first: usize) {
        let state = &mut self.state[first * D::GROUP_STATE..][..G * D::GROUP_STATE];
        for row in self.rows.clone() {
            let key_start = row * D::KEYS + self.head / D::GROUP * D::KEY_DIM;
            let step = Step {
                query: &self.scratch.queries[key_start..][..D::KEY_DIM],
                key: &self.scratch.keys[key_start..][..D::KEY_DIM],
                gates: self.scratch.gates[row * D::VALUE_HEADS + self.head],
            };
            let value = row * D::QKV + 2 * D::KEYS + self.head * D::VALUE_DIM;
            let value = &self.values[value..][..D::VALUE_DIM];
            let value: [Lanes; G] =
                std::array::from_fn(|g| Lanes::load_part(&value[(first + g) * LANES..]));
            let out = row * D::VALUES + self.head * D::VALUE_DIM;
            // SAFETY: the rows and this head belong to this task.
            let out = unsafe { self.out.range(out..out + D::VALUE_DIM) };
            let parts = out.chunks_mut(LANES).skip(first);
            let results = match D::MAMBA {
                false => step.apply::<V, G>(state.as_chunks_mut().0, value),
                true => step.apply_whole::<V, G>(state.as_chunks_mut().0, value, self.skip),
            };
            for (out, result) in parts.zip(results) {
                result.lanes().store(out);
            }
        }
    }
}

/// One row of the recurrence.
struct Step<'a> {
    query: &'a [f32],
    key: &'a [f32],
    /// Factor of the state, and weight of the update.
    gates: (f32, f32),
}

impl Step<'_> {
    /// The rule of Mamba-2: as `apply`, without subtracting the state's prediction from the value.
    #[inline(always)]
    fn apply_whole<V: Vector, const G: usize>(
        &self,
        state: &mut [[f32; LANES]],
        value: [Lanes; G],
        skip: f32,
    ) -> [V; G] {
        let (key_dim, decay) = (self.key.len(), V::splat(self.gates.0));
        let scaled = |value: Lanes, factor| V::load(&value.map(|value| value * factor).0);
        let update: [V; G] = std::array::from_fn(|g| scaled(value[g], self.gates.1));
        let mut out = [V::splat(0.0); G];
        for (dim, (&key, &query)) in self.key.iter().zip(self.query).enumerate() {
            for (g, out) in out.iter_mut().enumerate() {
                let state = &mut state[g * key_dim + dim];
                let decayed = V::load(state).mul(decay);
                let updated = decayed.add(update[g].mul(V::splat(key)));
                *state = updated.lanes().0;
                *out = out.add(updated.mul(V::splat(query)));
            }
        }
        std::array::from_fn(|g| out[g].add(scaled(value[g], skip)))
    }

    /// Updates `G` column groups; returns their outputs.
    #[inline(always)]
    fn apply<V: Vector, const G: usize>(
        &self,
        state: &mut [[f32; LANES]],
        value: [Lanes; G],
    ) -> [V; G] {
        let key_dim = self.key.len();
        let (decay, weight) = (V::splat(self.gates.0), self.gates.1);
        let mut recalled = [V::splat(0.0); G];
        for (dim, &key) in self.key.iter().enumerate() {
            for (g, recalled) in recalled.iter_mut().enumerate() {
                let state = &mut state[g * key_dim + dim];
                let decayed = V::load(state).mul(decay);
                *state = decayed.lanes().0;
                *recalled = recalled.add(decayed.mul(V::splat(key)));
            }
        }
        let update: [V; G] = std::array::from_fn(|g| {
            let update = value[g]
                .sub(recalled[g].lanes())
                .map(|difference| difference * weight);
            V::load(&update.0)
        });
        let mut out = [V::splat(0.0); G];
        for (dim, (&key, &query)) in self.key.iter().zip(self.query).enumerate() {
            for (g, out) in out.iter_mut().enumerate() {
                let state = &mut state[g * key_dim + dim];
                let updated = V::load(state).add(update[g].mul(V::splat(key)));
                *state = updated.lanes().0;
                *out = out.add(updated.mul(V::splat(query)));
            }
        }
        out
    }
}
