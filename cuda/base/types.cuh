// Element types of device memory and the 16-byte vectors that move them.
#pragma once

#include <cuda_bf16.h>

#include "ops.h"

namespace atlas {

using bf16 = __nv_bfloat16;

static_assert(sizeof(atlas_bf16) == sizeof(bf16), "the ABI's bf16 is the device's bf16");

// Widest access of one thread: a warp moves 512 contiguous bytes with it.
inline constexpr int kVectorBytes = 16;

// 8 bf16 elements moved as one 16-byte access.
struct alignas(kVectorBytes) Bf16x8 {
  static constexpr int kElements = 8;
  __nv_bfloat162 pair[kElements / 2];  // (4)

  __device__ static Bf16x8 zero() {
    const __nv_bfloat162 nothing = __float2bfloat162_rn(0.0f);
    return {{nothing, nothing, nothing, nothing}};
  }
};

static_assert(sizeof(Bf16x8) == kVectorBytes, "one vector is one access");

inline bf16* device(atlas_bf16* pointer) { return reinterpret_cast<bf16*>(pointer); }
inline const bf16* device(const atlas_bf16* pointer) {
  return reinterpret_cast<const bf16*>(pointer);
}

}  // namespace atlas
