// Few rows: blocks share a sequence's splits, a second kernel merges them.
//
// Pages come by bulk copies into a ring, as they lie in memory: what earlier steps wrote is asked
// for before the wait, and the next split's keys while this one's values are mixed. A split's
// positions are scored together, so warps wait for each other three times a split. The code is
// small: few rows run most of it once, and it is read from memory as keys are.
#pragma once

#include "ops/attend/queries.cuh"

namespace atlas::attend {

// Blocks that one step is cut into, if it has that many splits.
inline constexpr int kBlocksWanted = 2 * target::SMS;
inline constexpr int kSplitBlocks = kSplit / kBlock;
// Parts of a page of columns that a bulk copy brings positions of.
inline constexpr int kStrips = HEAD_DIM / tile::kPageColumns;

static_assert(kSplitBlocks * BlockScores::kLanes == tile::kWarpLanes, "a warp has a split's row");
static_assert(kStrips <= tile::kWarpLanes, "a lane asks for a strip");

// `kSlots` blocks of keys or values are under way or not yet used.
template <int kSlots>
struct RingStorage {
  static constexpr int kRows = Queries<1>::kRows;
  // In floats; weights lie in the place of their row's scores.
  static constexpr int kPitch = kSplit + 4;

  alignas(128) bf16 ring[kSlots][PAGE * HEAD_DIM];
  bf16 query[kRows][kPadded];
  float score[kRows][kPitch];
  float rescale[kSplitBlocks][kRows];
  unsigned long long full[kSlots];
};

inline constexpr int kSlots = sizeof(RingStorage<6>) <= target::SHARED_BYTES_PER_BLOCK ? 6 : 2;
static_assert(sizeof(RingStorage<kSlots>) <= target::SHARED_BYTES_PER_BLOCK, "a block fits an SM");
// Blocks that are scored or mixed between two barriers.
inline constexpr int kTogether = kSlots < kSplitBlocks ? kSlots : kSplitBlocks;

// Items of the ring are a split's blocks of keys, then its blocks of values, split by split. All
// but the last split of a sequence have all blocks.
struct Splits : Queries<1> {
  using Shared = RingStorage<kSlots>;
  static constexpr int kItems = 2 * kSplitBlocks;  // of a whole split

  Shared& shared;
  const int split;    // the first one
  const int stride;   // between this block's splits
  const int written;  // first position that this step writes
  const unsigned table = params.tables[first];
  int asked = 0;      // items
  int free = kSlots;  // items that have been read, and slots

  __device__ Splits(const Params& params, Shared& shared, const uint4& tile, int kv_head, int split,
                    int stride)
      : Queries<1>(params, tile.x, tile.y, kv_head),
        shared(shared),
        split(split),
        stride(stride),
        written(tile.w) {}

  __device__ int blocks_of(int of) const {
    return min(kSplitBlocks, (last - of * kSplit) / kBlock + 1);
  }

  __device__ void init() const {
    if (threadIdx.x != 0) return;
    for (auto& full : shared.full) ptx::mbarrier_init(&full);
    ptx::mbarrier_init_fence();
  }

  // Where an item of the ring is.
  struct Place {
    int start;  // its first position; no item if that is behind the last one
    bool is_value;
  };

  __device__ Place place(int item) const {
    const int of = split + item / kItems * stride, in_split = item % kItems;
    if (of * kSplit > last) return {last + 1, false};
    const int blocks = blocks_of(of);
    const bool is_value = in_split >= blocks;
    const int block = is_value ? in_split - blocks : in_split;
    return {block < blocks ? of * kSplit + block * kBlock : last + 1, is_value};
  }

  // Asks for an item's positions from `begin` to `end`, a strip a lane.
  __device__ void copy(int item, const Place& at, int begin, int end) const {
    const int lane = threadIdx.x, in_block = (lane * PAGE + begin) * tile::kPageColumns;
    if (begin >= end || lane >= kStrips) return;
    const size_t page = params.pages[table + at.start / PAGE];
    const size_t block = (page * KV_HEADS + kv_head) * 2 + at.is_value;
    ptx::copy_bulk_shared(shared.ring[item % kSlots] + in_block,
                          params.cache + block * PAGE * HEAD_DIM + in_block,
                          (end - begin) * tile::kPageColumns * sizeof(bf16),
                          &shared.full[item % kSlots]);
  }

  // Fills the ring; the first warp. Of what this step writes nothing is asked for before the wait.
  template <bool kWaited>
  __device__ void ask() {
    if (threadIdx.x >= tile::kWarpLanes) return;
#pragma unroll 1
    for (; asked < free; ++asked) {
      const Place at = place(asked);
      const int live = min(kBlock, last + 1 - at.start);
      if (live <= 0) return;
      if (at.is_value) clear_behind(shared.ring[asked % kSlots], live);
      __syncwarp();  // the zeros are written: who waits for the barrier sees them
      if (threadIdx.x == 0) {
        ptx::mbarrier_expect(&shared.full[asked % kSlots], live * HEAD_DIM * sizeof(bf16));
      }
      __syncwarp();  // the bytes are expected
      copy(asked, at, 0, kWaited ? live : min(live, written - at.start));
    }
  }

  // Asks for the rest of what was asked for before the wait.
  __device__ void ask_written() const {
    if (threadIdx.x >= tile::kWarpLanes) return;
#pragma unroll 1
    for (int item = 0; item < asked; ++item) {
      const Place at = place(item);
      copy(item, at, max(0, written - at.start), min(kBlock, last + 1 - at.start));
    }
  }

  // Values of positions from `live` on are zeros: a weight of zero times memory that nobody wrote
  // is not always zero.
  __device__ static void clear_behind(bf16* block, int live) {
#pragma unroll 1
    for (int item = live * kVectors + threadIdx.x; item < kBlock * kVectors;
         item += tile::kWarpLanes) {
      const int at = tile::page_at(item / kVectors, item % kVectors * Bf16x8::kElements);
      *reinterpret_cast<Bf16x8*>(block + at) = Bf16x8::zero();
    }
  }

  __device__ const bf16* await(int item) const {
    ptx::mbarrier_wait(&shared.full[item % kSlots], item / kSlots % 2);
    return shared.ring[item % kSlots];
  }

  // Split `of`, whose first item is `items`; `put(row, stats)` gets its rows' statistics, `part` is
  // the rest of the result.
  template <class Put>
  __device__ void run(int of, int items, const Put& put) {
    const int blocks = blocks_of(of);
#pragma unroll 1
    for (int first = 0; first < blocks; first += kTogether) {
      const int live = min(kTogether, blocks - first);
      score_blocks(of * kSplit, first, live, items + first);
      __syncthreads();  // scores are written, keys read
      free = items + first + live + kSlots;
      ask<true>();
    }
    weigh(blocks, put);
    clear();
    __syncthreads();  // weights are written
    items += blocks;
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      mix_block(block, items + block);
      if ((block + 1) % kTogether != 0 && block + 1 < blocks) continue;
      __syncthreads();  // values, and at last weights, are read
      free = items + block + 1 + kSlots;
      ask<true>();
    }
  }

  __device__ void score_blocks(int begin, int first, int live, int item) const {
    const bf16* keys[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (i < live) keys[i] = await(item + i);
    }
    const auto key = [&](int i, int position, int dim) {
      return keys[i] + tile::page_at(position, dim);
    };
    const auto put = [&](int i, int row, int column, float score) {
      shared.score[row][(first + i) * kBlock + column] = score;
    };
    score<kTogether>(shared.query, begin + first * kBlock, live, key, put);
  }

  __device__ void mix_block(int block, int item) {
    const bf16* values = await(item);
    const auto weight = [&](int row, int position) {
      return weights_of(row) + block * kBlock + position;
    };
    const auto value = [&](int position, int dim) {
      return values + tile::page_at(position, dim);
    };
    mix(shared.rescale[block], weight, value);
  }

  __device__ bf16* weights_of(int row) const {
    return reinterpret_cast<bf16*>(shared.score[row]);
  }

  // A warp has a row, eight lanes a block of it.
  template <class Put>
  __device__ void weigh(int blocks, const Put& put) const {
    const int lane = threadIdx.x % tile::kWarpLanes, block = lane / BlockScores::kLanes;
#pragma unroll 1
    for (int row = threadIdx.x / tile::kWarpLanes; row < tokens * kGroup; row += kWarps) {
      BlockScores scores;
      scores.load(shared.score[row] + block * kBlock);
      const float most = scores.largest(), own = block < blocks ? most : -INFINITY;
      __syncwarp();  // the row's scores are read
      // The largest score up to a block, and before it.
      Stats stats{-INFINITY, 0.0f};
      float largest = -INFINITY, before = -INFINITY;
#pragma unroll
      for (int i = 0; i < kSplitBlocks; ++i) {
        if (i == block) before = stats.largest;
        stats.largest = fmaxf(stats.largest, of_block(own, i));
        if (i == block) largest = stats.largest;
      }
      const float base = base_of(largest), rescale = exp2f(before - base);
      const float sum = scores.raise(base);
#pragma unroll
      for (int i = 0; i < kSplitBlocks; ++i) {
        const float total = __fmaf_rn(stats.sum, of_block(rescale, i), of_block(sum, i));
        if (i < blocks) stats.sum = total;
      }
      scores.store(weights_of(row) + block * kBlock);
      if (lane % BlockScores::kLanes == 0) shared.rescale[block][row] = rescale;
      if (lane == 0) put(row, stats);
    }
  }

  __device__ static float of_block(float mine, int block) {
    return __shfl_sync(tile::kAllLanes, mine, block * BlockScores::kLanes);
  }
};

extern __shared__ __align__(128) unsigned char ring_shared[];

// Blocks per tile and KV head that take splits in turns.
template <class Tile>
__global__ __launch_bounds__(kThreads) void splits(Params params) {
  auto& shared = *reinterpret_cast<Splits::Shared*>(ring_shared);
  ptx::griddepcontrol_launch_dependents();
  const uint4 tile = params.tiles[blockIdx.x];
  Splits stage(params, shared, tile, blockIdx.y, blockIdx.z, gridDim.z);
  // A block without a split need not wait: that of the first one does.
  if (stage.split * kSplit > stage.last) return;
  stage.init();
  stage.ask<false>();
  ptx::griddepcontrol_wait();  // what earlier steps have written is under way
  stage.ask_written();
  stage.load(shared.query);
  __syncthreads();  // queries are written, barriers can be waited for
  const size_t values = static_cast<size_t>(params.places) * HEADS * kSplits * HEAD_DIM;
  auto* stats = reinterpret_cast<Stats*>(params.partial + values);
  int items = 0;
#pragma unroll 1
  for (int split = stage.split; split * kSplit <= stage.last; split += gridDim.z) {
    const auto place = [&](int row) { return stage.head_of(row, tile.z) * kSplits + split; };
    stage.run(split, items, [&](int row, const Stats& of) { stats[place(row)] = of; });
    stage.for_each([&](int t, int d, int half, int row, int dim) {
      *reinterpret_cast<float2*>(params.partial + place(row) * HEAD_DIM + dim) = {
          stage.part[t][d][2 * half], stage.part[t][d][2 * half + 1]};
    });
    items += Splits::kItems;
  }
}

// Splits that are asked for together when they are merged.
inline constexpr int kMergedAtOnce = 32;

// Merges the splits of a tile's rows of one head, a thread per dimension.
template <class Tile>
__global__ __launch_bounds__(HEAD_DIM) void merge_splits(Params params) {
  ptx::griddepcontrol_launch_dependents();
  const uint4 tile = params.tiles[blockIdx.x];
  int count = params.positions[tile.x] / kSplit + 1;
  ptx::griddepcontrol_wait();
  const size_t values = static_cast<size_t>(params.places) * HEADS * kSplits * HEAD_DIM;
  for (unsigned i = 0; i < tile.y; ++i) {
    const size_t head = static_cast<size_t>(tile.x + i) * HEADS + blockIdx.y;
    const size_t place = static_cast<size_t>(tile.z + i) * HEADS + blockIdx.y;
    if (i != 0) count = params.positions[tile.x + i] / kSplit + 1;
    const auto* stats = reinterpret_cast<const Stats*>(params.partial + values) + place * kSplits;
    const float* parts = params.partial + place * kSplits * HEAD_DIM + threadIdx.x;
    const float gate = tile::sigmoid(*gates_of(params, head, threadIdx.x));
    Stats total{-INFINITY, 0.0f};
    float sum = 0.0f;
#pragma unroll 1
    for (int first = 0; first < count; first += kMergedAtOnce) {
      Stats split[kMergedAtOnce];
      float part[kMergedAtOnce];
#pragma unroll
      for (int j = 0; j < kMergedAtOnce; ++j) {
        if (first + j >= count) break;
        split[j] = stats[first + j];
        part[j] = parts[static_cast<size_t>(first + j) * HEAD_DIM];
      }
#pragma unroll
      for (int j = 0; j < kMergedAtOnce; ++j) {
        if (first + j >= count) break;
        const Merge merge = Merge::of(total, split[j]);
        sum = merge.apply(sum, part[j]);
      }
    }
    params.out[head * HEAD_DIM + threadIdx.x] = sum / total.sum * gate;
  }
}

// Tiles of up to `Queries<1>::kTokens` tokens.
template <class Tile>
cudaError_t launch_splits(const Params& params, unsigned count, cudaStream_t stream) {
  // The same blocks whatever the context, so that a recorded step can be replayed.
  const unsigned turns = max(1u, min(unsigned{kSplits}, kBlocksWanted / (count * KV_HEADS)));
  const Launch shape{count, kThreads, sizeof(Splits::Shared), KV_HEADS, turns};
  const cudaError_t failed = launch_chained(splits<Tile>, shape, stream, params);
  if (failed != cudaSuccess) return failed;
  return launch_chained(merge_splits<Tile>, {count, HEAD_DIM, 0, HEADS}, stream, params);
}

}  // namespace atlas::attend
