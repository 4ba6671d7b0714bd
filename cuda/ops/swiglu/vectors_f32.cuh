// Implements: Ops::swiglu
// Match:      F32, an inner width that is a multiple of 4
// Bound by:   HBM (12 bytes an element)
// Sync:       none; a vector a thread; chained launch
#pragma once

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/math.cuh"
#include "tile/ptx.cuh"

namespace atlas::swiglu {

template <class Tile, target::Activation kActivation>
__global__ __launch_bounds__(Tile::kThreads) void vectors_f32(const float* gate, const float* up,
                                                              float* out, size_t vectors) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t at = static_cast<size_t>(blockIdx.x) * Tile::kThreads + threadIdx.x;
  if (at >= vectors) return;
  const auto of = [](float gate, float up) {
    return tile::open<kActivation>(gate) * tile::lift<kActivation>(up);
  };
  tile::vector_at(out, at) = tile::zip(tile::vector_at(gate, at), tile::vector_at(up, at), of);
}

template <class Tile, class M>
struct VectorsF32 {
  static_assert(M::kIntermediate % 4 == 0, "a row is whole vectors");

  static cudaError_t launch(const float* gate, const float* up, float* out, unsigned rows,
                            cudaStream_t stream) {
    const size_t vectors = size_t{rows} * (M::kIntermediate / 4);
    const auto blocks = static_cast<unsigned>((vectors + Tile::kThreads - 1) / Tile::kThreads);
    return launch_chained(vectors_f32<Tile, M::kActivation>, {blocks, Tile::kThreads, 0}, stream,
                          gate, up, out, vectors);
  }
};

}  // namespace atlas::swiglu
