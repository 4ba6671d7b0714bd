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

// First element of a head's keys, or values, behind the first element that a layer has of any page:
// `stride` elements from page to page, since all layers of a page lie side by side.
template <class A>
__device__ inline size_t head_at(unsigned page, unsigned stride, int kv_head, int is_value) {
  constexpr int kHead = target::PAGE * A::kHeadDim;
  return static_cast<size_t>(page) * stride + (kv_head * 2 + is_value) * kHead;
}

}  // namespace atlas::tile
