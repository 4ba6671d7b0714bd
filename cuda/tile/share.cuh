// Division of work among the blocks of a grid.
#pragma once

namespace atlas::tile {

// A block's share of `items`: the first blocks have one more than the others.
struct Share {
  int first;
  int count;

  __device__ static Share of(int items, int block, int blocks) {
    const int each = items / blocks, more = items % blocks;
    return {block * each + min(block, more), each + (block < more)};
  }
};

}  // namespace atlas::tile
