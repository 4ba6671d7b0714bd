// `Fp4Tensor::mma` in software, for architectures without the instruction. It reads operands from
// the registers where the instruction does, so a test of a kernel with it also tests their layout.
#pragma once

#include "tile/reduce.cuh"

namespace atlas::tile {

struct Fp4Software {
  // Exponent and mantissa, as bits of an F32, are the value times 2^-126.
  __device__ static float e2m1(unsigned code) {
    const float size = __uint_as_float((code & 7u) << 22) * 0x1p126f;
    return code & 8u ? -size : size;
  }

  // Value of an E4M3 code without sign; 0x7f is NaN.
  __device__ static float e4m3(unsigned code) {
    const unsigned bits = code & 0x7fu;
    return bits == 0x7fu ? NAN : __uint_as_float(bits << 20) * 0x1p120f;
  }

  __device__ static void mma(float (&d)[4], const unsigned (&a)[4], unsigned scale_a,
                             const unsigned (&b)[2], unsigned scale_b) {
    const float4 sum = product({a[0], a[1], a[2], a[3]}, scale_a, {b[0], b[1]}, scale_b);
    d[0] += sum.x;
    d[1] += sum.y;
    d[2] += sum.z;
    d[3] += sum.w;
  }

 private:
  // The product, one copy of the code for a whole kernel. Groups of 16 are summed exactly, and the
  // groups added in order.
  __device__ __noinline__ static float4 product(uint4 a, unsigned scale_a, uint2 b,
                                                unsigned scale_b) {
    const int lane = threadIdx.x % kWarpLanes, g = lane / 4, q = lane % 4;
    // Lanes with the operands of row g, and of the two columns of this lane's sums.
    const int row = 4 * g, column[2] = {4 * (2 * q), 4 * (2 * q + 1)};
    const unsigned row_scales[2] = {__shfl_sync(kAllLanes, scale_a, row),
                                    __shfl_sync(kAllLanes, scale_a, row + 1)};
    const unsigned column_scales[2] = {__shfl_sync(kAllLanes, scale_b, column[0]),
                                       __shfl_sync(kAllLanes, scale_b, column[1])};
    float sum[4] = {};
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      float part[4] = {};
#pragma unroll
      for (int octet = 0; octet < 2; ++octet) {
        // Register and lane (of four) with the 8 columns of K from 16 * group + 8 * octet on.
        const int from = group % 2 * 2 + octet;
        const unsigned low = group < 2 ? a.x : a.z, high = group < 2 ? a.y : a.w;
        const unsigned brought = group < 2 ? b.x : b.y;
        const unsigned rows[2] = {__shfl_sync(kAllLanes, low, row + from),
                                  __shfl_sync(kAllLanes, high, row + from)};
        const unsigned columns[2] = {__shfl_sync(kAllLanes, brought, column[0] + from),
                                     __shfl_sync(kAllLanes, brought, column[1] + from)};
#pragma unroll
        for (int e = 0; e < 8; ++e) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            part[i] = fmaf(e2m1(rows[i / 2] >> (4 * e)), e2m1(columns[i % 2] >> (4 * e)), part[i]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float scale = e4m3(row_scales[i / 2] >> (8 * group)) *
                            e4m3(column_scales[i % 2] >> (8 * group));
        sum[i] += part[i] * scale;
      }
    }
    return {sum[0], sum[1], sum[2], sum[3]};
  }
};

}  // namespace atlas::tile
