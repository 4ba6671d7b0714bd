//! Gated DeltaNet: convolution tail and recurrent state, row by row.

use crate::ops::{Batch, GatedDelta, Span};
use crate::target::{
    GDN_CONV, GDN_KEY_DIM, GDN_KEY_HEADS, GDN_VALUE_DIM, GDN_VALUE_HEADS, MAX_SEQUENCES,
};
use crate::weights::{GDN_QKV, GDN_VALUES};

use super::lanes::{LANES, Lanes, exp, sigmoid, silu};
use super::pool::Pool;
use super::share::Shared;
use super::wide::{Kernel, Vector, widest};
use super::{Cpu, Tensor, split};

/// Inputs of the convolution that a sequence carries over to the next step.
const TAIL: usize = GDN_CONV - 1;
/// Groups of value columns; the last may be partly used.
const COLUMN_LANES: usize = GDN_VALUE_DIM.div_ceil(LANES);
/// Elements of one column group of one head's matrix state.
const GROUP_STATE: usize = GDN_KEY_DIM * LANES;
/// Elements of one head's matrix state.
const HEAD_STATE: usize = COLUMN_LANES * GROUP_STATE;
/// Value heads that share a key head.
const HEAD_GROUP: usize = GDN_VALUE_HEADS / GDN_KEY_HEADS;
/// Elements of all queries (or keys) of a row.
const KEYS: usize = GDN_KEY_HEADS * GDN_KEY_DIM;
/// Added to the squared length of queries and keys.
const UNIT_EPS: f32 = 1e-6;

const _: () = assert!(GDN_VALUE_HEADS.is_multiple_of(GDN_KEY_HEADS) && GDN_CONV >= 2);

/// State of one layer, all slots. Backed by memory once a slot is used.
pub struct GdnState {
    /// `[slot][TAIL][GDN_QKV]`, oldest first.
    pub(super) tails: Vec<f32>,
    /// `[slot][value head][column group][key dim][16 columns]`.
    pub(super) matrices: Vec<f32>,
}

impl GdnState {
    const TAILS: usize = MAX_SEQUENCES * TAIL * GDN_QKV;
    const MATRICES: usize = MAX_SEQUENCES * GDN_VALUE_HEADS * HEAD_STATE;
    /// What it takes.
    pub const BYTES: u64 = ((Self::TAILS + Self::MATRICES) * size_of::<f32>()) as u64;

    pub fn new() -> GdnState {
        GdnState {
            tails: vec![0.0; Self::TAILS],
            matrices: vec![0.0; Self::MATRICES],
        }
    }
}

/// Queries, keys and gates of a step, ready for the recurrence.
#[derive(Default)]
pub struct Scratch {
    /// `[row][KEYS]`, unit length times `1 / sqrt(GDN_KEY_DIM)`.
    queries: Vec<f32>,
    /// `[row][KEYS]`, unit length.
    keys: Vec<f32>,
    /// `[row][GDN_VALUE_HEADS]` of (factor on the state, weight of the update).
    gates: Vec<(f32, f32)>,
}

/// See `Ops::conv_silu`; in place.
pub fn conv_silu(pool: &mut Pool, x: &mut Tensor, w: &[f32], state: &mut GdnState, batch: &Batch) {
    assert_eq!((x.width, w.len()), (GDN_QKV, GDN_QKV * GDN_CONV));
    let groups = GDN_QKV.div_ceil(LANES);
    let work = batch.rows() * LANES * (GDN_CONV + 8);
    let values = Shared::new(&mut x.values);
    let tails = Shared::new(&mut state.tails);
    split(pool, groups, work, |groups| {
        for group in groups {
            let channels = group * LANES..GDN_QKV.min((group + 1) * LANES);
            let taps = taps(w, channels.start, channels.len());
            for span in batch.spans() {
                // SAFETY: each group of channels belongs to one task.
                let column = unsafe { Column::new(&values, &tails, span, channels.clone()) };
                column.convolve(&taps);
            }
        }
    });
}

/// Weights of a group of channels by tap.
fn taps(w: &[f32], first: usize, count: usize) -> [Lanes; GDN_CONV] {
    std::array::from_fn(|tap| {
        let mut lanes = Lanes::ZERO;
        for lane in 0..count {
            lanes.0[lane] = w[(first + lane) * GDN_CONV + tap];
        }
        lanes
    })
}

/// A group of channels of one sequence's rows, with its tail.
struct Column<'a> {
    values: &'a Shared<'a, f32>,
    tails: &'a Shared<'a, f32>,
    span: &'a Span,
    channels: std::ops::Range<usize>,
}

impl<'a> Column<'a> {
    /// # Safety
    /// No other thread touches these channels of the span's rows and of its slot's tail.
    unsafe fn new(
        values: &'a Shared<'a, f32>,
        tails: &'a Shared<'a, f32>,
        span: &'a Span,
        channels: std::ops::Range<usize>,
    ) -> Column<'a> {
        Column {
            values,
            tails,
            span,
            channels,
        }
    }

    fn convolve(&self, taps: &[Lanes; GDN_CONV]) {
        let rows = self.span.rows.len();
        let tail: [Lanes; TAIL] = std::array::from_fn(|index| match self.span.start {
            0 => Lanes::ZERO,
            _ => Lanes::load_part(self.tail(index)),
        });
        // Input `index` counts from the tail's oldest entry.
        let input = |index: usize| match index < TAIL {
            true => tail[index],
            false => Lanes::load_part(self.row(index - TAIL)),
        };
        for index in 0..TAIL {
            input(rows + index).store(self.tail(index));
        }
        // Backwards, because a row's output takes the place of its input.
        for row in (0..rows).rev() {
            let mut sum = Lanes::ZERO;
            for (tap, weights) in taps.iter().enumerate() {
                sum = sum.add(weights.mul(input(row + tap)));
            }
            sum.map(silu).store(self.row(row));
        }
    }

    #[allow(clippy::mut_from_ref)] // one live slice at a time, within this thread
    fn row(&self, row: usize) -> &mut [f32] {
        let start = (self.span.rows.start + row) * GDN_QKV;
        // SAFETY: the contract of `new`.
        unsafe {
            self.values
                .range(start + self.channels.start..start + self.channels.end)
        }
    }

    #[allow(clippy::mut_from_ref)] // as above
    fn tail(&self, index: usize) -> &mut [f32] {
        let start = (self.span.slot.0 as usize * TAIL + index) * GDN_QKV;
        // SAFETY: the contract of `new`.
        unsafe {
            self.tails
                .range(start + self.channels.start..start + self.channels.end)
        }
    }
}

/// See `Ops::gated_delta`.
pub fn gated_delta(
    pool: &mut Pool,
    scratch: &mut Scratch,
    input: GatedDelta<'_, Cpu>,
    state: &mut GdnState,
    batch: &Batch,
    out: &mut Tensor,
) {
    scratch.fill(&input);
    out.shape(batch.rows(), GDN_VALUES);
    let spans = batch.spans();
    let longest = spans.iter().map(|span| span.rows.len()).max().unwrap_or(0);
    let (scratch, values) = (&*scratch, &input.qkv.values);
    let out = Shared::new(&mut out.values);
    let matrices = Shared::new(&mut state.matrices);
    let items = spans.len() * GDN_VALUE_HEADS;
    split(pool, items, longest * HEAD_STATE * 2, |items| {
        for item in items {
            let (span, head) = (&spans[item / GDN_VALUE_HEADS], item % GDN_VALUE_HEADS);
            let start = (span.slot.0 as usize * GDN_VALUE_HEADS + head) * HEAD_STATE;
            // SAFETY: each sequence and head belongs to one task.
            let state = unsafe { matrices.range(start..start + HEAD_STATE) };
            if span.start == 0 {
                state.fill(0.0);
            }
            widest(Recurrence {
                scratch,
                values,
                state,
                span,
                head,
                out: &out,
            });
        }
    });
}

impl Scratch {
    fn fill(&mut self, input: &GatedDelta<'_, Cpu>) {
        self.queries.clear();
        self.keys.clear();
        self.gates.clear();
        for row in input.qkv.values.chunks_exact(GDN_QKV) {
            let scale = 1.0 / (GDN_KEY_DIM as f32).sqrt();
            append_unit(&row[..KEYS], scale, &mut self.queries);
            append_unit(&row[KEYS..2 * KEYS], 1.0, &mut self.keys);
        }
        for (index, (&a, &b)) in input.a.values.iter().zip(&input.b.values).enumerate() {
            let head = index % GDN_VALUE_HEADS;
            let rate = exp(input.a_log[head]) * softplus(a + input.dt_bias[head]);
            self.gates.push((exp(-rate), sigmoid(b)));
        }
    }
}

/// Appends each head of `x` scaled to unit length, times `scale`.
fn append_unit(x: &[f32], scale: f32, out: &mut Vec<f32>) {
    for head in x.chunks_exact(GDN_KEY_DIM) {
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
struct Recurrence<'a> {
    scratch: &'a Scratch,
    /// `[row][q | k | v]` after the convolution.
    values: &'a [f32],
    /// `[column group][key dim][16 columns]`.
    state: &'a mut [f32],
    span: &'a Span,
    head: usize,
    out: &'a Shared<'a, f32>,
}

/// Column groups that are worked on together, so that their chains of additions overlap.
const GROUPS: usize = 4;

impl Kernel for Recurrence<'_> {
    #[inline(always)]
    fn run<V: Vector>(mut self) {
        let mut group = 0;
        while group + GROUPS <= COLUMN_LANES {
            self.columns::<V, GROUPS>(group);
            group += GROUPS;
        }
        while group < COLUMN_LANES {
            self.columns::<V, 1>(group);
            group += 1;
        }
    }
}

impl Recurrence<'_> {
    /// All rows on `G` column groups, whose state stays in the first-level cache meanwhile.
    #[inline(always)]
    fn columns<V: Vector, const G: usize>(&mut self, first: usize) {
        let state = &mut self.state[first * GROUP_STATE..][..G * GROUP_STATE];
        for row in self.span.rows.clone() {
            let key_start = row * KEYS + self.head / HEAD_GROUP * GDN_KEY_DIM;
            let step = Step {
                query: &self.scratch.queries[key_start..][..GDN_KEY_DIM],
                key: &self.scratch.keys[key_start..][..GDN_KEY_DIM],
                gates: self.scratch.gates[row * GDN_VALUE_HEADS + self.head],
            };
            let value = row * GDN_QKV + 2 * KEYS + self.head * GDN_VALUE_DIM;
            let value = &self.values[value..][..GDN_VALUE_DIM];
            let value: [Lanes; G] =
                std::array::from_fn(|g| Lanes::load_part(&value[(first + g) * LANES..]));
            let out = row * GDN_VALUES + self.head * GDN_VALUE_DIM;
            // SAFETY: the rows and this head belong to this task.
            let out = unsafe { self.out.range(out..out + GDN_VALUE_DIM) };
            let parts = out.chunks_mut(LANES).skip(first);
            for (out, result) in parts.zip(step.apply::<V, G>(state.as_chunks_mut().0, value)) {
                result.lanes().store(out);
            }
        }
    }
}

/// One row of the recurrence.
struct Step<'a> {
    query: &'a [f32],
    key: &'a [f32],
    /// Factor on the state, weight of the update.
    gates: (f32, f32),
}

impl Step<'_> {
    /// Updates `G` column groups; returns their outputs.
    #[inline(always)]
    fn apply<V: Vector, const G: usize>(
        &self,
        state: &mut [[f32; LANES]],
        value: [Lanes; G],
    ) -> [V; G] {
        let (decay, weight) = (V::splat(self.gates.0), self.gates.1);
        let mut recalled = [V::splat(0.0); G];
        for (dim, &key) in self.key.iter().enumerate() {
            for (g, recalled) in recalled.iter_mut().enumerate() {
                let state = &mut state[g * GDN_KEY_DIM + dim];
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
                let state = &mut state[g * GDN_KEY_DIM + dim];
                let updated = V::load(state).add(update[g].mul(V::splat(key)));
                *state = updated.lanes().0;
                *out = out.add(updated.mul(V::splat(query)));
            }
        }
        out
    }
}
