// Reductions over a thread block in an order fixed by the block's size alone.
#pragma once

namespace atlas::tile {

inline constexpr int kWarpLanes = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Butterfly sum: addition commutes, so every lane gets the same bits.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, lanes);
  }
  return value;
}

}  // namespace atlas::tile
