// Implements: Ops::mlp
// Match:      as `norm_linear`, `swiglu` and `linear_add`
// Bound by:   few rows: as these ops; many rows: tensor instructions
// Sync:       few rows: as these ops; many, of one weight format: three chained launches, rows
//             normed into operands, activations as operands, their product; clusters share the
//             tiles of few rows left over by full waves of all SMs, in a launch beside
#pragma once

#include "ops/linear_add/warpgroups_f16_sm90.cuh"
#include "ops/mlp/apart_f16.cuh"
#include "tile/activates_sm90.cuh"
#include "tile/math.cuh"
#include "tile/normed_operands_sm90.cuh"

namespace atlas::mlp {

using linear::dynamic_shared;
using target::HIDDEN;

// Fewest rows that are multiplied in tiles. `norm_linear` alone is as fast for more rows, resident
// in registers, but then gates, ups and activations go through memory.
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

// Activations of tiles whose K is split between the blocks of a cluster.
template <class M, tile::Storage kStorage>
struct JoinsActivations : tile::PutsSegment {
  tile::Operands<kStorage> act;

  __device__ void join(const tile::WarpgroupTile& tile, int row, int weight, const float4& gates,
                       const float4& ups) const {
    const tile::Matrix<kStorage> gate{tile.weights, tile.n, HIDDEN};
    const tile::Matrix<kStorage> up{tile.beside, tile.n, HIDDEN};
    const int at = tile.panel * tile::kPanelRows + weight;
    const auto activated = [&](int i, float gate_sum, float up_sum) {
      return Activation<M>{}(gate.result(at + i, gate_sum), up.result(at + i, up_sum));
    };
    const auto put = [&](int i, float even, float odd) {
      *reinterpret_cast<unsigned*>(act.at(row, at + i)) = tile::pack(even, odd);
    };
    put(0, activated(0, gates.x, ups.x), activated(1, gates.y, ups.y));
    put(2, activated(2, gates.z, ups.z), activated(3, gates.w, ups.w));
  }
};

// Tiles of all panels.
template <class M>
inline constexpr int kTiles = M::kIntermediate / tile::kActivatedColumns;
// Tiles left over by full waves of all SMs.
template <class M>
inline constexpr int kLeft = kTiles<M> % target::SMS;

// Whether clusters split K of the tiles left over by full waves, all at once: so few tiles would
// take as long as a full wave.
template <class M>
inline constexpr bool kSplits = tile::segments(HIDDEN) > 1 && kLeft<M> > 0 &&
                                kLeft<M> < kTiles<M> &&
                                kLeft<M> <= target::SMS / tile::segments(HIDDEN);

// A cluster has all rows by some panels left over by full waves, its blocks a segment of K each.
template <class M, tile::Storage kStorage, int kRows>
__global__ __cluster_dims__(tile::segments(HIDDEN))
__launch_bounds__(tile::kWarpgroupThreads, 1) void activate_left(Params params,
                                                                tile::Operands<kStorage> x,
                                                                tile::Operands<kStorage> act) {
  constexpr int kParts = tile::segments(HIDDEN);
  const auto tiles = [&](int i, tile::WarpgroupTile& tile) {
    const int at = kTiles<M> - kLeft<M> + i / kParts;
    tile = {params.gate, M::kIntermediate, at * (tile::kTilePanels / 2),
            x.base,      x.groups,         params.rows,
            nullptr,     params.up};
    return at < kTiles<M>;
  };
  tile::Warpgroups<kStorage, HIDDEN, tile::SegmentStorage<kRows>, kParts, kRows, true>(
      dynamic_shared)
      .run(tiles, JoinsActivations<M, kStorage>{{}, act}, true);
}

// Activations of normed rows, as operands of `down`. The second launch runs beside the first.
template <class M, tile::Storage kStorage>
cudaError_t activate_all(const Params& params, const tile::Operands<kStorage>& x,
                         const tile::Operands<kStorage>& act, cudaStream_t stream) {
  using tile::kFewBufferedRowsMax, tile::kBufferedRowsMax;
  const bool splits = kSplits<M> && params.rows <= kBufferedRowsMax;
  const unsigned whole = kTiles<M> - (splits ? kLeft<M> : 0);
  const cudaError_t failed = tile::launch_tiles<kStorage, HIDDEN>(
      [](auto most) { return activate<M, kStorage, most>; }, whole, params.rows,
      tile::starts_early(params.rows), stream, params, x, act);
  if constexpr (kSplits<M>) {
    if (failed != cudaSuccess || !splits) return failed;
    constexpr unsigned kBlocks = kLeft<M> * tile::segments(HIDDEN);
    const Launch shape{kBlocks, tile::kWarpgroupThreads, tile::kWarpgroupBytes};
    const auto left = params.rows <= kFewBufferedRowsMax
                          ? activate_left<M, kStorage, kFewBufferedRowsMax>
                          : activate_left<M, kStorage, kBufferedRowsMax>;
    return launch_chained(left, shape, stream, params, x, act);
  }
  return failed;
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
    const tile::Operands<kStorage> x{operands, groups};
    const tile::Operands<kStorage> activated{reinterpret_cast<unsigned char*>(act), groups};
    tile::NormedOperands normed{};
    normed.of<kStorage>() = {operands, groups};
    cudaError_t failed = tile::launch_norm_operands(tile::RowsIn{residual}, rows, gain, nullptr,
                                                    normed, stream);
    if (failed != cudaSuccess) return failed;
    failed = activate_all<M, kStorage>(params, x, activated, stream);
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
