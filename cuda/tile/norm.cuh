// RMS norm of an F32 row that is spread over the threads of a block or of a warp.
#pragma once

#include <type_traits>

#include "target.cuh"
#include "tile/ptx.cuh"
#include "tile/reduce.cuh"

namespace atlas::tile {

// Four columns times the row's factor and their gains.
__device__ inline float4 scaled(float4 part, float scale, const float4& gain) {
  part.x *= scale * gain.x;
  part.y *= scale * gain.y;
  part.z *= scale * gain.z;
  part.w *= scale * gain.w;
  return part;
}

// Factor that turns a row's sum of squares into a mean: zero channels that pad a hidden state do
// not count.
template <int kWidth>
inline constexpr float kMean =
    1.0f / (kWidth == target::HIDDEN ? target::CHANNELS : kWidth);

template <int kWidth, int kThreads>
struct NormRow {
  static constexpr int kWarps = kThreads / kWarpLanes;
  static constexpr int kRowVectors = kWidth / 4;
  static constexpr int kVectors = (kRowVectors + kThreads - 1) / kThreads;  // per thread

  static_assert(kWidth % 4 == 0, "a row is whole 16-byte vectors");
  static_assert(kThreads % kWarpLanes == 0, "the block sum adds full warps");
  static_assert(kVectors <= 8, "the row stays in registers: more threads for wider rows");

  struct SharedStorage {
    float partial[kWarps];  // (kWarps)
  };

  float4 part[kVectors];  // vectors thread() + i * kThreads of the row

  // Number of this thread among the kThreads of a row; a block may have several such groups.
  __device__ static int thread() { return threadIdx.x % kThreads; }

  template <class Body>
  __device__ static void for_each_vector(Body body) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int vector = thread() + i * kThreads;
      if (kRowVectors % kThreads == 0 || vector < kRowVectors) body(i, vector);
    }
  }

  __device__ void load(const float* row) {
    for_each_vector([&](int i, int vector) {
      part[i] = reinterpret_cast<const float4*>(row)[vector];
    });
  }

  __device__ void store(float* row) const {
    for_each_vector([&](int i, int vector) { reinterpret_cast<float4*>(row)[vector] = part[i]; });
  }

  __device__ void add(const NormRow& other) {
    for_each_vector([&](int i, int) {
      part[i].x += other.part[i].x;
      part[i].y += other.part[i].y;
      part[i].z += other.part[i].z;
      part[i].w += other.part[i].w;
    });
  }

  __device__ void multiply(float factor) {
    for_each_vector([&](int i, int) {
      part[i].x *= factor;
      part[i].y *= factor;
      part[i].z *= factor;
      part[i].w *= factor;
    });
  }

  // Norm: `this = this * rsqrt(mean(this^2) + eps) * gain`.
  __device__ void normalise(const NormRow& gain, float eps, SharedStorage& shared) {
    put_squares(shared.partial);
    if constexpr (kWarps > 1) __syncthreads();  // every warp's squares are written
    scale(gain, eps, shared.partial);
  }

  // First half of `normalise`: writes each warp's sum of squares. A barrier must follow.
  __device__ void put_squares(float (&partial)[kWarps]) const {
    float squares = 0.0f;
    for_each_vector([&](int i, int) {
      squares = fmaf(part[i].x, part[i].x, squares);
      squares = fmaf(part[i].y, part[i].y, squares);
      squares = fmaf(part[i].z, part[i].z, squares);
      squares = fmaf(part[i].w, part[i].w, squares);
    });
    squares = warp_sum(squares);
    if (thread() % kWarpLanes == 0) partial[thread() / kWarpLanes] = squares;
    if constexpr (kWarps == 1) __syncwarp();
  }

  // Second half of `normalise`: scales the row by the sums of all warps.
  __device__ void scale(const NormRow& gain, float eps, const float (&partial)[kWarps]) {
    float squares = partial[0];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) squares += partial[warp];
    const float scale = rsqrtf(squares * kMean<kWidth> + eps);
    for_each_vector([&](int i, int) { part[i] = scaled(part[i], scale, gain.part[i]); });
  }
};

// A row in one warp, with the same bits as `NormRow` of `kThreads`: a lane has the vectors that its
// lane of every warp would have.
template <int kWidth, int kThreads>
struct WarpNormRow {
  using Row = NormRow<kWidth, kThreads>;

  float4 part[Row::kWarps][Row::kVectors];

  // Calls `body(vector, part)` for every vector of this lane.
  template <class Body>
  __device__ void for_each_vector(Body body) {
    const int lane = threadIdx.x % kWarpLanes;
#pragma unroll
    for (int warp = 0; warp < Row::kWarps; ++warp) {
#pragma unroll
      for (int i = 0; i < Row::kVectors; ++i) {
        const int vector = warp * kWarpLanes + lane + i * kThreads;
        if (Row::kRowVectors % kThreads == 0 || vector < Row::kRowVectors) {
          body(vector, part[warp][i]);
        }
      }
    }
  }

  __device__ void load(const float* row) {
    for_each_vector([&](int vector, float4& part) {
      part = reinterpret_cast<const float4*>(row)[vector];
    });
  }

  // Factor of the norm for all columns.
  __device__ float factor(float eps) {
    float squares[Row::kWarps] = {};
    for_each_vector([&](int vector, const float4& part) {
      float& sum = squares[vector % kThreads / kWarpLanes];
      sum = fmaf(part.x, part.x, sum);
      sum = fmaf(part.y, part.y, sum);
      sum = fmaf(part.z, part.z, sum);
      sum = fmaf(part.w, part.w, sum);
    });
    float all = 0.0f;
#pragma unroll
    for (int warp = 0; warp < Row::kWarps; ++warp) {
      const float sum = warp_sum(squares[warp]);
      all = warp == 0 ? sum : all + sum;
    }
    return rsqrtf(all * kMean<kWidth> + eps);
  }

  __device__ void normalise(const WarpNormRow& gain, float eps) {
    const float scale = factor(eps);
#pragma unroll
    for (int warp = 0; warp < Row::kWarps; ++warp) {
#pragma unroll
      for (int i = 0; i < Row::kVectors; ++i) {
        part[warp][i] = scaled(part[warp][i], scale, gain.part[warp][i]);
      }
    }
  }
};

// `WarpNormRow` for rows too wide for registers: row and gains are read a second time where they
// are used.
template <int kWidth, int kThreads>
struct WideNormRow {
  using Row = NormRow<kWidth, kThreads>;

  const float4* from = nullptr;  // null: the vector is zeros
  const float4* gain = nullptr;
  float scale = 0.0f;

  __device__ void load(const float* row) { from = reinterpret_cast<const float4*>(row); }

  __device__ float factor(float eps) const {
    const int lane = threadIdx.x % kWarpLanes;
    float all = 0.0f;
#pragma unroll 1
    for (int warp = 0; warp < Row::kWarps; ++warp) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < Row::kVectors; ++i) {
        const int vector = warp * kWarpLanes + lane + i * kThreads;
        if (Row::kRowVectors % kThreads != 0 && vector >= Row::kRowVectors) break;
        const float4 part = from[vector];
        sum = fmaf(part.x, part.x, sum);
        sum = fmaf(part.y, part.y, sum);
        sum = fmaf(part.z, part.z, sum);
        sum = fmaf(part.w, part.w, sum);
      }
      sum = warp_sum(sum);
      all = warp == 0 ? sum : all + sum;
    }
    return rsqrtf(all * kMean<kWidth> + eps);
  }

  __device__ void normalise(const WideNormRow& gains, float eps) {
    gain = gains.from;
    scale = factor(eps);
  }

  // Calls `body(vector, part)` for every vector of this lane, with normed numbers.
  template <class Body>
  __device__ void for_each_vector(const Body& body) const {
    const int lane = threadIdx.x % kWarpLanes;
#pragma unroll 1
    for (int first = lane; first < kThreads; first += kWarpLanes) {
#pragma unroll
      for (int i = 0; i < Row::kVectors; ++i) {
        const int vector = first + i * kThreads;
        if (Row::kRowVectors % kThreads != 0 && vector >= Row::kRowVectors) break;
        const bool is_row = from != nullptr;
        body(vector, is_row ? scaled(from[vector], scale, __ldg(gain + vector)) : float4{});
      }
    }
  }
};

// Widest row that fits a warp's registers together with its gains.
inline constexpr int kWarpRowMax = 2048;

template <int kWidth, int kThreads>
using AnyWarpNormRow = std::conditional_t<kWidth <= kWarpRowMax, WarpNormRow<kWidth, kThreads>,
                                          WideNormRow<kWidth, kThreads>>;

}  // namespace atlas::tile
