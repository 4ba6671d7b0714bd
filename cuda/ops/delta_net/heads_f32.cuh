// Implements: Ops::delta_net for steps of one row per sequence
// Match:      F32, keys and values of 128 elements, 4 taps
// Bound by:   HBM (the state, read and written once)
// Sync:       four barriers, and bulk copies of the state; a block has a value head of a row;
//             chained launch
//
// The state, the convolution's tail and the step's lists were written before the step began, so
// they are read before the wait. The state comes part by part into shared memory: registers for all
// of it would leave an SM room for one block, which cannot ask for one head while it computes
// another. The arithmetic is that of `conv_silu`, `gated_delta` and `gated_rms_norm`.
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
using gated_delta::kThreads;
using gated_delta::kWidth;
using target::shapes::Delta;

// Channels of a head's query, key and value, and those of a thread.
inline constexpr int kChannels = 2 * Delta::kKeyDim + Delta::kValueDim;
inline constexpr int kMine = (kChannels + kThreads - 1) / kThreads;
// Blocks that an SM has room for.
inline constexpr int kResident = target::SHARED_BYTES_PER_BLOCK >= 128 * 1024 ? 3 : 1;

struct Params {
  const float* qkv;           // (rows, kWidth)
  const float* z;             // (rows, kValueHeads, kValueDim)
  const float* b;             // (rows, kValueHeads)
  const float* a;             // (rows, kValueHeads)
  const float* conv;          // (kWidth, kConv)
  const float* a_log;         // (kValueHeads)
  const float* dt_bias;       // (kValueHeads)
  const float* norm;          // (kValueDim)
  float* tail;                // (states, kRing, kWidth)
  float* state;               // (states, kValueHeads, kValueDim, kKeyDim)
  const unsigned* positions;  // (rows)
  const unsigned* from_slots;  // (rows)
  const unsigned* slots;       // (rows)
  float* out;                 // (rows, kValueHeads, kValueDim)
};

struct SharedStorage {
  float4 state[kSplits][kColumns][tile::kWarpLanes];
  float mixed[kChannels];  // query, key, value behind the convolution
  float4 query[tile::kWarpLanes];
  float4 key[tile::kWarpLanes];
  float out[Delta::kValueDim];
  float overlap;
  float decay;
  float weight;
  unsigned long long full[kSplits];
};

// One channel of the head: where it lies in a row, its taps and its last inputs.
struct Channel {
  int index;  // in the head; `kChannels` or more is no channel
  int at;
  bool keeps;  // several heads read the channels of a key; one of them keeps the new input
  float4 taps;
  float before[conv_silu::kTail];
  float* ring;  // of the channel, elements kWidth apart
  bool moves;   // the inputs before are in another ring

  __device__ void load(const Params& params, int of, int head, size_t row, int position) {
    index = of;
    const int here = min(index, kChannels - 1);
    const int part = here / Delta::kKeyDim, key_head = head / kHeadGroup;
    at = part == 0   ? key_head * Delta::kKeyDim + here
         : part == 1 ? kKeys + key_head * Delta::kKeyDim + here - Delta::kKeyDim
                     : 2 * kKeys + head * Delta::kValueDim + here - 2 * Delta::kKeyDim;
    keeps = part >= 2 || head % kHeadGroup == 0;
    const size_t slot = params.slots[row], from_slot = params.from_slots[row];
    const float* from_ring = params.tail + from_slot * conv_silu::kRing * kWidth + at;
    ring = params.tail + slot * conv_silu::kRing * kWidth + at;
    moves = slot != from_slot;
    taps = tile::vector_at(params.conv, at);
#pragma unroll
    for (int i = 0; i < conv_silu::kTail; ++i) {
      const int from = position - conv_silu::kTail + i;
      before[i] = from < 0 ? 0.0f : __ldcg(from_ring + from % conv_silu::kRing * kWidth);
    }
  }

  __device__ void apply(float x, int position, SharedStorage& shared) const {
    if (index >= kChannels) return;
    if (keeps) ring[position % conv_silu::kRing * kWidth] = x;
    if (keeps && moves) move(position);
    shared.mixed[index] = tile::silu(
        fmaf(taps.w, x, fmaf(taps.z, before[2], fmaf(taps.y, before[1], taps.x * before[0]))));
  }

  // Brings the inputs before this one to the ring that is written.
  __device__ void move(int position) const {
#pragma unroll
    for (int i = 0; i < conv_silu::kTail; ++i) {
      const int at = position - conv_silu::kTail + i;
      if (at >= 0) ring[at % conv_silu::kRing * kWidth] = before[i];
    }
  }
};

extern __shared__ __align__(128) unsigned char dynamic_shared[];

// Asks for all parts of the head's state; one thread.
__device__ inline void ask(SharedStorage& shared, const float* state) {
  constexpr unsigned kBytes = sizeof(shared.state[0]);
  for (auto& full : shared.full) ptx::mbarrier_init(&full);
  ptx::mbarrier_init_fence();
  for (int split = 0; split < kSplits; ++split) {
    ptx::mbarrier_expect(&shared.full[split], kBytes);
    ptx::copy_bulk(shared.state[split], state + split * kColumns * Delta::kKeyDim, kBytes,
                   &shared.full[split]);
  }
}

template <class Tile>
__global__ __launch_bounds__(kThreads, kResident) void heads_f32(Params params) {
  static_assert(Tile::kThreads == kThreads, "a part's columns have their lanes");
  static_assert(kFits<sizeof(SharedStorage)>);
  auto& shared = *reinterpret_cast<SharedStorage*>(dynamic_shared);
  ptx::griddepcontrol_launch_dependents();
  const int head = blockIdx.x, warp = threadIdx.x / tile::kWarpLanes;
  const int lane = threadIdx.x % tile::kWarpLanes;
  const int column = threadIdx.x / kColumnLanes, part = threadIdx.x % kColumnLanes;
  const size_t row = blockIdx.y, slot = params.slots[row], from_slot = params.from_slots[row];
  const int position = static_cast<int>(params.positions[row]);
  const bool begun = position != 0;
  constexpr int kState = Delta::kValueDim * Delta::kKeyDim;
  float* state = params.state + (slot * Delta::kValueHeads + head) * kState;
  const float* before = params.state + (from_slot * Delta::kValueHeads + head) * kState;
  if (threadIdx.x == 0 && begun) ask(shared, before);
  Channel channel[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    channel[i].load(params, threadIdx.x + i * kThreads, head, row, position);
  }
  const float rate = expf(params.a_log[head]), bias = params.dt_bias[head];
  const float4 gain = tile::vector_at(params.norm, lane);
  ptx::griddepcontrol_wait();
  float x[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) x[i] = params.qkv[row * kWidth + channel[i].at];
  const size_t gates = row * Delta::kValueHeads + head;
  float4 gate{};
  if (warp == 0) gate = tile::vector_at(params.z + gates * Delta::kValueDim, lane);
  if (threadIdx.x == kThreads - 1) {
    shared.decay = gated_delta::decay(rate, params.a[gates], bias);
    shared.weight = tile::sigmoid(params.b[gates]);
  }
#pragma unroll
  for (int i = 0; i < kMine; ++i) channel[i].apply(x[i], position, shared);
  __syncthreads();  // the row is mixed; the state can be waited for
  if (warp == 0) {
    const auto unit = gated_delta::Unit::of(tile::vector_at(shared.mixed, lane),
                                            tile::vector_at(shared.mixed + Delta::kKeyDim, lane));
    shared.query[lane] = unit.query;
    shared.key[lane] = unit.key;
    if (lane == 0) shared.overlap = unit.overlap;
  }
  __syncthreads();  // query and key have unit length
  const gated_delta::Step step{shared.query, shared.key, shared.decay, shared.weight,
                               shared.overlap};
#pragma unroll 1  // larger code is read from memory longer than this waits
  for (int split = 0; split < kSplits; ++split) {
    const int at = split * kColumns + column;
    float4 s[kParts] = {};
    if (begun) {
      ptx::mbarrier_wait(&shared.full[split], 0);
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        s[i] = shared.state[split][column][i * kColumnLanes + part];
      }
    }
    const float result = step.take(s, shared.mixed[2 * Delta::kKeyDim + at], part);
    if (part == 0) shared.out[at] = result;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      tile::vector_at(state + at * Delta::kKeyDim, i * kColumnLanes + part) = s[i];
    }
  }
  __syncthreads();  // the head is complete
  if (warp != 0) return;
  float4& out = tile::vector_at(params.out + gates * Delta::kValueDim, lane);
  out = gated_rms_norm::normed(tile::vector_at(shared.out, lane), gain, gate);
}

// What a block asks for, so that no SM has more than its part of few blocks: those that end first
// in the kernel before would take as many as they have room for, and everybody wait for them.
inline unsigned shared_bytes(unsigned blocks) {
  constexpr unsigned kOnSm = target::SHARED_BYTES_PER_BLOCK;
  const unsigned each = blocks_for(blocks, target::SMS);
  const unsigned more = kOnSm / (each + 1) + 1;  // that one more would not fit
  return more > sizeof(SharedStorage) ? more : sizeof(SharedStorage);
}

template <class Tile, class D>
struct HeadsF32 {
  static cudaError_t launch(const float* qkv, const float* z, const float* b, const float* a,
                            const float* conv, const float* a_log, const float* dt_bias,
                            const float* norm, float* tail, float* state,
                            const unsigned* positions, const unsigned* from_slots,
                            const unsigned* slots, float* out, unsigned rows,
                            cudaStream_t stream) {
    const Params params{qkv,  z,    b,     a,         conv,       a_log, dt_bias,
                        norm, tail, state, positions, from_slots, slots, out};
    const unsigned blocks = rows * Delta::kValueHeads;
    const Launch shape{Delta::kValueHeads, kThreads, shared_bytes(blocks), rows};
    return launch_chained(heads_f32<Tile>, shape, stream, params);
  }
};

}  // namespace atlas::delta_net
