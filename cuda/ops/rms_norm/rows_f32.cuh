// Implements: Ops::rms_norm
// Match:      F32 rows of the residual stream, width a multiple of 4
// Bound by:   HBM (8 bytes per element, 12 where it adds)
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

template <class Tile>
struct RowsF32 {
  static cudaError_t launch(const float* x, const float* weight, float* out, unsigned adds,
                            float factor, unsigned rows, cudaStream_t stream) {
    return launch_chained(rows_f32<Tile>, {rows, Tile::kThreads, 0}, stream, x, weight, out, adds,
                          factor);
  }
};

}  // namespace atlas::rms_norm
