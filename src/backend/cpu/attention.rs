//! Rotary embedding, the paged cache, and causal attention of one head of one row.

use crate::engine::executor::PageId;
use crate::ops::Batch;
use crate::target::{HEAD_DIM, HEADS, KV_HEADS, MAX_CONTEXT, PAGE, ROPE_THETA, ROTARY_DIM};

use super::elementwise::inverse_rms;
use super::lanes::{LANES, Lanes, exp};
use super::wide::{Kernel, Vector, widest};

/// Rotated pairs of a head.
const PAIRS: usize = ROTARY_DIM / 2;
/// Groups of positions of a page that are scored together.
const PAGE_LANES: usize = PAGE / LANES;
/// Groups of dimensions of a value; the last may be partly used.
const HEAD_LANES: usize = HEAD_DIM.div_ceil(LANES);
/// Elements that a value takes in the cache.
const VALUE_STRIDE: usize = HEAD_LANES * LANES;

const _: () = assert!(PAGE.is_multiple_of(LANES) && HEADS.is_multiple_of(KV_HEADS));
const _: () = assert!(ROTARY_DIM.is_multiple_of(2) && ROTARY_DIM <= HEAD_DIM);

/// Cosine and sine of every pair's angle, for the positions seen so far.
#[derive(Default)]
pub struct Rope {
    /// `[position][PAIRS]` of (cosine, sine).
    table: Vec<[(f32, f32); PAIRS]>,
}

impl Rope {
    /// Extends the table to the positions of the batch.
    pub fn cover(&mut self, batch: &Batch) {
        let end = batch
            .positions()
            .iter()
            .max()
            .map_or(0, |position| position + 1);
        assert!(end <= MAX_CONTEXT);
        if self.table.len() < end {
            self.table.extend((self.table.len()..end).map(angles));
        }
    }

    /// `head = rotate(head * inverse_rms(head) * w)`.
    pub fn norm_and_rotate(&self, head: &mut [f32], w: &[f32], position: usize) {
        let scale = inverse_rms(head);
        for (x, w) in head.iter_mut().zip(w) {
            *x = *x * scale * w;
        }
        let (low, high) = head[..ROTARY_DIM].split_at_mut(PAIRS);
        for ((low, high), &(cos, sin)) in low.iter_mut().zip(high).zip(&self.table[position]) {
            (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
        }
    }
}

/// Frequencies and angles are rounded to F32, as in the models' training code.
fn angles(position: usize) -> [(f32, f32); PAIRS] {
    std::array::from_fn(|pair| {
        let frequency = libm::pow(ROPE_THETA, -2.0 * pair as f64 / ROTARY_DIM as f64) as f32;
        let angle = f64::from(position as f32 * frequency);
        (libm::cos(angle) as f32, libm::sin(angle) as f32)
    })
}

/// Keys and values of one layer. Pages are backed by memory once they are written.
pub struct KvCache {
    /// `[page][kv head][dim][position]`: positions side by side, for scores of many at once.
    keys: Vec<f32>,
    /// `[page][kv head][position][VALUE_STRIDE]`.
    values: Vec<f32>,
}

impl KvCache {
    /// What a cache of so many pages takes.
    pub fn bytes(pages: usize) -> u64 {
        (pages * KV_HEADS * PAGE * (HEAD_DIM + VALUE_STRIDE) * size_of::<f32>()) as u64
    }

    pub fn new(pages: usize) -> KvCache {
        let positions = pages * KV_HEADS * PAGE;
        KvCache {
            keys: vec![0.0; positions * HEAD_DIM],
            values: vec![0.0; positions * VALUE_STRIDE],
        }
    }

    /// All keys, then all values.
    pub fn elements(&self) -> Vec<f32> {
        [&self.keys[..], &self.values].concat()
    }

    /// Writes one position, `k, v [KV_HEADS * HEAD_DIM]`.
    pub fn store(&mut self, page: PageId, offset: usize, k: &[f32], v: &[f32]) {
        for (head, (k, v)) in k
            .chunks_exact(HEAD_DIM)
            .zip(v.chunks_exact(HEAD_DIM))
            .enumerate()
        {
            let block = block(page, head);
            self.values[(block + offset) * VALUE_STRIDE..][..HEAD_DIM].copy_from_slice(v);
            for (dim, &k) in k.iter().enumerate() {
                self.keys[block * HEAD_DIM + dim * PAGE + offset] = k;
            }
        }
    }
}

/// First of the `PAGE` positions of a page and head.
fn block(page: PageId, kv_head: usize) -> usize {
    (page.0 as usize * KV_HEADS + kv_head) * PAGE
}

/// `out = sum_j softmax_j(query . k[j] / sqrt(HEAD_DIM)) v[j]` over positions `j <= position`.
///
/// Page by page with a running maximum, so the arithmetic depends on the position alone.
pub fn attend(
    query: &[f32],
    cache: &KvCache,
    head: usize,
    pages: &[PageId],
    position: usize,
    out: &mut [f32],
) {
    let kv_head = head / (HEADS / KV_HEADS);
    widest(Attend {
        query,
        cache,
        kv_head,
        pages,
        position,
        out,
    });
}

struct Attend<'a> {
    query: &'a [f32],
    cache: &'a KvCache,
    kv_head: usize,
    pages: &'a [PageId],
    position: usize,
    out: &'a mut [f32],
}

impl Kernel for Attend<'_> {
    #[inline(always)]
    fn run<V: Vector>(self) {
        let mut max = f32::NEG_INFINITY;
        let mut sum = 0.0;
        let mut mixed = [V::splat(0.0); HEAD_LANES];
        for (index, &page) in self.pages[..self.position / PAGE + 1].iter().enumerate() {
            let live = PAGE.min(self.position + 1 - index * PAGE);
            let block = block(page, self.kv_head);
            let mut scores =
                self.scores::<V>(&self.cache.keys[block * HEAD_DIM..][..HEAD_DIM * PAGE]);
            let page_max = scores[..live]
                .iter()
                .fold(max, |max, &score| max.max(score));
            let scale = exp(max - page_max);
            max = page_max;
            weigh(&mut scores, max);
            sum *= scale;
            mixed
                .iter_mut()
                .for_each(|lanes| *lanes = lanes.mul(V::splat(scale)));
            let values = &self.cache.values[block * VALUE_STRIDE..][..live * VALUE_STRIDE];
            for (value, &weight) in values.chunks_exact(VALUE_STRIDE).zip(&scores) {
                sum += weight;
                for (lanes, value) in mixed.iter_mut().zip(value.as_chunks().0) {
                    *lanes = lanes.add(V::load(value).mul(V::splat(weight)));
                }
            }
        }
        for (out, lanes) in self.out.chunks_mut(LANES).zip(mixed) {
            lanes.lanes().map(|value| value / sum).store(out);
        }
    }
}

impl Attend<'_> {
    /// Scaled scores of all positions of a page; those beyond the row's own mean nothing.
    #[inline(always)]
    fn scores<V: Vector>(&self, keys: &[f32]) -> [f32; PAGE] {
        let mut sums = [V::splat(0.0); PAGE_LANES];
        for (&q, keys) in self.query.iter().zip(keys.chunks_exact(PAGE)) {
            for (sum, keys) in sums.iter_mut().zip(keys.as_chunks().0) {
                *sum = sum.add(V::load(keys).mul(V::splat(q)));
            }
        }
        let scale = 1.0 / (HEAD_DIM as f32).sqrt();
        let mut scores = [0.0; PAGE];
        for (scores, sum) in scores.chunks_exact_mut(LANES).zip(sums) {
            sum.mul(V::splat(scale)).lanes().store(scores);
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
