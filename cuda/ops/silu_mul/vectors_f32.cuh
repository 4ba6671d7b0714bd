// Implements: Ops::silu_mul
// Match:      F32 rows of a gate and a factor, width a multiple of 4
// Bound by:   HBM (12 bytes per element)
// Sync:       none; one 16-byte vector a thread; chained launch
#pragma once

#include "base/launch.cuh"
#include "base/types.cuh"
#include "target.cuh"
#include "tile/math.cuh"
#include "tile/ptx.cuh"

namespace atlas::silu_mul {

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void vectors_f32(
    const float* x, float* out, size_t vectors, unsigned width) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t item = static_cast<size_t>(blockIdx.x) * Tile::kThreads + threadIdx.x;
  if (item >= vectors) return;
  const size_t row = item / (width / 4), vector = item % (width / 4);
  const float4* from = reinterpret_cast<const float4*>(x) + row * (width / 2);
  const auto product = [](float gate, float up) { return tile::silu(gate) * up; };
  tile::vector_at(out, item) = tile::zip(from[vector], from[vector + width / 4], product);
}

template <class Tile>
struct VectorsF32 {
  static cudaError_t launch(const float* x, float* out, unsigned rows, unsigned width,
                            cudaStream_t stream) {
    const size_t items = static_cast<size_t>(rows) * (width / 4);
    const auto blocks = static_cast<unsigned>((items + Tile::kThreads - 1) / Tile::kThreads);
    return launch_chained(vectors_f32<Tile>, {blocks, Tile::kThreads, 0}, stream,
                          x, out, items, width);
  }
};

}  // namespace atlas::silu_mul
