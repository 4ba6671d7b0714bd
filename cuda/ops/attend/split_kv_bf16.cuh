// Implements: Ops::attend
// Match:      bf16 pages, heads of 256 elements, query heads of a KV head packed into the M of an
//             instruction; operands bf16, scores and sums F32
// Bound by:   few rows: HBM (keys and values, once); many rows: tensor instructions
// Sync:       four barriers per 64 positions, copies of some such blocks ahead if tiles are few;
//             chained launch
//
// Positions are cut into splits of kSplit. A split's softmax runs over blocks of 64 positions with
// a running maximum; splits are merged in order by one formula. Few rows: blocks share the splits,
// and a second kernel merges them; many rows: one block takes the splits in turn. If tiles are few,
// what earlier steps wrote is asked for before the wait. Positions behind a row's own change none
// of its bits: their weights are zero and its maximum stays.
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
// Blocks that one step is cut into at least, if it has that many splits.
inline constexpr int kBlocksWanted = 2 * target::SMS;
inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / tile::kWarpLanes;
inline constexpr int kWarpDims = HEAD_DIM / kWarps;
inline constexpr int kDimTiles = kWarpDims / 8;
inline constexpr int kVectors = HEAD_DIM / Bf16x8::kElements;
// Rows of shared memory are padded so that eight of them lie in different banks.
inline constexpr int kPadded = HEAD_DIM + 8;
inline constexpr int kScorePitch = kBlock + 4;
inline constexpr int kWeightPitch = kBlock + 8;

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
  float* out;          // (rows, HEADS, HEAD_DIM)
  int places;          // rows of all tiles
};

// Factor of an element of a head's mix.
__device__ inline float gate_of(const Params& params, size_t head, int dim) {
  return tile::sigmoid(params.q[(2 * head + 1) * HEAD_DIM + dim]);
}

__device__ inline float gated(const Params& params, size_t head, int dim, float mix) {
  return mix * gate_of(params, head, dim);
}

// `kStages` blocks of positions are under way or not yet used.
template <int kTiles, int kStages = 1>
struct SharedStorage {
  static constexpr int kRows = 16 * kTiles;
  bf16 query[kRows][kPadded];
  bf16 key[kStages][kBlock][kPadded];
  bf16 value[kStages][kBlock][kPadded];
  float score[kRows][kScorePitch];
  bf16 weight[kRows][kWeightPitch];
  float largest[kRows];
  float sum[kRows];
  float rescale[kRows];
};

// Most tiles of few rows whose blocks of positions are asked for before they are needed, and such
// blocks, where an SM has room for them.
inline constexpr unsigned kAskedTilesMax = 2;
inline constexpr int kAskedStages =
    sizeof(SharedStorage<1, 3>) <= target::SHARED_BYTES_PER_BLOCK ? 3 : 1;

// Largest score, sum of weights relative to it.
struct Stats {
  float largest;
  float sum;
};

// Factors that bring a total and a split to the larger of their maxima.
struct Merge {
  float of_total;
  float of_split;

  // Takes `split` into `total`. The multiplications are spelled out: every caller rounds alike.
  __device__ static Merge of(Stats& total, const Stats& split) {
    const float largest = fmaxf(total.largest, split.largest);
    const float base = largest == -INFINITY ? 0.0f : largest;
    const Merge merge{exp2f(total.largest - base), exp2f(split.largest - base)};
    total = {largest, merge.apply(total.sum, split.sum)};
    return merge;
  }

  __device__ float apply(float total, float split) const {
    return __fmaf_rn(total, of_total, __fmul_rn(split, of_split));
  }
};

template <int kTiles, int kStages = 1>
struct Stage {
  using Shared = SharedStorage<kTiles, kStages>;
  static constexpr int kRows = Shared::kRows;
  static constexpr int kTokens = kRows / kGroup;
  static_assert(kRows % kGroup == 0, "a tile has all query heads of its tokens");

  const Params& params;
  Shared& shared;
  const int kv_head;
  const int first;   // row of the step
  const int tokens;  // of the tile
  const int last;    // largest position of the tile
  float part[kTiles][kDimTiles][4];

  __device__ Stage(const Params& params, Shared& shared, int first, int tokens, int kv_head)
      : params(params),
        shared(shared),
        kv_head(kv_head),
        first(first),
        tokens(tokens),
        last(params.positions[first + tokens - 1]) {}

  __device__ void load_queries() {
    for (int item = threadIdx.x; item < kRows * kVectors; item += kThreads) {
      const int row = item / kVectors, vector = item % kVectors;
      const int token = row / kGroup, head = kv_head * kGroup + row % kGroup;
      Bf16x8 to = Bf16x8::zero();
      if (token < tokens) {
        const size_t at = (static_cast<size_t>(first + token) * HEADS + head) * 2 * HEAD_DIM;
        const auto* from = reinterpret_cast<const float4*>(params.q + at) + 2 * vector;
        const float4 a = from[0], b = from[1];
        to = {{to_bf16x2(a.x, a.y), to_bf16x2(a.z, a.w),
               to_bf16x2(b.x, b.y), to_bf16x2(b.z, b.w)}};
      }
      *reinterpret_cast<Bf16x8*>(&shared.query[row][vector * Bf16x8::kElements]) = to;
    }
  }

  // Asks for positions `begin` to `end` of a block. Those from `live` on are zeros: a weight of
  // zero times memory that nobody wrote is not always zero.
  __device__ static void bring(bf16 (&to)[kBlock][kPadded], const bf16* from, int begin, int end,
                               int live) {
#pragma unroll
    for (int item = threadIdx.x; item < kBlock * kVectors; item += kThreads) {
      const int position = item / kVectors, vector = item % kVectors;
      if (position < begin || position >= end) continue;
      const bool is_live = position < live;
      const int dim = vector * Bf16x8::kElements;
      ptx::copy_async(&to[position][dim], from + tile::page_at(position, dim), is_live);
    }
  }

  // The keys of the block of positions from `start` on; the values are a page behind.
  __device__ const bf16* keys(int start) const {
    const unsigned page = params.pages[params.tables[first] + start / PAGE];
    const size_t block = (static_cast<size_t>(page) * KV_HEADS + kv_head) * 2;
    return params.cache + block * PAGE * HEAD_DIM;
  }

  __device__ void bring_both(int stage, int start, int begin, int end) {
    const bf16* from = keys(start);
    const int live = min(kBlock, last + 1 - start);
    bring(shared.key[stage], from, begin, end, live);
    bring(shared.value[stage], from + static_cast<size_t>(PAGE) * HEAD_DIM, begin, end, live);
  }

  // Asks for the first blocks of a split: for the positions before `written`, a group a block, and
  // for the others, as one group.
  __device__ void bring_before(int split, int written) {
#pragma unroll 1
    for (int stage = 0; stage < kStages; ++stage) {
      const int start = split * kSplit + stage * kBlock;
      if (start <= last) bring_both(stage, start, 0, written - start);
      ptx::copy_async_commit();
    }
  }

  __device__ void bring_written(int split, int written) {
#pragma unroll 1
    for (int stage = 0; stage < kStages; ++stage) {
      const int start = split * kSplit + stage * kBlock;
      if (start <= last) bring_both(stage, start, written - start, kBlock);
    }
    ptx::copy_async_commit();
  }

  __device__ void start_split() {
    for (int row = threadIdx.x; row < kRows; row += kThreads) {
      shared.largest[row] = -INFINITY;
      shared.sum[row] = 0.0f;
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
        for (int e = 0; e < 4; ++e) part[t][d][e] = 0.0f;
      }
    }
  }

  // Scores of this warp's 8 positions, times log2(e) / sqrt(HEAD_DIM).
  __device__ void score(const bf16 (&key)[kBlock][kPadded], int start) {
    const int lane = threadIdx.x % tile::kWarpLanes, g = lane / 4, q = lane % 4;
    const int position = threadIdx.x / tile::kWarpLanes * 8;
    float sums[kTiles][4] = {};
    for (int dim = 0; dim < HEAD_DIM; dim += 32) {
      unsigned keys[4];
      ptx::ldmatrix(keys, &key[position + lane % 8][dim + lane / 8 * 8]);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          unsigned queries[4];
          ptx::ldmatrix(queries,
                        &shared.query[t * 16 + lane % 16][dim + half * 16 + lane / 16 * 8]);
          ptx::mma(sums[t], queries, keys[2 * half], keys[2 * half + 1]);
        }
      }
    }
    const float scale = 1.44269504088896340736f * rsqrtf(static_cast<float>(HEAD_DIM));
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = t * 16 + g + e / 2 * 8, column = position + 2 * q + e % 2;
        const int token = row / kGroup;
        const bool seen =
            token < tokens && start + column <= static_cast<int>(params.positions[first + token]);
        shared.score[row][column] = seen ? sums[t][e] * scale : -INFINITY;
      }
    }
  }

  // Eight lanes have a row, eight positions each.
  __device__ void weigh() {
    const int row = threadIdx.x / 8, lane = threadIdx.x % 8;
    if (row >= kRows) return;  // whole warps
    const auto* scores = reinterpret_cast<const float4*>(&shared.score[row][lane * 8]);
    const float4 a = scores[0], b = scores[1];
    float s[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    float largest = s[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) largest = fmaxf(largest, s[i]);
#pragma unroll
    for (int lanes = 4; lanes > 0; lanes /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(tile::kAllLanes, largest, lanes));
    }
    const float before = shared.largest[row];
    largest = fmaxf(largest, before);
    const float base = largest == -INFINITY ? 0.0f : largest;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      s[i] = exp2f(s[i] - base);
      sum += s[i];
    }
#pragma unroll
    for (int lanes = 4; lanes > 0; lanes /= 2) {
      sum += __shfl_xor_sync(tile::kAllLanes, sum, lanes);
    }
    const Bf16x8 weights = {{to_bf16x2(s[0], s[1]), to_bf16x2(s[2], s[3]),
                             to_bf16x2(s[4], s[5]), to_bf16x2(s[6], s[7])}};
    *reinterpret_cast<Bf16x8*>(&shared.weight[row][lane * 8]) = weights;
    __syncwarp();  // every lane of the row has read the maximum before
    if (lane != 0) return;
    const float rescale = exp2f(before - base);
    shared.sum[row] = __fmaf_rn(shared.sum[row], rescale, sum);
    shared.largest[row] = largest;
    shared.rescale[row] = rescale;
  }

  // Adds the block's values to this warp's dimensions.
  __device__ void mix(const bf16 (&value)[kBlock][kPadded]) {
    const int lane = threadIdx.x % tile::kWarpLanes, g = lane / 4;
    const int dim = threadIdx.x / tile::kWarpLanes * kWarpDims;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const float low = shared.rescale[t * 16 + g], high = shared.rescale[t * 16 + g + 8];
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
        ptx::ldmatrix(weights[t],
                      &shared.weight[t * 16 + lane % 16][position + lane / 16 * 8]);
      }
#pragma unroll
      for (int d = 0; d < kDimTiles; d += 2) {
        unsigned values[4];
        ptx::ldmatrix_transposed(
            values, &value[position + lane % 16][dim + d * 8 + lane / 16 * 8]);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          ptx::mma(part[t][d], weights[t], values[0], values[1]);
          ptx::mma(part[t][d + 1], weights[t], values[2], values[3]);
        }
      }
    }
  }

  // One split; `part` and the shared statistics are its result.
  __device__ void run(int split) {
    start_split();
    const int end = min(last + 1, (split + 1) * kSplit);
    for (int start = split * kSplit; start < end; start += kBlock) {
      const bf16* from = keys(start);
      const int live = min(kBlock, last + 1 - start);
      bring(shared.key[0], from, 0, kBlock, live);
      ptx::copy_async_commit();
      bring(shared.value[0], from + static_cast<size_t>(PAGE) * HEAD_DIM, 0, kBlock, live);
      ptx::copy_async_commit();
      ptx::copy_async_wait<1>();
      __syncthreads();  // keys, and at first queries and statistics, are written
      score(shared.key[0], start);
      __syncthreads();  // scores are written
      weigh();
      ptx::copy_async_wait<0>();
      __syncthreads();  // weights and values are written
      mix(shared.value[0]);
      __syncthreads();  // all of the block is read
    }
  }

  // As `run`, of a split whose first blocks are asked for; those from `written` on last.
  __device__ void run_asked(int split, int written) {
    start_split();
    const int begin = split * kSplit, end = min(last + 1, begin + kSplit);
#pragma unroll 1
    for (int start = begin, i = 0; start < end; start += kBlock, ++i) {
      // Groups: the first blocks, what is written in this step, and one after each block.
      if (i < kStages && start + kBlock <= written) {
        ptx::copy_async_wait<kStages>();
      } else {
        ptx::copy_async_wait<0>();
      }
      const int stage = i % kStages;
      __syncthreads();  // the block, and at first queries and statistics, are written
      score(shared.key[stage], start);
      __syncthreads();  // scores are written
      weigh();
      __syncthreads();  // weights are written
      mix(shared.value[stage]);
      __syncthreads();  // all of the block is read
      const int next = start + kStages * kBlock;
      if (next < end) bring_both(stage, next, 0, kBlock);
      ptx::copy_async_commit();
    }
  }

  __device__ Stats stats(int row) const { return {shared.largest[row], shared.sum[row]}; }

  // `body(t, d, e, row, dim)` on each of this thread's elements with a token.
  template <class Body>
  __device__ void for_each(Body body) const {
    const int lane = threadIdx.x % tile::kWarpLanes, g = lane / 4, q = lane % 4;
    const int dim = threadIdx.x / tile::kWarpLanes * kWarpDims;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = t * 16 + g + e / 2 * 8;
          if (row / kGroup < tokens) body(t, d, e, row, dim + d * 8 + 2 * q + e % 2);
        }
      }
    }
  }

  // Row and head of a row of the tile, as one index; `first` is the row or the place of its first.
  __device__ size_t head_of(int row, size_t first) const {
    return (first + row / kGroup) * HEADS + kv_head * kGroup + row % kGroup;
  }
};

extern __shared__ __align__(16) unsigned char dynamic_shared[];

// Blocks per tile and KV head that take splits in turns, for few rows.
template <int kTiles, int kStages>
__global__ __launch_bounds__(kThreads, kStages > 1 ? 1 : 2) void splits(Params params) {
  auto& shared = *reinterpret_cast<SharedStorage<kTiles, kStages>*>(dynamic_shared);
  ptx::griddepcontrol_launch_dependents();
  const uint4 tile = params.tiles[blockIdx.x];
  const int written = static_cast<int>(tile.w);
  Stage<kTiles, kStages> stage(params, shared, tile.x, tile.y, blockIdx.y);
  // A block without a split need not wait: that of the first one does.
  if (static_cast<int>(blockIdx.z) * kSplit > stage.last) return;
  constexpr bool kAsks = kStages > 1;
  if constexpr (kAsks) stage.bring_before(blockIdx.z, written);
  ptx::griddepcontrol_wait();  // what earlier steps have written is under way
  const size_t values = static_cast<size_t>(params.places) * HEADS * kSplits * HEAD_DIM;
  auto* stats = reinterpret_cast<Stats*>(params.partial + values);
  stage.load_queries();
  for (int split = blockIdx.z; split * kSplit <= stage.last; split += gridDim.z) {
    if constexpr (kAsks) {
      if (split != static_cast<int>(blockIdx.z)) stage.bring_before(split, written);
      stage.bring_written(split, written);
      stage.run_asked(split, written);
    } else {
      stage.run(split);
    }
    stage.for_each([&](int t, int d, int e, int row, int dim) {
      params.partial[(stage.head_of(row, tile.z) * kSplits + split) * HEAD_DIM + dim] =
          stage.part[t][d][e];
    });
    for (int row = threadIdx.x; row < stage.tokens * kGroup; row += kThreads) {
      stats[stage.head_of(row, tile.z) * kSplits + split] = stage.stats(row);
    }
    __syncthreads();  // statistics are read before the next split resets them
  }
}

// Merges the splits of a tile's rows of one head, a thread per dimension.
template <class Tile>
__global__ __launch_bounds__(HEAD_DIM) void merge_splits(Params params) {
  ptx::griddepcontrol_launch_dependents();
  const uint4 tile = params.tiles[blockIdx.x];
  int count = params.positions[tile.x] / kSplit + 1;
  ptx::griddepcontrol_wait();
  const size_t values = static_cast<size_t>(params.places) * HEADS * kSplits * HEAD_DIM;
  for (unsigned i = 0; i < tile.y; ++i) {
    const size_t head = static_cast<size_t>(tile.x + i) * HEADS + blockIdx.y;
    const size_t place = static_cast<size_t>(tile.z + i) * HEADS + blockIdx.y;
    if (i != 0) count = params.positions[tile.x + i] / kSplit + 1;
    const auto* stats = reinterpret_cast<const Stats*>(params.partial + values) + place * kSplits;
    const float* parts = params.partial + place * kSplits * HEAD_DIM + threadIdx.x;
    const float gate = gate_of(params, head, threadIdx.x);
    Stats total{-INFINITY, 0.0f};
    float sum = 0.0f;
    for (int split = 0; split < count; ++split) {
      const Merge merge = Merge::of(total, stats[split]);
      sum = merge.apply(sum, parts[static_cast<size_t>(split) * HEAD_DIM]);
    }
    params.out[head * HEAD_DIM + threadIdx.x] = sum / total.sum * gate;
  }
}

// A block per KV head and part of a tile, as many rows as it takes at once, all splits in turn.
template <int kTiles>
__global__ __launch_bounds__(kThreads, 1) void whole(Params params, unsigned parts) {
  auto& shared = *reinterpret_cast<SharedStorage<kTiles>*>(dynamic_shared);
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  constexpr int kTokens = Stage<kTiles>::kTokens;
  const uint4 tile = params.tiles[blockIdx.x / parts];
  const int before = blockIdx.x % parts * kTokens, tokens = static_cast<int>(tile.y) - before;
  if (tokens <= 0) return;
  Stage<kTiles> stage(params, shared, tile.x + before, min(tokens, kTokens), blockIdx.y);
  stage.load_queries();
  const int g = threadIdx.x % tile::kWarpLanes / 4;
  float sums[kTiles][kDimTiles][4] = {};
  Stats totals[kTiles][2];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) totals[t][0] = totals[t][1] = {-INFINITY, 0.0f};
  for (int split = 0; split * kSplit <= stage.last; ++split) {
    stage.run(split);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Merge merge = Merge::of(totals[t][half], stage.stats(t * 16 + g + half * 8));
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            sums[t][d][e] = merge.apply(sums[t][d][e], stage.part[t][d][e]);
          }
        }
      }
    }
    __syncthreads();  // statistics are read before the next split resets them
  }
  stage.for_each([&](int t, int d, int e, int row, int dim) {
    const size_t head = stage.head_of(row, stage.first);
    params.out[head * HEAD_DIM + dim] =
        gated(params, head, dim, sums[t][d][e] / totals[t][e / 2].sum);
  });
}

// Query rows of a tile, for few rows and for many: of an instruction's M, this many times.
inline constexpr int kFew = 1;
inline constexpr int kMany = 2;

// The rows of the list `tiles`, whose tiles have up to `tile_tokens` tokens.
template <class Tile>
cudaError_t launch_rows(const Params& params, unsigned count, unsigned tile_tokens,
                        cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  if (tile_tokens != Stage<kFew>::kTokens) {
    constexpr unsigned kTokens = Stage<kMany>::kTokens;
    if (tile_tokens % kTokens != 0) return cudaErrorInvalidValue;
    const unsigned parts = tile_tokens / kTokens;
    const Launch shape{count * parts, kThreads, sizeof(SharedStorage<kMany>), KV_HEADS};
    return launch_chained(whole<kMany>, shape, stream, params, parts);
  }
  // The same blocks whatever the context, so that a recorded step can be replayed.
  const unsigned blocks = blocks_for(kBlocksWanted, count * KV_HEADS);
  const unsigned turns = blocks < kSplits ? blocks : kSplits;
  const auto launch = [&](auto* kernel, unsigned bytes) {
    return launch_chained(kernel, {count, kThreads, bytes, KV_HEADS, turns}, stream, params);
  };
  // Many tiles have more from two blocks an SM.
  const cudaError_t failed =
      count <= kAskedTilesMax
          ? launch(splits<kFew, kAskedStages>, sizeof(SharedStorage<kFew, kAskedStages>))
          : launch(splits<kFew, 1>, sizeof(SharedStorage<kFew>));
  if (failed != cudaSuccess) return failed;
  return launch_chained(merge_splits<Tile>, {count, HEAD_DIM, 0, HEADS}, stream, params);
}

template <class Tile>
struct SplitKvBf16 {
  static_assert(Tile::kThreads == kThreads, "the stages count on these warps");
  static_assert(Tile::kSharedBytes == sizeof(SharedStorage<kMany>),
                "the manifest plans this storage");

  // Tiles of cells are tiles of many rows: one arithmetic for all.
  static cudaError_t launch(const float* q, const atlas_bf16* cache, const unsigned* positions,
                            const unsigned* tables, const unsigned* pages, const unsigned* cells,
                            const unsigned* tiles, float* partial, float* out, unsigned,
                            unsigned cell_count, unsigned cell_tokens, unsigned places,
                            unsigned tile_count, unsigned tile_tokens, cudaStream_t stream) {
    Params params{q,
                  cache,
                  positions,
                  tables,
                  pages,
                  reinterpret_cast<const uint4*>(cells),
                  partial,
                  out,
                  static_cast<int>(places)};
    const cudaError_t failed = launch_rows<Tile>(params, cell_count, cell_tokens, stream);
    if (failed != cudaSuccess) return failed;
    params.tiles = reinterpret_cast<const uint4*>(tiles);
    return launch_rows<Tile>(params, tile_count, tile_tokens, stream);
  }
};

}  // namespace atlas::attend
