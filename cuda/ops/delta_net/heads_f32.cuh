// Implements: Ops::delta_net for steps of few rows per sequence
// Match:      F32, keys and values of 128 elements, 4 taps
// Bound by:   HBM (the state, read and written once)
// Sync:       four barriers, and bulk copies of the state; a block computes a value head of a row;
//             several rows of a sequence are left to `spans.cuh`; chained launches
//
// The state, the convolution's tail and the step's lists were written before the step began, so
// they are read before the wait for the kernel before. The state is copied to shared memory in
// parts: in registers it would leave one block on an SM, which cannot load one head while it
// computes another. The arithmetic is that of `conv_silu`, `gated_delta` and `gated_rms_norm`.
#pragma once

#include "ops/delta_net/spans.cuh"

namespace atlas::delta_net {

using gated_delta::kThreads;

// Whether a block norms its head; a norm over several heads is another launch.
inline constexpr bool kNorms = Delta::kNorm == Delta::kValueDim;
// Channels that one thread computes.
inline constexpr int kMine = (kChannels + kThreads - 1) / kThreads;
// Blocks that fit on an SM.
inline constexpr int kResident = target::SHARED_BYTES_PER_BLOCK >= 128 * 1024 ? 3 : 1;

struct SharedStorage {
  float4 state[kSplits][kColumns][tile::kWarpLanes];
  float mixed[kChannels];  // query, key, value after the convolution
  float4 query[tile::kWarpLanes];
  float4 key[tile::kWarpLanes];
  float out[Delta::kValueDim];
  float overlap;
  float decay;
  float weight;
  unsigned long long full[kSplits];
};

// Starts the copies of all parts of the head's state; one thread.
__device__ inline void ask_all(SharedStorage& shared, const float* state) {
  for (auto& full : shared.full) ptx::mbarrier_init(&full);
  ptx::mbarrier_init_fence();
  for (int split = 0; split < kSplits; ++split) {
    ask(shared.full[split], shared.state[split], state + split * kColumns * Delta::kKeyDim);
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
  const size_t row = blockIdx.y;
  const unsigned slot = params.slots[row], from_slot = params.from_slots[row];
  const int position = static_cast<int>(params.positions[row]);
  const bool begun = position != 0;
  float* state = column_of(params, slot, head, 0);
  const float* before = column_of(params, from_slot, head, 0);
  if (threadIdx.x == 0 && begun) ask_all(shared, before);
  Channel channel[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    channel[i].load(params, threadIdx.x + i * kThreads, head, row, position);
  }
  const float rate = expf(params.a_log[head]), bias = params.dt_bias[head];
  const float skip = gated_delta::skip_of(params.skip, head);
  float4 gain{};
  if constexpr (kNorms) gain = tile::vector_at(params.norm, lane);
  ptx::griddepcontrol_wait();
  // One of the heads that share a key's channels writes the new input, over one no longer read.
  const auto keep = [&](const Channel& channel, float x) {
    if (!channel.own && head % kHeadGroup != 0) return;
    float* ring = channel.ring_of(params, slot);
    ring[position % conv_silu::kRing * kWidth] = x;
    if (slot != from_slot) channel.put_before(ring, position);
  };
  float x[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) x[i] = params.qkv[row * kWidth + channel[i].at];
  const size_t gates = row * Delta::kValueHeads + head;
  float4 gate{};
  if (kNorms && warp == 0) gate = tile::vector_at(params.z + gates * Delta::kValueDim, lane);
  if (threadIdx.x == kThreads - 1) {
    shared.decay = gated_delta::decay(rate, params.a[gates], bias);
    shared.weight = gated_delta::strength(params.a[gates], params.b[gates], bias);
  }
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    if (channel[i].index >= kChannels) break;
    keep(channel[i], x[i]);
    shared.mixed[channel[i].index] = channel[i].mixed(x[i]);
  }
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
                               shared.overlap, skip};
#pragma unroll 1  // unrolled code takes longer to read from memory
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
  if constexpr (kNorms) {
    float4& out = tile::vector_at(params.out + gates * Delta::kValueDim, lane);
    out = gated_rms_norm::normed(tile::vector_at(shared.out, lane), gain, gate);
  } else if (lane < Delta::kValueDim / 4) {
    float* out = params.out + gates * Delta::kValueDim;
    tile::vector_at(out, lane) = tile::vector_at(shared.out, lane);
  }
}

// Shared memory that a block requests. Few blocks request more than they need, so that no SM gets
// more than its share: SMs that are free first would take all blocks that fit, and the kernel would
// last as long as those SMs.
inline unsigned shared_bytes(unsigned blocks) {
  constexpr unsigned kOnSm = target::SHARED_BYTES_PER_BLOCK;
  const unsigned each = blocks_for(blocks, target::SMS);
  const unsigned more = kOnSm / (each + 1) + 1;  // bytes for which one more block does not fit
  return more > sizeof(SharedStorage) ? more : sizeof(SharedStorage);
}

template <class Tile, class D>
struct HeadsF32 {
  static cudaError_t launch(const float* qkv, const float* z, const float* b, const float* a,
                            const float* conv, const float* conv_bias, const float* a_log,
                            const float* dt_bias, const float* skip, const float* norm,
                            float* tail, float* state,
                            const unsigned* positions, const unsigned* from_slots,
                            const unsigned* slots, const unsigned* draft_slots,
                            const unsigned* spans, unsigned* arrived, float* out,
                            unsigned state_stride, unsigned rows, unsigned span_count,
                            cudaStream_t stream) {
    const Params params{qkv,     z,    b,    a,    conv,  conv_bias,    a_log,
                        dt_bias, skip, norm, tail, state, state_stride, positions,
                        from_slots, slots, out};
    if (spans != nullptr) {
      const auto* list = reinterpret_cast<const uint2*>(spans);
      return launch_spans(params, {list, draft_slots, arrived}, rows, span_count, stream);
    }
    const unsigned blocks = rows * Delta::kValueHeads;
    const Launch shape{Delta::kValueHeads, kThreads, shared_bytes(blocks), rows};
    const cudaError_t failed = launch_chained(heads_f32<Tile>, shape, stream, params);
    if (kNorms || failed != cudaSuccess) return failed;
    return launch_norm(params, rows, stream);
  }
};

}  // namespace atlas::delta_net
