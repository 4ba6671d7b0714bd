// Implements: Ops::mlp
// Match:      as `norm_linear`, `swiglu` and `linear_add`
// Bound by:   few rows: as these; many rows: tensor instructions
// Sync:       few rows: as these; many, of one weight format: three chained launches that norm rows
//             into operands, make activations of them as operands, and multiply these
#pragma once

#include "ops/linear_add/warpgroups_f16_sm90.cuh"
#include "ops/mlp/apart_f16.cuh"
#include "tile/activates_sm90.cuh"
#include "tile/math.cuh"
#include "tile/normed_operands_sm90.cuh"

namespace atlas::mlp {

using linear::dynamic_shared;
using target::HIDDEN;

// Fewest rows that are multiplied in tiles. `norm_linear` alone is as fast for more rows, held in
// registers, but then gates, ups and activations go through memory.
inline constexpr int kManyRowsMin = tile::kOperandRows + 1;

struct Params {
  const unsigned char* gate;
  const unsigned char* up;
  int rows;
};

template <class M>
struct Activation {
  __device__ float operator()(float gate, float up) const {
    return tile::open<M::kActivation>(gate) * tile::lift<M::kActivation>(up);
  }
};

// Makes the activations of all rows, as operands of `down`.
template <class M, tile::Storage kStorage, int kRows>
__global__ __launch_bounds__(tile::kWarpgroupThreads, 1) void activate(
    Params params, tile::Operands<kStorage> x, tile::Operands<kStorage> act, int tile_rows,
    tile::TileOrder order) {
  using Out = tile::OutStorage<kRows>;
  const auto tiles = [&](int i, tile::WarpgroupTile& tile) {
    if (i >= order.tiles()) return false;
    const int2 at = order.at(i);
    const int first = at.y * tile_rows;
    tile = {params.gate,
            M::kIntermediate,
            at.x * (tile::kTilePanels / 2),
            x.base + first / tile::kOperandRows * tile::Operands<kStorage>::kBytes,
            x.groups,
            min(tile_rows, params.rows - first),
            act.at(first, at.x * tile::kActivatedColumns),
            params.up};
    return true;
  };
  tile::Warpgroups<kStorage, HIDDEN, Out, 1, kRows, true>(dynamic_shared)
      .run(tiles, tile::Activates<kStorage, Activation<M>>{});
}

template <class Tile, class M>
struct WarpgroupsF16 {
  static_assert(Tile::kThreads == tile::kWarpgroupThreads, "a block is its warpgroups");
  static_assert(kFits<tile::kWarpgroupBytes>);

  static constexpr int kInner = M::kIntermediate;
  static constexpr bool kFull = kInner % tile::kActivatedColumns == 0 &&
                                kInner % tile::kBlockColumns == 0 &&
                                HIDDEN % tile::kBlockColumns == 0;

  template <tile::Storage kStorage>
  static cudaError_t many(const Params& params, float* residual, const float* gain,
                          unsigned char* operands, const unsigned char* down, float* act,
                          cudaStream_t stream) {
    const int rows = params.rows, groups = tile::operand_groups(rows);
    const bool early = tile::starts_early(rows);
    const tile::Operands<kStorage> x{operands, groups};
    const tile::Operands<kStorage> activated{reinterpret_cast<unsigned char*>(act), groups};
    tile::NormedOperands normed{};
    normed.of<kStorage>() = {operands, groups};
    cudaError_t failed = tile::launch_norm_operands(tile::RowsIn{residual}, rows, gain, nullptr,
                                                    normed, stream);
    if (failed != cudaSuccess) return failed;
    failed = tile::launch_tiles<kStorage, HIDDEN>(
        [](auto most) { return activate<M, kStorage, most>; }, kInner / tile::kActivatedColumns,
        rows, early, stream, params, x, activated);
    if (failed != cudaSuccess) return failed;
    const linear_add::Params of_down{nullptr, down, residual, rows, HIDDEN, kInner};
    return linear_add::multiply<kStorage, kInner>(of_down, activated, stream);
  }

  static int launch(float* residual, const float* gain, float* x, unsigned char* operands,
                    unsigned* arrived, const unsigned char* gate, unsigned gate_format,
                    const unsigned char* up, unsigned up_format, const unsigned char* down,
                    unsigned down_format, float* gates, float* ups, float* act, unsigned rows,
                    cudaStream_t stream) {
    const bool is_many = rows >= kManyRowsMin;
    if constexpr (kFull) {
      if (is_many && gate_format == up_format && gate_format == down_format) {
        const Params params{gate, up, static_cast<int>(rows)};
        return linear_add::Few::for_format(gate_format, [&](auto storage) {
          return many<storage.value>(params, residual, gain, operands, down, act, stream);
        });
      }
    }
    return ApartF16<Tile, M>::launch(residual, gain, x, operands, arrived, gate, gate_format, up,
                                      up_format, down, down_format, gates, ups, act, rows, stream);
  }
};

}  // namespace atlas::mlp
