// Products of E2M1 rows and E2M1 weights, both with an E4M3 scale per 16 columns, by block-scaled
// tensor instructions.
//
// An instruction multiplies 16 rows of weights by 8 rows, 64 columns of each. Lane (g, q) of a
// warp, g = lane / 4 and q = lane % 4, has 8 columns from 8 q on and 8 more from 32 + 8 q on, a
// word each. Codes of 128 columns are a run of 64 bytes, in which the four words of a lane are side
// by side: word w of the columns is at w % 4 * 4 + w / 4. Otherwise weights are in panels as in
// `panels.cuh`, with the checkpoint's scales and the tensor's factor.
//
// The sum over K is one chain of instructions in the order of K, for any number of rows.
#pragma once

#include "tile/fp4_software.cuh"
#include "tile/fp4_tensor.cuh"
#include "tile/panels.cuh"

namespace atlas::tile {

// Products of E2M1 by block-scaled tensor instructions, or in software where there are none.
template <bool kHasIt>
struct Fp4Choice {
  using Type = Fp4Software;
};

template <>
struct Fp4Choice<true> {
  using Type = Fp4Tensor;
};

using Fp4Instruction = Fp4Choice<target::COMPUTE_CAPABILITY / 10 == 12>::Type;

// Columns that share a scale.
inline constexpr int kFp4Group = 16;
// Largest magnitude of an E2M1 code.
inline constexpr float kFp4Largest = 6.0f;
// Exponent to which a row is scaled: a power of two brings its largest magnitude to `2^10 .. 2^11`,
// so that the largest scale is in 170 .. 342 of E4M3's 448.
inline constexpr int kFp4Exponent = 10;
// Least exponent that a row's largest magnitude is taken to have; smaller rows lose accuracy.
inline constexpr int kFp4ExponentMin = -100;
inline constexpr unsigned kE4m3Nan = 0x7f;

// E2M1 code nearest to `x`, ties to the even code; larger magnitudes become the largest one.
__device__ inline unsigned to_e2m1(float x) {
  const float size = fabsf(x);
  const float code = size < 2.0f   ? rintf(size * 2.0f)
                     : size < 4.0f ? rintf(size) + 2.0f
                                   : fminf(rintf(size * 0.5f), 3.0f) + 4.0f;
  return static_cast<unsigned>(code) | (__float_as_uint(x) >> 31 << 3);
}

// E4M3 code nearest to `x`, ties to even, at most 448. `x` is not NaN and not negative.
__device__ inline unsigned to_e4m3(float x) {
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return pair & 0xffu;
}

__device__ inline float power_of_two(int exponent) {
  return __uint_as_float(static_cast<unsigned>(exponent + 127) << 23);
}

// Up to `kRows` rows of `kWidth` columns in the instructions' layout, in one piece of memory whose
// size keeps the next piece aligned.
template <int kRows, int kWidth>
struct Fp4Rows {
  static constexpr int kGroups = kWidth / kFp4Group;
  static constexpr size_t kUsed = size_t{kRows} * (kWidth / 2 + kGroups + sizeof(float));
  static constexpr size_t kBytes = (kUsed + kVectorBytes - 1) / kVectorBytes * kVectorBytes;

  static_assert(kWidth % kBlockColumns == 0, "rows are whole runs");

  unsigned char* base;

  __device__ unsigned char* codes(int row) const { return base + size_t(row) * (kWidth / 2); }
  __device__ unsigned char* scales(int row) const {
    return base + size_t{kRows} * (kWidth / 2) + size_t(row) * kGroups;
  }
  // Factor that the sums of a row are multiplied by.
  __device__ float& factor(int row) const {
    unsigned char* factors = base + size_t{kRows} * (kWidth / 2 + kGroups);
    return reinterpret_cast<float*>(factors)[row];
  }

  // Rounds a row; by a warp. A group with a number that is not finite gets a NaN scale.
  __device__ void put(int row, const float* x) const {
    constexpr int kEach = (kGroups + kWarpLanes - 1) / kWarpLanes;
    const int lane = threadIdx.x % kWarpLanes;
    float4 part[kEach][4];
    unsigned largest[kEach] = {}, of_row = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int group = i * kWarpLanes + lane;
      if (group >= kGroups) break;
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const float4 four = reinterpret_cast<const float4*>(x)[group * 4 + v];
        // Bits of magnitudes, whose order is that of the magnitudes, with infinities and NaN last.
        const auto size = [](float of) { return __float_as_uint(of) & 0x7fffffffu; };
        largest[i] = max(max(largest[i], max(size(four.x), size(four.y))),
                         max(size(four.z), size(four.w)));
        part[i][v] = four;
      }
      of_row = max(of_row, largest[i]);
    }
    of_row = __reduce_max_sync(kAllLanes, of_row);
    const int exponent = min(max(static_cast<int>(of_row >> 23) - 127, kFp4ExponentMin), 127);
    const float up = power_of_two(kFp4Exponent - exponent);
    if (lane == 0) factor(row) = power_of_two(exponent - kFp4Exponent);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int group = i * kWarpLanes + lane;
      if (group >= kGroups) break;
      put_group(row, group, part[i], __uint_as_float(largest[i]), up);
    }
  }

 private:
  __device__ void put_group(int row, int group, const float4 (&part)[4], float largest,
                            float up) const {
    const bool finite = largest < INFINITY;
    const unsigned scale = finite ? to_e4m3(largest * up / kFp4Largest) : kE4m3Nan;
    const float inverse = finite && scale > 0 ? up / Fp4Software::e4m3(scale) : 0.0f;
    scales(row)[group] = static_cast<unsigned char>(scale);
    unsigned* run = reinterpret_cast<unsigned*>(codes(row)) + group / 8 * (kRunBytes / 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 low = part[2 * half], high = part[2 * half + 1];
      const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      unsigned word = 0;
#pragma unroll
      for (int e = 0; e < 8; ++e) word |= to_e2m1(values[e] * inverse) << (4 * e);
      const int at = group % 8 * 2 + half;
      run[at % 4 * 4 + at / 4] = word;
    }
  }
};

// Product of up to `8 * kTiles` rows with `kPanels` panels a warp; `kAhead` runs are in flight.
template <class Instruction, int kWidth, int kTiles, int kPanels, int kAhead>
struct Fp4Tiled : WarpPanels<Storage::nvfp4, kPanels> {
  using Base = WarpPanels<Storage::nvfp4, kPanels>;
  using W = typename Base::W;
  using Base::first_panel;
  using Base::w;
  static constexpr int kRows = 8 * kTiles;
  static constexpr int kRuns = kWidth / kBlockColumns;
  // Runs of columns between two barriers.
  static constexpr int kStepRuns = kRuns % 4 == 0 ? 4 : 2;
  static constexpr int kSteps = kRuns / kStepRuns;
  // Vectors of a row's scales in a step, padded so that rows g of a warp are in different banks.
  static constexpr int kScales = kStepRuns * 8 / kVectorBytes;
  static constexpr int kScaleStride = kScales | 1;
  // Row number that marks an unused row of a tile.
  static constexpr int kNoRow = -1;

  static_assert(kRuns % kStepRuns == 0, "a row is whole steps");
  static_assert(kStepRuns % kAhead == 0, "a run's slot in the ring is known when compiling");
  static_assert(kRows <= kPanelThreads, "a thread asks for the row of an index");

  struct SharedStorage {
    uint4 codes[2][kStepRuns][kRows][4];         // (stage, run, row, lane q)
    uint4 scales[2][kRows][kScaleStride];        // (stage, row, two runs)
    int row[kRows];
  };

  // A lane's share of a run of a panel: rows g and g + 8, and scales of one of them.
  struct Fragment {
    uint4 low, high;
    uint2 scales;
  };

  __device__ Fp4Tiled(const W& matrix, int block) : Base(matrix, block) {}

  // Loads a fragment: lanes of even q have the scales of row g, others those of row g + 8.
  __device__ Fragment load(int panel, int run) const {
    const int lane = threadIdx.x % kWarpLanes, g = lane / 4, q = lane % 4;
    const uint4* codes = reinterpret_cast<const uint4*>(w.codes(panel, run));
    const uint2* scales = reinterpret_cast<const uint2*>(w.block_scales(panel, run));
    return {__ldg(codes + lane), __ldg(codes + kWarpLanes + lane), __ldg(scales + g + q % 2 * 8)};
  }

  __device__ void load(int run, Fragment (&to)[kPanels]) const {
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      // Panels after the last one repeat it; their sums are dropped.
      to[p] = load(min(first_panel + p, panels_of(w.n) - 1), run);
    }
  }

  // Starts copying the rows of a step; unused rows of the tile get zeros.
  template <class Rows>
  __device__ static void fetch(const Rows& from, int step, SharedStorage& shared) {
    constexpr int kCodes = kStepRuns * 4;
    for (int at = threadIdx.x; at < kRows * kCodes; at += kPanelThreads) {
      const int index = at / kCodes, part = at % kCodes, row = shared.row[index];
      const unsigned char* codes = from.codes(max(row, 0)) + step * kStepRuns * kRunBytes;
      ptx::copy_async(&shared.codes[step % 2][part / 4][index][part % 4],
                      codes + part * kVectorBytes, row != kNoRow);
    }
    for (int at = threadIdx.x; at < kRows * kScales; at += kPanelThreads) {
      const int index = at / kScales, part = at % kScales, row = shared.row[index];
      const unsigned char* scales = from.scales(max(row, 0)) + step * kStepRuns * 8;
      ptx::copy_async(&shared.scales[step % 2][index][part], scales + part * kVectorBytes,
                      row != kNoRow);
    }
  }

  // Computes the products: `row_of(place)` is the row of `from` at index `place` of the tile;
  // `sink(panel, g, place, low, high)` takes the sums of rows g and g + 8 of a panel.
  template <class Rows, class RowOf, class Sink>
  __device__ void run(int count, const Rows& from, RowOf row_of, Sink sink,
                      SharedStorage& shared) const {
    const int lane = threadIdx.x % kWarpLanes, g = lane / 4, q = lane % 4;
    float sum[kPanels][kTiles][4] = {};
    Fragment ring[kAhead][kPanels];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load(i, ring[i]);
    if (threadIdx.x < kRows) {
      const int index = threadIdx.x;
      shared.row[index] = index < count ? row_of(index) : kNoRow;
    }
    __syncthreads();  // rows are known
    fetch(from, 0, shared);
    ptx::copy_async_commit();
    for (int step = 0; step < kSteps; ++step) {
      if (step + 1 < kSteps) fetch(from, step + 1, shared);
      ptx::copy_async_commit();
      ptx::copy_async_wait<1>();
      __syncthreads();  // this stage is written
#pragma unroll
      for (int i = 0; i < kStepRuns; ++i) {
        multiply(shared, step % 2, i, ring[i % kAhead], sum);
        const int next = step * kStepRuns + i + kAhead;
        if (next < kRuns) load(next, ring[i % kAhead]);
      }
      __syncthreads();  // this stage is read
    }
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      if (first_panel + p >= panels_of(w.n)) break;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int index = t * 8 + 2 * q + e;
          if (index >= count) continue;
          const float factor = from.factor(shared.row[index]);
          sink(first_panel + p, g, index, sum[p][t][e] * factor, sum[p][t][e + 2] * factor);
        }
      }
    }
  }

  __device__ static void multiply(const SharedStorage& shared, int stage, int run,
                                  const Fragment (&weights)[kPanels],
                                  float (&sum)[kPanels][kTiles][4]) {
    const int lane = threadIdx.x % kWarpLanes, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const uint4 b = shared.codes[stage][run][t * 8 + g][q];
      const uint2 scales =
          reinterpret_cast<const uint2*>(shared.scales[stage][t * 8 + g])[run];
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        const Fragment& a = weights[p];
        Instruction::mma(sum[p][t], {a.low.x, a.high.x, a.low.y, a.high.y}, a.scales.x,
                         {b.x, b.y}, scales.x);
        Instruction::mma(sum[p][t], {a.low.z, a.high.z, a.low.w, a.high.w}, a.scales.y,
                         {b.z, b.w}, scales.y);
      }
    }
  }
};

}  // namespace atlas::tile
