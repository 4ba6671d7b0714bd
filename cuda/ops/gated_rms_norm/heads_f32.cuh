// Implements: Ops::gated_rms_norm
// Match:      F32 heads of 128 elements, or groups of heads, with Mamba-2, of a multiple of that
// Bound by:   HBM (12 bytes per element)
// Sync:       a warp per head or group, no barrier; chained launch
#pragma once

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/head_f16.cuh"
#include "tile/math.cuh"
#include "tile/panels.cuh"
#include "tile/ptx.cuh"
#include "tile/reduce.cuh"

namespace atlas::gated_rms_norm {

using target::shapes::Delta;

static_assert(Delta::kNorm % (4 * tile::kWarpLanes) == 0 &&
                  (Delta::kMamba || Delta::kNorm == 4 * tile::kWarpLanes),
              "a lane has one vector of a head, or some of a group");

// Vectors of a norm that one lane has.
inline constexpr int kVectors = Delta::kNorm / (4 * tile::kWarpLanes);

__device__ inline float squares_of(const float4& part) {
  float squares = part.x * part.x;
  squares = fmaf(part.y, part.y, squares);
  squares = fmaf(part.z, part.z, squares);
  return fmaf(part.w, part.w, squares);
}

__device__ inline float scale_of(float squares) {
  const float mean = tile::warp_sum(squares) * (1.0f / Delta::kNorm);
  return rsqrtf(mean + target::NORM_EPS);
}

// Norms and gates a lane's vector of a head; the warp has the whole head.
__device__ inline float4 normed(float4 part, const float4& gain, const float4& gate) {
  const float scale = scale_of(squares_of(part));
  part = tile::zip(part, gain, [&](float value, float w) { return value * scale * w; });
  return tile::zip(part, gate, [](float value, float g) { return value * tile::silu(g); });
}

__device__ inline void put(float* to, size_t vector, const float4& value) {
  tile::vector_at(to, vector) = value;
}
__device__ inline void put(f16* to, size_t vector, const float4& value) {
  tile::put_vector(to, static_cast<int>(vector), value);
}

// A head a warp. `in_cells` says for each row whether its heads are in F16; null: no row's are.
// `out` may be `x`, or gets rows as operands.
template <class Tile, class Number>
__global__ __launch_bounds__(Tile::kThreads) void heads_f32(const float* x, const float* weight,
                                                            const float* z,
                                                            const unsigned* in_cells, Number* out,
                                                            unsigned heads) {
  ptx::griddepcontrol_launch_dependents();
  const int lane = threadIdx.x % tile::kWarpLanes;
  const float4 gain = tile::vector_at(weight, lane);
  ptx::griddepcontrol_wait();
  constexpr unsigned kHeads = Tile::kThreads / tile::kWarpLanes;
  const unsigned head = blockIdx.x * kHeads + threadIdx.x / tile::kWarpLanes;
  if (head >= heads) return;
  const size_t at = static_cast<size_t>(head) * tile::kWarpLanes + lane;
  const bool in_cell = in_cells != nullptr && in_cells[head / Delta::kValueHeads] != 0;
  const float* before = x + static_cast<size_t>(head) * Delta::kValueDim;
  const auto part = tile::EitherVector::of(before, lane, in_cell);
  // The sum over lanes ends all reads of the head, so results may overwrite it.
  put(out, at, normed(part.value(), gain, tile::vector_at(z, at)));
}

inline constexpr int kWidth = Delta::kValueHeads * Delta::kValueDim;
// Number of norms in one row.
inline constexpr int kGroups = kWidth / Delta::kNorm;

// Mamba-2's norm over groups of heads, which are gated before the norm; a group a warp.
template <class Tile, class Number>
__global__ __launch_bounds__(Tile::kThreads) void groups_f32(const float* x, const float* weight,
                                                             const float* z,
                                                             const unsigned* in_cells, Number* out,
                                                             unsigned groups) {
  ptx::griddepcontrol_launch_dependents();
  const int lane = threadIdx.x % tile::kWarpLanes;
  constexpr unsigned kWarps = Tile::kThreads / tile::kWarpLanes;
  ptx::griddepcontrol_wait();
  const unsigned group = blockIdx.x * kWarps + threadIdx.x / tile::kWarpLanes;
  if (group >= groups) return;
  const unsigned row = group / kGroups;
  const int first = group % kGroups * Delta::kNorm;
  const bool in_cell = in_cells != nullptr && in_cells[row] != 0;
  const float* of_row = x + size_t{row} * kWidth;
  constexpr int kHeadVectors = Delta::kValueDim / 4;
  float4 part[kVectors];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int vector = first / 4 + i * tile::kWarpLanes + lane, within = vector % kHeadVectors;
    const auto before = tile::EitherVector::of(of_row + (vector - within) * 4, within, in_cell);
    const float4 gate = tile::vector_at(z + size_t{row} * kWidth, vector);
    part[i] = tile::zip(before.value(), gate, [](float y, float g) { return y * tile::silu(g); });
    squares += squares_of(part[i]);
  }
  const float scale = scale_of(squares);  // all lanes have read before one writes
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int vector = first / 4 + i * tile::kWarpLanes + lane;
    put(out + size_t{row} * kWidth, vector,
        tile::zip(part[i], tile::vector_at(weight, vector),
                  [&](float y, float w) { return y * scale * w; }));
  }
}

template <class Tile, class D>
struct HeadsF32 {
  // Launches the norms of all rows, with results to `out`.
  template <class Number>
  static cudaError_t launch_to(Number* out, const float* x, const float* weight, const float* z,
                               const unsigned* in_cells, unsigned rows, cudaStream_t stream) {
    const unsigned norms = rows * kGroups;
    const unsigned blocks = blocks_for(norms, Tile::kThreads / tile::kWarpLanes);
    const Launch shape{blocks, Tile::kThreads, 0};
    const auto launch = [&](auto* kernel) {
      return launch_chained(kernel, shape, stream, x, weight, z, in_cells, out, norms);
    };
    if constexpr (Delta::kMamba) {
      return launch(groups_f32<Tile, Number>);
    } else {
      return launch(heads_f32<Tile, Number>);
    }
  }

  static cudaError_t launch(float* x, const float* weight, const float* z,
                            const unsigned* in_cells, unsigned rows, cudaStream_t stream) {
    return launch_to(x, x, weight, z, in_cells, rows, stream);
  }
};

}  // namespace atlas::gated_rms_norm
