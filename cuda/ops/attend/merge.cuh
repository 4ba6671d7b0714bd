// Merging of splits that several blocks have computed for a tile's rows: all blocks wait for each
// other, then each warp merges some dimensions of a head.
//
// A warp loads the mixes (weighted sums of values) of later splits while it merges those of earlier
// splits. Factors of a chunk of splits are computed before, each by a lane. Splits are merged in
// order by `Merge`, as in one block.
#pragma once

#include "ops/attend/queries.cuh"
#include "tile/meet.cuh"

namespace atlas::attend {

// Dimensions that a warp merges, one a lane.
inline constexpr int kMergeDims = tile::kWarpLanes;
// Splits whose factors are computed together, one a lane.
inline constexpr int kChunk = tile::kWarpLanes;

// Results of all splits of a step before merging.
template <class A>
struct Partial {
  float* mixes;  // (partial_rows, kHeads, kSplits, kValueDim)
  Stats* stats;  // (partial_rows, kHeads, kSplits)

  __device__ explicit Partial(const Params& params)
      : mixes(params.partial),
        stats(reinterpret_cast<Stats*>(params.partial + static_cast<size_t>(params.partial_rows) *
                                                            A::kHeads * kSplits * A::kValueDim)) {}
};

// Buffers of all warps for mixes that are being loaded, `kBytes` at most.
template <int kBytes>
struct MergeStorage {
  static constexpr int kStages = kBytes / (kWarps * kChunk * kMergeDims * sizeof(float));
  static_assert(kStages > 0, "a warp has memory for a chunk");

  float mix[kWarps][kStages][kChunk][kMergeDims];
  float4 factors[kWarps][kChunk];  // factor of the total, factor of the split, addend to the sum
};

// Splits of a tile that one block computes.
struct Share {
  int first;   // split of the first position that the tile sees
  int splits;  // number of the splits that the tile sees
  int blocks;  // number of blocks that share the splits
  int block;   // number of this block

  __device__ int begin() const { return begin_of(block); }
  __device__ int end() const { return begin_of(block + 1); }
  // Index of the first block's last split, at which that block stores its merged splits.
  __device__ int first_left() const { return begin_of(1) - 1; }

  __device__ int begin_of(int of) const { return first + of * splits / blocks; }
};

// Merge of some dimensions of a head, in one warp.
template <class A, class Storage>
struct MergedPart {
  Storage& shared;
  const float* mixes;  // of the first split
  const Stats* stats;
  const int count;  // splits
  const int warp = threadIdx.x / tile::kWarpLanes;
  const int lane = threadIdx.x % tile::kWarpLanes;
  Stats total = {-INFINITY, 0.0f};
  float sum = 0.0f;

  // Starts the loads of a chunk's mixes.
  __device__ void ask(int chunk) const {
    constexpr int kLanes = kMergeDims / 4;  // of a split
    auto& to = shared.mix[warp][chunk % Storage::kStages];
    const int dim = lane % kLanes * 4, live = count - chunk * kChunk;
#pragma unroll
    for (int i = lane / kLanes; i < kChunk; i += tile::kWarpLanes / kLanes) {
      const float* from = mixes + static_cast<size_t>(chunk * kChunk + i) * A::kValueDim + dim;
      if (i < live) ptx::copy_async(&to[i][dim], from, true);
    }
    ptx::copy_async_commit();
  }

  __device__ Stats stats_of(int chunk) const {
    const int split = chunk * kChunk + lane;
    if (split >= count) return {-INFINITY, 0.0f};
    const float2 of = __ldcg(reinterpret_cast<const float2*>(stats + split));
    return {of.x, of.y};
  }

  // Computes the factors of `Merge::of`, each lane for its own split.
  __device__ void weigh(const Stats& split) {
    float largest = split.largest;  // up to this lane's split, all before included
#pragma unroll
    for (int lanes = 1; lanes < tile::kWarpLanes; lanes *= 2) {
      const float other = __shfl_up_sync(tile::kAllLanes, largest, lanes);
      if (lane >= lanes) largest = fmaxf(largest, other);
    }
    largest = fmaxf(largest, total.largest);
    const float previous = __shfl_up_sync(tile::kAllLanes, largest, 1);
    Stats before = {lane == 0 ? total.largest : previous, 0.0f};
    const Merge merge = Merge::of(before, split);
    shared.factors[warp][lane] = {merge.of_total, merge.of_split, before.sum, 0.0f};
    total.largest = __shfl_sync(tile::kAllLanes, largest, tile::kWarpLanes - 1);
  }

  __device__ void take(int chunk) {
    const auto& mix = shared.mix[warp][chunk % Storage::kStages];
    const int live = min(kChunk, count - chunk * kChunk);
#pragma unroll 8
    for (int i = 0; i < live; ++i) {
      const float4 of = shared.factors[warp][i];
      const Merge merge{of.x, of.y};
      sum = merge.apply(sum, mix[i][lane]);
      total.sum = __fmaf_rn(total.sum, of.x, of.z);
    }
  }

  __device__ void run() {
    constexpr int kAhead = Storage::kStages - 1;
    const int chunks = (count + kChunk - 1) / kChunk;
#pragma unroll 1
    for (int chunk = 0; chunk < kAhead; ++chunk) ask(chunk);
    Stats next = stats_of(0);
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      ask(chunk + kAhead);
      const Stats split = next;
      next = stats_of(chunk + 1);
      weigh(split);
      ptx::copy_async_wait<kAhead>();
      __syncwarp();  // factors and mixes of the chunk are written
      take(chunk);
      __syncwarp();  // factors and mixes have been read
    }
  }
};

// Merges all splits of the tile's rows, or the block's part of these rows and dimensions.
template <class A, class Storage>
__device__ void merge_heads(const Params& params, Storage& shared, const uint4& tile,
                            const Share& share) {
  constexpr int kGroup = Heads<A>::kGroup, kMergeParts = A::kValueDim / kMergeDims;
  const Partial<A> partial(params);
  const int parts = static_cast<int>(tile.y) * kGroup * kMergeParts;
  const int lane = threadIdx.x % tile::kWarpLanes;
#pragma unroll 1
  for (int part = share.block + threadIdx.x / tile::kWarpLanes * share.blocks; part < parts;
       part += kWarps * share.blocks) {
    const int row = part / kMergeParts, token = row / kGroup;
    const int dim = part % kMergeParts * kMergeDims;
    const size_t in_row = blockIdx.y * kGroup + row % kGroup;
    const size_t head = static_cast<size_t>(tile.x + token) * A::kHeads + in_row;
    // A row's context may end in the first block's splits: later splits change nothing then.
    const int first = share.first_left();
    const size_t partial_row =
        (static_cast<size_t>(tile.z + token) * A::kHeads + in_row) * kSplits + first;
    const float gate = A::kGated ? gates_of<A>(params, head, dim)[lane] : 0.0f;
    const int count = static_cast<int>(params.positions[tile.x + token]) / kSplit + 1 - first;
    MergedPart<A, Storage> merged{shared, partial.mixes + partial_row * A::kValueDim + dim,
                                  partial.stats + partial_row, max(count, 1)};
    merged.run();
    const float total = with_sink<A>(params, merged.total, static_cast<int>(in_row));
    const float number = gated<A>(merged.sum / total, gate);
    const size_t at = head * A::kValueDim + dim + lane;
    if (params.rounds()) {
      reinterpret_cast<f16*>(params.out)[at] = to_f16(number);
    } else {
      params.out[at] = number;
    }
  }
}

}  // namespace atlas::attend
