// One matrix of few panels by more rows than a tile: each block of a cluster has a part of K, and
// the cluster norms the rows for itself.
#pragma once

#include "ops/norm_linear/stream_f16.cuh"
#include "tile/split.cuh"

namespace atlas::norm_linear {

// Most rows for which K is split.
inline constexpr int kFewPanelsRowsMax = 128;

// Panels of a cluster that norms few rows for itself: the more, the fewer clusters read the rows.
inline constexpr int kSplitPanels = 2;
// Tiles of rows of a cluster of few rows: the fewer, the sooner they are read.
inline constexpr int kSplitTiles = 2;
// Panels of a cluster of many rows, so many that all clusters run at once.
inline constexpr int kManyPanels = 8;
// Columns of a segment.
inline constexpr int kSegmentColumns = HIDDEN / tile::segments(HIDDEN);
// Tiles of rows of a cluster of many rows: a thread has registers for 16 vectors.
inline constexpr int kManyTiles = kSegmentColumns <= 512 ? 4 : 2;

template <int kPanels, int kRowTiles>
using SplitStage = tile::Split<tile::Storage::f16, HIDDEN, kPanels, kRowTiles>;

template <int kPanels, int kRowTiles>
struct SplitStorage {
  typename SplitStage<kPanels, kRowTiles>::SharedStorage product;
  float factor[SplitStage<kPanels, kRowTiles>::kRows];  // of each row
};

// Product with the first part's matrix alone. A block computes the norm's factors of one in
// `kSegments` rows for its cluster, and norms its segment's columns of all rows.
template <int kPanels, int kRowTiles>
__global__ __cluster_dims__(tile::segments(HIDDEN)) __launch_bounds__(tile::kSplitThreads) void
split(const __grid_constant__ Params params) {
  using Stage = SplitStage<kPanels, kRowTiles>;
  constexpr int kSegments = Stage::kSegments, kMine = Stage::kMine;
  static_assert(kMine <= 16, "registers suffice for a thread's vectors");
  using WholeRow = tile::AnyWarpNormRow<HIDDEN, tile::kPanelThreads>;
  auto& shared = *reinterpret_cast<SplitStorage<kPanels, kRowTiles>*>(dynamic_shared);
  const Part& part = params.part[0];
  ptx::griddepcontrol_launch_dependents();
  Stage stage(shared.product, {part.weight, part.n, HIDDEN});
  stage.prefetch();
  const int column = stage.segment * Stage::kColumns;
  float4 gain[kMine];
  Stage::for_each_vector<kMine>(0, Stage::kRows, [&](int i, int, int vector) {
    gain[i] = __ldg(reinterpret_cast<const float4*>(params.gain + column) + vector);
  });
  ptx::cluster_sync();  // other blocks' memory can be written
  ptx::griddepcontrol_wait();  // the weights depend on nothing; everything below does
  const int first_row = blockIdx.y * Stage::kRows;
  const int rows = min(params.rows - first_row, Stage::kRows);
  const auto at = [&](int row) { return static_cast<size_t>(first_row + row) * HIDDEN; };
  float4 mine[kMine];
  Stage::for_each_vector<kMine>(0, rows, [&](int i, int row, int vector) {
    mine[i] = reinterpret_cast<const float4*>(params.residual + at(row) + column)[vector];
  });
  const int warp = threadIdx.x / tile::kWarpLanes, lane = threadIdx.x % tile::kWarpLanes;
  for (int r = stage.segment + kSegments * warp; r < rows; r += kSegments * tile::kSplitWarps) {
    WholeRow row;
    row.load(params.residual + at(r));
    const float factor = row.factor(target::NORM_EPS);
    if (lane < kSegments) ptx::cluster_store(&shared.factor[r], lane, factor);
  }
  ptx::cluster_sync();  // all factors are written
  Stage::for_each_vector<kMine>(0, rows, [&](int i, int row, int vector) {
    const float4 normed = tile::scaled(mine[i], shared.factor[row], gain[i]);
    stage.put(row, vector, normed);
    if (stage.first == 0) reinterpret_cast<float4*>(params.x + at(row) + column)[vector] = normed;
  });
  stage.run(rows, [&](int panel, int quad, int row, const float4& sums) {
    float* out = part.out + static_cast<size_t>(first_row + row) * part.n;
    tile::put_quad<tile::Stores>(stage.w, out, panel * tile::kPanelRows + quad * 4, sums);
  });
}

template <int kPanels, int kRowTiles>
inline cudaError_t launch_panels_split(const Params& params, cudaStream_t stream) {
  using Stage = SplitStage<kPanels, kRowTiles>;
  const Launch shape{Stage::blocks(params.part[0].n), tile::kSplitThreads,
                     sizeof(SplitStorage<kPanels, kRowTiles>),
                     blocks_for(params.rows, Stage::kRows)};
  return launch_chained(split<kPanels, kRowTiles>, shape, stream, params);
}

// Whether K is split over the blocks of clusters: only for few rows and one product, and if all
// clusters run at once.
inline bool splits(const Params& params) {
  const Part& part = params.part[0];
  for (int p = 1; p < kParts; ++p) {
    if (params.part[p].n > 0) return false;
  }
  return params.rows <= kFewPanelsRowsMax &&
         part.format == static_cast<unsigned>(tile::Storage::f16) &&
         tile::panels_of(part.n) * tile::segments(HIDDEN) <= kSplitPanels * target::SMS;
}

// Launches a product with split K.
inline cudaError_t launch_split(const Params& params, cudaStream_t stream) {
  return params.rows <= tile::kSplitRowsMax
             ? launch_panels_split<kSplitPanels, kSplitTiles>(params, stream)
             : launch_panels_split<kManyPanels, kManyTiles>(params, stream);
}

static_assert(kFits<sizeof(SplitStorage<kManyPanels, kManyTiles>)>);

}  // namespace atlas::norm_linear
