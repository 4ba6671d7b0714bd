// Implements: Guess::guess
// Match:      ranked rows, whatever their number
// Bound by:   latency (one warp a row)
// Sync:       none beyond a warp; chained launch
#pragma once

#include "base/launch.cuh"
#include "ops/guess/draw.cuh"
#include "tile/ptx.cuh"

namespace atlas::guess {

struct Params {
  const float* ranked;  // (rows, top_k::kWidth)
  Ahead ahead;
  unsigned* drafts;  // (passes, ends)
  unsigned rows, passes, ends, on;
};

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void rows_f32(const __grid_constant__ Params params) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const Ahead& ahead = params.ahead;
  constexpr unsigned kWarps = Tile::kThreads / tile::kWarpLanes;
  const unsigned row = blockIdx.x * kWarps + threadIdx.x / tile::kWarpLanes;
  if (row >= params.rows) return;
  const unsigned position = ahead.positions[row];
  const unsigned pass = params.on ? position - ahead.starts[row] + 1 : 0;
  const unsigned token = draw(params.ranked + size_t{top_k::kWidth} * row, ahead.rule(row),
                              ahead.uniforms, ahead.starts[row] + 1 + pass);
  __syncwarp();  // all lanes have read the position
  if (threadIdx.x % tile::kWarpLanes != 0) return;
  ahead.tokens[row] = token;
  if (pass < params.passes) params.drafts[params.ends * pass + row] = token;
  if (params.on) {
    ahead.positions[row] = position + 1;
    ahead.tiles[4 * row + 3] += 1;
  }
}

template <class Tile>
struct RowsF32 {
  static cudaError_t launch(const float* ranked, const float* rules, unsigned* starts,
                            unsigned* tokens, unsigned* positions, unsigned* tiles,
                            unsigned* drafts, unsigned rows, unsigned uniforms, unsigned passes,
                            unsigned ends, unsigned on, cudaStream_t stream) {
    const Ahead ahead{rules, starts, tokens, positions, tiles, uniforms};
    const Params params{ranked, ahead, drafts, rows, passes, ends, on};
    const unsigned blocks = blocks_for(rows, Tile::kThreads / tile::kWarpLanes);
    return launch_chained(rows_f32<Tile>, {blocks, Tile::kThreads, 0}, stream, params);
  }
};

}  // namespace atlas::guess
