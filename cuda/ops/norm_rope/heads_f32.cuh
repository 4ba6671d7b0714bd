// Implements: Ops::norm_rope
// Match:      F32 heads; head size and rotated pairs multiples of a warp's lanes
// Bound by:   HBM (8 bytes per element)
// Sync:       a warp per head, no barrier; chained launch
#pragma once

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/ptx.cuh"
#include "tile/reduce.cuh"

namespace atlas::norm_rope {

inline constexpr int kParts = target::HEAD_DIM / tile::kWarpLanes;  // elements of a lane
inline constexpr int kPairs = target::ROTARY_DIM / 2;
inline constexpr int kPairParts = kPairs / tile::kWarpLanes;

static_assert(target::HEAD_DIM % tile::kWarpLanes == 0, "a lane has whole elements of a head");
static_assert(kPairs % tile::kWarpLanes == 0, "both elements of a pair are in one lane");

struct Params {
  float* x;                   // (rows, heads, stride)
  const float* weight;        // (HEAD_DIM)
  const float* angles;        // (MAX_CONTEXT, kPairs, 2): cosine, sine
  const unsigned* positions;  // (rows)
  unsigned heads;             // of all rows
  unsigned heads_per_row;
  unsigned stride;
};

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void heads_f32(Params params) {
  ptx::griddepcontrol_launch_dependents();
  const int lane = threadIdx.x % tile::kWarpLanes;
  float gain[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) gain[i] = params.weight[i * tile::kWarpLanes + lane];
  ptx::griddepcontrol_wait();
  constexpr unsigned kHeads = Tile::kThreads / tile::kWarpLanes;
  const unsigned head = blockIdx.x * kHeads + threadIdx.x / tile::kWarpLanes;
  if (head >= params.heads) return;
  float* x = params.x + static_cast<size_t>(head) * params.stride + lane;
  float part[kParts], squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    part[i] = x[i * tile::kWarpLanes];
    squares = fmaf(part[i], part[i], squares);
  }
  const float mean = tile::warp_sum(squares) * (1.0f / target::HEAD_DIM);
  const float scale = rsqrtf(mean + target::NORM_EPS);
#pragma unroll
  for (int i = 0; i < kParts; ++i) part[i] *= scale * (1.0f + gain[i]);
  const size_t position = params.positions[head / params.heads_per_row];
  const auto* angles = reinterpret_cast<const float2*>(params.angles) + position * kPairs + lane;
#pragma unroll
  for (int i = 0; i < kPairParts; ++i) {
    const float2 angle = angles[i * tile::kWarpLanes];
    const float low = part[i], high = part[i + kPairParts];
    part[i] = low * angle.x - high * angle.y;
    part[i + kPairParts] = high * angle.x + low * angle.y;
  }
#pragma unroll
  for (int i = 0; i < kParts; ++i) x[i * tile::kWarpLanes] = part[i];
}

template <class Tile>
struct HeadsF32 {
  static cudaError_t launch(float* x, const float* weight, const float* angles,
                            const unsigned* positions, unsigned rows, unsigned heads,
                            unsigned stride, cudaStream_t stream) {
    const Params params{x, weight, angles, positions, rows * heads, heads, stride};
    const unsigned blocks = blocks_for(rows * heads, Tile::kThreads / tile::kWarpLanes);
    return launch_chained(heads_f32<Tile>, {blocks, Tile::kThreads, 0}, stream, params);
  }
};

}  // namespace atlas::norm_rope
