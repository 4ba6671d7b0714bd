//! Attention on the GPU.

use std::marker::PhantomData;
use std::num::NonZero;
use std::{ptr, thread};

use ffi::ops::{self, Launcher};
use ffi::{Device, DeviceBuf, Stream};

use super::pieces::Pieces;
use super::steps::{SHAPES, Tiles};
use super::{Cuda, FEW_ROWS, Tensor, Vector, count, largest, memory, refused};
use crate::ops::{Attend, Batch, PoolRegion, Qkv, store_and_attend};
use crate::shapes::{self, Attention as _};
use crate::target::{ATTEND_ROUNDS, MAX_CONTEXT, PAGE, each_attention};
use step::SPLIT;
use step::executor::DeviceError;

/// Launchers of attention's operations for one of the target's attention shapes.
pub trait Launchers: shapes::Attention {
    /// Index of the shape among the attention shapes of the target.
    const INDEX: usize;
    const STORE_KV: Launcher<ops::atlas_store_kv_launcher>;
    const ATTEND: Launcher<ops::atlas_attend_launcher>;
    const ATTENTION: Launcher<ops::atlas_attention_launcher>;
}

/// Longest row that attention's output is multiplied with: `MIXED` of the widest shape.
pub const WIDEST: usize = largest(&each_attention![A => A::MIXED]);
/// Largest number of groups of a layer's query heads that are scored together.
pub const GROUPS: usize = largest(&each_attention![A => A::HEADS / A::TOGETHER]);
/// Bytes that a layer's part of a page is aligned to.
const ALIGNMENT: usize = 128;
/// Count of F32 numbers in a split's result, for few rows: sum of values, largest score, sum of
/// weights.
const PARTIAL: usize = largest(&each_attention![A => {
    FEW_ROWS * A::HEADS * MAX_CONTEXT.div_ceil(SPLIT) * (A::VALUE_DIM + 2)
}]);

/// Memory that attention needs while it runs.
pub struct Workspace {
    /// Cosine and sine, `[MAX_CONTEXT][PAIRS]`, of each attention shape.
    angles: [DeviceBuf<f32>; SHAPES],
    /// Partial results of attention over splits of contexts.
    partial: DeviceBuf<f32>,
}

impl Workspace {
    /// Bytes of each buffer of the workspace.
    pub fn bytes() -> impl Iterator<Item = usize> {
        let angles = each_attention![A => MAX_CONTEXT * 2 * A::PAIRS];
        let numbers = angles.into_iter().chain([PARTIAL]);
        numbers.map(|numbers| numbers * size_of::<f32>())
    }

    pub fn new(device: &Device, stream: &Stream) -> Result<Workspace, DeviceError> {
        Ok(Workspace {
            angles: each_attention![A => angles::<A>(device, stream)?],
            partial: memory::buffer(device, PARTIAL)?,
        })
    }

    fn angles<A: Launchers>(&self) -> *const f32 {
        self.angles[A::INDEX].as_ptr()
    }
}

/// Keys and values of one layer. The layer's part of each page is `[KV_HEADS][keys, values]`, or
/// keys alone if keys contain latents, as in `cuda/tile/pages.cuh`.
pub struct KvCache<A> {
    /// Region of the pool with the layer's part of each page.
    pub region: PoolRegion<Pieces>,
    shape: PhantomData<A>,
}

impl<A> KvCache<A> {
    fn pages(&self) -> usize {
        self.region.pool.count()
    }

    fn bytes(&self) -> *mut u8 {
        self.region.first()
    }

    fn stride(&self) -> u32 {
        self.region.stride::<u8>()
    }
}

/// Cosines and sines of a shape's angles, by position and pair.
fn angles<A: shapes::Attention>(
    device: &Device,
    stream: &Stream,
) -> Result<DeviceBuf<f32>, DeviceError> {
    let rotations = |position| {
        let pairs = 0..A::PAIRS;
        pairs.map(move |pair| A::ROPE.rotation(position, pair, A::ROTARY_DIM))
    };
    let mut table = vec![0.0; MAX_CONTEXT * 2 * A::PAIRS];
    // All cores take part, since a long context has millions of angles.
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let each = MAX_CONTEXT.div_ceil(threads);
    thread::scope(|scope| {
        for (part, rows) in table.chunks_mut(each * 2 * A::PAIRS).enumerate() {
            let angles = (part * each..MAX_CONTEXT).flat_map(rotations);
            scope.spawn(move || {
                let pairs = rows.as_chunks_mut().0.iter_mut();
                pairs
                    .zip(angles)
                    .for_each(|(to, (cos, sin))| *to = [cos, sin]);
            });
        }
    });
    let mut angles = memory::buffer(device, table.len())?;
    angles.upload(0, &table, stream).map_err(refused)?;
    Ok(angles)
}

/// Pointers to the norm weights of queries and keys; null without norms.
fn head_norms<A: shapes::Attention>(norms: [Option<&Vector>; 2]) -> [*const f32; 2] {
    assert_eq!(
        norms.map(|norm| norm.map_or(0, |norm| norm.0.len())),
        A::NORMS
    );
    norms.map(|norm| norm.map_or(ptr::null(), |norm| norm.0.as_ptr()))
}

/// Pointer to the sinks of query heads; null if the shape has none.
fn sinks_of<A: shapes::Attention>(sinks: Option<&Vector>) -> *const f32 {
    assert_eq!(
        sinks.map(|sinks| sinks.0.len()),
        A::SINKS.then_some(A::HEADS)
    );
    sinks.map_or(ptr::null(), |sinks| sinks.0.as_ptr())
}

/// Checks the shapes of queries with their gates, of keys, and of values if they are separate;
/// returns the pointer to values, or null.
fn check_projected<A: shapes::Attention>(
    [q, k]: [&Tensor; 2],
    v: Option<&Tensor>,
    rows: usize,
) -> *const f32 {
    for (tensor, width) in [(q, A::QUERIES), (k, A::KEYS)] {
        assert_eq!((tensor.rows, tensor.width), (rows, width));
    }
    let values = v.map(|v| (v.rows, v.width));
    assert_eq!(values, (!A::LATENT).then_some((rows, A::VALUES)));
    v.map_or(ptr::null(), |v| v.as_ptr())
}

impl<A: Launchers> Attend<A> for Cuda {
    type KvCache = KvCache<A>;

    const PAGE_BYTES: usize = PAGE * A::POSITION_BYTES;

    fn cache_at(&self, region: PoolRegion<Pieces>) -> KvCache<A> {
        let () = A::CHECK;
        // Kernels copy rows of 128 bytes.
        assert!(
            region.at.is_multiple_of(ALIGNMENT) && region.stride::<u8>() as usize % ALIGNMENT == 0
        );
        KvCache {
            region,
            shape: PhantomData,
        }
    }

    fn store_kv(
        &mut self,
        q: &mut Tensor,
        k: &mut Tensor,
        v: Option<&Tensor>,
        norms: [Option<&Vector>; 2],
        cache: &mut KvCache<A>,
        batch: &Batch,
    ) {
        let v = check_projected::<A>([q, k], v, batch.rows());
        assert!(batch.page_count(A::PAGES) <= cache.pages());
        let (step, [of_q, of_k]) = (self.step.of(batch), head_norms::<A>(norms));
        // SAFETY: shapes are checked; `Batch` has checked pages, and that positions are below
        // MAX_CONTEXT.
        self.queue.launch("store_kv", |stream| unsafe {
            (A::STORE_KV)(
                q.as_mut_ptr(),
                k.as_ptr(),
                v,
                of_q,
                of_k,
                self.attend.angles::<A>(),
                step.positions(),
                step.table_starts(A::PAGES),
                step.pages(),
                cache.bytes(),
                cache.stride(),
                count(batch.rows()),
                stream,
            )
        });
    }

    fn attend(
        &mut self,
        q: &Tensor,
        cache: &KvCache<A>,
        sinks: Option<&Vector>,
        batch: &Batch,
        out: &mut Tensor,
    ) {
        assert_eq!((q.rows, q.width), (batch.rows(), A::QUERIES));
        assert!(batch.page_count(A::PAGES) <= cache.pages());
        let mixed = out.shape(q.rows, A::MIXED);
        let step = self.step.of(batch);
        let Tiles {
            cells,
            cell_tokens,
            others,
        } = step.tiles(A::INDEX);
        out.rounded = ATTEND_ROUNDS && cells.count > 0;
        let partial_rows = match step.one_by_one {
            few @ ..=FEW_ROWS => few,
            _ => 0,
        };
        let sinks = sinks_of::<A>(sinks);
        // SAFETY: shapes are checked; `Batch` has checked pages and positions; `partial` and
        // `arrived` suffice for `partial_rows` splits, as many as FEW_ROWS rows have.
        self.queue.launch("attend", |stream| unsafe {
            (A::ATTEND)(
                q.as_ptr(),
                cache.bytes().cast_const(),
                step.positions(),
                step.table_starts(A::PAGES),
                step.pages(),
                cells.list,
                others.list,
                sinks,
                self.attend.partial.as_mut_ptr(),
                self.arrived.as_mut_ptr(),
                mixed,
                cache.stride(),
                count(q.rows),
                count(cells.count),
                count(cell_tokens),
                count(partial_rows),
                count(others.count),
                out.rounded.into(),
                stream,
            )
        });
    }

    fn attention(
        &mut self,
        input: Qkv<'_, Cuda>,
        cache: &mut KvCache<A>,
        batch: &Batch,
        out: &mut Tensor,
    ) {
        if !batch.is_decode() {
            return store_and_attend::<A, Cuda>(self, input, cache, batch, out);
        }
        let Qkv {
            q,
            k,
            v,
            norms,
            sinks,
        } = input;
        let (rows, sinks) = (batch.rows(), sinks_of::<A>(sinks));
        let v = check_projected::<A>([q, k], v, rows);
        let out = out.shape(rows, A::MIXED);
        assert!(batch.page_count(A::PAGES) <= cache.pages());
        let (step, [of_q, of_k]) = (self.step.of(batch), head_norms::<A>(norms));
        // SAFETY: shapes are checked; `Batch` has checked pages, and that positions are below
        // MAX_CONTEXT; no row of a step of decoding is in a cell, and each row has a tile of its
        // own; `partial` and `arrived` suffice for FEW_ROWS rows, and no step of decoding has more.
        self.queue.launch("attention", |stream| unsafe {
            (A::ATTENTION)(
                q.as_ptr(),
                k.as_ptr(),
                v,
                of_q,
                of_k,
                self.attend.angles::<A>(),
                step.positions(),
                step.table_starts(A::PAGES),
                step.pages(),
                cache.bytes(),
                step.tiles(A::INDEX).others.list,
                sinks,
                self.attend.partial.as_mut_ptr(),
                self.arrived.as_mut_ptr(),
                out,
                cache.stride(),
                count(rows),
                stream,
            )
        });
    }
}
