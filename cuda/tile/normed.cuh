// Products with streamed weights whose blocks norm all rows for themselves: rows are in the
// second-level cache, and a kernel that norms once would take longer.
#pragma once

#include "tile/stream.cuh"

namespace atlas::tile {

using NormedRow = NormRow<target::HIDDEN, kPanelThreads>;

// Most rows that a group of threads norms at once: one in narrow blocks, and one of wide rows,
// which fill registers.
template <class Shape>
inline constexpr int kNormedAtOnce =
    Shape::kWarps == Wide::kWarps && NormedRow::kVectors <= 2 ? 4 : 1;

template <class Shape>
struct NormedStorage {
  float squares[kTileRows][NormedRow::kWarps];
  StreamStorage<Shape> stream;

  __host__ __device__ static constexpr unsigned bytes(int rows) {
    return static_cast<unsigned>(sizeof(NormedStorage)) +
           StagedRows<Shape>::bytes(rows, target::HIDDEN);
  }
};

// Most rows for which the shared memory of every shape suffices.
__host__ __device__ constexpr int normed_rows_max() {
  const auto fit = [](int rows) {
    const int narrow = rows < kNarrowRowsMax ? rows : kNarrowRowsMax;
    return NormedStorage<Wide>::bytes(rows) <= target::SHARED_BYTES_PER_BLOCK &&
           NormedStorage<Narrow>::bytes(narrow) <= target::SHARED_BYTES_PER_BLOCK;
  };
  int rows = kTileRows;
  while (rows > 1 && !fit(rows)) --rows;
  return rows;
}

// Rows that are adjacent in memory.
struct RowsIn {
  const float* first;

  __device__ const float* operator()(int r) const {
    return first + static_cast<size_t>(r) * target::HIDDEN;
  }
};

// Rows whose indices are in `list`, or the first rows if `list` is null.
struct ListedRows {
  const float* first;
  const unsigned* list;

  __device__ const float* operator()(int r) const {
    return RowsIn{first}(list == nullptr ? r : static_cast<int>(list[r]));
  }
};

// Gains of the norm. A thread loads its part into registers before the kernel waits for rows; if
// rows are too wide for this, gains are read again for each row.
struct NormedGain {
  static constexpr bool kResident = NormedRow::kVectors <= 5;

  const float* all;  // (HIDDEN)
  NormedRow resident;

  __device__ explicit NormedGain(const float* gain) : all(gain) {
    if constexpr (kResident) resident.load(gain);
  }

  __device__ NormedRow now() const {
    NormedRow row = resident;
    if constexpr (!kResident) row.load(all);
    return row;
  }
};

// Norms all rows into shared memory, each by `NormedRow`'s threads; the first block also writes
// them to `x`. `from(r)` is row r.
template <class Shape, class From>
__device__ inline void norm_rows(const From& from, float* x, int rows, const NormedGain& gain,
                                 const StagedRows<Shape>& staged, NormedStorage<Shape>& shared) {
  constexpr int kGroups = Shape::kThreads / kPanelThreads;
  constexpr int kRows = kNormedAtOnce<Shape>;
  const int group = threadIdx.x / kPanelThreads;
  const auto at = [](int r) { return static_cast<size_t>(r) * target::HIDDEN; };
#pragma unroll 1
  for (int first = 0; first < rows; first += kRows * kGroups) {
    const auto row_of = [&](int i) { return first + group + i * kGroups; };
    NormedRow row[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (row_of(i) < rows) row[i].load(from(row_of(i)));
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (row_of(i) < rows) row[i].put_squares(shared.squares[row_of(i)]);
    }
    __syncthreads();  // every warp's squares are written
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int r = row_of(i);
      if (r >= rows) break;
      row[i].scale(gain.now(), target::NORM_EPS, shared.squares[r]);
      NormedRow::for_each_vector([&](int j, int vector) { staged.put(r, vector, row[i].part[j]); });
    }
    if (blockIdx.x != 0) continue;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (row_of(i) < rows) row[i].store(x + at(row_of(i)));
    }
  }
  __syncthreads();  // the rows are staged
}

}  // namespace atlas::tile
