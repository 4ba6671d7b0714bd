// Ranking a row of logits: chunks of it first, each by some warps, then what these have ranked.
//
// What a chunk or a row holds is first cut down by a bound that TOP_K of it are known to reach.
// What is left, seldom much more than TOP_K, is ranked by counting: each key among all. Logits and
// ids make keys of which no two are equal, so the order in which threads put them down does not
// matter.
#pragma once

#include "target.cuh"
#include "tile/panels.cuh"
#include "tile/reduce.cuh"
#include "tile/share.cuh"

namespace atlas::top_k {

using target::TOP_K;
using target::VOCAB;

// A chunk is what a block of the head makes, which has an SM to itself.
inline constexpr int kPanels = tile::panels_of(VOCAB);
inline constexpr int kChunks = target::TOP_K_CHUNKS;
inline constexpr int kChunkMax = (kPanels + kChunks - 1) / kChunks * tile::kPanelRows;
static_assert(kChunks == (kPanels < target::SMS ? kPanels : target::SMS), "a block has a chunk");
// Ids, logits, and the sum.
inline constexpr int kWidth = 2 * TOP_K + 1;

// Larger for a larger logit, and of equal ones for the lower id. No logit's key is zero.
using Key = unsigned long long;

// Unsigned numbers in the order of floats; adding zero makes both zeros one.
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

// Lane i gets the largest but i of the warp.
__device__ inline unsigned sort_warp(unsigned value) {
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

// Threads that rank together; a block has one or two such groups.
inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / tile::kWarpLanes;

__device__ inline int group() { return threadIdx.x / kThreads; }
__device__ inline int thread() { return threadIdx.x % kThreads; }

__device__ inline void group_sync() {
  if (group() == 0) {
    ptx::barrier_sync<1, kThreads>();
  } else {
    ptx::barrier_sync<2, kThreads>();
  }
}

// Whether a thread of the group says so.
__device__ inline bool group_or(bool says) {
  return group() == 0 ? ptx::barrier_or<1, kThreads>(says) : ptx::barrier_or<2, kThreads>(says);
}

// Calls `put(place, at)` for the largest TOP_K of `count` keys: where it is among these, and in
// `keys`. All threads of the group.
template <class Put>
__device__ inline void rank(const Key* keys, int count, Put put) {
  constexpr int kLanes = 4;
  const int lane = thread() % kLanes;
  for (int first = 0; first < count; first += kThreads / kLanes) {
    const int at = first + thread() / kLanes;
    const Key key = at < count ? keys[at] : 0;
    int larger = 0;
#pragma unroll 4
    for (int i = lane; i < count; i += kLanes) larger += keys[i] > key;
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
      larger += __shfl_xor_sync(tile::kAllLanes, larger, lanes);
    }
    if (lane == 0 && at < count && larger < TOP_K) put(larger, at);
  }
}

// The group's sum of `value`, for all its threads.
__device__ inline float group_sum(float value, float (&parts)[kWarps]) {
  value = tile::warp_sum(value);
  if (thread() % tile::kWarpLanes == 0) parts[thread() / tile::kWarpLanes] = value;
  group_sync();  // every warp's sum is written
  float sum = 0.0f;
  for (int warp = 0; warp < kWarps; ++warp) sum += parts[warp];
  return sum;
}

struct ChunkStorage {
  Key found[kChunkMax];
  unsigned largest[kWarps], reached[kWarps];
  float parts[kWarps];
  int count;
};

// Ranks a chunk of a row of logits, `panels` of it: `keys` gets TOP_K, zeros where there are fewer;
// `sum` the chunk's, relative to its largest logit, and no number if a logit is not finite.
__device__ inline void rank_chunk(ChunkStorage& shared, const float* logits,
                                  const tile::Share& panels, Key* keys, float* sum) {
  constexpr int kEach = (kChunkMax + kThreads - 1) / kThreads, kOfWarp = TOP_K / kWarps;
  static_assert(TOP_K % kWarps == 0 && kOfWarp <= tile::kWarpLanes, "warps share what is ranked");
  const int begin = panels.first * tile::kPanelRows;
  const int end = min(begin + panels.count * tile::kPanelRows, VOCAB);
  const int warp = thread() / tile::kWarpLanes, lane = thread() % tile::kWarpLanes;
  if (thread() == 0) shared.count = 0;
  const auto id_at = [&](int i) { return begin + i * kThreads + thread(); };
  float logit[kEach];
  unsigned best = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    logit[i] = id_at(i) < end ? logits[id_at(i)] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (id_at(i) < end) best = max(best, order_of(logit[i]));
  }
  // Each warp has `kOfWarp` threads whose best reaches the warp's bound; the least bound is reached
  // by TOP_K logits.
  const unsigned ranked = sort_warp(best);
  if (lane == 0) shared.largest[warp] = ranked;
  if (lane == kOfWarp - 1) shared.reached[warp] = ranked;
  group_sync();  // all warps' are written, and the count
  unsigned top = 0, bound = ~0u;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    top = max(top, shared.largest[i]), bound = min(bound, shared.reached[i]);
  }
  const float reference = logit_of(top);
  float own = 0.0f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (id_at(i) >= end) continue;
    own += isfinite(logit[i]) ? expf(logit[i] - reference) : NAN;
    const unsigned order = order_of(logit[i]);
    if (order >= bound) shared.found[atomicAdd(&shared.count, 1)] = key_of(order, id_at(i));
  }
  own = group_sum(own, shared.parts);
  if (thread() == 0) *sum = own;
  const int count = shared.count;
  for (int i = count + thread(); i < TOP_K; i += kThreads) keys[i] = 0;
  rank(shared.found, count, [&](int place, int at) { keys[place] = shared.found[at]; });
  group_sync();  // the storage has been read
}

// Best keys of each chunk that a row's bound is found by: TOP_K or more in all.
inline constexpr int kHeads = (TOP_K + kChunks - 1) / kChunks;
// Chunks that may have some of a row's largest, and keys of theirs that reach the bound, at most.
inline constexpr int kListed = kChunks < TOP_K ? kChunks : TOP_K;
inline constexpr int kFoundMax = kListed * TOP_K;

static_assert(VOCAB >= TOP_K && kHeads <= TOP_K, "a row has what is to be ranked");

struct RowStorage {
  Key heads[kChunks][kHeads], found[kFoundMax];
  int lists[kListed];
  float parts[kWarps];
  Key first, last;
  int listed, count;
};

// Ranks a row by what its chunks have ranked.
__device__ inline void rank_row(RowStorage& shared, const Key* keys, const float* sums,
                                float* out) {
  // Keys of a list that are looked at together: most lists have no more that reach the bound.
  constexpr int kAtOnce = 4;
  static_assert(TOP_K % kAtOnce == 0 && kListed * kAtOnce <= kThreads, "a thread looks at one");
  for (int i = thread(); i < kChunks * kHeads; i += kThreads) {
    shared.heads[i / kHeads][i % kHeads] = keys[size_t{TOP_K} * (i / kHeads) + i % kHeads];
  }
  if (thread() == 0) shared.listed = shared.count = 0, shared.last = 0;
  group_sync();  // the heads are there
  const Key* heads = shared.heads[0];
  rank(heads, kChunks * kHeads, [&](int place, int at) {
    if (place == 0) shared.first = heads[at];
    if (place == TOP_K - 1) shared.last = heads[at];
  });
  group_sync();  // the bound is there
  // Only chunks whose best reaches it have keys that do, and no more than TOP_K are such.
  const Key bound = shared.last > 0 ? shared.last : 1;
  for (int i = thread(); i < kChunks; i += kThreads) {
    if (shared.heads[i][0] >= bound) shared.lists[atomicAdd(&shared.listed, 1)] = i;
  }
  group_sync();  // the lists are there
  const int list = thread() / kAtOnce, behind = thread() % kAtOnce;
  bool more = list < shared.listed;
  for (int i = behind; i < TOP_K; i += kAtOnce) {
    const Key key = more ? keys[size_t{TOP_K} * shared.lists[list] + i] : 0;
    more = key >= bound;
    if (more) shared.found[atomicAdd(&shared.count, 1)] = key;
    // A list is in order: one that stays below the bound ends it for the threads behind too.
    if (!group_or(more && behind == kAtOnce - 1)) break;
  }
  const float reference = logit_of(order_of(shared.first));
  float sum = 0.0f;
  for (int i = thread(); i < kChunks; i += kThreads) {
    sum += sums[i] * expf(logit_of(order_of(shared.heads[i][0])) - reference);
  }
  sum = group_sum(sum, shared.parts);
  rank(shared.found, shared.count, [&](int place, int at) {
    const Key key = shared.found[at];
    out[place] = static_cast<float>(id_of(key));
    out[TOP_K + place] = logit_of(order_of(key));
  });
  if (thread() == 0) out[2 * TOP_K] = sum;
  group_sync();  // the storage has been read
}

}  // namespace atlas::top_k
