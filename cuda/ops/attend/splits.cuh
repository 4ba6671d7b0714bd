// Attention of few rows: each block takes some consecutive splits of a sequence, then a part of
// their merging.
//
// Bulk copies bring pages into a ring, unchanged: those that earlier steps wrote are requested
// before the wait for the previous kernel, the next split's keys while this one's values are mixed.
// A split's positions are scored together, so warps meet three times a split. The code is kept
// small: few rows run most of it once, and instructions are read from memory as keys are.
#pragma once

#include <type_traits>

#include "ops/attend/merge.cuh"
#include "ops/attend/queries.cuh"

namespace atlas::attend {

inline constexpr int kSplitBlocks = kSplit / kBlock;

static_assert(kSplitBlocks * BlockScores::kLanes == tile::kWarpLanes, "a warp has a split's row");

// Factor of queries that are multiplied with FP8's bits, which are 2^-120 of their numbers: sums
// stay within F32, and queries below 2^28 within bf16.
inline constexpr float kQueryFactor = tile::kFp8Pages ? 0x1p100f : 1.0f;
// Exponent by which scores of FP8 are too small, apart from their position's own exponent.
inline constexpr int kScoreExponent = 120 - 100;

// Power of two by which a position's scores are multiplied, from its stored FP8 exponent.
__device__ inline float score_factor(unsigned exponent) {
  const bool is_number = exponent <= tile::kFp8ExponentMax;
  return is_number ? __uint_as_float((exponent + kScoreExponent) << 23) : INFINITY;
}

// Power of two by which a position's weights are multiplied, 2^(exponent - 127 + 120), as bf16;
// infinity for a position that is NaN.
__device__ inline unsigned weight_factor(unsigned exponent) { return (exponent + 120) << 7; }

// FP8 exponents of a row's own key and value; empty for bf16 pages.
template <bool kFp8>
struct OwnExponents {
  unsigned own_exponent[2];
};
template <>
struct OwnExponents<false> {};

// Ring of `kSlots` blocks of keys or values that are being copied or used.
template <class A, int kSlots>
struct RingStorage : OwnExponents<tile::kFp8Pages> {
  static constexpr int kRows = Queries<A, 1>::kRows;
  // Pitch of scores, in floats; weights overwrite the scores of their row.
  static constexpr int kPitch = kSplit + 4;

  alignas(128) unsigned char ring[kSlots][tile::kHeadBytes<A>];
  bf16 query[kRows][Heads<A>::kPadded];
  float score[kRows][kPitch];
  float rescale[kSplitBlocks][kRows];
  Stats stats[kRows];     // of the latest split, in the block of the first splits
  // Key and value of the row's own position if `kStores`, FP8 in the order of its strips.
  alignas(16) tile::PageNumber own[2][A::kHeadDim];
  unsigned long long full[kSlots];
};

// Number of slots of a ring: one position in all slots takes the bytes of `elements` BF16 elements,
// whatever a head's width and format.
template <class A>
constexpr int slots_of(int elements) {
  return (tile::kFp8Pages ? 2 : 1) * elements / A::kHeadDim;
}
template <class A>
inline constexpr int kManySlots = slots_of<A>(6 * 256);
template <class A>
inline constexpr int kFewSlots = slots_of<A>(2 * 256);
// Slots of the ring in each of two blocks on one SM.
template <class A>
inline constexpr int kPairSlots = slots_of<A>(5 * 128);
// Shared memory that the driver reserves for each block, bytes.
inline constexpr int kBlockBytes = 1024;
// Whether an SM may run two blocks, one of which works while the other waits at a barrier. Wide
// heads have no registers for a second block.
template <class A>
inline constexpr bool kHasPairs =
    A::kHeadDim <= 128 && 2 * sizeof(RingStorage<A, kPairSlots<A>>) + kBlockBytes <=
                              target::SHARED_BYTES_PER_BLOCK;
template <class A, int kOfSm>
inline constexpr int kSlots =
    kOfSm == 2 ? kPairSlots<A>
    : sizeof(RingStorage<A, kManySlots<A>>) <= target::SHARED_BYTES_PER_BLOCK ? kManySlots<A>
                                                                              : kFewSlots<A>;
// Blocks of positions that are scored or mixed between two barriers.
template <int kSlotCount>
inline constexpr int kTogether = kSlotCount < kSplitBlocks ? kSlotCount : kSplitBlocks;

// Splits of few rows, as one block of threads computes them. Items of the ring are the blocks of a
// split's keys, then of its values, split by split; only a sequence's last split has fewer blocks.
// With `kStores` a tile is one row, and the kernel computes the key and value of the last position
// itself: these are never copied from memory. An SM runs `kOfSm` such blocks.
template <class A, bool kStores, int kOfSm>
struct Splits : Queries<A, 1> {
  using Base = Queries<A, 1>;
  using Shared = RingStorage<A, attend::kSlots<A, kOfSm>>;
  using Base::clear;
  using Base::first;
  using Base::kGroup;
  using Base::kHeadDim;
  using Base::kRows;
  using Base::kv_head;
  using Base::last;
  using Base::mix;
  using Base::params;
  using Base::score;
  using Base::tokens;
  static constexpr int kSlots = attend::kSlots<A, kOfSm>;
  static constexpr int kTogether = attend::kTogether<kSlots>;
  static constexpr int kValueVectors = Heads<A>::kValueVectors;
  // Columns that a bulk copy brings for a run of positions.
  static constexpr int kColumns = tile::kFp8Pages ? tile::kFp8Columns : tile::kPageColumns;
  static constexpr int kStrips = kHeadDim / kColumns;
  static constexpr int kValueStrips = A::kValueDim / kColumns;
  static_assert(kStrips < tile::kWarpLanes || !tile::kFp8Pages, "a lane asks for exponents");
  static_assert(kStrips <= tile::kWarpLanes, "a lane asks for a strip");
  static_assert(kSlots > 0, "the ring has memory for a block");
  static_assert(kSlots >= kSplitBlocks || !tile::kFp8Pages, "weights need a split's exponents");
  static_assert(kFits<sizeof(Shared)>);
  static constexpr int kItems = 2 * kSplitBlocks;  // of a whole split
  // Items that may be requested together, one a lane.
  static constexpr int kAsked = kSlots < tile::kWarpLanes ? kSlots : tile::kWarpLanes;
  // Most blocks of positions, in whole splits, that `kAsked` items span.
  static constexpr int kAskedBlocks = ((kAsked - 2 + kItems) / kItems + 1) * kSplitBlocks;
  static_assert(kAskedBlocks <= tile::kWarpLanes, "pages of all of them are known");

  Shared& shared;
  const int split;    // number of the first split
  const int end;      // one more than the last split
  const int written;  // first position that this step writes
  const unsigned table = params.tables[first];
  int asked = 0;      // items requested so far
  int free = kSlots;  // items read so far, plus kSlots
  // First of kWarpLanes blocks whose page numbers are in registers, one a lane, for several splits.
  int known = -tile::kWarpLanes;
  unsigned page_known = 0;

  __device__ Splits(const Params& params, Shared& shared, const uint4& tile, const Share& share)
      : Base(params, tile.x, tile.y, blockIdx.y),
        shared(shared),
        split(share.begin()),
        end(share.end()),
        written(tile.w) {}

  __device__ int blocks_of(int of) const {
    return min(kSplitBlocks, (last - of * kSplit) / kBlock + 1);
  }

  __device__ void init() const {
    if (!asks() || lane() != 0) return;
    for (auto& full : shared.full) ptx::mbarrier_init(&full);
    ptx::mbarrier_init_fence();
  }

  // Block of positions whose keys or values an item of the ring has.
  struct Item {
    int start;  // first position of the item; none if after the last one
    bool is_value;
  };

  __device__ Item item_of(int item) const {
    const int of = split + item / kItems, in_split = item % kItems;
    if (of >= end) return {last + 1, false};
    const int blocks = blocks_of(of);
    const bool is_value = in_split >= blocks;
    const int block = is_value ? in_split - blocks : in_split;
    return {block < blocks ? of * kSplit + block * kBlock : last + 1, is_value};
  }

  // Number of an item's positions that are in device memory when the item is copied.
  __device__ int stored(const Item& at) const {
    return min(kBlock, (kStores ? written : last + 1) - at.start);
  }

  // Whether this warp requests copies: the last one, which has the fewest rows of weights.
  __device__ static bool asks() { return threadIdx.x / tile::kWarpLanes == kWarps - 1; }

  // Loads the page numbers of blocks from `from` on, a split's first one, unless all before `end`
  // are known; by all lanes.
  __device__ void know(int from, int end) {
    if (from >= known && end <= known + tile::kWarpLanes) return;
    known = from;
    page_known = params.pages[table + min(known + lane(), last / PAGE)];
  }

  // Loaded page number of block `block`; to be called by all lanes, each with a block of its own.
  __device__ unsigned page_of(int block) const {
    return __shfl_sync(tile::kAllLanes, page_known, block - known);
  }

  __device__ static int lane() { return static_cast<int>(threadIdx.x % tile::kWarpLanes); }

  // Requests an item's positions `begin .. end`: all in one copy, or a strip a lane. The copy that
  // reaches the end of an FP8 item also brings the exponents of all its positions.
  __device__ void copy(int item, const Item& at, int begin, int end) {
    constexpr int kWidth = kColumns * sizeof(tile::PageNumber);
    if (begin >= end) return;
    const int block_of_split = at.start / kSplit * kSplitBlocks;
    know(block_of_split, block_of_split + kSplitBlocks);
    const unsigned page = page_of(at.start / PAGE);
    const bool is_whole = end - begin == PAGE;
    const int strips = is_whole ? 1 : (at.is_value ? kValueStrips : kStrips) + tile::kFp8Pages;
    if (lane() >= strips) return;
    int from = (lane() * PAGE + begin) * kWidth, bytes = (end - begin) * kWidth;
    if (is_whole) {
      bytes = at.is_value ? tile::kValueBytes<A> : tile::kHeadBytes<A>;
    } else if (tile::kFp8Pages && lane() == strips - 1) {
      if (end < stored(at)) return;
      from = tile::kExponentsAt<A>, bytes = PAGE;
    }
    const size_t block = tile::head_at<A>(page, params.page_stride, kv_head, at.is_value);
    ptx::copy_bulk_shared(shared.ring[item % kSlots] + from, params.cache + block + from, bytes,
                          &shared.full[item % kSlots]);
  }

  // Bytes of all copies of an item.
  __device__ unsigned bytes(const Item& at) const {
    const int count = max(0, stored(at));
    return count * ((at.is_value ? tile::kValueBytes<A> : tile::kHeadBytes<A>) / PAGE) +
           (tile::kFp8Pages && count > 0 ? PAGE - count : 0);
  }

  // Requests items from `asked` on that are completely before position `end`, one a lane; returns
  // the number of requested items.
  __device__ int ask_whole(int end) {
    const int from = (split + asked / kItems) * kSplitBlocks;
    know(from, from + kAskedBlocks);
    const int item = asked + lane();
    const Item at = item_of(item);
    const bool is_whole = item < free && at.start + kBlock <= end;
    const unsigned others = ~__ballot_sync(tile::kAllLanes, is_whole);
    const int count = others == 0 ? tile::kWarpLanes : __ffs(others) - 1;
    const unsigned page = page_of(min(at.start / PAGE, from + kAskedBlocks - 1));
    if (lane() < count) {
      const unsigned bytes = at.is_value ? tile::kValueBytes<A> : tile::kHeadBytes<A>;
      auto* full = &shared.full[item % kSlots];
      ptx::mbarrier_expect(full, bytes);
      const size_t block = tile::head_at<A>(page, params.page_stride, kv_head, at.is_value);
      ptx::copy_bulk_shared(shared.ring[item % kSlots], params.cache + block, bytes, full);
    }
    return count;
  }

  // Fills the ring; by one warp. No position of this step is requested before the wait.
  template <bool kWaited>
  __device__ void ask() {
    if (!asks()) return;
    const int end = kWaited && !kStores ? last + 1 : written;
#pragma unroll 1
    while (asked < free) {
      const int count = ask_whole(end);
      asked += count;
      if (count > 0) continue;
      const Item at = item_of(asked);
      const int live = min(kBlock, last + 1 - at.start), before = min(live, written - at.start);
      if (live <= 0) return;
      unsigned char* slot = shared.ring[asked % kSlots];
      if (!tile::kFp8Pages && at.is_value) clear_after(reinterpret_cast<bf16*>(slot), live);
      if (kStores && kWaited && before < live) put_own(slot, before, at.is_value);
      __syncwarp();  // zeros and own numbers are written: readers see them after the barrier
      if (lane() == 0) ptx::mbarrier_expect(&shared.full[asked % kSlots], bytes(at));
      __syncwarp();  // the bytes are expected
      copy(asked, at, 0, kWaited && !kStores ? live : before);
      ++asked;
    }
  }

  // Requests this step's positions of the items that were requested before the wait.
  __device__ void ask_written() {
    if (!asks()) return;
#pragma unroll 1
    for (int item = 0; item < asked; ++item) {
      const Item at = item_of(item);
      copy(item, at, max(0, written - at.start), min(kBlock, last + 1 - at.start));
    }
  }

  // Replaces values of positions from `live` on by zeros: zero times memory that was never written
  // may be NaN.
  __device__ static void clear_after(bf16* block, int live) {
#pragma unroll 1
    for (int item = live * kValueVectors + lane(); item < kBlock * kValueVectors;
         item += tile::kWarpLanes) {
      const int at = tile::page_at(item / kValueVectors, item % kValueVectors * Bf16x8::kElements);
      *reinterpret_cast<Bf16x8*>(block + at) = Bf16x8::zero();
    }
  }

  // Number of the item with the last position's key or value; negative if another block has it.
  __device__ int last_item(bool is_value) const {
    const int of = last / kSplit, blocks = blocks_of(of);
    if (of >= end) return -1;
    return (of - split) * kItems + (is_value ? 2 * blocks : blocks) - 1;
  }

  // Address of an element of the last position's key or value, before `ask<true>`: in the ring if
  // the item has been requested.
  __device__ tile::PageNumber* own_at(int item, bool is_value, int dim) const {
    if (item >= kSlots) return shared.own[is_value] + own_offset(dim);
    return reinterpret_cast<tile::PageNumber*>(shared.ring[item]) + page_offset(last % PAGE, dim);
  }

  __device__ static int own_offset(int dim) {
    return tile::kFp8Pages ? dim / kColumns * kColumns + tile::fp8_column(dim) : dim;
  }

  __device__ static int page_offset(int position, int dim) {
    return tile::kFp8Pages ? tile::fp8_at(position, dim) : tile::page_at(position, dim);
  }

  __device__ void put_own_exponent(bool is_value, int exponent) const {
    if constexpr (tile::kFp8Pages) shared.own_exponent[is_value] = exponent;
  }

  __device__ void put_own(unsigned char* slot, int position, bool is_value) const {
    constexpr int kElements = sizeof(uint4) / sizeof(tile::PageNumber);
    auto* block = reinterpret_cast<tile::PageNumber*>(slot);
    const int width = is_value ? A::kValueDim : kHeadDim;
    for (int dim = lane() * kElements; dim < width; dim += tile::kWarpLanes * kElements) {
      *reinterpret_cast<uint4*>(block + page_offset(position, dim)) =
          *reinterpret_cast<const uint4*>(shared.own[is_value] + dim);
    }
  }

  __device__ unsigned char* await(int item) const {
    ptx::mbarrier_wait(&shared.full[item % kSlots], item / kSlots % 2);
    return shared.ring[item % kSlots];
  }

  // Requests later items; a barrier must have shown that all items before `item` were read.
  __device__ void release(int item) {
    free = item + kSlots;
    ask<true>();
  }

  // Stored FP8 exponents of eight positions from `start` on, a byte each; undefined for positions
  // that were never written.
  __device__ uint2 exponents(const unsigned char* slot, int start, bool is_value) const {
    uint2 of = *reinterpret_cast<const uint2*>(slot + tile::kExponentsAt<A> + start % PAGE);
    if constexpr (kStores && tile::kFp8Pages) {
      const int own = last - start;
      if (own >= 0 && own < 8) {
        const unsigned mask = 0xffu << own % 4 * 8;
        const unsigned byte = shared.own_exponent[is_value] << own % 4 * 8;
        if (own < 4) of.x = (of.x & ~mask) | byte;
        if (own >= 4) of.y = (of.y & ~mask) | byte;
      }
    }
    return of;
  }

  // Statistics of a row in the split that ran last, if `put` has stored them in `shared`.
  __device__ Stats stats(int row) const { return shared.stats[row]; }

  // Computes the attention of split `of`; `items` is the number of the ring's item with the split's
  // first keys. `put(row, stats)` receives each row's maximum and sum; the member `part` has the
  // weighted sums of values.
  template <class Put>
  __device__ void run(int of, int items, const Put& put) {
    const int blocks = blocks_of(of);
    // The row's own key may have been written by lanes of one warp: a barrier makes it visible.
    const bool is_put = kStores && of == last / kSplit && items + blocks > kSlots;
    if (is_put) __syncthreads();
#pragma unroll 1
    for (int first = 0; first < blocks; first += kTogether) {
      const int live = min(kTogether, blocks - first);
      score_blocks(of * kSplit, first, live, items + first);
      __syncthreads();  // scores are written, keys read
      release(items + first + live);
    }
    weigh(of * kSplit, blocks, items + blocks, put);
    clear();
    __syncthreads();  // weights are written
    items += blocks;
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      mix_block(of * kSplit, block, items + block);
      if ((block + 1) % kTogether != 0 && block + 1 < blocks) continue;
      __syncthreads();  // values, and at last weights, are read
      release(items + block + 1);
    }
  }

  __device__ void score_blocks(int begin, int first, int live, int item) const {
    const unsigned char* keys[kTogether];
    float factors[kTogether][2];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (i >= live) continue;
      keys[i] = await(item + i);
      if constexpr (tile::kFp8Pages) {
        const int position = threadIdx.x / tile::kWarpLanes * 8;
        const uint2 of = exponents(keys[i], begin + (first + i) * kBlock + position, false);
        score_factors(factors[i], of);
      }
    }
    const auto key = [&](unsigned (&to)[4], int i, int position, int dim) {
      if constexpr (tile::kFp8Pages) {
        tile::fp8_keys<PAGE>(to, keys[i], position, dim);
      } else {
        Base::load_keys(to, position, dim, [&](int position, int dim) {
          return reinterpret_cast<const bf16*>(keys[i]) + tile::page_at(position, dim);
        });
      }
    };
    const auto put = [&](int i, int row, int column, float score) {
      if constexpr (tile::kFp8Pages) score *= factors[i][column % 2];
      shared.score[row][(first + i) * kBlock + column] = score;
    };
    this->template score<kTogether>(shared.query, begin + first * kBlock, live, key, put);
  }

  // Powers of two for this thread's two columns of scores, from a warp's eight exponents.
  __device__ static void score_factors(float (&to)[2], const uint2& exponents) {
    const int column = threadIdx.x % 4 * 2;
    const unsigned word = column < 4 ? exponents.x : exponents.y;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to[i] = score_factor(word >> (column % 4 + i) * 8 & 0xff);
    }
  }

  __device__ void mix_block(int begin, int block, int item) {
    unsigned char* values = await(item);
    const auto weight = [&](int row, int position) {
      return weights_of(row) + block * kBlock + position;
    };
    if constexpr (tile::kFp8Pages) {
      const auto value = [&](unsigned (&to)[4], int position, int dim) {
        tile::fp8_values<PAGE>(to, values, position, dim);
      };
      return mix(shared.rescale[block], weight, value);
    }
    const auto value_at = [&](int position, int dim) {
      return reinterpret_cast<bf16*>(values) + tile::page_at(position, dim);
    };
    const auto value = [&](unsigned (&to)[4], int position, int dim) {
      Base::load_values(to, position, dim, value_at);
    };
    int infinite = last + 1;
    // With `kStores` the only row sees every position.
    if constexpr (!kStores) infinite = this->clear_infinite(begin + block * kBlock, value_at);
    mix(shared.rescale[block], weight, value);
    if constexpr (!kStores) this->spoil(infinite);
  }

  __device__ bf16* weights_of(int row) const {
    return reinterpret_cast<bf16*>(shared.score[row]);
  }

  // Multiplies weights of eight positions from `start` on by the powers of two of their FP8 values;
  // the products fit bf16, as weights are at most 1.
  __device__ void scale_weights(bf16* weights, const uint2& exponents, int row, int start) const {
    auto& of = *reinterpret_cast<Bf16x8*>(weights);
    // 2^(exponent - 127 + 120) of two positions as bf16.
    constexpr unsigned kBoth = 0x00010001u;
    const unsigned pairs[4] = {
        __byte_perm(exponents.x, 0, 0x4140), __byte_perm(exponents.x, 0, 0x4342),
        __byte_perm(exponents.y, 0, 0x4140), __byte_perm(exponents.y, 0, 0x4342)};
    bool are_numbers = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool is_number = (pairs[i] & 0xffff) <= tile::kFp8ExponentMax &&
                             pairs[i] >> 16 <= tile::kFp8ExponentMax;
      are_numbers = are_numbers && is_number;
      const bf16x2 factor{(pairs[i] + 120 * kBoth) << 7};
      if (is_number) of.pair[i] = multiply(of.pair[i], factor);
    }
    if (are_numbers) return;
    // Positions that are not finite make NaN of the rows that see them, and of no other rows.
    const auto position = static_cast<int>(params.positions[first + row / kGroup]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const unsigned pair = pairs[i / 2];
      const unsigned exponent = pair >> i % 2 * 16 & 0xff, other = pair >> (i + 1) % 2 * 16 & 0xff;
      const bool is_number = exponent <= tile::kFp8ExponentMax;
      if (!is_number) {
        weights[i] = to_bf16(Base::sees(position, start + i) ? NAN : 0.0f);
      } else if (other > tile::kFp8ExponentMax) {
        const float weight = __uint_as_float(static_cast<unsigned>(weights[i].bits) << 16);
        weights[i] = to_bf16(weight * __uint_as_float((exponent + 120) << 23));
      }
    }
  }

  // Turns a split's scores into weights: a warp has a row, eight lanes a block. `item` is the item
  // of the ring with the split's first values.
  template <class Put>
  __device__ void weigh(int begin, int blocks, int item, const Put& put) const {
    const int block = lane() / BlockScores::kLanes;
#pragma unroll 1
    for (int row = threadIdx.x / tile::kWarpLanes; row < tokens * kGroup; row += kWarps) {
      BlockScores scores;
      scores.load(shared.score[row] + block * kBlock);
      const float most = scores.largest(), own = block < blocks ? most : -INFINITY;
      __syncwarp();  // the row's scores are read
      // Largest score of the blocks up to and including this lane's, and of the blocks before.
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
      if constexpr (tile::kFp8Pages) {
        if (block < blocks) {
          const int column = lane() % BlockScores::kLanes * 8;
          const int start = begin + block * kBlock + column;
          const uint2 of = exponents(await(item + block), start, true);
          scale_weights(weights_of(row) + block * kBlock + column, of, row, start);
        }
      }
      if (lane() % BlockScores::kLanes == 0) shared.rescale[block][row] = rescale;
      if (lane() == 0) put(row, stats);
    }
  }

  __device__ static float of_block(float mine, int block) {
    return __shfl_sync(tile::kAllLanes, mine, block * BlockScores::kLanes);
  }
};

// Placeholder for queries in memory, which need no constants in shared memory.
struct NoConstants {};

// Query rows that an earlier kernel has normed and rotated; keys and values are in the cache.
template <class A, int kOfSm>
struct Stored {
  using Stage = Splits<A, false, kOfSm>;

  __device__ Stored(const NoConstants&, const Stage&) {}

  // Loads the queries, after the wait for earlier kernels; a barrier must follow.
  __device__ void take(Stage& stage) {
    stage.ask_written();
    stage.load(stage.shared.query, kQueryFactor);
  }
};

extern __shared__ __align__(128) unsigned char ring_shared[];

// Most splits that the windows of a tile of few rows span, wherever they begin.
template <class A>
inline constexpr int kWindowSplits =
    (A::kWindow + Queries<A, 1>::kTokens + kSplit - 3) / kSplit + 1;
// Most splits that a tile of few rows sees.
template <class A>
inline constexpr int kSplitsSeen =
    A::kWindow != 0 && kWindowSplits<A> < kSplits ? kWindowSplits<A> : kSplits;

// Few rows' attention: blocks of a tile and KV head share the splits. Several blocks wait for each
// other, so all blocks of the grid must be on the GPU at once.
template <class Tile, class A, template <class, int> class From, int kOfSm, class Constants>
__global__ __launch_bounds__(kThreads, kOfSm) void splits(Params params, Constants constants) {
  using Source = From<A, kOfSm>;
  using Stage = typename Source::Stage;
  auto& shared = *reinterpret_cast<typename Stage::Shared*>(ring_shared);
  ptx::griddepcontrol_launch_dependents();
  const uint4 tile = params.tiles[blockIdx.x];
  if (tile.y == 0) return;
  // Whole splits are loaded: positions that no row sees change no bits.
  const int begin = first_seen<A>(params, tile.x) / kSplit;
  const int count = static_cast<int>(params.positions[tile.x + tile.y - 1]) / kSplit + 1 - begin;
  const Share share{begin, count, min(static_cast<int>(gridDim.z), count),
                    static_cast<int>(blockIdx.z)};
  // Blocks without a split need not wait for the kernel before: the first block does.
  if (share.block >= share.blocks) return;
  Stage stage(params, shared, tile, share);
  stage.init();
  stage.template ask<false>();
  Source source(constants, stage);
  ptx::griddepcontrol_wait();  // after positions of earlier steps were requested
  source.take(stage);
  __syncthreads();  // queries are written, barriers are initialised
  const bool is_first = share.block == 0;
  const Partial<A> partial(params);
  Totals<A, 1> totals;
  int split = stage.split, items = 0;
  const auto partial_row = [&](int row) { return stage.head_of(row, tile.z) * kSplits + split; };
#pragma unroll 1
  for (; split < stage.end; ++split, items += Stage::kItems) {
    stage.run(split, items, [&](int row, const Stats& of) {
      *(is_first ? &shared.stats[row] : &partial.stats[partial_row(row)]) = of;
    });
    if (is_first) {
      totals.take(stage);
      continue;
    }
    stage.for_each([&](int, int d, int half, int row, int dim) {
      *reinterpret_cast<float2*>(partial.mixes + partial_row(row) * A::kValueDim + dim) = {
          stage.part[0][d][2 * half], stage.part[0][d][2 * half + 1]};
    });
  }
  if (share.blocks == 1) return totals.write(stage);
  split = stage.end - 1;
  if (is_first) {
    stage.for_each([&](int, int d, int half, int row, int dim) {
      if (dim == 0) partial.stats[partial_row(row)] = totals.stats[0][half];
      *reinterpret_cast<float2*>(partial.mixes + partial_row(row) * A::kValueDim + dim) = {
          totals.sums[0][d][2 * half], totals.sums[0][d][2 * half + 1]};
    });
  }
  const auto blocks = static_cast<unsigned>(share.blocks);
  tile::Meeting meeting{params.arrived + blockIdx.x * Heads<A>::kGroups + blockIdx.y, blocks,
                        blocks};
  meeting.meet(true, true);
  auto& merging = *reinterpret_cast<MergeStorage<sizeof(shared.ring)>*>(ring_shared);
  merge_heads<A>(params, merging, tile, share);
  meeting.leave();
}

// Launches `tiles` of up to `Queries<A, 1>::kTokens` tokens; one block each if `partial` has no
// space for the results of splits.
template <class Tile, class A, template <class, int> class From, class Constants>
cudaError_t launch_splits(const Params& params, const Constants& constants, unsigned tiles,
                          cudaStream_t stream) {
  // The number of blocks does not depend on the context, so that a recorded graph can be replayed.
  const unsigned most = kSplitsSeen<A>;
  constexpr unsigned kGroups = Heads<A>::kGroups, kOfSm = kHasPairs<A> ? 2 : 1;
  if (tiles == 0) return cudaSuccess;
  const unsigned shares = kOfSm * target::SMS / (tiles * kGroups);
  const unsigned blocks_each = params.partial_rows == 0 ? 1 : max(1u, min(most, shares));
  const unsigned blocks = tiles * kGroups * blocks_each;
  const cudaError_t refused = blocks_each == 1 ? cudaSuccess : require_coresident(blocks, kOfSm);
  if (refused != cudaSuccess) return refused;
  const auto launch = [&](auto of_sm) {
    constexpr size_t kBytes = sizeof(RingStorage<A, kSlots<A, of_sm>>);
    return launch_chained(splits<Tile, A, From, of_sm, Constants>,
                          {tiles, kThreads, kBytes, kGroups, blocks_each}, stream, params,
                          constants);
  };
  if constexpr (kHasPairs<A>) {
    if (blocks > target::SMS) return launch(std::integral_constant<int, 2>{});
  }
  return launch(std::integral_constant<int, 1>{});
}

// Launches a step's attention: `Kernel::cells(params, count, tokens, stream)` takes tiles of whole
// cells, of up to `tokens` rows; other rows go by splits.
template <class Tile, class A, class Kernel>
struct CellsThenSplits {
  static cudaError_t launch(const float* q, const unsigned char* cache, const unsigned* positions,
                            const unsigned* tables, const unsigned* pages, const unsigned* cells,
                            const unsigned* tiles, const float* sinks, float* partial,
                            unsigned* arrived, float* out, unsigned page_stride, unsigned,
                            unsigned cell_count, unsigned cell_tokens, unsigned partial_rows,
                            unsigned tile_count, unsigned rounded, cudaStream_t stream) {
    Params params{q,
                  cache,
                  page_stride,
                  positions,
                  tables,
                  pages,
                  reinterpret_cast<const uint4*>(cells),
                  partial,
                  arrived,
                  out,
                  static_cast<int>(partial_rows),
                  sinks,
                  rounded != 0};
    // Kernels of cells are compiled for one type of `out`: F16 if `ATTEND_ROUNDS`.
    if (cell_count > 0 && params.rounded != target::ATTEND_ROUNDS) return cudaErrorInvalidValue;
    const cudaError_t failed = Kernel::cells(params, cell_count, cell_tokens, stream);
    if (failed != cudaSuccess) return failed;
    params.tiles = reinterpret_cast<const uint4*>(tiles);
    return launch_splits<Tile, A, Stored>(params, NoConstants{}, tile_count, stream);
  }
};

}  // namespace atlas::attend
