// Implements: Ops::gated_linear_add
// Match:      as `gated_rms_norm` and `linear_add`
// Bound by:   as `gated_rms_norm`, then as `linear_add`
// Sync:       as `gated_rms_norm` and `linear_add`
#pragma once

#include "ops/gated_rms_norm/heads_f32.cuh"

namespace atlas::gated_linear_add {

using target::shapes::Delta;

inline constexpr unsigned kValues = Delta::kValueHeads * Delta::kValueDim;

template <class Tile, class D>
struct HeadsF32 {
  static int launch(float* x, const float* gain, const float* z, const unsigned* in_cells,
                    const unsigned char* weight, unsigned char* operands, float* residual,
                    unsigned rows, unsigned format, cudaStream_t stream) {
    using Norm = gated_rms_norm::HeadsF32<Tile, D>;
    // Whether `linear_add` works by panels, on rows that the norm rounds; warpgroups round them.
    constexpr bool kPanels = target::LinearAdd::kThreads == tile::kPanelThreads;
    const bool rounds = kPanels && tile::takes_rounded(static_cast<int>(rows), kValues);
    auto* rounded = reinterpret_cast<f16*>(operands);
    const int failed = rounds ? Norm::launch_to(rounded, x, gain, z, in_cells, rows, stream)
                              : Norm::launch(x, gain, z, in_cells, rows, stream);
    if (failed != cudaSuccess) return failed;
    return atlas_linear_add(rounds ? nullptr : x, weight, operands, residual, rows, target::HIDDEN,
                            kValues, format, stream);
  }
};

}  // namespace atlas::gated_linear_add
