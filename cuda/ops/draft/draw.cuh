// Drawing of a draft token from a ranked row, approximately by its request's sampling rule.
//
// The host chooses the model's token and accepts a draft only if it is equal. So a draft may be any
// token: only the kWarpLanes largest logits are drawn from, and weights are F32.
#pragma once

#include "ops/top_k/rank.cuh"
#include "target.cuh"
#include "tile/reduce.cuh"

namespace atlas::draft {

// Indices in a rule's numbers: temperature (0: largest logit), top-k (0: off), top-p, min-p, and
// position of the first uniform number.
inline constexpr unsigned kTemperature = 0, kTopK = 1, kTopP = 2, kMinP = 3, kBase = 4;
// Index of a rule's first uniform number, in [0, 1); there is one for each position.
inline constexpr unsigned kUniforms = 5;

// Sum of `value` over the lanes up to and including this one.
__device__ inline float sum_to(float value, unsigned lane) {
#pragma unroll
  for (int gap = 1; gap < tile::kWarpLanes; gap *= 2) {
    const float before = __shfl_up_sync(tile::kAllLanes, value, gap);
    if (lane >= gap) value += before;
  }
  return value;
}

// Sum over all lanes, from a result of `sum_to`.
__device__ inline float whole(float sum) {
  return __shfl_sync(tile::kAllLanes, sum, tile::kWarpLanes - 1);
}

// A sampling rule with its uniform number for a position.
struct Sampling {
  const float* rule;
  float uniform;
  bool draws;  // otherwise the largest logit is taken

  __device__ Sampling(const float* rule, unsigned uniforms, unsigned position) : rule(rule) {
    const unsigned at = position - static_cast<unsigned>(rule[kBase]);
    draws = rule[kTemperature] > 0.0f && at < uniforms;
    uniform = draws ? rule[kUniforms + at] : 0.0f;
  }

  // Number of largest logits to draw from, at least one.
  __device__ int count() const {
    if (!draws) return 1;
    const bool all = rule[kTopK] == 0.0f || rule[kTopK] > tile::kWarpLanes;
    return all ? tile::kWarpLanes : max(1, static_cast<int>(rule[kTopK]));
  }
};

// Index of the drawn logit among the largest, which lanes have in descending order; 0 if none has a
// weight.
__device__ inline int drawn_index(float logit, const Sampling& sampling) {
  if (!sampling.draws) return 0;
  const unsigned lane = threadIdx.x % tile::kWarpLanes;
  const float* rule = sampling.rule;
  const float largest = __shfl_sync(tile::kAllLanes, logit, 0);
  const bool is_candidate = static_cast<int>(lane) < sampling.count();
  float weight = is_candidate ? expf((logit - largest) / rule[kTemperature]) : 0.0f;
  float sum = sum_to(weight, lane);
  if (rule[kTopP] < 1.0f && sum - weight >= rule[kTopP] * whole(sum)) weight = 0.0f;
  if (weight < rule[kMinP]) weight = 0.0f;  // the largest weighs 1
  sum = sum_to(weight, lane);
  const unsigned reaching = __ballot_sync(tile::kAllLanes, sum > sampling.uniform * whole(sum));
  return reaching == 0 ? 0 : __ffs(reaching) - 1;
}

// Token that a rule draws from a ranked row; by a whole warp.
__device__ inline unsigned draw(const float* ranked, const Sampling& sampling) {
  static_assert(target::TOP_K >= tile::kWarpLanes, "each lane has a logit");
  const unsigned lane = threadIdx.x % tile::kWarpLanes;
  return static_cast<unsigned>(ranked[drawn_index(ranked[target::TOP_K + lane], sampling)]);
}

// Rows of predictions that run ahead of the host, one for each sequence.
struct DraftRows {
  const float* rules;   // (rows, kUniforms + uniforms)
  unsigned* starts;     // (rows): first positions
  unsigned* tokens;     // (rows)
  unsigned* positions;  // (rows)
  unsigned* tiles;      // (rows, 4): the last number is the first position that is written
  unsigned uniforms;

  __device__ Sampling sampling(unsigned row, unsigned position) const {
    return {rules + size_t{kUniforms + uniforms} * row, uniforms, position};
  }
};

}  // namespace atlas::draft
