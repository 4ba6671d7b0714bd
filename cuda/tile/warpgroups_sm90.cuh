// Many rows by panels of weights, on Hopper's warpgroup instructions. The arithmetic is that of
// `Flat`, `Tiled` and `Stream`: an instruction sums the same 16 columns as `ptx::mma`, to the same
// bits.
//
// A block is a warp that fetches and two warpgroups that multiply. Each of their warps decodes a
// panel into registers; rows come from shared memory, as operands (K / 128, rows / 8, 8, 2, 8 rows,
// 8 columns): eight rows by eight columns are the 128 bytes that the tensor core reads at once, and
// a step of 128 columns of a tile's rows is one copy. The 16 columns of an instruction are those
// that `Matrix::decode` gives four lanes: two neighbours of each, then the next two.
//
// A warpgroup's instructions block its warps until the tensor cores have room, so the warpgroups
// take turns: one multiplies a step while the other decodes the next and adds what it has.
#pragma once

#include "tile/panels.cuh"
#include "tile/wgmma_sm90.cuh"

namespace atlas::tile {

inline constexpr int kOperandRows = 8;
// Eight rows of a step.
inline constexpr int kOperandBytes = kOperandRows * kBlockColumns * 2;

__host__ __device__ constexpr int operand_groups(int rows) {
  return (rows + kOperandRows - 1) / kOperandRows;
}

// Size of rows as operands, bytes.
__host__ __device__ constexpr size_t operand_bytes(int rows, int k) {
  return static_cast<size_t>(operand_groups(rows)) * (k / kBlockColumns) * kOperandBytes;
}

// Rows as operands for a matrix of `kStorage`.
template <Storage kStorage>
struct Operands {
  using W = Matrix<kStorage>;

  unsigned char* base;
  int groups;  // of eight rows

  // Where an even column of a step and its neighbour lie in eight rows: of the first one.
  __device__ static int offset(int column) {
    const int group = column / W::kGroup, q = column % W::kGroup / W::kLaneColumns;
    const int pair = group * W::Code::kOctets + column % W::kLaneColumns / 8;
    return pair * 512 + column % 8 / 2 * 128 + q * 4;
  }

  // An even column of a row.
  __device__ unsigned char* at(int row, int column) const {
    const size_t block =
        static_cast<size_t>(column / kBlockColumns) * groups + row / kOperandRows;
    return base + block * kOperandBytes + offset(column % kBlockColumns) + row % kOperandRows * 16;
  }

  // Rounds 32 columns of a row, the `part`-th that one pair of instructions takes: four octets.
  __device__ void round(const float* from, int row, int part) const {
    const int column = part / W::Code::kOctets * W::kGroup + part % W::Code::kOctets * 8;
    unsigned words[4][4];  // (half of an instruction, octet)
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      float x[8];
      load_octet(from + column + q * W::kLaneColumns, x);
      const uint4 octet = encode(x);
      words[0][q] = octet.x, words[1][q] = octet.y, words[2][q] = octet.z, words[3][q] = octet.w;
    }
    unsigned char* to = at(row, column);
#pragma unroll
    for (int half = 0; half < 4; ++half) {
      *reinterpret_cast<uint4*>(to + half * 128) =
          make_uint4(words[half][0], words[half][1], words[half][2], words[half][3]);
    }
  }
};

// Threads of a block that rounds rows: eight rows by 32 parts.
inline constexpr int kRoundThreads = 256;

// Blocks that round `rows` rows, one item a thread.
__host__ inline unsigned round_blocks(int rows, int k) {
  const size_t items = static_cast<size_t>(operand_groups(rows)) * kOperandRows * (k / 32);
  return static_cast<unsigned>((items + kRoundThreads - 1) / kRoundThreads);
}

// Row and part of a thread: eight rows side by side, then parts.
struct RoundItem {
  int row;
  int part;

  __device__ static RoundItem of(int k) {
    const size_t item = static_cast<size_t>(blockIdx.x) * kRoundThreads + threadIdx.x;
    const size_t rest = item / kOperandRows;
    const int parts = k / 32;
    return {static_cast<int>(rest / parts * kOperandRows + item % kOperandRows),
            static_cast<int>(rest % parts)};
  }
};

// A tile of a product: rows by the panels of a block from `panel` on.
struct WarpgroupTile {
  const unsigned char* weights;
  int n;
  int panel;
  const unsigned char* operands;  // of the tile's first row
  int groups;                     // of eight rows, of all operands
  int rows;
};

// Warpgroups that multiply, and panels of a tile.
inline constexpr int kConsumers = 2;
inline constexpr int kTilePanels = 4 * kConsumers;
// Rows of a tile, at most.
inline constexpr int kTileRowsMax = 128;
inline constexpr int kWarpgroupThreads = (kConsumers + 1) * 128;
// Shared memory of a block, bytes: steps under way and their barriers.
inline constexpr int kWarpgroupBytes = 200 * 1024;

// Tiles that cover `n` weights.
__host__ __device__ constexpr int panel_tiles(int n) {
  return (panels_of(n) + kTilePanels - 1) / kTilePanels;
}

// Division by a number that is fixed for a launch, in one multiplication and few registers.
struct Divisor {
  // Numbers below this are divided exactly.
  static constexpr unsigned kEnd = 1u << 16;

  unsigned by;
  unsigned factor;  // 2^32 / by, rounded up

  __host__ explicit Divisor(unsigned by) : by(by), factor(by > 1 ? 0xffffffffu / by + 1 : 0) {}

  __device__ int quotient(int of) const {
    return static_cast<int>(by > 1 ? __umulhi(static_cast<unsigned>(of), factor) : of);
  }
  __device__ int remainder(int of) const { return of - quotient(of) * static_cast<int>(by); }
};

// Rows of a tile such that `of_rows(rows)` tiles take all SMs the shortest time: a step of a tile
// takes a time of its own, which grows with its rows by less than they do.
template <class Count>
__host__ inline int tile_rows_for(Count of_rows) {
  constexpr struct {
    int rows;
    unsigned time;
  } kChoices[] = {{128, 8}, {64, 6}, {32, 5}};
  int best = kTileRowsMax;
  unsigned shortest = ~0u;
  for (const auto& choice : kChoices) {
    const unsigned waves = (of_rows(choice.rows) + target::SMS - 1) / target::SMS;
    if (waves * choice.time < shortest) shortest = waves * choice.time, best = choice.rows;
  }
  return best;
}

// Where the sums of a panel's rows g and g + 8 go in `(rows, n)`.
template <Storage kStorage, class Put>
struct RowSink {
  float* to;  // of the tile's first row
  size_t pitch;
  bool has_low, has_high;
  float low_scale, high_scale;

  __device__ RowSink(const Matrix<kStorage>& w, float* out, int first, int panel, int g)
      : to(out + static_cast<size_t>(first) * w.n + panel * kPanelRows + g), pitch(w.n) {
    const int at = panel * kPanelRows + g;
    has_low = at < w.n, has_high = at + 8 < w.n;
    low_scale = w.row_scale(at), high_scale = w.row_scale(at + 8);
  }

  __device__ void operator()(int row, float low, float high) const {
    float* of_row = to + row * pitch;
    if (has_low) Put::put(of_row[0], low * low_scale);
    if (has_high) Put::put(of_row[8], high * high_scale);
  }
};

// Products with matrices of kK columns.
template <Storage kStorage, int kK>
struct Warpgroups {
  using W = Matrix<kStorage>;
  static constexpr int kStep = kBlockColumns;
  static constexpr int kSteps = kK / kStep;
  static constexpr int kSegmentSteps = kSteps / segments(kK);
  static constexpr int kStepGroups = kStep / W::kGroup;
  static constexpr int kOctets = kStep / 32;
  // Octets whose operands a warp has decoded when its turn comes.
  static constexpr int kTurnOctets = W::kNvfp4 ? 2 : 4;
  static constexpr int kPanelBytes = kStepGroups * W::kGroupBytes;
  static constexpr int kTileGroups = kTileRowsMax / kOperandRows;
  static constexpr int kStageBytes = kTilePanels * kPanelBytes + kTileGroups * kOperandBytes;
  static constexpr int kStages = (kWarpgroupBytes - 256) / kStageBytes;

  struct SharedStorage {
    unsigned char codes[kStages][kTilePanels][kPanelBytes];
    unsigned char rows[kStages][kTileGroups][kOperandBytes];
    unsigned long long full[kStages];
    unsigned long long empty[kStages];
  };

  static_assert(sizeof(SharedStorage) <= kWarpgroupBytes, "the manifest plans this storage");

  SharedStorage& shared;
  int slot = 0;
  unsigned parity = 0;

  __device__ explicit Warpgroups(unsigned char* dynamic_shared)
      : shared(*reinterpret_cast<SharedStorage*>(dynamic_shared)) {}

  __device__ static int warp() { return threadIdx.x / kWarpLanes; }
  __device__ static int lane() { return threadIdx.x % kWarpLanes; }
  // Of those that multiply.
  __device__ static int consumer() { return warp() / 4 - 1; }

  __device__ void advance() {
    if (++slot == kStages) slot = 0, parity ^= 1;
  }

  // All tiles of this block: `tiles(i, tile)` gives the i-th of the grid, false behind the last.
  // `sink(i, panel, g)` is what takes the sums of the panel's rows g and g + 8 by the tile's `row`,
  // before their row scale, as `(row, low, high)`. Waits for the kernels before this one.
  template <class Tiles, class Sink>
  __device__ void run(const Tiles& tiles, const Sink& sink) {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < kStages; ++stage) {
        ptx::mbarrier_init(&shared.full[stage], 1);
        ptx::mbarrier_init(&shared.empty[stage], kConsumers);
      }
      ptx::mbarrier_init_fence();
    }
    __syncthreads();  // the barriers can be waited for
    ptx::griddepcontrol_wait();
    WarpgroupTile tile;
    if (warp() < 4) {
      // 24 and 240 a thread are all that the block was started with.
      ptx::registers_release<24>();
      if (warp() > 0) return;
      for (int i = blockIdx.x; tiles(i, tile); i += gridDim.x) produce(tile);
    } else {
      ptx::registers_take<240>();
      if (consumer() == 1) give_turn();
      for (int i = blockIdx.x; tiles(i, tile); i += gridDim.x) {
        if (tile.rows > 64) {
          consume<128>(tile, i, sink);
        } else if (tile.rows > 32) {
          consume<64>(tile, i, sink);
        } else if (tile.rows > 16) {
          consume<32>(tile, i, sink);
        } else if (tile.rows > 8) {
          consume<16>(tile, i, sink);
        } else {
          consume<8>(tile, i, sink);
        }
      }
    }
  }

  __device__ void produce(const WarpgroupTile& tile) {
    const int groups = operand_groups(tile.rows);
    const W w{tile.weights, tile.n, kK};
    // A panel behind the last one is the last one again; its sums are dropped.
    const int panel = min(tile.panel + lane(), panels_of(tile.n) - 1);
    const unsigned bytes = kTilePanels * kPanelBytes + groups * kOperandBytes;
    for (int step = 0; step < kSteps; ++step) {
      ptx::mbarrier_wait(&shared.empty[slot], parity ^ 1);
      if (lane() == 0) ptx::mbarrier_expect(&shared.full[slot], bytes);
      __syncwarp();  // the bytes are expected
      if (lane() < kTilePanels) {
        ptx::copy_bulk_shared(shared.codes[slot][lane()], w.codes(panel, step * kStepGroups),
                              kPanelBytes, &shared.full[slot]);
      } else if (lane() == kTilePanels) {
        const size_t block = static_cast<size_t>(step) * tile.groups;
        ptx::copy_bulk_shared(shared.rows[slot], tile.operands + block * kOperandBytes,
                              groups * kOperandBytes, &shared.full[slot]);
      }
      advance();
    }
  }

  __device__ void take_turn() const { ptx::named_sync<kConsumers * 128>(1 + consumer()); }
  __device__ void give_turn() const { ptx::named_arrive<kConsumers * 128>(2 - consumer()); }

  template <int kN, class Sink>
  __device__ void consume(const WarpgroupTile& tile, int index, const Sink& sink) {
    constexpr int kSums = kN / 2;
    const int mine = warp() - 4, panels = panels_of(tile.n);
    const int panel = min(tile.panel + mine, panels - 1);
    const W w{tile.weights, tile.n, kK};
    float total[kSums], sum[kSums], chain[W::kFp8 ? kSums : 1];
#pragma unroll
    for (int e = 0; e < kSums; ++e) total[e] = 0.0f;
    typename W::Scales scales[kStepGroups], next[kStepGroups];
    load(w, panel, 0, next);
#pragma unroll 1
    for (int step = 0; step < kSteps;) {
      if constexpr (W::kFp8) {
#pragma unroll
        for (int e = 0; e < kSums; ++e) sum[e] = 0.0f;
      }
#pragma unroll 1
      for (int i = 0; i < kSegmentSteps; ++i, ++step) {
#pragma unroll
        for (int group = 0; group < kStepGroups; ++group) scales[group] = next[group];
        if (step + 1 < kSteps) load(w, panel, step + 1, next);
        if constexpr (W::kFp8) {
          multiply<kN>(scales, chain, false);
#pragma unroll
          for (int e = 0; e < kSums; e += 4) {
            const float2 scale = scales[0].block;
            sum[e] = fmaf(chain[e], scale.x, sum[e]);
            sum[e + 1] = fmaf(chain[e + 1], scale.x, sum[e + 1]);
            sum[e + 2] = fmaf(chain[e + 2], scale.y, sum[e + 2]);
            sum[e + 3] = fmaf(chain[e + 3], scale.y, sum[e + 3]);
          }
        } else {
          multiply<kN>(scales, sum, i > 0);
        }
      }
#pragma unroll
      for (int e = 0; e < kSums; ++e) total[e] += sum[e];
    }
    if (tile.panel + mine >= panels) return;
    // What the sink computes from here on lives in registers that the sums leave free.
    asm volatile("" : "+r"(index));
    const auto put = sink(index, tile.panel + mine, lane() / 4);
#pragma unroll
    for (int e = 0; e < kSums; e += 4) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int row = e * 2 + lane() % 4 * 2 + odd;
        if (row < tile.rows) put(row, total[e + odd], total[e + odd + 2]);
      }
      // Loads of a sink that adds stay this near: all at once they would not fit in registers.
      if (e % 16 == 12) asm volatile("" ::: "memory");
    }
  }

  __device__ static void load(const W& w, int panel, int step,
                              typename W::Scales (&to)[kStepGroups]) {
#pragma unroll
    for (int group = 0; group < kStepGroups; ++group) {
      to[group] = w.scales(panel, step * kStepGroups + group);
    }
  }

  // The step in this slot by this warp's panel; frees the slot.
  template <int kN>
  __device__ void multiply(const typename W::Scales (&scales)[kStepGroups], float (&to)[kN / 2],
                           bool accumulate) {
    ptx::mbarrier_wait(&shared.full[slot], parity);
#pragma unroll
    for (int first = 0; first < kOctets; first += kTurnOctets) {
      unsigned a[kTurnOctets][2][4];
#pragma unroll
      for (int i = 0; i < kTurnOctets; ++i) {
        const int octet = first + i, group = octet / W::Code::kOctets;
        const auto fragment =
            W::fragment(shared.codes[slot][warp() - 4] + group * W::kGroupBytes, scales[group]);
        W::decode(fragment, octet % W::Code::kOctets, a[i][0], a[i][1]);
      }
      take_turn();
      wgmma::fence();
#pragma unroll
      for (int i = 0; i < 2 * kTurnOctets; ++i) {
        const int instruction = 2 * first + i;
        const auto b =
            wgmma::describe_plain(shared.rows[slot][0] + instruction * 256, 128, kOperandBytes);
        wgmma::multiply<kN>(to, a[i / 2][i % 2], b, instruction > 0 || accumulate);
      }
      wgmma::commit();
      give_turn();
      wgmma::wait<0>();
      wgmma::keep(to);
    }
    // The instructions end for all four warps together, and with them what those read before.
    if (threadIdx.x % 128 == 0) ptx::mbarrier_arrive(&shared.empty[slot]);
    advance();
  }
};

}  // namespace atlas::tile
