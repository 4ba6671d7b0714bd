// Reductions over a thread block in an order fixed by the block's size alone.
#pragma once

namespace atlas::tile {

inline constexpr int kWarpLanes = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Butterfly: addition commutes, so every lane ends with the same bits.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, lanes);
  }
  return value;
}

// Sum over `kWarps` full warps; every thread gets the same bits.
//
// `partial` may be read by a slower warp after this returns: reuse it only behind another barrier.
template <int kWarps>
__device__ inline float block_sum(float value, float (&partial)[kWarps]) {
  value = warp_sum(value);
  if constexpr (kWarps == 1) return value;
  if (threadIdx.x % kWarpLanes == 0) partial[threadIdx.x / kWarpLanes] = value;
  __syncthreads();  // every warp's partial is written before any thread adds them up
  float sum = partial[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) sum += partial[warp];
  return sum;
}

}  // namespace atlas::tile
