// Implements: Ops::gated_delta
// Match:      keys and values of 128 elements; operands F16, states, gates and sums F32
// Bound by:   latency: cells go one after the other, half of it a warp's tensor instructions
// Sync:       warps of 16 columns hand over by barriers in shared memory, where each lane arrives
//             for what it did itself; the block meets once, at the start; chained launches
//
// A prompt's rows in a cell of 64 positions are one unit of work: `cells_f16` prepares all cells at
// once, `carry_f16` then updates the state cell by cell. Too few rows for a cell go row by row, as
// in decode. The state is scaled by a power of two before it is rounded, so that operands stay
// within F16 whatever the state is.
//
// Inputs and results of cells are F16 in memory, for half the traffic: the rounding error is an
// eighth of BF16's in the next product. Numbers above 65,504 become infinite, and so does the row.
//
// The state is transposed, columns of values by keys: a warp's sums for 16 columns are, after
// rounding, the operands of its next product, so they stay in the warp's registers.
#pragma once

#include "ops/gated_delta/cells_f16.cuh"

namespace atlas::gated_delta {

using target::shapes::Delta;

// Columns of the state that one warp has.
inline constexpr int kPairColumns = tile::kTileRows;
// Warps that carry the state, each with a warp for the results and one for the values.
inline constexpr int kPairs = kColumns / kPairColumns;
// Threads that read the records, which the last warp copies: those of carriers and of results.
inline constexpr int kReaders = 2 * kPairs * tile::kWarpLanes;
inline constexpr int kCarryThreads = (3 * kPairs + 1) * tile::kWarpLanes;
// Cells whose records are in shared memory or being copied.
inline constexpr int kCellStages = target::SHARED_BYTES_PER_BLOCK >= 128 * 1024 ? 3 : 1;
// Cells that a carrier may be ahead of its results' warp, and a warp of values ahead of a carrier.
inline constexpr int kAhead = 2;

struct CarryParams {
  const float* qkv;           // (rows, kWidth), heads F16
  float* state;               // (states: state_stride apart; kValueHeads, kValueDim, kKeyDim)
  unsigned state_stride;      // elements
  const float* skip;          // (kValueHeads), null unless Mamba-2
  const uint2* cells;         // (cells): first row, rows
  const uint2* runs;          // (runs): first cell, cells of one sequence
  const unsigned* positions;  // (rows)
  const unsigned* from_slots;  // (rows)
  const unsigned* slots;       // (rows)
  const unsigned* snapshot_rows;   // (rows): rows after which the state is stored too; 0: none
  const unsigned* snapshot_slots;  // (rows)
  const CellRecord* records;  // (cells)
  float* out;                 // (rows, kValueHeads, kValueDim), heads F16
};

// 16 columns by `kTiles` tiles of 16 keys or rows: sums in F32, and operands rounded to F16.
template <int kTiles>
using Sums = float[2 * kTiles][4];
template <int kTiles>
using Operands = unsigned[kTiles][4];

struct CarryStorage {
  struct alignas(128) Stage {
    KeyRecord keys;
    ValueRecord values;
  } stage[kCellStages];
  // Operands that a carrier hands over for a cell, distributed over lanes as in registers.
  struct Handed {
    uint4 state[kKeyTiles][tile::kWarpLanes];
    uint4 update[kRowTiles][tile::kWarpLanes];
    float back;
    unsigned long long states;   // barrier: the state before the cell is there
    unsigned long long updates;  // barrier: the updates of the cell are there
    unsigned long long taken;    // barrier: state and updates have been read
  } handed[kPairs][kAhead];
  // A cell's values, distributed over lanes as in a carrier's registers.
  struct Values {
    float4 value[2 * kRowTiles][tile::kWarpLanes];
    float largest;
    unsigned long long there;  // mbarrier: the values are written
    unsigned long long taken;  // mbarrier: the values have been read
  } values[kPairs][kAhead];
  unsigned long long brought[kCellStages];  // mbarriers: records are in a stage
  unsigned long long used[kCellStages];
};

// Rounds sums to operands.
template <int kTiles>
__device__ inline void round(Operands<kTiles>& to, const Sums<kTiles>& from) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* two = &from[2 * t + i / 2][i % 2 * 2];
      to[t][i] = to_f16x2(two[0], two[1]).bits;
    }
  }
}

template <int kTiles>
__device__ inline void put(uint4 (&to)[kTiles][tile::kWarpLanes], const Operands<kTiles>& from) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    to[t][threadIdx.x % tile::kWarpLanes] = {from[t][0], from[t][1], from[t][2], from[t][3]};
  }
}

template <int kTiles>
__device__ inline void take(Operands<kTiles>& to, const uint4 (&from)[kTiles][tile::kWarpLanes]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const uint4 v = from[t][threadIdx.x % tile::kWarpLanes];
    to[t][0] = v.x, to[t][1] = v.y, to[t][2] = v.z, to[t][3] = v.w;
  }
}

// Adds the products of `a` with a 16x16 tile.
__device__ inline void add(float (&left)[4], float (&right)[4], const unsigned (&a)[4],
                           const unsigned (&b)[4]) {
  ptx::mma_f16(left, a, b[0], b[1]);
  ptx::mma_f16(right, a, b[2], b[3]);
}

// Adds the state's products with keys or queries.
__device__ inline void recall(Sums<kRowTiles>& sums, const Operands<kKeyTiles>& state,
                              const tile::TileF16 (&rows)[kRowTiles][kKeyTiles]) {
#pragma unroll
  for (int k = 0; k < kKeyTiles; ++k) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      unsigned b[4];
      tile::load_b_transposed(b, rows[r][k]);
      add(sums[2 * r], sums[2 * r + 1], state[k], b);
    }
  }
}

// Adds the products of a cell's rows with a lower triangular matrix, T or M.
__device__ inline void mix(Sums<kRowTiles>& sums, const Operands<kRowTiles>& rows,
                           const tile::TileF16 (&triangle)[tile::kTriangle<kRowTiles>]) {
#pragma unroll
  for (int s = 0; s < kRowTiles; ++s) {
#pragma unroll
    for (int r = s; r < kRowTiles; ++r) {
      unsigned b[4];
      tile::load_b_transposed(b, triangle[tile::triangle(r, s)]);
      add(sums[2 * r], sums[2 * r + 1], rows[s], b);
    }
  }
}

// Factors, one a row of a cell, by which a lane multiplies its sums: two of each eight rows.
struct Factors {
  float2 two[2 * kRowTiles];

  __device__ explicit Factors(const float (&of_cell)[kCell]) {
#pragma unroll
    for (int t = 0; t < 2 * kRowTiles; ++t) {
      two[t] = *reinterpret_cast<const float2*>(&of_cell[t * 8 + threadIdx.x % 4 * 2]);
    }
  }

  // Factor of sum `e` of a tile.
  __device__ float operator()(int tile, int e) const {
    return e % 2 == 0 ? two[tile].x : two[tile].y;
  }
};

__device__ inline void scale_rows(Sums<kRowTiles>& sums, const Factors& factors) {
#pragma unroll
  for (int t = 0; t < 2 * kRowTiles; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[t][e] *= factors(t, e);
  }
}

// Scale of the state: a power of two that brings magnitudes of at most `largest` below 512. Updates
// of 64 rows, each its value and the state's product with its key, are then within F16.
struct Scale {
  float to = 1.0f;
  float back = 1.0f;

  Scale() = default;
  __device__ explicit Scale(float largest) {
    const unsigned exponent = min(max(__float_as_uint(largest) >> 23, 30u), 230u);
    to = __uint_as_float((262 - exponent) << 23);
    back = __uint_as_float((exponent - 8) << 23);
  }
};

// Largest of the magnitudes in a warp's lanes.
__device__ inline float largest_of_warp(const float (&of_lane)[4]) {
  const float most = fmaxf(fmaxf(of_lane[0], of_lane[1]), fmaxf(of_lane[2], of_lane[3]));
  return __uint_as_float(__reduce_max_sync(tile::kAllLanes, __float_as_uint(most)));
}

template <int kTiles>
__device__ inline float largest_of_warp(const Sums<kTiles>& sums) {
  float largest[4] = {};  // four chains: one would take four times as long
#pragma unroll
  for (const auto& tile : sums) {
#pragma unroll
    for (int e = 0; e < 4; ++e) largest[e] = fmaxf(largest[e], fabsf(tile[e]));
  }
  return largest_of_warp(largest);
}

struct Carry {
  const CarryParams& params;
  CarryStorage& shared;
  const int head;
  const uint2 run;
  const unsigned first;  // row of the step
  const unsigned rows;   // whole cells but for the last one
  const int pair = threadIdx.x / tile::kWarpLanes % kPairs;
  const int column;  // the warp's first, among the head's
  const int lane = threadIdx.x % tile::kWarpLanes;
  const int g = lane / 4;
  const int q = lane % 4;

  __device__ Carry(const CarryParams& params, CarryStorage& shared)
      : params(params),
        shared(shared),
        head(blockIdx.y),
        run(params.runs[blockIdx.x]),
        first(params.cells[run.x].x),
        rows((run.y - 1) * kCell + params.cells[run.x + run.y - 1].y),
        column(blockIdx.z * kColumns + pair * kPairColumns) {}

  // Copies the records of all the run's cells to shared memory; one thread.
  __device__ void bring() {
    for (unsigned cell = 0; cell < run.y; ++cell) {
      const unsigned stage = cell % kCellStages;
      ptx::mbarrier_wait(&shared.used[stage], cell / kCellStages % 2 ^ 1);
      const CellRecord& from = params.records[run.x + cell];
      auto& to = shared.stage[stage];
      ptx::copy_bulk_shared(&to.keys, &from.of_key[head / kHeadGroup], sizeof(KeyRecord),
                            &to.values, &from.of_value[head], sizeof(ValueRecord),
                            &shared.brought[stage]);
    }
  }

  __device__ const CarryStorage::Stage& wait_for(unsigned cell) {
    ptx::mbarrier_wait(&shared.brought[cell % kCellStages], cell / kCellStages % 2);
    return shared.stage[cell % kCellStages];
  }

  // Frees the cell's stage. Reads must have ended before a lane arrives: a bulk copy would overtake
  // loads to registers that are under way.
  __device__ void give_back(unsigned cell) {
    ptx::fence_shared();
    ptx::mbarrier_arrive(&shared.used[cell % kCellStages]);
  }

  // Copies the values of all the run's cells, with zeros after the last row.
  __device__ void bring_values() {
    for (unsigned cell = 0; cell < run.y; ++cell) {
      const unsigned row = cell * kCell + 2 * q;
      const float* from =
          params.qkv + size_t{first + row} * kWidth + 2 * kKeys + head * Delta::kValueDim;
      f16 stored[2 * kRowTiles][4];
#pragma unroll
      for (int t = 0; t < 2 * kRowTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int at = t * 8 + e % 2, of_head = column + g + e / 2 * 8;
          stored[t][e] =
              row + at < rows ? tile::number_of_f16(from + at * kWidth, of_head) : f16{};
        }
      }
      Sums<kRowTiles> values;
      float largest[4] = {};
#pragma unroll
      for (int t = 0; t < 2 * kRowTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          values[t][e] = to_float(stored[t][e]);
          largest[e] = fmaxf(largest[e], fabsf(values[t][e]));
        }
      }
      auto& to = shared.values[pair][cell % kAhead];
      ptx::mbarrier_wait(&to.taken, cell / kAhead % 2 ^ 1);
#pragma unroll
      for (int t = 0; t < 2 * kRowTiles; ++t) {
        to.value[t][lane] = {values[t][0], values[t][1], values[t][2], values[t][3]};
      }
      const float most = largest_of_warp(largest);
      if (lane == 0) to.largest = most;
      ptx::mbarrier_arrive(&to.there);
    }
  }

  // Calls `body(two elements in memory, two of s)` for this lane's share of a slot's state.
  template <class Body>
  __device__ void for_each_state(unsigned slot, Sums<kKeyTiles>& s, Body body) const {
    const int at = (head * Delta::kValueDim + column + g) * Delta::kKeyDim + 2 * q;
    float* state = params.state + size_t{slot} * params.state_stride + at;
#pragma unroll
    for (int t = 0; t < 2 * kKeyTiles; ++t) {
#pragma unroll
      for (int low = 0; low < 2; ++low) {
        auto& two = *reinterpret_cast<float2*>(state + low * 8 * Delta::kKeyDim + t * 8);
        body(two, s[t][2 * low], s[t][2 * low + 1]);
      }
    }
  }

  // Carries the recurrent state through all cells of the run, in registers. The state is held
  // multiplied by a power of two ([`Scale`]), so that its products fit F16.
  __device__ void carry() {
    Sums<kKeyTiles> s{};
    if (params.positions[first] != 0) {
      for_each_state(params.from_slots[first], s,
                     [](const float2& from, float& x, float& y) { x = from.x, y = from.y; });
    }
    Scale scale;
    const unsigned snapshot = params.snapshot_rows[first];
    for (unsigned cell = 0; cell < run.y; ++cell) {
      const float largest = largest_of_warp<kKeyTiles>(s) * scale.back;
      auto& brought = shared.values[pair][cell % kAhead];
      ptx::mbarrier_wait(&brought.there, cell / kAhead % 2);
      Sums<kRowTiles> values;
#pragma unroll
      for (int t = 0; t < 2 * kRowTiles; ++t) {
        const float4 v = brought.value[t][lane];
        values[t][0] = v.x, values[t][1] = v.y, values[t][2] = v.z, values[t][3] = v.w;
      }
      float of_values = brought.largest;
      if constexpr (Delta::kMamba) {  // weights may be above 1
        scale_rows(values, Factors(wait_for(cell).values.weight));
        of_values = largest_of_warp<kRowTiles>(values);
      }
      const Scale next(fmaxf(largest, of_values));
      if (next.to != scale.to) change(s, scale, next);
      Operands<kKeyTiles> state;
      round(state, s);
      auto& handed = shared.handed[pair][cell % kAhead];
      ptx::mbarrier_wait(&handed.taken, cell / kAhead % 2 ^ 1);
      put(handed.state, state);
      if (lane == 0) handed.back = scale.back;
      ptx::mbarrier_arrive(&handed.states);
      update(wait_for(cell), s, state, values, scale.to, handed);
      ptx::mbarrier_arrive(&brought.taken);
      give_back(cell);
      if ((cell + 1) * kCell == snapshot) store(params.snapshot_slots[first], s, scale);
    }
    store(params.slots[first], s, scale);
  }

  // Stores the state without its scale.
  __device__ void store(unsigned slot, Sums<kKeyTiles>& s, const Scale& scale) const {
    const float back = scale.back;
    for_each_state(slot, s, [back](float2& to, float x, float y) { to = {x * back, y * back}; });
  }

  // Changes the state's scale, in two steps, as the quotient of both scales may overflow.
  __device__ static void change(Sums<kKeyTiles>& s, Scale& scale, const Scale& next) {
#pragma unroll
    for (auto& tile : s) {
#pragma unroll
      for (float& x : tile) x = x * scale.back * next.to;
    }
    scale = next;
  }

  // Updates of a cell's rows, scaled: T times `w (V - e^G (K S))`; in Mamba-2 `w V`.
  template <class Record>
  __device__ static void write(const Record& record, const KeyRecord& keys,
                               Sums<kRowTiles>& updates, const Operands<kKeyTiles>& state,
                               const Sums<kRowTiles>& values, float scale) {
    if constexpr (Delta::kMamba) {
#pragma unroll
      for (int t = 0; t < 2 * kRowTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) updates[t][e] = values[t][e] * scale;
      }
    } else {
      Operands<kRowTiles> rows;
      Sums<kRowTiles> sums{};
      const Factors decayed(record.decayed), weight(record.weight);
      recall(sums, state, keys.key);
#pragma unroll
      for (int t = 0; t < 2 * kRowTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sums[t][e] = weight(t, e) * fmaf(-decayed(t, e), sums[t][e], values[t][e] * scale);
        }
      }
      round(rows, sums);
      mix(updates, rows, record.solve);
    }
  }

  // Multiplies results by lengths of queries, in shapes whose records have them.
  template <class Record>
  __device__ static void lengthen(Sums<kRowTiles>& sums, const Record& record) {
    if constexpr (Delta::kMamba) scale_rows(sums, Factors(record.of_query));
  }

  // Computes the updates of a cell, and the state after it.
  __device__ static void update(const CarryStorage::Stage& stage, Sums<kKeyTiles>& s,
                                const Operands<kKeyTiles>& state, const Sums<kRowTiles>& values,
                                float scale, CarryStorage::Handed& handed) {
    Operands<kRowTiles> rows;
    Sums<kRowTiles> updates{};
    write(stage.values, stage.keys, updates, state, values, scale);
    round(rows, updates);
    put(handed.update, rows);
    ptx::mbarrier_arrive(&handed.updates);
    scale_rows(updates, Factors(stage.values.left));
    round(rows, updates);
    const float left = stage.values.decayed[kCell - 1];
#pragma unroll
    for (auto& tile : s) {
#pragma unroll
      for (float& x : tile) x *= left;
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int k = 0; k < kKeyTiles; ++k) {
        unsigned b[4];
        tile::load_b(b, stage.keys.key[r][k]);
        add(s[2 * k], s[2 * k + 1], rows[r], b);
      }
    }
  }

  // Computes the results of each cell, from the state before the cell and the cell's updates.
  __device__ void answer() {
    for (unsigned cell = 0; cell < run.y; ++cell) {
      auto& handed = shared.handed[pair][cell % kAhead];
      const unsigned parity = cell / kAhead % 2;
      Operands<kKeyTiles> state;
      ptx::mbarrier_wait(&handed.states, parity);
      take(state, handed.state);
      const float unscale =
          Delta::kMamba ? handed.back : handed.back * rsqrtf(float{Delta::kKeyDim});
      const auto& stage = wait_for(cell);
      Sums<kRowTiles> sums{};
      recall(sums, state, stage.keys.query);
      scale_rows(sums, Factors(stage.values.decayed));
      Operands<kRowTiles> updates;
      ptx::mbarrier_wait(&handed.updates, parity);
      take(updates, handed.update);
      mix(sums, updates, stage.values.mix);
      lengthen(sums, stage.values);
      ptx::mbarrier_arrive(&handed.taken);
      give_back(cell);
      store_rows(sums, unscale, cell);
    }
  }

  __device__ void store_rows(const Sums<kRowTiles>& sums, float unscale, unsigned cell) const {
    constexpr int kOutWidth = Delta::kValueHeads * Delta::kValueDim;
    const unsigned row = cell * kCell + 2 * q;
    float* to = params.out + size_t{first + row} * kOutWidth + head * Delta::kValueDim;
    const float* values =
        params.qkv + size_t{first + row} * kWidth + 2 * kKeys + head * Delta::kValueDim;
    const float skip = skip_of(params.skip, head);
#pragma unroll
    for (int t = 0; t < 2 * kRowTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = t * 8 + e % 2;
        if (row + at >= rows) continue;
        const int of_head = column + g + e / 2 * 8;
        float result = sums[t][e] * unscale;
        if constexpr (Delta::kMamba) {
          const f16 value = tile::number_of_f16(values + at * kWidth, of_head);
          result = fmaf(skip, to_float(value), result);
        }
        tile::number_of_f16(to + at * kOutWidth, of_head) = to_f16(result);
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
    for (int stage = 0; stage < kCellStages; ++stage) {
      ptx::mbarrier_init(&shared.brought[stage]);
      ptx::mbarrier_init(&shared.used[stage], kReaders);
    }
    for (int i = 0; i < kPairs * kAhead; ++i) {
      auto& handed = shared.handed[i / kAhead][i % kAhead];
      auto& values = shared.values[i / kAhead][i % kAhead];
      ptx::mbarrier_init(&handed.states, tile::kWarpLanes);
      ptx::mbarrier_init(&handed.updates, tile::kWarpLanes);
      ptx::mbarrier_init(&handed.taken, tile::kWarpLanes);
      ptx::mbarrier_init(&values.there, tile::kWarpLanes);
      ptx::mbarrier_init(&values.taken, tile::kWarpLanes);
    }
    ptx::mbarrier_init_fence();
  }
  Carry block(params, shared);
  ptx::griddepcontrol_wait();  // lists depend on nothing; everything below does
  __syncthreads();  // the barriers are initialised
  const int warp = threadIdx.x / tile::kWarpLanes;
  // Warps of values share a sub-partition of the SM with those of results.
  if (warp < kPairs) {
    block.answer();
  } else if (warp < 2 * kPairs) {
    block.carry();
  } else if (warp < 3 * kPairs) {
    block.bring_values();
  } else if (block.lane == 0) {
    block.bring();
  }
}

template <class Tile, class D>
struct ChunksF16 {
  static_assert(Tile::kThreads == kCarryThreads, "three warps have 16 columns, one brings records");
  static_assert(kFits<sizeof(CarryStorage)> && kFits<sizeof(CellStorage)>);

  // Shared memory that only one block of an SM can have, bytes.
  static constexpr unsigned kMoreThanHalf = target::SHARED_BYTES_PER_BLOCK / 2 + 1024;
  // Shared memory with which a block of cells has an SM to itself, bytes.
  static constexpr unsigned kAloneBytes =
      sizeof(CellStorage) > kMoreThanHalf ? sizeof(CellStorage) : kMoreThanHalf;

  static cudaError_t launch(const float* qkv, const float* b, const float* a, const float* a_log,
                            const float* dt_bias, const float* skip, float* state,
                            const unsigned* spans,
                            const unsigned* cells, const unsigned* runs,
                            const unsigned* positions, const unsigned* from_slots,
                            const unsigned* slots, const unsigned* snapshot_rows,
                            const unsigned* snapshot_slots, const unsigned* draft_slots,
                            unsigned char* records, float* out, unsigned state_stride, unsigned,
                            unsigned span_count, unsigned cell_count, unsigned run_count,
                            unsigned record_bytes, cudaStream_t stream) {
    if (record_bytes != sizeof(CellRecord)) return cudaErrorInvalidValue;
    const auto* cell_list = reinterpret_cast<const uint2*>(cells);
    auto* cell_records = reinterpret_cast<CellRecord*>(records);
    const CellParams prepared{qkv, b, a, a_log, dt_bias, cell_list, cell_records};
    // Cells that start early would fill the SMs that are free first; few cells get an SM each.
    constexpr unsigned kOfCell = Delta::kKeyHeads * kHeadBlocks;
    const bool early = kOfCell * cell_count <= target::SMS;
    const Launch all{kOfCell, kCellThreads, early ? kAloneBytes : sizeof(CellStorage),
                     cell_count, 1, early};
    const cudaError_t not_prepared = launch_chained(cells_f16<Tile>, all, stream, prepared);
    if (not_prepared != cudaSuccess) return not_prepared;
    const auto* run_list = reinterpret_cast<const uint2*>(runs);
    const CarryParams carried{qkv,            state,        state_stride, skip,  cell_list,
                              run_list,       positions,    from_slots,   slots, snapshot_rows,
                              snapshot_slots, cell_records, out};
    const Launch shape{run_count, kCarryThreads, sizeof(CarryStorage), Delta::kValueHeads, kSplits};
    const cudaError_t not_carried = launch_chained(carry_f16<Tile>, shape, stream, carried);
    if (not_carried != cudaSuccess) return not_carried;
    return ColumnsF32<Tile>::launch(qkv, b, a, a_log, dt_bias, skip, state, state_stride, spans,
                                    positions, from_slots, slots, draft_slots, out, span_count,
                                    stream);
  }
};

}  // namespace atlas::gated_delta
