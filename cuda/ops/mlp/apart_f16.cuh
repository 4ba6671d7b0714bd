// Implements: Ops::mlp
// Match:      as `norm_linear`, `swiglu` and `linear_add`
// Bound by:   as these
// Sync:       as these ops, one after the other
#pragma once

#include "base/launch.cuh"

namespace atlas::mlp {

template <class Tile, class M>
struct ApartF16 {
  static int launch(float* residual, const float* gain, float* x, unsigned char* operands,
                    unsigned* arrived, const unsigned char* gate, unsigned gate_format,
                    const unsigned char* up, unsigned up_format, const unsigned char* down,
                    unsigned down_format, float* gates, float* ups, float* act, unsigned rows,
                    atlas_stream* stream) {
    constexpr unsigned kInner = M::kIntermediate;
    int failed = atlas_norm_linear(residual, gain, x, 0, operands, arrived, gate, gates, kInner,
                                   gate_format, up, ups, kInner, up_format, nullptr, nullptr, 0, 0,
                                   nullptr, nullptr, 0, 0, rows, stream);
    if (failed == 0) failed = atlas_swiglu(gates, ups, act, rows, stream);
    return failed == 0 ? atlas_linear_add(act, down, operands, residual, rows, target::HIDDEN,
                                          kInner, down_format, stream)
                       : failed;
  }
};

}  // namespace atlas::mlp
