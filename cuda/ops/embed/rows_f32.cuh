// Implements: Ops::embed
// Match:      an F16 table in panels; F32 rows
// Bound by:   HBM (2 bytes read and 4 written per element)
// Sync:       none; one 16-byte vector a thread; chained launch
#pragma once

#include "base/launch.cuh"
#include "base/types.cuh"
#include "target.cuh"
#include "tile/head_f16.cuh"
#include "tile/math.cuh"
#include "tile/panels.cuh"

namespace atlas::embed {

static_assert(target::FORMAT_EMBED == target::Format::bf16, "no other table is known");

inline constexpr int kRowVectors = target::HIDDEN * sizeof(f16) / kVectorBytes;

// Eight numbers of a token, from `8 * vector` on: a panel's run of 64 bytes is four such vectors.
__device__ inline const uint4& vector_of(const unsigned char* table, size_t token, size_t vector) {
  const size_t group = token / tile::kPanelRows * (kRowVectors / 4) + vector / 4;
  const size_t run = group * tile::kPanelRows + token % tile::kPanelRows;
  return reinterpret_cast<const uint4*>(table + run * tile::kRunBytes)[vector % 4];
}

// Four numbers of an embedding times the model's embedding scale.
__device__ inline float4 scaled(const uint2& four) {
  const auto [x, y, z, w] = tile::widened(four);
  constexpr float kScale = target::EMBEDDING_SCALE;
  return {x * kScale, y * kScale, z * kScale, w * kScale};
}

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void rows_f32(
    const unsigned char* table, const unsigned* tokens, float* out, unsigned rows) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t item = static_cast<size_t>(blockIdx.x) * Tile::kThreads + threadIdx.x;
  const size_t row = item / kRowVectors, vector = item % kRowVectors;
  if (row >= rows) return;
  const uint4 from = vector_of(table, tokens[row], vector);
  tile::vector_at(out, 2 * item) = scaled({from.x, from.y});
  tile::vector_at(out, 2 * item + 1) = scaled({from.z, from.w});
}

template <class Tile>
struct RowsF32 {
  static cudaError_t launch(const unsigned char* table, const unsigned* tokens, float* out,
                            unsigned rows, cudaStream_t stream) {
    const size_t items = static_cast<size_t>(rows) * kRowVectors;
    const auto blocks = static_cast<unsigned>((items + Tile::kThreads - 1) / Tile::kThreads);
    return launch_chained(rows_f32<Tile>, {blocks, Tile::kThreads, 0}, stream,
                          table, tokens, out, rows);
  }
};

}  // namespace atlas::embed
