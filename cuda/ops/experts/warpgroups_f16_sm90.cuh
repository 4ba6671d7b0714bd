// Implements: Ops::experts
// Match:      experts of one weight format and shape, the shared one last; gate and up rows
//             interleaved by 8, or up alone; operands F16
// Bound by:   tensor instructions
// Sync:       five chained launches: plan and rows to F16, operands by expert, gate and up with
//             SwiGLU, down, weighted sum
#pragma once

#include "ops/experts/grouped_f16.cuh"
#include "tile/activates_sm90.cuh"

namespace atlas::experts {

// Products of `down` as (pairs / 32, places, 32): a warpgroup's products for a tile are side by
// side. Panels are swapped by the place's number, against bank conflicts of a warpgroup's writes.
struct SumBlocks {
  static constexpr int kBlockPairs = 32;

  static_assert(kPairs % (tile::kConsumers * kBlockPairs) == 0, "tiles are full");

  __host__ __device__ static size_t at(int sorted, int pair) {
    const size_t row = static_cast<size_t>(pair / kBlockPairs) * kSortedMax + sorted;
    return row * kBlockPairs + (pair % kBlockPairs ^ sorted / 2 % 4 * 8);
  }
};

// Tiles of the plan times tiles of panels, as tiles for warpgroups.
template <tile::Storage kStorage, bool kDown>
struct ExpertTiles {
  using W = tile::Matrix<kStorage>;
  static constexpr int kN = kDown ? kWidth : kInputs * Experts::kIntermediate;
  static constexpr int kK = kDown ? Experts::kIntermediate : kWidth;
  static constexpr int kAcross = tile::panel_tiles(kN);

  const unsigned char* weights;
  const unsigned char* operands;  // of all sorted rows
  const Params& params;
  Plan* plan;

  __device__ ExpertTiles(const Params& params, const unsigned char* operands)
      : weights(kDown ? params.down : params.gate_up),
        operands(operands),
        params(params),
        plan(params.plan) {}

  // Operand groups of all places; to be called after the wait for the plan's kernel.
  __device__ int groups() const { return static_cast<int>(plan->sorted) / tile::kOperandRows; }

  // Next tile of this block: the first one that no block has taken, as tiles take different times.
  // For `gate_up` only: an atomic in `down` would make its sums spill.
  __device__ int next() const
    requires(!kDown)
  {
    return static_cast<int>(gridDim.x + atomicAdd(&plan->taken, 1u));
  }

  // Makes `tile` the `i`-th tile; false after the last. `gate_up` begins with the last tiles, the
  // shared expert's, which are the largest, and ends with those that `down` begins with.
  __device__ bool operator()(int i, tile::WarpgroupTile& tile) const {
    const int tiles = static_cast<int>(plan->tiles);
    if (i >= tiles * kAcross) return false;
    const uint4 of = plan->tile[kDown ? i / kAcross : tiles - 1 - i / kAcross];
    const int panel = i % kAcross * tile::kTilePanels;
    tile = {weights + of.x * W::bytes(kN, kK),
            kN,
            panel,
            operands + of.y / tile::kOperandRows * tile::Operands<kStorage>::kBytes,
            groups(),
            static_cast<int>(of.z),
            out(static_cast<int>(of.y), panel)};
    return true;
  }

  // Address of the results of a tile that begins at panel `panel` and row `first`.
  __device__ void* out(int first, int panel) const {
    if constexpr (kDown) {
      return params.y + SumBlocks::at(first, panel * 8);
    } else {
      const tile::Operands<kStorage> act{reinterpret_cast<unsigned char*>(params.act), groups()};
      return act.at(first, panel * kPanelActivations);
    }
  }
};

extern __shared__ __align__(128) unsigned char dynamic_shared[];

// Copies rounded rows to the sorted rows of the plan, as operands.
template <tile::Storage kStorage>
__global__ __launch_bounds__(tile::kRoundThreads) void gather(Params params, const f16* rows,
                                                              unsigned char* operands) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const Plan& plan = *params.plan;
  const int count = static_cast<int>(plan.sorted);
  if (static_cast<int>(blockIdx.x) * tile::kOperandRows >= count) return;
  const tile::Operands<kStorage> to{operands, count / tile::kOperandRows};
  tile::round_rows(to, kWidth, [&](int sorted) -> const f16* {
    const unsigned assignment = plan.assignment_of[sorted];
    if (assignment == kPadding) return nullptr;  // padding, whose operands do not matter
    return rows + static_cast<size_t>(assignment / kAssigned) * kWidth;
  });
}

struct Activation {
  __device__ float operator()(float gate, float up) const { return activation(gate, up); }
  __device__ float operator()(float up) const { return activation(up, up); }
};

template <tile::Storage kStorage>
__global__ __launch_bounds__(tile::kWarpgroupThreads, 1) void gate_up(
    Params params, const unsigned char* operands) {
  using Tiles = ExpertTiles<kStorage, false>;
  constexpr int kOctets = kPanelActivations / 8;
  using Sink = tile::Activates<kStorage, Activation, kOctets>;
  using Out = tile::OutStorage<tile::kTileRowsMax, kOctets>;
  static_assert(Experts::kIntermediate % Sink::kColumns == 0, "tiles are full");
  tile::Warpgroups<kStorage, Tiles::kK, Out>(dynamic_shared)
      .run(Tiles(params, operands), Sink{});
}

// Buffers for a tile's results: one is written while the other is copied to memory.
struct SumStorage {
  static constexpr int kRows = 64;
  f16x2 sums[tile::kConsumers][2][kRows * SumBlocks::kBlockPairs];
};

// Writes a tile's results as `SumBlocks`, a warpgroup's rows by bulk copies: unlike stores of
// single numbers, the warps need not wait for them.
struct PutsBlocks {
  template <class W, int kSums>
  __device__ void operator()(const tile::Consumer<W, SumStorage>& self,
                             const tile::WarpgroupTile& tile,
                             const float (&sums)[kSums]) const {
    constexpr int kBlockPairs = SumBlocks::kBlockPairs, kTileRows = 2 * kSums;
    constexpr int kRows = kTileRows < SumStorage::kRows ? kTileRows : SumStorage::kRows;
    const int g = self.lane() / 4, q = self.lane() % 4;
    const auto low = self.template affine<false>(), high = self.template affine<true>();
    const auto at = SumBlocks::at(q * 2, self.panel() % 4 * 8 + g);
#pragma unroll
    for (int first = 0; first < kTileRows; first += kRows) {
      if (first > 0 && first >= tile.rows) break;
      f16x2* staged = self.shared.sums[self.warpgroup()][first / kRows % 2];
      if (self.leads()) {
        // The tile before may have used either buffer last.
        if (first == 0) ptx::copy_out_wait_read<0>();
        if (first > 0) ptx::copy_out_wait_read<1>();
      }
      self.sync_warpgroup();  // the rows before have been copied
#pragma unroll
      for (int row = 0; row < kRows; row += 8) {
        const float* sum = sums + (first + row) / 2;
        staged[at + row * kBlockPairs] = to_parts(result(low, sum[0]), result(high, sum[2]));
        staged[at + (row + 1) * kBlockPairs] = to_parts(result(low, sum[1]), result(high, sum[3]));
      }
      ptx::fence_shared();
      self.sync_warpgroup();  // the sums are staged
      if (!self.leads()) continue;
      f16x2* to = static_cast<f16x2*>(tile.out) +
                  SumBlocks::at(first, self.warpgroup() * kBlockPairs);
      const int rows = min(tile.rows - first, kRows);
      ptx::copy_out(to, staged, rows * kBlockPairs * sizeof(f16x2));
    }
  }
};

template <tile::Storage kStorage>
__global__ __launch_bounds__(tile::kWarpgroupThreads, 1) void down(Params params) {
  using Tiles = ExpertTiles<kStorage, true>;
  const auto* operands = reinterpret_cast<const unsigned char*>(params.act);
  tile::Warpgroups<kStorage, Tiles::kK, SumStorage>(dynamic_shared)
      .run(Tiles(params, operands), PutsBlocks{});
}

template <tile::Storage kStorage>
struct WarpgroupProducts {
  static cudaError_t launch(const Params& params, cudaStream_t stream, unsigned char* operands) {
    // Rounded rows use the memory of `y`, which is written later.
    auto* rounded = reinterpret_cast<f16*>(params.y);
    const bool early = tile::starts_early(params.rows);
    cudaError_t failed = launch_plan(params, tile::kTileRowsMax, stream, rounded, early);
    if (failed != cudaSuccess) return failed;
    const unsigned groups = tile::operand_groups(sorted_rows(params.rows));
    const unsigned parts = tile::round_parts(kWidth);
    const Launch all{groups, tile::kRoundThreads, 0, parts, 1, early};
    failed = launch_chained(gather<kStorage>, all, stream, params, rounded, operands);
    if (failed != cudaSuccess) return failed;
    const Launch shape{target::SMS, tile::kWarpgroupThreads, tile::kWarpgroupBytes, 1, 1, early};
    failed = launch_chained(gate_up<kStorage>, shape, stream, params, operands);
    return failed == cudaSuccess ? launch_chained(down<kStorage>, shape, stream, params) : failed;
  }
};

template <class Tile, class E>
struct WarpgroupsF16 {
  static_assert(Tile::kThreads == tile::kWarpgroupThreads, "a block is its warpgroups");
  static_assert(kFits<tile::kWarpgroupBytes>);
  static_assert(kSortedGroup == tile::kOperandRows, "a tile's operands are whole groups");
  static_assert(tile::operand_bytes(kSortedMax, Experts::kIntermediate) <=
                    sizeof(float) * kSortedMax * Experts::kIntermediate,
                "operands of `down` overwrite `act`");

  static cudaError_t launch(const float* x, const unsigned* chosen, const float* weights,
                            const unsigned char* gate_up, const unsigned char* down,
                            unsigned char* scratch, unsigned char* operands, float* act,
                            unsigned* y, float* residual, unsigned rows, unsigned format,
                            cudaStream_t stream) {
    if (rows == 0) return cudaSuccess;
    if (rows > kRowsMax) return cudaErrorInvalidValue;
    const Params params = params_of(x, chosen, weights, gate_up, down, scratch, act, y, residual,
                                    rows);
    const cudaError_t failed =
        launch_format<WarpgroupProducts>(params, format, stream, operands);
    return failed == cudaSuccess
               ? launch_sum<SumBlocks>(params, stream, tile::starts_early(params.rows))
               : failed;
  }
};

}  // namespace atlas::experts
