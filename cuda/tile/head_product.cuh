// Products of each head's elements of a row with the head's own rows of a matrix: F16 operands,
// sums in F32.
//
// A block has 64 columns of a head's results and 64 rows of the step, a warp eight of the columns.
// The sum over K is one chain of instructions in the order of K, whatever the number of rows. The
// matrix is panels of F16; a head's rows are staged in shared memory, where instructions can read
// them transposed: results are its columns, or its rows.
#pragma once

#include "base/launch.cuh"
#include "base/types.cuh"
#include "tile/panels.cuh"
#include "tile/ptx.cuh"

namespace atlas::tile {

inline constexpr int kHeadRows = 64;     // of the step
inline constexpr int kHeadColumns = 64;  // of a head's results
inline constexpr int kHeadStep = 64;     // of K
inline constexpr int kHeadThreads = 256;
// Pitch of rows in shared memory, padded so that eight rows are in different banks.
inline constexpr int kHeadPitch = 64 + 8;

static_assert(kHeadColumns == kHeadThreads / kWarpLanes * 8, "a warp has 8 columns");

// Grid of heads, by 64 columns of their results, by 64 rows of the step.
__host__ inline Launch head_grid(unsigned heads, unsigned results, unsigned rows) {
  return {heads, kHeadThreads, 0, results / kHeadColumns, blocks_for(rows, kHeadRows)};
}

// Head, first result and rows of a block.
struct HeadBlock {
  const int head = blockIdx.x;
  const int column = blockIdx.y * kHeadColumns;
  const int first = blockIdx.z * kHeadRows;  // of the step's rows
  const int rows;

  __device__ explicit HeadBlock(int all) : rows(min(all - first, kHeadRows)) {}

  // Address of the head's `width` numbers in its row, in (rows, kHeads, width).
  template <int kHeads, class Number>
  __device__ Number* of(Number* all, int row, int width) const {
    return all + (static_cast<size_t>(first + row) * kHeads + head) * width;
  }
};

struct HeadStorage {
  alignas(16) f16 x[kHeadRows][kHeadPitch];
  alignas(16) f16 w[64][kHeadPitch];
};

// Address of eight neighbouring columns in a row of a matrix of `k` columns.
__device__ inline const unsigned char* head_vector(const unsigned char* panels, int k, int row,
                                                   int column) {
  constexpr int kGroup = Matrix<Storage::f16>::kGroup;
  const size_t group = static_cast<size_t>(row / kPanelRows) * (k / kGroup) + column / kGroup;
  return panels + (group * kPanelRows + row % kPanelRows) * kRunBytes + column % kGroup * 2;
}

// Sums for up to kHeadRows rows. `kTransposed`: over kK rows of `w` from `first_row` on, where
// results are columns from `first_column` on; otherwise over all kK columns, where results are
// rows. `x(row)` is the address of a row's kK numbers.
template <int kK, bool kTransposed>
struct HeadProduct {
  static_assert(kK % kHeadStep == 0, "steps are whole");
  static constexpr int kTiles = kHeadRows / 16;

  HeadStorage& shared;
  const unsigned char* panels;
  const int columns;  // of the matrix
  const int first_row;
  const int first_column;
  float sums[kTiles][4] = {};

  template <class X>
  __device__ void stage(int step, int rows, const X& x) {
    constexpr int kVectors = kHeadStep / 4;
#pragma unroll
    for (int item = threadIdx.x; item < kHeadRows * kVectors; item += kHeadThreads) {
      const int row = item / kVectors, vector = item % kVectors;
      float4 from{};
      if (row < rows) {
        from = __ldcg(reinterpret_cast<const float4*>(x(row) + step * kHeadStep) + vector);
      }
      put_vector(shared.x[row], vector, from);
    }
    constexpr int kOctets = 64 / 8;
#pragma unroll
    for (int item = threadIdx.x; item < 64 * kOctets; item += kHeadThreads) {
      const int row = item / kOctets, octet = item % kOctets * 8;
      const int at = first_row + (kTransposed ? step * kHeadStep : 0) + row;
      const int column = first_column + (kTransposed ? 0 : step * kHeadStep) + octet;
      *reinterpret_cast<uint4*>(&shared.w[row][octet]) =
          __ldg(reinterpret_cast<const uint4*>(head_vector(panels, columns, at, column)));
    }
  }

  // Loads the matrix's operands for two instructions: 32 elements of K from `k` on, for the eight
  // results of this warp.
  __device__ void operands(int k, unsigned (&to)[4]) const {
    const int lane = threadIdx.x % kWarpLanes, result = threadIdx.x / kWarpLanes * 8;
    if constexpr (kTransposed) {
      ptx::ldmatrix_transposed(to, &shared.w[k + lane][result]);
    } else {
      ptx::ldmatrix(to, &shared.w[result + lane % 8][k + lane / 8 * 8]);
    }
  }

  template <class X>
  __device__ void run(int rows, const X& x) {
    const int lane = threadIdx.x % kWarpLanes;
#pragma unroll 1
    for (int step = 0; step < kK / kHeadStep; ++step) {
      stage(step, rows, x);
      __syncthreads();  // operands are written
#pragma unroll
      for (int k = 0; k < kHeadStep; k += 32) {
        unsigned w[4];
        operands(k, w);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          if (t * 16 >= rows) break;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            unsigned from[4];
            ptx::ldmatrix(from, &shared.x[t * 16 + lane % 16][k + half * 16 + lane / 16 * 8]);
            ptx::mma_f16(sums[t], from, w[2 * half], w[2 * half + 1]);
          }
        }
      }
      __syncthreads();  // operands have been read
    }
  }

  // Calls `body(row, column, pair)` for each pair of neighbouring results.
  template <class Body>
  __device__ void for_each(int rows, const Body& body) const {
    const int lane = threadIdx.x % kWarpLanes, g = lane / 4, q = lane % 4;
    const int column = threadIdx.x / kWarpLanes * 8 + 2 * q;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = t * 16 + g + half * 8;
        if (row < rows) body(row, column, float2{sums[t][2 * half], sums[t][2 * half + 1]});
      }
    }
  }
};

}  // namespace atlas::tile
