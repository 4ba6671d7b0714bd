// Implements: Ops::linear
// Match:      any N and K, every weight format of the target; operands F16. A kernel knows the K of
//             the target's matrices; rows of any other K, and those that no block has memory to
//             stage, are read as they are multiplied; many rows are rounded first, or there is no
//             `x` and they lie rounded in `operands`
// Bound by:   few rows: HBM (the weights, once); many rows: tensor instructions
// Sync:       few rows: a barrier a panel, of a block's warps, or two of a cluster's blocks; many:
//             one a group of columns; chained launch
#pragma once

#include <type_traits>

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/resident.cuh"
#include "tile/math.cuh"
#include "tile/split.cuh"

namespace atlas::linear {

struct Params {
  const float* x;               // (rows, k)
  const unsigned char* weight;  // panels of (n, k)
  float* out;                   // (rows, n)
  int rows;
  int n;
  int k;
};

// Sink of a panel's sums: scales them, adds biases and writes them by `Put`.
template <tile::Storage kStorage, class Put>
struct Sink {
  const tile::Matrix<kStorage>& w;
  float* out;  // of the block's first row

  __device__ void operator()(int panel, int g, int row, float low, float high) const {
    const int at = panel * tile::kPanelRows + g;
    float* to = out + static_cast<size_t>(row) * w.n;
    if (at < w.n) Put::put(to[at], w.result(at, low));
    if (at + 8 < w.n) Put::put(to[at + 8], w.result(at + 8, high));
  }
};

extern __shared__ __align__(128) unsigned char dynamic_shared[];

// Product of few rows with streamed weights. `kWhole`: each warp has whole panels.
template <tile::Storage kStorage, int kK, class Shape, bool kWhole, class Put>
__global__ __launch_bounds__(Shape::kThreads, tile::kResidentBlocks<Shape>) void stream(
    Params params) {
  using Shared = tile::StreamStorage<Shape>;
  const auto staged =
      tile::StagedRows<Shape>::at(dynamic_shared + sizeof(Shared), params.rows, kK);
  ptx::griddepcontrol_launch_dependents();
  const auto share = tile::Share::of(tile::panels_of(params.n), blockIdx.x, gridDim.x);
  tile::Stream<kStorage, kK, 1, Shape, tile::Panels, kWhole> stage(
      *reinterpret_cast<Shared*>(dynamic_shared), {params.weight, params.n, share.first},
      share.count);
  stage.prefetch();
  ptx::griddepcontrol_wait();  // the weights depend on nothing; everything below does
  staged.template round<kK>(params.x);
  __syncthreads();  // the rows are staged
  const auto sink = [&](int unit, int g, int row, float low, float high) {
    const int at = (share.first + unit) * tile::kPanelRows + g;
    float* to = params.out + static_cast<size_t>(row) * params.n;
    if (at < params.n) Put::put(to[at], low);
    if (at + 8 < params.n) Put::put(to[at + 8], high);
  };
  if constexpr (kWhole) {
    stage.run_whole(staged, sink);
  } else {
    stage.run(staged, sink);
  }
}

// Product of rows resident in registers: `groups` of 8 * kTiles rows are neighbours in the grid, so
// that blocks with the same weights run together.
template <tile::Storage kStorage, int kK, int kTiles, class Put>
__global__ __launch_bounds__(tile::ResidentShape::kThreads, 1) void resident(Params params,
                                                                             int groups) {
  constexpr int kRows = kTiles * tile::kTileRows;
  using W = tile::Matrix<kStorage>;
  auto& shared = *reinterpret_cast<tile::ResidentStorage<kRows>*>(dynamic_shared);
  ptx::griddepcontrol_launch_dependents();
  const int block = blockIdx.x / groups, blocks = gridDim.x / groups;
  const int first = blockIdx.x % groups * kRows, rows = min(params.rows - first, kRows);
  const auto share = tile::Share::of(tile::panels_of(params.n), block, blocks);
  tile::Resident<kStorage, kK, kTiles, tile::Panels> stage(
      shared.stream, {params.weight, params.n, share.first}, share.count);
  stage.prefetch();
  ptx::griddepcontrol_wait();  // the weights depend on nothing; everything below does
  const float* x = params.x + static_cast<size_t>(first) * kK;
  // Loads of rows in flight: F32 takes twice the registers, too many for all rows on a GB10.
  constexpr int kTogether = tile::kLargeSm ? 64 : 16;
  stage.template load_rows<kTogether>(rows, [&](int row, int column) {
    float octet[8];
    tile::load_octet(x + static_cast<size_t>(row) * kK + column, octet);
    return tile::encode(octet);
  });
  const W w{params.weight, params.n, kK};
  stage.run(rows, shared.sums, [&](int unit, int quad, int row, const float4& sums) {
    const int at = (share.first + unit) * tile::kPanelRows + quad * 4;
    float* out = params.out + static_cast<size_t>(first + row) * params.n;
    tile::put_quad<Put>(w, out, at, sums);
  });
}

// Panels of a cluster, so few that an SM holds two blocks: at one block an SM, clusters could not
// be placed on all SMs.
inline constexpr int kSplitPanels = 8;
// Most tiles of rows of a cluster, so few that an SM holds two blocks.
inline constexpr int kSplitTiles = 4;

// Whether panels are so few that all clusters of a tile of rows run at once.
inline bool has_few_panels(int n, int k) {
  return tile::panels_of(n) * tile::segments(k) <= kSplitPanels * target::SMS;
}

template <tile::Storage kStorage, int kK, int kRowTiles>
using SplitStage = tile::Split<kStorage, kK, kSplitPanels, kRowTiles>;

// Shared memory of a block with the most rows.
template <tile::Storage kStorage, int kK>
using SplitStorage = typename SplitStage<kStorage, kK, kSplitTiles>::SharedStorage;

template <tile::Storage kStorage, int kK, int kRowTiles, class Put>
__global__ __cluster_dims__(tile::segments(kK)) __launch_bounds__(tile::kSplitThreads) void split(
    Params params) {
  using Stage = SplitStage<kStorage, kK, kRowTiles>;
  const tile::Matrix<kStorage> w{params.weight, params.n, kK};
  ptx::griddepcontrol_launch_dependents();
  Stage stage(*reinterpret_cast<typename Stage::SharedStorage*>(dynamic_shared), w);
  stage.prefetch();
  ptx::griddepcontrol_wait();  // the weights depend on nothing; everything below does
  const int first = blockIdx.y * Stage::kRows, rows = min(params.rows - first, Stage::kRows);
  stage.round(params.x + static_cast<size_t>(first) * kK, rows);
  stage.run(rows, [&](int panel, int quad, int row, const float4& sums) {
    float* out = params.out + static_cast<size_t>(first + row) * params.n;
    tile::put_quad<Put>(w, out, panel * tile::kPanelRows + quad * 4, sums);
  });
}

template <tile::Storage kStorage, int kTiles, class Put>
__global__ __launch_bounds__(tile::kPanelThreads) void flat(Params params) {
  using Stage = tile::Flat<kStorage, kTiles>;
  __shared__ typename Stage::SharedStorage shared;
  ptx::griddepcontrol_launch_dependents();
  const tile::Matrix<kStorage> w{params.weight, params.n, params.k};
  Stage stage(w, blockIdx.x);
  stage.prefetch(shared);
  ptx::griddepcontrol_wait();  // the weights depend on nothing; everything below does
  const auto x = [&](int row) { return params.x + static_cast<size_t>(row) * params.k; };
  stage.run(params.rows, x, Sink<kStorage, Put>{w, params.out}, shared);
}

// Bytes of rows that go through the same panels one after the other, so that weights are read from
// memory once, if the second-level cache holds the rows but no matrix.
inline constexpr unsigned kGroupBytes = 8 << 20;

// Panels (`x`) and tile of rows (`y`) of this block, for tiles of rows of `tile_bytes`. Blocks
// start in the order of their numbers.
__device__ inline uint2 block_in_groups(unsigned tile_bytes) {
  const unsigned tiles = max(kGroupBytes / tile_bytes, 1u), of_group = gridDim.x * tiles;
  const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
  const unsigned first = block / of_group * tiles, in_group = block % of_group;
  const unsigned rows = min(tiles, gridDim.y - first);
  return {in_group / rows, first + in_group % rows};
}

template <tile::Storage kStorage, class Put>
__global__ __launch_bounds__(tile::Tiled<kStorage>::kThreads, 2) void tiled(Params params,
                                                                           const f16* rounded) {
  using Stage = tile::Tiled<kStorage>;
  auto& shared = *reinterpret_cast<typename Stage::SharedStorage*>(dynamic_shared);
  ptx::griddepcontrol_launch_dependents();
  const tile::Matrix<kStorage> w{params.weight, params.n, params.k};
  const uint2 block = block_in_groups(Stage::kRows * params.k * sizeof(f16));
  const int first = static_cast<int>(block.y) * Stage::kRows;
  const auto x = [&](int row) {
    return rounded + static_cast<size_t>(min(first + row, params.rows - 1)) * params.k;
  };
  // Addresses of results are computed when needed: sums leave no registers for them.
  const auto sink = [&](int panel, int g, int row, float low, float high) {
    float* out = params.out + static_cast<size_t>(first) * params.n;
    if (first + row < params.rows) Sink<kStorage, Put>{w, out}(panel, g, row, low, high);
  };
  Stage stage(w, static_cast<int>(block.x));
  stage.prefetch(shared);
  ptx::griddepcontrol_wait();  // the weights depend on nothing; everything below does
  stage.template run_tile<false>(Stage::kTiles, x, sink, shared);
}

inline constexpr int kRoundThreads = 256;
// Vectors that a rounding thread has in flight.
inline constexpr int kRoundVectors = 4;

// Rounds rows to F16 operands: `vectors` of four numbers.
static __global__ __launch_bounds__(kRoundThreads) void round(const float* x, f16* rounded,
                                                              int vectors) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int first = blockIdx.x * kRoundVectors * kRoundThreads + threadIdx.x;
  float4 part[kRoundVectors];
#pragma unroll
  for (int i = 0; i < kRoundVectors; ++i) {
    const int vector = first + i * kRoundThreads;
    if (vector < vectors) part[i] = tile::vector_at(x, vector);
  }
#pragma unroll
  for (int i = 0; i < kRoundVectors; ++i) {
    const int vector = first + i * kRoundThreads;
    if (vector < vectors) tile::put_vector(rounded, vector, part[i]);
  }
}

template <class Tile, class Put = tile::Stores, class Widths = target::LinearWidths>
struct PanelsF16 {
  static_assert(Tile::kThreads == tile::kPanelThreads, "a block is the panels' warps");

  template <tile::Storage kStorage, int kTiles>
  static cudaError_t few(const Params& params, cudaStream_t stream) {
    using Stage = tile::Flat<kStorage, kTiles>;
    const unsigned blocks = Stage::blocks(params.n, params.k);
    cudaError_t failed = cudaSuccess;
    for (int first = 0; first < params.rows && failed == cudaSuccess; first += Stage::kRows) {
      Params part = params;
      part.x += static_cast<size_t>(first) * params.k;
      part.out += static_cast<size_t>(first) * params.n;
      part.rows = min(params.rows - first, Stage::kRows);
      failed = launch_chained(flat<kStorage, kTiles, Put>, {blocks, tile::kPanelThreads, 0}, stream,
                              part);
    }
    return failed;
  }

  // Whether a product may be that of the output head, which has the most panels.
  template <tile::Storage kStorage, int kK>
  static constexpr bool kIsHead = std::is_same_v<Put, tile::Stores> && kK == target::HIDDEN &&
                                  kStorage == tile::storage_of(target::FORMAT_HEAD);

  template <tile::Storage kStorage, int kK, class Shape>
  static cudaError_t streamed(const Params& params, cudaStream_t stream) {
    const int panels = tile::panels_of(params.n);
    const Launch shape{static_cast<unsigned>(min(panels, target::SMS)), Shape::kThreads,
                       tile::stream_bytes<Shape>(params.rows, kK)};
    const auto launch = [&](auto* kernel) { return launch_chained(kernel, shape, stream, params); };
    if constexpr (!tile::kLargeSm && kIsHead<kStorage, kK>) {
      if (tile::wants_whole<Shape>(panels)) {
        return launch(linear::stream<kStorage, kK, Shape, true, Put>);
      }
    }
    return launch(linear::stream<kStorage, kK, Shape, false, Put>);
  }

  // Whether Wide can stage a whole tile of rows, and Narrow the most rows that it takes.
  template <int kK>
  static constexpr bool kStagesAll =
      tile::staged_rows<tile::Wide>(kK, tile::kTileRows) == tile::kTileRows &&
      tile::staged_rows<tile::Narrow>(kK, tile::kNarrowRowsMax) == tile::kNarrowRowsMax;

  // Most rows that any shape can stage.
  template <int kK>
  static constexpr int kStreamedRowsMax =
      kStagesAll<kK> ? tile::kTileRows
                     : tile::staged_rows<tile::Shorter<tile::Wide>>(kK, tile::kTileRows);

  // Launches a product of up to a tile of rows.
  template <tile::Storage kStorage, int kK>
  static cudaError_t tile_streamed(const Params& params, cudaStream_t stream) {
    using tile::Narrow, tile::Shorter, tile::Wide;
    const bool narrow = tile::is_narrow(tile::panels_of(params.n), params.rows);
    if constexpr (kStagesAll<kK>) {
      return narrow ? streamed<kStorage, kK, Narrow>(params, stream)
                    : streamed<kStorage, kK, Wide>(params, stream);
    } else {
      const auto fits = [&](int rows) { return params.rows <= rows; };
      if (narrow && fits(tile::staged_rows<Narrow>(kK, tile::kTileRows))) {
        return streamed<kStorage, kK, Narrow>(params, stream);
      }
      if constexpr (!tile::is_tight(kStorage, kK)) {
        if (fits(tile::staged_rows<Wide>(kK, tile::kTileRows))) {
          return streamed<kStorage, kK, Wide>(params, stream);
        }
      }
      if (fits(tile::staged_rows<Shorter<Wide>>(kK, tile::kTileRows))) {
        return streamed<kStorage, kK, Shorter<Wide>>(params, stream);
      }
      return few<kStorage, 1>(params, stream);
    }
  }

  // Launches a tile of rows by the matrix's K: code for any K is larger, and mostly run once a row.
  template <tile::Storage kStorage, int... kWidths>
  static cudaError_t tile_streamed_of(const Params& params, target::Widths<kWidths...>,
                                      cudaStream_t stream) {
    cudaError_t result = cudaSuccess;
    const auto is = [&](auto width) {
      constexpr int kK = decltype(width)::value;
      if constexpr (!tile::Matrix<kStorage>::has(kK) || !tile::streams(kStorage, kK)) {
        return false;
      } else {
        if (params.k != kK) return false;
        result = tile_streamed<kStorage, kK>(params, stream);
        return true;
      }
    };
    const bool known = (is(std::integral_constant<int, kWidths>{}) || ...);
    return known ? result : few<kStorage, 1>(params, stream);
  }

  template <tile::Storage kStorage, int kK, int kTiles>
  static cudaError_t tiles_resident(const Params& params, cudaStream_t stream) {
    constexpr int kRows = kTiles * tile::kTileRows;
    const unsigned groups = blocks_for(params.rows, kRows);
    static_assert(kFits<sizeof(tile::ResidentStorage<kRows>)>);
    const Launch shape{target::SMS / groups * groups, tile::ResidentShape::kThreads,
                       sizeof(tile::ResidentStorage<kRows>)};
    return launch_chained(resident<kStorage, kK, kTiles, Put>, shape, stream, params,
                          static_cast<int>(groups));
  }

  static constexpr int kFewPanels = 2 * target::SMS;
  // Whether products are stored: those of normed rows, which have HIDDEN columns. Other products
  // are added to the residual; on large SMs their K is split, as their panels are few for so many
  // SMs.
  static constexpr bool kStores = std::is_same_v<Put, tile::Stores>;
  template <int kK>
  static constexpr bool kResident =
      tile::fits_registers(kK) && (kStores ? kK == target::HIDDEN : !tile::kLargeSm);
  // Whether K may be split: in BF16, two blocks that split K do not fit on an SM.
  template <tile::Storage kStorage, int kK>
  static constexpr bool kSplit = tile::kLargeSm && kStorage != tile::Storage::f16 && !kStores &&
                                 tile::Matrix<kStorage>::has(kK) &&
                                 sizeof(SplitStorage<kStorage, kK>) <=
                                     target::SHARED_BYTES_PER_BLOCK;

  // Launches products of many panels, with rows in registers.
  template <tile::Storage kStorage, int kK>
  static cudaError_t rows_resident(const Params& params, cudaStream_t stream) {
    constexpr int kTiles = tile::resident_tiles(kK), kFewTiles = tile::few_resident_tiles(kK);
    return params.rows <= kFewTiles * tile::kTileRows
               ? tiles_resident<kStorage, kK, kFewTiles>(params, stream)
               : tiles_resident<kStorage, kK, kTiles>(params, stream);
  }

  template <tile::Storage kStorage, int kK, int kRowTiles>
  static cudaError_t segments_split(const Params& params, cudaStream_t stream) {
    using Stage = SplitStage<kStorage, kK, kRowTiles>;
    static_assert(kFits<sizeof(typename Stage::SharedStorage)>);
    const Launch shape{Stage::blocks(params.n), tile::kSplitThreads,
                       sizeof(typename Stage::SharedStorage),
                       blocks_for(params.rows, Stage::kRows)};
    return launch_chained(split<kStorage, kK, kRowTiles, Put>, shape, stream, params);
  }

  template <tile::Storage kStorage, int kK>
  static cudaError_t split_of(const Params& params, cudaStream_t stream) {
    return params.rows <= kSplitTiles / 2 * tile::kTileRows
               ? segments_split<kStorage, kK, kSplitTiles / 2>(params, stream)
               : segments_split<kStorage, kK, kSplitTiles>(params, stream);
  }

  // Launches more rows than a tile, for a K of the target's matrices, with rows in registers or K
  // split; `result` gets the launch's error. K is split if panels are so few that all clusters of a
  // tile of rows run at once.
  template <tile::Storage kStorage, int... kWidths>
  static bool of_width(const Params& params, target::Widths<kWidths...>, cudaError_t& result,
                       cudaStream_t stream) {
    const int panels = tile::panels_of(params.n);
    const bool fits = params.rows <= tile::kResidentRowsMax && panels > kFewPanels;
    const auto is = [&](auto width) {
      constexpr int kK = decltype(width)::value;
      if (params.k != kK) return false;
      if constexpr (kResident<kK> && tile::Matrix<kStorage>::has(kK)) {
        if (fits) {
          result = rows_resident<kStorage, kK>(params, stream);
          return true;
        }
      }
      if constexpr (kSplit<kStorage, kK>) {
        if (has_few_panels(params.n, kK) && params.rows <= tile::kSplitRowsMax) {
          result = split_of<kStorage, kK>(params, stream);
          return true;
        }
      }
      return false;
    };
    return (is(std::integral_constant<int, kWidths>{}) || ...);
  }

  // Launches a product of many rows, which are already in `rounded` if `x` is null.
  template <tile::Storage kStorage>
  static cudaError_t many(const Params& params, f16* rounded, cudaStream_t stream) {
    using Stage = tile::Tiled<kStorage>;
    static_assert(kFits<sizeof(typename Stage::SharedStorage)>);
    if (params.x != nullptr) {
      const int vectors = params.rows * (params.k / 4);
      const unsigned blocks = blocks_for(vectors, kRoundVectors * kRoundThreads);
      const cudaError_t failed = launch_chained(round, {blocks, kRoundThreads, 0}, stream, params.x,
                                                rounded, vectors);
      if (failed != cudaSuccess) return failed;
    }
    const unsigned tiles = blocks_for(params.rows, Stage::kRows);
    const Launch shape{Stage::blocks(params.n), Stage::kThreads,
                       sizeof(typename Stage::SharedStorage), tiles};
    return launch_chained(tiled<kStorage, Put>, shape, stream, params,
                          static_cast<const f16*>(rounded));
  }

  template <tile::Storage kStorage>
  static cudaError_t of(const Params& params, f16* rounded, cudaStream_t stream) {
    // Fewer rows go in tiles, too, if panels alone give blocks to most SMs.
    const bool fills = 4 * tile::Tiled<kStorage>::blocks(params.n) >= 3 * target::SMS;
    const int most = fills ? tile::kFilledRowsMax : tile::kFlatRowsMax;
    if (params.x == nullptr || tile::takes_rounded(params.rows, params.k, most)) {
      return many<kStorage>(params, rounded, stream);
    }
    if (params.rows <= tile::kTileRows) {
      return tile_streamed_of<kStorage>(params, Widths{}, stream);
    }
    cudaError_t result = cudaSuccess;
    if (of_width<kStorage>(params, Widths{}, result, stream)) return result;
    if (params.rows <= 16) return few<kStorage, 2>(params, stream);
    if (params.rows <= 32) return few<kStorage, 4>(params, stream);
    return few<kStorage, 8>(params, stream);
  }

  static constexpr bool used(tile::Storage storage) {
    for (const target::Format format : target::LINEAR_FORMATS) {
      if (tile::storage_of(format) == storage) return true;
    }
    return storage == tile::Storage::f16;
  }

  // Calls `body(storage)` with a matrix's format as a constant.
  template <class Body>
  static cudaError_t for_format(unsigned format, const Body& body) {
    cudaError_t result = cudaErrorInvalidValue;
    tile::any_storage([&](auto storage) {
      if constexpr (used(storage.value)) {
        if (format == static_cast<unsigned>(storage.value)) result = body(storage);
      }
      return false;
    });
    return result;
  }

  static cudaError_t launch(const float* x, const unsigned char* weight, unsigned char* operands,
                            float* out, unsigned rows, unsigned n, unsigned k, unsigned format,
                            cudaStream_t stream) {
    if (rows == 0) return cudaSuccess;
    auto* rounded = reinterpret_cast<f16*>(operands);
    const Params params{x, weight, out, static_cast<int>(rows), static_cast<int>(n),
                        static_cast<int>(k)};
    return for_format(format, [&](auto storage) {
      return of<storage.value>(params, rounded, stream);
    });
  }
};

}  // namespace atlas::linear
