// Implements: Ops::relu2
// Match:      F32
// Bound by:   HBM (8 bytes an element)
// Sync:       none; a number a thread; chained launch
#pragma once

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/ptx.cuh"

namespace atlas::relu2 {

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void vectors_f32(float* x, unsigned numbers) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const unsigned at = blockIdx.x * Tile::kThreads + threadIdx.x;
  if (at >= numbers) return;
  const float positive = x[at] < 0.0f ? 0.0f : x[at];  // a NaN stays NaN
  x[at] = positive * positive;
}

template <class Tile>
struct VectorsF32 {
  static cudaError_t launch(float* x, unsigned numbers, cudaStream_t stream) {
    const Launch shape{blocks_for(numbers, Tile::kThreads), Tile::kThreads, 0};
    return launch_chained(vectors_f32<Tile>, shape, stream, x, numbers);
  }
};

}  // namespace atlas::relu2
