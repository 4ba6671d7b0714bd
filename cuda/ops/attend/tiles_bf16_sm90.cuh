// Implements: Ops::attend
// Match:      pages of 64 positions of bf16 or FP8, heads of up to 256 elements; operands bf16,
//             scores and sums F32
// Bound by:   tensor instructions
// Sync:       barriers between the warp that fetches and those that multiply; chained launch
//
// A prompt's rows in whole cells form tiles of 128: all query heads of a KV head, by token. One
// warp fetches blocks of 64 positions, each a page, by one copy: single vectors come too slowly
// beside tensor instructions that read shared memory. Two warpgroups have 64 rows each and never
// meet, so that one computes weights while the other multiplies. FP8 pages are widened by the whole
// fetching warpgroup. Blocks start at position 0, or with the first one that the tile sees, so that
// a row's sums have one order. Positions that a row does not see change none of its bits. Other
// rows go by splits, as in decode.
#pragma once

#include "ops/attend/splits.cuh"
#include "ops/attend/tile_rows.cuh"
#include "tile/wgmma_sm90.cuh"

namespace atlas::attend {

// Warpgroups that multiply; another warpgroup, or a warp of it, fetches.
inline constexpr int kWideConsumers = 2;
inline constexpr int kWideThreads = (1 + kWideConsumers) * wgmma::kThreads;
inline constexpr int kWideRows = kWideConsumers * wgmma::kRows;
// Stages of keys and of values: blocks of narrow heads are used up before memory has answered.
template <class A>
inline constexpr int kWideStages = A::kHeadDim <= 128 ? 4 : 2;
// Stages of FP8 keys and values before widening, in the rest of shared memory.
template <class A>
inline constexpr int kFp8Stages = A::kHeadDim <= 128 ? 4 : 1;
// Registers that a fetching thread keeps.
inline constexpr int kFetchRegisters = tile::kFp8Pages ? 40 : 24;
// Registers of a multiplying thread, with those that fetching threads have given back.
inline constexpr int kMultiplyRegisters = tile::kFp8Pages ? 232 : 240;
// Index of keys in arrays of a block's keys and values.
inline constexpr int kKeys = 0;
// Index of values in arrays of a block's keys and values.
inline constexpr int kValues = 1;
// Barrier of the fetching threads: those of the consumers are 1 and 2.
inline constexpr int kFetchBarrier = 1 + kWideConsumers;

static_assert(kBlock == 64, "a warpgroup's scores are 64 columns");

// Tokens of a tile; rows after the last token's heads are unused.
template <class A>
inline constexpr int kWideTokens = kWideRows / Heads<A>::kGroup;

// Buffers of FP8 blocks before widening; empty for bf16 pages.
template <class A, bool kFp8>
struct Fp8Storage {
  alignas(128) unsigned char fp8[2][kFp8Stages<A>][tile::kHeadBytes<A>];
  unsigned long long fetched[2][kFp8Stages<A>];
};
template <class A>
struct Fp8Storage<A, false> {};

template <class A>
struct alignas(1024) WideStorage {
  static_assert(A::kValueDim == A::kHeadDim, "values lie beside keys: `split_kv_bf16`");
  static_assert(A::kHeadDim <= 256, "a warpgroup's sums are up to 256 columns: `split_kv_bf16`");

  bf16 query[kWideConsumers][wgmma::kRows * A::kHeadDim];
  bf16 part[2][kWideStages<A>][Heads<A>::kPage];  // keys, values
  unsigned long long full[2][kWideStages<A>];
  unsigned long long empty[2][kWideStages<A>];
  Fp8Storage<A, tile::kFp8Pages> stored;
};

// A thread's scores, later weights: its share of its warpgroup's 64 rows by 64 positions.
using Scores = float[kBlock / 8][4];
template <class A>
using Mixed = float[A::kHeadDim / 8][4];
// Queries of narrow heads are in registers: instructions with both operands in shared memory would
// take all of its bandwidth.
template <class A>
inline constexpr bool kResidentQueries = A::kHeadDim <= 128;
template <class A>
using ResidentQueries = unsigned[kResidentQueries<A> ? A::kHeadDim / 16 : 1][4];

// A tile whose rows belong to the warpgroups after the fetching one.
template <class A>
struct WideTile : TileRows<A, kBlock, wgmma::kThreads> {
  using Base = TileRows<A, kBlock, wgmma::kThreads>;
  using Shared = WideStorage<A>;

  Shared& shared;

  __device__ WideTile(const Params& params, Shared& shared, uint4 tile, int kv_head)
      : Base(params, tile.x, tile.y, kv_head), shared(shared) {}
};

// The fetching warp, or for FP8 pages the fetching warpgroup.
template <class A>
struct WideProducer : WideTile<A> {
  using Base = WideTile<A>;
  using Base::first;
  using Base::first_block;
  using Base::kv_head;
  using Base::kVectors;
  using Base::last_block;
  using Base::params;
  using Base::shared;
  using Base::start;
  using Base::tokens;
  using Base::ordinal;
  static constexpr int kBlockElements = Heads<A>::kPage;

  __device__ explicit WideProducer(const Base& tile) : Base(tile) {}

  // Starts the copy of a block's keys or values, a page of the cache, when the stage is free.
  // Positions after the tile's last one become zeros: zero times memory that was never written may
  // be NaN.
  __device__ void bring(int part, int block) const {
    const int stage = ordinal(block) % kWideStages<A>, lane = threadIdx.x;
    const unsigned* pages = params.pages + params.tables[first];
    const auto* from = reinterpret_cast<const bf16*>(
        params.cache + tile::head_at<A>(pages[block], params.page_stride, kv_head, part));
    bf16* to = shared.part[part][stage];
    unsigned long long* full = &shared.full[part][stage];
    ptx::mbarrier_wait(&shared.empty[part][stage], ordinal(block) / kWideStages<A> % 2 ^ 1);
    const int live = start + tokens - block * kBlock;
    if (live >= kBlock) {
      constexpr unsigned kBytes = kBlockElements * sizeof(bf16);
      if (lane != 0) return;
      ptx::mbarrier_expect(full, kBytes);
      ptx::copy_bulk_shared(to, from, kBytes, full);
      return;
    }
    constexpr int kParts = A::kHeadDim / tile::kPageColumns;
    for (int i = lane; i < (kBlock - live) * kVectors; i += tile::kWarpLanes) {
      const int at = tile::page_at(live + i / kVectors, i % kVectors * Bf16x8::kElements);
      *reinterpret_cast<Bf16x8*>(to + at) = Bf16x8::zero();
    }
    ptx::fence_shared();
    __syncwarp();  // the zeros are written
    if (lane != 0) return;
    const unsigned bytes = live * tile::kPageColumns * sizeof(bf16);
    ptx::mbarrier_expect(full, kParts * bytes);
    for (int i = 0; i < kParts; ++i) {
      const int at = i * kBlock * tile::kPageColumns;
      ptx::copy_bulk_shared(to + at, from + at, bytes, full);
    }
  }

  // Starts the copy of an FP8 block, if the block exists, into a free buffer; called by one thread.
  __device__ void fetch(int part, int block) const {
    if (block > last_block()) return;
    const unsigned* pages = params.pages + params.tables[first];
    const unsigned char* from =
        params.cache + tile::head_at<A>(pages[block], params.page_stride, kv_head, part);
    const int stage = ordinal(block) % kFp8Stages<A>;
    unsigned long long* fetched = &shared.stored.fetched[part][stage];
    ptx::mbarrier_expect(fetched, tile::kHeadBytes<A>);
    ptx::copy_bulk_shared(shared.stored.fp8[part][stage], from, tile::kHeadBytes<A>, fetched);
  }

  // Starts as many copies of FP8 blocks as there are buffers.
  __device__ void fetch_first() const {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < kFp8Stages<A>; ++i) {
      fetch(kKeys, first_block() + i);
      fetch(kValues, first_block() + i);
    }
  }

  // Widens a block of FP8 into its stage, and starts the copy of the block that reuses its buffer.
  __device__ void widen(int part, int block) const {
    const int stage = ordinal(block) % kWideStages<A>, from = ordinal(block) % kFp8Stages<A>;
    bf16* to = shared.part[part][stage];
    ptx::mbarrier_wait(&shared.stored.fetched[part][from], ordinal(block) / kFp8Stages<A> % 2);
    ptx::mbarrier_wait(&shared.empty[part][stage], ordinal(block) / kWideStages<A> % 2 ^ 1);
    tile::widen_block<A, wgmma::kThreads, 2>(
        shared.stored.fp8[part][from], start + tokens - block * kBlock, threadIdx.x,
        [&](int position, int dim) { return to + tile::page_at(position, dim); });
    ptx::fence_shared();
    ptx::named_sync<wgmma::kThreads>(kFetchBarrier);  // operands are written, codes read
    if (threadIdx.x != 0) return;
    ptx::mbarrier_arrive(&shared.full[part][stage]);
    fetch(part, block + kFp8Stages<A>);
  }

  // Fetches all blocks, keys one block ahead of values.
  __device__ void go() const {
    const int last = last_block();
    if constexpr (tile::kFp8Pages) fetch_first();
    take(kKeys, first_block());
    for (int block = first_block(); block <= last; ++block) {
      if (block < last) take(kKeys, block + 1);
      take(kValues, block);
    }
  }

  __device__ void take(int part, int block) const {
    if constexpr (tile::kFp8Pages) {
      widen(part, block);
    } else {
      bring(part, block);
    }
  }
};

// A multiplying warpgroup.
template <class A>
struct WideConsumer : WideTile<A> {
  using Base = WideTile<A>;
  using Base::first;
  using Base::first_block;
  using Base::kGroup;
  using Base::kHeadDim;
  using Base::kv_head;
  using Base::lane;
  using Base::last_block;
  using Base::params;
  using Base::shared;
  using Base::start;
  using Base::tokens;
  using Base::ordinal;
  using Mixed = attend::Mixed<A>;

  const int group = threadIdx.x / wgmma::kThreads - 1;

  __device__ explicit WideConsumer(const Base& tile) : Base(tile) {}

  // Barrier of this warpgroup's threads.
  __device__ void sync() const { ptx::named_sync<wgmma::kThreads>(1 + group); }

  __device__ void load_queries() const {
    const auto to = [&](int row, int vector) {
      return shared.query[group] + wgmma::vector_at(wgmma::kRows, row, vector * 8);
    };
    round_queries<A, wgmma::kRows, wgmma::kThreads>(params, first, tokens, kv_head,
                                                    group * wgmma::kRows, to);
    ptx::fence_shared();
    sync();  // all queries are written
  }

  // Loads this warp's 16 rows of queries into registers.
  __device__ void load(ResidentQueries<A>& queries) const {
    if constexpr (kResidentQueries<A>) {
      const int first = threadIdx.x % wgmma::kThreads / tile::kWarpLanes * 16;
#pragma unroll
      for (int k = 0; k < kHeadDim / 16; ++k) {
        const int at = wgmma::vector_at(wgmma::kRows, first + lane % 16, k * 16 + lane / 16 * 8);
        ptx::ldmatrix(queries[k], shared.query[group] + at);
        wgmma::keep(queries[k]);
      }
    }
  }

  // Waits until a block's keys or values are in shared memory.
  __device__ void await(int part, int block) const {
    const int at = ordinal(block);
    ptx::mbarrier_wait(&shared.full[part][at % kWideStages<A>], at / kWideStages<A> % 2);
  }

  // Frees a stage of keys or values, after all four warps' instructions that read it.
  __device__ void release(int part, int block) const {
    if (threadIdx.x % wgmma::kThreads == 0) {
      ptx::mbarrier_arrive(&shared.empty[part][ordinal(block) % kWideStages<A>]);
    }
  }

  // Starts the instructions for the scores of a block.
  __device__ void score(Scores& scores, const ResidentQueries<A>& queries, int block) const {
    const bf16* query = shared.query[group];
    const bf16* key = shared.part[kKeys][ordinal(block) % kWideStages<A>];
    wgmma::fence();
#pragma unroll
    for (int dim = 0; dim < kHeadDim; dim += 16) {
      const int at = dim / wgmma::kBlockColumns * wgmma::kRows * wgmma::kBlockColumns +
                     dim % wgmma::kBlockColumns;
      const auto keys = wgmma::describe(key + at, 0);
      if constexpr (kResidentQueries<A>) {
        wgmma::multiply_64<false>(scores, queries[dim / 16], keys, dim != 0);
      } else {
        wgmma::multiply_64(scores, wgmma::describe(query + at, 0), keys, dim != 0);
      }
    }
    wgmma::commit();
  }

  // Starts the instructions that mix a block's values.
  __device__ void mix(Mixed& mixed, const unsigned (&weights)[kBlock / 16][4], int block) const {
    const bf16* value = shared.part[kValues][ordinal(block) % kWideStages<A>];
    wgmma::fence();
#pragma unroll
    for (int k = 0; k < kBlock / 16; ++k) {
      const bf16* from = value + k * 16 * wgmma::kBlockColumns;
      constexpr int kBlockBytes = kBlock * wgmma::kBlockColumns * sizeof(bf16);
      wgmma::multiply_rows(mixed, weights[k], wgmma::describe(from, kBlockBytes));
    }
    wgmma::commit();
  }

  __device__ void go() const {
    load_queries();
    ResidentQueries<A> queries;
    load(queries);
    Scores scores;
    Mixed mixed{};
    Stats stats[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};
    float rescale[2];
    unsigned weights[kBlock / 16][4];
    const int begin = first_block(), last = last_block();
    await(kKeys, begin);
    score(scores, queries, begin);
    wgmma::wait<0>();
    release(kKeys, begin);
    this->weigh(scores, begin, stats, rescale);
    // A mix is waited for after the loop's branch; if waited for before it, the compiler would move
    // the wait ahead of the weights' computation.
#pragma unroll 1
    for (int block = begin;; ++block) {
      wgmma::wait<0>();
      if (block > begin) release(kValues, block - 1);
      Base::scale(mixed, rescale);
      Base::pack(weights, scores);
      if (block == last) break;
      await(kKeys, block + 1);
      score(scores, queries, block + 1);
      await(kValues, block);
      mix(mixed, weights, block);
      wgmma::wait<1>();
      release(kKeys, block + 1);
      this->weigh(scores, block + 1, stats, rescale);
    }
    await(kValues, last);
    mix(mixed, weights, last);
    wgmma::wait<0>();
    this->store(mixed, stats);
  }
};

// A block per KV head and tile; the last tiles, which see most positions, start first.
template <class Tile, class A>
__global__ __launch_bounds__(kWideThreads, 1) void tiles_bf16(Params params) {
  extern __shared__ __align__(1024) unsigned char wide_shared[];
  auto& shared = *reinterpret_cast<WideStorage<A>*>(wide_shared);
  ptx::griddepcontrol_launch_dependents();
  if (threadIdx.x == 0) {
    for (int part = 0; part < 2; ++part) {
      for (int stage = 0; stage < kWideStages<A>; ++stage) {
        ptx::mbarrier_init(&shared.full[part][stage], 1);
        ptx::mbarrier_init(&shared.empty[part][stage], kWideConsumers);
      }
      if constexpr (tile::kFp8Pages) {
        for (auto& fetched : shared.stored.fetched[part]) ptx::mbarrier_init(&fetched, 1);
      }
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();  // the barriers are initialised
  const WideTile<A> wide(params, shared, params.tiles[gridDim.x - 1 - blockIdx.x], blockIdx.y);
  ptx::griddepcontrol_wait();  // lists depend on nothing; everything below does
  if (threadIdx.x < wgmma::kThreads) {
    ptx::registers_release<kFetchRegisters>();
    if (tile::kFp8Pages || threadIdx.x < tile::kWarpLanes) WideProducer<A>(wide).go();
  } else {
    ptx::registers_take<kMultiplyRegisters>();
    WideConsumer<A>(wide).go();
  }
}

template <class Tile, class A>
struct TilesBf16 : CellsThenSplits<Tile, A, TilesBf16<Tile, A>> {
  static_assert(Tile::kThreads == kWideThreads, "one warpgroup fetches, two have a tile");
  static_assert(kFits<sizeof(WideStorage<A>)>);

  static cudaError_t cells(const Params& params, unsigned count, unsigned tokens,
                           cudaStream_t stream) {
    if (tokens != kWideTokens<A>) return cudaErrorInvalidValue;
    const Launch shape{count, kWideThreads, sizeof(WideStorage<A>), A::kKvHeads};
    return launch_chained(tiles_bf16<Tile, A>, shape, stream, params);
  }
};

}  // namespace atlas::attend
