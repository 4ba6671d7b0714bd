// Blocks of a grid that wait for what others of it have written.
#pragma once

#include "tile/ptx.cuh"

namespace atlas::tile {

// Says that this block has written what it has to, as each of `blocks` does. `waiting` of them wait
// until all have; the last one to go on leaves a zero.
__device__ inline void meet(unsigned* arrived, unsigned blocks, unsigned waiting, bool waits) {
  __syncthreads();  // the block's own is written
  if (threadIdx.x == 0) {
    ptx::add_release(arrived, 1);
    if (waits) {
      while (ptx::load_acquire(arrived) < blocks) {
      }
      if (atomicAdd(arrived, 1) == blocks + waiting - 1) ptx::store_relaxed(arrived, 0);
    }
  }
  if (waits) __syncthreads();  // everybody's is
}

}  // namespace atlas::tile
