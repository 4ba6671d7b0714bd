// Implements: Ops::top_k
// Match:      F32 logits of VOCAB tokens
// Bound by:   latency (4 bytes per logit, which `linear` has just written)
// Sync:       a block per chunk of a row, then one per row; chained launches
//
// What a chunk or a row holds is first cut down by a bound that TOP_K of it are known to reach.
// What is left, seldom much more than TOP_K, is ranked by counting: each key among all. Logits and
// ids make keys of which no two are equal, so the order in which threads put them down does not
// matter.
#pragma once

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/ptx.cuh"
#include "tile/reduce.cuh"

namespace atlas::top_k {

using target::TOP_K;
using target::VOCAB;

inline constexpr int kChunk = target::TOP_K_CHUNK;
inline constexpr int kChunks = (VOCAB + kChunk - 1) / kChunk;
// Ids, logits, and the sum.
inline constexpr int kWidth = 2 * TOP_K + 1;

// Larger for a larger logit, and of equal ones for the lower id. No logit's key is zero.
using Key = unsigned long long;

// Keys that reach the bound of a row: those of TOP_K chunks at most.
inline constexpr int kListed = kChunks < TOP_K ? kChunks : TOP_K;
inline constexpr int kFoundMax = kListed * TOP_K;

static_assert(VOCAB >= TOP_K, "a row has what is to be ranked");
static_assert((kFoundMax + kChunks) * sizeof(Key) <= 40 * 1024, "static shared memory has room");

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

// Calls `put(rank, key)` for the largest TOP_K of `count` keys. All threads of the block.
template <class Put>
__device__ inline void rank(const Key* keys, int count, Put put) {
  constexpr int kLanes = 4;
  const int lane = threadIdx.x % kLanes;
  for (int first = 0; first < count; first += blockDim.x / kLanes) {
    const int at = first + threadIdx.x / kLanes;
    const Key key = at < count ? keys[at] : 0;
    int larger = 0;
#pragma unroll 4
    for (int i = lane; i < count; i += kLanes) larger += keys[i] > key;
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
      larger += __shfl_xor_sync(tile::kAllLanes, larger, lanes);
    }
    if (lane == 0 && at < count && larger < TOP_K) put(larger, key);
  }
}

// The block's sum of `value`, for all threads; `parts` has room for a number of every warp.
__device__ inline float block_sum(float value, float* parts) {
  value = tile::warp_sum(value);
  if (threadIdx.x % tile::kWarpLanes == 0) parts[threadIdx.x / tile::kWarpLanes] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < blockDim.x / tile::kWarpLanes; ++warp) sum += parts[warp];
  return sum;
}

// Ranks a chunk of a row; `sums` gets the chunk's, relative to its largest logit, and no number if
// a logit is not finite.
template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void chunks_f32(const float* logits, Key* keys,
                                                             float* sums) {
  constexpr int kThreads = Tile::kThreads, kWarps = kThreads / tile::kWarpLanes;
  constexpr int kEach = kChunk / kThreads, kOfWarp = TOP_K / kWarps;
  static_assert(kChunk % kThreads == 0 && TOP_K % kWarps == 0 && kOfWarp <= tile::kWarpLanes,
                "warps share a chunk and what is ranked");
  __shared__ Key found[kChunk];
  __shared__ unsigned largest[kWarps], reached[kWarps];
  __shared__ float parts[kWarps];
  __shared__ int count;
  ptx::griddepcontrol_launch_dependents();
  const int chunk = blockIdx.x, left = min(kChunk, VOCAB - chunk * kChunk);
  const int warp = threadIdx.x / tile::kWarpLanes, lane = threadIdx.x % tile::kWarpLanes;
  if (threadIdx.x == 0) count = 0;
  ptx::griddepcontrol_wait();
  const float* row = logits + size_t{blockIdx.y} * VOCAB + chunk * kChunk;
  float logit[kEach];
  unsigned best = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = i * kThreads + threadIdx.x;
    logit[i] = at < left ? row[at] : 0.0f;
    if (at < left) best = max(best, order_of(logit[i]));
  }
  // Each warp has `kOfWarp` threads whose best reaches the warp's bound; the least bound is reached
  // by TOP_K logits.
  const unsigned ranked = sort_warp(best);
  if (lane == 0) largest[warp] = ranked;
  if (lane == kOfWarp - 1) reached[warp] = ranked;
  __syncthreads();
  unsigned top = 0, bound = ~0u;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) top = max(top, largest[i]), bound = min(bound, reached[i]);
  const float reference = logit_of(top);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = i * kThreads + threadIdx.x;
    if (at >= left) continue;
    sum += isfinite(logit[i]) ? expf(logit[i] - reference) : NAN;
    const unsigned order = order_of(logit[i]);
    if (order >= bound) found[atomicAdd(&count, 1)] = key_of(order, chunk * kChunk + at);
  }
  sum = block_sum(sum, parts);
  const size_t place = size_t{blockIdx.y} * kChunks + chunk;
  keys += place * TOP_K;
  if (threadIdx.x == 0) sums[place] = sum;
  for (int i = count + threadIdx.x; i < TOP_K; i += kThreads) keys[i] = 0;
  rank(found, count, [&](int at, Key key) { keys[at] = key; });
}

// Ranks a row by what its chunks have ranked.
template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void rows_f32(const Key* keys, const float* sums,
                                                           float* out) {
  constexpr int kThreads = Tile::kThreads, kWarps = kThreads / tile::kWarpLanes;
  // Keys of a list that are looked at together: most lists have no more that reach the bound.
  constexpr int kAtOnce = 4;
  static_assert(TOP_K % kAtOnce == 0 && kListed * kAtOnce <= kThreads, "a thread looks at one");
  __shared__ Key heads[kChunks], found[kFoundMax];
  __shared__ int lists[kListed];
  __shared__ Key first, last;
  __shared__ float parts[kWarps];
  __shared__ int count;
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  keys += size_t{blockIdx.x} * kChunks * TOP_K, sums += size_t{blockIdx.x} * kChunks;
  out += size_t{blockIdx.x} * kWidth;
  for (int i = threadIdx.x; i < kChunks; i += kThreads) heads[i] = keys[size_t{i} * TOP_K];
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  // Only chunks whose best is among the best TOP_K have keys that reach the last one of these.
  rank(heads, kChunks, [&](int place, Key key) {
    lists[place] = id_of(key) / kChunk;
    if (place == 0) first = key;
    if (place == kListed - 1) last = key;
  });
  __syncthreads();
  const Key bound = kListed < TOP_K ? 1 : last;
  const int list = threadIdx.x / kAtOnce, behind = threadIdx.x % kAtOnce;
  bool more = list < kListed;
  for (int i = behind; i < TOP_K; i += kAtOnce) {
    const Key key = more ? keys[size_t{lists[list]} * TOP_K + i] : 0;
    more = key >= bound;
    if (more) found[atomicAdd(&count, 1)] = key;
    // A list is in order: one that stays below the bound ends it for the threads behind too.
    if (!__syncthreads_or(more && behind == kAtOnce - 1)) break;
  }
  const float reference = logit_of(order_of(first));
  float sum = 0.0f;
  for (int i = threadIdx.x; i < kChunks; i += kThreads) {
    sum += sums[i] * expf(logit_of(order_of(heads[i])) - reference);
  }
  sum = block_sum(sum, parts);
  rank(found, count, [&](int place, Key key) {
    out[place] = static_cast<float>(id_of(key));
    out[TOP_K + place] = logit_of(order_of(key));
  });
  if (threadIdx.x == 0) out[2 * TOP_K] = sum;
}

template <class Tile>
struct ChunksF32 {
  static cudaError_t launch(const float* logits, unsigned* keys, float* sums, float* out,
                            unsigned rows, cudaStream_t stream) {
    Key* ranked = reinterpret_cast<Key*>(keys);
    const cudaError_t failed = launch_chained(
        chunks_f32<Tile>, {kChunks, Tile::kThreads, 0, rows}, stream, logits, ranked, sums);
    if (failed != cudaSuccess) return failed;
    return launch_chained(rows_f32<Tile>, {rows, Tile::kThreads, 0}, stream, ranked, sums, out);
  }
};

}  // namespace atlas::top_k
