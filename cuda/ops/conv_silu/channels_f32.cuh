// Implements: Ops::conv_silu
// Match:      F32 channels, 4 taps
// Bound by:   HBM (8 bytes per element, 6 in cells)
// Sync:       none: four channels a thread, a chunk of rows one after the other; chained launch
#pragma once

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/head_f16.cuh"
#include "tile/math.cuh"
#include "tile/ptx.cuh"

namespace atlas::conv_silu {

using target::shapes::Delta;

inline constexpr int kChannels = 2 * Delta::kKeyHeads * Delta::kKeyDim +
                                 Delta::kValueHeads * Delta::kValueDim;
inline constexpr int kVectors = kChannels / 4;
inline constexpr int kTail = Delta::kConv - 1;
// Inputs in a channel's ring: one more than are read, so that the newest overwrites an unread one.
inline constexpr int kRing = Delta::kConv;
// Rows that are loaded together: fewer where biases take registers.
inline constexpr int kAhead = Delta::kMamba ? 12 : 16;

static_assert(Delta::kConv == 4, "a channel's taps are one vector");
static_assert(kChannels % 4 == 0, "a thread has four channels");
static_assert(Delta::kKeyDim % 4 == 0 && Delta::kValueDim % 4 == 0, "heads are whole vectors");

// Vectors of all queries and keys, which precede the values.
inline constexpr int kKeyVectors = 2 * Delta::kKeyHeads * Delta::kKeyDim / 4;

// Index of a row's vector within its head: queries and keys may have another width than values.
__device__ inline int within_head(int vector) {
  constexpr int kOfKey = Delta::kKeyDim / 4, kOfValue = Delta::kValueDim / 4;
  return vector < kKeyVectors ? vector % kOfKey : (vector - kKeyVectors) % kOfValue;
}

struct Params {
  const float* x;             // (rows, kChannels)
  const float* weight;        // (kChannels, kConv)
  const float* bias;          // (kChannels), null if there is none
  float* tail;  // (states: state_stride apart; kRing, kChannels): input of position p at p % kRing
  unsigned state_stride;      // elements
  const uint4* chunks;        // (chunks): first row, rows, first row and rows of its sequence
  const unsigned* positions;  // (rows)
  const unsigned* from_slots;  // (rows)
  const unsigned* slots;       // (rows)
  const unsigned* snapshot_rows;   // (rows): rows after which the tail is stored too; 0: none
  const unsigned* snapshot_slots;  // (rows)
  const unsigned* draft_slots;      // (rows): slot of the tail after a draft, or the row before one
  const unsigned* in_cells;   // (rows): not 0 where heads of `out` are F16
  float* out;                 // (rows, kChannels)
};

// Convolution of a channel's inputs, the oldest first.
__device__ inline float mixed(const float4& taps, float bias, float a, float b, float c, float d) {
  const float first = Delta::kMamba ? fmaf(taps.x, a, bias) : taps.x * a;
  return tile::silu(fmaf(taps.w, d, fmaf(taps.z, c, fmaf(taps.y, b, first))));
}

struct Taps {
  float4 of_channel[4];
  float4 bias;  // of Mamba-2

  __device__ float4 apply(const float4 (&x)[4]) const {
    return {mixed(of_channel[0], bias.x, x[0].x, x[1].x, x[2].x, x[3].x),
            mixed(of_channel[1], bias.y, x[0].y, x[1].y, x[2].y, x[3].y),
            mixed(of_channel[2], bias.z, x[0].z, x[1].z, x[2].z, x[3].z),
            mixed(of_channel[3], bias.w, x[0].w, x[1].w, x[2].w, x[3].w)};
  }
};

// Sequence of a chunk, and the sequence's rows in the step.
struct Sequence {
  const Params& params;
  const int first;     // row of the step
  const int rows;      // of the step
  const int position;  // of the first row
  const unsigned from_slot;
  const unsigned slot;
  const int vector;  // of the thread

  __device__ float4 of_step(int index) const {
    return tile::vector_at(params.x, (first + index) * size_t{kVectors} + vector);
  }

  __device__ float4& of_tail(unsigned of_slot, int at) const {
    float* tail = params.tail + size_t{of_slot} * params.state_stride;
    return tile::vector_at(tail, at % kRing * kVectors + vector);
  }

  // Input `index` of the step; negative inputs are in the convolution's tail.
  __device__ float4 input(int index) const {
    if (index >= 0) return of_step(index);
    return position + index < 0 ? float4{} : of_tail(from_slot, position + index);
  }

  // Writes the tail after `count` rows. Only the block of a sequence's first chunk reads the old
  // tail, so only this block writes new ones.
  __device__ void keep_tail(unsigned to_slot, int count) const {
    const bool all = to_slot != from_slot;  // otherwise older inputs are there already
    float4 newest[kTail];                   // all loaded before the first is written
#pragma unroll
    for (int i = 0; i < kTail; ++i) {
      if (i < count || all) newest[i] = input(count - 1 - i);
    }
#pragma unroll
    for (int i = 0; i < kTail; ++i) {
      const int at = position + count - 1 - i;
      if ((i < count || all) && at >= 0) of_tail(to_slot, at) = newest[i];
    }
  }
};

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void channels_f32(Params params) {
  ptx::griddepcontrol_launch_dependents();
  const int vector = blockIdx.x * Tile::kThreads + threadIdx.x;
  Taps taps;
  if (vector < kVectors) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      taps.of_channel[c] = tile::vector_at(params.weight, size_t{4} * vector + c);
    }
    if constexpr (Delta::kMamba) taps.bias = tile::vector_at(params.bias, vector);
  }
  const uint4 chunk = params.chunks[blockIdx.y];
  const bool in_cell = params.in_cells[chunk.x] != 0;  // equal for all rows of the chunk
  const Sequence sequence{params,
                          static_cast<int>(chunk.z),
                          static_cast<int>(chunk.w),
                          static_cast<int>(params.positions[chunk.z]),
                          params.from_slots[chunk.z],
                          params.slots[chunk.z],
                          vector};
  const int snapshot = params.snapshot_rows[chunk.z];
  ptx::griddepcontrol_wait();  // weights and lists depend on nothing; everything below does
  if (vector >= kVectors || chunk.y == 0) return;
  const int first = chunk.x - chunk.z, rows = chunk.y;
  float4 window[4];
#pragma unroll
  for (int i = 0; i < kTail; ++i) window[i] = sequence.input(first - kTail + i);
  const size_t start = size_t{chunk.x} * kVectors + vector;
  const int within = within_head(vector);
  float* head = params.out + size_t{chunk.x} * kChannels + (vector - within) * 4;
  for (int done = 0; done < rows; done += kAhead) {
    float4 ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (done + i < rows) ahead[i] = tile::vector_at(params.x, start + (done + i) * kVectors);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (done + i >= rows) break;
      window[3] = ahead[i];
      const float4 value = taps.apply(window);
      if (in_cell) {
        tile::put_vector_f16(head, within, value);
      } else {
        tile::vector_at(head, within) = value;
      }
      head += kChannels;
      window[0] = window[1], window[1] = window[2], window[2] = window[3];
    }
  }
  if (first != 0) return;
  // Rows of drafts are all in the first chunk. Tails are written in the order of rows: when one
  // overwrites the tail that was read, later ones need the step's inputs alone.
  for (int i = 0; i < rows; ++i) {
    const unsigned to = params.draft_slots[chunk.x + i];
    if (to != kNoSlot) sequence.keep_tail(to, i + 1);
  }
  sequence.keep_tail(sequence.slot, sequence.rows);
  if (snapshot != 0) sequence.keep_tail(params.snapshot_slots[chunk.z], snapshot);
}

template <class Tile, class D>
struct ChannelsF32 {
  static cudaError_t launch(const float* x, const float* weight, const float* bias, float* tail,
                            const unsigned* chunks, const unsigned* positions,
                            const unsigned* from_slots, const unsigned* slots,
                            const unsigned* snapshot_rows, const unsigned* snapshot_slots,
                            const unsigned* draft_slots, const unsigned* in_cells, float* out,
                            unsigned state_stride, unsigned, unsigned count, cudaStream_t stream) {
    const auto* list = reinterpret_cast<const uint4*>(chunks);
    const Params params{x,         weight,     bias,       tail,   state_stride,
                        list,      positions,  from_slots, slots,  snapshot_rows,
                        snapshot_slots, draft_slots,    in_cells,   out};
    const unsigned blocks = blocks_for(kVectors, Tile::kThreads);
    return launch_chained(channels_f32<Tile>, {blocks, Tile::kThreads, 0, count}, stream, params);
  }
};

}  // namespace atlas::conv_silu
