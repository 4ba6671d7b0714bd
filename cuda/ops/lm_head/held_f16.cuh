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
#include "tile/normed_held.cuh"

namespace atlas::lm_head {

// Product of rows held in registers: `groups` of 8 * kTiles rows are neighbours in the grid, so
// that blocks with the same weights run together.
template <tile::Storage kStorage, int kTiles>
__global__ __launch_bounds__(tile::HeldShape::kThreads, 1) void held(
    const __grid_constant__ Params params, const __grid_constant__ tile::HeldRows to, int groups) {
  constexpr int kRows = kTiles * tile::kTileRows;
  using W = tile::Matrix<kStorage>;
  auto& shared = *reinterpret_cast<tile::HeldStorage<kRows>*>(dynamic_shared);
  ptx::griddepcontrol_launch_dependents();
  const int block = blockIdx.x / groups, blocks = gridDim.x / groups;
  const int first = blockIdx.x % groups * kRows, rows = min(params.rows - first, kRows);
  const auto chunks = tile::Share::of(top_k::kChunks, block, blocks);
  const auto share = panels_of(params.ids, chunks);
  tile::Held<kStorage, HIDDEN, kTiles, tile::Panels> stage(
      shared.stream, {params.weight, VOCAB, share.first}, share.count);
  stage.prefetch();
  tile::NormedRow gain;
  gain.load(params.gain);
  ptx::griddepcontrol_wait();  // the weights depend on nothing; everything below does
  const auto meeting = tile::norm_held(params.rows_in(), params.x, params.rows, gain, to);
  tile::hold_normed<kTiles>(stage, to, first, rows);
  const W w{params.weight, VOCAB, HIDDEN};
  const size_t ids = params.ids.count;
  float* logits = params.logits + ids * first;
  stage.run(rows, shared.sums, [&](int unit, int quad, int row, const float4& sums) {
    const int at = (share.first + unit) * tile::kPanelRows + quad * 4;
    tile::put_quad<tile::Stores>(w, logits + ids * row, at, sums);
  });
  meeting.leave();
  rank<tile::HeldShape, 4>(params, params.ids, first, rows, chunks);
}

template <tile::Storage kStorage, int kTiles>
cudaError_t launch_tiles_held(const Params& params, const tile::HeldRows& to,
                              cudaStream_t stream) {
  constexpr int kRows = kTiles * tile::kTileRows;
  using Storage = tile::HeldStorage<kRows>;
  static_assert(sizeof(Storage) >= sizeof(top_k::RowStorage), "there is room to rank");
  const int groups = blocks_for(params.rows, kRows);
  const unsigned grid = min(target::SMS / groups, top_k::kChunks) * groups;
  const cudaError_t refused = room_for_waiting(grid);
  if (refused != cudaSuccess) return refused;
  return launch_chained(held<kStorage, kTiles>,
                        {grid, tile::HeldShape::kThreads, sizeof(Storage)}, stream, params, to,
                        groups);
}

template <tile::Storage kStorage>
cudaError_t launch_held(const Params& params, const tile::HeldRows& to, cudaStream_t stream) {
  return params.rows <= tile::kFewHeldTiles * tile::kTileRows
             ? launch_tiles_held<kStorage, tile::kFewHeldTiles>(params, to, stream)
             : launch_tiles_held<kStorage, tile::kHeldTiles>(params, to, stream);
}

// Launches rows that every block holds in registers.
struct HeldRowsOf {
  template <tile::Storage kStorage>
  static cudaError_t launch(const Params& params, unsigned char* operands, unsigned* arrived,
                            cudaStream_t stream) {
    return launch_held<kStorage>(params, {reinterpret_cast<f16*>(operands), arrived}, stream);
  }
};

// Launches by the number of rows; `Many` takes more rows than every block norms for itself.
template <class Tile, class Many>
struct AnyF16 {
  static_assert(Tile::kThreads == tile::HeldShape::kThreads, "a block is the warps that hold rows");
  static_assert(kFits<sizeof(tile::HeldStorage<tile::kHeldTiles * tile::kTileRows>)>);

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
    if (rows > tile::kHeldRowsMax) return cudaErrorInvalidValue;
    if (rows <= kFewRowsMax) return launch_few<kHead>(params, stream);
    return Many::template launch<kHead>(params, operands, arrived, stream);
  }
};

template <class Tile>
struct HeldF16 : AnyF16<Tile, HeldRowsOf> {};

}  // namespace atlas::lm_head
