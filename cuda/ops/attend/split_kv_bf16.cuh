// Implements: Ops::attend
// Match:      pages of bf16 or FP8, query heads of a KV head, 16 at most (over latents 16 a block),
//             packed into the M of an instruction; operands bf16, scores and sums F32
// Bound by:   few rows: HBM (keys and values, once); many rows: shared memory
// Sync:       few rows: three barriers per split and bulk copies; many rows: four barriers per 64
//             positions; chained launch
//
// Positions are cut into splits of kSplit. A split's softmax runs over blocks of 64 positions with
// a running maximum; splits are merged in order by one formula. Few rows: blocks share the splits
// and then their merging; many rows: one block runs all splits. Positions that a row does not see
// change none of its bits: their weights are zero, and its maximum is unchanged. Splits that end
// before a tile's window are skipped.
#pragma once

#include "ops/attend/splits.cuh"

namespace atlas::attend {

inline constexpr int kScorePitch = kBlock + 4;
inline constexpr int kWeightPitch = kBlock + 8;

// Storage for a tile of many rows: `kTiles` times an instruction's M. Keys and values of a block
// have a buffer each, or share one.
template <class A, int kTiles, int kBuffers>
struct BlockStorage {
  static constexpr int kRows = Queries<A, kTiles>::kRows;
  static constexpr int kPadded = Heads<A>::kPadded;
  bf16 query[kRows][kPadded];
  bf16 buffer[kBuffers][kBlock][kPadded];
  float score[kRows][kScorePitch];
  bf16 weight[kRows][kWeightPitch];
  float largest[kRows];
  float sum[kRows];
  float rescale[kRows];
};

// Whether a block has memory for two tiles of rows and buffers of both keys and values.
template <class A>
inline constexpr bool kTwoBuffers = sizeof(BlockStorage<A, 2, 2>) <= target::SHARED_BYTES_PER_BLOCK;
template <class A>
inline constexpr int kMany = kTwoBuffers<A> ? 2 : 1;
template <class A>
using SharedStorage = BlockStorage<A, kMany<A>, kMany<A>>;

// A split, computed in blocks of 64 positions.
template <class A>
struct Stage : Queries<A, kMany<A>> {
  using Base = Queries<A, kMany<A>>;
  using Shared = SharedStorage<A>;
  using Base::clear;
  using Base::first;
  using Base::keys;
  using Base::kPadded;
  using Base::kRows;
  using Base::last;
  using Base::mix;
  using Base::params;
  static constexpr int kVectors = Heads<A>::kVectors;
  static_assert(kFits<sizeof(Shared)>);
  static_assert(!tile::kLatent<A>, "values lie beside keys");

  Shared& shared;

  __device__ Stage(const Params& params, Shared& shared, int first, int tokens, int kv_head)
      : Base(params, first, tokens, kv_head), shared(shared) {}

  // Loads keys or values of a block of positions; FP8 codes are waited for and widened. Positions
  // from `live` on become zeros: zero times memory that was never written may be NaN.
  __device__ static void bring(bf16 (&to)[kBlock][kPadded], const unsigned char* from, int live) {
    if constexpr (tile::kFp8Pages) {
      const auto at = [&](int position, int dim) { return &to[position][dim]; };
      return tile::widen_block<A, kThreads, Base::kWidenedAtOnce>(from, live, threadIdx.x, at);
    }
    const auto* numbers = reinterpret_cast<const bf16*>(from);
#pragma unroll
    for (int item = threadIdx.x; item < kBlock * kVectors; item += kThreads) {
      const int position = item / kVectors, vector = item % kVectors;
      const bool is_live = position < live;
      const int dim = vector * Bf16x8::kElements;
      ptx::copy_async(&to[position][dim], numbers + tile::page_at(position, dim), is_live);
    }
  }

  __device__ void weigh() {
    const int row = threadIdx.x / BlockScores::kLanes;
    if (row >= kRows) return;  // whole warps
    BlockScores scores;
    scores.load(shared.score[row]);
    const float before = shared.largest[row];
    const float largest = fmaxf(scores.largest(), before), base = base_of(largest);
    const float sum = scores.raise(base);
    scores.store(shared.weight[row]);
    __syncwarp();  // every lane of the row has read the maximum before
    if (threadIdx.x % BlockScores::kLanes != 0) return;
    const float rescale = exp2f(before - base);
    shared.sum[row] = __fmaf_rn(shared.sum[row], rescale, sum);
    shared.largest[row] = largest;
    shared.rescale[row] = rescale;
  }

  // First position of the split's first block in which a row of the tile sees a position.
  __device__ int first_block(int split) const {
    if constexpr (A::kWindow == 0) return split * kSplit;
    return max(split * kSplit, first_seen<A>(params, first) / kBlock * kBlock);
  }

  // Runs the split; the result is in `part` and in the shared statistics.
  __device__ void run(int split) {
    for (int row = threadIdx.x; row < kRows; row += kThreads) {
      shared.largest[row] = -INFINITY;
      shared.sum[row] = 0.0f;
    }
    clear();
    auto& keys_at = shared.buffer[0];
    auto& values_at = shared.buffer[kTwoBuffers<A> ? 1 : 0];
    const auto key_at = [&](int position, int dim) { return &keys_at[position][dim]; };
    const auto key = [&](unsigned (&to)[4], int, int position, int dim) {
      Base::load_keys(to, position, dim, key_at);
    };
    const auto value_at = [&](int position, int dim) { return &values_at[position][dim]; };
    const auto value = [&](unsigned (&to)[4], int position, int dim) {
      Base::load_values(to, position, dim, value_at);
    };
    const auto weight = [&](int row, int position) { return &shared.weight[row][position]; };
    const auto put = [&](int, int row, int column, float score) {
      shared.score[row][column] = score;
    };
    const int end = min(last + 1, (split + 1) * kSplit);
    for (int start = first_block(split); start < end; start += kBlock) {
      const unsigned char* from = keys(start);
      const int live = min(kBlock, last + 1 - start);
      const auto bring_values = [&] {
        bring(values_at, from + tile::kHeadBytes<A>, live);
        ptx::copy_async_commit();
      };
      bring(keys_at, from, live);
      ptx::copy_async_commit();
      if constexpr (kTwoBuffers<A>) bring_values();
      ptx::copy_async_wait<kTwoBuffers<A> ? 1 : 0>();
      __syncthreads();  // keys, and at first queries and statistics, are written
      this->template score<1>(shared.query, start, 1, key, put);
      __syncthreads();  // scores are written, keys read
      if constexpr (!kTwoBuffers<A>) bring_values();
      weigh();
      ptx::copy_async_wait<0>();
      __syncthreads();  // weights and values are written
      const int infinite = this->clear_infinite(start, value_at);
      mix(shared.rescale, weight, value);
      this->spoil(infinite);
      __syncthreads();  // all of the block is read
    }
  }

  __device__ Stats stats(int row) const { return {shared.largest[row], shared.sum[row]}; }
};

extern __shared__ __align__(16) unsigned char dynamic_shared[];

// Attention of many rows: a block per KV head and tile, which runs all splits.
template <class Tile, class A>
__global__ __launch_bounds__(kThreads, 1) void whole(Params params, unsigned parts) {
  auto& shared = *reinterpret_cast<SharedStorage<A>*>(dynamic_shared);
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  constexpr int kTokens = Stage<A>::kTokens;
  const uint4 tile = params.tiles[blockIdx.x / parts];
  const int before = blockIdx.x % parts * kTokens, tokens = static_cast<int>(tile.y) - before;
  if (tokens <= 0) return;
  Stage<A> stage(params, shared, tile.x + before, min(tokens, kTokens), blockIdx.y);
  stage.load(shared.query);
  Totals<A, kMany<A>> totals;
  const int begin = first_seen<A>(params, stage.first) / kSplit;
  for (int split = begin; split * kSplit <= stage.last; ++split) {
    stage.run(split);
    totals.take(stage);
    __syncthreads();  // statistics are read before the next split resets them
  }
  totals.write(stage);
}

// Attention of prompts whose heads are too wide for a warp's registers.
template <class Tile, class A>
struct SplitKvBf16 : CellsThenSplits<Tile, A, SplitKvBf16<Tile, A>> {
  static_assert(Tile::kThreads == kThreads, "the stages count on these warps");
  static_assert(A::kValueDim > 256, "prompts of narrower heads have kernels of their own");

  static cudaError_t cells(const Params& params, unsigned count, unsigned tokens,
                           cudaStream_t stream) {
    const unsigned parts = blocks_for(tokens, Stage<A>::kTokens);
    const Launch shape{count * parts, kThreads, sizeof(SharedStorage<A>), Heads<A>::kGroups};
    return launch_chained(whole<Tile, A>, shape, stream, params, parts);
  }
};

}  // namespace atlas::attend
