// Implements: Ops::add_gated
// Match:      F32 rows of the residual stream, one gate a row
// Bound by:   HBM (12 bytes per element)
// Sync:       none; one 16-byte vector a thread; chained launch
#pragma once

#include "base/launch.cuh"
#include "base/types.cuh"
#include "target.cuh"
#include "tile/math.cuh"
#include "tile/ptx.cuh"

namespace atlas::add_gated {

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void vectors_f32(
    float* out, const float* x, const float* gate, size_t vectors) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t item = static_cast<size_t>(blockIdx.x) * Tile::kThreads + threadIdx.x;
  if (item >= vectors) return;
  const float weight = tile::sigmoid(gate[item / (target::HIDDEN / 4)]);
  float4& to = tile::vector_at(out, item);
  const auto sum = [&](float value, float more) { return fmaf(weight, more, value); };
  to = tile::zip(to, tile::vector_at(x, item), sum);
}

template <class Tile>
struct VectorsF32 {
  static cudaError_t launch(float* out, const float* x, const float* gate, unsigned rows,
                            cudaStream_t stream) {
    const size_t items = static_cast<size_t>(rows) * (target::HIDDEN / 4);
    const auto blocks = static_cast<unsigned>((items + Tile::kThreads - 1) / Tile::kThreads);
    return launch_chained(vectors_f32<Tile>, {blocks, Tile::kThreads, 0}, stream,
                          out, x, gate, items);
  }
};

}  // namespace atlas::add_gated
