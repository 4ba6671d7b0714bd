// Implements: Ops::route
// Match:      F32 logits of at most 1024 experts, and of the shared expert's gate if there is one
// Bound by:   latency (one value of every lane per expert chosen)
// Sync:       a warp per row, no barrier; chained launch
//
// Probabilities are ordered as logits, and their sum over all experts cancels when chosen weights
// are scaled to sum 1, so exponentials are computed for chosen experts only. Sigmoid scores are
// compared with their corrections added; weights are without these.
#pragma once

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/math.cuh"
#include "tile/ptx.cuh"
#include "tile/reduce.cuh"

namespace atlas::route {

using target::shapes::Experts;

inline constexpr bool kHasShared = Experts::kShared > 0;
// Experts that a row is assigned to; the shared one, if there is one, is last.
inline constexpr int kAssigned = Experts::kPerToken + kHasShared;
// Logits of a row: one for each expert, then one for the shared expert's gate if it has one.
inline constexpr int kLogits = Experts::kCount + Experts::kSharedGated;

// Meaning of `per_expert`: factors of the experts' weights, or corrections of sigmoid scores. No
// model has both.

// Epsilon added to the sum of sigmoids that weights are divided by.
inline constexpr float kTotalEps = 1e-20f;

inline constexpr int kParts = (Experts::kCount + tile::kWarpLanes - 1) / tile::kWarpLanes;

static_assert(kAssigned <= tile::kWarpLanes, "a lane writes a chosen expert");

// Number by which experts are compared: the logit, or its sigmoid plus a correction.
__device__ inline float choice_of(const float* logits, const float* per_expert, int expert) {
  const float logit = __ldcg(logits + expert);
  if constexpr (!Experts::kSigmoid) return logit;
  return logit == logit ? tile::sigmoid(logit) + __ldg(per_expert + expert) : logit;
}

// Order of logits as an integer above 0; NaN is never the best, and both zeros are equal.
__device__ inline unsigned rank_of(float logit) {
  const unsigned bits = __float_as_uint((logit == logit ? logit : -INFINITY) + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Index of the largest remaining logit, the lowest on a tie; removes it.
__device__ inline int best_of_warp(unsigned (&rank)[kParts]) {
  const int lane = threadIdx.x % tile::kWarpLanes;
  unsigned best[kParts];
  int part[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) best[i] = rank[i], part[i] = i;
#pragma unroll
  for (int apart = 1; apart < kParts; apart *= 2) {
#pragma unroll
    for (int i = 0; i + apart < kParts; i += 2 * apart) {
      if (best[i + apart] > best[i]) best[i] = best[i + apart], part[i] = part[i + apart];
    }
  }
  const unsigned largest = __reduce_max_sync(tile::kAllLanes, best[0]);
  const unsigned mine = best[0] == largest ? part[0] * tile::kWarpLanes + lane : ~0u;
  const int expert = static_cast<int>(__reduce_min_sync(tile::kAllLanes, mine));
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    if (i * tile::kWarpLanes + lane == expert) rank[i] = 0;
  }
  return expert;
}

// Best experts of `kRows` rows, whose logits are `stride` apart: lane i gets a row's i-th best
// expert, later lanes the shared one, or any.
template <int kRows>
__device__ inline void best(const float* logits, size_t stride, const float* per_expert,
                            int (&chosen)[kRows]) {
  const int lane = threadIdx.x % tile::kWarpLanes;
  unsigned rank[kRows][kParts];
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    chosen[row] = Experts::kCount + kHasShared - 1;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const int of = i * tile::kWarpLanes + lane;
      rank[row][i] = of < Experts::kCount
                         ? rank_of(choice_of(logits + row * stride, per_expert, of))
                         : 0;
    }
  }
#pragma unroll 1
  for (int at = 0; at < Experts::kPerToken; ++at) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const int expert = best_of_warp(rank[row]);
      if (lane == at) chosen[row] = expert;
    }
  }
}

// Weight of the expert that `best` gave this lane.
__device__ inline float weight_of(const float* logits, const float* per_expert, int chosen) {
  const int lane = threadIdx.x % tile::kWarpLanes;
  constexpr bool kUngated = kHasShared && !Experts::kSharedGated;  // then it has no logit
  const float logit = __ldcg(logits + (kUngated ? min(chosen, kLogits - 1) : chosen));
  const float routed = logit == logit ? logit : -INFINITY;
  float raised;
  if constexpr (Experts::kSigmoid) {
    raised = tile::sigmoid(logit);
  } else {
    raised = expf(routed - __shfl_sync(tile::kAllLanes, routed, 0));
  }
  float total = Experts::kSigmoid ? kTotalEps : 0.0f;
#pragma unroll
  for (int at = 0; at < Experts::kPerToken; ++at) {
    total += __shfl_sync(tile::kAllLanes, raised, at);
  }
  if (chosen >= Experts::kCount) return Experts::kSharedGated ? tile::sigmoid(logit) : 1.0f;
  const float weight = raised / total * Experts::kWeightScale;
  if constexpr (Experts::kScaled) return weight * __ldg(per_expert + chosen);
  return weight;
}

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void rows_f32(const float* logits,
                                                           const float* per_expert,
                                                           unsigned* chosen, float* weights,
                                                           unsigned rows) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  constexpr unsigned kRows = Tile::kThreads / tile::kWarpLanes;
  const unsigned row = blockIdx.x * kRows + threadIdx.x / tile::kWarpLanes;
  if (row >= rows) return;
  const int lane = threadIdx.x % tile::kWarpLanes;
  const float* of_row = logits + size_t{row} * kLogits;
  int expert[1];
  best<1>(of_row, 0, per_expert, expert);
  const float weight = weight_of(of_row, per_expert, expert[0]);
  if (lane < kAssigned) {
    chosen[row * kAssigned + lane] = expert[0];
    weights[row * kAssigned + lane] = weight;
  }
}

template <class Tile, class E>
struct RowsF32 {
  static cudaError_t launch(const float* logits, const float* per_expert, unsigned* chosen,
                            float* weights, unsigned rows, cudaStream_t stream) {
    const unsigned blocks = blocks_for(rows, Tile::kThreads / tile::kWarpLanes);
    return launch_chained(rows_f32<Tile>, {blocks, Tile::kThreads, 0}, stream, logits,
                          per_expert, chosen, weights, rows);
  }
};

}  // namespace atlas::route
