// Implements: Ops::norm_linear
// Match:      up to four matrices of any weight format; operands F16
// Bound by:   few rows: HBM (the weights, once); many rows: tensor instructions
// Sync:       few rows: as `held_f16`, or a few barriers of a cluster's blocks, chained launch;
//             many: a chained launch that norms rows into operands, and one a weight format
#pragma once

#include <utility>

#include "ops/norm_linear/held_f16.cuh"
#include "ops/norm_linear/split_f16.cuh"
#include "tile/warpgroups_sm90.cuh"

namespace atlas::norm_linear {

using NormedRow = tile::AnyWarpNormRow<HIDDEN, tile::kPanelThreads>;

// Normed rows for matrices of each storage; none where no part has it.
struct Normed {
  tile::Operands<tile::Storage::f16> f16;
  tile::Operands<tile::Storage::nvfp4> nvfp4;
  tile::Operands<tile::Storage::fp8_block128> fp8;

  template <tile::Storage kStorage>
  __host__ __device__ tile::Operands<kStorage>& of() {
    if constexpr (kStorage == tile::Storage::f16) {
      return f16;
    } else if constexpr (kStorage == tile::Storage::nvfp4) {
      return nvfp4;
    } else {
      return fp8;
    }
  }
};

// Rows that are held, at most: weights are read again for each block of them.
inline constexpr int kHeldReads = 2;
inline constexpr int kHeldRowsMax = kHeldReads * tile::held_rows(HIDDEN) < tile::kHeldRowsMax
                                        ? kHeldReads * tile::held_rows(HIDDEN)
                                        : tile::kHeldRowsMax;

inline constexpr int kNormBytes = tile::operand_bytes(tile::kOperandRows, HIDDEN);
// Rows of a block where eight a block would leave most SMs idle.
inline constexpr int kFewNormRows = 2;

inline bool norms_few(int groups) {
  return groups * (tile::kOperandRows / kFewNormRows) <= target::SMS;
}

// A block's rows, a warp each, in shared memory and from there to their place: what eight rows have
// side by side is a line, of which the block has a part.
template <int kRows, tile::Storage kStorage>
__device__ inline void put(const tile::Operands<kStorage>& to, NormedRow& row) {
  __syncthreads();  // what was here has been copied
  const tile::Operands<kStorage> staged{dynamic_shared, 1};
  const int first_row = static_cast<int>(blockIdx.x) * kRows;
  const int group = first_row / tile::kOperandRows, in_group = first_row % tile::kOperandRows;
  row.for_each_vector([&](int vector, const float4& part) {
    unsigned char* first = staged.at(in_group + threadIdx.x / tile::kWarpLanes, vector * 4);
    *reinterpret_cast<unsigned*>(first) = tile::pack(part.x, part.y);
    *reinterpret_cast<unsigned*>(first + 128) = tile::pack(part.z, part.w);
  });
  __syncthreads();  // all rows are there
  constexpr int kBlockVectors = tile::kOperandBytes / 16;
  constexpr int kVectors = kNormBytes / 16 * kRows / tile::kOperandRows;
  for (int item = threadIdx.x; item < kVectors; item += kRows * tile::kWarpLanes) {
    const int vector = item / kRows * tile::kOperandRows + in_group + item % kRows;
    const size_t block = static_cast<size_t>(vector / kBlockVectors) * to.groups + group;
    reinterpret_cast<uint4*>(to.base)[block * kBlockVectors + vector % kBlockVectors] =
        reinterpret_cast<const uint4*>(dynamic_shared)[vector];
  }
}

// `x` is null where the rows are not kept.
template <int kRows>
__global__ __launch_bounds__(kRows * tile::kWarpLanes) void norm_rows(
    const __grid_constant__ Params params, float* x, Normed to) {
  static_assert(tile::kOperandRows % kRows == 0, "a block's rows are of one group");
  ptx::griddepcontrol_launch_dependents();
  NormedRow gain;
  gain.load(params.gain);
  ptx::griddepcontrol_wait();  // the gain depends on nothing; everything below does
  const int row = static_cast<int>(blockIdx.x) * kRows + threadIdx.x / tile::kWarpLanes;
  NormedRow normed{};
  if (row < params.rows) {
    normed.load(params.residual + static_cast<size_t>(row) * HIDDEN);
    normed.normalise(gain, target::NORM_EPS);
    if (x != nullptr) {
      auto* kept = reinterpret_cast<float4*>(x + static_cast<size_t>(row) * HIDDEN);
      normed.for_each_vector([&](int vector, const float4& part) { kept[vector] = part; });
    }
  }
  if (to.f16.base != nullptr) put<kRows>(to.f16, normed);
  if (to.nvfp4.base != nullptr) put<kRows>(to.nvfp4, normed);
  if (to.fp8.base != nullptr) put<kRows>(to.fp8, normed);
}

// All parts of one storage, whose `blocks` are their tiles of panels, `across` in all. A part of
// another storage has none. `beside` the product of another storage.
template <tile::Storage kStorage>
__global__ __launch_bounds__(tile::kWarpgroupThreads, 1) void product(
    const __grid_constant__ Params params, tile::Operands<kStorage> x, int tile_rows,
    tile::Divisor across, int tile_count, bool beside) {
  const auto tiles = [&](int i, tile::WarpgroupTile& tile) {
    if (i >= tile_count) return false;
    int p = 0, at = across.remainder(i);
    while (at >= params.part[p].blocks) at -= params.part[p++].blocks;
    const Part& part = params.part[p];
    const int first = across.quotient(i) * tile_rows;
    tile = {part.weight,
            part.n,
            at * tile::kTilePanels,
            x.base + first / tile::kOperandRows * tile::kOperandBytes,
            x.groups,
            min(tile_rows, params.rows - first),
            part.out + static_cast<size_t>(first) * part.n};
    return true;
  };
  tile::Warpgroups<kStorage, HIDDEN>(dynamic_shared)
      .run(tiles, tile::RowSink<tile::Stores>{}, beside);
}

template <class Tile>
struct WarpgroupsF16 {
  static_assert(Tile::kThreads == tile::kWarpgroupThreads, "a block is its warpgroups");
  static_assert(kFits<tile::kWarpgroupBytes> && kFits<kNormBytes>);

  // `beside` becomes true.
  template <tile::Storage kStorage>
  static cudaError_t multiply(Params params, Normed& x, bool& beside, cudaStream_t stream) {
    if (x.of<kStorage>().base == nullptr) return cudaSuccess;
    unsigned across = 0;
    for (Part& part : params.part) {
      const bool is = part.format == static_cast<unsigned>(kStorage);
      part.blocks = is ? tile::panel_tiles(part.n) : 0;
      across += part.blocks;
    }
    const auto count = [&](int rows) { return across * blocks_for(params.rows, rows); };
    const int tile_rows = tile::tile_rows_for(count);
    const unsigned tiles = count(tile_rows);
    if (tiles > tile::Divisor::kEnd) return cudaErrorInvalidValue;
    const bool is_beside = std::exchange(beside, true);
    const Launch shape{min(tiles, static_cast<unsigned>(target::SMS)), tile::kWarpgroupThreads,
                       tile::kWarpgroupBytes, 1, 1, is_beside || tile::starts_early(params.rows)};
    return launch_chained(product<kStorage>, shape, stream, params, x.of<kStorage>(), tile_rows,
                          tile::Divisor(across), static_cast<int>(tiles), is_beside);
  }

  template <int kRows>
  static cudaError_t norm(const Params& params, bool keep, const Normed& to, cudaStream_t stream) {
    const auto blocks = static_cast<unsigned>(tile::operand_groups(params.rows) *
                                              (tile::kOperandRows / kRows));
    const Launch shape{blocks, kRows * tile::kWarpLanes, kNormBytes, 1, 1,
                       tile::starts_early(params.rows)};
    return launch_chained(norm_rows<kRows>, shape, stream, params, keep ? params.x : nullptr, to);
  }

  static cudaError_t many(const Params& params, bool keep, unsigned char* operands,
                          cudaStream_t stream) {
    using tile::Storage;
    Normed x{};
    const int groups = tile::operand_groups(params.rows);
    const auto room = [&](auto& of, Storage storage) {
      for (const Part& part : params.part) {
        if (part.n == 0 || part.format != static_cast<unsigned>(storage)) continue;
        of = {operands, groups};
        operands += tile::operand_bytes(params.rows, HIDDEN);
        return;
      }
    };
    room(x.f16, Storage::f16);
    if constexpr (used(Storage::nvfp4)) room(x.nvfp4, Storage::nvfp4);
    if constexpr (used(Storage::fp8_block128)) room(x.fp8, Storage::fp8_block128);
    cudaError_t failed = norms_few(groups) ? norm<kFewNormRows>(params, keep, x, stream)
                                           : norm<tile::kOperandRows>(params, keep, x, stream);
    bool beside = false;
    if constexpr (used(Storage::nvfp4)) {
      if (failed == cudaSuccess) failed = multiply<Storage::nvfp4>(params, x, beside, stream);
    }
    if constexpr (used(Storage::fp8_block128)) {
      if (failed == cudaSuccess) {
        failed = multiply<Storage::fp8_block128>(params, x, beside, stream);
      }
    }
    // Gates have few tiles: they take the SMs that the others leave.
    if (failed == cudaSuccess) failed = multiply<Storage::f16>(params, x, beside, stream);
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
    return params.rows <= kHeldRowsMax ? launch_held(params, keep != 0, operands, arrived, stream)
                                      : many(params, keep != 0, operands, stream);
  }
};

}  // namespace atlas::norm_linear
