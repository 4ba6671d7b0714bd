// Implements: Ops::top_k
// Match:      F32 logits of VOCAB tokens, or of the first ones
// Bound by:   latency (4 bytes per logit, which `linear` has just written)
// Sync:       a block per chunk of a row, then one per row; chained launches
#pragma once

#include "base/launch.cuh"
#include "ops/top_k/rank.cuh"

namespace atlas::top_k {

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void chunks_f32(const float* logits,
                                                             const __grid_constant__ Ids ids,
                                                             unsigned* orders, float* sums) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const auto item_at = [](int i) {
    const int row = blockIdx.y, chunk = blockIdx.x;
    return Item{row, i * kChunks + chunk};
  };
  constexpr int kWarps = Tile::kThreads / tile::kWarpLanes;
  rank_parts<1>(logits, ids, orders, sums, kChunkParts, kWarps, item_at);
}

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void rows_f32(const float* logits,
                                                           const __grid_constant__ Ids ids,
                                                           const unsigned* orders,
                                                           const float* sums, float* out) {
  __shared__ RowStorage shared;
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t row = blockIdx.x;
  Row<Tile::kThreads, 2>{shared, logits + row * ids.count, ids, orders + row * kParts,
                         sums + row * kParts}
      .run(out + row * kWidth);
}

// Ranks chunks, then rows; `out` is null where only parts are ranked.
template <class Tile>
struct ChunksF32 {
  static cudaError_t launch(const float* logits, unsigned* orders, float* sums, float* out,
                            unsigned rows, unsigned ids, cudaStream_t stream) {
    const cudaError_t failed = launch_chained(
        chunks_f32<Tile>, {kChunks, Tile::kThreads, 0, rows}, stream, logits,
        Ids(ids), orders, sums);
    if (failed != cudaSuccess || out == nullptr) return failed;
    return launch_chained(rows_f32<Tile>, {rows, Tile::kThreads, 0}, stream, logits,
                          Ids(ids), orders, sums, out);
  }
};

}  // namespace atlas::top_k
