// A head of a row whose numbers are F16: they lie at the start of the room that its F32 numbers
// have, so that a warp may put those where it has read the others, and rows of both kinds have one
// shape.
//
// Reading and widening are apart: loads that depend on which kind a row is stay side by side only
// if nothing is computed of them there.
#pragma once

#include "base/types.cuh"

namespace atlas::tile {

// Four numbers of a head, from `4 * vector` on, as they lie there.
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

// One number of a head.
__device__ inline f16& number_of_f16(float* head, int at) {
  return reinterpret_cast<f16*>(head)[at];
}
__device__ inline const f16& number_of_f16(const float* head, int at) {
  return reinterpret_cast<const f16*>(head)[at];
}

// Four numbers of a head that is of either kind, as they lie there.
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
