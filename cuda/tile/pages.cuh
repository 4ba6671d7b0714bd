// Where keys and values lie in a page, as bf16 or as FP8.
#pragma once

#include "base/types.cuh"
#include "target.cuh"

namespace atlas::tile {

// Whether a position of a head is codes of E4M3 and an exponent that they share.
inline constexpr bool kFp8Pages = target::FORMAT_KV == target::KvFormat::fp8;
static_assert(kFp8Pages || target::FORMAT_KV == target::KvFormat::bf16, "what pages hold");

// Whether values are latents (MLA): the elements of the one key head behind those that turn.
template <class A>
inline constexpr bool kLatent = A::kValueDim < A::kHeadDim;

// Bytes of a head's keys, or values, in a page: bf16, or the codes of all positions, then their
// exponents.
template <class A>
inline constexpr int kHeadBytes = target::PAGE * (kFp8Pages ? A::kHeadDim + 1 : 2 * A::kHeadDim);
// Bytes of its values, which may be a part of the keys.
template <class A>
inline constexpr int kValueBytes =
    kLatent<A> ? target::PAGE * 2 * A::kValueDim : kHeadBytes<A>;

// Columns of a block of bf16 (kHeadDim / 64, PAGE positions, 64 columns).
inline constexpr int kPageColumns = 64;
inline constexpr int kPageVectors = kPageColumns / 8;

// Place of an element of a head's keys or values as bf16. The 16-byte vectors of a block's position
// are permuted by the position's last three bits, as warpgroup instructions read operands of
// 128-byte rows: a page of bf16 is one copy.
__device__ inline int page_at(int position, int dim) {
  const int block = dim / kPageColumns, vector = dim % kPageColumns / 8;
  return (block * target::PAGE + position) * kPageColumns +
         (vector ^ position % kPageVectors) * 8 + dim % 8;
}

// First byte of a head's keys, or values, behind the first one that a layer has of any page:
// `stride` bytes from page to page, since all layers of a page lie side by side. Latents have one
// head, of which values are the blocks of columns behind those that turn.
template <class A>
__device__ inline size_t head_at(unsigned page, unsigned stride, int kv_head, int is_value) {
  const size_t first = static_cast<size_t>(page) * stride;
  if constexpr (kLatent<A>) {
    static_assert(!kFp8Pages && A::kRotaryDim % kPageColumns == 0, "latents are whole blocks");
    return first + is_value * (kHeadBytes<A> - kValueBytes<A>);
  }
  return first + (kv_head * 2 + is_value) * kHeadBytes<A>;
}

}  // namespace atlas::tile
