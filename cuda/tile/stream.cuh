// Rows by panels of weights, for decode: weights are streamed once through shared memory, and
// requested before the rows are there. The arithmetic is that of `Flat` and `Tiled`.
#pragma once

#include "tile/norm.cuh"
#include "tile/panels.cuh"
#include "tile/share.cuh"

namespace atlas::tile {

// Rows of a tile: an instruction's N.
inline constexpr int kTileRows = 8;

// Whether a large ring fits an SM beside the ring of the next kernel.
inline constexpr bool kLargeSm = target::SHARED_BYTES_PER_BLOCK >= 128 * 1024;

// Shape of a block: warps; pieces of weights that each warp has in flight or in use; and bytes of
// codes in a piece, which are copied together.
template <int kWarpCount, int kSlotCount, int kBytes>
struct Shape {
  static constexpr int kWarps = kWarpCount;
  static constexpr int kSlots = kSlotCount;
  static constexpr int kThreads = kWarps * kWarpLanes;
  static constexpr int kPieceBytes = kBytes;
  // Bytes of the scales in a piece.
  static constexpr int kScaleBytes = kPieceBytes / 8;
};

// Shapes of which an SM holds one block, as a grid has at most one block an SM: two smaller blocks
// would start on SMs where the kernel before ended first, and none on others. Wide is for products
// of more panels than SMs. On a small SM, Narrow is for one row, and Wide, whose rows take the rest
// of shared memory, for more.
using Wide = Shape<kLargeSm ? 16 : 8, kLargeSm ? 3 : 2, kLargeSm ? 2048 : 1024>;
using Narrow = Shape<kLargeSm ? 8 : 16, kLargeSm ? 6 : 2, 2048>;
inline constexpr int kNarrowRowsMax = kLargeSm ? kTileRows : 1;

// A shape with one slot less in each ring, which leaves shared memory for long rows.
template <class Of>
using Shorter = Shape<Of::kWarps, Of::kSlots - 1, Of::kPieceBytes>;

// Whether products of this many panels and rows use Narrow's blocks.
inline bool is_narrow(int panels, int rows) {
  return rows <= kNarrowRowsMax && (!kLargeSm || panels <= target::SMS);
}

// Whether each warp multiplies whole panels: if panels are so many that few warps are idle at the
// end. On large SMs memory is the limit either way.
template <class Shape>
constexpr bool wants_whole(int panels) {
  constexpr int kManyPanels = 8;  // of a warp
  return !kLargeSm && panels >= kManyPanels * Shape::kWarps * target::SMS;
}

// Most blocks of FP8 scales in a segment of streamed products without a norm: scales are copied in
// pairs, and an odd number of blocks, or more, takes a register that these kernels lack.
inline constexpr int kScaledBlocksMax = 8;
constexpr bool streams(Storage storage, int k) {
  const int blocks = k / segments(k) / kBlockColumns;  // of a segment
  if (!has_blocks(storage) || blocks < 2) return true;
  return blocks % 2 == 0 && blocks <= kScaledBlocksMax;
}

// Whether a segment's FP8 scales leave Wide on a large SM no register for its third slot.
constexpr bool is_tight(Storage storage, int k) {
  return kLargeSm && has_blocks(storage) &&
         k / segments(k) / kBlockColumns == kScaledBlocksMax;
}

// Rings of all warps, with their barriers.
template <class Shape>
struct StreamStorage {
  struct alignas(128) Slot {
    unsigned char codes[Shape::kPieceBytes];
    unsigned char scales[Shape::kScaleBytes];
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

// Rows as operands in the order of lanes, padded so that eight rows are in different banks; and the
// sums of two waves of units, which warps leave for the block to add.
template <class Shape>
struct StagedRows {
  f16* x;          // (rows, pitch)
  float* partial;  // (wave % 2, warp, panel row, row)
  int pitch;
  int rows;

  __host__ __device__ static constexpr int pitch_of(int k) { return k + 8; }

  __host__ __device__ static constexpr unsigned partial_bytes(int rows) {
    return static_cast<unsigned>(2 * Shape::kWarps * kPanelRows * rows * sizeof(float));
  }

  __host__ __device__ static constexpr unsigned bytes(int rows, int k) {
    return static_cast<unsigned>(rows * pitch_of(k) * sizeof(f16)) + partial_bytes(rows);
  }

  // Staging for `rows` rows of `k` columns in `bytes(rows, k)` bytes of memory.
  __device__ static StagedRows at(unsigned char* memory, int rows, int k) {
    auto* x = reinterpret_cast<f16*>(memory + partial_bytes(rows));
    return {x, reinterpret_cast<float*>(memory), pitch_of(k), rows};
  }

  __device__ void put(int row, int vector, const float4& value) const {
    put_vector(x + row * pitch, vector, value);
  }

  // Rounds rows of kK columns, which are side by side in global memory; several vectors are loaded
  // before the first is waited for.
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

// Dynamic shared memory of a block that streams weights for `rows` rows of `k` columns.
template <class Shape>
__host__ __device__ constexpr unsigned stream_bytes(int rows, int k) {
  return static_cast<unsigned>(sizeof(StreamStorage<Shape>)) + StagedRows<Shape>::bytes(rows, k);
}

// Most rows of `k` columns that a block can stage, up to `most`.
template <class Shape>
__host__ __device__ constexpr int staged_rows(int k, int most) {
  while (most > 0 && stream_bytes<Shape>(most, k) > target::SHARED_BYTES_PER_BLOCK) --most;
  return most;
}

// Blocks of a shape for which an SM's registers must suffice. A small SM's shared memory holds no
// second block of Narrow.
template <class Shape>
inline constexpr int kResidentBlocks = Shape::kWarps != Narrow::kWarps ? 2 : kLargeSm ? 3 : 1;

// Product of staged rows with `count` units, which are panels of matrices with kK columns. A
// block's warps take waves of `kAtOnce` units: a warp per segment and panel, or with `kWhole` per
// panel. `at(unit)` gives the unit's panel and matrix. `sink(unit, g, row, low, high)` takes the
// sums of the panel's rows g and g + 8.
//
// Bulk copies bring weights into shared memory: if they were in registers, the next kernel's blocks
// could not start on the SM, nor its weights be requested. The code is kept small: most of it runs
// a few times only, and it is read from memory as weights are. A request takes few instructions
// beside its piece's products, as a few more would limit an SM's memory bandwidth.
template <Storage kStorage, int kK, int kTiles, class Shape, class At, bool kWhole = false>
struct Stream {
  using W = Matrix<kStorage>;
  using Shared = StreamStorage<Shape>;
  using Slot = typename Shared::Slot;
  using Rows = StagedRows<Shape>;
  static constexpr int kChains = W::kBlockFactors ? kTiles : 1;

  static constexpr int kSegments = segments(kK);
  // Segments of a panel that one warp has, side by side.
  static constexpr int kOwnSegments = kWhole ? kSegments : 1;
  static constexpr int kAtOnce = Shape::kWarps * kOwnSegments / kSegments;
  // Groups of columns of a segment.
  static constexpr int kGroups = kK / kSegments / W::kGroup;
  // Groups of columns that a slot holds.
  static constexpr int kSpace = Shape::kPieceBytes / W::kGroupBytes;
  // Whole segments that a slot holds.
  static constexpr int kFit = kSpace / kGroups < kOwnSegments ? kSpace / kGroups : kOwnSegments;
  // Segments of a piece: one, a part of one, or, for codings without factors of blocks, several.
  static constexpr int kPieceSegments = W::kBlockFactors || kFit < 2 ? 1 : kFit;
  static constexpr int kPieceGroups =
      kSpace < kPieceSegments * kGroups ? kSpace : kPieceSegments * kGroups;
  static constexpr int kPieceColumns = kPieceGroups * W::kGroup;
  // Pieces of `kPieceSegments` segments.
  static constexpr int kPieces = (kPieceSegments * kGroups + kPieceGroups - 1) / kPieceGroups;
  // Pieces of all segments that a warp has of a panel.
  static constexpr int kOwnPieces = kOwnSegments / kPieceSegments * kPieces;
  // Groups of the last piece of a segment, which may be shorter.
  static constexpr int kLastGroups = kPieceSegments * kGroups - (kPieces - 1) * kPieceGroups;
  static constexpr bool kAlike = kLastGroups == kPieceGroups;
  static_assert(W::has(kK), "the storage has such matrices");
  static_assert(kAlike || kPieceSegments == 1, "a piece of several segments has all of them");
  static_assert(kOwnSegments % kPieceSegments == 0, "pieces have whole segments");
  static_assert(!W::kBlockFactors || (kAlike && kBlockColumns % kPieceColumns == 0),
                "a piece has one scale");

  // Groups of columns of a piece.
  __device__ static constexpr int groups_of(int piece) {
    return kAlike || (piece + 1) % kPieces != 0 ? kPieceGroups : kLastGroups;
  }
  // Groups of columns of a warp's pieces of a panel before `piece`.
  __device__ static constexpr int groups_before(int piece) {
    return kAlike ? piece * kPieceGroups
                  : piece / kPieces * kGroups + piece % kPieces * kPieceGroups;
  }
  // Blocks of columns that a warp has of a panel.
  static constexpr int kBlocks = kOwnSegments * kGroups * W::kGroup / kBlockColumns;
  // Blocks whose factors come with a panel's first piece: a bulk copy has at least two factors.
  static constexpr int kCopiedBlocks = (kBlocks + 1) / 2 * 2;
  // Bytes of the scales that come with each piece, or of all factors.
  static constexpr int kCopiedScales = W::kScales ? kPieceGroups * W::kGroupScaleBytes
                                                  : kCopiedBlocks * W::kBlockScaleBytes;
  static_assert(kCopiedScales <= Shape::kScaleBytes, "a slot has space for the scales");
  static_assert(!W::kBlockFactors || (kK / kBlockColumns % 2 == 0 && kCopiedBlocks % 2 == 0),
                "copies of scales are aligned");

  Shared& shared;
  At at;
  int count, segment, mine;
  int slot = 0;
  unsigned parity = 0;
  int ahead_unit, ahead_piece = 0;
  const unsigned char* ahead_codes = nullptr;
  const unsigned char* ahead_scales = nullptr;  // of columns
  float2 of_block{};  // FP8: scale of one of the blocks; each lane has another

  __device__ Stream(Shared& shared, const At& at, int count)
      : shared(shared),
        at(at),
        count(count),
        segment(kWhole ? 0 : warp() % kSegments),
        mine(kWhole ? warp() : warp() / kSegments),
        ahead_unit(mine) {}

  __device__ static int lane() { return threadIdx.x % kWarpLanes; }
  __device__ static int warp() { return threadIdx.x / kWarpLanes; }

  // Requests the next piece of this warp, if there is one, into slot `into`.
  __device__ void ask(int into) {
    if (ahead_unit >= count) return;
    const unsigned char* scales = ahead_scales;
    if (ahead_piece == 0) scales = enter(at(ahead_unit));
    if (ptx::elect()) copy(shared.ring[warp()][into], &shared.full[warp()][into], scales);
    const int groups = groups_of(ahead_piece);
    ahead_codes += groups * W::kGroupBytes;
    if constexpr (W::kScales) ahead_scales = scales + groups * W::kGroupScaleBytes;
    if (++ahead_piece < kOwnPieces) return;
    ahead_piece = 0;
    ahead_unit += kAtOnce;
  }

  // Makes `unit` the panel of the next pieces; returns the address of its scales.
  __device__ const unsigned char* enter(const Unit& unit) {
    const W w{unit.base, unit.n, kK};
    const int group = segment * kGroups, block = group * W::kGroup / kBlockColumns;
    ahead_codes = w.codes(unit.panel, group);
    if constexpr (W::kBlockFactors) return w.block_scales(unit.panel, block & ~1);
    return w.scales_of(unit.panel, group);
  }

  __device__ void copy(Slot& to, unsigned long long* full, const unsigned char* scales) const {
    const bool has_scales = W::kScales || (W::kBlockFactors && ahead_piece == 0);
    const int groups = groups_of(ahead_piece), codes = groups * W::kGroupBytes;
    const int of_scales = W::kScales ? groups * W::kGroupScaleBytes : kCopiedScales;
    ptx::mbarrier_expect(full, codes + (has_scales ? of_scales : 0));
    ptx::copy_bulk(to.codes, ahead_codes, codes, full);
    if (has_scales) ptx::copy_bulk(to.scales, scales, of_scales, full);
  }

  // Initialises barriers, once, before weights are requested.
  __device__ static void init(Shared& shared) {
    if (lane() == 0) {
      for (int i = 0; i < Shape::kSlots; ++i) ptx::mbarrier_init(&shared.full[warp()][i]);
      ptx::mbarrier_init_fence();
    }
    __syncwarp();  // the barriers are initialised
  }

  // Fills the slots from `first` on; only weights are read, so kernels may call before their wait.
  __device__ void ask_first(int first = 0) {
#pragma unroll 1
    for (int i = first; i < Shape::kSlots; ++i) ask(i);
  }

  // Fills slots with the units before `end`; returns the first slot that is free.
  __device__ int ask_before(int end) {
    int slot = 0;
#pragma unroll 1
    for (; slot < Shape::kSlots && ahead_unit < end; ++slot) ask(slot);
    return slot;
  }

  __device__ void prefetch() {
    init(shared);
    ask_first();
  }

  // Adds the products of a group; `operand(octet, tile)` gives eight columns of a tile's rows.
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
        float(&to)[4] = W::kBlockFactors ? chain[W::kBlockFactors ? t : 0] : sum[t];
        ptx::mma_f16(to, first, b.x, b.y);
        ptx::mma_f16(to, second, b.z, b.w);
      }
    }
  }

  // This lane's codes and scales of a group in a slot.
  __device__ static typename W::Fragment fragment(const Slot& from, int group) {
    typename W::Scales scales;
    if constexpr (W::kScales) scales = W::lane_scales(from.scales + group * W::kGroupScaleBytes);
    return W::fragment(from.codes + group * W::kGroupBytes, scales);
  }

  // Waits for a piece; `first`: whether the piece is the warp's first one of a panel.
  __device__ const Slot& await(bool first) {
    const Slot& from = shared.ring[warp()][slot];
    ptx::mbarrier_wait(&shared.full[warp()][slot], parity);
    if (W::kBlockFactors && first) {
      // Odd numbers of blocks: segments begin alternately at the first and second copied block.
      const int block = (kBlocks > 1 ? lane() % kBlocks : 0) + kBlocks % 2 * (segment % 2);
      of_block = reinterpret_cast<const float2*>(from.scales)[block];
    }
    return from;
  }

  // Adds the chains that end with a piece to the sums of their segments.
  __device__ void close(int piece, float (&sum)[kTiles][4], float (&chain)[kChains][4]) const {
    if (!W::kBlockFactors || (piece + 1) * kPieceColumns % kBlockColumns != 0) return;
    const int block = piece * kPieceColumns / kBlockColumns;
    const float2 scale = kBlocks == 1 ? of_block
                                      : float2{__shfl_sync(kAllLanes, of_block.x, block),
                                               __shfl_sync(kAllLanes, of_block.y, block)};
#pragma unroll
    for (int t = 0; t < kChains; ++t) close_chain(sum[t], chain[t], scale);
  }

  // Requests the next piece into the slot that has been read.
  __device__ void advance() {
    __syncwarp();  // all lanes have read
    ask(slot);
    next_slot();
  }

  __device__ void next_slot() {
    if (++slot == Shape::kSlots) slot = 0, parity ^= 1;
  }

  // Adds the products of the warp's `piece`-th piece of a panel to the sums of its segments; `x`
  // are the lane's octets of the warp's columns.
  __device__ void multiply(const f16* const (&x)[kTiles], int piece,
                           float (&sums)[kPieceSegments][kTiles][4], float (&chain)[kChains][4]) {
    const Slot& from = await(piece == 0);
    const int groups = groups_of(piece);
#pragma unroll
    for (int i = 0; i < kPieceGroups; ++i) {
      if (i >= groups) break;
      const auto operand = [&](int octet, int t) {
        const f16* columns = x[t] + groups_before(piece) * W::kGroup + i * W::kGroup + octet * 8;
        return *reinterpret_cast<const uint4*>(columns);
      };
      multiply_group(fragment(from, i), operand, sums[i / kGroups % kPieceSegments], chain);
    }
    close(piece, sums[0], chain);
  }

  template <class Sink>
  __device__ void run(const Rows& rows, Sink sink) {
    const int g = lane() / 4, q = lane() % 4;
    const f16* x[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      // Rows after the last one repeat it; their sums are dropped.
      const int row = min(t * kTileRows + g, rows.rows - 1);
      x[t] = rows.x + row * rows.pitch + segment * kGroups * W::kGroup + q * W::kLaneColumns;
    }
    float chain[kChains][4] = {};
    int round = 0;
#pragma unroll 1
    for (int first = 0; first < count; first += kAtOnce, ++round) {
      float sum[1][kTiles][4] = {};
      const Affines of = affines(first);
      if (first + mine < count) {
#pragma unroll 1
        for (int piece = 0; piece < kPieces; ++piece) {
          multiply(x, piece, sum, chain);
          advance();
        }
      }
      finish(first, round % 2, rows, of, sum[0], sink);
    }
  }

  // Adds the products of the warp's next whole panel, segment by segment, in order; calls
  // `advance()` after each slot that was read.
  template <class Advance>
  __device__ void multiply_whole(const f16* const (&x)[1], float (&chain)[1][4], float (&total)[4],
                                 const Advance& advance) {
    static_assert(kWhole && kTiles == 1);
#pragma unroll 1
    for (int piece = 0; piece < kOwnPieces;) {
      float sums[kPieceSegments][1][4] = {};
#pragma unroll 1
      for (const int end = piece + kPieces; piece < end; ++piece) {
        multiply(x, piece, sums, chain);
        advance();
      }
#pragma unroll
      for (const auto& sum : sums) {
#pragma unroll
        for (int i = 0; i < 4; ++i) total[i] += sum[0][i];
      }
    }
  }

  // `run` with whole panels a warp: warps never wait for each other, and exchange no sums. For so
  // many panels that each warp has some.
  template <class Sink>
  __device__ void run_whole(const Rows& rows, Sink sink) {
    const int g = lane() / 4, q = lane() % 4;
    const f16* x[1] = {rows.x + min(g, rows.rows - 1) * rows.pitch + q * W::kLaneColumns};
    float chain[1][4] = {};
#pragma unroll 1
    for (int unit = mine; unit < count; unit += kAtOnce) {
      const Unit of = at(unit);
      const W w{of.base, of.n, kK};
      const int row = of.panel * kPanelRows + g;
      const Affine low = w.affine(row), high = w.affine(row + 8);
      float total[4] = {};
      multiply_whole(x, chain, total, [&] { advance(); });
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int to = 2 * q + odd;
        if (to < rows.rows) sink(unit, g, to, low(total[odd]), high(total[odd + 2]));
      }
    }
  }

  // Factors and biases of two rows of a panel, r and r + 8.
  struct Affines {
    Affine low, high;
  };

  // Factors and biases of this thread's sums in `finish`, loaded before they are needed. All of a
  // thread's sums in a wave are of one panel; finding the panel takes time.
  __device__ Affines affines(int first) const {
    if constexpr (!W::kRowFactors && !target::BIASED) return {{1.0f, 0.0f}, {1.0f, 0.0f}};
    // Threads without a sum load the factors of another thread's, so that no warp diverges.
    const int unit = min(first + static_cast<int>(threadIdx.x) / 8 % kAtOnce, count - 1);
    const Unit of = at(unit);
    const W w{of.base, of.n, kK};
    const int row = of.panel * kPanelRows + threadIdx.x % 8;
    return {w.affine(row), w.affine(row + 8)};
  }

  // Adds up the segments of a wave's panels, in order.
  template <class Sink>
  __device__ void finish(int first, int odd_round, const Rows& rows, const Affines& of,
                         const float (&sum)[kTiles][4], Sink& sink) const {
    const int g = lane() / 4, q = lane() % 4, pitch = rows.rows;
    float* partial = rows.partial + odd_round * (Shape::kWarps * kPanelRows) * pitch;
    float* own = partial + (warp() * kPanelRows + g) * pitch;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int row = t * kTileRows + 2 * q + odd;
        if (row < rows.rows) own[row] = sum[t][odd], own[8 * pitch + row] = sum[t][odd + 2];
      }
    }
    __syncthreads();  // all segments' sums are written; the wave before's have been read
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
      sink(first + panel, r, row, of.low(low), of.high(high));
    }
  }
};

// Panels of one matrix, from `first` on.
struct Panels {
  const unsigned char* base;
  int n;
  int first;

  __device__ Unit operator()(int unit) const { return {base, n, first + unit}; }
};

}  // namespace atlas::tile
