// Implements: Ops::attend
// Match:      pages of bf16 or FP8, query heads of a KV head, 16 at most or of latents 16 in turn,
//             packed into the M of an instruction; operands bf16, scores and sums F32
// Bound by:   few rows: HBM (keys and values, once); many rows: shared memory
// Sync:       three barriers per split and bulk copies; chained launch
//
// Positions are cut into splits of kSplit. A split's softmax runs over blocks of 64 positions with
// a running maximum; splits are merged in order by one formula. Few rows: blocks share the splits
// and, behind the last one, their merging; many rows: one block takes the splits in turn. Positions
// that a row does not see change none of its bits: their weights are zero and its maximum stays.
// Splits that end before a tile's window are left out.
#pragma once

#include "ops/attend/splits.cuh"

namespace atlas::attend {

// Prompts of heads whose mixes no warp has registers for: tiles of cells go as others do.
template <class Tile, class A>
struct SplitKvBf16 {
  static_assert(Tile::kThreads == kThreads, "the stages count on these warps");
  static_assert(A::kValueDim > 256, "prompts of narrower heads have kernels of their own");

  static cudaError_t launch(const float* q, const unsigned char* cache, const unsigned* positions,
                            const unsigned* tables, const unsigned* pages, const unsigned* cells,
                            const unsigned* tiles, const float* sinks, float* partial,
                            unsigned* arrived, float* out, unsigned page_stride, unsigned,
                            unsigned cell_count, unsigned cell_tokens, unsigned places,
                            unsigned tile_count, cudaStream_t stream) {
    if (cell_count > 0 && cell_tokens != Queries<A>::kTokens) return cudaErrorInvalidValue;
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
                  0,
                  sinks};
    const NoConstants none;
    const cudaError_t failed = launch_splits<Tile, A, Stored>(params, none, cell_count, stream);
    if (failed != cudaSuccess) return failed;
    params.tiles = reinterpret_cast<const uint4*>(tiles);
    params.places = static_cast<int>(places);
    return launch_splits<Tile, A, Stored>(params, none, tile_count, stream);
  }
};

}  // namespace atlas::attend
