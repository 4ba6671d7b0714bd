// Implements: Ops::embed
// Match:      a BF16 table in panels; F32 rows
// Bound by:   HBM (2 bytes read and 4 written per element)
// Sync:       none; one 16-byte vector a thread; chained launch
#pragma once

#include "base/launch.cuh"
#include "base/types.cuh"
#include "target.cuh"
#include "tile/math.cuh"
#include "tile/panels.cuh"

namespace atlas::embed {

static_assert(target::FORMAT_EMBED == target::Format::bf16, "no other table is known");

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void rows_f32(
    const unsigned char* table, const unsigned* tokens, float* out, unsigned rows) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t item = static_cast<size_t>(blockIdx.x) * Tile::kThreads + threadIdx.x;
  constexpr int kVectors = target::HIDDEN / Bf16x8::kElements;
  const size_t row = item / kVectors, vector = item % kVectors;
  if (row >= rows) return;
  // A panel's run of 64 bytes is four vectors of one row.
  const size_t token = tokens[row], panel = token / tile::kPanelRows;
  const size_t group = panel * (kVectors / 4) + vector / 4;
  const size_t run = group * tile::kPanelRows + token % tile::kPanelRows;
  const auto from = reinterpret_cast<const Bf16x8*>(table + run * tile::kRunBytes)[vector % 4];
  const float2 a = to_float2(from.pair[0]), b = to_float2(from.pair[1]);
  const float2 c = to_float2(from.pair[2]), d = to_float2(from.pair[3]);
  tile::vector_at(out, 2 * item) = {a.x, a.y, b.x, b.y};
  tile::vector_at(out, 2 * item + 1) = {c.x, c.y, d.x, d.y};
}

template <class Tile>
struct RowsF32 {
  static cudaError_t launch(const unsigned char* table, const unsigned* tokens, float* out,
                            unsigned rows, cudaStream_t stream) {
    const size_t items = static_cast<size_t>(rows) * (target::HIDDEN / Bf16x8::kElements);
    const auto blocks = static_cast<unsigned>((items + Tile::kThreads - 1) / Tile::kThreads);
    return launch_chained(rows_f32<Tile>, {blocks, Tile::kThreads, 0}, stream,
                          table, tokens, out, rows);
  }
};

}  // namespace atlas::embed
