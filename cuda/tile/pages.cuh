// Where keys and values lie in a page.
#pragma once

#include "target.cuh"

namespace atlas::tile {

// Columns of a block of a page: (kHeadDim / 64, PAGE positions, 64 columns).
inline constexpr int kPageColumns = 64;
inline constexpr int kPageVectors = kPageColumns / 8;

// Of an element of a head's keys or values in a page. The 16-byte vectors of a block's position are
// permuted by the position's last three bits, as warpgroup instructions read operands of 128-byte
// rows: a page is one copy.
__device__ inline int page_at(int position, int dim) {
  const int block = dim / kPageColumns, vector = dim % kPageColumns / 8;
  return (block * target::PAGE + position) * kPageColumns +
         (vector ^ position % kPageVectors) * 8 + dim % 8;
}

}  // namespace atlas::tile
