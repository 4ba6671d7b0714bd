// Implements: Ops::concat
// Match:      F32 rows, widths multiples of 4
// Bound by:   HBM (8 bytes per element)
// Sync:       none; one 16-byte vector a thread; chained launch
#pragma once

#include "base/launch.cuh"
#include "base/types.cuh"
#include "target.cuh"
#include "tile/math.cuh"
#include "tile/ptx.cuh"

namespace atlas::concat {

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void vectors_f32(
    const float* a, const float* b, float* out, size_t vectors, unsigned width) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t item = static_cast<size_t>(blockIdx.x) * Tile::kThreads + threadIdx.x;
  if (item >= vectors) return;
  const size_t half = width / 4, row = item / (2 * half), vector = item % (2 * half);
  const float* from = vector < half ? a : b;
  tile::vector_at(out, item) = tile::vector_at(from, row * half + vector % half);
}

template <class Tile>
struct VectorsF32 {
  static cudaError_t launch(const float* a, const float* b, float* out, unsigned rows,
                            unsigned width, cudaStream_t stream) {
    const size_t items = static_cast<size_t>(rows) * (width / 2);
    const auto blocks = static_cast<unsigned>((items + Tile::kThreads - 1) / Tile::kThreads);
    return launch_chained(vectors_f32<Tile>, {blocks, Tile::kThreads, 0}, stream,
                          a, b, out, items, width);
  }
};

}  // namespace atlas::concat
