// A few rows by panels of weights, for decode: the weights are streamed once through registers and
// asked for before the rows are there. The arithmetic is that of `Flat` and `Tiled`.
#pragma once

#include "tile/norm.cuh"
#include "tile/panels.cuh"

namespace atlas::tile {

// N of an instruction.
inline constexpr int kStreamRows = 8;

// Rows of bf16 in shared memory as lanes read operands; padded, so that eight of them lie in
// different banks.
struct StagedRows {
  __nv_bfloat16* x;  // (rows, pitch)
  int pitch;
  int rows;

  __host__ __device__ static constexpr int pitch_of(int k) { return k + 8; }

  __host__ __device__ static constexpr unsigned bytes(int rows, int k) {
    return static_cast<unsigned>(rows * pitch_of(k) * sizeof(__nv_bfloat16));
  }

  __device__ void put(int row, int vector, const float4& value) const {
    reinterpret_cast<uint2*>(x + row * pitch)[vector] =
        make_uint2(pack(value.x, value.y), pack(value.z, value.w));
  }

  // Octet of columns from `column` on of row `row`; zeros where there is no row.
  __device__ uint4 octet(int row, int column) const {
    if (row >= rows) return {};
    return *reinterpret_cast<const uint4*>(x + row * pitch + column);
  }

  // Rounds `rows` rows of `k` from global memory, side by side.
  __device__ void round(const float* from, int k) const {
    const int vectors = k / 4;
    for (int item = threadIdx.x; item < rows * vectors; item += kPanelThreads) {
      put(item / vectors, item % vectors, reinterpret_cast<const float4*>(from)[item]);
    }
  }
};

// Whether an SM has room for more than two blocks that stream.
inline constexpr bool kLargeSm = target::SHARED_BYTES_PER_BLOCK >= 128 * 1024;
// Bytes of weights that a block has under way or not yet used.
inline constexpr int kRingBytes = (kLargeSm ? 48 : 24) * 1024;
// Blocks of a grid on an SM.
inline constexpr int kStreamBlocks = kLargeSm ? 2 : 1;
// Blocks that fit there: those of the next kernel start beside them.
inline constexpr int kResidentBlocks = 2 * kStreamBlocks;
inline constexpr int kSlots = 3;
inline constexpr int kSlotBytes = kRingBytes / kPanelWarps / kSlots;

// Every warp's own ring, its barriers, and sums of two turns on their way from warps to the block.
struct StreamStorage {
  alignas(128) unsigned char ring[kPanelWarps][kSlots][kSlotBytes];
  float partial[2][kPanelWarps][kPanelRows][kStreamRows];  // (turn, warp, panel row, row)
  unsigned long long full[kPanelWarps][kSlots];
};

// Units are panels of matrices of one shape, `at_once` of them in turn for a block's warps: a warp
// per segment and panel. `at(unit)` gives the unit's matrix base and panel; it may be past the
// last unit. `sink(unit, g, row, low, high)` gets the sums of the panel's rows g and g + 8, before
// their row scale.
//
// Weights come by bulk copies into shared memory: registers would keep the next kernel's blocks
// off the SM, and with them its weights.
template <Storage kStorage, class At>
struct Stream {
  using W = Matrix<kStorage>;
  static constexpr int kSlotGroups = kSlotBytes / W::kGroupBytes;

  static __host__ __device__ constexpr int at_once(int k) { return kPanelWarps / segments(k); }

  StreamStorage& shared;
  At at;
  int k, turns, groups, pieces, segment, mine;
  int ahead_turn = 0, ahead_piece = 0;
  unsigned parity = 0;
  W ahead;
  int ahead_panel = 0;
  typename W::Scales scales[kSlots][kSlotGroups];

  // The block takes `at_once` units in each of `turns`, its warps' `mine` following each other.
  __device__ Stream(StreamStorage& shared, const At& at, int n, int k, int turns)
      : shared(shared),
        at(at),
        k(k),
        turns(turns),
        groups(k / W::kGroup / segments(k)),
        pieces((groups + kSlotGroups - 1) / kSlotGroups),
        ahead{nullptr, n, k} {
    const int warp = threadIdx.x / kWarpLanes;
    segment = warp % segments(k);
    mine = warp / segments(k);
  }

  __device__ static int lane() { return threadIdx.x % kWarpLanes; }
  __device__ static int warp() { return threadIdx.x / kWarpLanes; }

  __device__ void aim() {
    const auto unit = at(mine + ahead_turn * at_once(k));
    ahead.base = unit.base;
    ahead_panel = unit.panel;
  }

  // Asks for the next piece of this warp, if there is one.
  template <int kSlot>
  __device__ void ask() {
    if (ahead_turn >= turns) return;
    const int first = ahead_piece * kSlotGroups, count = min(kSlotGroups, groups - first);
    const int group = segment * groups + first;
    if (lane() == 0) {
      ptx::copy_bulk(shared.ring[warp()][kSlot], ahead.codes(ahead_panel, group),
                     count * W::kGroupBytes, &shared.full[warp()][kSlot]);
    }
#pragma unroll
    for (int i = 0; i < kSlotGroups; ++i) {
      if (i < count) scales[kSlot][i] = ahead.scales(ahead_panel, group + i);
    }
    if (++ahead_piece < pieces) return;
    ahead_piece = 0;
    if (++ahead_turn < turns) aim();
  }

  // Reads weights alone. At most once.
  __device__ void prefetch() {
    if (lane() == 0) {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) ptx::mbarrier_init(&shared.full[warp()][slot]);
      ptx::mbarrier_init_fence();
    }
    __syncwarp();  // the barriers can be waited for
    if (turns > 0) aim();
    ask<0>();
    ask<1>();
    ask<2>();
    static_assert(kSlots == 3, "all slots are asked for");
  }

  // Adds the products of the piece in a slot.
  template <int kSlot>
  __device__ void multiply(const StagedRows& rows, int piece, float (&sum)[4], float (&chain)[4]) {
    const int g = lane() / 4, q = lane() % 4;
    ptx::mbarrier_wait(&shared.full[warp()][kSlot], parity);
#pragma unroll
    for (int i = 0; i < kSlotGroups; ++i) {
      const int group = piece * kSlotGroups + i;
      if (group >= groups) break;
      const auto now = W::fragment(shared.ring[warp()][kSlot] + i * W::kGroupBytes,
                                   scales[kSlot][i]);
      const int column = (segment * groups + group) * W::kGroup + q * W::kLaneColumns;
#pragma unroll
      for (int octet = 0; octet < W::Code::kOctets; ++octet) {
        unsigned first[4], second[4];
        W::decode(now, octet, first, second);
        const uint4 b = rows.octet(g, column + octet * 8);
        float(&to)[4] = W::kFp8 ? chain : sum;
        ptx::mma(to, first, b.x, b.y);
        ptx::mma(to, second, b.z, b.w);
      }
      if (W::kFp8 && (group + 1) * W::kGroup % kBlockColumns == 0) {
        close_chain(sum, chain, now.block);
      }
    }
    __syncwarp();  // the slot is read
  }

  // The piece in a slot, and behind a turn's last its sums.
  template <int kSlot, class Sink>
  __device__ void take(const StagedRows& rows, int& turn, int& piece, float (&sum)[4],
                       float (&chain)[4], Sink& sink) {
    if (turn >= turns) return;
    multiply<kSlot>(rows, piece, sum, chain);
    ask<kSlot>();
    if (++piece < pieces) return;
    finish(turn, rows.rows, sum, sink);
    piece = 0;
    ++turn;
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[e] = 0.0f;
  }

  template <class Sink>
  __device__ void run(const StagedRows& rows, Sink sink) {
    float sum[4] = {}, chain[4] = {};
    int turn = 0, piece = 0;
    while (turn < turns) {
      take<0>(rows, turn, piece, sum, chain, sink);
      take<1>(rows, turn, piece, sum, chain, sink);
      take<2>(rows, turn, piece, sum, chain, sink);
      parity ^= 1;
    }
  }

  // Adds the segments of a turn's panels, in order.
  template <class Sink>
  __device__ void finish(int turn, int rows, const float (&sum)[4], Sink& sink) const {
    const int g = lane() / 4, q = lane() % 4;
    auto& partial = shared.partial[turn % 2];
    auto& own = partial[warp()];
    if (2 * q < rows) {
      own[g][2 * q] = sum[0], own[g][2 * q + 1] = sum[1];
      own[g + 8][2 * q] = sum[2], own[g + 8][2 * q + 1] = sum[3];
    }
    __syncthreads();  // all segments are there; the other turn's were read before
    const int count = segments(k), panels = at_once(k);
    for (int item = threadIdx.x; item < panels * 8 * rows; item += kPanelThreads) {
      const int r = item % 8, in_block = item / 8 % panels, row = item / (8 * panels);
      float low = 0.0f, high = 0.0f;
      for (int s = 0; s < count; ++s) {
        low += partial[in_block * count + s][r][row];
        high += partial[in_block * count + s][r + 8][row];
      }
      sink(in_block + turn * panels, r, row, low, high);
    }
  }
};

// A unit of `Stream`.
struct Unit {
  const unsigned char* base;
  int panel;
};

// `count` panels of one matrix from `first` on. Behind them comes the last one again, whose sums a
// sink must drop.
struct Panels {
  const unsigned char* base;
  int first;
  int count;

  __device__ Unit operator()(int unit) const { return {base, first + min(unit, count - 1)}; }
};

}  // namespace atlas::tile
