// Implements: Ops::store_kv
// Match:      F32 heads, pages of bf16 or FP8; head size and rotated pairs multiples of a warp's
//             lanes
// Bound by:   HBM (8 bytes per element of the query, 6 or 5 of key and value)
// Sync:       a warp per head, no barrier; chained launch
#pragma once

#include "base/launch.cuh"
#include "base/types.cuh"
#include "target.cuh"
#include "tile/head.cuh"
#include "tile/pages_fp8.cuh"
#include "tile/ptx.cuh"

namespace atlas::store_kv {

using target::PAGE;

// Heads of a row: queries, keys, and values unless these are latents of keys.
template <class A>
inline constexpr int kRowHeads = A::kHeads + (tile::kLatent<A> ? 1 : 2) * A::kKvHeads;

struct Params {
  float* q;                   // (rows, kHeads, 2, kHeadDim): query, gate if `kGated`
  const float* k;             // (rows, kKvHeads, kHeadDim)
  const float* v;             // (rows, kKvHeads, kHeadDim), null if values are latents of keys
  const float* q_norm;        // (kHeadDim), null if not `kNormed`
  const float* k_norm;        // (kHeadDim), or (kValueDim) of latents; null without a norm
  const float* angles;        // (MAX_CONTEXT, kPairs, 2): cosine, sine
  const unsigned* positions;  // (rows)
  const unsigned* tables;     // (rows)
  const unsigned* pages;
  unsigned char* cache;  // (pages: page_stride apart; kKvHeads, 2, kHeadBytes): keys, values
  unsigned page_stride;  // bytes
  unsigned heads;        // of all rows
};

template <class Tile, class A>
__global__ __launch_bounds__(Tile::kThreads) void pages(Params params) {
  constexpr int kHeads = A::kHeads, kKvHeads = A::kKvHeads, kHeadDim = A::kHeadDim;
  static_assert(kHeadDim % tile::kPageColumns == 0, "a page is whole blocks");
  ptx::griddepcontrol_launch_dependents();
  const unsigned item = blockIdx.x * (Tile::kThreads / tile::kWarpLanes) +
                        threadIdx.x / tile::kWarpLanes;
  const size_t row = item / kRowHeads<A>;
  const int at = static_cast<int>(item % kRowHeads<A>);
  tile::Head<A> gain;
  if (!tile::kLatent<A> || at >= kHeads) {
    gain.load_gain(at < kHeads ? params.q_norm : params.k_norm);
  }
  const bool live = item < params.heads;
  const size_t position = live ? params.positions[row] : 0;
  tile::Rotation<A> rotation;
  rotation.load(params.angles, position);
  const unsigned page = live ? params.pages[params.tables[row] + position / PAGE] : 0;
  ptx::griddepcontrol_wait();  // lists and constants depend on no kernel; everything below does
  if (!live) return;
  tile::Head<A> head;
  if (at < kHeads) {
    float* query = params.q + (row * kHeads + at) * (A::kGated ? 2 : 1) * kHeadDim;
    head.load(query);
    if constexpr (!tile::kLatent<A>) head.norm(gain);
    head.rotate(rotation);
#pragma unroll
    for (int i = 0; i < head.kParts; ++i) query[head.dim(i)] = head.part[i];
    return;
  }
  const int kv_head = (at - kHeads) % kKvHeads, is_value = (at - kHeads) / kKvHeads;
  head.load((is_value ? params.v : params.k) + (row * kKvHeads + kv_head) * kHeadDim);
  if (!is_value) {
    head.norm(gain);
    head.rotate(rotation);
  } else {
    head.norm_value();
  }
  unsigned char* to =
      params.cache + tile::head_at<A>(page, params.page_stride, kv_head, is_value);
  tile::put_position(to, static_cast<int>(position % PAGE), head, [](int, tile::PageNumber) {});
}

template <class Tile, class A>
struct Pages {
  static cudaError_t launch(float* q, const float* k, const float* v, const float* q_norm,
                            const float* k_norm, const float* angles, const unsigned* positions,
                            const unsigned* tables, const unsigned* pages, unsigned char* cache,
                            unsigned page_stride, unsigned rows, cudaStream_t stream) {
    const Params params{q,      k,     v,     q_norm,      k_norm,             angles, positions,
                        tables, pages, cache, page_stride, rows * kRowHeads<A>};
    const unsigned blocks = blocks_for(params.heads, Tile::kThreads / tile::kWarpLanes);
    return launch_chained(store_kv::pages<Tile, A>, {blocks, Tile::kThreads, 0}, stream, params);
  }
};

}  // namespace atlas::store_kv
