// An expert's results of a row: activations between its two products, and its part of the row's
// sum, in pairs of F16.
//
// Many rows read and write more of the parts than of anything else. They are rounded as operands
// are, in every algorithm alike, for a row's bits are those of any number of rows.
#pragma once

#include "base/types.cuh"
#include "target.cuh"
#include "tile/math.cuh"
#include "tile/panels.cuh"

namespace atlas::experts {

using target::shapes::Experts;

// Width of the rows that experts read and make.
inline constexpr int kWidth = Experts::kWidth;
// Pairs of one place.
inline constexpr int kPairs = kWidth / 2;
// Activations and parts are stored over this: they may be 2^20, and below 2^-10 they are off by
// 2^-21 at most. What is larger becomes infinite, and so does the row.
inline constexpr float kPartUnit = 16.0f;

static_assert(kWidth % tile::kPanelRows == 0, "panels are full");

// Activation of the shape, over `kPartUnit`.
__device__ inline float activation(float gate, float up) {
  constexpr auto kActivation = Experts::kActivation;
  return tile::open<kActivation>(gate) * (tile::lift<kActivation>(up) * (1.0f / kPartUnit));
}

// Matrices of an expert beside `down`: gate and up, or up alone.
inline constexpr int kInputs = Experts::kActivation == target::Activation::relu2 ? 1 : 2;
// Rows of an expert's first product that become activations one by one, so that a panel has as many
// as rows; else a panel's first rows are gates of the others.
inline constexpr bool kUpAlone = kInputs == 1;
// Activations of a panel.
inline constexpr int kPanelActivations = kUpAlone ? tile::kPanelRows : tile::kPanelRows / 2;

// Activations of the rows g and g + 8 of a panel: `put(column of the panel's, activation)`.
template <class Put>
__device__ inline void activate(int g, float low, float high, Put put) {
  if constexpr (kUpAlone) {
    put(g, activation(low, low));
    put(g + tile::kPanelRows / 2, activation(high, high));
  } else {
    put(g, activation(low, high));
  }
}

// Result of `down` for a sum of such activations, over `kPartUnit` too.
__device__ inline float result(const tile::Affine& down, float sum) {
  return tile::Affine{down.scale, down.bias * (1.0f / kPartUnit)}(sum);
}

// Parts of the results of a panel's rows g and g + 8: pair `panel * 8 + g`.
__device__ inline f16x2 to_parts(float low, float high) { return to_f16x2(low, high); }

// The part that such a result is.
__device__ inline float as_part(float sum) { return to_float(to_f16(sum)) * kPartUnit; }

// The hidden state behind a row's sum, which alone is a latent.
__device__ inline float onto(float residual, float sum) {
  return Experts::kLatent ? sum : residual + sum;
}

// Four pairs, one 16-byte access: columns `first()` to `first()` + 3, and those 8 behind them.
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
    weight *= kPartUnit;  // a power of two: the same bits as of parts times it
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
