// Implements: Ops::attend
// Match:      pages of 64 positions of bf16 or FP8, mixes of up to 256 elements; operands bf16,
//             scores and sums F32
// Bound by:   tensor instructions
// Sync:       a barrier of bulk copies per block of keys, and of values; chained launch
//
// A prompt's rows in whole cells form tiles, all query heads of a KV head by token. A warp has 16
// of a tile's rows and exchanges no results: its queries, scores and mixes are in registers. Bulk
// copies bring keys and values block by block into a ring, requested by the warps in turn.
// Positions that a row does not see change none of its bits. Other rows go by splits, as in decode.
#pragma once

#include "ops/attend/splits.cuh"
#include "ops/attend/tile_rows.cuh"

namespace atlas::attend {

// Positions of a block: few for wide heads, whose mixes take most registers.
template <class A>
inline constexpr int kWarpPositions = A::kValueDim <= 128 ? 64 : 32;
// Whether queries fit in registers beside mixes; otherwise lanes' operands are in shared memory.
template <class A>
inline constexpr bool kKeepsQueries = A::kHeadDim <= 256;
// Most blocks in the ring.
inline constexpr int kWarpSlotsMax = 8;

// Keys or values of a block in shared memory, in a page's layout with fewer positions.
template <class A>
struct WarpBlock {
  static constexpr int kPositions = kWarpPositions<A>;
  // Columns that a bulk copy brings for a run of positions.
  static constexpr int kColumns = tile::kFp8Pages ? tile::kFp8Columns : tile::kPageColumns;
  static constexpr int kRowBytes = kColumns * sizeof(tile::PageNumber);
  static constexpr int kParts = A::kHeadDim / kColumns;
  static constexpr int kNumberBytes = A::kHeadDim * kPositions * sizeof(tile::PageNumber);
  static constexpr int kExponentBytes = tile::kFp8Pages ? kPositions : 0;
  // Items of a block: keys and values, or keys alone where values are a part of keys.
  static constexpr int kOfBlock = tile::kLatent<A> ? 1 : 2;
  static_assert(target::PAGE % kPositions == 0, "a block lies in a page");
  static_assert(kParts + tile::kFp8Pages <= tile::kWarpLanes, "a lane asks for a part");

  unsigned char bytes[(kNumberBytes + kExponentBytes + 127) / 128 * 128];

  // Address of eight bf16, permuted as in `tile::page_at`.
  __device__ const bf16* at(int position, int dim) const {
    const int part = dim / kColumns, vector = dim % kColumns / 8;
    return reinterpret_cast<const bf16*>(bytes) + (part * kPositions + position) * kColumns +
           (vector ^ position % tile::kPageVectors) * 8;
  }

  // Loads the operands of 8 keys from `position` on, 32 dimensions from `dim` on.
  __device__ void load_keys(unsigned (&to)[4], int position, int dim) const {
    const int lane = threadIdx.x % tile::kWarpLanes;
    if constexpr (tile::kFp8Pages) return tile::fp8_keys<kPositions>(to, bytes, position, dim);
    ptx::ldmatrix(to, at(position + lane % 8, dim + lane / 8 * 8));
  }

  // Loads the operands of 16 values from `position` on, 16 dimensions from `dim` on.
  __device__ void load_values(unsigned (&to)[4], int position, int dim) const {
    const int lane = threadIdx.x % tile::kWarpLanes;
    if constexpr (tile::kFp8Pages) return tile::fp8_values<kPositions>(to, bytes, position, dim);
    ptx::ldmatrix_transposed(to, at(position + lane % 16, dim + lane / 16 * 8));
  }

  // Stored FP8 exponents of two positions from `position` on.
  __device__ uchar2 exponents(int position) const {
    return *reinterpret_cast<const uchar2*>(bytes + kNumberBytes + position);
  }
};

template <class A>
using WarpQueries = unsigned[A::kHeadDim / 16][4];

template <class A, int kWarpCount>
struct alignas(128) WarpsStorage {
  static constexpr int kQueryBytes =
      kKeepsQueries<A> ? 0 : kWarpCount * tile::kWarpLanes * sizeof(WarpQueries<A>);
  // Bytes of barriers and alignment beside the ring.
  static constexpr int kBeside = 256;
  static constexpr int kAvailable = target::SHARED_BYTES_PER_BLOCK - kQueryBytes - kBeside;
  static constexpr int kFitting = kAvailable / sizeof(WarpBlock<A>);
  static constexpr int kSlots = kFitting < kWarpSlotsMax ? kFitting : kWarpSlotsMax;
  static_assert(kSlots >= 2, "one is multiplied while another comes");

  WarpBlock<A> slot[kSlots];
  uint4 query[kQueryBytes / sizeof(uint4) + 1];  // one more: C++ has no empty array
  unsigned long long full[kSlots];
  unsigned long long empty[kSlots];
};

// A warp's rows of a tile. Items of the ring are blocks of keys, each followed by its values.
template <class A, int kWarpCount>
struct WarpRows : TileRows<A, kWarpPositions<A>, 0> {
  using Base = TileRows<A, kWarpPositions<A>, 0>;
  using Block = WarpBlock<A>;
  using Shared = WarpsStorage<A, kWarpCount>;
  using Base::first;
  using Base::first_block;
  using Base::kGroup;
  using Base::kHeadDim;
  using Base::kQuery;
  using Base::kv_head;
  using Base::kValueDim;
  using Base::lane;
  using Base::last_block;
  using Base::live;
  using Base::params;
  using typename Base::Mixed;
  using typename Base::Scores;
  using typename Base::Weights;
  static constexpr int kPositions = kWarpPositions<A>;
  static constexpr int kTokens = 16 * kWarpCount / kGroup;
  static constexpr int kSlots = Shared::kSlots;
  // Items before the current one that other warps may still read when a slot is refilled.
  static constexpr int kInUse = kSlots > 3 ? 2 : 1;
  static constexpr int kAhead = kSlots - kInUse;

  Shared& shared;
  const int warp = threadIdx.x / tile::kWarpLanes;

  __device__ WarpRows(const Params& params, Shared& shared, int first, int tokens, int kv_head)
      : Base(params, first, tokens, kv_head), shared(shared) {}

  // Requests the copies of item `item`, if there is such an item, once its slot is free; by a warp.
  __device__ void bring(int item) const {
    const int block = first_block() + item / Block::kOfBlock;
    if (block > last_block()) return;
    Block& to = shared.slot[item % kSlots];
    auto* full = &shared.full[item % kSlots];
    constexpr int kInPage = target::PAGE / kPositions;
    const unsigned page = params.pages[params.tables[first] + block / kInPage];
    const unsigned char* from =
        params.cache +
        tile::head_at<A>(page, params.page_stride, kv_head, item % Block::kOfBlock);
    const int position = block % kInPage * kPositions, count = min(live(block), kPositions);
    ptx::mbarrier_wait(&shared.empty[item % kSlots], item / kSlots % 2 ^ 1);
    if (count < kPositions) clear_after(to, count);
    const unsigned bytes = count * Block::kRowBytes;
    if (lane == 0) ptx::mbarrier_expect(full, Block::kParts * bytes + Block::kExponentBytes);
    __syncwarp();  // the bytes are expected
    if (lane < Block::kParts) {
      ptx::copy_bulk_shared(to.bytes + lane * kPositions * Block::kRowBytes,
                            from + (lane * target::PAGE + position) * Block::kRowBytes, bytes,
                            full);
    } else if (tile::kFp8Pages && lane == Block::kParts) {
      ptx::copy_bulk_shared(to.bytes + Block::kNumberBytes,
                            from + tile::kExponentsAt<A> + position, Block::kExponentBytes, full);
    }
  }

  // Replaces positions from `count` on by zeros: zero times memory that was never written may be
  // NaN.
  __device__ void clear_after(Block& to, int count) const {
    constexpr int kVectors = Block::kRowBytes / kVectorBytes;  // of a part's position
    const int cleared = (kPositions - count) * kVectors;
    for (int i = lane; i < Block::kParts * cleared; i += tile::kWarpLanes) {
      const int vector = (i / cleared * kPositions + count) * kVectors + i % cleared;
      reinterpret_cast<Bf16x8*>(to.bytes)[vector] = Bf16x8::zero();
    }
    ptx::fence_shared();
    __syncwarp();  // the zeros are written
  }

  // Waits for an item; requests a later one if this warp's turn has come.
  __device__ const Block& await(int item) const {
    if (item % kWarpCount == warp) bring(item + kAhead);
    ptx::mbarrier_wait(&shared.full[item % kSlots], item / kSlots % 2);
    return shared.slot[item % kSlots];
  }

  // Marks an item as read by this warp.
  __device__ void release(int item) const {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&shared.empty[item % kSlots]);
  }

  // Address in shared memory of this lane's operands `k` of queries that do not fit in registers.
  __device__ uint4* query_at(int k) const {
    return shared.query + (warp * (kHeadDim / 16) + k) * tile::kWarpLanes + lane;
  }

  // Rounds this lane's queries to operands. Rows after the last token are zeros.
  __device__ void load_queries(WarpQueries<A>& queries) const {
    const float* from[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const size_t at = static_cast<size_t>(first + this->token(half)) * A::kHeads;
      const bool is_row = this->token(half) < this->tokens;
      from[half] = is_row ? params.q + (at + this->head(half)) * kQuery + lane % 4 * 2 : nullptr;
    }
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      unsigned operand[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float2 pair{};
        const float* row = from[i % 2];
        if (row != nullptr) pair = *reinterpret_cast<const float2*>(row + k * 16 + i / 2 * 8);
        operand[i] = to_bf16x2(pair.x * kQueryFactor, pair.y * kQueryFactor).bits;
      }
      if constexpr (kKeepsQueries<A>) {
#pragma unroll
        for (int i = 0; i < 4; ++i) queries[k][i] = operand[i];
      } else {
        *query_at(k) = {operand[0], operand[1], operand[2], operand[3]};
      }
    }
  }

  __device__ void score(Scores& scores, const WarpQueries<A>& queries, const Block& keys) const {
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; k += 2) {
      unsigned query[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (kKeepsQueries<A>) {
#pragma unroll
          for (int i = 0; i < 4; ++i) query[half][i] = queries[k + half][i];
        } else {
          const uint4 of = *query_at(k + half);
          query[half][0] = of.x, query[half][1] = of.y;
          query[half][2] = of.z, query[half][3] = of.w;
        }
      }
#pragma unroll
      for (int t = 0; t < kPositions / 8; ++t) {
        unsigned key[4];
        keys.load_keys(key, t * 8, k * 16);
        ptx::mma_bf16(scores[t], query[0], key[0], key[1]);
        ptx::mma_bf16(scores[t], query[1], key[2], key[3]);
      }
    }
    if constexpr (tile::kFp8Pages) {
#pragma unroll
      for (int t = 0; t < kPositions / 8; ++t) {
        const uchar2 of = keys.exponents(t * 8 + lane % 4 * 2);
        const float low = score_factor(of.x), high = score_factor(of.y);
        scores[t][0] *= low, scores[t][2] *= low;
        scores[t][1] *= high, scores[t][3] *= high;
      }
    }
  }

  // Multiplies weights by the powers of two of FP8 values. After the tile's last position exponents
  // are undefined: 0 stands for them.
  __device__ void scale_weights(Weights& weights, const Block& values, int block) const {
    const int left = live(block) - lane % 4 * 2;
#pragma unroll
    for (int t = 0; t < kPositions / 8; ++t) {
      const uchar2 of = values.exponents(t * 8 + lane % 4 * 2);
      const unsigned low = t * 8 < left ? of.x : 0, high = t * 8 + 1 < left ? of.y : 0;
      const bf16x2 factor{weight_factor(low) | weight_factor(high) << 16};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unsigned& pair = weights[t / 2][t % 2 * 2 + half];
        pair = multiply(bf16x2{pair}, factor).bits;
      }
    }
  }

  __device__ static void mix(Mixed& mixed, const Weights& weights, const Block& values) {
#pragma unroll
    for (int k = 0; k < kPositions / 16; ++k) {
#pragma unroll
      for (int d = 0; d < kValueDim / 8; d += 2) {
        unsigned value[4];
        values.load_values(value, k * 16, kHeadDim - kValueDim + d * 8);
        ptx::mma_bf16(mixed[d], weights[k], value[0], value[1]);
        ptx::mma_bf16(mixed[d + 1], weights[k], value[2], value[3]);
      }
    }
  }

  __device__ void go() const {
    if (warp == 0) {
#pragma unroll 1
      for (int item = 0; item < kAhead; ++item) bring(item);
    }
    WarpQueries<A> queries;
    load_queries(queries);
    Mixed mixed{};
    Stats stats[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};
    int item = 0;
#pragma unroll 1
    for (int block = first_block(); block <= last_block(); ++block, ++item) {
      Scores scores{};
      float rescale[2];
      score(scores, queries, await(item));
      if constexpr (!tile::kLatent<A>) release(item++);
      this->weigh(scores, block, stats, rescale);
      Base::scale(mixed, rescale);
      Weights weights;
      Base::pack(weights, scores);
      const Block& values = tile::kLatent<A> ? shared.slot[item % kSlots] : await(item);
      if constexpr (tile::kFp8Pages) scale_weights(weights, values, block);
      mix(mixed, weights, values);
      release(item);
    }
    // A second `Base`: addresses of results, kept beside the mixes, would take a register too many.
    Base(params, first, this->tokens, kv_head, ptx::thread_anew()).store(mixed, stats);
  }
};

// A block per KV head and tile, with 16 rows a warp; the last tiles, which see most positions,
// start first.
template <class Tile, class A>
__global__ __launch_bounds__(Tile::kThreads, 1) void warps_bf16(Params params, unsigned parts) {
  constexpr int kWarpCount = Tile::kThreads / tile::kWarpLanes;
  using Rows = WarpRows<A, kWarpCount>;
  extern __shared__ __align__(128) unsigned char warps_shared[];
  auto& shared = *reinterpret_cast<WarpsStorage<A, kWarpCount>*>(warps_shared);
  ptx::griddepcontrol_launch_dependents();
  if (threadIdx.x == 0) {
    for (auto& full : shared.full) ptx::mbarrier_init(&full);
    for (auto& empty : shared.empty) ptx::mbarrier_init(&empty, kWarpCount);
    ptx::mbarrier_init_fence();
  }
  const unsigned last = gridDim.x - 1 - blockIdx.x;
  const uint4 tile = params.tiles[last / parts];
  const int before = last % parts * Rows::kTokens, tokens = static_cast<int>(tile.y) - before;
  if (tokens <= 0) return;
  __syncthreads();  // the barriers are initialised
  ptx::griddepcontrol_wait();
  Rows(params, shared, tile.x + before, min(tokens, Rows::kTokens), blockIdx.y).go();
}

template <class Tile, class A>
struct WarpsBf16 : CellsThenSplits<Tile, A, WarpsBf16<Tile, A>> {
  using Shared = WarpsStorage<A, Tile::kThreads / tile::kWarpLanes>;
  static_assert(A::kValueDim <= 256, "a warp's mixes are up to 256 columns");
  static_assert(kFits<sizeof(Shared)>);

  static cudaError_t cells(const Params& params, unsigned count, unsigned tokens,
                           cudaStream_t stream) {
    const unsigned parts =
        blocks_for(tokens, WarpRows<A, Tile::kThreads / tile::kWarpLanes>::kTokens);
    const Launch shape{count * parts, Tile::kThreads, sizeof(Shared), Heads<A>::kGroups};
    return launch_chained(warps_bf16<Tile, A>, shape, stream, params, parts);
  }
};

}  // namespace atlas::attend
