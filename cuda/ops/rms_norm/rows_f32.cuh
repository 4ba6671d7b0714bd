// Implements: Ops::rms_norm
// Match:      F32 rows, width a multiple of 4: of the residual stream, or of any other width
// Bound by:   HBM (8 bytes per element, 12 where it adds); other widths: L2 reads a row twice
// Sync:       one block per row, one barrier for the row's sum of squares; chained launch
#pragma once

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/norm.cuh"

namespace atlas::rms_norm {

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void rows_f32(const float* x, const float* weight,
                                                           float* out, unsigned adds,
                                                           float factor) {
  using Row = tile::NormRow<target::HIDDEN, Tile::kThreads>;
  __shared__ typename Row::SharedStorage shared;
  ptx::griddepcontrol_launch_dependents();
  Row gain, row;
  gain.load(weight);
  ptx::griddepcontrol_wait();  // the weight depends on nothing; everything below does
  const size_t start = static_cast<size_t>(blockIdx.x) * target::HIDDEN;
  row.load(x + start);
  row.normalise(gain, target::NORM_EPS, shared);
  if (adds != 0) {
    Row before;
    before.load(out + start);
    row.add(before);
    row.multiply(factor);
  }
  row.store(out + start);
}

// Rows of a width known only at launch: registers cannot hold them, so they are read twice.
template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void wide_rows_f32(const float* x, const float* weight,
                                                                float* out, unsigned width) {
  constexpr int kWarps = Tile::kThreads / tile::kWarpLanes;
  __shared__ float partial[kWarps];
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t start = static_cast<size_t>(blockIdx.x) * width;
  const auto* row = reinterpret_cast<const float4*>(x + start);
  const auto* gain = reinterpret_cast<const float4*>(weight);
  const unsigned vectors = width / 4;
  float squares = 0.0f;
  for (unsigned i = threadIdx.x; i < vectors; i += Tile::kThreads) {
    const float4 part = row[i];
    squares = fmaf(part.x, part.x, squares);
    squares = fmaf(part.y, part.y, squares);
    squares = fmaf(part.z, part.z, squares);
    squares = fmaf(part.w, part.w, squares);
  }
  squares = tile::warp_sum(squares);
  if (threadIdx.x % tile::kWarpLanes == 0) partial[threadIdx.x / tile::kWarpLanes] = squares;
  __syncthreads();  // every warp's squares are written
  squares = partial[0];
  for (int warp = 1; warp < kWarps; ++warp) squares += partial[warp];
  const float scale = rsqrtf(squares / static_cast<float>(width) + target::NORM_EPS);
  for (unsigned i = threadIdx.x; i < vectors; i += Tile::kThreads) {
    reinterpret_cast<float4*>(out + start)[i] = tile::scaled(row[i], scale, gain[i]);
  }
}

template <class Tile>
struct RowsF32 {
  static cudaError_t launch(const float* x, const float* weight, float* out, unsigned adds,
                            float factor, unsigned rows, unsigned width, cudaStream_t stream) {
    if (width != target::HIDDEN) {
      if (width % 4 != 0 || adds != 0) return cudaErrorInvalidValue;
      return launch_chained(wide_rows_f32<Tile>, {rows, Tile::kThreads, 0}, stream, x, weight, out,
                            width);
    }
    return launch_chained(rows_f32<Tile>, {rows, Tile::kThreads, 0}, stream, x, weight, out, adds,
                          factor);
  }
};

}  // namespace atlas::rms_norm
