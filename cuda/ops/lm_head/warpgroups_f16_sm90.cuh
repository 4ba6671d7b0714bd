// Implements: Ops::lm_head
// Match:      up to 64 rows, the head in any weight format; operands F16
// Bound by:   HBM (the weights, once)
// Sync:       few rows: one launch, as `resident_f16`; more rows: chained launches that norm rows
//             into operands, multiply in clusters and rank as `top_k`
#pragma once

#include "ops/lm_head/resident_f16.cuh"
#include "tile/normed_operands_sm90.cuh"

namespace atlas::lm_head {

// Sink of sums joined in a cluster: writes them to rows of logits.
template <tile::Storage kStorage>
struct JoinsLogits : tile::PutsSegment {
  int ids;

  __device__ void join(const tile::WarpgroupTile& tile, int row, int weight,
                       const float4& sums) const {
    const int at = tile.panel * tile::kPanelRows + weight;
    if (at >= ids) return;
    const tile::Matrix<kStorage> w{tile.weights, VOCAB, HIDDEN};
    float* to = static_cast<float*>(tile.out) + static_cast<size_t>(row) * ids;
    tile::put_quad<tile::Stores>(w, to, at, sums);
  }
};

// A cluster takes tiles of all rows by some panels in turn; each of its blocks has a segment of K.
template <tile::Storage kStorage, int kRows>
__global__ __cluster_dims__(tile::segments(HIDDEN))
__launch_bounds__(tile::kWarpgroupThreads, 1) void split_product(
    const __grid_constant__ Params params, tile::Operands<kStorage> x) {
  constexpr int kParts = tile::segments(HIDDEN);
  const auto tiles = [&](int i, tile::WarpgroupTile& tile) {
    tile = {params.weight, VOCAB,       i / kParts * tile::kTilePanels, x.base,
            x.groups,      params.rows, params.logits};
    return i / kParts < tile::panel_tiles(params.ids.count);
  };
  tile::Warpgroups<kStorage, HIDDEN, tile::SegmentStorage<kRows>, kParts, kRows>(dynamic_shared)
      .run(tiles, JoinsLogits<kStorage>{{}, params.ids.count});
}

// Most groups of rows held in registers, each of which reads the weights anew.
inline constexpr int kResidentReads = 2;

// Launches kernels for rows that registers do not hold: as operands in memory, weights read once.
template <tile::Storage kStorage>
cudaError_t launch_many(const Params& params, unsigned char* operands, cudaStream_t stream) {
  const tile::Operands<kStorage> x{operands, tile::operand_groups(params.rows)};
  tile::NormedOperands to{};
  to.of<kStorage>() = {x.base, x.groups};
  cudaError_t failed = tile::launch_norm_operands(params.rows_in(), params.rows, params.gain,
                                                  params.x, to, stream);
  if (failed != cudaSuccess) return failed;
  const unsigned tiles = tile::panel_tiles(params.ids.count);
  const Launch shape{tile::cluster_blocks(tiles, tile::segments(HIDDEN)), tile::kWarpgroupThreads,
                     tile::kWarpgroupBytes};
  using tile::kFewBufferedRowsMax, tile::kBufferedRowsMax;
  const auto kernel = params.rows <= kFewBufferedRowsMax
                          ? split_product<kStorage, kFewBufferedRowsMax>
                          : split_product<kStorage, kBufferedRowsMax>;
  failed = launch_chained(kernel, shape, stream, params, x);
  if (failed != cudaSuccess) return failed;
  return static_cast<cudaError_t>(atlas_top_k(params.logits, params.orders, params.sums,
                                              params.ranked, static_cast<unsigned>(params.rows),
                                              static_cast<unsigned>(params.ids.count), stream));
}

// Kernels for more rows than every block norms for itself; K is split if rows exceed registers.
struct Many {
  template <tile::Storage kStorage>
  static constexpr bool kHas =
      tile::segments(HIDDEN) > 1 && HIDDEN % tile::kBlockColumns == 0;

  template <tile::Storage kStorage>
  static cudaError_t launch(const Params& params, unsigned char* operands, unsigned* arrived,
                            cudaStream_t stream) {
    if constexpr (kHas<kStorage>) {
      if (params.rows > kResidentReads * tile::resident_rows(HIDDEN)) {
        return launch_many<kStorage>(params, operands, stream);
      }
    }
    return launch_resident<kStorage>(params, {reinterpret_cast<f16*>(operands), arrived}, stream);
  }
};

template <class Tile>
struct WarpgroupsF16 : AnyF16<Tile, Many> {
  static_assert(kFits<tile::kWarpgroupBytes>);
};

}  // namespace atlas::lm_head
