// Several rows of a sequence, one after the other: drafts that are verified, and ends of prompts.
//
// A block has a value head of a sequence. All rows are mixed first, each warp brings one to unit
// length, then the state goes from row to row in registers. The state behind a draft, which may not
// hold, is written beside the last one.
#pragma once

#include "base/launch.cuh"
#include "ops/delta_net/channel.cuh"

namespace atlas::delta_net {

// Rows of a span, at most: as many as are taken one by one.
inline constexpr int kSpanRows = 8;
inline constexpr int kSpanThreads = 512;
// Columns of the state that a block has in registers at once.
inline constexpr int kSpanColumns = kSpanThreads / kColumnLanes;

static_assert(kSpanThreads >= kChannels, "a thread has a channel at most");
static_assert(kSpanThreads >= kSpanRows * tile::kWarpLanes, "each row has a warp");
static_assert(Delta::kValueDim % kSpanColumns == 0 && kSpanColumns % kColumns == 0,
              "columns are whole parts, as often as it takes");

struct Spans {
  const uint2* list;       // (spans): first row, rows
  const unsigned* behind;  // (rows): state behind a row that is a draft or before one
  unsigned* arrived;       // (spans, kKeyHeads): blocks that have read; zero before and behind
};

struct SpanStorage {
  float4 state[kSplits][kColumns][tile::kWarpLanes];
  float mixed[kSpanRows][kChannels];  // query, key, value behind the convolution
  float4 query[kSpanRows][tile::kWarpLanes];
  float4 key[kSpanRows][tile::kWarpLanes];
  float out[kSpanRows][Delta::kValueDim];
  float overlap[kSpanRows];
  float decay[kSpanRows];
  float weight[kSpanRows];
  unsigned to[kSpanRows];  // where the state behind the row goes
  unsigned readers;        // blocks of the key head that have read its channels before this one
  unsigned long long full[kSplits];
};

static_assert(kFits<sizeof(SpanStorage)>);

// A warp's row: its gates, and its head at unit length once it is mixed.
struct SpanRow {
  int at;  // in the span; as many as there are rows or more is no row
  float4 gate{};

  __device__ void load(const Params& params, SpanStorage& shared, size_t first, int head,
                       float rate, float bias) {
    const int lane = threadIdx.x % tile::kWarpLanes;
    const size_t gates = (first + at) * Delta::kValueHeads + head;
    gate = tile::vector_at(params.z + gates * Delta::kValueDim, lane);
    if (lane != 0) return;
    shared.decay[at] = gated_delta::decay(rate, params.a[gates], bias);
    shared.weight[at] = tile::sigmoid(params.b[gates]);
  }

  __device__ void unite(SpanStorage& shared) const {
    const int lane = threadIdx.x % tile::kWarpLanes;
    const float* mixed = shared.mixed[at];
    const auto unit = gated_delta::Unit::of(tile::vector_at(mixed, lane),
                                            tile::vector_at(mixed + Delta::kKeyDim, lane));
    shared.query[at][lane] = unit.query;
    shared.key[at][lane] = unit.key;
    if (lane == 0) shared.overlap[at] = unit.overlap;
  }

  __device__ void finish(const Params& params, const SpanStorage& shared, size_t first, int head,
                         const float4& gain) const {
    const int lane = threadIdx.x % tile::kWarpLanes;
    const size_t values = ((first + at) * Delta::kValueHeads + head) * Delta::kValueDim;
    tile::vector_at(params.out + values, lane) =
        gated_rms_norm::normed(tile::vector_at(shared.out[at], lane), gain, gate);
  }
};

// Takes the state of the head from row to row, and leaves it behind those that say where.
__device__ inline void carry(const Params& params, SpanStorage& shared, int head, int rows,
                             bool begun) {
  const int part = threadIdx.x % kColumnLanes;
#pragma unroll 1
  for (int at = threadIdx.x / kColumnLanes; at < Delta::kValueDim; at += kSpanColumns) {
    float4 s[kParts] = {};
    if (begun) {
      const int split = at / kColumns;
      ptx::mbarrier_wait(&shared.full[split], 0);
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        s[i] = shared.state[split][at % kColumns][i * kColumnLanes + part];
      }
    }
#pragma unroll 1
    for (int r = 0; r < rows; ++r) {
      const gated_delta::Step step{shared.query[r], shared.key[r], shared.decay[r],
                                   shared.weight[r], shared.overlap[r]};
      const float result = step.take(s, shared.mixed[r][2 * Delta::kKeyDim + at], part);
      if (part == 0) shared.out[r][at] = result;
      const size_t to = shared.to[r];
      if (to == kNoSlot) continue;
      const size_t columns = (to * Delta::kValueHeads + head) * Delta::kValueDim + at;
      float* state = params.state + columns * Delta::kKeyDim;
#pragma unroll
      for (int i = 0; i < kParts; ++i) tile::vector_at(state, i * kColumnLanes + part) = s[i];
    }
  }
}

inline __global__ __launch_bounds__(kSpanThreads) void spans_f32(Params params, Spans spans) {
  auto& shared = *reinterpret_cast<SpanStorage*>(dynamic_shared);
  ptx::griddepcontrol_launch_dependents();
  const uint2 span = spans.list[blockIdx.y];
  const size_t first = span.x;
  const int rows = span.y, head = blockIdx.x;
  if (rows == 0) return;  // others of the grid wait for the kernel before
  const int warp = threadIdx.x / tile::kWarpLanes, lane = threadIdx.x % tile::kWarpLanes;
  const int position = static_cast<int>(params.positions[first]);
  constexpr int kState = Delta::kValueDim * Delta::kKeyDim;
  const size_t before = size_t{params.from_slots[first]} * Delta::kValueHeads + head;
  if (threadIdx.x == 0 && position != 0) ask(shared, params.state + before * kState);
  Channel channel;
  channel.load(params, threadIdx.x, head, first, position);
  if (threadIdx.x < rows) {
    const bool is_last = threadIdx.x + 1 == rows;
    const size_t row = first + threadIdx.x;
    shared.to[threadIdx.x] = is_last ? params.slots[row] : spans.behind[row];
  }
  const float rate = expf(params.a_log[head]), bias = params.dt_bias[head];
  const float4 gain = tile::vector_at(params.norm, lane);
  ptx::griddepcontrol_wait();
  float x[kSpanRows];
#pragma unroll
  for (int r = 0; r < kSpanRows; ++r) {
    if (r < rows) x[r] = params.qkv[(first + r) * kWidth + channel.at];
  }
  SpanRow mine{warp};
  if (warp < rows) mine.load(params, shared, first, head, rate, bias);
  const bool has_channel = channel.index < kChannels;
  Channel window = channel;
#pragma unroll
  for (int r = 0; r < kSpanRows; ++r) {
    if (r >= rows || !has_channel) break;
    shared.mixed[r][channel.index] = window.mixed(x[r]);
    window.advance(x[r]);
  }
  __syncthreads();  // the rows are mixed, so the tail has been read; the state can be waited for
  unsigned* arrived = spans.arrived + blockIdx.y * Delta::kKeyHeads + head / kHeadGroup;
  unsigned readers = 0;
  if (threadIdx.x == 0) readers = ptx::fetch_add(arrived, 1);
  if (warp < rows) mine.unite(shared);
  __syncthreads();  // queries and keys have unit length
  carry(params, shared, head, rows, position != 0);
  if (threadIdx.x == 0) shared.readers = readers;
  __syncthreads();  // the head is complete
  if (warp < rows) mine.finish(params, shared, first, head, gain);
  // New inputs may take the place of those that other heads of the key read: the last head to have
  // read keeps them.
  const bool is_last = shared.readers + 1 == kHeadGroup;
  if (threadIdx.x == 0 && is_last) ptx::store_relaxed(arrived, 0);
  if (!has_channel || !(channel.own || is_last)) return;
#pragma unroll
  for (int r = 0; r < kSpanRows; ++r) {
    if (r >= rows) break;
    channel.advance(x[r]);
    const unsigned to = shared.to[r];
    if (to != kNoSlot) channel.put_before(channel.ring_of(params, to), position + r + 1);
  }
}

inline cudaError_t launch_spans(const Params& params, const Spans& spans, unsigned count,
                                cudaStream_t stream) {
  const Launch shape{Delta::kValueHeads, kSpanThreads, sizeof(SpanStorage), count};
  return launch_chained(spans_f32, shape, stream, params, spans);
}

}  // namespace atlas::delta_net
