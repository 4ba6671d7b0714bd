//! Attention on the GPU.

use std::ptr;

use ffi::ops::{self, atlas_bf16};
use ffi::{Device, DeviceBuf, Stream};

use super::step::CELL_TILE_TOKENS;
use super::{Cuda, FEW_ROWS, Tensor, Vector, count, memory, refused};
use crate::executor::DeviceError;
use crate::ops::{Attend, Batch, Qkv, store_and_attend};
use crate::shapes::Attention as _;
use crate::target::{Full, MAX_CONTEXT, PAGE};

/// Longest sum of its products beside the hidden size.
pub const WIDEST: usize = Full::MIXED;
/// Elements of its widest row.
pub const WIDEST_ROW: usize = Full::QUERIES;
/// Positions of a split of attention.
const SPLIT: usize = 256;
/// Results of splits, for few rows: the mix, its largest score and its sum.
const PARTIAL: usize = FEW_ROWS * Full::HEADS * MAX_CONTEXT.div_ceil(SPLIT) * (Full::HEAD_DIM + 2);

/// Memory that attention works in.
pub struct Room {
    /// `[MAX_CONTEXT][PAIRS]` of cosine and sine.
    angles: DeviceBuf<f32>,
    /// Results of splits.
    partial: DeviceBuf<f32>,
}

impl Room {
    /// Bytes of its buffers.
    pub const BYTES: [usize; 2] = [
        MAX_CONTEXT * 2 * Full::PAIRS * size_of::<f32>(),
        PARTIAL * size_of::<f32>(),
    ];

    pub fn new(device: &Device, stream: &Stream) -> Result<Room, DeviceError> {
        let mut angles = memory::buffer(device, MAX_CONTEXT * 2 * Full::PAIRS)?;
        angles.upload(0, &rotations(), stream).map_err(refused)?;
        Ok(Room {
            angles,
            partial: memory::buffer(device, PARTIAL)?,
        })
    }
}

/// `[pages][KV_HEADS][keys, values][PAGE * HEAD_DIM]`, a page as `cuda/tile/pages.cuh` has it.
pub struct KvCache(pub(super) DeviceBuf<atlas_bf16>);

/// Elements of a page of a `KvCache`.
const PAGE_ELEMENTS: usize = Full::KV_HEADS * 2 * PAGE * Full::HEAD_DIM;

impl KvCache {
    fn pages(&self) -> usize {
        self.0.len() / PAGE_ELEMENTS
    }
}

/// Cosine and sine of every pair's angle, position by position.
fn rotations() -> Vec<f32> {
    let turn = |position| {
        (0..Full::PAIRS).map(move |pair| Full::ROPE.turn(position, pair, Full::ROTARY_DIM))
    };
    let turns = (0..MAX_CONTEXT).flat_map(turn);
    turns.flat_map(|(cos, sin)| [cos, sin]).collect()
}

/// The norms of queries and of keys.
fn head_norms(norms: Option<[&Vector; 2]>) -> [*const f32; 2] {
    assert_eq!(norms.is_some(), Full::NORMED);
    norms.map_or([ptr::null(); 2], |norms| {
        norms.map(|norm| {
            assert_eq!(norm.0.len(), Full::HEAD_DIM);
            norm.0.as_ptr()
        })
    })
}

/// Checks the shapes of queries with their gates, of keys and of values.
fn check_projected([q, k, v]: [&Tensor; 3], rows: usize) {
    let (of_kv, of_q) = (Full::KEYS, Full::QUERIES);
    for (tensor, width) in [(q, of_q), (k, of_kv), (v, of_kv)] {
        assert_eq!((tensor.rows, tensor.width), (rows, width));
    }
}

impl Attend<Full> for Cuda {
    type KvCache = KvCache;

    fn kv_cache(&self, pages: usize) -> Result<KvCache, DeviceError> {
        Ok(KvCache(self.zeroed(pages * PAGE_ELEMENTS)?))
    }

    fn store_kv(
        &mut self,
        q: &mut Tensor,
        k: &mut Tensor,
        v: &Tensor,
        norms: Option<[&Vector; 2]>,
        cache: &mut KvCache,
        batch: &Batch,
    ) {
        check_projected([q, k, v], batch.rows());
        assert!(batch.page_count() <= cache.pages());
        let (step, [of_q, of_k]) = (self.step.of(batch), head_norms(norms));
        // SAFETY: shapes are checked; `Batch` has checked pages, and that positions are below
        // MAX_CONTEXT.
        self.queue.launch("store_kv", |stream| unsafe {
            ops::atlas_store_kv(
                q.as_mut_ptr(),
                k.as_ptr(),
                v.as_ptr(),
                of_q,
                of_k,
                self.attend.angles.as_ptr(),
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
        assert_eq!((q.rows, q.width), (batch.rows(), Full::QUERIES));
        assert!(batch.page_count() <= cache.pages());
        let out = out.shape(q.rows, Full::MIXED);
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
                self.attend.partial.as_mut_ptr(),
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
            return store_and_attend::<Full, Cuda>(self, input, cache, batch, out);
        }
        let (Qkv { q, k, v, norms }, rows) = (input, batch.rows());
        check_projected([q, k, v], rows);
        let out = out.shape(rows, Full::MIXED);
        assert!(batch.page_count() <= cache.pages());
        let (step, [of_q, of_k]) = (self.step.of(batch), head_norms(norms));
        // SAFETY: shapes are checked; `Batch` has checked pages, and that positions are below
        // MAX_CONTEXT; of decoding no cell takes a row, and each has a tile of its own; `partial`
        // and `arrived` have room for FEW_ROWS, and no step of decoding has more.
        self.queue.launch("attention", |stream| unsafe {
            ops::atlas_attention(
                q.as_ptr(),
                k.as_ptr(),
                v.as_ptr(),
                of_q,
                of_k,
                self.attend.angles.as_ptr(),
                step.positions(),
                step.table_starts(),
                step.pages(),
                cache.0.as_mut_ptr(),
                step.tile_list(),
                self.attend.partial.as_mut_ptr(),
                self.arrived.as_mut_ptr(),
                out,
                count(rows),
                stream,
            )
        });
    }
}
