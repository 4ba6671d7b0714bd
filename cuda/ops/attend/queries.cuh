// What the kernels of Ops::attend share: arguments, how splits are merged, and the query heads of a
// tile by keys and values in shared memory.
#pragma once

#include "base/launch.cuh"
#include "base/types.cuh"
#include "target.cuh"
#include "tile/math.cuh"
#include "tile/pages.cuh"
#include "tile/ptx.cuh"
#include "tile/reduce.cuh"

namespace atlas::attend {

using target::HEAD_DIM;
using target::HEADS;
using target::KV_HEADS;
using target::PAGE;

inline constexpr int kGroup = HEADS / KV_HEADS;  // query heads of a KV head
inline constexpr int kSplit = 256;
inline constexpr int kBlock = 64;
// Splits of the longest sequence.
inline constexpr int kSplits = (target::MAX_CONTEXT + kSplit - 1) / kSplit;
inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / tile::kWarpLanes;
inline constexpr int kWarpDims = HEAD_DIM / kWarps;
inline constexpr int kDimTiles = kWarpDims / 8;
inline constexpr int kVectors = HEAD_DIM / Bf16x8::kElements;
// Rows of shared memory are padded so that eight of them lie in different banks.
inline constexpr int kPadded = HEAD_DIM + 8;

static_assert(kBlock == 8 * kWarps, "a warp scores 8 positions of a block");
static_assert(PAGE == kBlock && kSplit % kBlock == 0, "a block is a page");
static_assert(kDimTiles % 2 == 0, "values are read two tiles at a time");
static_assert(target::FORMAT_KV == target::KvFormat::bf16, "pages are bf16");

struct Params {
  const float* q;             // (rows, HEADS, 2, HEAD_DIM): query, gate
  const bf16* cache;          // (pages, KV_HEADS, 2, PAGE * HEAD_DIM): keys, values
  const unsigned* positions;  // (rows)
  const unsigned* tables;     // (rows): first page of the row's sequence in `pages`
  const unsigned* pages;
  // (tiles): first row, rows, place of the first row among `places`, first position of the row's
  // sequence that this step writes
  const uint4* tiles;
  float* partial;      // (places, HEADS, kSplits, HEAD_DIM), then (places, HEADS, kSplits, 2)
  unsigned* arrived;   // (tiles, KV_HEADS): zeros between launches
  float* out;          // (rows, HEADS, HEAD_DIM)
  int places;          // rows of all tiles
};

// Rounds kRows query rows to operands: all heads of a KV head by tokens, from row `first` of the
// step on. Rows behind the last token are zeros. `to(row, vector)` is where eight elements of one
// lie. One of kGroupThreads threads asks for some of its vectors before the first is there.
template <int kRows, int kGroupThreads, class To>
__device__ inline void round_queries(const Params& params, int first, int tokens, int kv_head,
                                     const To& to) {
  constexpr int kEach = kRows * kVectors / kGroupThreads, kAtOnce = kEach < 8 ? kEach : 8;
  static_assert(kRows * kVectors % kGroupThreads == 0 && kEach % kAtOnce == 0, "whole rounds");
  const auto item = [](int i) { return threadIdx.x % kGroupThreads + i * kGroupThreads; };
#pragma unroll
  for (int begin = 0; begin < kEach; begin += kAtOnce) {
    float4 low[kAtOnce]{}, high[kAtOnce]{};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = item(begin + i) / kVectors, vector = item(begin + i) % kVectors;
      const int token = row / kGroup, head = kv_head * kGroup + row % kGroup;
      if (token >= tokens) continue;
      const size_t at = (static_cast<size_t>(first + token) * HEADS + head) * 2 * HEAD_DIM;
      const auto* from = reinterpret_cast<const float4*>(params.q + at) + 2 * vector;
      low[i] = from[0], high[i] = from[1];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      bf16* at = to(item(begin + i) / kVectors, item(begin + i) % kVectors);
      *reinterpret_cast<Bf16x8*>(at) = Bf16x8::rounded(low[i], high[i]);
    }
  }
}

// What a head's mix is gated by, from dimension `dim` on: sigmoids of these.
__device__ inline const float* gates_of(const Params& params, size_t head, int dim) {
  return params.q + (2 * head + 1) * HEAD_DIM + dim;
}

// Largest score, sum of weights relative to it.
struct Stats {
  float largest;
  float sum;
};

// What scores are relative to; if nothing is seen, their largest one is no number.
__device__ inline float base_of(float largest) { return largest == -INFINITY ? 0.0f : largest; }

// Factors that bring a total and a split to the larger of their maxima.
struct Merge {
  float of_total;
  float of_split;

  // Takes `split` into `total`. The multiplications are spelled out: every caller rounds alike.
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

// A row's scores of a block, then its weights, in eight lanes: eight positions each.
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

  // Scores become weights relative to `base`; their sum.
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

// Query heads of a KV head of a tile's tokens: kTiles times an instruction's M.
template <int kTiles>
struct Queries {
  static constexpr int kRows = 16 * kTiles;
  static constexpr int kTokens = kRows / kGroup;
  static_assert(kRows % kGroup == 0, "a tile has all query heads of its tokens");

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

  // Rounds the queries to operands.
  __device__ void load(bf16 (&query)[kRows][kPadded]) const {
    const auto to = [&](int row, int vector) { return &query[row][vector * Bf16x8::kElements]; };
    round_queries<kRows, kThreads>(params, first, tokens, kv_head, to);
  }

  // The keys of the block of positions from `start` on; the values are a page behind.
  __device__ const bf16* keys(int start) const {
    const unsigned page = params.pages[params.tables[first] + start / PAGE];
    const size_t block = (static_cast<size_t>(page) * KV_HEADS + kv_head) * 2;
    return params.cache + block * PAGE * HEAD_DIM;
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

  // Scores of this warp's 8 positions of each of the first `live` of kCount blocks, times log2(e) /
  // sqrt(HEAD_DIM), the first block's positions being those from `start` on. `key(block, position,
  // dim)` is where eight elements of a key lie; `put(block, row, column, score)`.
  template <int kCount, class Key, class Put>
  __device__ void score(const bf16 (&query)[kRows][kPadded], int start, int live, const Key& key,
                        const Put& put) const {
    const int lane = threadIdx.x % tile::kWarpLanes, g = lane / 4, q = lane % 4;
    const int position = threadIdx.x / tile::kWarpLanes * 8;
    float sums[kCount][kTiles][4] = {};
#pragma unroll 2
    for (int dim = 0; dim < HEAD_DIM; dim += 32) {
      unsigned keys[kCount][4];
#pragma unroll
      for (int block = 0; block < kCount; ++block) {
        if (block >= live) break;
        ptx::ldmatrix(keys[block], key(block, position + lane % 8, dim + lane / 8 * 8));
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
    const float scale = 1.44269504088896340736f * rsqrtf(static_cast<float>(HEAD_DIM));
#pragma unroll
    for (int block = 0; block < kCount; ++block) {
      if (block >= live) break;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = t * 16 + g + e / 2 * 8, column = position + 2 * q + e % 2;
          const bool is_seen = start + block * kBlock + column <= seen[t][e / 2];
          put(block, row, column, is_seen ? sums[block][t][e] * scale : -INFINITY);
        }
      }
    }
  }

  // Adds a block's values to this warp's dimensions. `weight(row, position)` and `value(position,
  // dim)` are where eight of them lie.
  template <class Weight, class Value>
  __device__ void mix(const float (&rescale)[kRows], const Weight& weight, const Value& value) {
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
        ptx::ldmatrix_transposed(values, value(position + lane % 16, dim + d * 8 + lane / 16 * 8));
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          ptx::mma_bf16(part[t][d], weights[t], values[0], values[1]);
          ptx::mma_bf16(part[t][d + 1], weights[t], values[2], values[3]);
        }
      }
    }
  }

  // `body(t, d, half, row, dim)` on each of this thread's pairs of elements with a token: those of
  // `part[t][d]` from `2 * half` on.
  template <class Body>
  __device__ void for_each(Body body) const {
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

  // Row and head of a row of the tile, as one index; `first` is the row or the place of its first.
  __device__ size_t head_of(int row, size_t first) const {
    return (first + row / kGroup) * HEADS + kv_head * kGroup + row % kGroup;
  }
};

// The splits of a tile so far, merged in order: this thread's rows and dimensions of a result.
template <int kTiles>
struct Totals {
  Stats stats[kTiles][2];
  float sums[kTiles][kDimTiles][4] = {};

  __device__ Totals() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) stats[t][0] = stats[t][1] = {-INFINITY, 0.0f};
  }

  // The split that the stage has just run.
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
    float2 gates[kTiles][kDimTiles][2];  // asked for before the first result is written
    stage.for_each([&](int t, int d, int half, int row, int dim) {
      const float* from = gates_of(stage.params, stage.head_of(row, stage.first), dim);
      gates[t][d][half] = *reinterpret_cast<const float2*>(from);
    });
    stage.for_each([&](int t, int d, int half, int row, int dim) {
      const size_t head = stage.head_of(row, stage.first);
      const float2 gate = gates[t][d][half];
      const float total = stats[t][half].sum;
      const float* mix = sums[t][d] + 2 * half;
      *reinterpret_cast<float2*>(stage.params.out + head * HEAD_DIM + dim) = {
          mix[0] / total * tile::sigmoid(gate.x), mix[1] / total * tile::sigmoid(gate.y)};
    });
  }
};

}  // namespace atlas::attend
