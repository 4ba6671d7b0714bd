// Head for up to a tile of rows, which every block norms for itself; weights are streamed once, and
// a block makes one chunk of `top_k`.
#pragma once

#include "ops/lm_head/rank.cuh"
#include "tile/normed.cuh"

namespace atlas::lm_head {

// Most rows for which weights are streamed: as many as fit a block.
inline constexpr int kFewRowsMax = tile::normed_rows_max();

// `kWhole`: whole panels a warp. `kIds` is a constant: there is no register left for it.
template <tile::Storage kStorage, class Shape, bool kWhole, unsigned kIds>
__global__ __launch_bounds__(Shape::kThreads, tile::kResidentBlocks<Shape>) void few(
    const __grid_constant__ Params params) {
  using Storage = tile::NormedStorage<Shape>;
  auto& shared = *reinterpret_cast<Storage*>(dynamic_shared);
  const auto staged =
      tile::StagedRows<Shape>::at(dynamic_shared + sizeof(Storage), params.rows, HIDDEN);
  ptx::griddepcontrol_launch_dependents();
  const tile::Share chunk{static_cast<int>(blockIdx.x), 1};
  constexpr top_k::Ids ids(kIds);
  const auto share = panels_of(ids, chunk);
  tile::Stream<kStorage, HIDDEN, 1, Shape, tile::Panels, kWhole> stage(
      shared.stream, {params.weight, VOCAB, share.first}, share.count);
  stage.prefetch();
  const tile::NormedGain gain(params.gain);
  ptx::griddepcontrol_wait();  // the weights depend on nothing; everything below does
  tile::norm_rows(params.rows_in(), params.x, params.rows, gain, staged, shared);
  const auto sink = [&](int unit, int g, int row, float low, float high) {
    const int at = (share.first + unit) * tile::kPanelRows + g;
    float* to = params.logits + size_t{kIds} * row;
    // With fewer ids, panels are whole.
    if (at < VOCAB) to[at] = low;
    if (at + 8 < VOCAB) to[at + 8] = high;
  };
  if constexpr (kWhole) {
    stage.run_whole(staged, sink);
  } else {
    stage.run(staged, sink);
  }
  rank<Shape, 1>(params, ids, 0, params.rows, chunk);
}

template <tile::Storage kStorage, class Shape>
cudaError_t launch_shape(const Params& params, cudaStream_t stream) {
  // A waiting block leaves an SM to the blocks that it waits for.
  const cudaError_t refused = require_coresident(params.rows + 1);
  if (refused != cudaSuccess) return refused;
  using Storage = tile::NormedStorage<Shape>;
  static_assert(sizeof(Storage) >= sizeof(top_k::RowStorage), "there is memory to rank");
  const Launch shape{top_k::kChunks, Shape::kThreads, Storage::bytes(params.rows)};
  constexpr bool kWhole = tile::wants_whole<Shape>(top_k::kPanels);
  if (params.ids.count == VOCAB) {
    return launch_chained(few<kStorage, Shape, kWhole, VOCAB>, shape, stream, params);
  }
  constexpr unsigned kDrafted = target::DRAFT_IDS;
  if (params.ids.count != kDrafted) return cudaErrorInvalidValue;
  return launch_chained(few<kStorage, Shape, kWhole, kDrafted>, shape, stream, params);
}

template <tile::Storage kStorage>
cudaError_t launch_few(const Params& params, cudaStream_t stream) {
  return tile::is_narrow(top_k::kPanels, params.rows)
             ? launch_shape<kStorage, tile::Narrow>(params, stream)
             : launch_shape<kStorage, tile::Wide>(params, stream);
}

}  // namespace atlas::lm_head
