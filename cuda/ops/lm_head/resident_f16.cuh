// Implements: Ops::lm_head
// Match:      up to 64 rows, the head in any weight format; operands F16
// Bound by:   HBM (the weights, once)
// Sync:       up to eight rows: a barrier for the norms, then one a panel; more: the grid's blocks
//             meet, then two barriers in turn; then as `top_k` ranks, and the blocks meet once
//             more; chained launch
//
// Rows are normed and multiplied as in `norm_linear`. Each block ranks the parts of its own logits,
// a few chunks of `top_k`; after all blocks, one block a row ranks the row.
#pragma once

#include "ops/lm_head/stream_f16.cuh"
#include "tile/normed_resident.cuh"

namespace atlas::lm_head {

// Product of rows resident in registers: `groups` of 8 * kTiles rows are neighbours in the grid, so
// that blocks with the same weights run together.
template <tile::Storage kStorage, int kTiles>
__global__ __launch_bounds__(tile::ResidentShape::kThreads, 1) void resident(
    const __grid_constant__ Params params, const __grid_constant__ tile::ResidentRows to,
    int groups) {
  constexpr int kRows = kTiles * tile::kTileRows;
  using W = tile::Matrix<kStorage>;
  auto& shared = *reinterpret_cast<tile::ResidentStorage<kRows>*>(dynamic_shared);
  ptx::griddepcontrol_launch_dependents();
  const int block = blockIdx.x / groups, blocks = gridDim.x / groups;
  const int first = blockIdx.x % groups * kRows, rows = min(params.rows - first, kRows);
  const auto chunks = tile::Share::of(top_k::kChunks, block, blocks);
  const auto share = panels_of(params.ids, chunks);
  tile::Resident<kStorage, HIDDEN, kTiles, tile::Panels> stage(
      shared.stream, {params.weight, VOCAB, share.first}, share.count);
  stage.prefetch();
  tile::NormedRow gain;
  gain.load(params.gain);
  ptx::griddepcontrol_wait();  // the weights depend on nothing; everything below does
  const auto meeting = tile::norm_resident(params.rows_in(), params.x, params.rows, gain, to);
  tile::load_normed<kTiles>(stage, to, first, rows);
  const W w{params.weight, VOCAB, HIDDEN};
  const size_t ids = params.ids.count;
  float* logits = params.logits + ids * first;
  stage.run(rows, shared.sums, [&](int unit, int quad, int row, const float4& sums) {
    const int at = (share.first + unit) * tile::kPanelRows + quad * 4;
    tile::put_quad<tile::Stores>(w, logits + ids * row, at, sums);
  });
  meeting.leave();
  rank<tile::ResidentShape, 4>(params, params.ids, first, rows, chunks);
}

template <tile::Storage kStorage, int kTiles>
cudaError_t launch_tiles_resident(const Params& params, const tile::ResidentRows& to,
                              cudaStream_t stream) {
  constexpr int kRows = kTiles * tile::kTileRows;
  using Storage = tile::ResidentStorage<kRows>;
  static_assert(sizeof(Storage) >= sizeof(top_k::RowStorage), "there is memory to rank");
  const int groups = blocks_for(params.rows, kRows);
  const unsigned grid = min(target::SMS / groups, top_k::kChunks) * groups;
  const cudaError_t refused = require_coresident(grid);
  if (refused != cudaSuccess) return refused;
  return launch_chained(resident<kStorage, kTiles>,
                        {grid, tile::ResidentShape::kThreads, sizeof(Storage)}, stream, params, to,
                        groups);
}

template <tile::Storage kStorage>
cudaError_t launch_resident(const Params& params, const tile::ResidentRows& to,
                            cudaStream_t stream) {
  return params.rows <= tile::kFewResidentTiles * tile::kTileRows
             ? launch_tiles_resident<kStorage, tile::kFewResidentTiles>(params, to, stream)
             : launch_tiles_resident<kStorage, tile::kResidentTiles>(params, to, stream);
}

// Launches product and ranking of rows that every block holds in registers.
struct ResidentRowsOf {
  template <tile::Storage kStorage>
  static cudaError_t launch(const Params& params, unsigned char* operands, unsigned* arrived,
                            cudaStream_t stream) {
    return launch_resident<kStorage>(params, {reinterpret_cast<f16*>(operands), arrived}, stream);
  }
};

// Launches kernels for the number of rows; `Many` is for more than every block norms for itself.
template <class Tile, class Many>
struct AnyF16 {
  static_assert(Tile::kThreads == tile::ResidentShape::kThreads, "all warps hold rows");
  static_assert(kFits<sizeof(tile::ResidentStorage<tile::kResidentTiles * tile::kTileRows>)>);

  static cudaError_t launch(const float* residual, const unsigned* wanted, const float* gain,
                            float* x, unsigned char* operands, const unsigned char* weight,
                            float* logits, unsigned* orders, float* sums, unsigned* arrived,
                            float* ranked, unsigned rows, unsigned ids, unsigned format,
                            cudaStream_t stream) {
    using tile::Storage;
    constexpr Storage kHead =
        tile::storage_of(target::TIED_HEAD ? target::FORMAT_EMBED : target::FORMAT_HEAD);
    if (format != static_cast<unsigned>(kHead)) return cudaErrorInvalidValue;
    const Params params{residual,
                        wanted,
                        gain,
                        x,
                        weight,
                        logits,
                        orders,
                        sums,
                        arrived + 1,
                        ranked,
                        static_cast<int>(rows),
                        top_k::Ids(ids)};
    if (rows == 0) return cudaSuccess;
    if (rows > tile::kResidentRowsMax) return cudaErrorInvalidValue;
    if (rows <= kFewRowsMax) return launch_few<kHead>(params, stream);
    return Many::template launch<kHead>(params, operands, arrived, stream);
  }
};

template <class Tile>
struct ResidentF16 : AnyF16<Tile, ResidentRowsOf> {};

}  // namespace atlas::lm_head
