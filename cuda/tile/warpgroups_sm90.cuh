// Products of many rows with panels of weights, by Hopper's warpgroup instructions. The arithmetic
// is that of `Flat`, `Tiled` and `Stream`: an instruction sums the same 16 columns as `ptx::mma`,
// to the same bits.
//
// A block has warps that fetch, one that announces tiles to all, and two warpgroups that multiply.
// Each multiplying warp decodes a panel into registers; rows come from shared memory, as operands
// (K / columns, rows / 8, columns / 8, 8 rows, 8 columns) of 64 columns for F16 and of 128 for
// others: eight rows by eight columns are the 128 bytes that the tensor core reads at once, and a
// step of a tile's rows is one copy. The 16 columns of an instruction are those that
// `Matrix::decode` gives four lanes: two neighbours of each, then the next two.
//
// Products of many rows run at the device's power limit, and moving bytes to an SM takes power: so
// tiles are as large as registers allow for their sums. A warp decodes 32 columns while the 32
// before are multiplied. FP8, which scales sums of 128 columns, has no registers for that: there
// one warpgroup multiplies a step while the other decodes the next.
//
// Where tiles would leave SMs idle, or rows are so few that only weights take time, each block of a
// cluster has a segment of K for all the cluster's tiles; segments are then added in order, read
// from the blocks' shared memory.
#pragma once

#include <type_traits>

#include "base/launch.cuh"
#include "tile/panels.cuh"
#include "tile/wgmma_sm90.cuh"

namespace atlas::tile {

inline constexpr int kOperandRows = 8;

__host__ __device__ constexpr int operand_groups(int rows) {
  return (rows + kOperandRows - 1) / kOperandRows;
}

// Bytes of `rows` rows of `k` columns as operands.
__host__ __device__ constexpr size_t operand_bytes(int rows, int k) {
  return static_cast<size_t>(operand_groups(rows)) * kOperandRows * k * 2;
}

// Layout of rows as operands for a matrix of coding `kStorage`.
template <Storage kStorage>
struct Operands {
  using W = Matrix<kStorage>;
  // Columns of a block of operands. F16 is copied in shorter steps, more of which are in flight.
  static constexpr int kColumns = kStorage == Storage::f16 ? 64 : kBlockColumns;
  // Bytes of eight rows of a block of operands.
  static constexpr int kBytes = kOperandRows * kColumns * 2;

  unsigned char* base;
  int groups;  // of eight rows

  // Offset of an even column and its neighbour in a block's eight rows, for the first row.
  __device__ static int offset(int column) {
    const int group = column / W::kGroup, q = column % W::kGroup / W::kLaneColumns;
    const int pair = group * W::Code::kOctets + column % W::kLaneColumns / 8;
    return pair * 512 + column % 8 / 2 * 128 + q * 4;
  }

  // Address of an even column of a row.
  __device__ unsigned char* at(int row, int column) const {
    const size_t block = static_cast<size_t>(column / kColumns) * groups + row / kOperandRows;
    return base + block * kBytes + offset(column % kColumns) + row % kOperandRows * 16;
  }
};

// Threads of a block that rounds eight rows to operands.
inline constexpr int kRoundThreads = 256;
// Columns of the rows that a block rounds to operands.
inline constexpr int kRoundColumns = 512;

__host__ __device__ constexpr unsigned round_parts(int k) {
  return (k + kRoundColumns - 1) / kRoundColumns;
}

// Loads four columns of an F32 row.
__device__ inline float4 part_of(const float* row, int vector) {
  return reinterpret_cast<const float4*>(row)[vector];
}

// Rounds four columns to operands.
__device__ inline uint2 rounded(const float4& part) { return pack_vector(part); }

// Loads operands from a row that is already F16.
__device__ inline uint2 part_of(const f16* row, int vector) {
  return reinterpret_cast<const uint2*>(row)[vector];
}

__device__ inline uint2 rounded(const uint2& part) { return part; }

// Rounds `kRoundColumns` columns, number blockIdx.y, of eight rows, number blockIdx.x. `row(i)` is
// row i as `part_of` takes it, such as its address, or null if there is none. A warp reads a row
// with neighbouring lanes; through shared memory, a thread then writes 16 bytes, and eight threads
// the neighbours in eight rows.
template <Storage kStorage, class Row>
__device__ inline void round_rows(const Operands<kStorage>& to, int k, const Row& row) {
  using W = Matrix<kStorage>;
  using To = Operands<kStorage>;
  // Padded so that four pairs of columns in eight rows are in different banks.
  __shared__ uint2 staged[kOperandRows][kRoundColumns / 4 + 2];
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  const int first = blockIdx.y * kRoundColumns, columns = min(k - first, kRoundColumns);
  const auto from = row(blockIdx.x * kOperandRows + warp);
  constexpr int kEach = kRoundColumns / 4 / kWarpLanes;
  decltype(part_of(from, 0)) part[kEach];
  const auto is_there = [&](int i) { return from && (i * kWarpLanes + lane) * 4 < columns; };
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (is_there(i)) part[i] = part_of(from, first / 4 + i * kWarpLanes + lane);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (is_there(i)) staged[warp][i * kWarpLanes + lane] = rounded(part[i]);
  }
  __syncthreads();  // the rows are staged
  constexpr int kPieces = To::kColumns / 8;  // 16 bytes each, of a row's block
  const int of_row = threadIdx.x % kOperandRows;
  const unsigned* pairs = &staged[of_row][0].x;
#pragma unroll
  for (int i = 0; i < kRoundColumns / 8 * kOperandRows / kRoundThreads; ++i) {
    const int piece = (threadIdx.x + i * kRoundThreads) / kOperandRows;
    const int block = piece / kPieces, pair = piece % kPieces / 4;
    const int column = block * To::kColumns + pair / W::Code::kOctets * W::kGroup +
                       pair % W::Code::kOctets * 8 + piece % 4 * 2;
    if (block * To::kColumns >= columns) break;
    unsigned words[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) words[q] = pairs[(column + q * W::kLaneColumns) / 2];
    const size_t at = static_cast<size_t>(first / To::kColumns + block) * to.groups + blockIdx.x;
    unsigned char* octets = to.base + at * To::kBytes + piece % kPieces * 128;
    reinterpret_cast<uint4*>(octets)[of_row] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// A tile of a product: some rows by a block's panels from `panel` on.
struct WarpgroupTile {
  const unsigned char* weights;
  int n;
  int panel;
  const unsigned char* operands;  // of the tile's first row
  int groups;                     // of eight rows, of all operands
  int rows;
  void* out;                    // of the tile's first row, in the sink's type
  const unsigned char* beside;  // matrix of half of the panels, in tiles of two matrices
};

// Warpgroups that multiply.
inline constexpr int kConsumers = 2;
// Panels of a tile, one for each multiplying warp.
inline constexpr int kTilePanels = 4 * kConsumers;
// Most rows of a tile.
inline constexpr int kTileRowsMax = 128;
// Most rows of a tile where sums leave registers for nothing else.
inline constexpr int kWideRowsMax = 192;
// Warps that fetch; one more warp announces tiles.
inline constexpr int kFetchers = 3;
inline constexpr int kWarpgroupThreads = (kConsumers + 1) * 128;
// Shared memory of a block, bytes: steps in flight, their barriers, operands to be written.
inline constexpr int kWarpgroupBytes = 227 * 1024;

// Fewest rows from which on a kernel starts only after the one before it has ended: at the device's
// power limit, products are faster so, by more than the later start costs.
inline constexpr int kLateRowsMin = 4096;

inline bool starts_early(int rows) { return rows < kLateRowsMin; }

// Tiles of panels that cover `n` rows of weights.
__host__ __device__ constexpr int panel_tiles(int n) {
  return (panels_of(n) + kTilePanels - 1) / kTilePanels;
}

// Division by a launch constant, by one multiplication and few registers.
struct Divisor {
  // Bound of the numbers that are divided exactly.
  static constexpr unsigned kEnd = 1u << 16;

  unsigned by;
  unsigned factor;  // 2^32 / by, rounded up

  __host__ explicit Divisor(unsigned by) : by(by), factor(by > 1 ? 0xffffffffu / by + 1 : 0) {}

  __device__ int quotient(int of) const {
    return static_cast<int>(by > 1 ? __umulhi(static_cast<unsigned>(of), factor) : of);
  }
  __device__ int remainder(int of) const { return of - quotient(of) * static_cast<int>(by); }
};

// Tiles of rows that go through the same panels one after the other, so that these weights are read
// from memory once for all.
inline constexpr int kGroupTiles = 8;

// Order of a product's tiles.
struct TileOrder {
  int across;     // tiles of panels
  int down;       // tiles of rows
  Divisor group;  // tiles in a group of `kGroupTiles` tiles of rows

  __host__ TileOrder(unsigned across, unsigned down)
      : across(static_cast<int>(across)),
        down(static_cast<int>(down)),
        group(across * kGroupTiles) {}

  __host__ __device__ int tiles() const { return across * down; }

  // Tile i: index among tiles of panels in `x`, among tiles of rows in `y`.
  __device__ int2 at(int i) const {
    const int first = group.quotient(i) * kGroupTiles;
    const unsigned in_group = group.remainder(i), rows = min(kGroupTiles, down - first);
    const unsigned of_panels = in_group / rows;
    return {static_cast<int>(of_panels), first + static_cast<int>(in_group - of_panels * rows)};
  }
};

// Rows of a tile, up to `most`, for which all `of_rows(rows)` tiles take the SMs the shortest time:
// the time of a tile's step grows with its rows, but by less than in proportion.
template <class Count>
__host__ inline int tile_rows_for(int most, Count of_rows) {
  constexpr struct {
    int rows;
    unsigned time;
  } kChoices[] = {{kWideRowsMax, 23}, {kTileRowsMax, 16}, {64, 12}, {32, 10}};
  int best = most;
  unsigned shortest = ~0u;
  for (const auto& choice : kChoices) {
    const unsigned waves = (of_rows(choice.rows) + target::SMS - 1) / target::SMS;
    if (choice.rows <= most && waves * choice.time < shortest) {
      shortest = waves * choice.time, best = choice.rows;
    }
  }
  return best;
}

// Whether FP8 keeps three sets of sums, of a step, of a segment and of all: where a segment has
// several steps.
__host__ __device__ constexpr bool has_three_sums(Storage storage, int k) {
  return has_blocks(storage) && k / kBlockColumns > segments(k);
}

// Launches a kernel with `args`, rows of a tile and the tiles' order, for all `rows` rows by
// `across` tiles of panels: `kernel(constant)` is the one for tiles of at most `constant` rows.
// `early` is as in `Launch`.
template <Storage kStorage, int kK, class Kernel, class... Args>
cudaError_t launch_tiles(const Kernel& kernel, unsigned across, int rows, bool early,
                         cudaStream_t stream, Args... args) {
  constexpr int kMost = has_three_sums(kStorage, kK) ? kTileRowsMax : kWideRowsMax;
  const int tile_rows =
      tile_rows_for(kMost, [&](int each) { return across * blocks_for(rows, each); });
  const TileOrder order(across, blocks_for(rows, tile_rows));
  const auto tiles = static_cast<unsigned>(order.tiles());
  if (tiles > Divisor::kEnd) return cudaErrorInvalidValue;
  const Launch shape{min(tiles, static_cast<unsigned>(target::SMS)), kWarpgroupThreads,
                     kWarpgroupBytes, 1, 1, early};
  const auto launch = [&](auto most) {
    return launch_chained(kernel(most), shape, stream, args..., tile_rows, order);
  };
  if constexpr (kMost == kWideRowsMax) {
    if (tile_rows == kMost) return launch(std::integral_constant<int, kMost>{});
  }
  return launch(std::integral_constant<int, kTileRowsMax>{});
}

// Blocks of a grid for `tiles` in clusters of `parts`: all at once, or as many clusters as the SMs
// hold.
__host__ constexpr unsigned cluster_blocks(unsigned tiles, int parts) {
  const unsigned clusters = target::SMS / parts;
  return (tiles < clusters ? tiles : clusters) * parts;
}

// Named barrier of both multiplying warpgroups; barriers 1 and 2 make them alternate.
inline constexpr int kConsumersBarrier = 3;
// First of the named barriers that a multiplying warpgroup has for itself.
inline constexpr int kWarpgroupBarriers = 4;

// Buffers for operands to be written, `kOctets` octets of columns from each panel: two, one filled
// while the other is read, but one for the largest tiles.
template <int kRows, int kOctets = 1>
struct OutStorage {
  static constexpr int kBuffers = kRows * kOctets > kTileRowsMax ? 1 : 2;
  uint4 operands[kBuffers][kRows * kTilePanels * kOctets * 8 * 2 / 16];
};

// Placeholder for results that go to memory from registers.
struct NoOutStorage {};

// Most rows of a tile if a cluster has several tiles: sums of two tiles fit.
inline constexpr int kBufferedRowsMax = 64;
// Most rows of tiles in clusters that leave memory for more steps.
inline constexpr int kFewBufferedRowsMax = 32;

// A segment's sums, (rows, weights), of a tile and of the tile before, which are being added;
// padded so that a warp's rows are in different banks.
template <int kRows>
struct SegmentStorage {
  static constexpr int kWeights = kTilePanels * kPanelRows;
  static constexpr unsigned kBuffers = kRows <= kBufferedRowsMax ? 2 : 1;
  float sums[kBuffers][kRows][kWeights + 4];
  WarpgroupTile tile[kBuffers];
  unsigned long long there[kBuffers];  // mbarrier: all blocks' segments are written
};

// A multiplying thread's view of one of the two announced tiles.
template <class W, class Out>
struct Consumer {
  Out& shared;
  // Factors and biases of this warp's first eight rows of weights, and of its other eight.
  const float* row_scales[2];
  const float* biases[2];
  unsigned buffer;  // index of the tile, 0 or 1

  // Number among multiplying threads, computed wherever it is used, so that no register holds it.
  __device__ static int thread() {
    int thread = threadIdx.x - 128;
    asm volatile("" : "+r"(thread));
    return thread;
  }

  __device__ static int panel() { return thread() / kWarpLanes; }  // of the tile
  __device__ static int lane() { return thread() % kWarpLanes; }

  // Factor and bias of this lane's row of weights, of the warp's first eight or of its other eight.
  template <bool kOthers>
  __device__ Affine affine() const {
    const int g = lane() / 4;
    return {W::kRowFactors ? row_scales[kOthers][g] : 1.0f,
            target::BIASED ? biases[kOthers][g] : 0.0f};
  }

  __device__ static int warpgroup() { return thread() / 128; }
  // Whether this thread copies for its warpgroup.
  __device__ static bool leads() { return thread() % 128 == 0; }

  __device__ static void sync() { ptx::named_sync<kConsumers * 128>(kConsumersBarrier); }
  __device__ static void sync_warpgroup() {
    ptx::named_sync<128>(kWarpgroupBarriers + warpgroup());
  }
};

// Sink to F32 rows, which results replace or are added to; `out` is a pointer to float.
template <class Put>
struct RowSink {
  template <class W, int kSums>
  __device__ void operator()(const Consumer<W, NoOutStorage>& self, const WarpgroupTile& tile,
                             const float (&sums)[kSums]) const {
    const int lane = self.lane(), at = (tile.panel + self.panel()) * kPanelRows + lane / 4;
    const Affine low = self.template affine<false>(), high = self.template affine<true>();
    const int n = tile.n, rows = tile.rows - lane % 4 * 2;
    const bool has_low = at < n, has_high = at + 8 < n;
    float* to = static_cast<float*>(tile.out) + at + static_cast<size_t>(lane % 4 * 2) * n;
#pragma unroll
    for (int e = 0; e < kSums; e += 4) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const bool is_row = e * 2 + odd < rows;
        if (has_low && is_row) Put::put(to[0], low(sums[e + odd]));
        if (has_high && is_row) Put::put(to[8], high(sums[e + odd + 2]));
        to += odd == 0 ? n : 7 * n;
      }
    }
  }
};

// Sink that leaves a segment's sums in shared memory for the cluster.
struct PutsSegment {
  template <class W, int kRows, int kSums>
  __device__ void operator()(const Consumer<W, SegmentStorage<kRows>>& self,
                             const WarpgroupTile& tile, const float (&sums)[kSums]) const {
    const unsigned buffer = self.buffer % SegmentStorage<kRows>::kBuffers;
    if (self.thread() == 0) self.shared.tile[buffer] = tile;
    const int at = self.panel() * kPanelRows + self.lane() / 4, first = self.lane() % 4 * 2;
#pragma unroll
    for (int e = 0; e < kSums; e += 4) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        float* row = self.shared.sums[buffer][e * 2 + first + odd];
        row[at] = sums[e + odd], row[at + 8] = sums[e + odd + 2];
      }
    }
  }
};

// Products with matrices of kK columns by tiles of up to kRows rows; `Out` is the shared memory
// that results need. A cluster of `kParts` blocks shares each tile, every block with an equal part
// of K. `kPaired`: half of a tile's panels are of one matrix and half the same panels of another; a
// warp has eight rows of each, so a thread has the sums of both.
template <Storage kStorage, int kK, class Out = NoOutStorage, int kParts = 1,
          int kRows = kTileRowsMax, bool kPaired = false>
struct Warpgroups {
  using W = Matrix<kStorage>;
  using X = Operands<kStorage>;
  static_assert(kK % kBlockColumns == 0, "whole steps");
  // Columns of a step; more for few rows, for which a step's overhead counts.
  static constexpr int kStep = kParts == 1 ? X::kColumns : kBlockColumns;
  static constexpr int kBlocks = kStep / X::kColumns;  // of operands
  static constexpr int kAllSteps = kK / kStep;
  static constexpr int kSteps = kAllSteps / kParts;  // of this block
  static constexpr int kSegmentSteps = kAllSteps / segments(kK);
  static constexpr int kStepGroups = kStep / W::kGroup;
  static constexpr int kOctets = kStep / 32;
  // Instructions that multiply one step.
  static constexpr int kInstructions = kStep / 16;
  // Panels of one matrix in a tile.
  static constexpr int kOfMatrix = kPaired ? kTilePanels / 2 : kTilePanels;
  // Bytes of a panel's codes in a step.
  static constexpr int kCodeBytes = kStepGroups * W::kGroupBytes;
  // Bytes of a panel's codes and scales in a step.
  static constexpr int kPanelBytes = kCodeBytes + kStepGroups * W::kGroupScaleBytes;
  static constexpr int kTileGroups = kRows / kOperandRows;
  static constexpr int kStageBytes = kTilePanels * kPanelBytes + kBlocks * kTileGroups * X::kBytes;
  // Bytes of a panel's FP8 scales in all of this block's steps; too few to be copied by step.
  static constexpr int kScaleBytes = W::kBlockFactors ? kSteps * W::kBlockScaleBytes : 0;
  // Tiles that are announced at once.
  static constexpr int kKnown = 2;

  // An announced tile, its scales, and the barriers by which readers learn of both.
  struct Known {
    alignas(16) unsigned char scales[kTilePanels][kScaleBytes > 0 ? kScaleBytes : 16];
    alignas(16) float row_scales[kTilePanels][W::kRowFactors ? kPanelRows : 4];
    alignas(16) float biases[kTilePanels][target::BIASED ? kPanelRows : 4];
    WarpgroupTile tile;
    unsigned long long announced;    // the tile is there
    unsigned long long scaled;  // the scales of the tile are there
    unsigned long long taken;   // the multiplying warps have read tile and scales
  };

  // Most stages of steps in flight: more would not hide more of memory's latency.
  static constexpr int kStagesMax = 12;
  static constexpr int kStagesFit =
      (kWarpgroupBytes - sizeof(Out) - kKnown * sizeof(Known) - 256) / kStageBytes;
  static constexpr int kStages = kStagesFit < kStagesMax ? kStagesFit : kStagesMax;
  static constexpr bool kThreeSums = has_three_sums(kStorage, kK);
  // Most rows of a tile whose steps are decoded as a whole while others are multiplied: faster for
  // E2M1, whose decoding is long, while registers suffice.
  static constexpr int kAheadRows = kThreeSums || kStorage == Storage::f16 ? 64 : kTileRowsMax;

  // Registers of a fetching thread; sums of small tiles leave more.
  static constexpr int kFetcherRegisters = kRows <= kBufferedRowsMax ? 88 : 24;
  // Registers of a multiplying thread; sums of small tiles take fewer.
  static constexpr int kConsumerRegisters = kRows <= kBufferedRowsMax ? 208 : 240;

  struct SharedStorage {
    unsigned char codes[kStages][kTilePanels][kPanelBytes];
    unsigned char rows[kStages][kBlocks][kTileGroups][X::kBytes];
    Out out;
    Known known[kKnown];
    unsigned long long full[kStages];
    unsigned long long empty[kStages];
  };

  static_assert(kStages > 1, "two steps fit");
  static_assert(sizeof(SharedStorage) <= kWarpgroupBytes, "steps fit a block's memory");

  SharedStorage& shared;
  int slot = 0;
  unsigned parity = 0;

  __device__ explicit Warpgroups(unsigned char* dynamic_shared)
      : shared(*reinterpret_cast<SharedStorage*>(dynamic_shared)) {}

  __device__ static int warp() { return threadIdx.x / kWarpLanes; }
  __device__ static int lane() { return threadIdx.x % kWarpLanes; }
  // Number of this warpgroup among those that multiply.
  __device__ static int consumer() { return warp() / 4 - 1; }

  // First step of this block's part of K.
  __device__ static int first_step() { return blockIdx.x % kParts * kSteps; }

  __device__ void advance() {
    if (++slot == kStages) slot = 0, parity ^= 1;
  }

  // Runs all tiles of this block. `tiles(i, tile)` gives the grid's i-th tile, or false after the
  // last; the block's next one is gridDim.x further, or given by `tiles.next`. `sink(consumer,
  // tile, sums)` takes a thread's sums of a tile, without row scales. Waits for the kernels before,
  // in a cluster after weights are requested. `beside`: the previous kernel may run at the same
  // time, as all kernels before it have ended; it is waited for at the end, so that later kernels
  // find both ended.
  template <class Tiles, class Sink>
  __device__ void run(const Tiles& tiles, const Sink& sink, bool beside = false) {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < kStages; ++stage) {
        ptx::mbarrier_init(&shared.full[stage], 1);
        ptx::mbarrier_init(&shared.empty[stage], kConsumers);
      }
      for (Known& known : shared.known) {
        ptx::mbarrier_init(&known.announced, 1);
        ptx::mbarrier_init(&known.scaled, kWarpLanes);
        ptx::mbarrier_init(&known.taken, kTilePanels);
      }
      if constexpr (kParts > 1) {
        for (auto& there : shared.out.there) ptx::mbarrier_init(&there, kParts);
      }
      ptx::mbarrier_init_fence();
    }
    if constexpr (kParts > 1) {
      ptx::cluster_sync();  // the barriers are initialised
    } else {
      __syncthreads();  // the barriers are initialised
      follow(beside);
    }
    if (warp() < 4) {
      ptx::registers_release<kFetcherRegisters>();
      if (warp() < kFetchers) {
        fetch(beside);
      } else if (warp() == kFetchers) {
        announce(tiles);
      }
      if constexpr (kParts > 1) __syncwarp();  // lanes that diverged meet again
    } else {
      ptx::registers_take<kConsumerRegisters>();
      if constexpr (kParts > 1) follow(beside);
      if (consumer() == 1) give_turn();
      multiply_all(sink);
      if constexpr (kParts == 1) ptx::copy_out_wait();
      if (beside) ptx::griddepcontrol_wait();
    }
    if constexpr (kParts > 1) ptx::cluster_sync();  // no block reads or arrives here any more
  }

  // Waits for the kernels before this one unless `beside`, and lets the next one start.
  __device__ static void follow(bool beside) {
    if (!beside) ptx::griddepcontrol_wait();
    ptx::griddepcontrol_launch_dependents();
  }

  // Waits until all warps have taken a tile, and tells the cluster's blocks that this block's
  // segment is there. The announcing warp calls: a thread that has added to memory would first wait
  // for its additions.
  __device__ void hand_over(unsigned number) const {
    ptx::mbarrier_wait(&known(number).taken, parity_of(number));
    if (lane() < kParts) ptx::cluster_arrive(&shared.out.there[number % Out::kBuffers], lane());
  }

  // Sums over all segments, in order, of four neighbouring weights; `mine` is at this block's sums.
  __device__ static float4 joined(const float* mine) {
    float4 part[kParts], total{};
#pragma unroll
    for (int p = 0; p < kParts; ++p) part[p] = ptx::cluster_load(mine, p);
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      total.x = __fadd_rn(total.x, part[p].x), total.y = __fadd_rn(total.y, part[p].y);
      total.z = __fadd_rn(total.z, part[p].z), total.w = __fadd_rn(total.w, part[p].w);
    }
    return total;
  }

  // Adds up this block's share of a tile's segments, after all blocks of the cluster have written
  // them. `sink.join(tile, row, weight, sums)` takes the sums of four neighbouring weights, of a
  // pair of matrices those of both. A tile's sums overwrite those of the tile two before, which
  // every block has added before it hands over the tile between.
  template <class Sink>
  __device__ void join(unsigned number, const Sink& sink) const {
    const unsigned buffer = number % Out::kBuffers;
    ptx::cluster_wait(&shared.out.there[buffer], number / Out::kBuffers % 2);
    const WarpgroupTile& tile = shared.out.tile[buffer];
    constexpr int kQuads = Out::kWeights / 4 / (kPaired ? 2 : 1), kThreads = kConsumers * 128;
    const int thread = static_cast<int>(blockIdx.x % kParts) * kThreads + threadIdx.x - 128;
#pragma unroll 1
    for (int item = thread; item < tile.rows * kQuads; item += kParts * kThreads) {
      const int row = item / kQuads, weight = item % kQuads * 4;
      const float* mine = shared.out.sums[buffer][row];
      if constexpr (kPaired) {
        mine += weight / 8 * kPanelRows + weight % 8;  // a warp has eight weights of each matrix
        sink.join(tile, row, weight, joined(mine), joined(mine + 8));
      } else {
        sink.join(tile, row, weight, joined(mine + weight));
      }
    }
  }

  // The tile that is announced as `number`.
  __device__ Known& known(unsigned number) const { return shared.known[number % kKnown]; }
  // Parity of the barriers of announced tile `number`.
  __device__ static unsigned parity_of(unsigned number) { return number / kKnown % 2; }

  // Announces all tiles, and after them one without rows. To find a tile takes as long as a step or
  // two, so one warp does it for all.
  template <class Tiles>
  __device__ void announce(const Tiles& tiles) {
    bool there = true;
    unsigned number = 0;
    for (int i = blockIdx.x; there; ++number) {
      Known& to = known(number);
      if constexpr (kParts > 1) {
        if (number >= kKnown) hand_over(number - kKnown);
      } else {
        ptx::mbarrier_wait(&to.taken, parity_of(number) ^ 1);
      }
      // One lane writes the tile; this warp, which has few registers, reads it back too.
      if (lane() == 0) {
        if (!tiles(i, to.tile)) to.tile.rows = 0;
        ptx::mbarrier_arrive(&to.announced);
        if constexpr (requires { tiles.next(); }) {
          i = tiles.next();
        } else {
          i += gridDim.x;
        }
      }
      __syncwarp();  // the tile is there
      there = to.tile.rows > 0;
      if (there) ask_scales(to);
      ptx::copy_async_arrive(&to.scaled);
    }
    if constexpr (kParts > 1) hand_over(number - kKnown);
  }

  // Waits until tile `number` is announced; false after the last.
  __device__ bool next(unsigned number) const {
    ptx::mbarrier_wait(&known(number).announced, parity_of(number));
    return known(number).tile.rows > 0;
  }

  // Fetches codes and rows of all tiles. In a cluster, codes depend on no kernel: only the warp
  // that fetches rows waits for the kernels before.
  __device__ void fetch(bool beside) {
    if constexpr (kParts > 1) {
      if (warp() == kFetchers - 1) follow(beside);
    }
    for (unsigned number = 0; next(number); ++number) fetch(known(number).tile);
  }

  // Index of this lane's copy in a step: a panel's codes, then the rows; other lanes have none.
  // Lanes start copies one after the other: one warp alone would take longer than a step.
  __device__ static int copy_of_lane() {
    if constexpr (kParts == 1) return warp() + lane() * kFetchers;
    constexpr int kWarps = kFetchers - 1;
    if (warp() == kWarps) return kTilePanels + lane();
    return lane() < kTilePanels / kWarps ? warp() + lane() * kWarps : kTilePanels + 1;
  }

  // Multiplies all tiles.
  template <class Sink>
  __device__ void multiply_all(const Sink& sink) {
    // Only one register, the tile's number, is kept while a tile is multiplied.
    unsigned number = 0;
    for (; next(number); ++number) {
      ptx::mbarrier_wait(&known(number).scaled, parity_of(number));
      const int rows = known(number).tile.rows;
      if constexpr (kRows > kTileRowsMax) {
        consume<kRows>(number, sink);  // registers are few: there is no code for fewer rows
      } else if (kRows > 64 && rows > 64) {
        consume<kRows>(number, sink);
      } else if (kRows > 32 && rows > 32) {
        consume<kRows < 64 ? kRows : 64>(number, sink);
      } else if (rows > 16) {
        consume<32>(number, sink);
      } else if (rows > 8) {
        consume<16>(number, sink);
      } else {
        consume<8>(number, sink);
      }
      __syncwarp();  // all lanes have read the announced tile
      asm volatile("" : "+r"(number));
      if (lane() == 0) ptx::mbarrier_arrive(&known(number).taken);
    }
    if constexpr (kParts > 1) join(number - 1, sink);
  }

  // Matrix that a panel of the tile belongs to.
  __device__ static W matrix(const WarpgroupTile& tile, int panel) {
    return {panel < kOfMatrix ? tile.weights : tile.beside, tile.n, kK};
  }

  // Number of a tile's panel in its matrix; panels after the last one repeat it, sums dropped.
  __device__ static int panel_of(const WarpgroupTile& tile, int panel) {
    return min(tile.panel + panel % kOfMatrix, panels_of(tile.n) - 1);
  }

  // Panel in the tile, and half of that panel, with this warp's first eight rows of weights, or
  // with its other eight.
  __device__ static int2 rows_at(int others) {
    const int warp = Warpgroups::warp() - 4;
    if constexpr (kPaired) return {warp / 2 + others * kOfMatrix, warp % 2};
    return {warp, others};
  }

  // Fetches this warp's part of a tile.
  __device__ void fetch(const WarpgroupTile& tile) {
    const int groups = operand_groups(tile.rows), copy = copy_of_lane();
    const W w = matrix(tile, copy);
    const int panel = panel_of(tile, copy);
    const int first = first_step();
#pragma unroll 1  // registers are few
    for (int step = first; step < first + kSteps; ++step) {
      ptx::mbarrier_wait(&shared.empty[slot], parity ^ 1);
      if (copy < kTilePanels) {
        unsigned char* to = shared.codes[slot][copy];
        ask_panel(to, w.codes(panel, step * kStepGroups), kCodeBytes);
        if constexpr (W::kScales) {
          const unsigned char* scales = w.scales_of(panel, step * kStepGroups);
          ask_panel(to + kCodeBytes, scales, kStepGroups * W::kGroupScaleBytes);
        }
      } else if (copy == kTilePanels) {
        const unsigned bytes = groups * X::kBytes;
        ptx::mbarrier_expect(&shared.full[slot], kTilePanels * kPanelBytes + kBlocks * bytes);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          const size_t block = static_cast<size_t>(step * kBlocks + b) * tile.groups;
          ptx::copy_bulk_shared(shared.rows[slot][b], tile.operands + block * X::kBytes, bytes,
                                &shared.full[slot]);
        }
      }
      advance();
    }
  }

  // Starts a copy of a part of a panel, which other blocks read too unless in clusters.
  __device__ void ask_panel(unsigned char* to, const unsigned char* from, unsigned bytes) const {
    if constexpr (kParts > 1) {
      ptx::copy_bulk(to, from, bytes, &shared.full[slot]);
    } else {
      ptx::copy_bulk_shared(to, from, bytes, &shared.full[slot]);
    }
  }

  // Requests the factors of a tile that are not part of its steps.
  __device__ static void ask_scales(Known& known) {
    constexpr int kLanes = kWarpLanes / kTilePanels;  // of a panel
    const int to = lane() / kLanes, panel = panel_of(known.tile, to);
    const W w = matrix(known.tile, to);
    if constexpr (W::kBlockFactors) {
      constexpr int kEach = W::kBlockScaleBytes;
      const unsigned char* from = w.block_scales(panel, first_step());
#pragma unroll 1
      for (int at = lane() % kLanes * kEach; at < kScaleBytes; at += kLanes * kEach) {
        ptx::copy_async_8(known.scales[to] + at, from + at, true);
      }
    }
    const int at = lane() % kLanes * 4;
    if constexpr (W::kRowFactors) {
      const float* scales = w.row_scales() + panel * kPanelRows + at;
      ptx::copy_async(known.row_scales[to] + at, scales, true);
    }
    if constexpr (target::BIASED) {
      const float* biases = w.biases() + panel * kPanelRows + at;
      ptx::copy_async(known.biases[to] + at, biases, true);
    }
  }

  template <int kN, class Sink>
  __device__ void consume(unsigned number, const Sink& sink) {
    float total[kN / 2] = {};
    const Known& now = known(number);
    if constexpr (kN <= kAheadRows) {
      sum_ahead<kN>(now, total);
    } else if constexpr (kThreeSums) {
      sum_alternately<kN>(now, total);
    } else {
      sum_octets<kN>(now, total);
    }
    asm volatile("" : "+r"(number));
    if constexpr (kParts > 1) {
      if (number > 0) join(number - 1, sink);
    }
    const Known& of = known(number);
    const int2 low = rows_at(0), high = rows_at(1);
    const auto eight = [](const auto& of_panels, int2 at) { return of_panels[at.x] + at.y * 8; };
    sink(Consumer<W, Out>{shared.out,
                          {eight(of.row_scales, low), eight(of.row_scales, high)},
                          {eight(of.biases, low), eight(of.biases, high)},
                          number % 2},
         of.tile, total);
  }

  using OctetOperands = unsigned[2][4];
  using StepOperands = OctetOperands[kOctets];

  // FP8 scales of this warp's rows of weights in a step.
  __device__ static float2 scale_at(const Known& known, int step) {
    if constexpr (!W::kBlockFactors) return {};
    const auto of = [&](int2 at) {
      const auto* scales = reinterpret_cast<const float*>(known.scales[at.x]);
      return scales[step * 2 + at.y];
    };
    return {of(rows_at(0)), of(rows_at(1))};
  }

  // This warp's codes and scales of a group of columns, in the present slot.
  __device__ typename W::Fragment fragment(int group) const {
    typename W::Fragment to{};
#pragma unroll
    for (int others = 0; others < 2; ++others) {
      const int2 at = rows_at(others);
      const unsigned char* codes = shared.codes[slot][at.x];
      const auto* runs = reinterpret_cast<const uint4*>(codes + group * W::kGroupBytes);
      to.run[others] = runs[at.y * kWarpLanes + lane()];
      if constexpr (W::kScales) {
        const unsigned char* scales = codes + kCodeBytes + group * W::kGroupScaleBytes;
        to.scale[others] = W::lane_scale(scales, at.y);
      }
    }
    return to;
  }

  // Decodes an octet of a fragment into operands of two instructions.
  __device__ static void decode(const typename W::Fragment& from, int octet, OctetOperands& to) {
    W::decode(from, octet % W::Code::kOctets, to[0], to[1]);
    for (auto& operand : to) wgmma::keep(operand);
  }

  // Decodes this warp's panel of the step in the present slot, once it is there.
  __device__ void decode(StepOperands& to) const {
    ptx::mbarrier_wait(&shared.full[slot], parity);
#pragma unroll
    for (int octet = 0; octet < kOctets; ++octet) {
      const auto from = fragment(octet / W::Code::kOctets);
      W::decode(from, octet % W::Code::kOctets, to[octet][0], to[octet][1]);
    }
#pragma unroll
    for (auto& octet : to) {
      for (auto& operand : octet) wgmma::keep(operand);
    }
  }

  // Starts the two instructions of an octet of the step in the present slot.
  template <int kN>
  __device__ void start(const OctetOperands& a, int octet, float (&to)[kN / 2],
                        bool accumulate) const {
    constexpr int kOfBlock = X::kColumns / 32;
    const auto rows = wgmma::describe_plain(shared.rows[slot][octet / kOfBlock][0], 128, X::kBytes);
    const auto first = wgmma::moved(rows, octet % kOfBlock * 512);
    wgmma::multiply<kN>(to, a[0], first, accumulate);
    wgmma::multiply<kN>(to, a[1], wgmma::moved(first, 256), true);
  }

  // Starts all instructions of the step in the present slot.
  template <int kN>
  __device__ void multiply(const StepOperands& a, float (&to)[kN / 2], bool accumulate) const {
    wgmma::fence();
#pragma unroll
    for (int octet = 0; octet < kOctets; ++octet) {
      start<kN>(a[octet], octet, to, octet > 0 || accumulate);
    }
    wgmma::commit();
  }

  // Frees a slot that this warpgroup's instructions have read.
  __device__ void free(int used) const {
    if (threadIdx.x % 128 == 0) ptx::mbarrier_arrive(&shared.empty[used]);
  }

  // Waits for the instructions of a slot and frees it: they end for all four warps together, so all
  // reads are over.
  template <int kCount>
  __device__ void finish(float (&sums)[kCount], int used) {
    wgmma::wait<0>();
    wgmma::keep(sums);
    free(used);
  }

  // Adds a step's sums, times their scale, to a segment's, or makes them the segment's first.
  template <int kCount>
  __device__ static void add_step(float (&sum)[kCount], const float (&step)[kCount], float2 scale,
                                  bool first) {
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      const float factor = e % 4 < 2 ? scale.x : scale.y;
      sum[e] = first ? step[e] * factor : fmaf(step[e], factor, sum[e]);
    }
  }

  template <int kCount>
  __device__ static void add(float (&total)[kCount], const float (&sum)[kCount]) {
#pragma unroll
    for (int e = 0; e < kCount; ++e) total[e] = __fadd_rn(total[e], sum[e]);
  }

  // Multiplies a tile; each step is decoded while the one before is multiplied.
  template <int kN>
  __device__ void sum_ahead(const Known& known, float (&total)[kN / 2]) {
    float sum[kThreeSums ? kN / 2 : 1] = {}, part[kN / 2] = {};
    StepOperands a[2];
    decode(a[0]);
    const auto run_step = [&](int step, bool first, const StepOperands& now, StepOperands& later) {
      const int used = slot;
      multiply<kN>(now, part, !W::kBlockFactors && !first);
      advance();
      if (step + 1 < kSteps) decode(later);
      const float2 scale = scale_at(known, step);
      finish(part, used);
      const bool last = (step + 1) % kSegmentSteps == 0;
      if constexpr (kThreeSums) {
        add_step(sum, part, scale, first);
        if (last) add(total, sum);
      } else {
        if constexpr (W::kBlockFactors) add_step(part, part, scale, true);
        if (last) add(total, part);
      }
    };
    // Operands in registers alternate. If segments have few steps, a power of two, the compiler
    // knows which operands a step has.
    constexpr bool kKnown = kSegmentSteps <= 8 && (kSegmentSteps & (kSegmentSteps - 1)) == 0;
    constexpr int kUnrolled = kSteps == 1 ? 1 : kKnown && kSegmentSteps > 2 ? kSegmentSteps : 2;
    static_assert(!kKnown || kSteps % kUnrolled == 0, "unrolled steps are whole segments");
#pragma unroll 1
    for (int step = 0; step < kSteps; step += kUnrolled) {
#pragma unroll
      for (int i = 0; i < kUnrolled; ++i) {
        if (!kKnown && step + i >= kSteps) break;
        const int of_segment = kKnown ? i : step + i;
        run_step(step + i, of_segment % kSegmentSteps == 0, a[i % 2], a[(i + 1) % 2]);
      }
    }
  }

  // Multiplies a tile; each octet is decoded while the one before is multiplied, across steps, so
  // that tensor cores idle only at a segment's end. For FP8, a step is a segment.
  template <int kN>
  __device__ void sum_octets(const Known& known, float (&total)[kN / 2]) {
    static_assert(kOctets % 2 == 0, "operands alternate an even number of times in a step");
    float part[kN / 2];
    OctetOperands a[2];
    typename W::Fragment from;
#pragma unroll 1
    for (int step = 0; step < kSteps; step += kSegmentSteps) {
      int used = 0;
#pragma unroll 1
      for (int i = 0; i < kSegmentSteps; ++i) {
        ptx::mbarrier_wait(&shared.full[slot], parity);
#pragma unroll
        for (int octet = 0; octet < kOctets; ++octet) {
          if (octet % W::Code::kOctets == 0) from = fragment(octet / W::Code::kOctets);
          decode(from, octet, a[octet % 2]);
          wgmma::fence();
          start<kN>(a[octet % 2], octet, part, i > 0 || octet > 0);
          wgmma::commit();
          wgmma::wait<1>();  // the operands of the octet before have been read
          if (octet == 0 && i > 0) free(used);
        }
        used = slot;
        advance();
      }
      finish(part, used);
      if constexpr (W::kBlockFactors) add_step(part, part, scale_at(known, step), true);
      add(total, part);
    }
  }

  __device__ void take_turn() const { ptx::named_sync<kConsumers * 128>(1 + consumer()); }
  __device__ void give_turn() const { ptx::named_arrive<kConsumers * 128>(2 - consumer()); }

  // Multiplies a tile of FP8: one warpgroup multiplies a step while the other decodes its next.
  template <int kN>
  __device__ void sum_alternately(const Known& known, float (&total)[kN / 2]) {
    static_assert(kThreeSums, "the others have registers to decode ahead");
    float sum[kN / 2], part[kN / 2] = {};
    const auto run_step = [&](int step, bool first) {
      StepOperands a;
      decode(a);
      take_turn();
      multiply<kN>(a, part, false);
      give_turn();
      const float2 scale = scale_at(known, step);
      finish(part, slot);
      advance();
      add_step(sum, part, scale, first);
    };
#pragma unroll 1
    for (int step = 0; step < kSteps; step += kSegmentSteps) {
      run_step(step, true);
#pragma unroll 1
      for (int i = 1; i < kSegmentSteps; ++i) run_step(step + i, false);
      add(total, sum);
    }
  }
};

}  // namespace atlas::tile
