// Element types of device memory and the 16-byte vectors that move them.
#pragma once

#include "ops.h"

namespace atlas {

// Two-byte floats, which kernels store, convert and pass to tensor instructions. CUDA's own headers
// have much more, which would be compiled with every kernel.
struct bf16 {
  unsigned short bits;
};

// Slot number that stands for no slot.
inline constexpr unsigned kNoSlot = ~0u;

struct f16 {
  unsigned short bits;
};

// Two bf16 in a register, the first one in the low half.
struct bf16x2 {
  unsigned bits;
};

struct f16x2 {
  unsigned bits;
};

// Conversion to bf16, rounded to nearest, ties to even.
__device__ inline bf16 to_bf16(float x) {
  bf16 to;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
  return to;
}

__device__ inline f16 to_f16(float x) {
  f16 to;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
  return to;
}

__device__ inline bf16x2 to_bf16x2(float low, float high) {
  bf16x2 to;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(to.bits) : "f"(high), "f"(low));
  return to;
}

__device__ inline f16x2 to_f16x2(float low, float high) {
  f16x2 to;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(to.bits) : "f"(high), "f"(low));
  return to;
}

__device__ inline float to_float(f16 from) {
  float to;
  asm("cvt.f32.f16 %0, %1;" : "=f"(to) : "h"(from.bits));
  return to;
}

__device__ inline float2 to_float2(bf16x2 from) {
  return {__uint_as_float(from.bits << 16), __uint_as_float(from.bits & 0xffff0000u)};
}

__device__ inline float2 to_float2(f16x2 from) {
  float2 to;
  asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
      : "=f"(to.x), "=f"(to.y)
      : "r"(from.bits));
  return to;
}

__device__ inline f16x2 multiply(f16x2 a, f16x2 b) {
  f16x2 to;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(to.bits) : "r"(a.bits), "r"(b.bits));
  return to;
}

__device__ inline bf16x2 multiply(bf16x2 a, bf16x2 b) {
  bf16x2 to;
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(to.bits) : "r"(a.bits), "r"(b.bits));
  return to;
}

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2, "two bytes a number");
static_assert(sizeof(bf16x2) == 4 && sizeof(f16x2) == 4, "two of them a register");

// Widest access of one thread, bytes: a warp's accesses move 512 contiguous bytes at once.
inline constexpr int kVectorBytes = 16;

// 8 bf16 elements moved as one 16-byte access.
struct alignas(kVectorBytes) Bf16x8 {
  static constexpr int kElements = 8;
  bf16x2 pair[kElements / 2];  // (4)

  __device__ static Bf16x8 zero() { return {}; }

  __device__ bool is_finite() const {
    constexpr unsigned kLow = 0x7f80, kHigh = 0x7f80'0000;  // exponents of infinity and NaN
    bool finite = true;
#pragma unroll
    for (int i = 0; i < kElements / 2; ++i) {
      finite = finite && (pair[i].bits & kLow) != kLow && (pair[i].bits & kHigh) != kHigh;
    }
    return finite;
  }

  __device__ static Bf16x8 rounded(const float4& low, const float4& high) {
    return {{to_bf16x2(low.x, low.y), to_bf16x2(low.z, low.w),
             to_bf16x2(high.x, high.y), to_bf16x2(high.z, high.w)}};
  }
};

static_assert(sizeof(Bf16x8) == kVectorBytes, "one vector is one access");

}  // namespace atlas
