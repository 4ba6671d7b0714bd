// Implements: Ops::experts
// Match:      experts of one weight format and shape, the shared one last; gate and up rows
//             interleaved by 8; operands bf16
// Bound by:   few rows: HBM (the weights of the experts chosen); many rows: tensor instructions
// Sync:       few rows: as `grouped_bf16`; many: five chained launches: plan, rows to operands by
//             expert, gate and up with SwiGLU, down, weighted sum
#pragma once

#include "ops/experts/grouped_bf16.cuh"
#include "tile/warpgroups_sm90.cuh"

namespace atlas::experts {

// A plan's tiles by the tiles of panels, as tiles of warpgroups.
template <tile::Storage kStorage, bool kDown>
struct ExpertTiles {
  using W = tile::Matrix<kStorage>;
  static constexpr int kN = kDown ? HIDDEN : 2 * EXPERT_INTERMEDIATE;
  static constexpr int kK = kDown ? EXPERT_INTERMEDIATE : HIDDEN;
  static constexpr int kAcross = tile::panel_tiles(kN);

  const unsigned char* weights;
  const unsigned char* operands;  // of all places
  const Plan* plan;

  __device__ ExpertTiles(const Params& params, const unsigned char* operands)
      : weights(kDown ? params.down : params.gate_up), operands(operands), plan(params.plan) {}

  // Of all places. Like all below, behind the wait for the plan's kernel.
  __device__ int groups() const { return static_cast<int>(plan->places) / tile::kOperandRows; }

  __device__ bool operator()(int i, tile::WarpgroupTile& tile) const {
    if (i >= static_cast<int>(plan->tiles) * kAcross) return false;
    const uint4 of = plan->tile[i / kAcross];
    tile = {weights + of.x * W::bytes(kN, kK),
            kN,
            i % kAcross * tile::kTilePanels,
            operands + of.y / tile::kOperandRows * tile::kOperandBytes,
            groups(),
            static_cast<int>(of.z)};
    return true;
  }

  __device__ W matrix(int i) const {
    return {weights + plan->tile[i / kAcross].x * W::bytes(kN, kK), kN, kK};
  }
  __device__ int first(int i) const { return static_cast<int>(plan->tile[i / kAcross].y); }
};

// The rows of `x` that places stand for.
template <tile::Storage kStorage>
__global__ __launch_bounds__(tile::kRoundThreads) void gather(Params params,
                                                              unsigned char* operands) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const auto item = tile::RoundItem::of(HIDDEN);
  const Plan& plan = *params.plan;
  if (item.row >= static_cast<int>(plan.places)) return;
  const unsigned turn = plan.turn_of[item.row];
  if (turn == kNoTurn) return;  // whatever lies there, no row's sums see it
  const tile::Operands<kStorage> to{operands,
                                    static_cast<int>(plan.places) / tile::kOperandRows};
  to.round(params.x + static_cast<size_t>(turn / kTurns) * HIDDEN, item.row, item.part);
}

// SwiGLU of a panel's gate rows g and up rows g + 8, rounded into the operands of `down`.
template <tile::Storage kStorage>
struct Activates {
  unsigned char* to;  // of the tile's first place, which starts a group
  float gate_scale, up_scale;

  __device__ Activates(const ExpertTiles<kStorage, false>& tiles, const Params& params, int i,
                       int panel, int g) {
    auto* base = reinterpret_cast<unsigned char*>(params.act);
    const tile::Operands<kStorage> act{base, tiles.groups()};
    const int column = panel * 8 + g, at = panel * tile::kPanelRows + g;
    to = act.at(tiles.first(i), column / 2 * 2) + column % 2 * 2;
    const auto w = tiles.matrix(i);
    gate_scale = w.row_scale(at), up_scale = w.row_scale(at + 8);
  }

  __device__ void operator()(int row, float gate, float up) const {
    const float activated = tile::silu(gate * gate_scale) * (up * up_scale);
    unsigned char* of_row = to + row / tile::kOperandRows * tile::kOperandBytes +
                            row % tile::kOperandRows * 16;
    *reinterpret_cast<__nv_bfloat16*>(of_row) = __float2bfloat16_rn(activated);
  }
};

template <tile::Storage kStorage>
__global__ __launch_bounds__(tile::kWarpgroupThreads, 1) void gate_up(
    Params params, const unsigned char* operands) {
  using Tiles = ExpertTiles<kStorage, false>;
  ptx::griddepcontrol_launch_dependents();
  const Tiles tiles(params, operands);
  const auto sink = [&](int i, int panel, int g) {
    return Activates<kStorage>(tiles, params, i, panel, g);
  };
  tile::Warpgroups<kStorage, Tiles::kK>(dynamic_shared).run(tiles, sink);
}

template <tile::Storage kStorage>
__global__ __launch_bounds__(tile::kWarpgroupThreads, 1) void down(Params params) {
  using Tiles = ExpertTiles<kStorage, true>;
  ptx::griddepcontrol_launch_dependents();
  const Tiles tiles(params, reinterpret_cast<const unsigned char*>(params.act));
  const auto sink = [&](int i, int panel, int g) {
    return tile::RowSink<kStorage, tile::Stores>(tiles.matrix(i), params.y, tiles.first(i), panel,
                                                 g);
  };
  tile::Warpgroups<kStorage, Tiles::kK>(dynamic_shared).run(tiles, sink);
}

template <tile::Storage kStorage>
struct FewProducts {
  static cudaError_t launch(const Params& params, cudaStream_t stream) {
    return few_rows<kStorage>(params, stream);
  }
};

template <tile::Storage kStorage>
struct WarpgroupProducts {
  static cudaError_t launch(const Params& params, cudaStream_t stream, unsigned char* operands) {
    const unsigned blocks = tile::round_blocks(places_of(params.rows), HIDDEN);
    const Launch all{blocks, tile::kRoundThreads, 0};
    cudaError_t failed = launch_chained(gather<kStorage>, all, stream, params, operands);
    if (failed != cudaSuccess) return failed;
    constexpr Launch kShape{target::SMS, tile::kWarpgroupThreads, tile::kWarpgroupBytes};
    failed = launch_chained(gate_up<kStorage>, kShape, stream, params, operands);
    return failed == cudaSuccess ? launch_chained(down<kStorage>, kShape, stream, params) : failed;
  }
};

template <class Tile>
struct WarpgroupsBf16 {
  static_assert(Tile::kThreads == tile::kWarpgroupThreads, "a block is its warpgroups");
  static_assert(Tile::kSharedBytes == tile::kWarpgroupBytes, "the manifest plans this storage");
  static_assert(kPlaceGroup == tile::kOperandRows, "a tile's operands are whole groups");
  static_assert(tile::operand_bytes(kPlacesMax, EXPERT_INTERMEDIATE) <=
                    sizeof(float) * kPlacesMax * EXPERT_INTERMEDIATE,
                "operands of `down` take the place of `act`");

  static cudaError_t launch(const float* x, const unsigned* chosen, const float* weights,
                            const unsigned char* gate_up, const unsigned char* down,
                            unsigned char* scratch, unsigned char* operands, float* act, float* y,
                            float* residual, unsigned rows, unsigned format, cudaStream_t stream) {
    if (rows == 0) return cudaSuccess;
    if (rows > kRowsMax) return cudaErrorInvalidValue;
    const Params params{x,   chosen, weights, gate_up, down, reinterpret_cast<Plan*>(scratch),
                        act, y,      residual, static_cast<int>(rows)};
    const bool few = rows <= kFewRowsMax;
    cudaError_t failed = launch_plan(params, few ? kFewRows : tile::kTileRowsMax, stream);
    if (failed != cudaSuccess) return failed;
    failed = few ? launch_format<FewProducts>(params, format, stream)
                 : launch_format<WarpgroupProducts>(params, format, stream, operands);
    return failed == cudaSuccess ? launch_sum(params, stream) : failed;
  }
};

}  // namespace atlas::experts
