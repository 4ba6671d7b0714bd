// A head whose numbers are F16, stored at the start of the memory for its F32 numbers: rows of both
// kinds have one layout, and a warp may overwrite F16 that it has read by F32.
//
// Loading and widening are separate functions: loads that depend on a row's kind are issued
// together only if nothing is computed between them.
#pragma once

#include "base/types.cuh"

namespace atlas::tile {

// Four F16 of a head, from `4 * vector` on, as stored.
__device__ inline const uint2& vector_of_f16(const float* head, int vector) {
  return reinterpret_cast<const uint2*>(head)[vector];
}

__device__ inline float4 widened(const uint2& vector) {
  const float2 low = to_float2(f16x2{vector.x}), high = to_float2(f16x2{vector.y});
  return {low.x, low.y, high.x, high.y};
}

__device__ inline void put_vector_f16(float* head, int vector, const float4& value) {
  reinterpret_cast<uint2*>(head)[vector] = {to_f16x2(value.x, value.y).bits,
                                            to_f16x2(value.z, value.w).bits};
}

// One F16 of a head.
__device__ inline f16& number_of_f16(float* head, int at) {
  return reinterpret_cast<f16*>(head)[at];
}
__device__ inline const f16& number_of_f16(const float* head, int at) {
  return reinterpret_cast<const f16*>(head)[at];
}

// Four numbers of a head of either kind, as stored.
struct EitherVector {
  float4 bits;  // F16 numbers are in the first two words
  bool is_f16;

  __device__ static EitherVector of(const float* head, int vector, bool is_f16) {
    EitherVector to{{}, is_f16};
    if (is_f16) {
      *reinterpret_cast<uint2*>(&to.bits) = vector_of_f16(head, vector);
    } else {
      to.bits = reinterpret_cast<const float4*>(head)[vector];
    }
    return to;
  }

  __device__ float4 value() const {
    return is_f16 ? widened({__float_as_uint(bits.x), __float_as_uint(bits.y)}) : bits;
  }
};

}  // namespace atlas::tile
