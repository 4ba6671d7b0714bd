// Implements: Ops::lm_head
// Match:      the head in any weight format; operands F16
// Bound by:   few rows: HBM (the weights, once); many rows: as `linear`
// Sync:       few rows: a barrier for the norms, then one a panel, as `top_k` ranks, and the grid's
//             blocks meet once, chained launch; many rows: as `rms_norm`, `linear` and `top_k`,
//             which they are left to
//
// Few rows are normed by every block. Each ranks what it has made of them, its chunk of `top_k`;
// when all have, a block a row ranks what they have ranked. More rows would be ranked by as many
// warps as the product has, which is fewer than it takes to hide what they wait for.
#pragma once

#include "base/launch.cuh"
#include "ops/top_k/rank.cuh"
#include "target.cuh"
#include "tile/meet.cuh"
#include "tile/normed.cuh"

namespace atlas::lm_head {

using target::HIDDEN;
using target::VOCAB;
using top_k::Key;
using top_k::kPanels;

// Rows that weights are streamed for, at most.
inline constexpr int kFewRowsMax = tile::kTileRows;

struct Params {
  const float* residual;        // (rows, HIDDEN)
  const float* gain;            // (HIDDEN)
  float* x;                     // (rows, HIDDEN)
  const unsigned char* weight;  // panels of (VOCAB, HIDDEN)
  float* logits;                // (rows, VOCAB)
  Key* keys;                    // (rows, kChunks, TOP_K)
  float* sums;                  // (rows, kChunks)
  unsigned* arrived;            // blocks that have ranked; zero before and behind
  float* ranked;                // (rows, 2 * TOP_K + 1)
  int rows;
};

// Of a block that has no weights under way.
template <class Shape>
union RankStorage {
  top_k::ChunkStorage chunk[Shape::kThreads / top_k::kThreads];
  top_k::RowStorage row;
};

template <class Shape>
__host__ __device__ constexpr unsigned shared_bytes(int rows) {
  constexpr unsigned kRank = sizeof(RankStorage<Shape>);
  const unsigned stream = tile::NormedStorage<Shape>::bytes(rows);
  return stream > kRank ? stream : kRank;
}

extern __shared__ __align__(128) unsigned char dynamic_shared[];

// Ranks the rows, whose logits of `panels` are this block's.
template <class Shape>
__device__ inline void rank(const Params& params, const tile::Share& panels) {
  auto& shared = *reinterpret_cast<RankStorage<Shape>*>(dynamic_shared);
  constexpr int kGroups = Shape::kThreads / top_k::kThreads;
#pragma unroll 1
  for (int row = top_k::group(); row < params.rows; row += kGroups) {
    const size_t place = size_t{top_k::kChunks} * row + blockIdx.x;
    top_k::rank_chunk(shared.chunk[top_k::group()], params.logits + size_t{VOCAB} * row, panels,
                      params.keys + place * target::TOP_K, params.sums + place);
  }
  const auto waiting = static_cast<unsigned>(min(params.rows, top_k::kChunks));
  const bool waits = blockIdx.x < waiting;
  tile::Meeting meeting{params.arrived, top_k::kChunks, waiting};
  meeting.meet(true, waits);
  if (!waits || top_k::group() > 0) return;
#pragma unroll 1
  for (int row = blockIdx.x; row < params.rows; row += top_k::kChunks) {
    const size_t place = size_t{top_k::kChunks} * row;
    top_k::rank_row(shared.row, params.keys + place * target::TOP_K, params.sums + place,
                    params.ranked + size_t{top_k::kWidth} * row);
  }
  meeting.leave();
}

// `kWhole`: a whole panel a warp.
template <tile::Storage kStorage, class Shape, bool kWhole>
__global__ __launch_bounds__(Shape::kThreads, tile::kResidentBlocks<Shape>) void few(
    const __grid_constant__ Params params) {
  using Storage = tile::NormedStorage<Shape>;
  auto& shared = *reinterpret_cast<Storage*>(dynamic_shared);
  const auto staged =
      tile::StagedRows<Shape>::at(dynamic_shared + sizeof(Storage), params.rows, HIDDEN);
  ptx::griddepcontrol_launch_dependents();
  const auto share = tile::Share::of(kPanels, blockIdx.x, top_k::kChunks);
  tile::Stream<kStorage, HIDDEN, 1, Shape, tile::Panels, kWhole> stage(
      shared.stream, {params.weight, VOCAB, share.first}, share.count);
  stage.prefetch();
  tile::NormedRow gain;
  gain.load(params.gain);
  ptx::griddepcontrol_wait();  // the weights depend on nothing; everything below does
  tile::norm_rows(params.residual, params.x, params.rows, gain, staged, shared);
  const auto sink = [&](int unit, int g, int row, float low, float high) {
    const int at = (share.first + unit) * tile::kPanelRows + g;
    float* to = params.logits + size_t{VOCAB} * row;
    if (at < VOCAB) to[at] = low;
    if (at + 8 < VOCAB) to[at + 8] = high;
  };
  if constexpr (kWhole) {
    stage.run_whole(staged, sink);
  } else {
    stage.run(staged, sink);
  }
  __syncthreads();  // the block's logits are written, and its shared memory has been read
  rank<Shape>(params, share);
}

constexpr unsigned shared_bytes() {
  constexpr unsigned kWide = shared_bytes<tile::Wide>(kFewRowsMax);
  constexpr unsigned kNarrow = shared_bytes<tile::Narrow>(tile::kNarrowRowsMax);
  return kWide > kNarrow ? kWide : kNarrow;
}

template <class Tile>
struct StreamF16 {
  static_assert(Tile::kThreads == tile::kPanelThreads, "a block is the panels' warps");
  static_assert(Tile::kSharedBytes == shared_bytes(), "the manifest plans this storage");

  template <tile::Storage kStorage, class Shape>
  static cudaError_t streamed(const Params& params, cudaStream_t stream) {
    // A block that waits leaves an SM to those that it waits for.
    const cudaError_t refused = room_for_waiting(params.rows + 1);
    if (refused != cudaSuccess) return refused;
    const Launch shape{top_k::kChunks, Shape::kThreads, shared_bytes<Shape>(params.rows)};
    constexpr bool kWhole = tile::wants_whole<Shape>(kPanels);
    return launch_chained(few<kStorage, Shape, kWhole>, shape, stream, params);
  }

  template <tile::Storage kStorage>
  static cudaError_t of(const Params& params, cudaStream_t stream) {
    return tile::is_narrow(kPanels, params.rows)
               ? streamed<kStorage, tile::Narrow>(params, stream)
               : streamed<kStorage, tile::Wide>(params, stream);
  }

  // One op after the other, as many rows want it.
  static int many(const Params& params, unsigned format, cudaStream_t stream) {
    const auto rows = static_cast<unsigned>(params.rows);
    int failed = atlas_rms_norm(params.residual, params.gain, params.x, rows, stream);
    if (failed != 0) return failed;
    failed = atlas_linear(params.x, params.weight, params.logits, rows, VOCAB, HIDDEN, format,
                          stream);
    if (failed != 0) return failed;
    return atlas_top_k(params.logits, reinterpret_cast<unsigned*>(params.keys), params.sums,
                       params.ranked, rows, stream);
  }

  static int launch(const float* residual, const float* gain, float* x,
                    const unsigned char* weight, float* logits, unsigned* keys, float* sums,
                    unsigned* arrived, float* ranked, unsigned rows, unsigned format,
                    cudaStream_t stream) {
    using tile::Storage;
    const Params params{residual,
                        gain,
                        x,
                        weight,
                        logits,
                        reinterpret_cast<Key*>(keys),
                        sums,
                        arrived,
                        ranked,
                        static_cast<int>(rows)};
    if (rows == 0) return cudaSuccess;
    if (rows > kFewRowsMax) return many(params, format, stream);
    constexpr Storage kHead =
        tile::storage_of(target::TIED_HEAD ? target::FORMAT_EMBED : target::FORMAT_HEAD);
    if (format != static_cast<unsigned>(kHead)) return cudaErrorInvalidValue;
    return of<kHead>(params, stream);
  }
};

}  // namespace atlas::lm_head
