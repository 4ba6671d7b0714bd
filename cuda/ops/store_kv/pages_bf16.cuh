// Implements: Ops::store_kv
// Match:      F32 heads, pages of bf16; head size and rotated pairs multiples of a warp's lanes
// Bound by:   HBM (8 bytes per element of the query, 6 of key and value)
// Sync:       a warp per head, no barrier; chained launch
#pragma once

#include "base/launch.cuh"
#include "base/types.cuh"
#include "target.cuh"
#include "tile/pages.cuh"
#include "tile/ptx.cuh"
#include "tile/reduce.cuh"

namespace atlas::store_kv {

using target::HEAD_DIM;
using target::HEADS;
using target::KV_HEADS;
using target::PAGE;

inline constexpr int kParts = HEAD_DIM / tile::kWarpLanes;  // elements of a lane
inline constexpr int kPairs = target::ROTARY_DIM / 2;
inline constexpr int kPairParts = kPairs / tile::kWarpLanes;
// Heads of a row: queries, keys, values.
inline constexpr int kRowHeads = HEADS + 2 * KV_HEADS;

static_assert(HEAD_DIM % tile::kWarpLanes == 0, "a lane has whole elements of a head");
static_assert(kPairs % tile::kWarpLanes == 0, "both elements of a pair are in one lane");
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

// A lane's elements of a head: every kWarpLanes-th.
struct Head {
  float part[kParts];

  __device__ void load(const float* head) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) part[i] = head[i * tile::kWarpLanes];
  }

  __device__ void norm(const Head& gain) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kParts; ++i) squares = fmaf(part[i], part[i], squares);
    const float mean = tile::warp_sum(squares) * (1.0f / HEAD_DIM);
    const float scale = rsqrtf(mean + target::NORM_EPS);
#pragma unroll
    for (int i = 0; i < kParts; ++i) part[i] *= scale * (1.0f + gain.part[i]);
  }

  __device__ void rotate(const float2 (&angles)[kPairParts]) {
#pragma unroll
    for (int i = 0; i < kPairParts; ++i) {
      const float2 angle = angles[i];
      const float low = part[i], high = part[i + kPairParts];
      part[i] = low * angle.x - high * angle.y;
      part[i + kPairParts] = high * angle.x + low * angle.y;
    }
  }
};

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void pages_bf16(Params params) {
  ptx::griddepcontrol_launch_dependents();
  const unsigned item = blockIdx.x * (Tile::kThreads / tile::kWarpLanes) +
                        threadIdx.x / tile::kWarpLanes;
  const int lane = threadIdx.x % tile::kWarpLanes;
  const size_t row = item / kRowHeads;
  const int at = static_cast<int>(item % kRowHeads);
  Head gain;
  gain.load((at < HEADS ? params.q_norm : params.k_norm) + lane);
  const bool live = item < params.heads;
  const size_t position = live ? params.positions[row] : 0;
  const auto* angles = reinterpret_cast<const float2*>(params.angles) + position * kPairs + lane;
  float2 turn[kPairParts];
#pragma unroll
  for (int i = 0; i < kPairParts; ++i) turn[i] = angles[i * tile::kWarpLanes];
  const size_t page = live ? params.pages[params.tables[row] + position / PAGE] : 0;
  ptx::griddepcontrol_wait();  // lists and constants depend on no kernel; everything below does
  if (!live) return;
  Head head;
  if (at < HEADS) {
    float* query = params.q + (row * HEADS + at) * 2 * HEAD_DIM + lane;
    head.load(query);
    head.norm(gain);
    head.rotate(turn);
#pragma unroll
    for (int i = 0; i < kParts; ++i) query[i * tile::kWarpLanes] = head.part[i];
    return;
  }
  const int kv_head = (at - HEADS) % KV_HEADS, is_value = (at - HEADS) / KV_HEADS;
  head.load((is_value ? params.v : params.k) + (row * KV_HEADS + kv_head) * HEAD_DIM + lane);
  if (!is_value) {
    head.norm(gain);
    head.rotate(turn);
  }
  // (page, head, keys | values)
  bf16* to = params.cache + ((page * KV_HEADS + kv_head) * 2 + is_value) * PAGE * HEAD_DIM;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int dim = i * tile::kWarpLanes + lane;
    to[tile::page_at(static_cast<int>(position % PAGE), dim)] = to_bf16(head.part[i]);
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
