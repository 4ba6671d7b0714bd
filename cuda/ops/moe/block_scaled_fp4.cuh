// Implements: Ops::moe
// Match:      as `block_scaled_fp4` of `experts`
// Bound by:   memory (the weights of the experts chosen)
// Sync:       chained launches: those of `route`, then those of `experts`
#pragma once

#include "ops/experts/block_scaled_fp4.cuh"
#include "ops/route/rows_f32.cuh"

namespace atlas::moe {

template <class Tile, class E>
struct BlockScaledFp4 {
  static cudaError_t launch(const float* x, const float* logits, const float* per_expert,
                            const unsigned char* gate_up, const unsigned char* down,
                            unsigned* chosen, float* weights, unsigned char* plan,
                            unsigned char* operands, float* act, float* /* relay */, unsigned* y,
                            float* residual, unsigned rows, unsigned format, cudaStream_t stream) {
    if (rows == 0) return cudaSuccess;
    if (rows > target::MOE_ROWS) return cudaErrorInvalidValue;
    const cudaError_t failed =
        route::RowsF32<target::Route, E>::launch(logits, per_expert, chosen, weights, rows,
                                                     stream);
    if (failed != cudaSuccess) return failed;
    return experts::BlockScaledFp4<target::Experts, E>::launch(x, chosen, weights, gate_up, down,
                                                            plan, operands, act, y, residual, rows,
                                                            format, stream);
  }
};

}  // namespace atlas::moe
