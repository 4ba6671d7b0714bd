// A tile of a prompt's rows, and the softmax of a warp's 16 rows in registers.
//
// Scores, weights and mixes are distributed as tensor instructions leave them: lane l has rows l /
// 4 and l / 4 + 8, and of each eight columns the two from l % 4 * 2 on. Four lanes share a row: its
// maximum is taken in each block, its sums are added after the last block.
#pragma once

#include "ops/attend/queries.cuh"

namespace atlas::attend {

// A tile: query heads of a KV head are rows, by token. Blocks of `kPositions` are taken in order
// from the first to the last one that the tile sees, so that a row's sums have one order. Threads
// from kFirstThread on have rows.
template <class A, int kPositions, int kFirstThread>
struct TileRows : Heads<A> {
  using H = Heads<A>;
  using H::kGroup;
  using H::kValueDim;
  using H::kWindow;
  using Scores = float[kPositions / 8][4];
  using Weights = unsigned[kPositions / 16][4];
  using Mixed = float[kValueDim / 8][4];

  const Params& params;
  const int kv_head;
  const int first;   // row of the step
  const int tokens;  // of the tile
  const int start;   // position of the first token
  const int lane;
  // This thread's upper row of the tile; its lower row is eight rows further.
  const int row;

  __device__ TileRows(const Params& params, int first, int tokens, int kv_head,
                      unsigned thread = threadIdx.x)
      : params(params),
        kv_head(kv_head),
        first(first),
        tokens(tokens),
        start(params.positions[first]),
        lane(thread % tile::kWarpLanes),
        row(static_cast<int>(thread - kFirstThread) / tile::kWarpLanes * 16 + lane / 4) {}

  __device__ int first_block() const { return H::first_seen(start) / kPositions; }
  __device__ int last_block() const { return (start + tokens - 1) / kPositions; }
  // Number of blocks before this one, each of which has used a stage of the ring once.
  __device__ int ordinal(int block) const { return block - first_block(); }
  // Positions of a block up to the tile's last one; may exceed a block's size.
  __device__ int live(int block) const { return start + tokens - block * kPositions; }

  // Token of this thread's upper (0) or lower (1) row.
  __device__ int token(int half) const { return (row + half * 8) / kGroup; }
  // Query head of this thread's upper (0) or lower (1) row.
  __device__ int head(int half) const { return kv_head * kGroup + (row + half * 8) % kGroup; }

  // Makes weights of scores relative to the new maximum; `rescale` scales earlier sums to it.
  __device__ void weigh(Scores& scores, int block, Stats (&stats)[2], float (&rescale)[2]) const {
    const bool is_last = (block + 1) * kPositions > start;  // some row sees a part of the block
    // The window of the tile's last row begins in this block or later: not all rows see all of it.
    const bool is_left = kWindow != 0 && block * kPositions <= start + tokens - 1 - kWindow;
    if (is_last || is_left) hide(scores, block);
    weigh(scores, stats, rescale);
  }

  // Sets the scores of positions that a row does not see to -infinity.
  __device__ void hide(Scores& scores, int block) const {
    const int column = block * kPositions + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int position = start + token(half);
#pragma unroll
      for (int t = 0; t < kPositions / 8; ++t) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = column + t * 8 + e;
          const bool is_left = kWindow != 0 && at <= position - kWindow;
          if (at > position || is_left) scores[t][2 * half + e] = -INFINITY;
        }
      }
    }
  }

  __device__ static void weigh(Scores& scores, Stats (&stats)[2], float (&rescale)[2]) {
    const float scale = kScoreScale<A>;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = stats[half].largest;
#pragma unroll
      for (int t = 0; t < kPositions / 8; ++t) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          largest = fmaxf(largest, scores[t][2 * half + e]);
        }
      }
      largest = fmaxf(largest, __shfl_xor_sync(tile::kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(tile::kAllLanes, largest, 2));
      // A row may see no position of its window's first block.
      const float top = kWindow == 0 ? largest : base_of(largest);
      rescale[half] = ptx::exp2_fast((stats[half].largest - top) * scale);
      const float base = -top * scale;
      float sum = 0.0f;
#pragma unroll
      for (int t = 0; t < kPositions / 8; ++t) {
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

  // Scales mixes to a new maximum. In most blocks no row has a new one: then nothing is multiplied.
  __device__ static void scale(Mixed& mixed, const float (&rescale)[2]) {
    if (!__any_sync(tile::kAllLanes, rescale[0] != 1.0f || rescale[1] != 1.0f)) return;
#pragma unroll
    for (auto& column : mixed) {
      column[0] *= rescale[0], column[1] *= rescale[0];
      column[2] *= rescale[1], column[3] *= rescale[1];
    }
  }

  __device__ static void pack(Weights& weights, const Scores& scores) {
#pragma unroll
    for (int k = 0; k < kPositions / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto& from = scores[2 * k + i / 2];
        weights[k][i] = to_bf16x2(from[i % 2 * 2], from[i % 2 * 2 + 1]).bits;
      }
    }
  }

  __device__ void store(const Mixed& mixed, const Stats (&stats)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = stats[half].sum;
      sum += __shfl_xor_sync(tile::kAllLanes, sum, 1);
      sum += __shfl_xor_sync(tile::kAllLanes, sum, 2);
      if (token(half) >= tokens) continue;
      const size_t at = static_cast<size_t>(first + token(half)) * A::kHeads + head(half);
      // Statistics in the form of splits, whose scores have the scale multiplied in.
      const Stats all{stats[half].largest * kScoreScale<A>, sum};
      const float share = 1.0f / with_sink<A>(params, all, head(half));
      float2 gate[kValueDim / 8]{};  // loaded before the first result is written
      if constexpr (A::kGated) {
        const float* gates = gates_of<A>(params, at, lane % 4 * 2);
#pragma unroll
        for (int t = 0; t < kValueDim / 8; ++t) {
          gate[t] = *reinterpret_cast<const float2*>(gates + t * 8);
        }
      }
      const size_t to = at * kValueDim + lane % 4 * 2;
#pragma unroll
      for (int t = 0; t < kValueDim / 8; ++t) {
        put_mixed(params.out, target::ATTEND_ROUNDS, to + t * 8,
                  gated<A>(mixed[t][2 * half] * share, gate[t].x),
                  gated<A>(mixed[t][2 * half + 1] * share, gate[t].y));
      }
    }
  }
};

}  // namespace atlas::attend
