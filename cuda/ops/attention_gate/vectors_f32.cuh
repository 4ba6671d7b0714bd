// Implements: Ops::attention_gate
// Match:      F32 rows; query and gate of a head side by side
// Bound by:   HBM (12 bytes per element)
// Sync:       none; one 16-byte vector a thread; chained launch
#pragma once

#include "base/launch.cuh"
#include "base/types.cuh"
#include "target.cuh"
#include "tile/math.cuh"
#include "tile/ptx.cuh"

namespace atlas::attention_gate {

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void vectors_f32(
    float* x, const float* q, size_t vectors) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t item = static_cast<size_t>(blockIdx.x) * Tile::kThreads + threadIdx.x;
  if (item >= vectors) return;
  constexpr int kHead = target::HEAD_DIM / 4;
  const size_t head = item / kHead, vector = item % kHead;
  const float4 gate = tile::vector_at(q, (2 * head + 1) * kHead + vector);
  float4& to = tile::vector_at(x, item);
  to = tile::zip(to, gate, [](float value, float g) { return value * tile::sigmoid(g); });
}

template <class Tile>
struct VectorsF32 {
  static cudaError_t launch(float* x, const float* q, unsigned rows, cudaStream_t stream) {
    const size_t items = static_cast<size_t>(rows) * target::HEADS * (target::HEAD_DIM / 4);
    const auto blocks = static_cast<unsigned>((items + Tile::kThreads - 1) / Tile::kThreads);
    return launch_chained(vectors_f32<Tile>, {blocks, Tile::kThreads, 0}, stream, x, q, items);
  }
};

}  // namespace atlas::attention_gate
