// Drawing a token from a ranked row by about the rule of its request.
//
// The model's own choice, which the host makes, decides whether a draft holds. So a draft may be
// any token: only the first kWarpLanes of the largest logits are drawn from, and weights are F32.
#pragma once

#include "ops/top_k/rank.cuh"
#include "target.cuh"
#include "tile/reduce.cuh"

namespace atlas::guess {

// Numbers of a rule: temperature (0: the largest logit), top-k (0: of all), top-p, min-p, the
// position of its first number in [0, 1), which are of a position each.
inline constexpr unsigned kTemperature = 0, kTopK = 1, kTopP = 2, kMinP = 3, kBase = 4;
inline constexpr unsigned kUniforms = 5;

// Sum over the lanes up to this one.
__device__ inline float sum_to(float value, unsigned lane) {
#pragma unroll
  for (int gap = 1; gap < tile::kWarpLanes; gap *= 2) {
    const float before = __shfl_up_sync(tile::kAllLanes, value, gap);
    if (lane >= gap) value += before;
  }
  return value;
}

// Sum over all lanes, of what `sum_to` gave.
__device__ inline float whole(float sum) {
  return __shfl_sync(tile::kAllLanes, sum, tile::kWarpLanes - 1);
}

// Place among the largest logits that `uniform` falls to; 0 where none has a weight.
__device__ inline int place_of(const float* logits, const float* rule, float uniform) {
  static_assert(target::TOP_K >= tile::kWarpLanes, "each lane has a logit");
  const unsigned lane = threadIdx.x % tile::kWarpLanes;
  const bool kept = rule[kTopK] == 0.0f || static_cast<float>(lane) < rule[kTopK];
  float weight = kept ? expf((logits[lane] - logits[0]) / rule[kTemperature]) : 0.0f;
  float sum = sum_to(weight, lane);
  if (rule[kTopP] < 1.0f && sum - weight >= rule[kTopP] * whole(sum)) weight = 0.0f;
  if (weight < rule[kMinP]) weight = 0.0f;  // the largest weighs 1
  sum = sum_to(weight, lane);
  const unsigned reach = __ballot_sync(tile::kAllLanes, sum > uniform * whole(sum));
  return reach == 0 ? 0 : __ffs(reach) - 1;
}

// Token at `position`, of a ranked row and a rule with `uniforms` numbers; a warp together.
__device__ inline unsigned draw(const float* ranked, const float* rule, unsigned uniforms,
                                unsigned position) {
  const unsigned at = position - static_cast<unsigned>(rule[kBase]);
  const bool draws = rule[kTemperature] > 0.0f && at < uniforms;
  const int place =
      draws ? place_of(ranked + target::TOP_K, rule, rule[kUniforms + at]) : 0;
  return static_cast<unsigned>(ranked[place]);
}

// Rows of predictions ahead, one of each sequence.
struct Ahead {
  const float* rules;   // (rows, kUniforms + uniforms)
  unsigned* starts;     // (rows): first positions
  unsigned* tokens;     // (rows)
  unsigned* positions;  // (rows)
  unsigned* tiles;      // (rows, 4): the last number is the first position that is written
  unsigned uniforms;

  __device__ const float* rule(unsigned row) const {
    return rules + size_t{kUniforms + uniforms} * row;
  }
};

}  // namespace atlas::guess
