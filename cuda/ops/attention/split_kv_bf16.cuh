// Implements: Ops::attention
// Match:      rows of different sequences; bf16 pages, heads of 256 elements, query heads of a KV
//             head packed into the M of an instruction; operands bf16, scores and sums F32
// Bound by:   HBM (keys and values, once)
// Sync:       three barriers per split and bulk copies; blocks of a row and KV head meet once;
//             chained launch
//
// `attend` for few rows, whose blocks make what `store_kv` does: each norms and rotates its query
// heads, and that of the last split the row's own key and value. These go to the cache, and to the
// ring of copies as well: nobody waits until memory has them.
#pragma once

#include "ops/attend/splits.cuh"
#include "tile/head.cuh"

namespace atlas::attention {

using target::HEAD_DIM;
using target::HEADS;
using target::KV_HEADS;
using target::PAGE;

struct Constants {
  const float* k;       // (rows, KV_HEADS, HEAD_DIM)
  const float* v;       // (rows, KV_HEADS, HEAD_DIM)
  const float* q_norm;  // (HEAD_DIM)
  const float* k_norm;  // (HEAD_DIM)
  const float* angles;  // (MAX_CONTEXT, kPairs, 2): cosine, sine
  bf16* cache;          // (pages, KV_HEADS, 2, PAGE * HEAD_DIM): keys, values
};

// The heads that a block makes of its row, one a warp: queries, then its own key and value.
struct Projected {
  using Constants = attention::Constants;
  using Stage = attend::Splits<true>;
  static constexpr bool kStores = true;
  static constexpr int kKey = attend::kGroup, kValue = kKey + 1;
  static constexpr int kEach = (kValue + attend::kWarps) / attend::kWarps;

  const Constants& constants;
  const size_t page;  // of the row's own position
  tile::Turn turn;
  tile::Head q_gain, k_gain;

  __device__ Projected(const Constants& constants, const Stage& stage)
      : constants(constants), page(stage.params.pages[stage.table + stage.last / PAGE]) {
    turn.load(constants.angles, stage.last);
    q_gain.load(constants.q_norm);
    k_gain.load(constants.k_norm);
  }

  __device__ const float* source(const Stage& stage, int item) const {
    const size_t row = stage.first, kv_head = row * KV_HEADS + stage.kv_head;
    const size_t query = row * HEADS + stage.kv_head * attend::kGroup + item;
    if (item < kKey) return stage.params.q + query * 2 * HEAD_DIM;
    return (item == kKey ? constants.k : constants.v) + kv_head * HEAD_DIM;
  }

  __device__ void put_query(Stage& stage, int item, tile::Head& head) const {
    head.norm(q_gain);
    head.rotate(turn);
#pragma unroll
    for (int i = 0; i < tile::kHeadParts; ++i) {
      stage.shared.query[item][head.dim(i)] = to_bf16(head.part[i]);
    }
  }

  __device__ void put_own(Stage& stage, bool is_value, tile::Head& head) const {
    if (!is_value) {
      head.norm(k_gain);
      head.rotate(turn);
    }
    const size_t block = (page * KV_HEADS + stage.kv_head) * 2 + is_value;
    const int item = stage.last_item(is_value), position = stage.last % PAGE;
#pragma unroll
    for (int i = 0; i < tile::kHeadParts; ++i) {
      const bf16 rounded = to_bf16(head.part[i]);
      *stage.own_at(item, is_value, head.dim(i)) = rounded;
      constants.cache[block * PAGE * HEAD_DIM + tile::page_at(position, head.dim(i))] = rounded;
    }
  }

  // Behind the wait; what it writes to shared memory can be read behind a barrier.
  __device__ void take(Stage& stage) const {
    const int warp = threadIdx.x / tile::kWarpLanes;
    const int items = stage.last_item(false) < 0 ? kKey : kValue + 1;
    tile::Head heads[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int item = warp + i * attend::kWarps;
      if (item < items) heads[i].load(source(stage, item));
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int item = warp + i * attend::kWarps;
      if (item >= items) break;
      if (item < kKey) {
        put_query(stage, item, heads[i]);
      } else {
        put_own(stage, item == kValue, heads[i]);
      }
    }
  }
};

template <class Tile>
struct SplitKvBf16 {
  static_assert(Tile::kThreads == attend::kThreads, "the stages count on these warps");
  static_assert(Tile::kSharedBytes == sizeof(attend::RingStorage<attend::kSlots>),
                "the manifest plans this storage");

  static cudaError_t launch(const float* q, const float* k, const float* v, const float* q_norm,
                            const float* k_norm, const float* angles, const unsigned* positions,
                            const unsigned* tables, const unsigned* pages, atlas_bf16* cache,
                            const unsigned* tiles, float* partial, unsigned* arrived, float* out,
                            unsigned rows, cudaStream_t stream) {
    const attend::Params params{q,
                                cache,
                                positions,
                                tables,
                                pages,
                                reinterpret_cast<const uint4*>(tiles),
                                partial,
                                arrived,
                                out,
                                static_cast<int>(rows)};
    const Constants constants{k, v, q_norm, k_norm, angles, cache};
    if (rows == 0) return cudaSuccess;
    return attend::launch_splits<Tile, Projected>(params, constants, rows, stream);
  }
};

}  // namespace atlas::attention
