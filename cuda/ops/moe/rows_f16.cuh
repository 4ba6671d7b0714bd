// Implements: Ops::moe for up to 128 rows, 64 where an SM has little shared memory
// Match:      experts of one weight format and shape, the shared one last, if any; operands F16.
//             Rows of experts so wide or many that no block has memory for its part go as `route`
//             and `experts`
// Bound by:   HBM (the weights of the experts chosen, once); NVFP4 of many rows: instructions
// Sync:       one row, or a few of small experts: as `row_f16`; more: two chained launches, both
//             products and the weighted sum. In the first, a block waits for other blocks'
//             activations and, if rows are many, choices
//
// A tile is an expert and up to eight of its rows. Every block makes the plan of all tiles for
// itself, which is quicker than waiting for a kernel that does. A block has a share of all panels
// of gate and up, then of down: nearly of the same tiles, so that blocks wait little for each
// other, and down's weights are loaded while the last ones of gate and up are used.
//
// Blocks pass on choices of many rows, and activations, word by word: a word of `relay` is
// `kNotYet` until it is written, and is reset after the sum. So all blocks of the grid must be on
// the GPU at once: there is one an SM, and none waits for a block that starts later.
#pragma once

#include "ops/experts/scan.cuh"
#include "ops/moe/row_f16.cuh"

namespace atlas::moe {

// Most rows: each has a bit in an expert's list.
inline constexpr int kRowsMax = target::MOE_ROWS;
inline constexpr int kListWords = (kRowsMax + 31) / 32;
inline constexpr int kExperts = Experts::kCount + kHasShared;
inline constexpr int kAssignmentsMax = kRowsMax * kAssigned;
inline constexpr int kVisitedMax = kAssignmentsMax < kExperts ? kAssignmentsMax : kExperts;
inline constexpr int kTilesMax = (kAssignmentsMax - kVisitedMax) / tile::kTileRows + kVisitedMax;
// Blocks of the products, one an SM.
inline constexpr int kBlocks = target::SMS;
// Most assignments of a tile.
inline constexpr int kTileRowsMost = kRowsMax < tile::kTileRows ? kRowsMax : tile::kTileRows;
// Most assignments of the tiles that a block has panels of.
inline constexpr int kResidentRows = ((kTilesMax + kBlocks - 1) / kBlocks + 1) * kTileRowsMost;
inline constexpr int kSumThreads = 256;
// Blocks that sum a row; some only reset their share of `relay`.
inline constexpr int kSumBlocks = 2;
// Number of rows that together choose more than half of the experts.
inline constexpr int kManyRows = 32;
// Most bytes of weights that are brought to the second-level cache while many rows choose.
inline constexpr int kWarmBytes = tile::kLargeSm ? 52 << 20 : 0;
// Blocks that bring weights to the cache: the grid's first ones, which start on SMs that the kernel
// before leaves free.
inline constexpr int kWarmBlocks = 32;
// Word of an activation or a choice that is not there yet: a NaN that no arithmetic results in.
inline constexpr unsigned kNotYet = ~0u;
// Most rows for which every block chooses; for more, it takes less to wait for choices that are
// shared among all blocks.
inline constexpr int kChosenByAll = 16;
// Words of a row's choice, each with two experts.
inline constexpr int kChoiceWords = Experts::kPerToken / 2;

struct RowsParams {
  const float* x;                // (rows, kWidth)
  const float* logits;           // (rows, kCount + 1)
  const float* per_expert;       // (kCount), as in `route`; null if there are none
  const unsigned char* gate_up;  // (kCount + 1) matrices of (kInner, kWidth)
  const unsigned char* down;     // (kCount + 1) matrices of (kWidth, kIntermediate)
  float* relay;                  // (kRowsMax + 1, kAssigned, kIntermediate), choices in the last
  f16x2* y;                      // (rows, kAssigned, experts::kPairs)
  float* residual;               // (rows, kWidth), or sums that are latents
  int rows;

  // Choices of all rows, (kRowsMax, kChoiceWords).
  __device__ unsigned* choices() const {
    constexpr size_t kActivations = size_t{kRowsMax} * kAssigned * Experts::kIntermediate;
    return reinterpret_cast<unsigned*>(relay + kActivations);
  }
};

static_assert(kRowsMax * kChoiceWords <= kAssigned * Experts::kIntermediate, "choices fit a row");
static_assert(Experts::kPerToken % 2 == 0 && Experts::kCount < 0xffff,
              "no two experts are `kNotYet`");

// An expert and some of its assignments, from place `first` on: a place is the index of an
// assignment of a row to an expert, sorted by expert, then by row.
struct Tile {
  unsigned short expert;
  unsigned short first;
  unsigned short rows;
};

struct Plan {
  unsigned rows_of[kExperts][kListWords];  // a bit a row
  unsigned short first[kExperts];          // first place of the expert
  unsigned short expert_of[kAssignmentsMax];     // (row, rank)
  unsigned short assignment_of[kAssignmentsMax];       // place -> (row, rank)
  Tile tile[kTilesMax];
  int tiles;
  unsigned sums[tile::kWarpLanes];

  // Mask of the bits in word `word` of a list that are of rows before `row`.
  __device__ static unsigned below(int row, int word) {
    const int here = row - word * 32;
    return here >= 32 ? ~0u : here <= 0 ? 0 : (1u << here) - 1;
  }

  // Clears the lists before rows are added; a barrier must follow.
  __device__ void clear(int rows) {
    for (int e = threadIdx.x; e < kExperts; e += tile::Wide::kThreads) {
#pragma unroll
      for (int word = 0; word < kListWords; ++word) {
        rows_of[e][word] = e == Experts::kCount ? below(rows, word) : 0;
      }
    }
  }

  // Chooses experts for `kRows` rows from `row` on, `apart` rows apart, if they exist, and adds the
  // rows to the experts' lists; one warp.
  template <int kRows>
  __device__ void add(int row, int apart, int rows, const float* logits, const float* per_expert) {
    const int lane = threadIdx.x % tile::kWarpLanes;
    int chosen[kRows];
    // A read after the last row reads the first one instead.
    const size_t stride = row + (kRows - 1) * apart < rows ? apart : 0;
    route::best<kRows>(logits + size_t{route::kLogits} * row, stride * route::kLogits, per_expert,
                       chosen);
#pragma unroll
    for (int i = 0; i < kRows; ++i, row += apart) {
      if (row >= rows || lane >= kAssigned) break;
      expert_of[row * kAssigned + lane] = chosen[i];
      if (lane < Experts::kPerToken) atomicOr(&rows_of[chosen[i]][row / 32], 1u << row % 32);
    }
  }

  // Chooses experts for a row, and passes the choice to all blocks; one warp.
  __device__ static void announce(const RowsParams& params, int row) {
    const unsigned lane = threadIdx.x % tile::kWarpLanes;
    int chosen[1];
    route::best<1>(params.logits + size_t{route::kLogits} * row, 0, params.per_expert, chosen);
    const unsigned low = __shfl_sync(tile::kAllLanes, chosen[0], 2 * lane);
    const unsigned high = __shfl_sync(tile::kAllLanes, chosen[0], 2 * lane + 1);
    if (lane >= kChoiceWords) return;
    ptx::store_relaxed(params.choices() + row * kChoiceWords + lane, low | high << 16);
  }

  // Adds all rows by the choices that blocks pass on, once each choice has arrived.
  __device__ void add_announced(const RowsParams& params) {
    const unsigned* choices = params.choices();
    for (int item = threadIdx.x; item < params.rows * kChoiceWords;
         item += tile::Wide::kThreads) {
      unsigned two = kNotYet;
      while (two == kNotYet) two = ptx::load_relaxed(choices + item);
      const int row = item / kChoiceWords, rank = item % kChoiceWords * 2;
      const unsigned bit = 1u << row % 32, low = two & 0xffffu, high = two >> 16;
      unsigned short* of_row = expert_of + row * kAssigned;
      of_row[rank] = low, of_row[rank + 1] = high;
      if (kHasShared && rank == 0) of_row[Experts::kPerToken] = Experts::kCount;
      atomicOr(&rows_of[low][row / 32], bit);
      atomicOr(&rows_of[high][row / 32], bit);
    }
  }

  __device__ int count(int expert) const {
    int count = 0;
#pragma unroll
    for (int word = 0; word < kListWords; ++word) count += __popc(rows_of[expert][word]);
    return count;
  }

  // Makes the tiles, after a barrier for all rows; another barrier must follow.
  __device__ void make_tiles() {
    constexpr int kEach = (kExperts + tile::Wide::kThreads - 1) / tile::Wide::kThreads;
    const int begin = threadIdx.x * kEach, end = min(begin + kEach, kExperts);
    unsigned both = 0;  // rows, and tiles in the upper half
    for (int e = begin; e < end; ++e) {
      const unsigned own = count(e);
      both += own + ((own + tile::kTileRows - 1) / tile::kTileRows << 16);
    }
    both = experts::before(both, sums);
    int at = static_cast<int>(both >> 16), sorted = static_cast<int>(both & 0xffffu);
    for (int e = begin; e < end; ++e) {
      const int own = count(e);
      first[e] = sorted;
      for (int done = 0; done < own; done += tile::kTileRows) {
        const int here = min(own - done, tile::kTileRows);
        tile[at++] = {static_cast<unsigned short>(e), static_cast<unsigned short>(sorted + done),
                      static_cast<unsigned short>(here)};
      }
      sorted += own;
      if (e == kExperts - 1) tiles = at;
    }
  }

  // Sorts assignments by expert, then by row, and stores each in `assignment_of`. The caller must
  // have barriers before and after.
  __device__ void sort_rows(int rows) {
    for (int at = threadIdx.x; at < rows * kAssigned; at += tile::Wide::kThreads) {
      const int expert = expert_of[at], row = at / kAssigned;
      int sorted = first[expert];
#pragma unroll
      for (int word = 0; word < kListWords; ++word) {
        sorted += __popc(rows_of[expert][word] & below(row, word));
      }
      assignment_of[sorted] = at;
    }
  }
};

static_assert(tile::Wide::kWarps <= tile::kWarpLanes, "a warp's sum a lane");

// The panels of the plan's tiles, tile by tile, from panel `first` on.
template <tile::Storage kStorage, bool kDown>
struct TileUnits {
  using W = tile::Matrix<kStorage>;
  static constexpr int kN = kDown ? kWidth : kInner;
  static constexpr int kK = kDown ? Experts::kIntermediate : kWidth;
  static constexpr int kPanels = tile::panels_of(kN);

  const unsigned char* weights;
  const Plan& plan;
  int first;

  // Unsigned, so that division by a power of two is one instruction.
  __device__ int tile_of(int unit) const { return static_cast<unsigned>(first + unit) / kPanels; }
  __device__ int panel_of(int unit) const { return static_cast<unsigned>(first + unit) % kPanels; }

  __device__ W matrix(int expert) const {
    return {weights + expert * W::bytes(kN, kK), kN, kK};
  }

  __device__ tile::Unit operator()(int unit) const {
    return {matrix(plan.tile[tile_of(unit)].expert).base, kN, panel_of(unit)};
  }
};

// Most panels of gate and up of which a warp multiplies a segment in one round.
inline constexpr int kRoundPanelsMax = tile::kLargeSm ? 2 : 1;

// Sums of all warps in a round; rows of a panel are padded against bank conflicts.
struct Partial {
  static constexpr int kPitch = tile::kTileRows + 1;

  float row[kRoundPanelsMax][tile::Wide::kWarps][tile::kPanelRows][kPitch];
};

template <class Shape>
struct StorageOf {
  static constexpr int kPitch = tile::StagedRows<Shape>::pitch_of(kWidth);
  static constexpr int kActPitch = tile::StagedRows<Shape>::pitch_of(Experts::kIntermediate);

  tile::StreamStorage<Shape> stream;
  Partial partial[2];  // of even and of odd rounds
  union {
    // Rows of even and of odd tiles; if all rows fit a tile, they are in the first buffer.
    alignas(16) f16 x[2][tile::kTileRows][kPitch];
    alignas(16) f16 act[kResidentRows][kActPitch];
  };
  unsigned long long there;  // barrier: a round's sums of all warps, and the next tile's rows
  Plan plan;
};

// Whether a block's rows and plan leave memory for a whole ring; otherwise rings lack a slot.
inline constexpr bool kRingFits = sizeof(StorageOf<tile::Wide>) <= target::SHARED_BYTES_PER_BLOCK;
using ProductsShape = std::conditional_t<kRingFits, tile::Wide, tile::Shorter<tile::Wide>>;
using ProductsStorage = StorageOf<ProductsShape>;
// Whether a block's share of the rows fits shared memory.
inline constexpr bool kRowsFit = sizeof(ProductsStorage) <= target::SHARED_BYTES_PER_BLOCK;
// A leaf may set a `kRowsMax` below 64, for which a block must have space.
static_assert(kRowsFit || kRowsMax >= 64, "a block has memory for so few rows");

// A block's share of both products.
template <tile::Storage kStorage>
struct Products {
  using W = tile::Matrix<kStorage>;
  using Shape = ProductsShape;
  using Shared = ProductsStorage;
  using GateUp = tile::Stream<kStorage, kWidth, 1, Shape, TileUnits<kStorage, false>>;
  // Product of `down`, in which a warp has whole panels.
  using Down =
      tile::Stream<kStorage, Experts::kIntermediate, 1, Shape, TileUnits<kStorage, true>, true>;
  static constexpr int kGatePanels = TileUnits<kStorage, false>::kPanels;
  static constexpr int kDownPanels = TileUnits<kStorage, true>::kPanels;
  // Segments of a panel of gate or up, each a warp's in a round.
  static constexpr int kParts = tile::segments(kWidth);
  static constexpr int kAtOnce = Shape::kWarps / kParts;
  // Vectors of the next tile's rows that a thread loads in a round: more registers would keep the
  // next kernel off the SM.
  static constexpr int kMine = 2;
  static constexpr int kRowVectors = kWidth / 4;
  static_assert(kGatePanels % kAtOnce == 0, "a round's panels are of one tile");
  // Activations of a round in which each warp has a segment of one panel.
  static constexpr int kPanelItems = kAtOnce * 8 * tile::kTileRows;
  // Whether a block has a thread for each activation of a round of several panels. Such rounds are
  // for panels of one piece a warp, whose work is little beside a round's overhead.
  static constexpr bool kFits = kRoundPanelsMax * kPanelItems <= Shape::kThreads;
  static constexpr int kRoundPanels = GateUp::kPieces == 1 && kFits ? kRoundPanelsMax : 1;
  static constexpr int kItems = kRoundPanels * kPanelItems;
  static_assert(kItems <= Shape::kThreads, "a thread has one activation");

  const RowsParams& params;
  Shared& shared;
  GateUp gate_up;
  Down down;

  // Shares of this block, after the barrier for all tiles. The first blocks have one more round of
  // gate and up, the last ones one more panel of down.
  __device__ Products(const RowsParams& params, Shared& shared)
      : params(params),
        shared(shared),
        gate_up(shared.stream, {params.gate_up, shared.plan, rounds(shared).first * kAtOnce},
                rounds(shared).count * kAtOnce),
        down(shared.stream, {params.down, shared.plan, panels(shared).first},
             panels(shared).count) {}

  __device__ static tile::Share rounds(const Shared& shared) {
    return tile::Share::of(shared.plan.tiles * (kGatePanels / kAtOnce), blockIdx.x, kBlocks);
  }

  __device__ static tile::Share panels(const Shared& shared) {
    const int all = shared.plan.tiles * kDownPanels;
    const auto mirrored = tile::Share::of(all, kBlocks - 1 - blockIdx.x, kBlocks);
    return {all - mirrored.first - mirrored.count, mirrored.count};
  }

  // Brings a part of each expert's gate and up to the second-level cache, spread evenly over all
  // blocks' shares: memory would be idle until rows have chosen.
  __device__ static void warm(const RowsParams& params) {
    constexpr int kPanelBytes = kWidth / W::kGroup * W::kGroupBytes;
    constexpr int kFit = kWarmBytes / kExperts / kPanelBytes;
    constexpr int kOfEach = kFit < kGatePanels ? kFit : kGatePanels;
    static_assert(kExperts * kOfEach <= Shape::kThreads * kWarmBlocks, "a thread asks for a panel");
    // Products of 4-bit weights are not bound by memory.
    if constexpr (W::Code::kBits > 4 && kOfEach > 0) {
      const int item = threadIdx.x * kWarmBlocks + blockIdx.x;
      if (blockIdx.x >= kWarmBlocks || item >= kExperts * kOfEach) return;
      const W w{params.gate_up + item / kOfEach * W::bytes(kInner, kWidth), kInner, kWidth};
      ptx::prefetch_bulk(w.codes(item % kOfEach * (kGatePanels / kOfEach), 0), kPanelBytes);
    }
  }

  __device__ void prefetch() {
    gate_up.ask_first();
    for (int i = gate_up.count / kAtOnce * GateUp::kPieces; i < Shape::kSlots; ++i) down.ask(i);
  }

  // Requests this warp's next piece of weights, of gate and up or of down.
  __device__ void ask(int into) {
    if (gate_up.ahead_unit < gate_up.count) return gate_up.ask(into);
    down.ask(into);
  }

  // Stages all rows of `x`, which must fit a tile, by `threads` threads.
  __device__ static void stage_all(const RowsParams& params, Shared& shared, int thread,
                                   int threads) {
    constexpr int kVectors = kWidth / 4;
#pragma unroll 4
    for (int item = thread; item < params.rows * kVectors; item += threads) {
      tile::put_vector(shared.x[0][item / kVectors], item % kVectors,
                       tile::vector_at(params.x, item));
    }
  }

  // Slices in which a tile's rows are loaded.
  __device__ static int slices_of(const Tile& tile) {
    constexpr int kSlice = kMine * Shape::kThreads;
    return (tile.rows * kRowVectors + kSlice - 1) / kSlice;
  }

  // Loads this thread's vectors of a slice of a tile's rows into registers; `put` stages them.
  __device__ void fetch(const Tile& tile, int slice, float4 (&mine)[kMine]) const {
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int item = threadIdx.x + (slice * kMine + i) * Shape::kThreads;
      if (item >= tile.rows * kRowVectors) break;
      const int row = shared.plan.assignment_of[tile.first + item / kRowVectors] / kAssigned;
      mine[i] = tile::vector_at(params.x + static_cast<size_t>(row) * kWidth, item % kRowVectors);
    }
  }

  __device__ void put(const Tile& tile, int slice, int buffer, const float4 (&mine)[kMine]) const {
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int item = threadIdx.x + (slice * kMine + i) * Shape::kThreads;
      if (item >= tile.rows * kRowVectors) break;
      tile::put_vector(shared.x[buffer][item / kRowVectors], item % kRowVectors, mine[i]);
    }
  }

  // Stages the remaining slices of a tile's rows.
  __device__ void stage(const Tile& tile, int slice, int buffer) const {
    for (; slice < slices_of(tile); ++slice) {
      float4 mine[kMine];
      fetch(tile, slice, mine);
      put(tile, slice, buffer, mine);
    }
  }

  // Moves on to the next slot after a warp has used one.
  template <class Stream>
  __device__ void advance(Stream& stream) {
    __syncwarp();  // all lanes have read the slot
    ask(stream.slot);
    stream.next_slot();
  }

  // Runs all rounds of gate and up; `all`: all rows are staged already. A round's sums are added
  // while the next one's weights are multiplied, so that warps wait for each other only where a
  // tile begins.
  __device__ void run_gate_up(bool all) {
    if (gate_up.count == 0) return;
    const int lane = GateUp::lane(), warp = GateUp::warp(), g = lane / 4, q = lane % 4;
    const int last = gate_up.at.tile_of(gate_up.count - 1);
    int number = gate_up.at.tile_of(0), buffer = 0, slice = 0;
    Tile tile = shared.plan.tile[number], next = shared.plan.tile[min(number + 1, last)];
    if (!all) {
      stage(tile, 0, buffer);
      __syncthreads();  // the first tile's rows are staged
    }
    const f16* x[1];  // of the row of this lane's assignment
    int slices = 0;    // of the next tile's rows
    const auto enter = [&] {
      // Assignments after the last one repeat it; their sums are dropped.
      int row = min(g, tile.rows - 1);
      if (all) row = shared.plan.assignment_of[tile.first + row] / kAssigned;
      x[0] = shared.x[buffer][row] + gate_up.segment * GateUp::kGroups * W::kGroup +
             q * W::kLaneColumns;
      slices = !all && number < last ? slices_of(next) : 0;
    };
    enter();
    float chain[1][4] = {};
#pragma unroll 1
    for (int first = 0, round = 0, panels = 0;; first += panels, ++round) {
      const Round past{tile, first - panels, panels, round - 1};
      const tile::Affine of[2] = {affine(past, 0), affine(past, 8)};
      if (first >= gate_up.count) {
        activate(past, of);
        break;
      }
      if (gate_up.at.tile_of(first) != number) {
        // The tile's rows are staged, and those of the tile before were read.
        ptx::mbarrier_wait(&shared.there, (round - 1) % 2);
        ++number, slice = 0, buffer ^= all ? 0 : 1;
        tile = next, next = shared.plan.tile[min(number + 1, last)];
        enter();
      }
      const bool brings = slice < slices;
      float4 mine[kMine];
      if (brings) fetch(next, slice, mine);
      // All panels of a round are of one tile.
      panels = min(kRoundPanels * kAtOnce, gate_up.count - first);
      panels = min(panels, kGatePanels - gate_up.at.panel_of(first));
      for (int part = 0; part * kAtOnce < panels; ++part) {
        float sum[1][1][4] = {};
#pragma unroll 1
        for (int piece = 0; piece < GateUp::kPieces; ++piece) {
          gate_up.multiply(x, piece, sum, chain);
          advance(gate_up);
        }
        if (part == 0) activate(past, of);
        // Overwrites the sums of the round before the last, which all threads have added by now.
        auto& own = shared.partial[round % 2].row[part][warp];
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          own[g][2 * q + odd] = sum[0][0][odd];
          own[g + 8][2 * q + odd] = sum[0][0][odd + 2];
        }
      }
      if (brings) {
        put(next, slice++, buffer ^ 1, mine);
        if (gate_up.at.tile_of(first + panels) != number) stage(next, slice, buffer ^ 1);
      }
      // This thread has written its sums, and staged its share of the next rows.
      ptx::mbarrier_arrive(&shared.there);
    }
  }

  // A round: panels `first` .. `first + panels - 1` of a block's share, all of one tile.
  struct Round {
    Tile tile;
    int first;
    int panels;
    int number;
  };

  // The activation that a thread computes in a round, from sums of other warps.
  struct Item {
    int row;     // of a panel's gate rows
    int panel;   // of the round's
    int column;  // of the tile's assignments

    __device__ explicit Item(int round) {
      constexpr int kPanels = kRoundPanels * kAtOnce;
      const int item = (threadIdx.x + round * kItems) % Shape::kThreads;
      row = item % 8, panel = item / 8 % kPanels, column = item / (8 * kPanels);
    }

    __device__ bool is_of(const Round& round) const {
      return panel < round.panels && column < round.tile.rows;
    }
  };

  // Factor and bias of an item's gate, or `more` = 8 rows further of its up; loaded before they are
  // needed.
  __device__ tile::Affine affine(const Round& round, int more) const {
    constexpr bool kHas = W::kRowFactors || target::BIASED;
    const Item item(round.number);
    if (!kHas || !item.is_of(round)) return {1.0f, 0.0f};
    const W w = gate_up.at.matrix(round.tile.expert);
    const int row = gate_up.at.panel_of(round.first + item.panel) * tile::kPanelRows + item.row;
    return w.affine(row + more);
  }

  // Computes a thread's activation: adds segments of gate and up in order, after all warps have
  // written them. The round before the first has no panels.
  __device__ void activate(const Round& round, const tile::Affine (&of)[2]) const {
    if (round.panels == 0) return;
    ptx::mbarrier_wait(&shared.there, round.number % 2);
    const Item item(round.number);
    if (!item.is_of(round)) return;
    const auto& partial = shared.partial[round.number % 2].row[item.panel / kAtOnce];
    float gate = 0.0f, up = 0.0f;
#pragma unroll
    for (int s = 0; s < kParts; ++s) {
      const auto& part = partial[item.panel % kAtOnce * kParts + s];
      gate += part[item.row][item.column];
      up += part[item.row + 8][item.column];
    }
    const int panel = gate_up.at.panel_of(round.first + item.panel);
    const size_t assignment = shared.plan.assignment_of[round.tile.first + item.column];
    float* to = params.relay + assignment * Experts::kIntermediate +
                panel * experts::kPanelActivations;
    experts::activate(item.row, of[0](gate), of[1](up), [&](int column, float value) {
      ptx::store_relaxed(to + column, value);
    });
  }

  __device__ static bool is_there(const float4& v) {
    return __float_as_uint(v.x) != kNotYet && __float_as_uint(v.y) != kNotYet &&
           __float_as_uint(v.z) != kNotYet && __float_as_uint(v.w) != kNotYet;
  }

  // Waits for the activations of all assignments of this block's tiles, and stages them.
  __device__ void stage_activations(int first, int rows) const {
    constexpr int kVectors = Experts::kIntermediate / 4;
    constexpr int kBatch = 4;
    const auto from = [&](int item) {
      const size_t assignment = shared.plan.assignment_of[first + item / kVectors];
      const auto* relay = reinterpret_cast<const float4*>(params.relay);
      return relay + assignment * kVectors + item % kVectors;
    };
    for (int begin = threadIdx.x; begin < rows * kVectors; begin += kBatch * Shape::kThreads) {
      float4 mine[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int item = begin + i * Shape::kThreads;
        if (item < rows * kVectors) mine[i] = ptx::load_relaxed(from(item));
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int item = begin + i * Shape::kThreads;
        if (item >= rows * kVectors) break;
        while (!is_there(mine[i])) mine[i] = ptx::load_relaxed(from(item));
        tile::put_vector(shared.act[item / kVectors], item % kVectors, mine[i]);
      }
    }
  }

  // Runs all panels of down, each by one warp, so that no warp waits for another.
  __device__ void run_down() {
    if (down.count == 0) return;
    __syncthreads();  // rows of `x` have been read: activations take their memory
    const int lane = Down::lane(), g = lane / 4, q = lane % 4;
    const Tile last = shared.plan.tile[down.at.tile_of(down.count - 1)];
    const int first = shared.plan.tile[down.at.tile_of(0)].first;
    stage_activations(first, last.first + last.rows - first);
    __syncthreads();  // the activations are staged
    down.slot = gate_up.slot, down.parity = gate_up.parity;
    float chain[1][4] = {};
#pragma unroll 1
    for (int unit = Down::warp(); unit < down.count; unit += Shape::kWarps) {
      const Tile tile = shared.plan.tile[down.at.tile_of(unit)];
      const W w = down.at.matrix(tile.expert);
      const int row = down.at.panel_of(unit) * tile::kPanelRows + g;
      const tile::Affine low = w.affine(row), high = w.affine(row + 8);
      const f16* x[1] = {shared.act[tile.first - first + min(g, tile.rows - 1)] +
                         q * W::kLaneColumns};
      float total[4] = {};
      down.multiply_whole(x, chain, total, [&] { advance(down); });
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int at = 2 * q + odd;
        if (at >= tile.rows) break;
        const size_t assignment = shared.plan.assignment_of[tile.first + at];
        params.y[assignment * experts::kPairs + down.at.panel_of(unit) * 8 + g] =
            experts::to_parts(experts::result(low, total[odd]),
                              experts::result(high, total[odd + 2]));
      }
    }
  }
};

template <tile::Storage kStorage>
__global__ __launch_bounds__(tile::Wide::kThreads, 1) void products(RowsParams params) {
  using Stage = Products<kStorage>;
  auto& shared = *reinterpret_cast<ProductsStorage*>(dynamic_shared);
  constexpr int kWarps = tile::Wide::kWarps, kThreads = tile::Wide::kThreads;
  // First thread of the warps for which a tile has no row: they stage rows meanwhile.
  constexpr int kIdleFrom = kWarps > tile::kTileRows ? tile::kTileRows * tile::kWarpLanes : 0;
  const int thread = threadIdx.x, warp = thread / tile::kWarpLanes, rows = params.rows;
  const bool all = rows <= tile::kTileRows;
  shared.plan.clear(rows);
  if (thread == 0) {
    ptx::mbarrier_init(&shared.there, kThreads);
    ptx::mbarrier_init_fence();
  }
  Stage::GateUp::init(shared.stream);
  if (rows >= kManyRows) Stage::warm(params);
  __syncthreads();  // the plan is empty, the barriers are initialised
  ptx::griddepcontrol_wait();
  // The next kernel starts after this wait, as it may read data of the kernel before this one.
  ptx::griddepcontrol_launch_dependents();
  if (rows > kChosenByAll) {
    if (warp == 0) {
      for (int row = blockIdx.x; row < rows; row += kBlocks) Plan::announce(params, row);
    }
    shared.plan.add_announced(params);
  } else if (rows > kWarps) {
    for (int row = warp; row < rows; row += 2 * kWarps) {
      shared.plan.add<2>(row, kWarps, rows, params.logits, params.per_expert);
    }
  } else if (warp < rows) {
    shared.plan.add<1>(warp, kWarps, rows, params.logits, params.per_expert);
  }
  if (all && thread >= kIdleFrom) {
    Stage::stage_all(params, shared, thread - kIdleFrom, kThreads - kIdleFrom);
  }
  __syncthreads();  // all rows have chosen
  shared.plan.make_tiles();
  __syncthreads();  // the tiles are there
  Stage stage(params, shared);
  stage.prefetch();
  shared.plan.sort_rows(rows);
  __syncthreads();  // assignments have places; rows of a single tile are staged
  stage.run_gate_up(all);
  stage.run_down();
}

// `residual[row] += sum of weight * y[row, rank]` over the row's experts, in order of rank. Resets
// `relay` for the next launch.
__global__ __launch_bounds__(kSumThreads) void weighted_sum(RowsParams params) {
  __shared__ Chosen chosen;
  ptx::griddepcontrol_launch_dependents();
  const size_t row = blockIdx.y;
  chosen.choose<true>(params.logits + row * route::kLogits, params.per_expert);
  __syncthreads();  // the choice is complete
  ptx::griddepcontrol_wait();  // `y` is written, `relay` has been read
  constexpr int kRelayVectors = kAssigned * Experts::kIntermediate / 4;
  const int vector = blockIdx.x * kSumThreads + threadIdx.x;
  if (vector < experts::WeightedSum::kVectors) {
    experts::WeightedSum sum;
#pragma unroll
    for (int rank = 0; rank < kAssigned; ++rank) {
      sum.add(chosen.weight[rank],
              params.y + (row * kAssigned + rank) * experts::kPairs + vector * 4);
    }
    sum.join(params.residual + row * kWidth, vector);
  }
  auto* relay = reinterpret_cast<uint4*>(params.relay) + row * kRelayVectors;
  for (int i = vector; i < kRelayVectors; i += gridDim.x * kSumThreads) {
    relay[i] = make_uint4(kNotYet, kNotYet, kNotYet, kNotYet);
  }
  if (vector < kChoiceWords) params.choices()[row * kChoiceWords + vector] = kNotYet;
}

// Registers of a thread for weights in `down` of one row.
inline constexpr int kWeightRegisters = 192;
// Whether a thread has registers for its weights, and its block shared memory for the row.
template <tile::Storage kStorage>
inline constexpr bool kRowFits =
    Down<kStorage>::kRounds * Down<kStorage>::kGroups * 8 <= kWeightRegisters &&
    sizeof(typename Down<kStorage>::SharedStorage) <= kSharedUnasked &&
    sizeof(GateUpStorage) <= target::SHARED_BYTES_PER_BLOCK;

template <class Tile, class E>
struct RowsF16 {
  static_assert(Tile::kThreads == kThreads, "a block of one row's `down` is the panels' warps");

  template <tile::Storage kStorage>
  static cudaError_t of(const RowsParams& params, cudaStream_t stream) {
    constexpr Launch kShape{kBlocks, ProductsShape::kThreads, sizeof(ProductsStorage)};
    const cudaError_t refused = require_coresident(kBlocks);
    if (refused != cudaSuccess) return refused;
    const cudaError_t failed = launch_chained(products<kStorage>, kShape, stream, params);
    if (failed != cudaSuccess) return failed;
    constexpr unsigned kVectorBlocks = blocks_for(experts::WeightedSum::kVectors, kSumThreads);
    constexpr unsigned kParts = kVectorBlocks > kSumBlocks ? kVectorBlocks : kSumBlocks;
    const Launch sums{kParts, kSumThreads, 0, static_cast<unsigned>(params.rows)};
    return launch_chained(weighted_sum, sums, stream, params);
  }

  static cudaError_t launch(const float* x, const float* logits, const float* per_expert,
                            const unsigned char* gate_up, const unsigned char* down,
                            unsigned* chosen, float* weights, unsigned char* plan,
                            unsigned char* operands, float* act, float* relay, unsigned* y,
                            float* residual, unsigned rows, unsigned format, cudaStream_t stream) {
    using tile::Storage;
    constexpr Storage kMain = tile::storage_of(target::FORMAT_EXPERTS);
    constexpr Storage kMtp = tile::storage_of(target::FORMAT_MTP_EXPERTS);
    if (rows == 0) return cudaSuccess;
    if (rows > kRowsMax) return cudaErrorInvalidValue;
    const auto together = [&](auto storage, cudaError_t& result) {
      constexpr Storage kStorage = decltype(storage)::value;
      if (format != static_cast<unsigned>(kStorage)) return false;
      if constexpr (kRowFits<kStorage>) {
        if (rows <= kApartMax) {
          const Params apart{x,    logits, per_expert, gate_up,
                             down, reinterpret_cast<f16*>(act), residual};
          result = launch_apart<kStorage>(apart, rows, stream);
          return true;
        }
      }
      if constexpr (kRowsFit) {
        const RowsParams params{x,        logits, per_expert,
                                gate_up,  down,   relay,
                                reinterpret_cast<f16x2*>(y), residual, static_cast<int>(rows)};
        result = of<kStorage>(params, stream);
        return true;
      }
      return false;
    };
    cudaError_t result = cudaSuccess;
    if (together(std::integral_constant<Storage, kMain>{}, result)) return result;
    if constexpr (kMtp != kMain) {
      if (together(std::integral_constant<Storage, kMtp>{}, result)) return result;
    }
    const int failed = atlas_route(logits, per_expert, chosen, weights, rows, stream);
    if (failed != cudaSuccess) return static_cast<cudaError_t>(failed);
    return static_cast<cudaError_t>(atlas_experts(x, chosen, weights, gate_up, down, plan, operands,
                                                  act, y, residual, rows, format, stream));
  }
};

}  // namespace atlas::moe
