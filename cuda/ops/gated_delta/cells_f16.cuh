// The part of the delta rule that needs no state: one cell of 64 positions at a time.
//
// With `G` the running sum of a cell's log decays, `w` the weights of its updates and unit keys and
// queries, the updates `D` (a row each) of a cell that starts at state `S` are
//     D = T (w (V - e^G (K S))),   T = (1 + A)^-1,   A[r, s] = w[r] e^(G[r] - G[s]) k[r] . k[s]
// with `s < r`, its results are
//     O = e^G (Q S) + M D,         M[r, s] = e^(G[r] - G[s]) q[r] . k[s],   s <= r
// and the state behind it is `e^G[last] S + K^T (e^(G[last] - G) D)`. Only differences of `G` that
// are not positive are raised. No element of T or M is larger than 1, so that F16 holds them.
#pragma once

#include "base/types.cuh"
#include "ops/gated_delta/columns_f32.cuh"
#include "tile/tiles_f16.cuh"

namespace atlas::gated_delta {

inline constexpr int kCell = 64;  // positions
inline constexpr int kRowTiles = kCell / tile::kTileRows;
inline constexpr int kKeyTiles = GDN_KEY_DIM / tile::kTileRows;
// A warp has 16 rows of products; two warps have the columns of a value head's inverse.
inline constexpr int kCellThreads = kRowTiles * tile::kWarpLanes;

static_assert(kHeadGroup * kCell == kCellThreads, "a thread has a row and a column of each head");

// A cell's unit keys and queries of one key head; rows behind its last are zeros.
struct alignas(128) KeyRecord {
  tile::TileF16 key[kRowTiles][kKeyTiles];
  tile::TileF16 query[kRowTiles][kKeyTiles];
};

// A cell's numbers of one value head, as above.
struct alignas(128) ValueRecord {
  tile::TileF16 solve[tile::kTriangle<kRowTiles>];  // T
  tile::TileF16 mix[tile::kTriangle<kRowTiles>];    // M
  float decayed[kCell];                             // e^G
  float weight[kCell];                              // w
  float left[kCell];                                // e^(G[last] - G)
};

// All records of a cell.
struct CellRecord {
  KeyRecord of_key[GDN_KEY_HEADS];
  ValueRecord of_value[GDN_VALUE_HEADS];
};

struct CellParams {
  const float* qkv;      // (rows, kWidth)
  const float* b;        // (rows, GDN_VALUE_HEADS)
  const float* a;        // (rows, GDN_VALUE_HEADS)
  const float* a_log;    // (GDN_VALUE_HEADS)
  const float* dt_bias;  // (GDN_VALUE_HEADS)
  const uint2* cells;    // (cells): first row, rows
  CellRecord* records;   // (cells)
};

// Rows are padded so that eight of them lie in different banks.
using Square = float[kCell][kCell + 4];

struct CellStorage {
  union {
    KeyRecord keys;
    Square below[kHeadGroup];  // A
  };
  ValueRecord values[kHeadGroup];  // `left` is G / ln 2 until A is written
  float total[kHeadGroup];         // of the first 32 rows
};

template <class Record>
__device__ inline void copy_out(Record& to, const Record& from) {
  constexpr int kVectors = sizeof(Record) / kVectorBytes;
  for (int i = threadIdx.x; i < kVectors; i += kCellThreads) {
    reinterpret_cast<uint4*>(&to)[i] = reinterpret_cast<const uint4*>(&from)[i];
  }
}

// A row of a head, which four lanes have.
struct UnitRow {
  float4 part[kKeyTiles];

  __device__ void load(const float* from) {
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
      part[t] = from != nullptr ? tile::vector_at(from, 4 * t + threadIdx.x % 4) : float4{};
    }
  }

  // Brings it to unit length and rounds it.
  __device__ void store(tile::TileF16 (&to)[kKeyTiles], int row) const {
    float squares = 0.0f;
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) squares += dot(part[t], part[t]);
    squares += __shfl_xor_sync(tile::kAllLanes, squares, 1);
    squares += __shfl_xor_sync(tile::kAllLanes, squares, 2);
    const float scale = rsqrtf(squares + kUnitEps);
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
      const float4 unit = times(part[t], scale);
      auto* at = reinterpret_cast<f16x2*>(&to[t][tile::tile_at(row, threadIdx.x % 4 * 4)]);
      at[0] = to_f16x2(unit.x, unit.y);
      at[1] = to_f16x2(unit.z, unit.w);
    }
  }
};

struct Cell {
  const CellParams& params;
  CellStorage& shared;
  const int key_head;
  const int first;  // row of the step
  const int rows;
  const int warp = threadIdx.x / tile::kWarpLanes;
  const int lane = threadIdx.x % tile::kWarpLanes;

  // Four lanes have two rows of the warp's 16, query and key of each.
  __device__ void load_units() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int in_tile = half * 8 + lane / 4, row = warp * tile::kTileRows + in_tile;
      const float* from = nullptr;
      if (row < rows) {
        from = params.qkv + static_cast<size_t>(first + row) * kWidth + key_head * GDN_KEY_DIM;
      }
      UnitRow query, key;
      query.load(from);
      key.load(from == nullptr ? from : from + kKeys);
      query.store(shared.keys.query[warp], in_tile);
      key.store(shared.keys.key[warp], in_tile);
    }
  }

  // A thread has a row of a value head. Behind the last row nothing decays and nothing is added.
  // Returns the row's `left`.
  __device__ float load_gates() {
    const int group = threadIdx.x / kCell, row = threadIdx.x % kCell;
    const int head = key_head * kHeadGroup + group;
    float log = 0.0f, weight = 0.0f;
    if (row < rows) {
      const size_t at = static_cast<size_t>(first + row) * GDN_VALUE_HEADS + head;
      const float rate = expf(params.a_log[head]);
      log = -rate * tile::softplus(params.a[at] + params.dt_bias[head]) * 1.44269504088896340736f;
      weight = tile::sigmoid(params.b[at]);
    }
#pragma unroll
    for (int lanes = 1; lanes < tile::kWarpLanes; lanes *= 2) {
      const float before = __shfl_up_sync(tile::kAllLanes, log, lanes);
      if (lane >= lanes) log += before;
    }
    if (row == tile::kWarpLanes - 1) shared.total[group] = log;
    __syncthreads();  // the first half's sum is written
    if (row >= tile::kWarpLanes) log += shared.total[group];
    ValueRecord& to = shared.values[group];
    to.left[row] = log;
    to.weight[row] = weight;
    to.decayed[row] = exp2f(log);
    __syncthreads();  // the last row's sum is written
    return exp2f(to.left[kCell - 1] - log);
  }

  // Products of this warp's 16 keys and queries with all keys that are not behind them.
  struct Products {
    float of_key[2 * kRowTiles][4];
    float of_query[2 * kRowTiles][4];
  };

  __device__ void multiply(Products& to) const {
#pragma unroll
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
          ptx::mma_f16(to.of_key[2 * other + half], key, b[2 * half], b[2 * half + 1]);
          ptx::mma_f16(to.of_query[2 * other + half], query, b[2 * half], b[2 * half + 1]);
        }
      }
    }
  }

  // A and M of a value head.
  __device__ void weigh(int group, const Products& products) {
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
          *reinterpret_cast<float2*>(&shared.below[group][row][column]) = below;
        }
      }
      tile::store_sums(to.mix[tile::triangle(warp, other)], mixed[0], mixed[1]);
    }
  }

  // A thread has a column of a value head's T, from the top: each row takes off what A makes of
  // the rows above it.
  __device__ void solve() {
    const int group = threadIdx.x / kCell, column = threadIdx.x % kCell;
    const Square& below = shared.below[group];
    float x[kCell];
#pragma unroll
    for (int row = 0; row < kCell; ++row) {
      float sums[4] = {row == column ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int at = 0; at < row; at += 4) {
        const float4 a = *reinterpret_cast<const float4*>(&below[row][at]);
        const float of[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (at + e < row) sums[e] = fmaf(-of[e], x[at + e], sums[e]);
        }
      }
      x[row] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    auto& to = shared.values[group].solve;
#pragma unroll
    for (int row = 0; row < kCell; ++row) {
      const int row_tile = row / tile::kTileRows, column_tile = column / tile::kTileRows;
      if (column_tile > row_tile) continue;
      to[tile::triangle(row_tile, column_tile)]
        [tile::tile_at(row % tile::kTileRows, column % tile::kTileRows)] = to_f16(x[row]);
    }
  }
};

// A block per cell and key head.
template <class Tile>
__global__ __launch_bounds__(kCellThreads, 4) void cells_f16(CellParams params) {
  extern __shared__ __align__(128) unsigned char cell_shared[];
  auto& shared = *reinterpret_cast<CellStorage*>(cell_shared);
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const uint2 rows = params.cells[blockIdx.x];
  const int key_head = blockIdx.y;
  CellRecord& record = params.records[blockIdx.x];
  Cell cell{params, shared, key_head, static_cast<int>(rows.x), static_cast<int>(rows.y)};
  cell.load_units();
  const float left = cell.load_gates();
  __syncthreads();  // keys, queries and gates are written
  Cell::Products products{};
  cell.multiply(products);
  copy_out(record.of_key[key_head], shared.keys);
  __syncthreads();  // keys are read: A takes their place
#pragma unroll
  for (int group = 0; group < kHeadGroup; ++group) cell.weigh(group, products);
  __syncthreads();  // A is written
  shared.values[threadIdx.x / kCell].left[threadIdx.x % kCell] = left;
  cell.solve();
  __syncthreads();  // T is written
#pragma unroll
  for (int group = 0; group < kHeadGroup; ++group) {
    copy_out(record.of_value[key_head * kHeadGroup + group], shared.values[group]);
  }
}

}  // namespace atlas::gated_delta
