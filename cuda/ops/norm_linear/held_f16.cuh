// More rows than a tile, by weights that are streamed once, which are asked for first: the first
// blocks norm a row each into F16, and when all have, every block holds the rows in registers. Few
// panels norm for themselves, a cluster together.
#pragma once

#include "ops/norm_linear/stream_f16.cuh"
#include "tile/held.cuh"
#include "tile/meet.cuh"
#include "tile/split.cuh"

namespace atlas::norm_linear {

// Rows that are held or split, at most, and rows whose few panels are split.
inline constexpr int kHeldRowsMax = tile::kSplitRowsMax;
inline constexpr int kFewPanelsRowsMax = 128;

// Where normed rows go that all blocks of a grid hold.
struct HeldRows {
  f16* x;             // (rows, HIDDEN)
  unsigned* arrived;  // blocks that have normed theirs; zero before and behind
  bool keep;          // in F32 as well, in `Params::x`
};

// Norms rows, one a block, and waits until all are there.
__device__ inline tile::Meeting norm_held(const Params& params, const Row& gain,
                                          const HeldRows& to) {
  __shared__ Row::SharedStorage shared;
  const int blocks = gridDim.x, first = blockIdx.x;
#pragma unroll 1
  for (int r = first; r < params.rows; r += blocks) {
    const size_t at = static_cast<size_t>(r) * HIDDEN;
    Row row;
    row.load(params.residual + at);
    row.normalise(gain, target::NORM_EPS, shared);
    Row::for_each_vector([&](int i, int vector) {
      tile::put_vector(to.x + at, vector, row.part[i]);
    });
    if (to.keep) row.store(params.x + at);
    __syncthreads();  // the squares have been read
  }
  tile::Meeting meeting{to.arrived, static_cast<unsigned>(min(params.rows, blocks)), gridDim.x};
  meeting.meet(first < params.rows, true);
  return meeting;
}

template <tile::Storage kStorage, int kTiles>
__device__ inline void run_held(const Params& params, const HeldRows& to, int first, int block,
                                int blocks) {
  using At = PartPanels<kStorage>;
  using W = tile::Matrix<kStorage>;
  constexpr int kRows = kTiles * tile::kTileRows;
  auto& shared = *reinterpret_cast<tile::HeldStorage<kRows>*>(dynamic_shared);
  const int rows = min(params.rows - first, kRows);
  const auto share = tile::Share::of(panels_of(params, kStorage), block, blocks);
  const At at{params, share.first};
  tile::Held<kStorage, HIDDEN, kTiles, At> stage(shared.stream, at, share.count);
  stage.prefetch();
  Row gain;
  gain.load(params.gain);
  ptx::griddepcontrol_wait();  // the weights depend on nothing; everything below does
  const auto meeting = norm_held(params, gain, to);
  const f16* x = to.x + static_cast<size_t>(first) * HIDDEN;
  stage.hold(rows, [&](int row, int column) {
    return *reinterpret_cast<const uint4*>(x + row * HIDDEN + column);
  });
  stage.run(rows, shared.sums, [&](int unit, int quad, int row, const float4& sums) {
    int panel = at.first + unit;
    const Part& part = at.part_of(panel);
    const W w{part.weight, part.n, HIDDEN};
    float* out = part.out + static_cast<size_t>(first + row) * part.n;
    tile::put_quad<tile::Stores>(w, out, panel * tile::kPanelRows + quad * 4, sums);
  });
  meeting.leave();
}

// Rows, `groups` of 8 * kTiles of them side by side in the grid: blocks that take the same weights
// run together.
template <int kTiles>
__global__ __launch_bounds__(tile::HeldShape::kThreads, 1) void held(
    const __grid_constant__ Params params, const __grid_constant__ HeldRows to, int groups) {
  ptx::griddepcontrol_launch_dependents();
  const int first = static_cast<int>(blockIdx.x) % groups * kTiles * tile::kTileRows;
  const int block = static_cast<int>(blockIdx.x) / groups;
  for_storage(params, block, [&](auto storage, int block, int blocks) {
    run_held<storage.value, kTiles>(params, to, first, block, blocks);
  });
}

template <int kTiles>
cudaError_t launch_tiles_held(Params params, const HeldRows& to, cudaStream_t stream) {
  constexpr int kRows = kTiles * tile::kTileRows;
  const unsigned groups = blocks_for(params.rows, kRows);
  const unsigned grid = deal(params, target::SMS / static_cast<int>(groups)) * groups;
  const cudaError_t refused = room_for_waiting(grid);
  if (refused != cudaSuccess) return refused;
  return launch_chained(held<kTiles>,
                        {grid, tile::HeldShape::kThreads, sizeof(tile::HeldStorage<kRows>)}, stream,
                        params, to, static_cast<int>(groups));
}

// Panels of a cluster that norms for itself, and tiles of rows: the more panels, the fewer blocks
// read the rows; the fewer rows, the sooner they are read. More rows than are held take more of
// both, so that all clusters still run at once.
inline constexpr int kSplitPanels = 2;
inline constexpr int kSplitTiles = 2;
inline constexpr int kManyPanels = 8;
inline constexpr int kManyTiles = 4;

template <int kPanels, int kRowTiles>
using SplitStage = tile::Split<tile::Storage::f16, HIDDEN, kPanels, kRowTiles>;

template <int kPanels, int kRowTiles>
struct SplitStorage {
  typename SplitStage<kPanels, kRowTiles>::SharedStorage product;
  float factor[SplitStage<kPanels, kRowTiles>::kRows];  // of each row
};

// The first part alone. A block finds the factors of one in `kSegments` rows for its cluster, and
// norms its segment's columns of all rows.
template <int kPanels, int kRowTiles>
__global__ __cluster_dims__(tile::segments(HIDDEN)) __launch_bounds__(tile::kSplitThreads) void
split(const __grid_constant__ Params params) {
  using Stage = SplitStage<kPanels, kRowTiles>;
  constexpr int kSegments = Stage::kSegments, kMine = Stage::kMine;
  static_assert(kMine <= 16, "registers have room for a thread's vectors");
  using WholeRow = tile::WarpNormRow<HIDDEN, tile::kPanelThreads>;
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
  ptx::cluster_sync();  // the others' memory can be written
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
  ptx::cluster_sync();  // all factors are there
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
inline cudaError_t launch_split(const Params& params, cudaStream_t stream) {
  using Stage = SplitStage<kPanels, kRowTiles>;
  const Launch shape{Stage::blocks(params.part[0].n), tile::kSplitThreads,
                     sizeof(SplitStorage<kPanels, kRowTiles>),
                     blocks_for(params.rows, Stage::kRows)};
  return launch_chained(split<kPanels, kRowTiles>, shape, stream, params);
}

// Tiles of rows that a block holds, and of fewer rows.
inline constexpr int kTiles = tile::held_rows(HIDDEN) / tile::kTileRows;
inline constexpr int kFewTiles = kTiles > 2 ? 2 : kTiles;

// Shared memory of a block, at most.
inline constexpr size_t kHeldBytes =
    sizeof(tile::HeldStorage<kTiles * tile::kTileRows>) >
            sizeof(SplitStorage<kManyPanels, kManyTiles>)
        ? sizeof(tile::HeldStorage<kTiles * tile::kTileRows>)
        : sizeof(SplitStorage<kManyPanels, kManyTiles>);

// Whether all clusters of the first part, which is alone, run at once.
inline bool splits(const Params& params) {
  const Part& part = params.part[0];
  for (int p = 1; p < kParts; ++p) {
    if (params.part[p].n > 0) return false;
  }
  return part.format == static_cast<unsigned>(tile::Storage::f16) &&
         tile::panels_of(part.n) * tile::segments(HIDDEN) <= kSplitPanels * target::SMS;
}

// Whether rows, more than `kFewRowsMax`, are held or split.
inline bool holds(const Params& params) {
  return params.rows <= kHeldRowsMax || (params.rows <= kFewPanelsRowsMax && splits(params));
}

// What `holds` says; `operands` has room for the rows in F16.
inline cudaError_t launch_held(const Params& params, bool keep, unsigned char* operands,
                               unsigned* arrived, cudaStream_t stream) {
  if (splits(params)) {
    return params.rows <= kHeldRowsMax ? launch_split<kSplitPanels, kSplitTiles>(params, stream)
                                       : launch_split<kManyPanels, kManyTiles>(params, stream);
  }
  const HeldRows to{reinterpret_cast<f16*>(operands), arrived, keep};
  return params.rows <= kFewTiles * tile::kTileRows
             ? launch_tiles_held<kFewTiles>(params, to, stream)
             : launch_tiles_held<kTiles>(params, to, stream);
}

}  // namespace atlas::norm_linear
