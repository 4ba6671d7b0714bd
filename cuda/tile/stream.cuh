// Some rows by panels of weights, for decode: the weights are streamed once through shared memory
// and asked for before the rows are there. The arithmetic is that of `Flat` and `Tiled`.
#pragma once

#include "tile/norm.cuh"
#include "tile/panels.cuh"

namespace atlas::tile {

// N of an instruction.
inline constexpr int kTileRows = 8;

// Whether an SM has room for a large ring beside the one of the next kernel.
inline constexpr bool kLargeSm = target::SHARED_BYTES_PER_BLOCK >= 128 * 1024;
// Codes of a piece of a panel that are copied together, and their scales, bytes.
inline constexpr int kPieceBytes = (kLargeSm ? 2 : 1) * 1024;
inline constexpr int kScaleBytes = kPieceBytes / 8;

// Warps of a block, and pieces that each has under way or not yet used.
template <int kWarpCount, int kSlotCount>
struct Shape {
  static constexpr int kWarps = kWarpCount;
  static constexpr int kSlots = kSlotCount;
  static constexpr int kThreads = kWarps * kWarpLanes;
};

// A grid has at most a block an SM. Blocks of products with more panels than that are so large that
// an SM has room for one: the next kernel of that kind starts where the one before has ended, and
// every SM has the same part of the work. Small products' blocks fit beside them.
using Wide = Shape<kLargeSm ? 16 : 8, kLargeSm ? 3 : 2>;
using Narrow = Shape<8, kLargeSm ? 4 : 2>;

// Every warp's own ring and its barriers.
template <class Shape>
struct StreamStorage {
  struct alignas(128) Slot {
    unsigned char codes[kPieceBytes];
    unsigned char scales[kScaleBytes];
  };

  Slot ring[Shape::kWarps][Shape::kSlots];
  unsigned long long full[Shape::kWarps][Shape::kSlots];
};

// A panel of a matrix.
struct Unit {
  const unsigned char* base;
  int n;
  int panel;
};

// Rows as operands as lanes read operands, padded so that eight of them lie in different banks, and
// the sums of two turns on their way from warps to the block.
template <class Shape>
struct StagedRows {
  f16* x;          // (rows, pitch)
  float* partial;  // (turn, warp, panel row, row)
  int pitch;
  int rows;

  __host__ __device__ static constexpr int pitch_of(int k) { return k + 8; }

  __host__ __device__ static constexpr unsigned partial_bytes(int rows) {
    return static_cast<unsigned>(2 * Shape::kWarps * kPanelRows * rows * sizeof(float));
  }

  __host__ __device__ static constexpr unsigned bytes(int rows, int k) {
    return static_cast<unsigned>(rows * pitch_of(k) * sizeof(f16)) + partial_bytes(rows);
  }

  // `rows` rows of `k` columns in memory that has room for them.
  __device__ static StagedRows at(unsigned char* memory, int rows, int k) {
    auto* x = reinterpret_cast<f16*>(memory + partial_bytes(rows));
    return {x, reinterpret_cast<float*>(memory), pitch_of(k), rows};
  }

  __device__ void put(int row, int vector, const float4& value) const {
    put_vector(x + row * pitch, vector, value);
  }

  // Rounds rows of kK columns from global memory, side by side; loads of several vectors are under
  // way before the first is waited for.
  template <int kK>
  __device__ void round(const float* from) const {
    constexpr int kVectors = kK / 4, kEach = (kVectors + Shape::kThreads - 1) / Shape::kThreads;
    constexpr int kAtOnce = kEach < 4 ? kEach : 4;
    const auto item = [](int first, int i) {
      return first + i * Shape::kThreads + static_cast<int>(threadIdx.x);
    };
#pragma unroll 1
    for (int first = 0; first < rows * kVectors; first += kAtOnce * Shape::kThreads) {
      float4 part[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (item(first, i) >= rows * kVectors) break;
        part[i] = reinterpret_cast<const float4*>(from)[item(first, i)];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (item(first, i) >= rows * kVectors) break;
        put(item(first, i) / kVectors, item(first, i) % kVectors, part[i]);
      }
    }
  }
};

// Dynamic shared memory of a block that streams for `rows` rows of `k` columns.
template <class Shape>
__host__ __device__ constexpr unsigned stream_bytes(int rows, int k) {
  return static_cast<unsigned>(sizeof(StreamStorage<Shape>)) + StagedRows<Shape>::bytes(rows, k);
}

// Blocks on an SM that the registers of one leave room for.
template <class Shape>
inline constexpr int kResidentBlocks = Shape::kWarps == Wide::kWarps ? 2 : 3;

// The part of `items` of a block: the first blocks have one more than the others.
struct Share {
  int first;
  int count;

  __device__ static Share of(int items, int block, int blocks) {
    const int each = items / blocks, more = items % blocks;
    return {block * each + min(block, more), each + (block < more)};
  }
};

// `count` units, which are panels of matrices with kK columns, `kAtOnce` of them in turn for a
// block's warps: a warp per segment and panel. `at(unit)` gives the unit's panel and matrix.
// `sink(unit, g, row, low, high)` gets the sums of the panel's rows g and g + 8.
// Where a warp has whole panels, a piece may be of `kPieceSegments` segments.
//
// Weights come by bulk copies into shared memory: registers would keep the next kernel's blocks
// off the SM, and with them its weights. The code is small, because most of it runs a few times
// only: it is read from memory as the weights are.
template <Storage kStorage, int kK, int kTiles, class Shape, class At, int kPieceSegments = 1>
struct Stream {
  using W = Matrix<kStorage>;
  using Shared = StreamStorage<Shape>;
  using Slot = typename Shared::Slot;
  using Rows = StagedRows<Shape>;
  static constexpr int kPieceGroups = kPieceBytes / W::kGroupBytes;
  static constexpr int kPieceColumns = kPieceGroups * W::kGroup;
  static constexpr int kChains = W::kFp8 ? kTiles : 1;
  // Of a piece: its bulk copies are expected; a scale, too small for one, is copied by a thread.
  static constexpr unsigned kArrivals = W::kFp8 ? 2 : 1;
  static_assert(!W::kFp8 || kBlockColumns % kPieceColumns == 0, "a piece has one scale");
  static_assert(!W::kNvfp4 || W::kGroup == kBlockColumns, "a group has a block's scales");

  static constexpr int kSegments = segments(kK);
  static constexpr int kAtOnce = Shape::kWarps / kSegments;
  static constexpr int kGroups = kK / kSegments / W::kGroup;
  // Groups of the segments whose pieces follow each other.
  static constexpr int kRunGroups = kPieceSegments * kGroups;
  static constexpr int kPieces = (kRunGroups + kPieceGroups - 1) / kPieceGroups;
  static_assert(kPieceSegments == 1 || (!W::kFp8 && kRunGroups <= kPieceGroups),
                "segments of one piece");

  Shared& shared;
  At at;
  int count, segment, mine;
  int slot = 0;
  unsigned parity = 0;
  int ahead_unit, ahead_piece = 0;
  Unit ahead{};

  __device__ Stream(Shared& shared, const At& at, int count)
      : shared(shared),
        at(at),
        count(count),
        segment(warp() % kSegments),
        mine(warp() / kSegments),
        ahead_unit(mine) {}

  __device__ static int lane() { return threadIdx.x % kWarpLanes; }
  __device__ static int warp() { return threadIdx.x / kWarpLanes; }

  // Asks for the next piece of this warp, if there is one.
  __device__ void ask(int into) {
    if (ahead_unit >= count) return;
    if (ahead_piece == 0) ahead = at(ahead_unit);
    if (lane() == 0) copy(shared.ring[warp()][into], &shared.full[warp()][into]);
    if (++ahead_piece < kPieces) return;
    ahead_piece = 0;
    ahead_unit += kAtOnce;
  }

  __device__ void copy(Slot& to, unsigned long long* full) const {
    const W w{ahead.base, ahead.n, kK};
    const int first = ahead_piece * kPieceGroups, group = segment * kGroups + first;
    const int live = min(kPieceGroups, kRunGroups - first), codes = live * W::kGroupBytes;
    const unsigned char* scales = w.block_scales(ahead.panel, group * W::kGroup / kBlockColumns);
    const int scale_bytes = W::kNvfp4 ? live * W::kBlockScaleBytes : 0;
    ptx::mbarrier_expect(full, codes + scale_bytes);
    ptx::copy_bulk(to.codes, w.codes(ahead.panel, group), codes, full);
    if constexpr (W::kNvfp4) ptx::copy_bulk(to.scales, scales, scale_bytes, full);
    if constexpr (W::kFp8) ptx::copy_small(to.scales, scales, full);
  }

  // Once, before weights are asked for.
  __device__ void init() {
    if (lane() == 0) {
      for (int i = 0; i < Shape::kSlots; ++i) {
        ptx::mbarrier_init(&shared.full[warp()][i], kArrivals);
      }
      ptx::mbarrier_init_fence();
    }
    __syncwarp();  // the barriers can be waited for
  }

  // Fills the slots from `first` on. Reads weights alone.
  __device__ void ask_first(int first = 0) {
#pragma unroll 1
    for (int i = first; i < Shape::kSlots; ++i) ask(i);
  }

  // Fills slots with the units before `end`; gives the first slot that is left.
  __device__ int ask_before(int end) {
    int slot = 0;
#pragma unroll 1
    for (; slot < Shape::kSlots && ahead_unit < end; ++slot) ask(slot);
    return slot;
  }

  __device__ void prefetch() {
    init();
    ask_first();
  }

  // Adds the products of a group; `operand(octet, tile)` are eight columns of a tile's rows.
  template <class Operand>
  __device__ static void multiply_group(const typename W::Fragment& now, const Operand& operand,
                                        float (&sum)[kTiles][4], float (&chain)[kChains][4]) {
#pragma unroll
    for (int octet = 0; octet < W::Code::kOctets; ++octet) {
      unsigned first[4], second[4];
      W::decode(now, octet, first, second);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint4 b = operand(octet, t);
        float(&to)[4] = W::kFp8 ? chain[W::kFp8 ? t : 0] : sum[t];
        ptx::mma_f16(to, first, b.x, b.y);
        ptx::mma_f16(to, second, b.z, b.w);
      }
    }
  }

  // Adds the products of a piece to those of its segments; `x` are the lane's octets of their
  // columns.
  __device__ void multiply(const f16* const (&x)[kTiles], int piece,
                           float (&sums)[kPieceSegments][kTiles][4], float (&chain)[kChains][4]) {
    const Slot& from = shared.ring[warp()][slot];
    ptx::mbarrier_wait(&shared.full[warp()][slot], parity);
#pragma unroll
    for (int i = 0; i < kPieceGroups; ++i) {
      if (!W::kFp8 && piece * kPieceGroups + i >= kRunGroups) break;
      typename W::Scales scales;
      if constexpr (W::kNvfp4) scales = W::lane_scales(from.scales + i * W::kBlockScaleBytes);
      const auto now = W::fragment(from.codes + i * W::kGroupBytes, scales);
      const auto operand = [&](int octet, int t) {
        const f16* columns = x[t] + piece * kPieceColumns + i * W::kGroup + octet * 8;
        return *reinterpret_cast<const uint4*>(columns);
      };
      multiply_group(now, operand, sums[kPieceSegments == 1 ? 0 : i / kGroups], chain);
    }
    if (W::kFp8 && (piece + 1) * kPieceColumns % kBlockColumns == 0) {
      const float2 scale = W::lane_scales(from.scales).block;
#pragma unroll
      for (int t = 0; t < kChains; ++t) {
        close_chain(sums[0][t], chain[t], scale);
      }
    }
    __syncwarp();  // the slot is read
  }

  template <class Sink>
  __device__ void run(const Rows& rows, Sink sink) {
    const int g = lane() / 4, q = lane() % 4;
    const f16* x[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      // A row behind the last one is the last one again: its sums go nowhere.
      const int row = min(t * kTileRows + g, rows.rows - 1);
      x[t] = rows.x + row * rows.pitch + segment * kGroups * W::kGroup + q * W::kLaneColumns;
    }
    float chain[kChains][4] = {};
    int turn = 0;
#pragma unroll 1
    for (int first = 0; first < count; first += kAtOnce, ++turn) {
      float sum[1][kTiles][4] = {};
      const float2 scales = row_scales(first);
      if (first + mine < count) {
#pragma unroll 1
        for (int piece = 0; piece < kPieces; ++piece) {
          multiply(x, piece, sum, chain);
          ask(slot);
          if (++slot == Shape::kSlots) slot = 0, parity ^= 1;
        }
      }
      finish(first, turn % 2, rows, scales, sum[0], sink);
    }
  }

  // Factors of the sums that this thread adds in `finish`, asked for before they are needed: those
  // of one panel's rows r and r + 8, for the panels of a turn divide the threads.
  __device__ float2 row_scales(int first) const {
    const int unit = first + threadIdx.x / 8 % kAtOnce;
    if (!W::kNvfp4 || threadIdx.x >= kAtOnce * 8 * kTiles * kTileRows || unit >= count) {
      return {1.0f, 1.0f};
    }
    const Unit of = at(unit);
    const W w{of.base, of.n, kK};
    const int row = of.panel * kPanelRows + threadIdx.x % 8;
    return {w.row_scale(row), w.row_scale(row + 8)};
  }

  // Adds the segments of a turn's panels, in order.
  template <class Sink>
  __device__ void finish(int first, int odd_turn, const Rows& rows, const float2& scales,
                         const float (&sum)[kTiles][4], Sink& sink) const {
    const int g = lane() / 4, q = lane() % 4, pitch = rows.rows;
    float* partial = rows.partial + odd_turn * (Shape::kWarps * kPanelRows) * pitch;
    float* own = partial + (warp() * kPanelRows + g) * pitch;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int row = t * kTileRows + 2 * q + odd;
        if (row < rows.rows) own[row] = sum[t][odd], own[8 * pitch + row] = sum[t][odd + 2];
      }
    }
    __syncthreads();  // all segments are there; the other turn's were read before
#pragma unroll 1
    for (int item = threadIdx.x; item < kAtOnce * 8 * rows.rows; item += Shape::kThreads) {
      const int r = item % 8, panel = item / 8 % kAtOnce, row = item / (8 * kAtOnce);
      if (first + panel >= count) continue;
      const float* from = partial + (panel * kSegments * kPanelRows + r) * pitch + row;
      float low = 0.0f, high = 0.0f;
#pragma unroll
      for (int s = 0; s < kSegments; ++s, from += kPanelRows * pitch) {
        low += from[0];
        high += from[8 * pitch];
      }
      sink(first + panel, r, row, low * scales.x, high * scales.y);
    }
  }
};

// Panels of one matrix from `first` on.
struct Panels {
  const unsigned char* base;
  int n;
  int first;

  __device__ Unit operator()(int unit) const { return {base, n, first + unit}; }
};

}  // namespace atlas::tile
