// Implements: Ops::gated_rms_norm
// Match:      F32 heads of 128 elements
// Bound by:   HBM (12 bytes per element)
// Sync:       a warp per head, no barrier; chained launch
#pragma once

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/head_f16.cuh"
#include "tile/math.cuh"
#include "tile/ptx.cuh"
#include "tile/reduce.cuh"

namespace atlas::gated_rms_norm {

using target::shapes::Delta;

static_assert(Delta::kValueDim == 4 * tile::kWarpLanes, "a lane has one vector of a head");

// A lane's vector of a head, the head being a warp's.
__device__ inline float4 normed(float4 part, const float4& gain, const float4& gate) {
  float squares = part.x * part.x;
  squares = fmaf(part.y, part.y, squares);
  squares = fmaf(part.z, part.z, squares);
  squares = fmaf(part.w, part.w, squares);
  const float mean = tile::warp_sum(squares) * (1.0f / Delta::kValueDim);
  const float scale = rsqrtf(mean + target::NORM_EPS);
  part = tile::zip(part, gain, [&](float value, float w) { return value * scale * w; });
  return tile::zip(part, gate, [](float value, float g) { return value * tile::silu(g); });
}

// `in_cells` tells of each row whether its heads are F16 before; null: none are.
template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void heads_f32(float* x, const float* weight,
                                                            const float* z,
                                                            const unsigned* in_cells,
                                                            unsigned heads) {
  ptx::griddepcontrol_launch_dependents();
  const int lane = threadIdx.x % tile::kWarpLanes;
  const float4 gain = tile::vector_at(weight, lane);
  ptx::griddepcontrol_wait();
  constexpr unsigned kHeads = Tile::kThreads / tile::kWarpLanes;
  const unsigned head = blockIdx.x * kHeads + threadIdx.x / tile::kWarpLanes;
  if (head >= heads) return;
  const size_t at = static_cast<size_t>(head) * tile::kWarpLanes + lane;
  const bool in_cell = in_cells != nullptr && in_cells[head / Delta::kValueHeads] != 0;
  const float* before = x + static_cast<size_t>(head) * Delta::kValueDim;
  const auto part = tile::EitherVector::of(before, lane, in_cell);
  // Summing squares, all lanes have read before one writes.
  tile::vector_at(x, at) = normed(part.value(), gain, tile::vector_at(z, at));
}

template <class Tile, class D>
struct HeadsF32 {
  static cudaError_t launch(float* x, const float* weight, const float* z,
                            const unsigned* in_cells, unsigned rows, cudaStream_t stream) {
    const unsigned heads = rows * Delta::kValueHeads;
    const unsigned blocks = blocks_for(heads, Tile::kThreads / tile::kWarpLanes);
    return launch_chained(heads_f32<Tile>, {blocks, Tile::kThreads, 0}, stream, x, weight, z,
                          in_cells, heads);
  }
};

}  // namespace atlas::gated_rms_norm
