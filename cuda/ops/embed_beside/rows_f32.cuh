// Implements: Ops::embed_beside
// Match:      as `embed` and `rms_norm`
// Bound by:   HBM (2 or 4 bytes read and 4 written per element)
// Sync:       one block per half of a row, one barrier for its sum of squares; chained launch
//
// The arithmetic is that of `rms_norm`.
#pragma once

#include "base/launch.cuh"
#include "ops/embed/rows_f32.cuh"
#include "target.cuh"
#include "tile/normed.cuh"

namespace atlas::embed_beside {

using target::HIDDEN;
using Half = tile::NormedRow;

struct Params {
  const unsigned char* table;   // panels of (VOCAB, HIDDEN)
  const unsigned* tokens;       // (rows)
  const float* embedding_gain;  // (HIDDEN)
  const float* states;          // (rows, HIDDEN)
  const float* state_gain;      // (HIDDEN)
  float* out;                   // (rows, 2 HIDDEN)
};

// Reads a token's row of the embedding table.
__device__ inline void look_up(Half& half, const unsigned char* table, unsigned token) {
  Half::for_each_vector([&](int i, int vector) {
    const uint4& from = embed::vector_of(table, token, vector / 2);
    half.part[i] = embed::scaled(reinterpret_cast<const uint2*>(&from)[vector % 2]);
  });
}

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void rows_f32(Params params) {
  static_assert(Tile::kThreads == tile::kPanelThreads, "a block norms as those of `lm_head`");
  __shared__ typename Half::SharedStorage shared;
  ptx::griddepcontrol_launch_dependents();
  const size_t row = blockIdx.x;
  const bool is_state = blockIdx.y != 0;
  Half gain, half;
  gain.load(is_state ? params.state_gain : params.embedding_gain);
  ptx::griddepcontrol_wait();  // the gains depend on nothing; everything below does
  if (is_state) {
    half.load(params.states + row * HIDDEN);
  } else {
    look_up(half, params.table, params.tokens[row]);
  }
  half.normalise(gain, target::NORM_EPS, shared);
  half.store(params.out + (2 * row + is_state) * HIDDEN);
}

template <class Tile>
struct RowsF32 {
  static cudaError_t launch(const unsigned char* table, const unsigned* tokens,
                            const float* embedding_gain, const float* states,
                            const float* state_gain, float* out, unsigned rows,
                            cudaStream_t stream) {
    const Params params{table, tokens, embedding_gain, states, state_gain, out};
    return launch_chained(rows_f32<Tile>, {rows, Tile::kThreads, 0, 2}, stream, params);
  }
};

}  // namespace atlas::embed_beside
