// Code that all kernels of Ops::attend share: arguments, merging of splits, and a tile of query
// heads with keys and values in shared memory.
#pragma once

#include "base/launch.cuh"
#include "base/types.cuh"
#include "target.cuh"
#include "tile/math.cuh"
#include "tile/pages_fp8.cuh"
#include "tile/ptx.cuh"
#include "tile/reduce.cuh"

namespace atlas::attend {

using target::PAGE;

inline constexpr int kSplit = 256;
inline constexpr int kBlock = 64;
// Number of splits in the longest context.
inline constexpr int kSplits = (target::MAX_CONTEXT + kSplit - 1) / kSplit;
inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / tile::kWarpLanes;

static_assert(kBlock == 8 * kWarps, "a warp scores 8 positions of a block");
static_assert(PAGE == kBlock && kSplit % kBlock == 0, "a block is a page");

// Heads of an attention shape, and their distribution to blocks.
template <class A>
struct Heads {
  static constexpr int kHeads = A::kHeads;
  static constexpr int kKvHeads = A::kKvHeads;
  static constexpr int kHeadDim = A::kHeadDim;
  static constexpr int kValueDim = A::kValueDim;
  static constexpr bool kLatent = tile::kLatent<A>;
  // Query heads of a KV head.
  static constexpr int kAsking = kHeads / kKvHeads;
  // Query heads in a block: all of a KV head, or over latents as many as an instruction's M.
  static constexpr int kGroup = kLatent && kAsking > 16 ? 16 : kAsking;
  static constexpr int kGroups = kHeads / kGroup;
  static constexpr int kQuery = kHeadDim * (A::kGated ? 2 : 1);  // elements of a query and its gate
  static constexpr int kPage = PAGE * kHeadDim;     // operands of a head's keys, or values
  // Warps that mix values, each at least 16 dimensions; narrow heads leave some idle.
  static constexpr int kMixers = kValueDim / 16 < kWarps ? kValueDim / 16 : kWarps;
  static constexpr int kWarpDims = kValueDim / kMixers;
  static constexpr int kDimTiles = kWarpDims / 8;
  static constexpr int kVectors = kHeadDim / Bf16x8::kElements;
  static constexpr int kValueVectors = kValueDim / Bf16x8::kElements;
  // Loads of FP8 that a thread has in flight when a block is widened.
  static constexpr int kWidenedAtOnce = kHeadDim / 64 < 4 ? kHeadDim / 64 : 4;
  // Pitch of a row in shared memory, padded so that eight rows are in different banks.
  static constexpr int kPadded = kHeadDim + 8;
  static constexpr int kWindow = A::kWindow;  // positions that a row sees; 0: all up to its own

  static_assert(kHeads == kGroups * kGroup && kGroup <= 16, "query heads are rows of an M");
  static_assert(kValueDim == 64 || kValueDim == 128 || kValueDim == 256 || kValueDim == 512,
                "a warp has whole tiles of dimensions, a page whole blocks");
  static_assert(kHeadDim <= 512, "a block has memory for a page of keys beside its queries");

  // First position that a row at `position` attends to.
  __device__ static int first_seen(int position) {
    if constexpr (kWindow == 0) return 0;
    return max(0, position + 1 - kWindow);
  }

  // Whether a row at `position` attends to position `other`.
  __device__ static bool sees(int position, int other) {
    return other <= position && (kWindow == 0 || other > position - kWindow);
  }

  __device__ static bool mixes() {
    return kMixers == kWarps || threadIdx.x / tile::kWarpLanes < kMixers;
  }
};

struct Params {
  const float* q;             // (rows, kHeads, 2, kHeadDim): query, gate if `kGated`
  const unsigned char* cache;  // (pages: page_stride apart; kKvHeads, 2, kHeadBytes): keys, values
  unsigned page_stride;        // bytes
  const unsigned* positions;  // (rows)
  const unsigned* tables;     // (rows): first page of the row's sequence in `pages`
  const unsigned* pages;
  // (tiles): first row, rows, index of the first row in `partial`, first position of the rows'
  // sequence that this step writes
  const uint4* tiles;
  // (partial_rows, kHeads, kSplits, kValueDim), then (partial_rows, kHeads, kSplits, 2)
  float* partial;
  unsigned* arrived;   // (tiles, kGroups): zeros between launches
  float* out;          // (rows, kHeads, kValueDim)
  int partial_rows;          // rows of all tiles; 0 if `partial` has no space for them
  const float* sinks;  // (kHeads): attention sinks, null if not `kSinks`
  bool rounded;        // `out` is F16, for rows in cells, if `ATTEND_ROUNDS`

  __device__ bool rounds() const { return target::ATTEND_ROUNDS && rounded; }
};

// Writes two neighbouring numbers to `out`, at index `at`: as F16 if `rounded`.
__device__ inline void put_mixed(float* out, bool rounded, size_t at, float low, float high) {
  if (rounded) {
    reinterpret_cast<f16x2*>(out)[at / 2] = to_f16x2(low, high);
  } else {
    *reinterpret_cast<float2*>(out + at) = {low, high};
  }
}

// First position that row `row` of the step attends to.
template <class A>
__device__ inline int first_seen(const Params& params, int row) {
  if constexpr (A::kWindow == 0) return 0;
  return Heads<A>::first_seen(static_cast<int>(params.positions[row]));
}

// Rounds kRows query rows to operands: rows from `begin` on, counted by token and then query head
// of the KV head, where the first token is row `first` of the step. Rows after the last token are
// zeros. `to(row, vector)` is the address of eight elements. Each of kGroupThreads threads starts
// several loads before it uses the first. `factor`, a power of two, is multiplied in.
template <class A, int kRows, int kGroupThreads, class To>
__device__ inline void round_queries(const Params& params, int first, int tokens, int kv_head,
                                     int begin, const To& to, float factor = 1.0f) {
  using H = Heads<A>;
  constexpr int kItems = kRows * H::kVectors;
  constexpr int kEach = (kItems + kGroupThreads - 1) / kGroupThreads;
  constexpr int kAtOnce = kEach < 8 ? kEach : 8;
  constexpr bool kWhole = kItems % kGroupThreads == 0;
  static_assert(kEach % kAtOnce == 0, "whole rounds");
  const auto item = [](int i) { return threadIdx.x % kGroupThreads + i * kGroupThreads; };
#pragma unroll
  for (int start = 0; start < kEach; start += kAtOnce) {
    float4 low[kAtOnce]{}, high[kAtOnce]{};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = begin + item(start + i) / H::kVectors;
      const int vector = item(start + i) % H::kVectors;
      const int token = row / H::kGroup, head = kv_head * H::kGroup + row % H::kGroup;
      if (token >= tokens) continue;
      const size_t at = (static_cast<size_t>(first + token) * H::kHeads + head) * H::kQuery;
      const auto* from = reinterpret_cast<const float4*>(params.q + at) + 2 * vector;
      low[i] = from[0], high[i] = from[1];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (!kWhole && item(start + i) >= kItems) break;
      bf16* at = to(item(start + i) / H::kVectors, item(start + i) % H::kVectors);
      const float4 a = tile::times(low[i], factor), b = tile::times(high[i], factor);
      *reinterpret_cast<Bf16x8*>(at) = Bf16x8::rounded(a, b);
    }
  }
}

// Gates of a head's result from dimension `dim` on, in shapes with gates.
template <class A>
__device__ inline const float* gates_of(const Params& params, size_t head, int dim) {
  return params.q + (2 * head + 1) * A::kHeadDim + dim;
}

// Element of a head's result, times the sigmoid of its gate in shapes with gates.
template <class A>
__device__ inline float gated(float mixed, float gate) {
  return A::kGated ? mixed * tile::sigmoid(gate) : mixed;
}

// Softmax statistics: largest score, and sum of weights relative to it.
struct Stats {
  float largest;
  float sum;
};

// Score that weights are relative to: the largest, or 0 where the largest is -infinity.
__device__ inline float base_of(float largest) { return largest == -INFINITY ? 0.0f : largest; }

// Factor of the product q . k that makes a score whose power of two is `exp(kScale q . k)`.
template <class A>
inline constexpr float kScoreScale = 1.44269504088896340736f * A::kScale;

// Sum of a head's weights relative to `largest`, its attention sink included.
template <class A>
__device__ inline float with_sink(const Params& params, const Stats& stats, int head) {
  if constexpr (!A::kSinks) return stats.sum;
  constexpr float kLog2E = 1.44269504088896340736f;
  return stats.sum + exp2f(__fmaf_rn(__ldg(params.sinks + head), kLog2E, -stats.largest));
}

// Factors that scale a total and a split to the larger of their maxima.
struct Merge {
  float of_total;
  float of_split;

  // Merges `split` into `total`, by explicit operations, so that every caller rounds alike.
  __device__ static Merge of(Stats& total, const Stats& split) {
    const float largest = fmaxf(total.largest, split.largest);
    const float base = base_of(largest);
    const Merge merge{exp2f(total.largest - base), exp2f(split.largest - base)};
    total = {largest, merge.apply(total.sum, split.sum)};
    return merge;
  }

  __device__ float apply(float total, float split) const {
    return __fmaf_rn(total, of_total, __fmul_rn(split, of_split));
  }
};

// Scores of a row in a block of positions, later its weights: eight lanes, eight positions each.
struct BlockScores {
  static constexpr int kLanes = kBlock / 8;

  float s[8];

  __device__ void load(const float* row) {
    const auto* scores = reinterpret_cast<const float4*>(row + threadIdx.x % kLanes * 8);
    const float4 a = scores[0], b = scores[1];
    s[0] = a.x, s[1] = a.y, s[2] = a.z, s[3] = a.w;
    s[4] = b.x, s[5] = b.y, s[6] = b.z, s[7] = b.w;
  }

  __device__ float largest() const {
    float largest = s[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) largest = fmaxf(largest, s[i]);
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(tile::kAllLanes, largest, lanes));
    }
    return largest;
  }

  // Turns scores into weights relative to `base`; returns the sum of the weights.
  __device__ float raise(float base) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      s[i] = exp2f(s[i] - base);
      sum += s[i];
    }
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
      sum += __shfl_xor_sync(tile::kAllLanes, sum, lanes);
    }
    return sum;
  }

  __device__ void store(bf16* row) const {
    *reinterpret_cast<Bf16x8*>(row + threadIdx.x % kLanes * 8) =
        Bf16x8::rounded({s[0], s[1], s[2], s[3]}, {s[4], s[5], s[6], s[7]});
  }
};

// Query heads of one KV head for a tile's tokens: kTiles times an instruction's M of rows.
template <class A, int kTiles>
struct Queries : Heads<A> {
  using H = Heads<A>;
  using H::kDimTiles;
  using H::kGroup;
  using H::kHeadDim;
  using H::kHeads;
  using H::kPadded;
  using H::kWarpDims;
  static constexpr int kRows = 16 * kTiles;
  // Tokens of a tile; rows after the last token's heads are unused.
  static constexpr int kTokens = kRows / kGroup;

  const Params& params;
  const int kv_head;
  const int first;      // row of the step
  const int tokens;     // of the tile
  const int last;       // largest position of the tile
  int seen[kTiles][2];  // last position that this thread's rows of a score see
  float part[kTiles][kDimTiles][4];

  __device__ Queries(const Params& params, int first, int tokens, int kv_head)
      : params(params),
        kv_head(kv_head),
        first(first),
        tokens(tokens),
        last(params.positions[first + tokens - 1]) {
    const int g = threadIdx.x % tile::kWarpLanes / 4;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = (t * 16 + g + half * 8) / kGroup;
        seen[t][half] = token < tokens ? static_cast<int>(params.positions[first + token]) : -1;
      }
    }
  }

  // Rounds the queries times `factor`, a power of two, to operands.
  __device__ void load(bf16 (&query)[kRows][kPadded], float factor = 1.0f) const {
    const auto to = [&](int row, int vector) { return &query[row][vector * Bf16x8::kElements]; };
    round_queries<A, kRows, kThreads>(params, first, tokens, kv_head, 0, to, factor);
  }

  // Loads the operands of 8 keys from `position` on, 32 dimensions from `dim` on; `at(position,
  // dim)` is the address of eight bf16.
  template <class At>
  __device__ static void load_keys(unsigned (&to)[4], int position, int dim, const At& at) {
    const int lane = threadIdx.x % tile::kWarpLanes;
    ptx::ldmatrix(to, at(position + lane % 8, dim + lane / 8 * 8));
  }

  // Loads operands of 16 values from `position` on, 16 dimensions from `dim` on; `at` as for keys.
  template <class At>
  __device__ static void load_values(unsigned (&to)[4], int position, int dim, const At& at) {
    const int lane = threadIdx.x % tile::kWarpLanes;
    ptx::ldmatrix_transposed(to, at(position + lane % 16, dim + lane / 16 * 8));
  }

  // Address of the keys in the block of positions from `start` on; values follow kHeadBytes later.
  __device__ const unsigned char* keys(int start) const {
    const unsigned page = params.pages[params.tables[first] + start / PAGE];
    return params.cache + tile::head_at<A>(page, params.page_stride, kv_head, 0);
  }

  __device__ void clear() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
        for (int e = 0; e < 4; ++e) part[t][d][e] = 0.0f;
      }
    }
  }

  // Scores of this warp's 8 positions in each of the first `live` of kCount blocks, times log2(e) /
  // sqrt(kHeadDim); the first block's positions begin at `start`. `key(to, block, position, dim)`
  // loads operands as `load_keys` does; `put(block, row, column, score)` takes a score.
  template <int kCount, class Key, class Put>
  __device__ void score(const bf16 (&query)[kRows][kPadded], int start, int live, const Key& key,
                        const Put& put) const {
    const int lane = threadIdx.x % tile::kWarpLanes, g = lane / 4, q = lane % 4;
    const int position = threadIdx.x / tile::kWarpLanes * 8;
    float sums[kCount][kTiles][4] = {};
#pragma unroll 2
    for (int dim = 0; dim < kHeadDim; dim += 32) {
      unsigned keys[kCount][4];
#pragma unroll
      for (int block = 0; block < kCount; ++block) {
        if (block >= live) break;
        key(keys[block], block, position, dim);
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          unsigned queries[4];
          ptx::ldmatrix(queries, &query[t * 16 + lane % 16][dim + half * 16 + lane / 16 * 8]);
#pragma unroll
          for (int block = 0; block < kCount; ++block) {
            if (block >= live) break;
            const unsigned* key_pair = keys[block] + 2 * half;
            ptx::mma_bf16(sums[block][t], queries, key_pair[0], key_pair[1]);
          }
        }
      }
    }
#pragma unroll
    for (int block = 0; block < kCount; ++block) {
      if (block >= live) break;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = t * 16 + g + e / 2 * 8, column = position + 2 * q + e % 2;
          const bool is_seen = H::sees(seen[t][e / 2], start + block * kBlock + column);
          put(block, row, column, is_seen ? sums[block][t][e] * kScoreScale<A> : -INFINITY);
        }
      }
    }
  }

  // Replaces values that are not finite by zeros, in a block of positions from `start` on, where
  // the tile's first row does not see them: they may belong to rejected drafts, and zero times
  // infinity is NaN. Returns the first position with such a value, the block's end if there is
  // none. To be called by all threads of the block, each after its wait for the values.
  template <class Value>
  __device__ int clear_infinite(int start, const Value& value) const {
    const int begin = max(start, static_cast<int>(params.positions[first]) + 1);
    const int count = min(start + kBlock, last + 1) - begin;
    if (count <= 0) return last + 1;
    constexpr int kVectors = H::kValueVectors;
    int infinite = count * kVectors;  // this thread's first vector that is not finite
    for (int item = threadIdx.x; item < count * kVectors; item += kThreads) {
      const int dim = item % kVectors * Bf16x8::kElements;
      bf16* at = value(begin - start + item / kVectors, dim);
      if (reinterpret_cast<Bf16x8*>(at)->is_finite()) continue;
      *reinterpret_cast<Bf16x8*>(at) = Bf16x8::zero();
      infinite = min(infinite, item);
    }
    if (!__syncthreads_or(infinite < count * kVectors)) return last + 1;
    int position = 0;  // a barrier for each position: values are seldom not finite
    while (!__syncthreads_or(infinite / kVectors == position)) ++position;
    return begin + position;
  }

  // Turns rows that see position `infinite`, whose value is not finite, into NaN.
  __device__ void spoil(int infinite) {
    if (infinite > last) return;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (seen[t][e / 2] >= infinite) part[t][d][e] = NAN;
        }
      }
    }
  }

  // Adds a block's values to this warp's dimensions. `weight(row, position)` is the address of
  // eight weights; `value(to, position, dim)` loads operands as `load_values` does.
  template <class Weight, class Value>
  __device__ void mix(const float (&rescale)[kRows], const Weight& weight, const Value& value) {
    if (!H::mixes()) return;
    const int lane = threadIdx.x % tile::kWarpLanes, g = lane / 4;
    const int dim = threadIdx.x / tile::kWarpLanes * kWarpDims;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const float low = rescale[t * 16 + g], high = rescale[t * 16 + g + 8];
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
        part[t][d][0] *= low, part[t][d][1] *= low;
        part[t][d][2] *= high, part[t][d][3] *= high;
      }
    }
#pragma unroll
    for (int position = 0; position < kBlock; position += 16) {
      unsigned weights[kTiles][4];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        ptx::ldmatrix(weights[t], weight(t * 16 + lane % 16, position + lane / 16 * 8));
      }
#pragma unroll
      for (int d = 0; d < kDimTiles; d += 2) {
        unsigned values[4];
        value(values, position, dim + d * 8);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          ptx::mma_bf16(part[t][d], weights[t], values[0], values[1]);
          ptx::mma_bf16(part[t][d + 1], weights[t], values[2], values[3]);
        }
      }
    }
  }

  // Calls `body(t, d, half, row, dim)` for each of this thread's pairs of elements that has a
  // token: elements `2 * half` and `2 * half + 1` of `part[t][d]`.
  template <class Body>
  __device__ void for_each(Body body) const {
    if (!H::mixes()) return;
    const int lane = threadIdx.x % tile::kWarpLanes, g = lane / 4, q = lane % 4;
    const int dim = threadIdx.x / tile::kWarpLanes * kWarpDims;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = t * 16 + g + half * 8;
        if (row / kGroup >= tokens) continue;
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d) body(t, d, half, row, dim + d * 8 + 2 * q);
      }
    }
  }

  // Index of a tile row's query head among all; `first` is the index of the tile's first token.
  __device__ size_t head_of(int row, size_t first) const {
    return (first + row / kGroup) * kHeads + kv_head * kGroup + row % kGroup;
  }
};

// Merged result of a tile's splits so far, for this thread's rows and dimensions.
template <class A, int kTiles>
struct Totals {
  static constexpr int kDimTiles = Heads<A>::kDimTiles;

  Stats stats[kTiles][2];
  float sums[kTiles][kDimTiles][4] = {};

  __device__ Totals() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) stats[t][0] = stats[t][1] = {-INFINITY, 0.0f};
  }

  // Merges the split that the stage has just run.
  template <class Stage>
  __device__ void take(const Stage& stage) {
    const int g = threadIdx.x % tile::kWarpLanes / 4;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Merge merge = Merge::of(stats[t][half], stage.stats(t * 16 + g + half * 8));
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            sums[t][d][e] = merge.apply(sums[t][d][e], stage.part[t][d][e]);
          }
        }
      }
    }
  }

  template <class Stage>
  __device__ void write(const Stage& stage) const {
    float2 gates[kTiles][kDimTiles][2];  // loaded before the first result is written
    if constexpr (A::kGated) {
      stage.for_each([&](int t, int d, int half, int row, int dim) {
        const float* from = gates_of<A>(stage.params, stage.head_of(row, stage.first), dim);
        gates[t][d][half] = *reinterpret_cast<const float2*>(from);
      });
    }
    stage.for_each([&](int t, int d, int half, int row, int dim) {
      const size_t head = stage.head_of(row, stage.first);
      const float2 gate = A::kGated ? gates[t][d][half] : float2{};
      const int in_row = static_cast<int>(head % A::kHeads);
      const float total = with_sink<A>(stage.params, stats[t][half], in_row);
      const float* mix = sums[t][d] + 2 * half;
      put_mixed(stage.params.out, stage.params.rounds(), head * A::kValueDim + dim,
                gated<A>(mix[0] / total, gate.x), gated<A>(mix[1] / total, gate.y));
    });
  }
};

}  // namespace atlas::attend
