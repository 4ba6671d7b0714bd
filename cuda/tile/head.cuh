// A query's or a key's head in one warp, between projection and attention: RMSNorm where the shape
// has it, then rotation of its first dimensions by its position (RoPE, pairs half of these apart).
#pragma once

#include "target.cuh"
#include "tile/pages.cuh"
#include "tile/reduce.cuh"

namespace atlas::tile {

// Parts of a head of shape `A`, one element a lane each.
template <class A>
struct HeadParts {
  static constexpr int kParts = A::kHeadDim / kWarpLanes;  // elements of a lane
  static constexpr int kPairs = A::kRotaryDim / 2;
  static constexpr int kPairParts = kPairs / kWarpLanes;
  // Parts before the latent of a key, which norms leave out.
  static constexpr int kPlainParts = kLatent<A> ? A::kRotaryDim / kWarpLanes : 0;

  static_assert(A::kHeadDim % kWarpLanes == 0, "a lane has whole elements of a head");
  static_assert(kPairs % kWarpLanes == 0, "both elements of a pair are in one lane");
};

// A lane's cosines and sines for a position.
template <class A>
struct Rotation : HeadParts<A> {
  using HeadParts<A>::kPairs;
  using HeadParts<A>::kPairParts;

  float2 part[kPairParts];

  // Loads the position's cosines and sines from `angles`, (MAX_CONTEXT, kPairs, 2).
  __device__ void load(const float* angles, size_t position) {
    const int lane = threadIdx.x % kWarpLanes;
    const auto* from = reinterpret_cast<const float2*>(angles) + position * kPairs + lane;
#pragma unroll
    for (int i = 0; i < kPairParts; ++i) part[i] = from[i * kWarpLanes];
  }
};

// A lane's elements of a head: every kWarpLanes-th one.
template <class A>
struct Head : HeadParts<A> {
  using HeadParts<A>::kParts;
  using HeadParts<A>::kPairParts;
  using HeadParts<A>::kPlainParts;
  static constexpr bool kNormed = A::kNormed || kLatent<A>;

  float part[kParts];

  __device__ static int dim(int part) { return part * kWarpLanes + threadIdx.x % kWarpLanes; }

  __device__ void load(const float* head) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) part[i] = head[dim(i)];
  }

  // Loads the weights of the norm, if the shape has one.
  __device__ void load_gain(const float* gain) {
    if constexpr (!kNormed) return;
#pragma unroll
    for (int i = kPlainParts; i < kParts; ++i) part[i] = gain[dim(i - kPlainParts)];
  }

  // Norms a key or a query; callers leave out queries of latents.
  __device__ void norm(const Head& gain) {
    if constexpr (!kNormed) return;
    const float scale = inverse_rms();
#pragma unroll
    for (int i = kPlainParts; i < kParts; ++i) part[i] *= scale * gain.part[i];
  }

  // Norms a value; this norm has no weights.
  __device__ void norm_value() {
    if constexpr (!A::kValuesNormed) return;
    const float scale = inverse_rms();
#pragma unroll
    for (int i = 0; i < kParts; ++i) part[i] *= scale;
  }

  __device__ float inverse_rms() const {
    float squares = 0.0f;
#pragma unroll
    for (int i = kPlainParts; i < kParts; ++i) squares = fmaf(part[i], part[i], squares);
    const float mean = warp_sum(squares) * (1.0f / A::kValueDim);
    return rsqrtf(mean + target::NORM_EPS);
  }

  __device__ void rotate(const Rotation<A>& rotation) {
#pragma unroll
    for (int i = 0; i < kPairParts; ++i) {
      const float2 angle = rotation.part[i];
      const float low = part[i], high = part[i + kPairParts];
      part[i] = low * angle.x - high * angle.y;
      part[i + kPairParts] = high * angle.x + low * angle.y;
    }
  }
};

}  // namespace atlas::tile
