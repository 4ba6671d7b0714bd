// Several rows of a sequence, one after the other: drafts to be verified, and ends of prompts.
//
// A block has some columns of a value head: with a whole head a block, most SMs would be idle. All
// rows are convolved first, each warp normalises one row's query and key, then the state is updated
// row by row. The state after a draft, which may be rejected, is written as well as the last one.
// Another launch norms the heads, which several blocks have computed.
#pragma once

#include "base/launch.cuh"
#include "ops/delta_net/channel.cuh"

namespace atlas::delta_net {

// Most rows of a span, which are computed one by one.
inline constexpr int kSpanRows = 8;
// Channels of a block: the head's query and key, and its columns of the value.
inline constexpr int kSpanChannels = 2 * Delta::kKeyDim + kColumns;
inline constexpr int kSpanThreads =
    blocks_for(kSpanChannels, tile::kWarpLanes) * tile::kWarpLanes;
// Blocks that read the channels of one key head.
inline constexpr unsigned kReaders = kHeadGroup * kSplits;

static_assert(kSpanThreads >= kColumns * kColumnLanes, "each column has its lanes");
static_assert(kSpanThreads >= kSpanRows * tile::kWarpLanes, "each row has a warp");

struct Spans {
  const uint2* list;       // (spans): first row, rows
  const unsigned* draft_slots;  // (rows): slot of the state after a draft, or the row before one
  unsigned* arrived;       // (spans, kKeyHeads): blocks that have read; zero between launches
};

struct SpanStorage {
  float4 state[kColumns][tile::kWarpLanes];
  float mixed[kSpanRows][kSpanChannels];  // query, key, value after the convolution
  float4 query[kSpanRows][tile::kWarpLanes];
  float4 key[kSpanRows][tile::kWarpLanes];
  float overlap[kSpanRows];
  float decay[kSpanRows];
  float weight[kSpanRows];
  unsigned to[kSpanRows];  // slot of the state after the row
  unsigned readers;        // blocks of the key head that have read its channels before this one
  unsigned long long full;
};

static_assert(kFits<sizeof(SpanStorage)>);

// Loads the gates of a row; one thread.
__device__ inline void load_gates(const Params& params, SpanStorage& shared, size_t first, int at,
                                  int head) {
  const size_t gates = (first + at) * Delta::kValueHeads + head;
  const float rate = expf(params.a_log[head]);
  shared.decay[at] = gated_delta::decay(rate, params.a[gates], params.dt_bias[head]);
  shared.weight[at] = gated_delta::strength(params.a[gates], params.b[gates],
                                            params.dt_bias[head]);
}

// Brings query and key of a convolved row to unit length; one warp.
__device__ inline void unite(SpanStorage& shared, int at) {
  const int lane = threadIdx.x % tile::kWarpLanes;
  const float* mixed = shared.mixed[at];
  const auto unit = gated_delta::Unit::of(tile::vector_at(mixed, lane),
                                          tile::vector_at(mixed + Delta::kKeyDim, lane));
  shared.query[at][lane] = unit.query;
  shared.key[at][lane] = unit.key;
  if (lane == 0) shared.overlap[at] = unit.overlap;
}

// Updates a column of the state row by row, and writes it after each row that has a slot for it.
__device__ inline void carry(const Params& params, SpanStorage& shared, size_t first, int head,
                             int split, int rows, bool begun) {
  const int column = threadIdx.x / kColumnLanes, part = threadIdx.x % kColumnLanes;
  if (column >= kColumns) return;
  const size_t at = split * kColumns + column;
  const float skip = gated_delta::skip_of(params.skip, head);
  float4 s[kParts] = {};
  if (begun) {
    ptx::mbarrier_wait(&shared.full, 0);
#pragma unroll
    for (int i = 0; i < kParts; ++i) s[i] = shared.state[column][i * kColumnLanes + part];
  }
#pragma unroll 1
  for (int r = 0; r < rows; ++r) {
    const gated_delta::Step step{shared.query[r], shared.key[r], shared.decay[r],
                                 shared.weight[r], shared.overlap[r], skip};
    const float result = step.take(s, shared.mixed[r][2 * Delta::kKeyDim + column], part);
    const size_t of_row = (first + r) * Delta::kValueHeads + head;
    if (part == 0) params.out[of_row * Delta::kValueDim + at] = result;
    const unsigned to = shared.to[r];
    if (to == kNoSlot) continue;
    float* state = column_of(params, to, head, at);
#pragma unroll
    for (int i = 0; i < kParts; ++i) tile::vector_at(state, i * kColumnLanes + part) = s[i];
  }
}

inline __global__ __launch_bounds__(kSpanThreads) void spans_f32(Params params, Spans spans) {
  auto& shared = *reinterpret_cast<SpanStorage*>(dynamic_shared);
  ptx::griddepcontrol_launch_dependents();
  const uint2 span = spans.list[blockIdx.y];
  const size_t first = span.x;
  const int rows = span.y, head = blockIdx.x / kSplits, split = blockIdx.x % kSplits;
  if (rows == 0) return;  // other blocks of the grid wait for the kernel before
  const int warp = threadIdx.x / tile::kWarpLanes, lane = threadIdx.x % tile::kWarpLanes;
  const int position = static_cast<int>(params.positions[first]);
  const unsigned before = params.from_slots[first];
  if (threadIdx.x == 0 && position != 0) {
    ptx::mbarrier_init(&shared.full);
    ptx::mbarrier_init_fence();
    ask(shared.full, shared.state, column_of(params, before, head, split * kColumns));
  }
  const bool has_channel = threadIdx.x < kSpanChannels;
  const bool is_value = threadIdx.x >= 2 * Delta::kKeyDim;
  Channel channel;
  channel.load(params, threadIdx.x + (is_value ? split * kColumns : 0), head, first, position);
  if (threadIdx.x < rows) {
    const bool is_last = threadIdx.x + 1 == rows;
    const size_t row = first + threadIdx.x;
    shared.to[threadIdx.x] = is_last ? params.slots[row] : spans.draft_slots[row];
  }
  ptx::griddepcontrol_wait();
  float x[kSpanRows];
#pragma unroll
  for (int r = 0; r < kSpanRows; ++r) {
    if (r < rows) x[r] = params.qkv[(first + r) * kWidth + channel.at];
  }
  if (warp < rows && lane == 0) load_gates(params, shared, first, warp, head);
  Channel window = channel;
#pragma unroll
  for (int r = 0; r < kSpanRows; ++r) {
    if (r >= rows || !has_channel) break;
    shared.mixed[r][threadIdx.x] = window.mixed(x[r]);
    window.advance(x[r]);
  }
  __syncthreads();  // the rows are mixed, so the tail has been read; the state can be waited for
  unsigned* arrived = spans.arrived + blockIdx.y * Delta::kKeyHeads + head / kHeadGroup;
  unsigned readers = 0;
  if (threadIdx.x == 0) readers = ptx::fetch_add(arrived, 1);
  if (warp < rows) unite(shared, warp);
  __syncthreads();  // queries and keys have unit length
  carry(params, shared, first, head, split, rows, position != 0);
  if (threadIdx.x == 0) shared.readers = readers;
  __syncthreads();  // the number of readers is known
  // New inputs overwrite inputs that other blocks of the key head read: the last block that has
  // read writes the new inputs.
  const bool is_last = shared.readers + 1 == kReaders;
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

// A block of the launch that norms heads, one head a warp.
struct NormTile {
  static constexpr int kThreads = 128;
};

inline cudaError_t launch_norm(const Params& params, unsigned rows, cudaStream_t stream) {
  using Norm = gated_rms_norm::HeadsF32<NormTile, Delta>;
  return Norm::launch(params.out, params.norm, params.z, nullptr, rows, stream);
}

inline cudaError_t launch_spans(const Params& params, const Spans& spans, unsigned rows,
                                unsigned count, cudaStream_t stream) {
  const Launch shape{Delta::kValueHeads * kSplits, kSpanThreads, sizeof(SpanStorage), count};
  const cudaError_t failed = launch_chained(spans_f32, shape, stream, params, spans);
  if (failed != cudaSuccess) return failed;
  return launch_norm(params, rows, stream);
}

}  // namespace atlas::delta_net
