// Implements: Ops::gated_delta of few rows
// Match:      F32, keys and values of 128 elements
// Bound by:   one row: HBM (the state, read and written once); many rows: latency of a row
// Sync:       two barriers per 16 rows; a block has 32 columns of a head's state; chained launch
//
// Rows go one after the other whatever their number, so decode and verification give the same bits.
// The state after a draft, which may be rejected, is written beside the last one.
// Mamba-2 takes nothing off the value, part of which is in the result, and queries and keys as they
// are.
// With S' the decayed state, `S^T q = S'^T q + (k . q) d`: both products with the state are summed
// together, before the update is known.
#pragma once

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/math.cuh"
#include "tile/ptx.cuh"
#include "tile/reduce.cuh"

namespace atlas::gated_delta {

using target::shapes::Delta;

inline constexpr int kColumns = 32;   // of a block
inline constexpr int kColumnLanes = 8;  // that share a column
inline constexpr int kThreads = kColumns * kColumnLanes;
inline constexpr int kSplits = Delta::kValueDim / kColumns;
inline constexpr int kParts = Delta::kKeyDim / (4 * kColumnLanes);  // vectors of a lane
inline constexpr int kStage = 16;                                // rows between barriers
inline constexpr int kKeys = Delta::kKeyHeads * Delta::kKeyDim;
inline constexpr int kWidth = 2 * kKeys + Delta::kValueHeads * Delta::kValueDim;
inline constexpr int kHeadGroup = Delta::kValueHeads / Delta::kKeyHeads;
// Epsilon added to the squared length of queries and keys.
inline constexpr float kUnitEps = 1e-6f;

static_assert(Delta::kKeyDim == 4 * tile::kWarpLanes, "a warp has a key, a vector a lane");
static_assert(Delta::kValueDim % kColumns == 0, "blocks have whole columns");

struct Params {
  const float* qkv;           // (rows, kWidth)
  const float* b;             // (rows, kValueHeads)
  const float* a;             // (rows, kValueHeads)
  const float* a_log;         // (kValueHeads)
  const float* dt_bias;       // (kValueHeads)
  const float* skip;          // (kValueHeads), null but with Mamba-2
  float* state;               // (states: state_stride apart; kValueHeads, kValueDim, kKeyDim)
  unsigned state_stride;      // elements
  const uint2* spans;         // (spans): first row, rows
  const unsigned* positions;  // (rows)
  const unsigned* from_slots;  // (rows)
  const unsigned* slots;       // (rows)
  const unsigned* draft_slots;  // (rows): state after a row that is a draft or before one
  float* out;                 // (rows, kValueHeads, kValueDim)
};

struct SharedStorage {
  float4 query[kStage][tile::kWarpLanes];  // as `Unit`
  float4 key[kStage][tile::kWarpLanes];
  float value[kStage][kColumns];
  float decay[kStage];
  float weight[kStage];
  float overlap[kStage];  // key . query
  unsigned draft_slots[kStage];
};

__device__ inline float dot(const float4& x, const float4& y) {
  return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, x.x * y.x)));
}

// Query and key of a head, spread over a warp's lanes, one vector of each a lane: at unit length,
// in Mamba-2 unchanged.
struct Unit {
  float4 query;  // / sqrt(kKeyDim) at unit length
  float4 key;
  float overlap;  // key . query

  __device__ static Unit of(const float4& query, const float4& key) {
    if constexpr (Delta::kMamba) return {query, key, tile::warp_sum(dot(key, query))};
    const float of_query = rsqrtf(tile::warp_sum(dot(query, query)) + kUnitEps);
    const float of_key = rsqrtf(tile::warp_sum(dot(key, key)) + kUnitEps);
    const float4 q = tile::times(query, of_query * rsqrtf(static_cast<float>(Delta::kKeyDim)));
    const float4 k = tile::times(key, of_key);
    return {q, k, tile::warp_sum(dot(k, q))};
  }
};

__device__ inline float decay(float rate, float a, float bias) {
  return expf(-rate * tile::softplus(a + bias));
}

// Weight of a row's update.
__device__ inline float strength(float a, float b, float bias) {
  return Delta::kMamba ? tile::softplus(a + bias) : tile::sigmoid(b);
}

// Factor of a head's values in its results; 0 without one.
__device__ inline float skip_of(const float* skip, int head) {
  return Delta::kMamba ? skip[head] : 0.0f;
}

__device__ inline float column_sum(float value) {
#pragma unroll
  for (int lanes = kColumnLanes / 2; lanes > 0; lanes /= 2) {
    value += __shfl_xor_sync(tile::kAllLanes, value, lanes);
  }
  return value;
}

// Update of a column by one row, shared by kColumnLanes lanes.
struct Step {
  const float4 (&query)[tile::kWarpLanes];
  const float4 (&key)[tile::kWarpLanes];
  float decay;
  float weight;
  float overlap;
  float skip;

  // Updates this lane's `part` of the column; returns the column's result to all lanes of it.
  __device__ float take(float4 (&s)[kParts], float value, int part) const {
    float recalled = 0.0f, answer = 0.0f;
    float4 k[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      k[i] = key[i * kColumnLanes + part];
      s[i] = tile::times(s[i], decay);
      if constexpr (!Delta::kMamba) recalled += dot(s[i], k[i]);
      answer += dot(s[i], query[i * kColumnLanes + part]);
    }
    if constexpr (!Delta::kMamba) recalled = column_sum(recalled);
    answer = column_sum(answer);
    const float update = (value - recalled) * weight;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      s[i] = {fmaf(k[i].x, update, s[i].x), fmaf(k[i].y, update, s[i].y),
              fmaf(k[i].z, update, s[i].z), fmaf(k[i].w, update, s[i].w)};
    }
    const float result = fmaf(overlap, update, answer);
    return Delta::kMamba ? fmaf(skip, value, result) : result;
  }
};

// A row's inputs in a warp: a lane has a vector of query and key, and an element of the value.
struct Raw {
  float4 query, key;
  float value, a, b;
  unsigned draft_slot;

  __device__ void load(const Params& params, size_t row, int head, int split) {
    const int lane = threadIdx.x % tile::kWarpLanes;
    const float* from = params.qkv + row * kWidth;
    const float* keys = from + head / kHeadGroup * Delta::kKeyDim;
    query = tile::vector_at(keys, lane);
    key = tile::vector_at(keys + kKeys, lane);
    value = from[2 * kKeys + head * Delta::kValueDim + split * kColumns + lane];
    a = params.a[row * Delta::kValueHeads + head];
    b = params.b[row * Delta::kValueHeads + head];
    draft_slot = params.draft_slots[row];
  }

  __device__ void store(SharedStorage& shared, int at, float rate, float bias) const {
    const int lane = threadIdx.x % tile::kWarpLanes;
    const Unit unit = Unit::of(query, key);
    shared.query[at][lane] = unit.query;
    shared.key[at][lane] = unit.key;
    shared.value[at][lane] = value;
    if (lane != 0) return;
    shared.decay[at] = decay(rate, a, bias);
    shared.weight[at] = strength(a, b, bias);
    shared.overlap[at] = unit.overlap;
    shared.draft_slots[at] = draft_slot;
  }
};

static_assert(kColumns == tile::kWarpLanes, "a lane brings one element of the value");

template <class Tile>
__global__ __launch_bounds__(kThreads) void columns_f32(Params params) {
  constexpr int kWarps = kThreads / tile::kWarpLanes;
  constexpr int kMine = kStage / kWarps;  // rows of a stage that a warp brings
  __shared__ SharedStorage shared;
  ptx::griddepcontrol_launch_dependents();
  const int head = blockIdx.y, split = blockIdx.z, warp = threadIdx.x / tile::kWarpLanes;
  const int column = threadIdx.x / kColumnLanes, part = threadIdx.x % kColumnLanes;
  const float rate = expf(params.a_log[head]), bias = params.dt_bias[head];
  const float skip = skip_of(params.skip, head);
  ptx::griddepcontrol_wait();
  const uint2 span = params.spans[blockIdx.x];
  const int rows = span.y;
  if (rows == 0) return;
  const auto state_of = [&](unsigned slot) {
    const int columns = head * Delta::kValueDim + split * kColumns + column;
    return params.state + size_t{slot} * params.state_stride + columns * Delta::kKeyDim;
  };
  const float* before = state_of(params.from_slots[span.x]);
  const auto write = [&](unsigned slot, const float4 (&s)[kParts]) {
    float* state = state_of(slot);
#pragma unroll
    for (int i = 0; i < kParts; ++i) tile::vector_at(state, i * kColumnLanes + part) = s[i];
  };
  // This lane's vectors of the column: vector i has elements 32 i + 4 part and the next three.
  float4 s[kParts] = {};
  if (params.positions[span.x] != 0) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) s[i] = tile::vector_at(before, i * kColumnLanes + part);
  }
  Raw raw[kMine];
  const auto fetch = [&](int first) {
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int at = first + warp * kMine + i;
      if (at < rows) raw[i].load(params, size_t{span.x} + at, head, split);
    }
  };
  fetch(0);
  for (int first = 0; first < rows; first += kStage) {
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int at = warp * kMine + i;
      if (first + at < rows) raw[i].store(shared, at, rate, bias);
    }
    __syncthreads();  // the stage is written
    fetch(first + kStage);
    const int live = min(kStage, rows - first);
    for (int at = 0; at < live; ++at) {
      const Step step{shared.query[at], shared.key[at], shared.decay[at], shared.weight[at],
                      shared.overlap[at], skip};
      const float result = step.take(s, shared.value[at][column], part);
      if (part == 0) {
        const size_t row = size_t{span.x} + first + at;
        const size_t to = (row * Delta::kValueHeads + head) * Delta::kValueDim + split * kColumns;
        params.out[to + column] = result;
      }
      if (shared.draft_slots[at] != kNoSlot) write(shared.draft_slots[at], s);
    }
    __syncthreads();  // the stage is read
  }
  write(params.slots[span.x], s);
}

template <class Tile>
struct ColumnsF32 {
  static cudaError_t launch(const float* qkv, const float* b, const float* a, const float* a_log,
                            const float* dt_bias, const float* skip, float* state,
                            unsigned state_stride,
                            const unsigned* spans, const unsigned* positions,
                            const unsigned* from_slots, const unsigned* slots,
                            const unsigned* draft_slots, float* out,
                            unsigned count, cudaStream_t stream) {
    const auto* list = reinterpret_cast<const uint2*>(spans);
    const Params params{qkv,  b,         a,          a_log, dt_bias, skip, state, state_stride,
                        list, positions, from_slots, slots, draft_slots,  out};
    const Launch shape{count, kThreads, 0, Delta::kValueHeads, kSplits};
    return launch_chained(columns_f32<Tile>, shape, stream, params);
  }
};

}  // namespace atlas::gated_delta
