// Implements: Ops::cap_logits
// Match:      F32
// Bound by:   HBM (8 bytes an element)
// Sync:       none; a number a thread; chained launch
#pragma once

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/ptx.cuh"

namespace atlas::cap_logits {

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void vectors_f32(float* logits, unsigned numbers) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const unsigned at = blockIdx.x * Tile::kThreads + threadIdx.x;
  if (at >= numbers) return;
  logits[at] = target::LOGIT_CAP * tanhf(logits[at] / target::LOGIT_CAP);
}

template <class Tile>
struct VectorsF32 {
  static cudaError_t launch(float* logits, unsigned numbers, cudaStream_t stream) {
    const Launch shape{blocks_for(numbers, Tile::kThreads), Tile::kThreads, 0};
    return launch_chained(vectors_f32<Tile>, shape, stream, logits, numbers);
  }
};

}  // namespace atlas::cap_logits
