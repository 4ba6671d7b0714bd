// A query's or a key's head on its way from a projection to attention, in one warp: RMSNorm, then
// the rotation of its first dimensions by its position (RoPE, halves of pairs apart).
#pragma once

#include "target.cuh"
#include "tile/reduce.cuh"

namespace atlas::tile {

inline constexpr int kHeadParts = target::HEAD_DIM / kWarpLanes;  // elements of a lane
inline constexpr int kPairs = target::ROTARY_DIM / 2;
inline constexpr int kPairParts = kPairs / kWarpLanes;

static_assert(target::HEAD_DIM % kWarpLanes == 0, "a lane has whole elements of a head");
static_assert(kPairs % kWarpLanes == 0, "both elements of a pair are in one lane");

// A lane's cosines and sines of a position.
struct Turn {
  float2 part[kPairParts];

  // `angles` is (MAX_CONTEXT, kPairs, 2): cosine, sine.
  __device__ void load(const float* angles, size_t position) {
    const int lane = threadIdx.x % kWarpLanes;
    const auto* from = reinterpret_cast<const float2*>(angles) + position * kPairs + lane;
#pragma unroll
    for (int i = 0; i < kPairParts; ++i) part[i] = from[i * kWarpLanes];
  }
};

// A lane's elements of a head: every kWarpLanes-th.
struct Head {
  float part[kHeadParts];

  __device__ static int dim(int part) { return part * kWarpLanes + threadIdx.x % kWarpLanes; }

  __device__ void load(const float* head) {
#pragma unroll
    for (int i = 0; i < kHeadParts; ++i) part[i] = head[dim(i)];
  }

  __device__ void norm(const Head& gain) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeadParts; ++i) squares = fmaf(part[i], part[i], squares);
    const float mean = warp_sum(squares) * (1.0f / target::HEAD_DIM);
    const float scale = rsqrtf(mean + target::NORM_EPS);
#pragma unroll
    for (int i = 0; i < kHeadParts; ++i) part[i] *= scale * gain.part[i];
  }

  __device__ void rotate(const Turn& turn) {
#pragma unroll
    for (int i = 0; i < kPairParts; ++i) {
      const float2 angle = turn.part[i];
      const float low = part[i], high = part[i + kPairParts];
      part[i] = low * angle.x - high * angle.y;
      part[i + kPairParts] = high * angle.x + low * angle.y;
    }
  }
};

}  // namespace atlas::tile
