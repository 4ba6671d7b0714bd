// Scaling of vectors, and activation functions in F32, as accurate as the device's library.
#pragma once

#include "target.cuh"

namespace atlas::tile {

__device__ inline float4 times(const float4& x, float factor) {
  return {x.x * factor, x.y * factor, x.z * factor, x.w * factor};
}

// `1 / d` for d from 1 to 2^126, rounded as a division, without the branches for other numbers.
__device__ inline float reciprocal(float d) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(d));
  return fmaf(fmaf(-d, y, 1.0f), y, y);
}

// Sigmoid of `x`, at least 2^-126.
__device__ inline float sigmoid(float x) {
  const float d = 1.0f + expf(-x);
  return reciprocal(d > 0x1p126f ? 0x1p126f : d);
}

__device__ inline float silu(float x) { return x * sigmoid(x); }

// Bound to which clamped activations limit gate and up.
inline constexpr float kClamp = 7.0f;
// Factor of the gate in the sigmoid of clamped activations.
inline constexpr float kAlpha = 1.702f;

// Factor of an activation that its gate gives. A NaN stays NaN.
template <target::Activation kActivation>
__device__ inline float open(float gate) {
  if constexpr (kActivation == target::Activation::clamped) {
    gate = gate > kClamp ? kClamp : gate;
    return gate * sigmoid(kAlpha * gate);
  } else if constexpr (kActivation == target::Activation::gelu_tanh) {
    return gate * sigmoid(1.5957691f * (gate + 0.044715f * gate * gate * gate));
  } else if constexpr (kActivation == target::Activation::relu2) {
    return gate < 0.0f ? 0.0f : gate;  // a NaN stays NaN
  } else {
    return silu(gate);
  }
}

// Factor of an activation that its up-projection gives. A NaN stays NaN.
template <target::Activation kActivation>
__device__ inline float lift(float up) {
  if constexpr (kActivation != target::Activation::clamped) return up;
  return (up > kClamp ? kClamp : up < -kClamp ? -kClamp : up) + 1.0f;
}

// Softplus: `ln(1 + e^x)`.
__device__ inline float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// Calls `body(element of a, element of b)` on all four pairs.
template <class Body>
__device__ inline float4 zip(const float4& a, const float4& b, Body body) {
  return {body(a.x, b.x), body(a.y, b.y), body(a.z, b.z), body(a.w, b.w)};
}

__device__ inline const float4& vector_at(const float* row, size_t vector) {
  return reinterpret_cast<const float4*>(row)[vector];
}

__device__ inline float4& vector_at(float* row, size_t vector) {
  return reinterpret_cast<float4*>(row)[vector];
}

}  // namespace atlas::tile
