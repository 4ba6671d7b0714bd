// Implements: Ops::attend
// Match:      bf16 pages of 64 positions, heads of 256 elements; operands bf16, scores and sums F32
// Bound by:   tensor instructions
// Sync:       one barrier per 64 positions; chained launch
//
// Rows that a prompt has of a cell go in tiles of 128: all query heads of a KV head, by tokens. A
// warpgroup has 64 rows. While the weights of one block of positions multiply its values, those of
// the next are computed. Blocks start at position 0, so that a row's sums are added in one order;
// positions behind a row's own change none of its bits. Other rows go by splits, as in decode.
#pragma once

#include "ops/attend/split_kv_bf16.cuh"
#include "tile/wgmma_sm90.cuh"

namespace atlas::attend {

inline constexpr int kWideThreads = 2 * wgmma::kThreads;
inline constexpr int kWideRows = 2 * wgmma::kRows;
inline constexpr int kWideTokens = kWideRows / kGroup;
inline constexpr int kBlockElements = kBlock * HEAD_DIM;
inline constexpr int kWideStages = 2;

static_assert(HEAD_DIM == 256, "a warpgroup's sums are 256 columns");
static_assert(kBlock == 64, "a warpgroup's scores are 64 columns");
static_assert(kWideRows % kGroup == 0, "a tile has all query heads of its tokens");

struct alignas(1024) WideStorage {
  bf16 query[2][wgmma::kRows * HEAD_DIM];
  bf16 key[kWideStages][kBlockElements];
  bf16 value[kWideStages][kBlockElements];
};

// Scores, then weights, of a thread: 64 rows by 64 positions of its warpgroup.
using Scores = float[kBlock / 8][4];
using Mixed = float[HEAD_DIM / 8][4];

struct Wide {
  const Params& params;
  WideStorage& shared;
  const int kv_head;
  const int first;   // row of the step
  const int tokens;  // of the tile
  const int start;   // position of the first token
  const int group = threadIdx.x / wgmma::kThreads;
  const int lane = threadIdx.x % tile::kWarpLanes;
  // This thread's upper row of the warpgroup's 64; the lower one is eight behind.
  const int row = threadIdx.x % wgmma::kThreads / tile::kWarpLanes * 16 + lane / 4;

  __device__ Wide(const Params& params, WideStorage& shared, uint4 tile, int kv_head)
      : params(params),
        shared(shared),
        kv_head(kv_head),
        first(tile.x),
        tokens(tile.y),
        start(params.positions[tile.x]) {}

  __device__ int token(int half) const {
    return (group * wgmma::kRows + row + half * 8) / kGroup;
  }

  __device__ void load_queries() {
    constexpr int kItems = kWideRows * kVectors;
    for (int item = threadIdx.x; item < kItems; item += kWideThreads) {
      const int row = item / kVectors, vector = item % kVectors;
      const int token = row / kGroup, head = kv_head * kGroup + row % kGroup;
      Bf16x8 to = Bf16x8::zero();
      if (token < tokens) {
        const size_t at = (static_cast<size_t>(first + token) * HEADS + head) * 2 * HEAD_DIM;
        const auto* from = reinterpret_cast<const float4*>(params.q + at) + 2 * vector;
        const float4 a = from[0], b = from[1];
        to = {{__floats2bfloat162_rn(a.x, a.y), __floats2bfloat162_rn(a.z, a.w),
               __floats2bfloat162_rn(b.x, b.y), __floats2bfloat162_rn(b.z, b.w)}};
      }
      bf16* query = shared.query[row / wgmma::kRows];
      const int at = wgmma::vector_at(wgmma::kRows, row % wgmma::kRows, vector * 8);
      *reinterpret_cast<Bf16x8*>(query + at) = to;
    }
  }

  // Starts the copy of a block of keys (`part` 0) or values (1); positions behind the tile's last
  // one are zeros.
  __device__ void bring(bf16 (&to)[kBlockElements], int block, int part) const {
    const int live = start + tokens - block * kBlock;
    if (live > 0) {
      const unsigned* pages = params.pages + params.tables[first];
      const int at = block * kBlock;
      const size_t page = (static_cast<size_t>(pages[at / PAGE]) * KV_HEADS + kv_head) * 2 + part;
      const bf16* from = params.cache + (page * PAGE + at % PAGE) * HEAD_DIM;
#pragma unroll
      for (int i = 0; i < kBlock * kVectors / kWideThreads; ++i) {
        const int item = threadIdx.x + i * kWideThreads;
        const int position = item / kVectors, vector = item % kVectors;
        const bool is_live = position < live;
        ptx::copy_async(&to[wgmma::vector_at(kBlock, position, vector * 8)],
                        from + (is_live ? position : 0) * HEAD_DIM + vector * 8, is_live);
      }
    }
    ptx::copy_async_commit();
  }

  // Starts the scores of a block.
  __device__ void score(Scores& scores, int block) const {
    const bf16* query = shared.query[group];
    const bf16* key = shared.key[block % kWideStages];
    wgmma::fence();
#pragma unroll
    for (int dim = 0; dim < HEAD_DIM; dim += 16) {
      const int at = dim / wgmma::kBlockColumns * wgmma::kRows * wgmma::kBlockColumns +
                     dim % wgmma::kBlockColumns;
      wgmma::multiply_64(scores, wgmma::describe(query + at, 0), wgmma::describe(key + at, 0),
                         dim != 0);
    }
    wgmma::commit();
  }

  // Starts the mix of a block's values.
  __device__ void mix(Mixed& mixed, const unsigned (&weights)[kBlock / 16][4], int block) const {
    const bf16* value = shared.value[block % kWideStages];
    wgmma::fence();
#pragma unroll
    for (int k = 0; k < kBlock / 16; ++k) {
      const bf16* from = value + k * 16 * wgmma::kBlockColumns;
      constexpr int kBlockBytes = kBlock * wgmma::kBlockColumns * sizeof(bf16);
      wgmma::multiply_256(mixed, weights[k], wgmma::describe(from, kBlockBytes));
    }
    wgmma::commit();
  }

  // Turns scores into weights relative to the new maximum; returns what brings sums to it.
  __device__ void weigh(Scores& scores, int block, Stats (&stats)[2], float (&rescale)[2]) const {
    const float scale = 1.44269504088896340736f * rsqrtf(static_cast<float>(HEAD_DIM));
    const int column = block * kBlock + lane % 4 * 2;
    const bool is_last = (block + 1) * kBlock > start;  // some row does not see all of it
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int position = start + token(half);
      float largest = stats[half].largest;
#pragma unroll
      for (int t = 0; t < kBlock / 8; ++t) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = scores[t][2 * half + e];
          if (is_last && column + t * 8 + e > position) score = -INFINITY;
          largest = fmaxf(largest, score);
        }
      }
      largest = fmaxf(largest, __shfl_xor_sync(tile::kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(tile::kAllLanes, largest, 2));
      rescale[half] = ptx::exp2_fast((stats[half].largest - largest) * scale);
      const float base = -largest * scale;
      float sum = 0.0f;
#pragma unroll
      for (int t = 0; t < kBlock / 8; ++t) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = scores[t][2 * half + e];
          score = ptx::exp2_fast(__fmaf_rn(score, scale, base));
          sum += score;
        }
      }
      stats[half] = {largest, __fmaf_rn(stats[half].sum, rescale[half], sum)};
    }
  }

  __device__ static void pack(unsigned (&weights)[kBlock / 16][4], const Scores& scores) {
#pragma unroll
    for (int k = 0; k < kBlock / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto& from = scores[2 * k + i / 2];
        const auto both = __floats2bfloat162_rn(from[i % 2 * 2], from[i % 2 * 2 + 1]);
        weights[k][i] = reinterpret_cast<const unsigned&>(both);
      }
    }
  }

  // All that was brought is there, and all that was computed from what it replaces is done.
  __device__ static void await_copies() {
    ptx::copy_async_wait<0>();
    wgmma::fence_shared();
    __syncthreads();
  }

  __device__ void go() {
    bring(shared.key[0], 0, 0);
    bring(shared.value[0], 0, 1);
    bring(shared.key[1], 1, 0);
    load_queries();
    await_copies();
    Scores scores;
    Mixed mixed{};
    Stats stats[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};
    float rescale[2];
    unsigned weights[kBlock / 16][4];
    score(scores, 0);
    wgmma::wait<0>();
    weigh(scores, 0, stats, rescale);
    pack(weights, scores);
    const int last = (start + tokens - 1) / kBlock;
    for (int block = 0; block < last; ++block) {
      await_copies();
      score(scores, block + 1);
      mix(mixed, weights, block);
      bring(shared.key[block % kWideStages], block + 2, 0);
      bring(shared.value[(block + 1) % kWideStages], block + 1, 1);
      wgmma::wait<1>();
      weigh(scores, block + 1, stats, rescale);
      wgmma::wait<0>();
      // Most blocks hold no row's largest score: nothing is multiplied by 1.
      if (__any_sync(tile::kAllLanes, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
        for (auto& column : mixed) {
          column[0] *= rescale[0], column[1] *= rescale[0];
          column[2] *= rescale[1], column[3] *= rescale[1];
        }
      }
      pack(weights, scores);
    }
    await_copies();
    mix(mixed, weights, last);
    wgmma::wait<0>();
    store(mixed, stats);
  }

  __device__ void store(const Mixed& mixed, Stats (&stats)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = stats[half].sum;
      sum += __shfl_xor_sync(tile::kAllLanes, sum, 1);
      sum += __shfl_xor_sync(tile::kAllLanes, sum, 2);
      if (token(half) >= tokens) continue;
      const int in_group = (group * wgmma::kRows + row + half * 8) % kGroup;
      const size_t head = static_cast<size_t>(first + token(half)) * HEADS + kv_head * kGroup +
                          in_group;
      const float* gates = params.q + (2 * head + 1) * HEAD_DIM;
#pragma unroll
      for (int t = 0; t < HEAD_DIM / 8; ++t) {
        const int dim = t * 8 + lane % 4 * 2;
        const float2 gate = *reinterpret_cast<const float2*>(gates + dim);
        *reinterpret_cast<float2*>(params.out + head * HEAD_DIM + dim) = {
            mixed[t][2 * half] / sum * tile::sigmoid(gate.x),
            mixed[t][2 * half + 1] / sum * tile::sigmoid(gate.y)};
      }
    }
  }
};

// A block per tile and KV head, the last tiles, which see most, first.
template <class Tile>
__global__ __launch_bounds__(kWideThreads, 1) void tiles_bf16(Params params) {
  extern __shared__ __align__(1024) unsigned char wide_shared[];
  auto& shared = *reinterpret_cast<WideStorage*>(wide_shared);
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int tile = gridDim.x - 1 - blockIdx.x;
  Wide(params, shared, params.tiles[tile], blockIdx.y).go();
}

template <class Tile>
struct TilesBf16 {
  static_assert(Tile::kThreads == kWideThreads, "two warpgroups have a tile");
  static_assert(Tile::kSharedBytes == sizeof(WideStorage), "the manifest plans this storage");

  static cudaError_t launch(const float* q, const atlas_bf16* cache, const unsigned* positions,
                            const unsigned* tables, const unsigned* pages, const unsigned* cells,
                            const unsigned* tiles, float* partial, float* out, unsigned,
                            unsigned cell_count, unsigned cell_tokens, unsigned places,
                            unsigned tile_count, unsigned tile_tokens, cudaStream_t stream) {
    if (cell_tokens != kWideTokens) return cudaErrorInvalidValue;
    Params params{q,
                  device(cache),
                  positions,
                  tables,
                  pages,
                  reinterpret_cast<const uint4*>(cells),
                  partial,
                  out,
                  static_cast<int>(places)};
    const cudaError_t failed =
        launch_chained(tiles_bf16<Tile>, {cell_count, kWideThreads, sizeof(WideStorage), KV_HEADS},
                       stream, params);
    if (failed != cudaSuccess) return failed;
    params.tiles = reinterpret_cast<const uint4*>(tiles);
    return launch_rows<Tile>(params, tile_count, tile_tokens, stream);
  }
};

}  // namespace atlas::attend
