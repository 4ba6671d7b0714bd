// Implements: Ops::gated_linear_add
// Match:      as `gated_rms_norm` and `linear_add`
// Bound by:   as these, one after the other
// Sync:       as these
#pragma once

#include "ops/gated_rms_norm/heads_f32.cuh"

namespace atlas::gated_linear_add {

inline constexpr unsigned kValues = target::GDN_VALUE_HEADS * target::GDN_VALUE_DIM;

template <class Tile>
struct HeadsF32 {
  static int launch(float* x, const float* gain, const float* z, const unsigned* in_cells,
                    const unsigned char* weight, unsigned char* operands, float* residual,
                    unsigned rows, unsigned format, cudaStream_t stream) {
    const int failed = gated_rms_norm::HeadsF32<Tile>::launch(x, gain, z, in_cells, rows, stream);
    if (failed != cudaSuccess) return failed;
    return atlas_linear_add(x, weight, operands, residual, rows, target::HIDDEN, kValues, format,
                            stream);
  }
};

}  // namespace atlas::gated_linear_add
