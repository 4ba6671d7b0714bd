// Implements: Ops::experts
// Match:      experts of NVFP4 and rows rounded to the same, the shared one last; gate and up rows
//             interleaved by 8; experts of another format as `grouped_f16` does them
// Bound by:   tensor instructions for many rows, memory for few
// Sync:       six chained launches: plan, rows, gate and up with SwiGLU, its rows, down, weighted
//             sum
//
// Rows are rounded for each of the two products, each row by itself: bits do not depend on the
// number of rows.
#pragma once

#include "ops/experts/grouped_f16.cuh"
#include "tile/fp4.cuh"

namespace atlas::experts {

inline constexpr int kRoundWarps = 8;
inline constexpr int kRoundThreads = kRoundWarps * tile::kWarpLanes;

using InputRows = tile::Fp4Rows<kRowsMax, kWidth>;
using InnerRows = tile::Fp4Rows<kSortedMax, Experts::kIntermediate>;

// Operands of both products in one piece of memory.
struct Fp4Operands {
  unsigned char* base;

  __device__ InputRows input() const { return {base}; }
  __device__ InnerRows inner() const { return {base + InputRows::kBytes}; }
};

static __global__ __launch_bounds__(kRoundThreads) void round_input(Params params,
                                                                    Fp4Operands operands) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int row = blockIdx.x * kRoundWarps + threadIdx.x / tile::kWarpLanes;
  if (row < params.rows) operands.input().put(row, params.x + static_cast<size_t>(row) * kWidth);
}

static __global__ __launch_bounds__(kRoundThreads) void round_inner(Params params,
                                                                    Fp4Operands operands) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int sorted = blockIdx.x * kRoundWarps + threadIdx.x / tile::kWarpLanes;
  if (sorted >= params.plan->sorted || params.plan->assignment_of[sorted] == kPadding) return;
  const size_t at = static_cast<size_t>(sorted) * Experts::kIntermediate;
  operands.inner().put(sorted, params.act + at);
}

template <template <int> class Tiled, bool kDown>
__global__ __launch_bounds__(tile::kPanelThreads) void fp4_product(Params params,
                                                                   Fp4Operands operands) {
  constexpr int kN = kDown ? kWidth : 2 * Experts::kIntermediate;
  constexpr int kK = kDown ? Experts::kIntermediate : kWidth;
  using Stage = Tiled<kK>;
  using W = typename Stage::W;
  __shared__ typename Stage::SharedStorage shared;
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  if (blockIdx.y >= params.plan->tiles) return;
  const uint4 tile = params.plan->tile[blockIdx.y];
  const int first = tile.y, rows = tile.z;
  const W w{(kDown ? params.down : params.gate_up) + tile.x * W::bytes(kN, kK), kN, kK};
  const Stage stage(w, blockIdx.x);
  if constexpr (kDown) {
    const Store<tile::Storage::nvfp4> store{w, params.y + SumRows::at(first, 0)};
    stage.run(rows, operands.inner(), [&](int sorted) { return first + sorted; }, store, shared);
  } else {
    float* act = params.act + static_cast<size_t>(first) * Experts::kIntermediate;
    const auto row_of = [&](int sorted) {
      return static_cast<int>(params.plan->assignment_of[first + sorted] / kAssigned);
    };
    const SwiGlu<tile::Storage::nvfp4, float> sink{w, act};
    stage.run(rows, operands.input(), row_of, sink, shared);
  }
}

// Rows of a tile in steps of many rows.
inline constexpr int kTileRows = 64;

template <int kWidth>
using ManyFp4 = tile::Fp4Tiled<tile::Fp4Instruction, kWidth, kTileRows / 8, 2, 1>;
template <int kWidth>
using FewFp4 = tile::Fp4Tiled<tile::Fp4Instruction, kWidth, kFewTileRows / 8, 1, 4>;

template <template <int> class Tiled>
cudaError_t launch_fp4(const Params& params, const Fp4Operands& operands, int tile_rows,
                       cudaStream_t stream) {
  constexpr int kInner = 2 * Experts::kIntermediate, kThreads = tile::kPanelThreads;
  const unsigned rows = params.rows, tiles = tiles_max(rows, tile_rows);
  cudaError_t failed = launch_plan(params, tile_rows, stream);
  if (failed != cudaSuccess) return failed;
  failed = launch_chained(round_input, {blocks_for(rows, kRoundWarps), kRoundThreads, 0}, stream,
                          params, operands);
  if (failed != cudaSuccess) return failed;
  failed = launch_chained(fp4_product<Tiled, false>,
                          {Tiled<kWidth>::blocks(kInner), kThreads, 0, tiles}, stream, params,
                          operands);
  if (failed != cudaSuccess) return failed;
  const unsigned count = sorted_rows(params.rows);
  failed = launch_chained(round_inner, {blocks_for(count, kRoundWarps), kRoundThreads, 0}, stream,
                          params, operands);
  if (failed != cudaSuccess) return failed;
  return launch_chained(fp4_product<Tiled, true>,
                        {Tiled<Experts::kIntermediate>::blocks(kWidth), kThreads, 0, tiles}, stream,
                        params, operands);
}

template <class Tile, class E>
struct BlockScaledFp4 {
  static_assert(Tile::kThreads == tile::kPanelThreads, "a block is the panels' warps");

  static cudaError_t launch(const float* x, const unsigned* chosen, const float* weights,
                            const unsigned char* gate_up, const unsigned char* down,
                            unsigned char* scratch, unsigned char* operands, float* act,
                            unsigned* y, float* residual, unsigned rows, unsigned format,
                            cudaStream_t stream) {
    if (rows == 0) return cudaSuccess;
    if (rows > kRowsMax) return cudaErrorInvalidValue;
    const Params params = params_of(x, chosen, weights, gate_up, down, scratch, act, y, residual,
                                    rows);
    cudaError_t failed;
    if (format != tile::kBlockScaled) {
      constexpr tile::Storage kOther = tile::storage_of(target::FORMAT_MTP_EXPERTS);
      if (format != static_cast<unsigned>(kOther)) return cudaErrorInvalidValue;
      failed = GroupedProducts<kOther>::launch(params, stream, nullptr);
    } else if (rows <= kFewRows) {
      failed = launch_fp4<FewFp4>(params, {operands}, kFewTileRows, stream);
    } else {
      failed = launch_fp4<ManyFp4>(params, {operands}, kTileRows, stream);
    }
    return failed == cudaSuccess ? launch_sum<SumRows>(params, stream) : failed;
  }
};

}  // namespace atlas::experts
