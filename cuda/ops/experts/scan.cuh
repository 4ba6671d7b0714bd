// Sums over the threads of a block, for plans of experts.
#pragma once

#include "tile/reduce.cuh"

namespace atlas::experts {

// Sum of `value` over the threads before this one, in a block of full warps.
__device__ inline unsigned before(unsigned value, unsigned (&sums)[tile::kWarpLanes]) {
  const int lane = threadIdx.x % tile::kWarpLanes, warp = threadIdx.x / tile::kWarpLanes;
  unsigned sum = value;
#pragma unroll
  for (int distance = 1; distance < tile::kWarpLanes; distance *= 2) {
    const unsigned other = __shfl_up_sync(tile::kAllLanes, sum, distance);
    if (lane >= distance) sum += other;
  }
  __syncthreads();  // `sums` is free
  if (lane == tile::kWarpLanes - 1) sums[warp] = sum;
  __syncthreads();  // every warp's sum is there
  for (int other = 0; other < warp; ++other) sum += sums[other];
  return sum - value;
}

}  // namespace atlas::experts
