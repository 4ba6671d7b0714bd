// Synchronisation of the blocks of a grid that exchange data through memory.
#pragma once

#include "tile/ptx.cuh"

namespace atlas::tile {

struct Meeting {
  unsigned* arrived;  // blocks that have arrived; zero before and after a launch
  unsigned writing;   // blocks that others wait for
  unsigned waiting;   // blocks that wait; a block may do both
  unsigned before = 0;

  // Announces this block's writes if it `writes`, and waits for all blocks' writes if it `waits`.
  __device__ void meet(bool writes, bool waits) {
    __syncthreads();  // all threads of this block have written
    if (threadIdx.x == 0) {
      if (writes) ptx::add_release(arrived, 1);
      if (waits) {
        while (ptx::load_acquire(arrived) < writing) {
        }
        before = atomicAdd(arrived, 1);
      }
    }
    if (waits) __syncthreads();  // all blocks have written
  }

  // Resets the counter in the last block. To be called once a block has nothing else to do, as the
  // atomic's result takes a while.
  __device__ void leave() const {
    if (threadIdx.x == 0 && before == writing + waiting - 1) ptx::store_relaxed(arrived, 0);
  }
};

}  // namespace atlas::tile
