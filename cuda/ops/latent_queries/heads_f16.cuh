// Implements: Ops::latent_queries
// Match:      BF16 rows of keys as F16 panels, heads and latents in multiples of 64; operands F16
// Bound by:   few rows: HBM (the matrix, once); many rows: latency of staging
// Sync:       two barriers per 64 of K; chained launch
#pragma once

#include "target.cuh"
#include "tile/head_product.cuh"

namespace atlas::latent_queries {

struct Params {
  const float* x;             // (rows, kHeads, kNopeDim + kRotaryDim)
  const unsigned char* w;     // panels of (kHeads * kNopeDim, kValueDim)
  const unsigned* positions;  // (rows)
  float* q;                   // (rows, kHeads, kRotaryDim + kValueDim)
  int rows;
};

// Factor by which queries grow at a position.
template <class L>
__device__ inline float growth_of(unsigned position) {
  if constexpr (L::kTemperatureBeta == 0.0f) return 1.0f;
  const unsigned times = 1 + position / L::kTemperatureOriginal;
  return fmaf(L::kTemperatureBeta, logf(static_cast<float>(times)), 1.0f);
}

// A block per head, 64 elements of a latent, and 64 rows.
template <class L, class A>
__global__ __launch_bounds__(tile::kHeadThreads) void heads(Params params) {
  constexpr int kQuery = L::kNopeDim + A::kRotaryDim, kRotated = A::kRotaryDim;
  static_assert(L::kNopeDim % tile::kHeadStep == 0 && A::kValueDim % tile::kHeadColumns == 0,
                "heads are whole steps, latents whole blocks");
  __shared__ tile::HeadStorage shared;
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const tile::HeadBlock block(params.rows);
  const auto given = [&](int row) { return block.of<A::kHeads>(params.x, row, kQuery); };
  const auto made = [&](int row) { return block.of<A::kHeads>(params.q, row, A::kHeadDim); };
  const auto growth = [&](int row) {
    return growth_of<L>(__ldg(params.positions + block.first + row));
  };
  tile::HeadProduct<L::kNopeDim, true> product{shared, params.w, A::kValueDim,
                                               block.head * L::kNopeDim, block.column};
  product.run(block.rows, given);
  product.for_each(block.rows, [&](int row, int at, float2 pair) {
    const float factor = growth(row);
    *reinterpret_cast<float2*>(made(row) + kRotated + block.column + at) = {pair.x * factor,
                                                                           pair.y * factor};
  });
  if (blockIdx.y != 0) return;
  // Rotated elements: those of even index are stored before those of odd index.
  for (int item = threadIdx.x; item < block.rows * kRotated / 2; item += tile::kHeadThreads) {
    const int row = item / (kRotated / 2), pair = item % (kRotated / 2);
    const float2 from =
        __ldcg(reinterpret_cast<const float2*>(given(row) + L::kNopeDim) + pair);
    const float factor = growth(row);
    made(row)[pair] = from.x * factor;
    made(row)[kRotated / 2 + pair] = from.y * factor;
  }
}

template <class Tile, class L>
struct HeadsF16 {
  using A = target::shapes::Full;
  static_assert(Tile::kThreads == tile::kHeadThreads, "the stage counts on these warps");

  static cudaError_t launch(const float* x, const unsigned char* w, const unsigned* positions,
                            float* q, unsigned rows, cudaStream_t stream) {
    return launch_chained(heads<L, A>, tile::head_grid(A::kHeads, A::kValueDim, rows), stream,
                          Params{x, w, positions, q, static_cast<int>(rows)});
  }
};

}  // namespace atlas::latent_queries
