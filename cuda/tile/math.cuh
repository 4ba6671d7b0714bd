// Activation functions in F32, as accurate as the device's library.
#pragma once

namespace atlas::tile {

// `1 / d` for d from 1 to 2^126, as division rounds it, without its branch for other numbers.
__device__ inline float reciprocal(float d) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(d));
  return fmaf(fmaf(-d, y, 1.0f), y, y);
}

// At least 2^-126.
__device__ inline float sigmoid(float x) {
  const float d = 1.0f + expf(-x);
  return reciprocal(d > 0x1p126f ? 0x1p126f : d);
}

__device__ inline float silu(float x) { return x * sigmoid(x); }

// `ln(1 + e^x)`.
__device__ inline float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// `body(element of a, element of b)` on the four pairs.
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
