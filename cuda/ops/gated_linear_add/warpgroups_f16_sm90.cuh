// Implements: Ops::gated_linear_add
// Match:      as `gated_rms_norm` and `linear_add`
// Bound by:   few rows: as `heads_f32`; many rows: tensor instructions
// Sync:       few rows: as `heads_f32`; many: two chained launches, rows to operands and product
#pragma once

#include "ops/gated_linear_add/heads_f32.cuh"
#include "ops/linear_add/warpgroups_f16_sm90.cuh"

namespace atlas::gated_linear_add {

using target::shapes::Delta;

static_assert(tile::kRoundColumns % Delta::kValueDim == 0, "a warp rounds whole heads");

// A row whose heads are normed and gated as it is rounded; a warp has one head at a time.
struct GatedRow {
  const float* x;  // null: no row
  const float* z;
  float4 gain;   // gains of this lane's vector of every head
  bool in_cell;  // heads of x are F16

  __device__ explicit operator bool() const { return x != nullptr; }
};

struct GatedPart {
  tile::EitherVector x;
  float4 z;
  float4 gain;
};

__device__ inline GatedPart part_of(const GatedRow& row, int vector) {
  const int lane = vector % tile::kWarpLanes;
  const auto x = tile::EitherVector::of(row.x + (vector - lane) * 4, lane, row.in_cell);
  return {x, tile::vector_at(row.z, vector), row.gain};
}

__device__ inline uint2 rounded(const GatedPart& part) {
  return tile::rounded(gated_rms_norm::normed(part.x.value(), part.gain, part.z));
}

template <tile::Storage kStorage>
__global__ __launch_bounds__(tile::kRoundThreads) void round(const float* x, const float* gain,
                                                             const float* z,
                                                             const unsigned* in_cells,
                                                             tile::Operands<kStorage> to,
                                                             int rows) {
  ptx::griddepcontrol_launch_dependents();
  const float4 of_lane = tile::vector_at(gain, threadIdx.x % tile::kWarpLanes);
  ptx::griddepcontrol_wait();
  tile::round_rows(to, kValues, [&](int row) {
    const size_t at = static_cast<size_t>(row) * kValues;
    if (row >= rows) return GatedRow{};
    return GatedRow{x + at, z + at, of_lane, in_cells != nullptr && in_cells[row] != 0};
  });
}

template <class Tile, class D>
struct WarpgroupsF16 {
  static_assert(Tile::kThreads == tile::kWarpgroupThreads, "a block is its warpgroups");
  static_assert(kFits<tile::kWarpgroupBytes>);

  static int launch(float* x, const float* gain, const float* z, const unsigned* in_cells,
                    const unsigned char* weight, unsigned char* operands, float* residual,
                    unsigned rows, unsigned format, cudaStream_t stream) {
    // A norm of Mamba-2 spans more elements than a warp holds.
    if constexpr (Delta::kMamba) {
      return HeadsF32<target::GatedRmsNorm, D>::launch(x, gain, z, in_cells, weight, operands,
                                                       residual, rows, format, stream);
    } else {
      return many(x, gain, z, in_cells, weight, operands, residual, rows, format, stream);
    }
  }

  static int many(float* x, const float* gain, const float* z, const unsigned* in_cells,
                  const unsigned char* weight, unsigned char* operands, float* residual,
                  unsigned rows, unsigned format, cudaStream_t stream) {
    return linear_add::Few::for_format(format, [&](auto storage) {
      if (rows <= linear_add::few_rows_max<storage.value, kValues>(target::HIDDEN)) {
        return static_cast<cudaError_t>(HeadsF32<target::GatedRmsNorm, D>::launch(
            x, gain, z, in_cells, weight, operands, residual, rows, format, stream));
      }
      const tile::Operands<storage.value> to{operands,
                                             tile::operand_groups(static_cast<int>(rows))};
      const Launch rounds{static_cast<unsigned>(to.groups), tile::kRoundThreads, 0,
                          tile::round_parts(kValues), 1,
                          tile::starts_early(static_cast<int>(rows))};
      const cudaError_t failed = launch_chained(round<storage.value>, rounds, stream, x, gain, z,
                                                in_cells, to, static_cast<int>(rows));
      if (failed != cudaSuccess) return failed;
      const linear_add::Params params{nullptr, weight, residual, static_cast<int>(rows),
                                      target::HIDDEN, kValues};
      return linear_add::multiply<storage.value, kValues>(params, to, stream);
    });
  }
};

}  // namespace atlas::gated_linear_add
