// Ranking in the launch of the head's product: each block ranks the parts of its own logits, a few
// chunks of `top_k`; after all blocks, one block a row ranks the row.
#pragma once

#include "base/launch.cuh"
#include "ops/top_k/rank.cuh"
#include "target.cuh"
#include "tile/meet.cuh"
#include "tile/normed.cuh"

namespace atlas::lm_head {

using target::HIDDEN;
using target::VOCAB;

struct Params {
  const float* residual;        // (rows of the step, HIDDEN)
  const unsigned* wanted;       // (rows): numbers of rows of the step; null: the first rows
  const float* gain;            // (HIDDEN)
  float* x;                     // (rows, HIDDEN)
  const unsigned char* weight;  // panels of (VOCAB, HIDDEN)
  float* logits;                // (rows, ids)
  unsigned* orders;             // (rows, kParts)
  float* sums;                  // (rows, kParts)
  unsigned* ranked_by;          // blocks that have ranked; zero before and after a launch
  float* ranked;                // (rows, 2 * TOP_K + 1); null: parts are ranked only
  int rows;
  top_k::Ids ids;  // rows of the weight that are multiplied: all, or whole panels

  __host__ __device__ tile::ListedRows rows_in() const { return {residual, wanted}; }
};

extern __shared__ __align__(128) unsigned char dynamic_shared[];

// Panels of weights for the ids of `chunks`.
__device__ inline tile::Share panels_of(const top_k::Ids& ids, const tile::Share& chunks) {
  const auto first = ids.panels(chunks.first);
  const auto last = ids.panels(chunks.first + chunks.count - 1);
  return {first.first, last.first + last.count - first.first};
}

// Ranks `rows` rows from `first` on, of which this block has the logits of `chunks`. After all
// blocks, some blocks rank one row each, in shared memory that no copy of weights writes to. A warp
// loads `kAtOnce` parts at once, as its registers allow.
template <class Shape, int kAtOnce>
__device__ inline void rank(const Params& params, const top_k::Ids& ids, int first, int rows,
                            const tile::Share& chunks) {
  using top_k::kParts;
  __syncthreads();  // the block's logits are written, and its shared memory has been read
  const int parts = chunks.count * top_k::kChunkParts;
  const auto item_at = [&](int i) {
    const int in_row = i % parts, in_chunk = in_row / chunks.count;
    return top_k::Item{first + i / parts,
                       in_chunk * top_k::kChunks + chunks.first + in_row % chunks.count};
  };
  top_k::rank_parts<kAtOnce>(params.logits, ids, params.orders, params.sums, rows * parts,
                             Shape::kWarps, item_at);
  if (params.ranked == nullptr) return;
  const int blocks = gridDim.x, waiting = min(params.rows, blocks), block = blockIdx.x;
  const bool waits = block < waiting;
  tile::Meeting meeting{params.ranked_by, gridDim.x, static_cast<unsigned>(waiting)};
  meeting.meet(true, waits);
  if (!waits) return;
  auto& shared = *reinterpret_cast<top_k::RowStorage*>(dynamic_shared);
#pragma unroll 1
  for (size_t row = block; row < params.rows; row += blocks) {
    top_k::Row<Shape::kThreads, kAtOnce>{shared, params.logits + row * ids.count, ids,
                                         params.orders + row * kParts,
                                         params.sums + row * kParts}
        .run(params.ranked + row * top_k::kWidth);
  }
  meeting.leave();
}

}  // namespace atlas::lm_head
