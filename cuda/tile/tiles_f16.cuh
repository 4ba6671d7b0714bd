// 16x16 tiles of F16 in shared memory, and loads of tensor instructions' operands from them.
//
// A tile is four 8x8 matrices of 128 bytes, in the order of an instruction's A operand: upper left,
// lower left, upper right, lower right. Every access by a warp reads or writes whole matrices,
// without bank conflicts.
#pragma once

#include "base/types.cuh"
#include "tile/ptx.cuh"
#include "tile/reduce.cuh"

namespace atlas::tile {

inline constexpr int kTileRows = 16;
inline constexpr int kMatrix = 64;  // elements

using TileF16 = f16[4 * kMatrix];

// Tiles in the lower triangle of `kEdge` by `kEdge` tiles, stored row by row.
template <int kEdge>
inline constexpr int kTriangle = kEdge * (kEdge + 1) / 2;

__device__ inline int triangle(int row, int column) { return row * (row + 1) / 2 + column; }

// Index of an element in a tile.
__device__ inline int tile_at(int row, int column) {
  return (row / 8 + column / 8 * 2) * kMatrix + row % 8 * 8 + column % 8;
}

// Loads the tile as an A operand.
__device__ inline void load_a(unsigned (&a)[4], const TileF16& tile) {
  ptx::ldmatrix(a, &tile[threadIdx.x % kWarpLanes * 8]);
}

// Loads the tile, its rows along K, as the B operands of two instructions: b[0], b[1] from its left
// half, b[2], b[3] from its right half.
__device__ inline void load_b(unsigned (&b)[4], const TileF16& tile) {
  ptx::ldmatrix_transposed(b, &tile[threadIdx.x % kWarpLanes * 8]);
}

// Loads the transposed tile, its columns along K, as the B operands of two instructions.
__device__ inline void load_b_transposed(unsigned (&b)[4], const TileF16& tile) {
  const int lane = threadIdx.x % kWarpLanes, matrix = lane / 8;
  ptx::ldmatrix(b, &tile[(matrix / 2 + matrix % 2 * 2) * kMatrix + lane % 8 * 8]);
}

// Writes a warp's sums of a tile, in halves `left` and `right`, rounded to F16.
__device__ inline void store_sums(TileF16& tile, const float (&left)[4], const float (&right)[4]) {
  auto* to = reinterpret_cast<f16x2*>(tile) + threadIdx.x % kWarpLanes;
  to[0 * kMatrix / 2] = to_f16x2(left[0], left[1]);
  to[1 * kMatrix / 2] = to_f16x2(left[2], left[3]);
  to[2 * kMatrix / 2] = to_f16x2(right[0], right[1]);
  to[3 * kMatrix / 2] = to_f16x2(right[2], right[3]);
}

}  // namespace atlas::tile
