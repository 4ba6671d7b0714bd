// Implements: Ops::gated_delta
// Match:      keys and values of 128 elements; operands F16, states, gates and sums F32
// Bound by:   second-level cache (a cell's records, once per 32 columns of a head)
// Sync:       four barriers per cell of 64 rows; chained launches
//
// What a prompt brings of a cell of 64 positions of its sequence is one unit of work: `cells_f16`
// prepares all of them at once, `carry_f16` takes the state through those of a sequence. What is
// too few rows for that goes row by row, as in decode. The state is scaled by a power of two before
// it is rounded, so that no operand leaves the range of F16 whatever the values are.
#pragma once

#include "ops/gated_delta/cells_f16.cuh"

namespace atlas::gated_delta {

inline constexpr int kColumnTiles = kColumns / tile::kTileRows;
// Warps that carry the state, and as many that make the results.
inline constexpr int kCarriers = kRowTiles;
inline constexpr int kCarrierThreads = kCarriers * tile::kWarpLanes;
inline constexpr int kCarryThreads = 2 * kCarrierThreads;
// Cells that are under way to a block.
inline constexpr int kCellStages = target::SHARED_BYTES_PER_BLOCK >= 128 * 1024 ? 2 : 1;
// Cells whose values are under way to a carrier or there.
inline constexpr int kValueStages = 2;
// Tiles of 16 keys of the state that a carrier has.
inline constexpr int kMyKeyTiles = kKeyTiles / kCarriers;

static_assert(kKeyTiles % kCarriers == 0, "carriers share the keys");

struct CarryParams {
  const float* qkv;           // (rows, kWidth)
  float* state;               // (slots, GDN_VALUE_HEADS, GDN_VALUE_DIM, GDN_KEY_DIM)
  const uint2* cells;         // (cells): first row, rows
  const uint2* runs;          // (runs): first cell, cells of one sequence
  const unsigned* positions;  // (rows)
  const unsigned* slots;      // (rows)
  const CellRecord* records;  // (cells)
  float* out;                 // (rows, GDN_VALUE_HEADS, GDN_VALUE_DIM)
};

// Rows along the columns' K: 16 rows by 32 columns.
using Strip = tile::TileF16[kColumnTiles];

struct CarryStorage {
  struct alignas(128) Stage {
    KeyRecord keys;
    ValueRecord values;
  } stage[kCellStages];
  float2 value[kValueStages][2 * 2 * kColumnTiles][kCarrierThreads];  // a thread's own
  Strip state[kKeyTiles];
  Strip residual[kRowTiles];  // w (V - e^G (K S))
  Strip update[kRowTiles];    // D
  Strip late[kRowTiles];      // e^(G[last] - G) D
  unsigned largest[kCarriers];  // magnitude of state and values, as bits
  unsigned long long brought[kCellStages];
};

// Sums of 16 rows by 32 columns.
using Sums = float[2 * kColumnTiles][4];

// Adds `a` times the rows of `strip`.
__device__ inline void add(Sums& sums, const unsigned (&a)[4], const Strip& strip) {
#pragma unroll
  for (int t = 0; t < kColumnTiles; ++t) {
    unsigned b[4];
    tile::load_b(b, strip[t]);
    ptx::mma_f16(sums[2 * t], a, b[0], b[1]);
    ptx::mma_f16(sums[2 * t + 1], a, b[2], b[3]);
  }
}

__device__ inline void store_strip(Strip& to, const Sums& sums) {
#pragma unroll
  for (int t = 0; t < kColumnTiles; ++t) tile::store_sums(to[t], sums[2 * t], sums[2 * t + 1]);
}

// `sums[.][e] *= e < 2 ? upper : lower`: the two rows of a lane.
__device__ inline void scale_rows(Sums& sums, float upper, float lower) {
#pragma unroll
  for (auto& tile : sums) {
    tile[0] *= upper, tile[1] *= upper;
    tile[2] *= lower, tile[3] *= lower;
  }
}

// A power of two that brings what is at most `largest` below 512: updates of 64 rows, each as large
// as its value and what it recalls of the state, then stay below F16's largest number.
struct Scale {
  float to;
  float back;

  __device__ static Scale of(const unsigned (&largest)[kCarriers]) {
    unsigned most = largest[0];
#pragma unroll
    for (int i = 1; i < kCarriers; ++i) most = max(most, largest[i]);
    const unsigned exponent = min(max(most >> 23, 30u), 230u);
    return {__uint_as_float((262 - exponent) << 23), __uint_as_float((exponent - 8) << 23)};
  }
};

struct Carry {
  const CarryParams& params;
  CarryStorage& shared;
  const int head;
  const int split;
  const uint2 run;
  const unsigned first;  // row of the step
  const unsigned rows;   // whole cells but for the last one
  const int warp = threadIdx.x / tile::kWarpLanes % kCarriers;
  const int g = threadIdx.x % tile::kWarpLanes / 4;
  const int q = threadIdx.x % 4;

  __device__ Carry(const CarryParams& params, CarryStorage& shared)
      : params(params),
        shared(shared),
        head(blockIdx.y),
        split(blockIdx.z),
        run(params.runs[blockIdx.x]),
        first(params.cells[run.x].x),
        rows((run.y - 1) * kCell + params.cells[run.x + run.y - 1].y) {}

  // Asks for the records of a cell of the run.
  __device__ void bring(unsigned cell) {
    if (threadIdx.x != 0 || cell >= run.y) return;
    const CellRecord& from = params.records[run.x + cell];
    auto& to = shared.stage[cell % kCellStages];
    ptx::copy_bulk_shared(&to.keys, &from.of_key[head / kHeadGroup], sizeof(KeyRecord),
                          &to.values, &from.of_value[head], sizeof(ValueRecord),
                          &shared.brought[cell % kCellStages]);
  }

  __device__ const CarryStorage::Stage& wait_for(unsigned cell) {
    ptx::mbarrier_wait(&shared.brought[cell % kCellStages], cell / kCellStages % 2);
    return shared.stage[cell % kCellStages];
  }

  // Row of a cell, of this lane's two in the warp's tile.
  __device__ unsigned row_of(unsigned cell, int low) const {
    return cell * kCell + warp * tile::kTileRows + low * 8 + g;
  }

  // Asks for the values of this lane's two rows, zeros behind the last one: in registers, they
  // would have other loads waited for as long.
  __device__ void ask_values(unsigned cell) const {
    const float* from = params.qkv + 2 * kKeys + head * GDN_VALUE_DIM + split * kColumns + 2 * q;
    auto& to = shared.value[cell % kValueStages];
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      const unsigned row = row_of(cell, low);
      const float* at = from + size_t{first + row} * kWidth;
#pragma unroll
      for (int t = 0; t < 2 * kColumnTiles; ++t) {
        ptx::copy_async_8(&to[low * 2 * kColumnTiles + t][threadIdx.x], at + t * 8, row < rows);
      }
    }
    ptx::copy_async_commit();
  }

  // Takes them; the next cell's have been asked for.
  __device__ void take_values(Sums& to, unsigned cell) const {
    ptx::copy_async_wait<1>();
    const auto& from = shared.value[cell % kValueStages];
#pragma unroll
    for (int low = 0; low < 2; ++low) {
#pragma unroll
      for (int t = 0; t < 2 * kColumnTiles; ++t) {
        const float2 value = from[low * 2 * kColumnTiles + t][threadIdx.x];
        to[t][2 * low] = value.x, to[t][2 * low + 1] = value.y;
      }
    }
  }

  // `body(element in memory, element of s)` of this lane's part of the state.
  template <class Body>
  __device__ void for_each_state(Sums (&s)[kMyKeyTiles], Body body) const {
    const size_t of_head = params.slots[first] * size_t{GDN_VALUE_HEADS} + head;
    const size_t column = of_head * GDN_VALUE_DIM + split * kColumns + 2 * q;
    float* state = params.state + column * GDN_KEY_DIM + warp * kMyKeyTiles * tile::kTileRows + g;
#pragma unroll
    for (int k = 0; k < kMyKeyTiles; ++k) {
#pragma unroll
      for (int t = 0; t < 2 * kColumnTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int at = (t * 8 + e % 2) * GDN_KEY_DIM + k * tile::kTileRows + e / 2 * 8;
          body(state[at], s[k][t][e]);
        }
      }
    }
  }

  // Makes known how large this warp's part of the state and of the next cell's values is.
  __device__ void measure(const Sums (&s)[kMyKeyTiles], const Sums& values) {
    float largest = 0.0f;
#pragma unroll
    for (int t = 0; t < 2 * kColumnTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        largest = fmaxf(largest, fabsf(values[t][e]));
#pragma unroll
        for (int k = 0; k < kMyKeyTiles; ++k) largest = fmaxf(largest, fabsf(s[k][t][e]));
      }
    }
    const unsigned most = __reduce_max_sync(tile::kAllLanes, __float_as_uint(largest));
    if (threadIdx.x % tile::kWarpLanes == 0) shared.largest[warp] = most;
  }

  // Rounds the state for the next cell.
  __device__ void publish(const Sums (&s)[kMyKeyTiles], const Scale& scale) {
#pragma unroll
    for (int k = 0; k < kMyKeyTiles; ++k) {
      Sums scaled;
#pragma unroll
      for (int t = 0; t < 2 * kColumnTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) scaled[t][e] = s[k][t][e] * scale.to;
      }
      store_strip(shared.state[warp * kMyKeyTiles + k], scaled);
    }
  }

  // `w (V - e^G (K S))` of this warp's rows.
  __device__ void recall(const CarryStorage::Stage& stage, const Sums& values, const Scale& scale) {
    Sums sums{};
#pragma unroll
    for (int k = 0; k < kKeyTiles; ++k) {
      unsigned a[4];
      tile::load_a(a, stage.keys.key[warp][k]);
      add(sums, a, shared.state[k]);
    }
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      const int row = warp * tile::kTileRows + low * 8 + g;
      const float decayed = stage.values.decayed[row], weight = stage.values.weight[row];
#pragma unroll
      for (int t = 0; t < 2 * kColumnTiles; ++t) {
#pragma unroll
        for (int e = 2 * low; e < 2 * low + 2; ++e) {
          sums[t][e] = weight * fmaf(-decayed, sums[t][e], values[t][e] * scale.to);
        }
      }
    }
    store_strip(shared.residual[warp], sums);
  }

  // D of this warp's rows.
  __device__ void solve(const CarryStorage::Stage& stage) {
    Sums sums{};
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      if (r > warp) break;
      unsigned a[4];
      tile::load_a(a, stage.values.solve[tile::triangle(warp, r)]);
      add(sums, a, shared.residual[r]);
    }
    store_strip(shared.update[warp], sums);
    const float* left = stage.values.left + warp * tile::kTileRows + g;
    scale_rows(sums, left[0], left[8]);
    store_strip(shared.late[warp], sums);
  }

  // The state behind the cell, this warp's keys.
  __device__ void update(const CarryStorage::Stage& stage, Sums (&s)[kMyKeyTiles],
                         const Scale& scale) {
    const float decayed = stage.values.decayed[kCell - 1] * scale.to;
#pragma unroll
    for (int k = 0; k < kMyKeyTiles; ++k) scale_rows(s[k], decayed, decayed);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int k = 0; k < kMyKeyTiles; ++k) {
        unsigned a[4];
        tile::load_a_transposed(a, stage.keys.key[r][warp * kMyKeyTiles + k]);
        add(s[k], a, shared.late[r]);
      }
    }
#pragma unroll
    for (int k = 0; k < kMyKeyTiles; ++k) scale_rows(s[k], scale.back, scale.back);
  }

  // What the state before the cell answers to this warp's queries.
  __device__ void answer(const CarryStorage::Stage& stage, Sums& sums) const {
#pragma unroll
    for (int k = 0; k < kKeyTiles; ++k) {
      unsigned a[4];
      tile::load_a(a, stage.keys.query[warp][k]);
      add(sums, a, shared.state[k]);
    }
    const float* decayed = stage.values.decayed + warp * tile::kTileRows + g;
    scale_rows(sums, decayed[0], decayed[8]);
  }

  // Adds what the cell's own updates answer.
  __device__ void mix(const CarryStorage::Stage& stage, Sums& sums) const {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      if (r > warp) break;
      unsigned a[4];
      tile::load_a(a, stage.values.mix[tile::triangle(warp, r)]);
      add(sums, a, shared.update[r]);
    }
  }

  // All cells of the run. Warps meet at the same barriers whatever their part.
  __device__ void go() {
    const bool carries = threadIdx.x < kCarrierThreads;
    Sums s[kMyKeyTiles]{};
    Sums values;
    if (carries) {
      ask_values(0);
      ask_values(1);
      if (params.positions[first] != 0) {
        for_each_state(s, [](const float& from, float& to) { to = from; });
      }
      take_values(values, 0);
      measure(s, values);
    }
    __syncthreads();  // the largest numbers are written
    for (unsigned cell = 0; cell < run.y; ++cell) {
      const Scale scale = Scale::of(shared.largest);
      if (carries) publish(s, scale);
      __syncthreads();  // the state is written
      const auto& stage = wait_for(cell);
      Sums sums{};
      if (carries) {
        recall(stage, values, scale);
        ask_values(cell + 2);
      } else {
        answer(stage, sums);
      }
      __syncthreads();  // residuals are written, the state is read
      if (carries) solve(stage);
      __syncthreads();  // updates are written
      if (carries) {
        update(stage, s, scale);
        take_values(values, cell + 1);
        measure(s, values);
      } else {
        mix(stage, sums);
        const float unscale = scale.back * rsqrtf(float{GDN_KEY_DIM});
        scale_rows(sums, unscale, unscale);
        store_rows(sums, cell);
      }
      __syncthreads();  // the cell is read, the largest numbers are written
      bring(cell + kCellStages);
    }
    if (carries) for_each_state(s, [](float& to, const float& from) { to = from; });
  }

  __device__ void store_rows(const Sums& sums, unsigned cell) const {
    float* to = params.out + head * GDN_VALUE_DIM + split * kColumns + 2 * q;
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      const unsigned row = row_of(cell, low);
      if (row >= rows) continue;
      float* at = to + size_t{first + row} * GDN_VALUE_HEADS * GDN_VALUE_DIM;
#pragma unroll
      for (int t = 0; t < 2 * kColumnTiles; ++t) {
        *reinterpret_cast<float2*>(at + t * 8) = {sums[t][2 * low], sums[t][2 * low + 1]};
      }
    }
  }
};

// A block per sequence, value head and 32 columns of its state.
template <class Tile>
__global__ __launch_bounds__(kCarryThreads, 1) void carry_f16(CarryParams params) {
  extern __shared__ __align__(128) unsigned char carry_shared[];
  auto& shared = *reinterpret_cast<CarryStorage*>(carry_shared);
  ptx::griddepcontrol_launch_dependents();
  if (threadIdx.x == 0) {
    for (auto& barrier : shared.brought) ptx::mbarrier_init(&barrier);
    ptx::mbarrier_init_fence();
  }
  ptx::griddepcontrol_wait();
  __syncthreads();  // the barriers are initialised
  Carry block(params, shared);
  for (int cell = 0; cell < kCellStages; ++cell) block.bring(cell);
  block.go();
}

template <class Tile>
struct ChunksF16 {
  static_assert(Tile::kThreads == kCarryThreads, "a warp has 16 rows of a cell, twice");
  static_assert(Tile::kSharedBytes == sizeof(CarryStorage), "the manifest plans this storage");
  static_assert(sizeof(CellStorage) <= Tile::kSharedBytes, "cells need no more");

  static cudaError_t launch(const float* qkv, const float* b, const float* a, const float* a_log,
                            const float* dt_bias, float* state, const unsigned* spans,
                            const unsigned* cells, const unsigned* runs,
                            const unsigned* positions, const unsigned* slots,
                            unsigned char* records, float* out, unsigned, unsigned span_count,
                            unsigned cell_count, unsigned run_count, unsigned record_bytes,
                            cudaStream_t stream) {
    if (record_bytes != sizeof(CellRecord)) return cudaErrorInvalidValue;
    const auto* cell_list = reinterpret_cast<const uint2*>(cells);
    auto* cell_records = reinterpret_cast<CellRecord*>(records);
    const CellParams prepared{qkv, b, a, a_log, dt_bias, cell_list, cell_records};
    const cudaError_t not_prepared = launch_chained(
        cells_f16<Tile>, {cell_count, kCellThreads, sizeof(CellStorage), GDN_KEY_HEADS},
        stream, prepared);
    if (not_prepared != cudaSuccess) return not_prepared;
    const CarryParams carried{qkv,       state, cell_list,    reinterpret_cast<const uint2*>(runs),
                              positions, slots, cell_records, out};
    const Launch shape{run_count, kCarryThreads, sizeof(CarryStorage), GDN_VALUE_HEADS, kSplits};
    const cudaError_t not_carried = launch_chained(carry_f16<Tile>, shape, stream, carried);
    if (not_carried != cudaSuccess) return not_carried;
    return ColumnsF32<Tile>::launch(qkv, b, a, a_log, dt_bias, state, spans, positions, slots, out,
                              span_count, stream);
  }
};

}  // namespace atlas::gated_delta
