// Implements: Ops::attention
// Match:      rows of different sequences; pages of bf16 or FP8, query heads of a KV head, 16 at
//             most (over latents 16 a block), packed into the M of an instruction; operands bf16,
//             scores and sums F32
// Bound by:   HBM (keys and values, once)
// Sync:       three barriers per split and bulk copies; blocks of a row and KV head meet once;
//             chained launch
//
// `attend` for few rows, with the work of `store_kv`: each block norms and rotates its query heads;
// the block of the last split also makes the row's own key and value, which go to the cache and
// directly to the ring, so that no block waits for memory.
#pragma once

#include "ops/attend/splits.cuh"

namespace atlas::attention {

using target::PAGE;

struct Constants {
  const float* k;       // (rows, kKvHeads, kHeadDim)
  const float* v;       // (rows, kKvHeads, kHeadDim), null if values are latents of keys
  const float* q_norm;  // (kHeadDim), null if not `kNormed`
  const float* k_norm;  // (kHeadDim), or (kValueDim) of latents; null without a norm
  const float* angles;  // (MAX_CONTEXT, kPairs, 2): cosine, sine
  unsigned char* cache;  // (pages: page_stride apart; kKvHeads, 2, kHeadBytes): keys, values
};

// Heads that a block computes for its row, one a warp: queries, then the row's own key and value.
template <class A, int kOfSm>
struct Projected {
  using Stage = attend::Splits<A, true, kOfSm>;
  using Heads = attend::Heads<A>;
  using Head = tile::Head<A>;
  static constexpr int kKey = Heads::kGroup, kValue = kKey + 1;
  // Heads that a row needs: queries, key and value; values that are latents of keys have no head.
  static constexpr int kItems = tile::kLatent<A> ? kValue : kValue + 1;
  static constexpr int kEach = (kItems + attend::kWarps - 1) / attend::kWarps;

  const Constants& constants;
  const unsigned page;  // of the row's own position
  tile::Rotation<A> rotation;
  Head q_gain, k_gain;

  __device__ Projected(const Constants& constants, const Stage& stage)
      : constants(constants), page(stage.params.pages[stage.table + stage.last / PAGE]) {
    rotation.load(constants.angles, stage.last);
    if constexpr (!tile::kLatent<A>) q_gain.load_gain(constants.q_norm);
    k_gain.load_gain(constants.k_norm);
  }

  __device__ const float* source(const Stage& stage, int item) const {
    const size_t row = stage.first;
    const size_t kv_head = row * Heads::kKvHeads + (Heads::kLatent ? 0 : stage.kv_head);
    const size_t query = row * Heads::kHeads + stage.kv_head * Heads::kGroup + item;
    if (item < kKey) return stage.params.q + query * Heads::kQuery;
    return (item == kKey ? constants.k : constants.v) + kv_head * Heads::kHeadDim;
  }

  __device__ void put_query(Stage& stage, int item, Head& head) const {
    if constexpr (!tile::kLatent<A>) head.norm(q_gain);
    head.rotate(rotation);
#pragma unroll
    for (int i = 0; i < Head::kParts; ++i) {
      stage.shared.query[item][head.dim(i)] = to_bf16(head.part[i] * attend::kQueryFactor);
    }
  }

  __device__ void put_own(Stage& stage, bool is_value, Head& head) const {
    if (!is_value) {
      head.norm(k_gain);
      head.rotate(rotation);
    } else {
      head.norm_value();
    }
    if constexpr (tile::kLatent<A>) return put_latent(stage, head);
    const int item = stage.last_item(is_value), position = stage.last % PAGE;
    unsigned char* block = constants.cache + tile::head_at<A>(page, stage.params.page_stride,
                                                              stage.kv_head, is_value);
    const int exponent =
        tile::put_position(block, position, head, [&](int dim, tile::PageNumber number) {
          *stage.own_at(item, is_value, dim) = number;
        });
    stage.put_own_exponent(is_value, exponent);
  }

  // Writes the key, and its latent as the value; only the first query heads' block fills the cache.
  __device__ void put_latent(Stage& stage, const Head& head) const {
    const int key = stage.last_item(false), value = stage.last_item(true);
    auto* to = reinterpret_cast<bf16*>(constants.cache +
                                       tile::head_at<A>(page, stage.params.page_stride, 0, false));
#pragma unroll
    for (int i = 0; i < Head::kParts; ++i) {
      const bf16 rounded = to_bf16(head.part[i]);
      const int dim = head.dim(i);
      *stage.own_at(key, false, dim) = rounded;
      if (i >= Head::kPlainParts) *stage.own_at(value, true, dim - A::kRotaryDim) = rounded;
      if (stage.kv_head == 0) to[tile::page_at(stage.last % PAGE, dim)] = rounded;
    }
  }

  // Norms, rotates and stores the heads, after the wait for earlier kernels; a barrier must follow.
  __device__ void take(Stage& stage) const {
    const int warp = threadIdx.x / tile::kWarpLanes;
    const int items = stage.last_item(false) < 0 ? kKey : kItems;
    Head heads[kEach];
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

template <class Tile, class A>
struct SplitKvBf16 {
  static_assert(Tile::kThreads == attend::kThreads, "the stages count on these warps");

  static cudaError_t launch(const float* q, const float* k, const float* v, const float* q_norm,
                            const float* k_norm, const float* angles, const unsigned* positions,
                            const unsigned* tables, const unsigned* pages, unsigned char* cache,
                            const unsigned* tiles, const float* sinks, float* partial,
                            unsigned* arrived, float* out, unsigned page_stride, unsigned rows,
                            cudaStream_t stream) {
    const attend::Params params{q,
                                cache,
                                page_stride,
                                positions,
                                tables,
                                pages,
                                reinterpret_cast<const uint4*>(tiles),
                                partial,
                                arrived,
                                out,
                                static_cast<int>(rows),
                                sinks,
                                false};
    const Constants constants{k, v, q_norm, k_norm, angles, cache};
    if (rows == 0) return cudaSuccess;
    return attend::launch_splits<Tile, A, Projected>(params, constants, rows, stream);
  }
};

}  // namespace atlas::attention
