// Implements: Ops::latent_results
// Match:      BF16 rows of values as F16 panels, heads and latents in multiples of 64; operands F16
// Bound by:   few rows: HBM (the matrix, once); many rows: latency of staging
// Sync:       two barriers per 64 of K; chained launch
#pragma once

#include "target.cuh"
#include "tile/head_product.cuh"

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
  const tile::HeadBlock block(params.rows);
  const auto given = [&](int row) {
    return block.of<A::kHeads>(params.mixed, row, A::kValueDim);
  };
  tile::HeadProduct<A::kValueDim, false> product{shared, params.w, A::kValueDim,
                                                 block.head * L::kResultDim + block.column, 0};
  product.run(block.rows, given);
  product.for_each(block.rows, [&](int row, int at, float2 pair) {
    float* to = block.of<A::kHeads>(params.out, row, L::kResultDim);
    *reinterpret_cast<float2*>(to + block.column + at) = pair;
  });
}

template <class Tile, class L>
struct HeadsF16 {
  using A = target::shapes::Full;
  static_assert(Tile::kThreads == tile::kHeadThreads, "the stage counts on these warps");

  static cudaError_t launch(const float* mixed, const unsigned char* w, float* out, unsigned rows,
                            cudaStream_t stream) {
    return launch_chained(heads<L, A>, tile::head_grid(A::kHeads, L::kResultDim, rows), stream,
                          Params{mixed, w, out, static_cast<int>(rows)});
  }
};

}  // namespace atlas::latent_results
