// Products of more rows than a tile with many panels of weights, for decode: rows are resident in
// registers, weights are streamed. The arithmetic is that of `Flat`, `Tiled` and `Stream`.
//
// A warp has a segment of K: these columns of all the block's rows are operands in its registers
// while the block runs. So a piece of weights is read from shared memory and decoded once for all
// rows, and rows are not read again for every panel.
#pragma once

#include "tile/stream.cuh"

namespace atlas::tile {

// Shape of a block that fills an SM: rows take its registers, weights its shared memory.
using ResidentShape = Shape<8, kLargeSm ? 8 : 3, 2048>;

// Most rows that a grid holds in registers; more rows are faster in tiles.
inline constexpr int kResidentRowsMax = 64;

// Most registers of a thread for rows.
inline constexpr int kResidentRegisters = 128;

// Columns that a pair of instructions multiplies.
inline constexpr int kPairColumns = 32;

// Most rows of `k` columns that a block holds: a power of two of tiles.
__host__ __device__ constexpr int resident_rows(int k) {
  int tiles = 4;
  while (tiles > 1 && k / segments(k) / kPairColumns * 4 * tiles > kResidentRegisters) tiles /= 2;
  return tiles * kTileRows;
}

// Whether a block can hold rows of `k` columns at all.
__host__ __device__ constexpr bool fits_registers(int k) {
  return k / segments(k) / kPairColumns * 4 <= kResidentRegisters;
}

// Tiles of 8 rows in `resident_rows(k)`.
__host__ __device__ constexpr int resident_tiles(int k) { return resident_rows(k) / kTileRows; }
// Tiles of 8 rows of a block for few rows.
__host__ __device__ constexpr int few_resident_tiles(int k) {
  return resident_tiles(k) > 2 ? 2 : resident_tiles(k);
}

// Sums of two waves of panels, which warps leave for the block's threads to add.
template <int kRows>
struct ResidentSums {
  // Pitch by which eight lanes' rows of weights and four lanes' rows are in different banks.
  static constexpr int kPitch = kPanelRows + 4;

  alignas(16) float sum[2][ResidentShape::kWarps][kRows][kPitch];  // (wave % 2, warp, row, n)
  unsigned long long there;  // mbarrier: all warps' sums of a wave are written
};

template <int kRows>
struct ResidentStorage {
  StreamStorage<ResidentShape> stream;
  ResidentSums<kRows> sums;
};

// `Stream` for matrices of kK columns and 8 * kTiles rows in registers. `sink(unit, quad, row,
// sums)` takes the sums of the panel's rows 4 quad .. 4 quad + 3, without their row scale.
template <Storage kStorage, int kK, int kTiles, class At>
struct Resident : Stream<kStorage, kK, kTiles, ResidentShape, At> {
  using Base = Stream<kStorage, kK, kTiles, ResidentShape, At>;
  using W = Matrix<kStorage>;
  using Sums = ResidentSums<kTiles * kTileRows>;
  using Base::kAtOnce;
  using Base::kGroups;
  using Base::kPieces;
  using Base::kSegments;
  static constexpr int kOctets = kGroups * W::Code::kOctets;
  static_assert(kTiles * kTileRows <= resident_rows(kK), "registers suffice for the rows");
  static_assert(fits_registers(kK), "registers suffice for a tile");

  using Base::lane;
  using Base::warp;

  uint4 x[kOctets][kTiles];  // a lane's columns of the segment

  __device__ Resident(StreamStorage<ResidentShape>& shared, const At& at, int count)
      : Base(shared, at, count) {}

  // Loads the rows: `octet(row, column)` gives eight columns of a row as operands; a lane has
  // `kTogether` of these loads in flight.
  template <int kTogether = kOctets * kTiles, class Octet>
  __device__ void load_rows(int rows, const Octet& octet) {
    const int g = lane() / 4, q = lane() % 4;
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      const int group = this->segment * kGroups + o / W::Code::kOctets;
      const int column = group * W::kGroup + q * W::kLaneColumns + o % W::Code::kOctets * 8;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        // Rows after the last one repeat it; their sums are dropped.
        x[o][t] = octet(min(t * kTileRows + g, rows - 1), column);
      }
      // The barrier separates groups of loads, which the compiler would otherwise reorder.
      if ((o + 1) * kTiles % kTogether == 0) __syncwarp();
    }
  }

  // Multiplies all panels, in waves; sums of a wave are added while the next wave is multiplied.
  template <class Sink>
  __device__ void run(int rows, Sums& sums, const Sink& sink) {
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(&sums.there, ResidentShape::kWarps * kWarpLanes);
      ptx::mbarrier_init_fence();
    }
    __syncthreads();  // the barrier is initialised
    int round = 0;
#pragma unroll 1
    for (int first = 0; first < this->count; first += kAtOnce, round ^= 1) {
      float sum[kTiles][4] = {};
      if (first + this->mine < this->count) multiply(sum);
      if (first > 0) add_segments(first - kAtOnce, round ^ 1, rows, sums, sink);
      put(sum, sums.sum[round]);
      ptx::mbarrier_arrive(&sums.there);  // this thread's sums are written
    }
    const int last = (this->count - 1) / kAtOnce * kAtOnce;
    if (this->count > 0) add_segments(last, round ^ 1, rows, sums, sink);
  }

  // Sums of a segment of this warp's next panel.
  __device__ void multiply(float (&sum)[kTiles][4]) {
    float chain[Base::kChains][4] = {};
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const auto& from = this->await(piece == 0);
#pragma unroll
      for (int i = 0; i < Base::groups_of(piece); ++i) {
        const int group = piece * Base::kPieceGroups + i;
        const auto operand = [&](int octet, int t) {
          return x[group * W::Code::kOctets + octet][t];
        };
        Base::multiply_group(Base::fragment(from, i), operand, sum, chain);
      }
      this->close(piece, sum, chain);
      this->advance();
    }
  }

  template <class Round>
  __device__ static void put(const float (&sum)[kTiles][4], Round& round) {
    const int g = lane() / 4, q = lane() % 4;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        float* own = round[warp()][t * kTileRows + 2 * q + odd];
        own[g] = sum[t][odd], own[g + 8] = sum[t][odd + 2];
      }
    }
  }

  // Adds up the segments of a wave's panels, from `first` on, in order, after all warps have
  // written the sums: one half of the block for even waves, the other half for odd ones. A warp
  // overwrites a wave's sums only after it has seen all warps' sums of the next wave.
  template <class Sink>
  __device__ void add_segments(int first, int round, int rows, Sums& sums, const Sink& sink) const {
    constexpr int kRows = kTiles * kTileRows, kHalf = ResidentShape::kThreads / 2;
    ptx::mbarrier_wait(&sums.there, round);
    if (threadIdx.x / kHalf != round) return;
    const int panels = min(kAtOnce, this->count - first);
#pragma unroll 1
    for (int item = threadIdx.x % kHalf; item < panels * 4 * kRows; item += kHalf) {
      const int quad = item % 4, row = item / 4 % kRows, in_block = item / (4 * kRows);
      if (row >= rows) continue;
      float4 total{};
#pragma unroll
      for (int s = 0; s < kSegments; ++s) {
        const float* from = sums.sum[round][in_block * kSegments + s][row] + quad * 4;
        const float4 part = *reinterpret_cast<const float4*>(from);
        total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
      }
      sink(first + in_block, quad, row, total);
    }
  }
};

}  // namespace atlas::tile
