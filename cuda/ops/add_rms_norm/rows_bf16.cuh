// Implements: Ops::add_rms_norm
// Match:      bf16 activations and weight, row width a multiple of 8
// Bound by:   HBM (8 bytes per element: x, residual in; residual, out back)
// Sync:       one block per row, one barrier for the row's sum of squares; chained launch
#pragma once

#include "base/launch.cuh"
#include "base/types.cuh"
#include "tile/ptx.cuh"
#include "tile/reduce.cuh"

namespace atlas::add_rms_norm {

template <class Tile>
struct RowsBf16 {
  // Config
  static constexpr int kWidth = Tile::kWidth;
  static constexpr float kEps = Tile::kEps;
  static constexpr int kThreads = Tile::kThreads;
  static constexpr int kWarps = kThreads / tile::kWarpLanes;
  static constexpr int kRowVectors = kWidth / Bf16x8::kElements;
  static constexpr int kVectors = (kRowVectors + kThreads - 1) / kThreads;  // per thread

  static_assert(kWidth % Bf16x8::kElements == 0, "a row is whole 16-byte vectors");
  static_assert(kThreads % tile::kWarpLanes == 0, "the block sum adds full warps");
  static_assert(kThreads <= 1024, "a block has at most 1024 threads");
  static_assert(kVectors <= 4, "the row stays in registers: more threads for wider rows");

  struct Params {
    const bf16* x;       // (rows, kWidth)
    bf16* residual;      // (rows, kWidth)
    const bf16* weight;  // (kWidth)
    bf16* out;           // (rows, kWidth)
  };

  struct SharedStorage {
    float partial[kWarps];  // (kWarps)
  };

  static_assert(sizeof(SharedStorage) == Tile::kSharedBytes, "the manifest plans this storage");

  using Row = Bf16x8[kVectors];  // this thread's vectors threadIdx.x + i * kThreads of a row

  template <class Body>
  __device__ static void for_each_vector(Body body) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int vector = threadIdx.x + i * kThreads;
      if (kRowVectors % kThreads == 0 || vector < kRowVectors) body(i, vector);
    }
  }

  __device__ static void load(Row& to, const bf16* row) {
    for_each_vector([&](int i, int vector) {
      to[i] = reinterpret_cast<const Bf16x8*>(row)[vector];
    });
  }

  // The sum is rounded to bf16 before it is squared: the norm sees what the next layer will read.
  __device__ static float add(Row& residual, const Row& x) {
    float squares = 0.0f;
    for_each_vector([&](int i, int) {
#pragma unroll
      for (int p = 0; p < Bf16x8::kElements / 2; ++p) {
        const float2 a = __bfloat1622float2(residual[i].pair[p]);
        const float2 b = __bfloat1622float2(x[i].pair[p]);
        residual[i].pair[p] = __floats2bfloat162_rn(a.x + b.x, a.y + b.y);
        const float2 sum = __bfloat1622float2(residual[i].pair[p]);
        squares = fmaf(sum.x, sum.x, squares);
        squares = fmaf(sum.y, sum.y, squares);
      }
    });
    return squares;
  }

  __device__ static Bf16x8 scaled(const Bf16x8& value, const Bf16x8& weight, float scale) {
    Bf16x8 out;
#pragma unroll
    for (int p = 0; p < Bf16x8::kElements / 2; ++p) {
      const float2 v = __bfloat1622float2(value.pair[p]);
      const float2 w = __bfloat1622float2(weight.pair[p]);
      out.pair[p] =
          __floats2bfloat162_rn(v.x * scale * (1.0f + w.x), v.y * scale * (1.0f + w.y));
    }
    return out;
  }

  // One row of the op by one block; `weight` is already in registers.
  __device__ static void stage(const Params& params, size_t row, const Row& weight,
                               SharedStorage& shared) {
    const size_t start = row * kWidth;
    Row x, residual;
    load(x, params.x + start);
    load(residual, params.residual + start);
    const float squares = tile::block_sum<kWarps>(add(residual, x), shared.partial);
    const float scale = rsqrtf(squares * (1.0f / kWidth) + kEps);
    auto* residual_row = reinterpret_cast<Bf16x8*>(params.residual + start);
    auto* out_row = reinterpret_cast<Bf16x8*>(params.out + start);
    for_each_vector([&](int i, int vector) {
      residual_row[vector] = residual[i];
      out_row[vector] = scaled(residual[i], weight[i], scale);
    });
  }

  static cudaError_t launch(const atlas_bf16* x, atlas_bf16* residual, const atlas_bf16* weight,
                            atlas_bf16* out, unsigned rows, cudaStream_t stream);
};

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void rows_bf16(
    typename RowsBf16<Tile>::Params params) {
  using Op = RowsBf16<Tile>;
  __shared__ typename Op::SharedStorage shared;
  ptx::griddepcontrol_launch_dependents();
  typename Op::Row weight;
  Op::load(weight, params.weight);
  ptx::griddepcontrol_wait();  // the weight depends on nothing; everything below does
  Op::stage(params, blockIdx.x, weight, shared);
}

template <class Tile>
cudaError_t RowsBf16<Tile>::launch(const atlas_bf16* x, atlas_bf16* residual,
                               const atlas_bf16* weight, atlas_bf16* out, unsigned rows,
                               cudaStream_t stream) {
  const Params params{device(x), device(residual), device(weight), device(out)};
  return launch_chained(rows_bf16<Tile>, {rows, kThreads, 0}, stream, params);
}

}  // namespace atlas::add_rms_norm
