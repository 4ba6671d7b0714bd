// Implements: Ops::latent_results
// Match:      BF16 rows of values as F16 panels, heads and latents in multiples of 64; operands F16
// Bound by:   few rows: HBM (the matrix, once); many rows: latency of staging
// Sync:       two barriers per 64 of K; chained launch
#pragma once

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/heads.cuh"

namespace atlas::latent_results {

struct Params {
  const float* mixed;      // (rows, kHeads, kValueDim)
  const unsigned char* w;  // panels of (kHeads * kResultDim, kValueDim)
  float* out;              // (rows, kHeads, kResultDim)
  int rows;
};

// A block per head, 64 elements of its result, and 64 rows.
template <class L, class A>
__global__ __launch_bounds__(tile::kHeadThreads) void heads(Params params) {
  static_assert(L::kResultDim % tile::kHeadColumns == 0, "results are whole blocks");
  __shared__ tile::HeadStorage shared;
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int head = blockIdx.x, column = blockIdx.y * tile::kHeadColumns;
  const int first = blockIdx.z * tile::kHeadRows;
  const int rows = min(params.rows - first, tile::kHeadRows);
  const auto given = [&](int row) {
    return params.mixed + (static_cast<size_t>(first + row) * A::kHeads + head) * A::kValueDim;
  };
  tile::HeadProduct<A::kValueDim, false> product{shared, params.w, A::kValueDim,
                                                 head * L::kResultDim + column, 0};
  product.run(rows, given);
  product.for_each(rows, [&](int row, int at, float2 pair) {
    float* to = params.out + (static_cast<size_t>(first + row) * A::kHeads + head) * L::kResultDim;
    *reinterpret_cast<float2*>(to + column + at) = pair;
  });
}

template <class Tile, class L>
struct HeadsF16 {
  using A = target::shapes::Full;
  static_assert(Tile::kThreads == tile::kHeadThreads, "the stage counts on these warps");

  static cudaError_t launch(const float* mixed, const unsigned char* w, float* out, unsigned rows,
                            cudaStream_t stream) {
    const Launch shape{A::kHeads, tile::kHeadThreads, 0, L::kResultDim / tile::kHeadColumns,
                       blocks_for(rows, tile::kHeadRows)};
    return launch_chained(heads<L, A>, shape, stream,
                          Params{mixed, w, out, static_cast<int>(rows)});
  }
};

}  // namespace atlas::latent_results
