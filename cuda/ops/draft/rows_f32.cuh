// Implements: Draft::draft
// Match:      rows of logits, and the largest of each part as `lm_head` leaves it
// Bound by:   latency (one warp a row)
// Sync:       none beyond a warp; chained launch
//
// Rows are not ranked: only the largest logit of each part may be drawn. A likely token is seldom
// in the part of a more likely one.
#pragma once

#include "base/launch.cuh"
#include "ops/draft/draw.cuh"
#include "tile/ptx.cuh"

namespace atlas::draft {

using top_k::Key;
using top_k::kParts;

// Parts whose largest logits one lane has.
inline constexpr int kMine = (kParts + tile::kWarpLanes - 1) / tile::kWarpLanes;

struct Params {
  const float* logits;     // (rows, ids)
  const unsigned* orders;  // (rows, kParts)
  DraftRows draft_rows;
  unsigned* drafts;  // (depth, ends)
  unsigned rows;
  top_k::Ids ids;
  unsigned depth, ends, on;
};

__device__ inline Key warp_max(Key key) {
#pragma unroll
  for (int lanes = tile::kWarpLanes / 2; lanes > 0; lanes /= 2) {
    key = max(key, __shfl_xor_sync(tile::kAllLanes, key, lanes));
  }
  return key;
}

// Part whose largest logit a rule draws.
__device__ inline int part_of(const unsigned* orders, const Sampling& sampling) {
  const int lane = threadIdx.x % tile::kWarpLanes;
  Key mine[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int part = i * tile::kWarpLanes + lane;
    mine[i] = part < kParts ? top_k::key_of(orders[part], part) : 0;
  }
  Key own = 0;  // key of the lane-th largest logit
  const int count = sampling.count();
#pragma unroll 1
  for (int rank = 0; rank < count; ++rank) {
    Key best = 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) best = max(best, mine[i]);
    best = warp_max(best);
    if (rank == lane) own = best;
#pragma unroll
    for (int i = 0; i < kMine; ++i) mine[i] = mine[i] == best ? 0 : mine[i];
  }
  const int rank = drawn_index(top_k::logit_of(top_k::order_of(own)), sampling);
  return static_cast<int>(top_k::id_of(__shfl_sync(tile::kAllLanes, own, rank)));
}

// Token of a part's largest logit.
__device__ inline unsigned token_of(const float* logits, const top_k::Ids& ids, int part) {
  top_k::Part loaded;
  loaded.load(logits, ids, part);
  Key best = 0;
  loaded.for_each(
      [&](int id, float logit) { best = max(best, top_k::key_of(top_k::order_of(logit), id)); });
  return top_k::id_of(warp_max(best));
}

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void rows_f32(const __grid_constant__ Params params) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const DraftRows& draft_rows = params.draft_rows;
  constexpr unsigned kWarps = Tile::kThreads / tile::kWarpLanes;
  const unsigned row = blockIdx.x * kWarps + threadIdx.x / tile::kWarpLanes;
  if (row >= params.rows) return;
  const unsigned position = draft_rows.positions[row];
  const unsigned draft = params.on ? position - draft_rows.starts[row] + 1 : 0;
  const Sampling sampling = draft_rows.sampling(row, draft_rows.starts[row] + 1 + draft);
  const int part = part_of(params.orders + size_t{kParts} * row, sampling);
  const float* logits = params.logits + static_cast<size_t>(params.ids.count) * row;
  const unsigned token = token_of(logits, params.ids, part);
  if (threadIdx.x % tile::kWarpLanes != 0) return;
  draft_rows.tokens[row] = token;
  if (draft < params.depth) params.drafts[params.ends * draft + row] = token;
  if (params.on) {
    draft_rows.positions[row] = position + 1;
    draft_rows.tiles[4 * row + 3] += 1;
  }
}

template <class Tile>
struct RowsF32 {
  static cudaError_t launch(const float* logits, const unsigned* orders, const float* rules,
                            unsigned* starts, unsigned* tokens, unsigned* positions,
                            unsigned* tiles, unsigned* drafts, unsigned rows, unsigned ids,
                            unsigned uniforms, unsigned depth, unsigned ends, unsigned on,
                            cudaStream_t stream) {
    const DraftRows draft_rows{rules, starts, tokens, positions, tiles, uniforms};
    const Params params{logits, orders, draft_rows, drafts, rows, top_k::Ids(ids), depth, ends, on};
    const unsigned blocks = blocks_for(rows, Tile::kThreads / tile::kWarpLanes);
    return launch_chained(rows_f32<Tile>, {blocks, Tile::kThreads, 0}, stream, params);
  }
};

}  // namespace atlas::draft
