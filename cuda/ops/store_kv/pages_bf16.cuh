// Implements: Ops::store_kv
// Match:      F32 rows, pages of bf16
// Bound by:   HBM (8 bytes read and 4 written per element)
// Sync:       none; one 16-byte vector a thread; chained launch
#pragma once

#include "base/launch.cuh"
#include "base/types.cuh"
#include "target.cuh"
#include "tile/math.cuh"
#include "tile/ptx.cuh"

namespace atlas::store_kv {

static_assert(target::FORMAT_KV == target::KvFormat::bf16, "pages are bf16");

__device__ inline Bf16x8 rounded(const float* from, size_t octet) {
  const float4 a = tile::vector_at(from, 2 * octet), b = tile::vector_at(from, 2 * octet + 1);
  return {{__floats2bfloat162_rn(a.x, a.y), __floats2bfloat162_rn(a.z, a.w),
           __floats2bfloat162_rn(b.x, b.y), __floats2bfloat162_rn(b.z, b.w)}};
}

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void pages_bf16(
    const float* k, const float* v, const unsigned* positions, const unsigned* tables,
    const unsigned* pages, bf16* cache, size_t octets) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t item = static_cast<size_t>(blockIdx.x) * Tile::kThreads + threadIdx.x;
  if (item >= octets) return;
  constexpr int kHead = target::HEAD_DIM / Bf16x8::kElements, kRow = target::KV_HEADS * kHead;
  const size_t row = item / kRow, head = item / kHead % target::KV_HEADS, octet = item % kHead;
  const unsigned position = positions[row];
  const size_t page = pages[tables[row] + position / target::PAGE];
  // (page, head, keys | values, position in the page, octet)
  const size_t keys = (page * target::KV_HEADS + head) * 2 * target::PAGE;
  auto* to = reinterpret_cast<Bf16x8*>(cache) + octet;
  to[(keys + position % target::PAGE) * kHead] = rounded(k, item);
  to[(keys + target::PAGE + position % target::PAGE) * kHead] = rounded(v, item);
}

template <class Tile>
struct PagesBf16 {
  static cudaError_t launch(const float* k, const float* v, const unsigned* positions,
                            const unsigned* tables, const unsigned* pages, atlas_bf16* cache,
                            unsigned rows, cudaStream_t stream) {
    const size_t items = static_cast<size_t>(rows) * target::KV_HEADS * (target::HEAD_DIM / 8);
    const auto blocks = static_cast<unsigned>((items + Tile::kThreads - 1) / Tile::kThreads);
    return launch_chained(pages_bf16<Tile>, {blocks, Tile::kThreads, 0}, stream,
                          k, v, positions, tables, pages, device(cache), items);
  }
};

}  // namespace atlas::store_kv
