// Implements: Ops::linear_add
// Match:      as `linear`
// Bound by:   few rows: HBM (the weights, once); many rows: tensor instructions
// Sync:       as `linear`
#pragma once

#include "ops/linear/panels_f16.cuh"

namespace atlas::linear_add {

template <class Tile>
struct PanelsF16 {
  static cudaError_t launch(const float* x, const unsigned char* weight,
                            unsigned char* operands, float* residual, unsigned rows,
                            unsigned n, unsigned k, unsigned format, cudaStream_t stream) {
    using Product = linear::PanelsF16<Tile, tile::Adds, target::LinearAddWidths>;
    return Product::launch(x, weight, operands, residual, rows, n, k, format, stream);
  }
};

}  // namespace atlas::linear_add
