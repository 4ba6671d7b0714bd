// Ranking of a row of logits: a warp finds the largest logit of each part, then a block ranks the
// row.
//
// The block takes a bound that the largest logits of at least TOP_K parts reach, and reads these
// parts. Their logits that reach the bound are ranked by counting how many are larger. Keys of
// logit and id are all different, so the order in which threads list them does not matter.
#pragma once

#include "target.cuh"
#include "tile/panels.cuh"
#include "tile/reduce.cuh"
#include "tile/share.cuh"

namespace atlas::top_k {

using target::TOP_K;
using target::VOCAB;

// Chunks of a row: a block of the head makes one, and has an SM to itself.
inline constexpr int kPanels = tile::panels_of(VOCAB);
inline constexpr int kChunks = target::TOP_K_CHUNKS;
inline constexpr int kChunkMax = (kPanels + kChunks - 1) / kChunks * tile::kPanelRows;
static_assert(kChunks == (kPanels < target::SMS ? kPanels : target::SMS), "a block has a chunk");
// Parts of a chunk, each every kChunkParts-th 32 logits. Parts are numbered so that all chunks'
// first parts come first in a row: later ones may have no logits, as chunks are small if the
// vocabulary is, or if few ids are ranked.
inline constexpr int kChunkParts = target::TOP_K_PARTS;
inline constexpr int kParts = kChunks * kChunkParts;
inline constexpr int kStride = kChunkParts * tile::kWarpLanes;
inline constexpr int kEach = (kChunkMax + kStride - 1) / kStride;  // logits of a lane
// Numbers of a ranked row: ids, logits, and the sum.
inline constexpr int kWidth = 2 * TOP_K + 1;

// Ids that are ranked, the first `count`, and the panels of them that a chunk has, computed on the
// host: a division in a kernel would take registers.
struct Ids {
  int count;
  int each, more;  // panels of a chunk; of the first chunks one more

  __host__ __device__ constexpr explicit Ids(unsigned ids)
      : count(static_cast<int>(ids)),
        each(tile::panels_of(count) / kChunks),
        more(tile::panels_of(count) % kChunks) {}

  __device__ tile::Share panels(int chunk) const {
    return {chunk * each + min(chunk, more), each + (chunk < more)};
  }
};

// Key of a logit: larger for a larger logit, on a tie for the lower id; never zero.
using Key = unsigned long long;

// Order of floats as unsigned numbers; adding zero makes both zeros equal.
__device__ inline unsigned order_of(float logit) {
  const unsigned bits = __float_as_uint(logit + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ inline float logit_of(unsigned order) {
  return __uint_as_float(order >> 31 ? order & 0x7fffffffu : ~order);
}

__device__ inline Key key_of(unsigned order, unsigned id) { return Key{order} << 32 | ~id; }

__device__ inline unsigned order_of(Key key) { return static_cast<unsigned>(key >> 32); }

__device__ inline unsigned id_of(Key key) { return ~static_cast<unsigned>(key); }

// A row, and one of its parts.
struct Item {
  int row;
  int part;
};

// A lane's logits of a part.
struct Part {
  int first, count = 0;  // the lane's first id, and how many
  float logit[kEach];

  // Loads the lane's logits of `part` from a row's `logits`.
  __device__ void load(const float* logits, const Ids& ids, int part) {
    const auto panels = ids.panels(part % kChunks);
    const int begin = panels.first * tile::kPanelRows;
    const int end = min(begin + panels.count * tile::kPanelRows, ids.count);
    first = begin + part / kChunks * tile::kWarpLanes + threadIdx.x % tile::kWarpLanes;
    count = (end - first + kStride - 1) / kStride;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i < count) logit[i] = logits[first + i * kStride];
    }
  }

  template <class Body>
  __device__ void for_each(Body body) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i < count) body(first + i * kStride, logit[i]);
    }
  }

  struct Ranked {
    unsigned order;  // zero if there is no logit
    float sum;       // relative to the largest logit; NaN if a logit is not finite
  };

  __device__ Ranked rank() const {
    unsigned top = 0;
    for_each([&](int, float logit) { top = max(top, order_of(logit)); });
    top = __reduce_max_sync(tile::kAllLanes, top);
    const float reference = logit_of(top);
    float own = 0.0f;
    for_each([&](int, float logit) {
      own += isfinite(logit) ? expf(logit - reference) : NAN;
    });
    return {top, tile::warp_sum(own)};
  }
};

// Ranks parts of rows: `items`, distributed over a block's `warps`, `kAtOnce` at once, while the
// next ones' logits are loaded. `item_at(i)` gives an item.
template <int kAtOnce, class ItemAt>
__device__ inline void rank_parts(const float* logits, const Ids& ids, unsigned* orders,
                                  float* sums, int items, int warps, const ItemAt& item_at) {
  Part next[kAtOnce];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * warps >= items) break;
      const Item item = item_at(first + i * warps);
      next[i].load(logits + static_cast<size_t>(ids.count) * item.row, ids, item.part);
    }
  };
  int first = threadIdx.x / tile::kWarpLanes;
  load(first);
#pragma unroll 1
  for (; first < items; first += kAtOnce * warps) {
    Part part[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) part[i] = next[i];
    load(first + kAtOnce * warps);
    Part::Ranked ranked[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) ranked[i] = part[i].rank();
    if (threadIdx.x % tile::kWarpLanes != 0) continue;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * warps >= items) break;
      const Item item = item_at(first + i * warps);
      const size_t at = size_t{kParts} * item.row + item.part;
      orders[at] = ranked[i].order, sums[at] = ranked[i].sum;
    }
  }
}

// Warps that list the parts of a row, and their threads.
inline constexpr int kListWarps = 8;
inline constexpr int kListThreads = kListWarps * tile::kWarpLanes;
// Most keys that are ranked by counting.
inline constexpr int kFoundMax = 1024;

static_assert(VOCAB >= TOP_K && kFoundMax >= TOP_K, "a row has what is to be ranked");
static_assert(kParts <= 0xffff, "a part's number fits");

struct RowStorage {
  Key found[kFoundMax];
  unsigned short part[kParts];  // that reach the bound
  unsigned largest[kListWarps], reached[kListWarps];
  float sum[kListWarps];
  int parts, count;
};

// Ranks a row by the orders and sums of its parts, in a block of `kThreads` whose warps load
// `kAtOnce` parts each at once.
template <int kThreads, int kAtOnce>
struct Row {
  static constexpr int kWarps = kThreads / tile::kWarpLanes;
  static_assert(kWarps >= kListWarps, "a block has the warps that list parts");

  RowStorage& shared;
  const float* logits;     // (ids)
  const Ids& ids;
  const unsigned* orders;  // (kParts)
  const float* sums;       // (kParts)

  // Sorts a warp's values in descending order: lane i gets the i-th.
  __device__ static unsigned sort_warp(unsigned value) {
    const int lane = threadIdx.x % tile::kWarpLanes;
#pragma unroll
    for (int run = 2; run <= tile::kWarpLanes; run *= 2) {
#pragma unroll
      for (int gap = run / 2; gap > 0; gap /= 2) {
        const unsigned other = __shfl_xor_sync(tile::kAllLanes, value, gap);
        const bool larger = ((lane & gap) == 0) == ((lane & run) == 0);
        value = larger ? max(value, other) : min(value, other);
      }
    }
    return value;
  }

  // Lists the parts that reach a bound, and adds up the row's sum; returns the bound.
  __device__ unsigned list() {
    constexpr int kMine = (kParts + kListThreads - 1) / kListThreads;
    constexpr int kOfWarp = TOP_K / kListWarps;
    static_assert(TOP_K % kListWarps == 0 && kOfWarp <= tile::kWarpLanes);
    const int warp = threadIdx.x / tile::kWarpLanes, lane = threadIdx.x % tile::kWarpLanes;
    const bool lists = warp < kListWarps;
    // Each warp has equally many parts with logits, to within one.
    const auto at = [&](int i) {
      const int part = lane * kListWarps + warp + i * kListThreads;
      return lists && part < kParts ? part : -1;
    };
    unsigned order[kMine], best = 0;
    float part[kMine];
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      order[i] = at(i) >= 0 ? orders[at(i)] : 0;
      part[i] = at(i) >= 0 ? sums[at(i)] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i) best = max(best, order[i]);
    // In each warp, `kOfWarp` threads have a part that reaches the warp's bound; the least bound of
    // all is reached by TOP_K parts, or by all that have logits.
    if (lists) {
      const unsigned sorted = sort_warp(best);
      if (lane == 0) shared.largest[warp] = sorted;
      if (lane == kOfWarp - 1) shared.reached[warp] = sorted;
    }
    if (threadIdx.x == 0) shared.parts = shared.count = 0;
    __syncthreads();  // all warps' are written, and the counts
    unsigned top = 0, bound = ~0u;
#pragma unroll
    for (int i = 0; i < kListWarps; ++i) {
      top = max(top, shared.largest[i]), bound = min(bound, shared.reached[i]);
    }
    bound = max(bound, 1u);
    const float reference = logit_of(top);
    float own = 0.0f;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      if (order[i] > 0) own += part[i] * expf(logit_of(order[i]) - reference);
      if (order[i] >= bound) shared.part[atomicAdd(&shared.parts, 1)] = at(i);
    }
    own = tile::warp_sum(own);
    if (lists && lane == 0) shared.sum[warp] = own;
    __syncthreads();  // the list is there, and the sums
    return bound;
  }

  // Collects the keys of listed parts that reach `bound`; returns how many.
  __device__ int find(Key bound) {
#pragma unroll 1
    for (int first = threadIdx.x / tile::kWarpLanes; first < shared.parts;
         first += kAtOnce * kWarps) {
      Part part[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + i * kWarps;
        if (at < shared.parts) part[i].load(logits, ids, shared.part[at]);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        part[i].for_each([&](int id, float logit) {
          const unsigned order = order_of(logit);
          if (order < order_of(bound)) return;
          const Key key = key_of(order, id);
          if (key < bound) return;
          const int at = atomicAdd(&shared.count, 1);
          if (at < kFoundMax) shared.found[at] = key;
        });
      }
    }
    __syncthreads();  // all are found
    return shared.count;
  }

  // Calls `put(index, key)` for the TOP_K largest of `count` keys.
  template <class Put>
  __device__ void rank(int count, Put put) const {
    constexpr int kLanes = 4;
    const int lane = threadIdx.x % kLanes;
    for (int first = 0; first < count; first += kThreads / kLanes) {
      const int at = first + threadIdx.x / kLanes;
      const Key key = at < count ? shared.found[at] : 0;
      int larger = 0;
#pragma unroll 4
      for (int i = lane; i < count; i += kLanes) larger += shared.found[i] > key;
#pragma unroll
      for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
        larger += __shfl_xor_sync(tile::kAllLanes, larger, lanes);
      }
      if (lane == 0 && at < count && larger < TOP_K) put(larger, key);
    }
  }

  // Writes ids and logits of the largest, and the sum of all weights relative to the largest.
  __device__ void run(float* out) {
    Key bound = Key{list()} << 32, many = bound, few = ~Key{0};
    int count;
    // If too many equal logits reach the bound, another one is searched for.
#pragma unroll 1
    while ((count = find(bound)) > kFoundMax || count < TOP_K) {
      (count < TOP_K ? few : many) = bound;
      bound = many + (few - many) / 2;
      __syncthreads();  // the count has been read
      if (threadIdx.x == 0) shared.count = 0;
      __syncthreads();  // the count is zero
    }
    rank(count, [&](int index, Key key) {
      out[index] = static_cast<float>(id_of(key));
      out[TOP_K + index] = logit_of(order_of(key));
    });
    if (threadIdx.x == 0) {
      float sum = 0.0f;
      for (const float part : shared.sum) sum += part;
      out[2 * TOP_K] = sum;
    }
    __syncthreads();  // the storage has been read
  }
};

}  // namespace atlas::top_k
