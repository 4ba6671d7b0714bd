// The part of a recurrent rule that needs no state, for one cell of 64 positions.
//
// With `G` the running sum of a cell's log decays, `w` the weights of its updates and unit keys and
// queries, the updates `D` (a row each) of a cell that starts at state `S` are
//     D = T (w (V - e^G (K S))),   T = (1 + A)^-1,   A[r, s] = w[r] e^(G[r] - G[s]) k[r] . k[s]
// with `s < r`, its results are
//     O = e^G (Q S) + M D,         M[r, s] = e^(G[r] - G[s]) q[r] . k[s],   s <= r
// and the state after it is `e^G[last] S + K^T (e^(G[last] - G) D)`. Only differences of `G` that
// are not positive are exponents. No element of T or M is larger than 1, so that F16 holds them.
//
// In Mamba-2 an update subtracts nothing: `D = w V`, with steps times lengths of keys as weights.
// Keys and queries have length 1 here too, so results are multiplied by lengths of queries.
#pragma once

#include <type_traits>

#include "base/types.cuh"
#include "ops/gated_delta/columns_f32.cuh"
#include "tile/head_f16.cuh"
#include "tile/tiles_f16.cuh"

namespace atlas::gated_delta {

using target::shapes::Delta;

inline constexpr int kCell = 64;  // positions
inline constexpr int kRowTiles = kCell / tile::kTileRows;
inline constexpr int kKeyTiles = Delta::kKeyDim / tile::kTileRows;
// Value heads of a block: two where the number is even, each with products of its own.
inline constexpr int kBlockHeads = kHeadGroup % 2 == 0 ? 2 : kHeadGroup;
// Blocks for the value heads of one key head.
inline constexpr int kHeadBlocks = kHeadGroup / kBlockHeads;
// Threads of a block that multiply keys and queries: a warp for each 16 rows of the cell.
inline constexpr int kRowThreads = kRowTiles * tile::kWarpLanes;
// Threads that compute gates and T: one for each row, and column of T, of each value head.
inline constexpr int kHeadThreads = kBlockHeads * kCell;
inline constexpr int kCellThreads = kRowThreads > kHeadThreads ? kRowThreads : kHeadThreads;
// Blocks for which an SM's registers must suffice.
inline constexpr int kCellBlocks =
    target::SHARED_BYTES_PER_BLOCK >= 128 * 1024 ? 4 * kRowThreads / kCellThreads : 1;

static_assert(kBlockHeads <= 3, "a block has the threads and the memory of three value heads");

// Unit keys and queries of a key head in one cell; rows after the last one are zeros.
struct alignas(128) KeyRecord {
  tile::TileF16 key[kRowTiles][kKeyTiles];
  tile::TileF16 query[kRowTiles][kKeyTiles];
};

struct Solution {
  tile::TileF16 solve[tile::kTriangle<kRowTiles>];  // T
};

struct Lengths {
  alignas(128) float of_query[kCell];
};

// Numbers of a value head in one cell; rows after the last one are zeros.
struct alignas(128) ValueRecord : std::conditional_t<Delta::kMamba, Lengths, Solution> {
  tile::TileF16 mix[tile::kTriangle<kRowTiles>];    // M
  float decayed[kCell];                             // e^G
  float weight[kCell];                              // w
  float left[kCell];                                // e^(G[last] - G)
};

// All records of a cell, as the kernel of the state reads them.
struct CellRecord {
  KeyRecord of_key[Delta::kKeyHeads];
  ValueRecord of_value[Delta::kValueHeads];
};

struct CellParams {
  const float* qkv;      // (rows, kWidth), heads F16
  const float* b;        // (rows, kValueHeads)
  const float* a;        // (rows, kValueHeads)
  const float* a_log;    // (kValueHeads)
  const float* dt_bias;  // (kValueHeads)
  const uint2* cells;    // (cells): first row, rows
  CellRecord* records;   // (cells)
};

// Pitch of rows, padded so that eight of them are in different banks.
inline constexpr int kPitch = kCell + 4;
using Square = float[kCell][kPitch];

struct CellStorage {
  union {
    KeyRecord keys;
    Square below[kBlockHeads];  // A; right of its diagonal, T by columns
  };
  ValueRecord values[kBlockHeads];  // `left` is G / ln 2 until A is written
  float total[kBlockHeads];         // log decay of the first 32 rows
  float key_length[Delta::kMamba ? kCell : 1];
  float query_length[Delta::kMamba ? kCell : 1];
};

template <class Record>
__device__ inline void copy_out(Record& to, const Record& from) {
  constexpr int kVectors = sizeof(Record) / kVectorBytes;
  for (int i = threadIdx.x; i < kVectors; i += kCellThreads) {
    reinterpret_cast<uint4*>(&to)[i] = reinterpret_cast<const uint4*>(&from)[i];
  }
}

// A row of a head, spread over four lanes.
struct UnitRow {
  uint2 part[kKeyTiles];

  __device__ void load(const float* from) {
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
      part[t] = from != nullptr ? tile::vector_of_f16(from, 4 * t + threadIdx.x % 4) : uint2{};
    }
  }

  // Normalises the row and stores it rounded to F16; returns its length.
  __device__ float store(tile::TileF16 (&to)[kKeyTiles], int row) const {
    float squares = 0.0f;
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
      const float4 four = tile::widened(part[t]);
      squares += dot(four, four);
    }
    squares += __shfl_xor_sync(tile::kAllLanes, squares, 1);
    squares += __shfl_xor_sync(tile::kAllLanes, squares, 2);
    const float scale = rsqrtf(squares + kUnitEps);
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
      const float4 unit = tile::times(tile::widened(part[t]), scale);
      auto* at = reinterpret_cast<f16x2*>(&to[t][tile::tile_at(row, threadIdx.x % 4 * 4)]);
      at[0] = to_f16x2(unit.x, unit.y);
      at[1] = to_f16x2(unit.z, unit.w);
    }
    return sqrtf(squares + kUnitEps);
  }
};

// Inputs of the gates of one row in one value head.
struct GateInputs {
  float a_log;
  float dt_bias;
  float a;
  float b;
};

struct Cell {
  const CellParams& params;
  CellStorage& shared;
  const int key_head;
  const int first_head;  // of the block's value heads
  const int first;       // row of the step
  const int rows;
  const int warp = threadIdx.x / tile::kWarpLanes;
  const int lane = threadIdx.x % tile::kWarpLanes;

  // Whether this warp has rows of products.
  __device__ static bool has_rows() {
    return kRowThreads == kCellThreads || threadIdx.x < kRowThreads;
  }
  // Whether this thread has a row, and a column of T, of a value head.
  __device__ static bool has_head() {
    return kHeadThreads == kCellThreads || threadIdx.x < kHeadThreads;
  }

  // Loads two of the warp's 16 rows, query and key, into four lanes each.
  __device__ void load_units() {
    if (!has_rows()) return;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const int in_tile = half * 8 + lane / 4, row = warp * tile::kTileRows + in_tile;
      const float* from = nullptr;
      if (row < rows) {
        from = params.qkv + static_cast<size_t>(first + row) * kWidth + key_head * Delta::kKeyDim;
      }
      UnitRow query, key;
      query.load(from);
      key.load(from == nullptr ? from : from + kKeys);
      const float of_query = query.store(shared.keys.query[warp], in_tile);
      const float of_key = key.store(shared.keys.key[warp], in_tile);
      if (Delta::kMamba && lane % 4 == 0) {
        shared.query_length[row] = of_query;
        shared.key_length[row] = of_key;
      }
    }
  }

  // Row of the value head that this thread has.
  __device__ int gate_row() const { return threadIdx.x % kCell; }
  __device__ int value_head() const { return first_head + threadIdx.x / kCell; }

  // Loads those inputs of gates that depend on no other kernel.
  __device__ GateInputs ask_for_gates() const {
    if (!has_head()) return {};
    return {params.a_log[value_head()], params.dt_bias[value_head()], 0.0f, 0.0f};
  }

  __device__ void ask_for_row(GateInputs& to) const {
    if (gate_row() >= rows || !has_head()) return;
    const size_t at = static_cast<size_t>(first + gate_row()) * Delta::kValueHeads + value_head();
    to.a = params.a[at], to.b = params.b[at];
  }

  // Stores the length of a row's query, in shapes whose records have lengths.
  template <class Record>
  __device__ void keep_length(Record& to, int row) const {
    if constexpr (Delta::kMamba) to.of_query[row] = shared.query_length[row];
  }

  // Computes a row's gates; returns the decay after it. Rows after the last neither decay nor add.
  __device__ float make_gates(const GateInputs& from) {
    const int group = threadIdx.x / kCell, row = gate_row();
    float log = 0.0f, weight = 0.0f;
    if (row < rows && has_head()) {
      const float rate = expf(from.a_log);
      log = -rate * tile::softplus(from.a + from.dt_bias) * 1.44269504088896340736f;
      weight = strength(from.a, from.b, from.dt_bias);
    }
#pragma unroll
    for (int lanes = 1; lanes < tile::kWarpLanes; lanes *= 2) {
      const float before = __shfl_up_sync(tile::kAllLanes, log, lanes);
      if (lane >= lanes) log += before;
    }
    if (row == tile::kWarpLanes - 1 && has_head()) shared.total[group] = log;
    __syncthreads();  // the first half's sum is written
    ValueRecord& to = shared.values[has_head() ? group : 0];
    if (Delta::kMamba) weight *= shared.key_length[row];
    if (has_head()) keep_length(to, row);
    if (has_head()) {
      if (row >= tile::kWarpLanes) log += shared.total[group];
      to.left[row] = log;
      to.weight[row] = weight;
      to.decayed[row] = exp2f(log);
    }
    __syncthreads();  // the last row's sum is written
    return exp2f(to.left[kCell - 1] - log);
  }

  // Products of this warp's 16 keys and 16 queries with all keys up to their own.
  struct Products {
    float of_key[2 * kRowTiles][4];
    float of_query[2 * kRowTiles][4];
  };

  __device__ void multiply(Products& to) const {
    if (!has_rows()) return;
#pragma unroll 1
    for (int t = 0; t < kKeyTiles; ++t) {
      unsigned key[4], query[4];
      tile::load_a(key, shared.keys.key[warp][t]);
      tile::load_a(query, shared.keys.query[warp][t]);
#pragma unroll
      for (int other = 0; other < kRowTiles; ++other) {
        if (other > warp) break;
        unsigned b[4];
        tile::load_b_transposed(b, shared.keys.key[other][t]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if constexpr (!Delta::kMamba) {
            ptx::mma_f16(to.of_key[2 * other + half], key, b[2 * half], b[2 * half + 1]);
          }
          ptx::mma_f16(to.of_query[2 * other + half], query, b[2 * half], b[2 * half + 1]);
        }
      }
    }
  }

  // Makes A and M of a value head from the products.
  __device__ void weigh(int group, const Products& products) {
    if (!has_rows()) return;
    ValueRecord& to = shared.values[group];
    const float(&log)[kCell] = to.left;
#pragma unroll
    for (int other = 0; other < kRowTiles; ++other) {
      if (other > warp) break;
      float mixed[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int tile = 2 * other + half;
        const int column = tile * 8 + lane % 4 * 2;
#pragma unroll
        for (int low = 0; low < 2; ++low) {
          const int row = warp * tile::kTileRows + low * 8 + lane / 4;
          float2 below;
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float decay = exp2f(fminf(log[row] - log[column + e], 0.0f));
            const float of_key = to.weight[row] * decay * products.of_key[tile][2 * low + e];
            const float of_query = decay * products.of_query[tile][2 * low + e];
            (e == 0 ? below.x : below.y) = column + e < row ? of_key : 0.0f;
            mixed[half][2 * low + e] = column + e <= row ? of_query : 0.0f;
          }
          if constexpr (!Delta::kMamba) {
            *reinterpret_cast<float2*>(&shared.below[group][row][column]) = below;
          }
        }
      }
      tile::store_sums(to.mix[tile::triangle(warp, other)], mixed[0], mixed[1]);
    }
  }

  // Elements of a column of T in the rows of one tile.
  using Part = float[tile::kTileRows];

  // Subtracts from `x`, a tile of the column, a tile of A, at `a`, times an earlier one, `above`.
  __device__ static void take_off(Part& x, const float* a, const Part& above) {
#pragma unroll
    for (int row = 0; row < tile::kTileRows; ++row) {
#pragma unroll
      for (int at = 0; at < tile::kTileRows; at += 4) {
        take_off(x[row], a + row * kPitch + at, &above[at]);
      }
    }
  }

  // Subtracts four columns of a row of A times the rows `above` of the column.
  __device__ static void take_off(float& x, const float* a, const float* above) {
    const float4 of = *reinterpret_cast<const float4*>(a);
    x = fmaf(-of.x, above[0], x);
    x = fmaf(-of.y, above[1], x);
    x = fmaf(-of.z, above[2], x);
    x = fmaf(-of.w, above[3], x);
  }

  // Subtracts rows of A's diagonal tile `a` times the column's rows above, within the tile `x`.
  __device__ static void take_off_own(Part& x, const float* a) {
#pragma unroll
    for (int at = 0; at < tile::kTileRows; at += 4) {
#pragma unroll
      for (int row = at + 1; row < at + 4; ++row) {
#pragma unroll
        for (int other = at; other < row; ++other) {
          x[row] = fmaf(-a[row * kPitch + other], x[other], x[row]);
        }
      }
#pragma unroll
      for (int row = at + 4; row < tile::kTileRows; ++row) {
        take_off(x[row], a + row * kPitch + at, &x[at]);
      }
    }
  }

  // Computes T: a thread has a column of a value head, tile by tile from its warp's first one on,
  // and subtracts A times the rows above. T is right of A's diagonal, in the row of the column's
  // number. Loops over tiles are not unrolled: a block runs them once, most code from memory.
  template <class Record>
  __device__ void solve(Record (&records)[kBlockHeads]) {
    if (!has_head()) return;
    const int group = threadIdx.x / kCell, column = threadIdx.x % kCell;
    const int own = column / tile::kTileRows, begin = own / 2 * 2;
    Square& below = shared.below[group];
    float* column_of_a = below[column];
    auto& to = records[group].solve;
#pragma unroll 1
    for (int tile = begin; tile < kRowTiles; ++tile) {
      const int first = tile * tile::kTileRows;
      Part x;
#pragma unroll
      for (int row = 0; row < tile::kTileRows; ++row) {
        x[row] = first + row == column ? 1.0f : 0.0f;
      }
#pragma unroll 1
      for (int other = begin; other < tile; ++other) {
        const int start = other * tile::kTileRows;
        Part above;
#pragma unroll
        for (int row = 0; row < tile::kTileRows; ++row) {
          above[row] = start + row < column ? 0.0f : column_of_a[start + row];
        }
        take_off(x, &below[first][start], above);
      }
      take_off_own(x, &below[first][first]);
      if (tile < own) continue;
      tile::TileF16& rounded = to[tile::triangle(tile, own)];
#pragma unroll
      for (int row = 0; row < tile::kTileRows; ++row) {
        if (first + row >= column) column_of_a[first + row] = x[row];
        rounded[tile::tile_at(row, column % tile::kTileRows)] = to_f16(x[row]);
      }
    }
  }
};

// A block per cell and key head, for some of the head's value heads; adjacent blocks read one cell.
template <class Tile>
__global__ __launch_bounds__(kCellThreads, kCellBlocks) void cells_f16(CellParams params) {
  extern __shared__ __align__(128) unsigned char cell_shared[];
  auto& shared = *reinterpret_cast<CellStorage*>(cell_shared);
  const uint2 rows = params.cells[blockIdx.y];
  const int key_head = blockIdx.x / kHeadBlocks, first_head = blockIdx.x * kBlockHeads;
  CellRecord& record = params.records[blockIdx.y];
  Cell cell{params,     shared, key_head, first_head, static_cast<int>(rows.x),
            static_cast<int>(rows.y)};
  GateInputs gates = cell.ask_for_gates();
  ptx::griddepcontrol_wait();  // lists and weights depend on nothing; everything below does
  cell.ask_for_row(gates);
  cell.load_units();
  const float left = cell.make_gates(gates);
  __syncthreads();  // keys, queries and gates are written
  Cell::Products products{};
  cell.multiply(products);
  if (blockIdx.x % kHeadBlocks == 0) copy_out(record.of_key[key_head], shared.keys);
  __syncthreads();  // keys have been read: A overwrites them
#pragma unroll 1
  for (int group = 0; group < kBlockHeads; ++group) cell.weigh(group, products);
  __syncthreads();  // A is written
  if (Cell::has_head()) shared.values[threadIdx.x / kCell].left[threadIdx.x % kCell] = left;
  if constexpr (!Delta::kMamba) cell.solve(shared.values);
  __syncthreads();  // T is written
  // The next kernel starts no earlier: its waiting blocks would cost more than the start saves.
  ptx::griddepcontrol_launch_dependents();
#pragma unroll
  for (int group = 0; group < kBlockHeads; ++group) {
    copy_out(record.of_value[first_head + group], shared.values[group]);
  }
}

}  // namespace atlas::gated_delta
