// Implements: Ops::norm_linear
// Match:      up to four matrices of any weight format; operands F16
// Bound by:   few rows: HBM (the weights, once); many rows: tensor instructions
// Sync:       few rows: as `resident_f16`, or a few barriers of a cluster's blocks, chained launch;
//             many: a chained launch that norms rows into operands, and one a weight format
#pragma once

#include <utility>

#include "ops/norm_linear/resident_f16.cuh"
#include "ops/norm_linear/split_f16.cuh"
#include "tile/normed_operands_sm90.cuh"

namespace atlas::norm_linear {

// Most times that weights are read for blocks of rows resident in registers; once for E2M1, which
// is bound by decoding.
inline constexpr int kResidentReads = used(tile::Storage::nvfp4) ? 1 : 2;
inline constexpr int kReadRowsMax = kResidentReads * tile::resident_rows(HIDDEN);
inline constexpr int kResidentRowsMax =
    kReadRowsMax < tile::kResidentRowsMax ? kReadRowsMax : tile::kResidentRowsMax;

// Product of all parts of one storage; `blocks` are the tiles of panels of a part, none for a part
// of another storage. `beside`: runs beside the product of another storage.
template <tile::Storage kStorage, int kRows>
__global__ __launch_bounds__(tile::kWarpgroupThreads, 1) void product(
    const __grid_constant__ Params params, tile::Operands<kStorage> x, bool beside, int tile_rows,
    tile::TileOrder order) {
  const auto tiles = [&](int i, tile::WarpgroupTile& tile) {
    if (i >= order.tiles()) return false;
    const int2 at = order.at(i);
    int p = 0, panels = at.x;
    while (panels >= params.part[p].blocks) panels -= params.part[p++].blocks;
    const Part& part = params.part[p];
    const int first = at.y * tile_rows;
    tile = {part.weight,
            part.n,
            panels * tile::kTilePanels,
            x.base + first / tile::kOperandRows * tile::Operands<kStorage>::kBytes,
            x.groups,
            min(tile_rows, params.rows - first),
            part.out + static_cast<size_t>(first) * part.n};
    return true;
  };
  tile::Warpgroups<kStorage, HIDDEN, tile::NoOutStorage, 1, kRows>(dynamic_shared)
      .run(tiles, tile::RowSink<tile::Stores>{}, beside);
}

template <class Tile>
struct WarpgroupsF16 {
  static_assert(Tile::kThreads == tile::kWarpgroupThreads, "a block is its warpgroups");
  static_assert(kFits<tile::kWarpgroupBytes>);

  // Launches a product if the storage has parts; `beside` is true afterwards.
  template <tile::Storage kStorage>
  static cudaError_t multiply(Params params, tile::NormedOperands& x, bool& beside,
                              cudaStream_t stream) {
    unsigned across = 0;
    for (Part& part : params.part) {
      const bool is = part.format == static_cast<unsigned>(kStorage);
      part.blocks = is ? tile::panel_tiles(part.n) : 0;
      across += part.blocks;
    }
    if (across == 0) return cudaSuccess;
    const auto& rows = x.of<kStorage>();
    const bool is_beside = std::exchange(beside, true);
    const bool early = is_beside || tile::starts_early(params.rows);
    return tile::launch_tiles<kStorage, HIDDEN>([](auto most) { return product<kStorage, most>; },
                                                across, params.rows, early, stream, params,
                                                tile::Operands<kStorage>{rows.base, rows.groups},
                                                is_beside);
  }

  static cudaError_t many(const Params& params, bool keep, unsigned char* operands,
                          cudaStream_t stream) {
    tile::NormedOperands x{};
    const int groups = tile::operand_groups(params.rows);
    tile::any_storage([&](auto storage) {
      auto& of = x.of<storage.value>();
      for (const Part& part : params.part) {
        const bool is = part.format == static_cast<unsigned>(storage.value);
        if (part.n == 0 || !is || of.base != nullptr) continue;
        of = {operands, groups};
        operands += tile::operand_bytes(params.rows, HIDDEN);
      }
      return false;
    });
    const tile::RowsIn from{params.residual};
    cudaError_t failed = tile::launch_norm_operands(from, params.rows, params.gain,
                                                    keep ? params.x : nullptr, x, stream);
    bool beside = false;
    // Gates have few tiles: launched last, they take SMs that other products leave free.
    tile::any_storage([&](auto storage) {
      if constexpr (used(storage.value)) {
        if (failed == cudaSuccess) failed = multiply<storage.value>(params, x, beside, stream);
      }
      return false;
    });
    return failed;
  }

  static cudaError_t launch(const float* residual, const float* gain, float* x, unsigned keep,
                            unsigned char* operands, unsigned* arrived,
                            const unsigned char* w0, float* out0, unsigned n0, unsigned format0,
                            const unsigned char* w1, float* out1, unsigned n1, unsigned format1,
                            const unsigned char* w2, float* out2, unsigned n2, unsigned format2,
                            const unsigned char* w3, float* out3, unsigned n3, unsigned format3,
                            unsigned rows, cudaStream_t stream) {
    const Params params = params_of(residual, gain, x, w0, out0, n0, format0, w1, out1, n1, format1,
                                    w2, out2, n2, format2, w3, out3, n3, format3, rows);
    if (rows == 0) return cudaSuccess;
    if (rows <= kFewRowsMax) return launch_few(params, stream);
    if (splits(params)) return launch_split(params, stream);
    return params.rows <= kResidentRowsMax
               ? launch_resident(params, keep != 0, operands, arrived, stream)
               : many(params, keep != 0, operands, stream);
  }
};

}  // namespace atlas::norm_linear
