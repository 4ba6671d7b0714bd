// Blocks of a grid that wait for what others of it have written.
#pragma once

#include "tile/ptx.cuh"

namespace atlas::tile {

struct Meeting {
  unsigned* arrived;  // zero before the first block and behind the last one
  unsigned writing;   // blocks that others wait for
  unsigned waiting;   // blocks that wait, which may be some of them
  unsigned before = 0;

  // Says that this block has written what it has to, if it `writes`; waits until all have, if it
  // `waits`.
  __device__ void meet(bool writes, bool waits) {
    __syncthreads();  // the block's own is written
    if (threadIdx.x == 0) {
      if (writes) ptx::add_release(arrived, 1);
      if (waits) {
        while (ptx::load_acquire(arrived) < writing) {
        }
        before = atomicAdd(arrived, 1);
      }
    }
    if (waits) __syncthreads();  // everybody's is
  }

  // A block's leave, when it has nothing else to do: what the counter was takes a while to come.
  // The last one leaves a zero.
  __device__ void leave() const {
    if (threadIdx.x == 0 && before == writing + waiting - 1) ptx::store_relaxed(arrived, 0);
  }
};

}  // namespace atlas::tile
