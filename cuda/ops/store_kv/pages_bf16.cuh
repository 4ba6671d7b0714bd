// Implements: Ops::store_kv
// Match:      F32 heads, pages of bf16; head size and rotated pairs multiples of a warp's lanes
// Bound by:   HBM (8 bytes per element of the query, 6 of key and value)
// Sync:       a warp per head, no barrier; chained launch
#pragma once

#include "base/launch.cuh"
#include "base/types.cuh"
#include "target.cuh"
#include "tile/head.cuh"
#include "tile/pages.cuh"
#include "tile/ptx.cuh"

namespace atlas::store_kv {

using target::HEAD_DIM;
using target::HEADS;
using target::KV_HEADS;
using target::PAGE;

// Heads of a row: queries, keys, values.
inline constexpr int kRowHeads = HEADS + 2 * KV_HEADS;

static_assert(target::FORMAT_KV == target::KvFormat::bf16, "pages are bf16");

struct Params {
  float* q;                   // (rows, HEADS, 2, HEAD_DIM): query, gate
  const float* k;             // (rows, KV_HEADS, HEAD_DIM)
  const float* v;             // (rows, KV_HEADS, HEAD_DIM)
  const float* q_norm;        // (HEAD_DIM)
  const float* k_norm;        // (HEAD_DIM)
  const float* angles;        // (MAX_CONTEXT, kPairs, 2): cosine, sine
  const unsigned* positions;  // (rows)
  const unsigned* tables;     // (rows)
  const unsigned* pages;
  bf16* cache;     // (pages, KV_HEADS, 2, PAGE * HEAD_DIM): keys, values
  unsigned heads;  // of all rows
};

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void pages_bf16(Params params) {
  ptx::griddepcontrol_launch_dependents();
  const unsigned item = blockIdx.x * (Tile::kThreads / tile::kWarpLanes) +
                        threadIdx.x / tile::kWarpLanes;
  const size_t row = item / kRowHeads;
  const int at = static_cast<int>(item % kRowHeads);
  tile::Head gain;
  gain.load(at < HEADS ? params.q_norm : params.k_norm);
  const bool live = item < params.heads;
  const size_t position = live ? params.positions[row] : 0;
  tile::Turn turn;
  turn.load(params.angles, position);
  const size_t page = live ? params.pages[params.tables[row] + position / PAGE] : 0;
  ptx::griddepcontrol_wait();  // lists and constants depend on no kernel; everything below does
  if (!live) return;
  tile::Head head;
  if (at < HEADS) {
    float* query = params.q + (row * HEADS + at) * 2 * HEAD_DIM;
    head.load(query);
    head.norm(gain);
    head.rotate(turn);
#pragma unroll
    for (int i = 0; i < tile::kHeadParts; ++i) query[head.dim(i)] = head.part[i];
    return;
  }
  const int kv_head = (at - HEADS) % KV_HEADS, is_value = (at - HEADS) / KV_HEADS;
  head.load((is_value ? params.v : params.k) + (row * KV_HEADS + kv_head) * HEAD_DIM);
  if (!is_value) {
    head.norm(gain);
    head.rotate(turn);
  }
  // (page, head, keys | values)
  bf16* to = params.cache + ((page * KV_HEADS + kv_head) * 2 + is_value) * PAGE * HEAD_DIM;
#pragma unroll
  for (int i = 0; i < tile::kHeadParts; ++i) {
    to[tile::page_at(static_cast<int>(position % PAGE), head.dim(i))] = to_bf16(head.part[i]);
  }
}

template <class Tile>
struct PagesBf16 {
  static cudaError_t launch(float* q, const float* k, const float* v, const float* q_norm,
                            const float* k_norm, const float* angles, const unsigned* positions,
                            const unsigned* tables, const unsigned* pages, atlas_bf16* cache,
                            unsigned rows, cudaStream_t stream) {
    const Params params{q,         k,      v,     q_norm, k_norm,          angles,
                        positions, tables, pages, cache,  rows * kRowHeads};
    const unsigned blocks = blocks_for(params.heads, Tile::kThreads / tile::kWarpLanes);
    return launch_chained(pages_bf16<Tile>, {blocks, Tile::kThreads, 0}, stream, params);
  }
};

}  // namespace atlas::store_kv
