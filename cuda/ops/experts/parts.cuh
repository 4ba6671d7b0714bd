// An expert's results for a row: activations between its two products, and its part of the row's
// sum, as pairs of F16.
//
// With many rows, parts are most of the memory traffic. They are rounded to F16 in every algorithm
// alike, as a row's bits must not depend on the number of rows.
#pragma once

#include "base/types.cuh"
#include "target.cuh"
#include "tile/math.cuh"
#include "tile/panels.cuh"

namespace atlas::experts {

using target::shapes::Experts;

// Width of the rows that experts read and of their results.
inline constexpr int kWidth = Experts::kWidth;
// Pairs of F16 in the part of one assignment.
inline constexpr int kPairs = kWidth / 2;
// Divisor of stored activations and parts: up to 2^20 they fit, and below 2^-10 they are off by
// 2^-21 at most. A larger value becomes infinite, and so does its row.
inline constexpr float kPartUnit = 16.0f;

static_assert(kWidth % tile::kPanelRows == 0, "panels are full");

// Activation of a gate and an up, divided by `kPartUnit`.
__device__ inline float activation(float gate, float up) {
  constexpr auto kActivation = Experts::kActivation;
  return tile::open<kActivation>(gate) * (tile::lift<kActivation>(up) * (1.0f / kPartUnit));
}

// Matrices of an expert's first product: gate and up, or up alone.
inline constexpr int kInputs = Experts::kActivation == target::Activation::relu2 ? 1 : 2;
// Whether the rows of an expert's first product become one activation each; otherwise a panel's
// first half are gates of the second half.
inline constexpr bool kUpAlone = kInputs == 1;
// Activations that the sums of a panel's rows give.
inline constexpr int kPanelActivations = kUpAlone ? tile::kPanelRows : tile::kPanelRows / 2;

// Calls `put(column among the panel's, activation)` with activations of a panel's rows g and g + 8.
template <class Put>
__device__ inline void activate(int g, float low, float high, Put put) {
  if constexpr (kUpAlone) {
    put(g, activation(low, low));
    put(g + tile::kPanelRows / 2, activation(high, high));
  } else {
    put(g, activation(low, high));
  }
}

// Result of `down` from a sum over activations, divided by `kPartUnit`.
__device__ inline float result(const tile::Affine& down, float sum) {
  return tile::Affine{down.scale, down.bias * (1.0f / kPartUnit)}(sum);
}

// Parts from the results of a panel's rows g and g + 8, which are pair `panel * 8 + g`.
__device__ inline f16x2 to_parts(float low, float high) { return to_f16x2(low, high); }

// Value of a result after it was stored as a part.
__device__ inline float as_part(float sum) { return to_float(to_f16(sum)) * kPartUnit; }

// The hidden state plus a row's sum; where experts are over latents, the sum alone.
__device__ inline float onto(float residual, float sum) {
  return Experts::kLatent ? sum : residual + sum;
}

// Weighted sum of four pairs, one access: columns `first()` .. `first()` + 3, and the same + 8.
struct WeightedSum {
  float4 low{};
  float4 high{};

  static constexpr int kVectors = kPairs / 4;  // of a row

  __device__ static int first(int vector) {
    return vector / 2 * tile::kPanelRows + vector % 2 * 4;
  }

  __device__ void add(float weight, const f16x2* parts) {
    const uint4 four = *reinterpret_cast<const uint4*>(parts);
    const f16x2 pairs[4] = {{four.x}, {four.y}, {four.z}, {four.w}};
    const float2 a = to_float2(pairs[0]), b = to_float2(pairs[1]);
    const float2 c = to_float2(pairs[2]), d = to_float2(pairs[3]);
    weight *= kPartUnit;  // a power of two: exact, as if the parts were multiplied
    low.x = fmaf(weight, a.x, low.x), high.x = fmaf(weight, a.y, high.x);
    low.y = fmaf(weight, b.x, low.y), high.y = fmaf(weight, b.y, high.y);
    low.z = fmaf(weight, c.x, low.z), high.z = fmaf(weight, c.y, high.z);
    low.w = fmaf(weight, d.x, low.w), high.w = fmaf(weight, d.y, high.w);
  }

  __device__ void join(float* residual, int vector) const {
    const auto plus = [](float residual, float more) { return onto(residual, more); };
    float4* to = reinterpret_cast<float4*>(residual + first(vector));
    to[0] = tile::zip(to[0], low, plus);
    to[2] = tile::zip(to[2], high, plus);
  }
};

}  // namespace atlas::experts
