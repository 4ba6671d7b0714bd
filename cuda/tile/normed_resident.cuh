// Rows that all blocks of a grid hold: the first blocks norm one each into F16, for all.
#pragma once

#include "tile/resident.cuh"
#include "tile/meet.cuh"
#include "tile/normed.cuh"

namespace atlas::tile {

// Destination of normed rows.
struct ResidentRows {
  f16* x;             // (rows, HIDDEN)
  unsigned* arrived;  // blocks that have normed their row; zero before and after
};

// Norms a row into `to` from element `at` on, and into `x` as well unless that is null.
__device__ inline void norm_rounded(const float* from, const NormedRow& gain, f16* to, float* x,
                                    size_t at, NormedRow::SharedStorage& shared) {
  NormedRow row;
  row.load(from);
  row.normalise(gain, target::NORM_EPS, shared);
  NormedRow::for_each_vector([&](int i, int vector) { put_vector(to + at, vector, row.part[i]); });
  if (x != nullptr) row.store(x + at);
}

// Norms rows, one a block, into `x` as well unless that is null, and waits until all rows are
// normed. `from(r)` is row r.
template <class From>
__device__ inline Meeting norm_resident(const From& from, float* x, int rows,
                                    const NormedRow& gain, const ResidentRows& to) {
  __shared__ NormedRow::SharedStorage shared;
  const int blocks = gridDim.x, first = blockIdx.x;
#pragma unroll 1
  for (int r = first; r < rows; r += blocks) {
    const size_t at = static_cast<size_t>(r) * target::HIDDEN;
    norm_rounded(from(r), gain, to.x, x, at, shared);
    __syncthreads();  // the squares have been read
  }
  Meeting meeting{to.arrived, static_cast<unsigned>(min(rows, blocks)), gridDim.x};
  meeting.meet(first < rows, true);
  return meeting;
}

// Loads 8 * kTiles normed rows from `first` on into registers.
template <int kTiles, class Stage>
__device__ inline void load_normed(Stage& stage, const ResidentRows& from, int first, int rows) {
  const f16* x = from.x + static_cast<size_t>(first) * target::HIDDEN;
  stage.load_rows(rows, [&](int row, int column) {
    return *reinterpret_cast<const uint4*>(x + row * target::HIDDEN + column);
  });
}

// Tiles of normed rows that a block holds, and of a block for fewer rows.
inline constexpr int kResidentTiles = resident_tiles(target::HIDDEN);
inline constexpr int kFewResidentTiles = few_resident_tiles(target::HIDDEN);

}  // namespace atlas::tile
