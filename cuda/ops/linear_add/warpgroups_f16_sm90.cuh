// Implements: Ops::linear_add
// Match:      any N, every weight format of the target; operands F16; many rows: the K of the
//             model's output projections, another K as `linear`
// Bound by:   few rows: as `linear`; many rows: tensor instructions
// Sync:       few rows: as `linear`; many: two chained launches, rows to operands and the product,
//             whose tiles a cluster shares where they or the rows are few
#pragma once

#include <type_traits>

#include "ops/linear/panels_f16.cuh"
#include "tile/warpgroups_sm90.cuh"

namespace atlas::linear_add {

using linear::dynamic_shared;
using linear::Params;
using Few = linear::PanelsF16<target::Linear, tile::Adds, target::LinearAddWidths>;

// Most rows of kK columns that `linear` takes: as many as a block stages with streamed weights, or
// more where panels are few and K is split over the SMs. More rows are operands of warpgroup
// instructions.
template <tile::Storage kStorage, int kK>
int few_rows_max(int n) {
  const bool splits = Few::kSplit<kStorage, kK> && linear::has_few_panels(n, kK);
  if (splits) return tile::kSplitRowsMax;
  return tile::streams(kStorage, kK) ? Few::kStreamedRowsMax<kK> : 0;
}

// Whether many rows of kK columns are operands of warpgroup instructions. FP8 with segments of a
// single block leaves no registers for their tiles.
template <tile::Storage kStorage, int kK>
inline constexpr bool kTiles =
    kK % tile::kBlockColumns == 0 &&
    (!tile::has_blocks(kStorage) || kK / tile::segments(kK) > tile::kBlockColumns);

template <tile::Storage kStorage>
__global__ __launch_bounds__(tile::kRoundThreads) void round(const float* x,
                                                             tile::Operands<kStorage> to, int rows,
                                                             int k) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  tile::round_rows(to, k, [&](int row) {
    return row < rows ? x + static_cast<size_t>(row) * k : nullptr;
  });
}

template <tile::Storage kStorage, int kK, int kRows>
__global__ __launch_bounds__(tile::kWarpgroupThreads, 1) void product(
    Params params, tile::Operands<kStorage> x, int tile_rows, tile::TileOrder order) {
  const auto tiles = [&](int i, tile::WarpgroupTile& tile) {
    if (i >= order.tiles()) return false;
    const int2 at = order.at(i);
    const int first = at.y * tile_rows;
    tile = {params.weight,
            params.n,
            at.x * tile::kTilePanels,
            x.base + first / tile::kOperandRows * tile::Operands<kStorage>::kBytes,
            x.groups,
            min(tile_rows, params.rows - first),
            params.out + static_cast<size_t>(first) * params.n};
    return true;
  };
  tile::Warpgroups<kStorage, kK, tile::NoOutStorage, 1, kRows>(dynamic_shared)
      .run(tiles, tile::RowSink<tile::Adds>{});
}

// Sink of tiles whose K is split between the blocks of a cluster.
template <tile::Storage kStorage, int kK>
struct JoinsRows : tile::PutsSegment {
  __device__ static void join(const tile::WarpgroupTile& tile, int row, int weight,
                              const float4& sums) {
    const tile::Matrix<kStorage> w{tile.weights, tile.n, kK};
    float* to = static_cast<float*>(tile.out) + static_cast<size_t>(row) * tile.n;
    tile::put_quad<tile::Adds>(w, to, tile.panel * tile::kPanelRows + weight, sums);
  }
};

// A cluster takes tiles of all rows by some panels in turn; each of its blocks has a segment of K.
template <tile::Storage kStorage, int kK, int kRows>
__global__ __cluster_dims__(tile::segments(kK))
__launch_bounds__(tile::kWarpgroupThreads, 1) void split_product(Params params,
                                                                tile::Operands<kStorage> x,
                                                                int tile_count) {
  constexpr int kParts = tile::segments(kK);
  const auto tiles = [&](int i, tile::WarpgroupTile& tile) {
    tile = {params.weight, params.n,    i / kParts * tile::kTilePanels, x.base,
            x.groups,      params.rows, params.out};
    return i / kParts < tile_count;
  };
  tile::Warpgroups<kStorage, kK, tile::SegmentStorage<kRows>, kParts, kRows>(dynamic_shared)
      .run(tiles, JoinsRows<kStorage, kK>{});
}

template <tile::Storage kStorage, int kK, int kRows>
cudaError_t multiply_split(const Params& params, const tile::Operands<kStorage>& x,
                           cudaStream_t stream) {
  const unsigned tiles = tile::panel_tiles(params.n);
  const Launch shape{tile::cluster_blocks(tiles, tile::segments(kK)), tile::kWarpgroupThreads,
                     tile::kWarpgroupBytes};
  return launch_chained(split_product<kStorage, kK, kRows>, shape, stream, params, x,
                        static_cast<int>(tiles));
}

// Most blocks of columns of a segment where clusters join sums of over `kBufferedRowsMax` rows.
inline constexpr int kJoinedBlocksMax = 8;

// Launches the product of `x`, rows already rounded to F16 in the operand layout, and the weights.
template <tile::Storage kStorage, int kK>
cudaError_t multiply(const Params& params, const tile::Operands<kStorage>& x,
                     cudaStream_t stream) {
  if constexpr (tile::segments(kK) > 1) {
    using tile::kFewBufferedRowsMax, tile::kBufferedRowsMax;
    if (params.rows <= kFewBufferedRowsMax) {
      return multiply_split<kStorage, kK, kFewBufferedRowsMax>(params, x, stream);
    }
    if (params.rows <= kBufferedRowsMax) {
      return multiply_split<kStorage, kK, kBufferedRowsMax>(params, x, stream);
    }
  }
  // Results are as wide as the residual, so tiles that are too many for one wave of clusters are so
  // in every product. E2M1 and segments of many blocks leave no registers to join so many sums.
  constexpr int kBlocks = kK / tile::segments(kK) / tile::kBlockColumns;
  if constexpr (tile::bits_of(kStorage) > 4 && kBlocks <= kJoinedBlocksMax &&
                tile::panel_tiles(target::HIDDEN) * tile::segments(kK) <= target::SMS) {
    const unsigned across = tile::panel_tiles(params.n);
    if (params.rows <= tile::kTileRowsMax && across * tile::segments(kK) <= target::SMS) {
      return multiply_split<kStorage, kK, tile::kTileRowsMax>(params, x, stream);
    }
  }
  return tile::launch_tiles<kStorage, kK>(
      [](auto most) { return product<kStorage, kK, most>; }, tile::panel_tiles(params.n),
      params.rows, tile::starts_early(params.rows), stream, params, x);
}

template <class Tile>
struct WarpgroupsF16 {
  static_assert(Tile::kThreads == tile::kWarpgroupThreads, "a block is its warpgroups");
  static_assert(kFits<tile::kWarpgroupBytes>);

  static cudaError_t launch(const float* x, const unsigned char* weight, unsigned char* operands,
                            float* residual, unsigned rows, unsigned n, unsigned k,
                            unsigned format, cudaStream_t stream) {
    const Params params{x, weight, residual, static_cast<int>(rows), static_cast<int>(n),
                        static_cast<int>(k)};
    cudaError_t result = cudaSuccess;
    if (is_many(params, operands, format, target::LinearAddWidths{}, result, stream)) {
      return result;
    }
    return Few::launch(x, weight, operands, residual, rows, n, k, format, stream);
  }

  // Whether warpgroup instructions take the product: then `result` is the launch's error.
  template <int... kWidths>
  static bool is_many(const Params& params, unsigned char* operands, unsigned format,
                      target::Widths<kWidths...>, cudaError_t& result, cudaStream_t stream) {
    const auto is = [&](auto width) {
      return params.k == width && many<width>(params, operands, format, result, stream);
    };
    return (is(std::integral_constant<int, kWidths>{}) || ...);
  }

  template <int kK>
  static bool many(const Params& params, unsigned char* operands, unsigned format,
                   cudaError_t& result, cudaStream_t stream) {
    bool has = false;
    result = Few::for_format(format, [&](auto storage) {
      if constexpr (kTiles<storage.value, kK>) {
        if (params.rows <= few_rows_max<storage.value, kK>(params.n)) return cudaSuccess;
        has = true;
        const tile::Operands<storage.value> x{operands, tile::operand_groups(params.rows)};
        const Launch rounds{static_cast<unsigned>(x.groups), tile::kRoundThreads, 0,
                            tile::round_parts(kK), 1, tile::starts_early(params.rows)};
        const cudaError_t failed =
            launch_chained(round<storage.value>, rounds, stream, params.x, x, params.rows, kK);
        return failed == cudaSuccess ? multiply<storage.value, kK>(params, x, stream) : failed;
      } else {
        return cudaSuccess;
      }
    });
    return has || result != cudaSuccess;
  }
};

}  // namespace atlas::linear_add
