// Implements: Ops::top_k
// Match:      F32 logits of VOCAB tokens
// Bound by:   latency (4 bytes per logit, which `linear` has just written)
// Sync:       a block per chunk of a row, then one per row; chained launches
#pragma once

#include "base/launch.cuh"
#include "ops/top_k/rank.cuh"

namespace atlas::top_k {

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void chunks_f32(const float* logits, Key* keys,
                                                             float* sums) {
  static_assert(Tile::kThreads == kThreads, "a group ranks a chunk");
  __shared__ ChunkStorage shared;
  ptx::griddepcontrol_launch_dependents();
  const auto panels = tile::Share::of(kPanels, blockIdx.x, kChunks);
  const size_t place = size_t{blockIdx.y} * kChunks + blockIdx.x;
  ptx::griddepcontrol_wait();
  rank_chunk(shared, logits + size_t{blockIdx.y} * VOCAB, panels, keys + place * TOP_K,
             sums + place);
}

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void rows_f32(const Key* keys, const float* sums,
                                                           float* out) {
  static_assert(Tile::kThreads == kThreads, "a group ranks a row");
  __shared__ RowStorage shared;
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t place = size_t{blockIdx.x} * kChunks;
  rank_row(shared, keys + place * TOP_K, sums + place, out + size_t{blockIdx.x} * kWidth);
}

template <class Tile>
struct ChunksF32 {
  static cudaError_t launch(const float* logits, unsigned* keys, float* sums, float* out,
                            unsigned rows, cudaStream_t stream) {
    Key* ranked = reinterpret_cast<Key*>(keys);
    const cudaError_t failed = launch_chained(
        chunks_f32<Tile>, {kChunks, Tile::kThreads, 0, rows}, stream, logits, ranked, sums);
    if (failed != cudaSuccess) return failed;
    return launch_chained(rows_f32<Tile>, {rows, Tile::kThreads, 0}, stream, ranked, sums, out);
  }
};

}  // namespace atlas::top_k
