// Implements: Ops::linear_add
// Match:      any N, K a multiple of 128, every weight format of the target; operands bf16
// Bound by:   few rows: HBM (the weights, once); many rows: tensor instructions
// Sync:       as `linear`
#pragma once

#include "ops/linear/panels_bf16.cuh"

namespace atlas::linear_add {

template <class Tile>
struct PanelsBf16 {
  static cudaError_t launch(const float* x, const unsigned char* weight,
                            unsigned char* /* operands */, float* residual, unsigned rows,
                            unsigned n, unsigned k, unsigned format, cudaStream_t stream) {
    return linear::PanelsBf16<Tile, tile::Adds>::launch(x, weight, residual, rows, n, k, format,
                                                        stream);
  }
};

}  // namespace atlas::linear_add
