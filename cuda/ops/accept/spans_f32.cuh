// Implements: Draft::accept
// Match:      ranked rows of spans that are taken one by one
// Bound by:   latency (one warp a span, row by row)
// Sync:       none beyond a warp; chained launch
#pragma once

#include "base/launch.cuh"
#include "ops/draft/draw.cuh"
#include "tile/ptx.cuh"

namespace atlas::accept {

struct Params {
  const unsigned* accepts;    // (1)
  const float* ranked;        // (rows, top_k::kWidth)
  const unsigned* spans;      // (count, 2): first row and rows
  const unsigned* positions;  // (rows)
  unsigned* tokens;           // (rows)
  unsigned* wanted;           // (count)
  draft::DraftRows draft_rows;
  unsigned* accepted;  // (count, 2): accepted drafts, and the token after them
  unsigned count;
};

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void spans_f32(
    const __grid_constant__ Params params) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  if (*params.accepts == 0) return;
  const draft::DraftRows& draft_rows = params.draft_rows;
  constexpr unsigned kWarps = Tile::kThreads / tile::kWarpLanes;
  const unsigned span = blockIdx.x * kWarps + threadIdx.x / tile::kWarpLanes;
  if (span >= params.count) return;
  const unsigned first = params.spans[2 * span], rows = params.spans[2 * span + 1];
  unsigned accepted = rows, token_after = 0;
  for (unsigned i = 0; i < rows; ++i) {
    const unsigned row = first + i;
    const unsigned token =
        draft::draw(params.ranked + size_t{top_k::kWidth} * row,
                    draft_rows.sampling(span, params.positions[row] + 1));
    const bool is_accepted = i + 1 < rows && token == params.tokens[row + 1];
    if (!is_accepted && accepted == rows) accepted = i, token_after = token;
    __syncwarp();  // all lanes have read the draft, which the next row overwrites
    if (threadIdx.x % tile::kWarpLanes == 0) params.tokens[row] = token;
  }
  if (rows == 0 || threadIdx.x % tile::kWarpLanes != 0) return;
  const unsigned row = first + accepted, next = params.positions[row] + 1;
  params.wanted[span] = row;
  draft_rows.starts[span] = draft_rows.positions[span] = draft_rows.tiles[4 * span + 3] = next;
  params.accepted[2 * span] = accepted, params.accepted[2 * span + 1] = token_after;
}

template <class Tile>
struct SpansF32 {
  static cudaError_t launch(const unsigned* accepts, const float* ranked, const unsigned* spans,
                            const unsigned* positions, unsigned* tokens, unsigned* wanted,
                            const float* rules,
                            unsigned* starts, unsigned* next_tokens, unsigned* next_positions,
                            unsigned* tiles, unsigned* accepted, unsigned rows, unsigned count,
                            unsigned uniforms, cudaStream_t stream) {
    const draft::DraftRows draft_rows{rules, starts, next_tokens, next_positions, tiles, uniforms};
    const Params params{accepts, ranked,     spans,    positions, tokens,
                        wanted,  draft_rows, accepted, count};
    const unsigned blocks = blocks_for(count, Tile::kThreads / tile::kWarpLanes);
    return launch_chained(spans_f32<Tile>, {blocks, Tile::kThreads, 0}, stream, params);
  }
};

}  // namespace atlas::accept
