// Code that the kernels for one row and for several rows share: parameters, the channels of a head,
// and copies of its state.
#pragma once

#include "ops/conv_silu/channels_f32.cuh"
#include "ops/gated_delta/columns_f32.cuh"
#include "ops/gated_rms_norm/heads_f32.cuh"

namespace atlas::delta_net {

using gated_delta::kColumnLanes;
using gated_delta::kColumns;
using gated_delta::kHeadGroup;
using gated_delta::kKeys;
using gated_delta::kParts;
using gated_delta::kSplits;
using gated_delta::kWidth;
using target::shapes::Delta;

// Channels of a head: its query, key and value.
inline constexpr int kChannels = 2 * Delta::kKeyDim + Delta::kValueDim;

struct Params {
  const float* qkv;           // (rows, kWidth)
  const float* z;             // (rows, kValueHeads, kValueDim)
  const float* b;             // (rows, kValueHeads)
  const float* a;             // (rows, kValueHeads)
  const float* conv;          // (kWidth, kConv)
  const float* conv_bias;     // (kWidth), null if there is none
  const float* a_log;         // (kValueHeads)
  const float* dt_bias;       // (kValueHeads)
  const float* skip;          // (kValueHeads), null unless Mamba-2
  const float* norm;          // (kValueDim), or with Mamba-2 of all heads
  float* tail;                // (states: state_stride apart; kRing, kWidth)
  float* state;               // (states: state_stride apart; kValueHeads, kValueDim, kKeyDim)
  unsigned state_stride;      // elements
  const unsigned* positions;  // (rows)
  const unsigned* from_slots;  // (rows)
  const unsigned* slots;       // (rows)
  float* out;                 // (rows, kValueHeads, kValueDim)
};

// One channel of the head: its index in a row, its taps, and its last inputs.
struct Channel {
  int index;  // in the head; `kChannels` or more is no channel
  int at;
  bool own;  // no other head reads the channel
  float4 taps;
  float bias;
  float before[conv_silu::kTail];  // latest inputs, the oldest first

  __device__ void load(const Params& params, int of, int head, size_t row, int position) {
    index = of;
    const int here = min(index, kChannels - 1);
    const int part = min(here / Delta::kKeyDim, 2), key_head = head / kHeadGroup;
    at = part == 0   ? key_head * Delta::kKeyDim + here
         : part == 1 ? kKeys + key_head * Delta::kKeyDim + here - Delta::kKeyDim
                     : 2 * kKeys + head * Delta::kValueDim + here - 2 * Delta::kKeyDim;
    own = part == 2;
    const float* ring = ring_of(params, params.from_slots[row]);
    taps = tile::vector_at(params.conv, at);
    bias = Delta::kMamba ? params.conv_bias[at] : 0.0f;
#pragma unroll
    for (int i = 0; i < conv_silu::kTail; ++i) {
      const int from = position - conv_silu::kTail + i;
      before[i] = from < 0 ? 0.0f : __ldcg(ring + from % conv_silu::kRing * kWidth);
    }
  }

  __device__ float* ring_of(const Params& params, unsigned slot) const {
    return params.tail + size_t{slot} * params.state_stride + at;
  }

  __device__ float mixed(float x) const {
    return conv_silu::mixed(taps, bias, before[0], before[1], before[2], x);
  }

  // Puts the inputs before a position into a ring.
  __device__ void put_before(float* ring, int position) const {
#pragma unroll
    for (int i = 0; i < conv_silu::kTail; ++i) {
      const int to = position - conv_silu::kTail + i;
      if (to >= 0) ring[to % conv_silu::kRing * kWidth] = before[i];
    }
  }

  // Appends `x` as the newest input.
  __device__ void advance(float x) {
    before[0] = before[1], before[1] = before[2], before[2] = x;
  }
};

// Address of a column of a head's state.
__device__ inline float* column_of(const Params& params, unsigned slot, int head, int column) {
  const int at = (head * Delta::kValueDim + column) * Delta::kKeyDim;
  return params.state + size_t{slot} * params.state_stride + at;
}

extern __shared__ __align__(128) unsigned char dynamic_shared[];

// Starts the copies of columns of a head's state; one thread.
template <class Columns>
__device__ inline void ask(unsigned long long& full, Columns& to, const float* columns) {
  ptx::mbarrier_expect(&full, sizeof(to));
  ptx::copy_bulk(to, columns, sizeof(to), &full);
}

}  // namespace atlas::delta_net
