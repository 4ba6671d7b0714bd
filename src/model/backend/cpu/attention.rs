//! Rotary embedding, the paged cache, and causal attention of one head of one row.

use std::any::TypeId;
use std::borrow::Cow;
use std::marker::PhantomData;

use crate::ops::{Attend, Batch, PoolRegion};
use crate::shapes;
use crate::target::{FORMAT_KV, KvFormat, MAX_CONTEXT, PAGE};
use step::executor::{BlockTable, PageId};

use super::elementwise::{inverse_rms, mul_sigmoid, unit_rms};
use super::lanes::{LANES, Lanes, exp};
use super::pieces::{LayerPart, Pieces, Starts};
use super::share::Shared;
use super::wide::{Kernel, Vector, widest};
use super::{Cpu, Tensor, kv_fp8, split};

/// Groups of positions of a page that are scored together.
const PAGE_LANES: usize = PAGE / LANES;
/// Largest number of groups of dimensions of a value.
const HEAD_LANES_MAX: usize = 32;

const _: () = assert!(PAGE.is_multiple_of(LANES));

/// Layout of a shape's values in the cache and in registers.
trait Lay: shapes::Attention {
    /// Groups of dimensions of a value; the last may be partly used.
    const HEAD_LANES: usize = Self::VALUE_DIM.div_ceil(LANES);
    /// Elements that a value takes in the cache.
    const VALUE_STRIDE: usize = Self::HEAD_LANES * LANES;
    /// Elements of a page's keys; the page's values follow.
    const PAGE_KEYS: usize = Self::KV_HEADS * PAGE * Self::HEAD_DIM;
    /// Elements of a page of one layer.
    const PAGE_ELEMENTS: usize = Self::PAGE_KEYS + Self::KV_HEADS * PAGE * Self::VALUE_STRIDE;
    /// Fails to compile where a value is wider than a query's accumulators.
    const FITS: () = assert!(Self::HEAD_LANES <= HEAD_LANES_MAX);
}

impl<A: shapes::Attention> Lay for A {}

/// Tables of rotary embedding: cosine and sine of each pair's angle, by shape, for the positions
/// used so far.
#[derive(Default)]
pub struct Ropes(Vec<(TypeId, Rope)>);

impl Ropes {
    /// The table of a shape, extended to the positions of the batch.
    pub fn covering<A: shapes::Attention>(&mut self, batch: &Batch) -> &Rope {
        let id = TypeId::of::<A>();
        let known = self.0.iter().position(|(of, _)| *of == id);
        let index = known.unwrap_or_else(|| {
            self.0.push((id, Rope::default()));
            self.0.len() - 1
        });
        let rope = &mut self.0[index].1;
        rope.cover::<A>(batch);
        rope
    }
}

/// Angles of one shape's rotary embedding.
#[derive(Default)]
pub struct Rope {
    /// Cosine and sine of angles, `[position][PAIRS]`.
    table: Vec<(f32, f32)>,
}

impl Rope {
    fn cover<A: shapes::Attention>(&mut self, batch: &Batch) {
        let last = batch.positions().iter().max();
        let end = last.map_or(0, |position| position + 1);
        assert!(end <= MAX_CONTEXT);
        for position in self.table.len() / A::PAIRS..end {
            let rotation = |pair| A::ROPE.rotation(position, pair, A::ROTARY_DIM);
            self.table.extend((0..A::PAIRS).map(rotation));
        }
    }

    /// `head = rotate(head * inverse_rms(head) * w)`; no norm without `w`. A `w` shorter than the
    /// head norms its last elements.
    pub fn norm_and_rotate<A: shapes::Attention>(
        &self,
        head: &mut [f32],
        w: Option<&[f32]>,
        position: usize,
    ) {
        if let Some(w) = w {
            let normed = &mut head[A::HEAD_DIM - w.len()..];
            let scale = inverse_rms(normed);
            for (x, w) in normed.iter_mut().zip(w) {
                *x = *x * scale * w;
            }
        }
        let rotations = &self.table[position * A::PAIRS..][..A::PAIRS];
        let (low, high) = head[..A::ROTARY_DIM].split_at_mut(A::PAIRS);
        for ((low, high), &(cos, sin)) in low.iter_mut().zip(high).zip(rotations) {
            (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
        }
    }
}

/// Keys and values of one layer. In the layer's part of a page first lie keys, `[kv
/// head][dim][position]`: positions side by side, so that many are scored at once. Then values,
/// `[kv head][position][VALUE_STRIDE]`, even where values are latents of keys.
pub struct KvCache<A> {
    part: LayerPart,
    shape: PhantomData<A>,
}

impl<A: shapes::Attention> KvCache<A> {
    /// Copy of the elements of all pages.
    pub fn elements(&self) -> Vec<f32> {
        self.part.read().clone()
    }

    /// Writes the keys `k [KEYS]` of one position and its values: `v`, or the latents in `k`.
    pub fn store(&mut self, page: PageId, offset: usize, k: &[f32], v: &[f32]) {
        let (mut all, k, v) = (self.part.write(), as_cached::<A>(k), as_cached::<A>(v));
        for (head, (k, v)) in k
            .chunks_exact(A::HEAD_DIM)
            .zip(v.chunks_exact(A::HEAD_DIM))
            .enumerate()
        {
            let [keys, values] = starts_of::<A>(self.part.starts, page, head);
            let v = &v[A::HEAD_DIM - A::VALUE_DIM..];
            all[values + offset * A::VALUE_STRIDE..][..A::VALUE_DIM].copy_from_slice(v);
            for (dim, &k) in k.iter().enumerate() {
                all[keys + dim * PAGE + offset] = k;
            }
        }
    }
}

/// A row of keys or values rounded as the target's pages hold it.
pub fn as_cached<A: shapes::Attention>(row: &[f32]) -> Cow<'_, [f32]> {
    let mut row = Cow::Borrowed(row);
    if FORMAT_KV == KvFormat::Fp8 {
        let heads = row.to_mut().chunks_exact_mut(A::HEAD_DIM);
        heads.for_each(kv_fp8::round);
    }
    row
}

impl<A: shapes::Attention> Attend<A> for Cpu {
    type KvCache = KvCache<A>;

    const PAGE_BYTES: usize = A::PAGE_ELEMENTS * size_of::<f32>();

    fn cache_at(&self, region: PoolRegion<Pieces>) -> KvCache<A> {
        let ((), ()) = (A::CHECK, A::FITS);
        KvCache {
            part: LayerPart::of(region),
            shape: PhantomData,
        }
    }

    fn store_kv(
        &mut self,
        q: &mut Tensor,
        k: &mut Tensor,
        v: Option<&Tensor>,
        norms: [Option<&Vec<f32>>; 2],
        cache: &mut KvCache<A>,
        batch: &Batch,
    ) {
        assert_eq!(norms.map(|w| w.map_or(0, Vec::len)), A::NORMS);
        assert_eq!(v.is_none(), A::LATENT);
        let [of_q, of_k] = norms.map(|w| w.map(|w| &w[..]));
        self.norm_and_rotate::<A>(q, A::QUERY, of_q, batch);
        self.norm_and_rotate::<A>(k, A::HEAD_DIM, of_k, batch);
        let mut normed = vec![0.0; A::KEYS];
        for row in 0..batch.rows() {
            let position = batch.positions()[row];
            let page = batch.table_of::<A>(row).page(position);
            normed.copy_from_slice(v.unwrap_or(k).row(row));
            if A::VALUES_NORMED {
                normed.chunks_exact_mut(A::HEAD_DIM).for_each(unit_rms);
            }
            cache.store(page, position % PAGE, k.row(row), &normed);
        }
    }

    fn attend(
        &mut self,
        q: &Tensor,
        cache: &KvCache<A>,
        sinks: Option<&Vec<f32>>,
        batch: &Batch,
        out: &mut Tensor,
    ) {
        assert_eq!(sinks.map(Vec::len), A::SINKS.then_some(A::HEADS));
        out.shape(q.rows, A::MIXED);
        let last = batch.positions().iter().max();
        let longest = last.map_or(0, |position| position + 1);
        let out = Shared::new(&mut out.values);
        let (all, starts) = (&cache.part.read()[..], cache.part.starts);
        let work = 2 * longest * A::HEAD_DIM;
        split(&mut self.pool, q.rows * A::HEADS, work, |items| {
            for item in items {
                let (row, head) = (item / A::HEADS, item % A::HEADS);
                let range = item * A::VALUE_DIM..(item + 1) * A::VALUE_DIM;
                // SAFETY: each row and head belongs to one task.
                let out = unsafe { out.range(range) };
                let (query, gate) = q.row(row)[head * A::QUERY..][..A::QUERY].split_at(A::HEAD_DIM);
                let (table, position) = (batch.table_of::<A>(row), batch.positions()[row]);
                widest(Query {
                    query,
                    all,
                    starts,
                    kv_head: head / A::GROUP,
                    table,
                    position,
                    sink: sinks.map(|sinks| sinks[head]),
                    out,
                    shape: PhantomData::<A>,
                });
                if A::GATED {
                    mul_sigmoid(out, gate);
                }
            }
        });
    }
}

impl Cpu {
    /// Norms (if there is a `w`) and rotates heads in place, one every `stride` elements of a row.
    pub(super) fn norm_and_rotate<A: shapes::Attention>(
        &mut self,
        x: &mut Tensor,
        stride: usize,
        w: Option<&[f32]>,
        batch: &Batch,
    ) {
        let (width, rows) = (x.width, x.rows);
        let rope = self.ropes.covering::<A>(batch);
        let values = Shared::new(&mut x.values);
        split(&mut self.pool, rows, 4 * width, |rows| {
            for row in rows {
                // SAFETY: each row belongs to one task.
                let row_values = unsafe { values.range(row * width..(row + 1) * width) };
                for head in row_values.chunks_exact_mut(stride) {
                    let (head, position) = (&mut head[..A::HEAD_DIM], batch.positions()[row]);
                    rope.norm_and_rotate::<A>(head, w, position);
                }
            }
        });
    }
}

/// First element of a head's keys and of its values in a page.
fn starts_of<A: shapes::Attention>(starts: Starts, page: PageId, kv_head: usize) -> [usize; 2] {
    let (start, block) = (starts.of(page.0), kv_head * PAGE);
    let values = start + A::PAGE_KEYS;
    [
        start + block * A::HEAD_DIM,
        values + block * A::VALUE_STRIDE,
    ]
}

/// One head of one row: `out = sum_j softmax_j(SCALE query . k[j]) v[j]` over positions `j <=
/// position` from the first one that the row sees.
///
/// Page by page with a running maximum, so the arithmetic depends on the position alone.
struct Query<'a, A> {
    query: &'a [f32],
    /// Keys and values of the layer in all pages.
    all: &'a [f32],
    starts: Starts,
    kv_head: usize,
    table: BlockTable<'a>,
    position: usize,
    /// Logit of the head's sink, which takes a share of the softmax and has no value.
    sink: Option<f32>,
    out: &'a mut [f32],
    shape: PhantomData<A>,
}

impl<A: shapes::Attention> Kernel for Query<'_, A> {
    #[inline(always)]
    fn run<V: Vector>(self) {
        let mut max = f32::NEG_INFINITY;
        let mut sum = 0.0;
        let mut mixed = [V::splat(0.0); HEAD_LANES_MAX];
        let mixed = &mut mixed[..A::HEAD_LANES];
        let first = A::first_seen(self.position);
        for index in first / PAGE..=self.position / PAGE {
            let page = self.table.page(index * PAGE);
            let live = PAGE.min(self.position + 1 - index * PAGE);
            let unseen = first.saturating_sub(index * PAGE);
            let [keys, values] = starts_of::<A>(self.starts, page, self.kv_head);
            let mut scores = self.scores::<V>(&self.all[keys..][..A::HEAD_DIM * PAGE]);
            let page_max = scores[unseen..live]
                .iter()
                .fold(max, |max, &score| max.max(score));
            let scale = exp(max - page_max);
            max = page_max;
            weigh(&mut scores, max);
            sum *= scale;
            mixed
                .iter_mut()
                .for_each(|lanes| *lanes = lanes.mul(V::splat(scale)));
            let values = &self.all[values..][..live * A::VALUE_STRIDE];
            let values = values.chunks_exact(A::VALUE_STRIDE);
            for (value, &weight) in values.zip(&scores).skip(unseen) {
                sum += weight;
                for (lanes, value) in mixed.iter_mut().zip(value.as_chunks().0) {
                    *lanes = lanes.add(V::load(value).mul(V::splat(weight)));
                }
            }
        }
        if let Some(sink) = self.sink {
            let most = max.max(sink);
            let scale = exp(max - most);
            sum = sum * scale + exp(sink - most);
            mixed
                .iter_mut()
                .for_each(|lanes| *lanes = lanes.mul(V::splat(scale)));
        }
        for (out, lanes) in self.out.chunks_mut(LANES).zip(mixed) {
            lanes.lanes().map(|value| value / sum).store(out);
        }
    }
}

impl<A: shapes::Attention> Query<'_, A> {
    /// Scaled scores of all positions of a page; those after the row's position are meaningless.
    #[inline(always)]
    fn scores<V: Vector>(&self, keys: &[f32]) -> [f32; PAGE] {
        let mut sums = [V::splat(0.0); PAGE_LANES];
        for (&q, keys) in self.query.iter().zip(keys.chunks_exact(PAGE)) {
            for (sum, keys) in sums.iter_mut().zip(keys.as_chunks().0) {
                *sum = sum.add(V::load(keys).mul(V::splat(q)));
            }
        }
        let mut scores = [0.0; PAGE];
        for (scores, sum) in scores.chunks_exact_mut(LANES).zip(sums) {
            sum.mul(V::splat(A::SCALE)).lanes().store(scores);
        }
        scores
    }
}

/// `scores = exp(scores - max)`.
#[inline(always)]
fn weigh(scores: &mut [f32; PAGE], max: f32) {
    for scores in scores.chunks_exact_mut(LANES) {
        Lanes::load(scores)
            .map(|score| exp(score - max))
            .store(scores);
    }
}
