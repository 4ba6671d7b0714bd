// Products of few panels of weights with up to 128 rows: each block of a cluster has a segment of
// K. The arithmetic is that of `Flat`, `Tiled` and `Stream`.
//
// So all SMs work on a product with few panels, a block has all its weights in flight before its
// rows are there, and it reads only a segment's columns of the rows. The segments' sums are added
// in order, read from the shared memory of the cluster's blocks.
#pragma once

#include "tile/stream.cuh"

namespace atlas::tile {

// Most rows of a product without a norm; more rows are faster in tiles.
inline constexpr int kSplitRowsMax = 64;

inline constexpr int kSplitWarps = 8;
inline constexpr int kSplitThreads = kSplitWarps * kWarpLanes;

// Product of kPanels panels of a matrix of kK columns with 8 * kRowTiles rows.
template <Storage kStorage, int kK, int kPanels, int kRowTiles>
struct Split {
  using W = Matrix<kStorage>;
  static constexpr int kRows = kRowTiles * kTileRows;
  static constexpr int kSegments = segments(kK);  // of K, each in a block of the cluster
  static constexpr int kColumns = kK / kSegments;
  static constexpr int kGroups = kColumns / W::kGroup;
  static constexpr int kBlocks = kColumns / kBlockColumns;
  // Panels of a warp: two where possible, so that an operand of rows is read once for both.
  static constexpr int kWarpPanels = kPanels > 1 && kRowTiles > 1 ? 2 : 1;
  // Warps with the same rows and different panels.
  static constexpr int kAcross = kPanels / kWarpPanels;
  static constexpr int kWarpRows = kSplitWarps / kAcross;
  // Warps with the same panels and different rows, at most kWarpRows.
  static constexpr int kDown = kRowTiles < kWarpRows ? kRowTiles : kWarpRows;
  static constexpr int kTiles = kRowTiles / kDown;

  static constexpr int kPanelBytes = kGroups * W::kGroupBytes;
  static constexpr int kScaleBytes = kBlocks * W::kBlockScaleBytes;
  // Pitch of operands, padded so that a warp's rows are in different banks.
  static constexpr int kPitch = kColumns + (kStorage == Storage::f16 ? 32 : 8);
  // Pitch of sums, padded so that a warp's rows are in different banks.
  static constexpr int kSumPitch = kPanelRows + 4;

  struct SharedStorage {
    alignas(128) unsigned char codes[kPanels][kPanelBytes];
    alignas(16) unsigned char scales[kPanels][kScaleBytes > 0 ? kScaleBytes : 16];
    union {
      alignas(16) f16 x[kRows][kPitch];
      alignas(16) float sum[kPanels][kRows][kSumPitch];  // (panel, row, panel row)
    };
    unsigned long long full;
  };

  SharedStorage& shared;
  W w;
  int first;  // first panel of the cluster
  int segment;

  __device__ Split(SharedStorage& shared, const W& w)
      : shared(shared),
        w(w),
        first(static_cast<int>(blockIdx.x) / kSegments * kPanels),
        segment(static_cast<int>(blockIdx.x) % kSegments) {}

  __host__ static unsigned blocks(int n) {
    return static_cast<unsigned>((panels_of(n) + kPanels - 1) / kPanels * kSegments);
  }

  // Starts loading weights; may be called before the wait for earlier kernels.
  __device__ void prefetch() {
    const int live = min(kPanels, panels_of(w.n) - first);
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(&shared.full);
      ptx::mbarrier_init_fence();
      ptx::mbarrier_expect(&shared.full, live * kPanelBytes);
      for (int p = 0; p < live; ++p) {
        ptx::copy_bulk(shared.codes[p], w.codes(first + p, segment * kGroups), kPanelBytes,
                       &shared.full);
      }
    }
    if constexpr (kScaleBytes > 0) {
      constexpr int kWords = kScaleBytes / 8;
      for (int item = threadIdx.x; item < live * kWords; item += kSplitThreads) {
        const unsigned char* from = w.block_scales(first + item / kWords, segment * kBlocks);
        reinterpret_cast<uint2*>(shared.scales[item / kWords])[item % kWords] =
            __ldg(reinterpret_cast<const uint2*>(from) + item % kWords);
      }
    }
  }

  // Vectors of the segment's columns in a row.
  static constexpr int kVectors = kColumns / 4;
  static constexpr int kMine = (kRows * kVectors + kSplitThreads - 1) / kSplitThreads;

  // Calls `body(i, row, vector)` for `kCount` of this thread's vectors, from number `start` on.
  template <int kCount, class Body>
  __device__ static void for_each_vector(int start, int rows, const Body& body) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int item = threadIdx.x + (start + i) * kSplitThreads;
      if (item / kVectors < rows) body(i, item / kVectors, item % kVectors);
    }
  }

  __device__ void put(int row, int vector, const float4& value) const {
    put_vector(shared.x[row], vector, value);
  }

  // Rounds F32 rows, the first of which is at `from`, to operands.
  __device__ void round(const float* from, int rows) const {
    constexpr int kAtOnce = kMine < 16 ? kMine : 16;
    from += segment * kColumns;
#pragma unroll 1
    for (int start = 0; start < kMine; start += kAtOnce) {
      float4 part[kAtOnce];
      for_each_vector<kAtOnce>(start, rows, [&](int i, int row, int vector) {
        part[i] = reinterpret_cast<const float4*>(from + static_cast<size_t>(row) * kK)[vector];
      });
      for_each_vector<kAtOnce>(start, rows, [&](int i, int row, int vector) {
        put(row, vector, part[i]);
      });
    }
  }

  // Multiplies the rows in shared memory. `sink(panel, quad, row, sums)` takes the sums of the
  // panel's rows 4 quad .. 4 quad + 3, without their row scale.
  template <class Sink>
  __device__ void run(int rows, const Sink& sink) {
    float sum[kWarpPanels][kTiles][4] = {};
    const int warp = threadIdx.x / kWarpLanes;
    const bool has_part = warp < kAcross * kDown;
    __syncthreads();  // rows and scales are written
    ptx::mbarrier_wait(&shared.full, 0);
    if (has_part) multiply(warp / kDown * kWarpPanels, warp % kDown * kTiles, sum);
    __syncthreads();  // the rows have been read: sums take their memory
    if (has_part) put_sums(warp / kDown * kWarpPanels, warp % kDown * kTiles, sum);
    ptx::cluster_sync();  // all segments' sums are written
    add_segments(rows, sink);
    ptx::cluster_sync();  // the sums have been read
  }

  __device__ void multiply(int panel, int tile, float (&sum)[kWarpPanels][kTiles][4]) const {
    const int lane = threadIdx.x % kWarpLanes, g = lane / 4, q = lane % 4;
    constexpr int kChains = W::kBlockFactors ? kWarpPanels : 1;
    float chain[kChains][kTiles][4] = {};
    const f16* x = shared.x[tile * kTileRows + g] + q * W::kLaneColumns;
#pragma unroll 2
    for (int group = 0; group < kGroups; ++group) {
      const int scales_at = W::kScales ? group * W::kGroupScaleBytes
                                       : group * W::kGroup / kBlockColumns * W::kBlockScaleBytes;
      typename W::Fragment now[kWarpPanels];
#pragma unroll
      for (int p = 0; p < kWarpPanels; ++p) {
        typename W::Scales scales;
        if constexpr (kScaleBytes > 0) {
          scales = W::lane_scales(shared.scales[panel + p] + scales_at);
        }
        now[p] = W::fragment(shared.codes[panel + p] + group * W::kGroupBytes, scales);
      }
#pragma unroll
      for (int octet = 0; octet < W::Code::kOctets; ++octet) {
        unsigned first[kWarpPanels][4], second[kWarpPanels][4];
#pragma unroll
        for (int p = 0; p < kWarpPanels; ++p) {
          W::decode(now[p], octet, first[p], second[p]);
        }
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const uint4 b = *reinterpret_cast<const uint4*>(x + t * kTileRows * kPitch +
                                                          group * W::kGroup + octet * 8);
#pragma unroll
          for (int p = 0; p < kWarpPanels; ++p) {
            float(&to)[4] = W::kBlockFactors ? chain[W::kBlockFactors ? p : 0][t] : sum[p][t];
            ptx::mma_f16(to, first[p], b.x, b.y);
            ptx::mma_f16(to, second[p], b.z, b.w);
          }
        }
      }
      if (W::kBlockFactors && (group + 1) * W::kGroup % kBlockColumns == 0) {
#pragma unroll
        for (int p = 0; p < kChains; ++p) {
          const float2 scale = now[p].block;
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
            close_chain(sum[p][t], chain[p][t], scale);
          }
        }
      }
    }
  }

  __device__ void put_sums(int panel, int tile, const float (&sum)[kWarpPanels][kTiles][4]) const {
    const int lane = threadIdx.x % kWarpLanes, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int p = 0; p < kWarpPanels; ++p) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          float* own = shared.sum[panel + p][(tile + t) * kTileRows + 2 * q + odd];
          own[g] = sum[p][t][odd], own[g + 8] = sum[p][t][odd + 2];
        }
      }
    }
  }

  // Adds up the segments of this block's share of the sums.
  template <class Sink>
  __device__ void add_segments(int rows, const Sink& sink) const {
    constexpr int kItems = kPanels * kRows * 4;
#pragma unroll 1
    for (int item = segment * kSplitThreads + threadIdx.x; item < kItems;
         item += kSegments * kSplitThreads) {
      const int quad = item % 4, row = item / 4 % kRows, panel = item / (4 * kRows);
      if (row >= rows || first + panel >= panels_of(w.n)) continue;
      const float* mine = shared.sum[panel][row] + quad * 4;
      float4 part[kSegments], total{};
#pragma unroll
      for (int s = 0; s < kSegments; ++s) part[s] = ptx::cluster_load(mine, s);
#pragma unroll
      for (int s = 0; s < kSegments; ++s) {
        total.x += part[s].x, total.y += part[s].y, total.z += part[s].z, total.w += part[s].w;
      }
      sink(first + panel, quad, row, total);
    }
  }
};

}  // namespace atlas::tile
