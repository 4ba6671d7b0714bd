// Layout of keys and values in a page, in bf16 or FP8.
#pragma once

#include "base/types.cuh"
#include "target.cuh"

namespace atlas::tile {

// Whether positions are stored as E4M3 codes with one shared exponent.
inline constexpr bool kFp8Pages = target::FORMAT_KV == target::KvFormat::fp8;
static_assert(kFp8Pages || target::FORMAT_KV == target::KvFormat::bf16, "what pages hold");

// Whether values are latents (MLA): the elements after the rotated ones of the only key head.
template <class A>
inline constexpr bool kLatent = A::kValueDim < A::kHeadDim;

// Bytes of a head's keys, or of its values, in a page: bf16, or the codes of all positions and then
// their exponents.
template <class A>
inline constexpr int kHeadBytes =
    target::PAGE * A::kPositionBytes / (A::kKvHeads * (kLatent<A> ? 1 : 2));
// Bytes of a head's values in a page; latents are a part of the keys.
template <class A>
inline constexpr int kValueBytes =
    kLatent<A> ? target::PAGE * 2 * A::kValueDim : kHeadBytes<A>;

// Columns of a bf16 block; a page has the layout (kHeadDim / 64, PAGE positions, 64 columns).
inline constexpr int kPageColumns = 64;
inline constexpr int kPageVectors = kPageColumns / 8;

// Index of an element of a head's keys or values in bf16. The 16-byte vectors of a position in a
// block are permuted by the position's last three bits, as warpgroup instructions read 128-byte
// rows of operands: a page is one copy.
__device__ inline int page_at(int position, int dim) {
  const int block = dim / kPageColumns, vector = dim % kPageColumns / 8;
  return (block * target::PAGE + position) * kPageColumns +
         (vector ^ position % kPageVectors) * 8 + dim % 8;
}

// Offset of a head's keys, or values, from a layer's first one in page 0: `stride` is the bytes
// from page to page, as a page has all layers side by side. Latents have one head, whose values are
// the blocks of columns after the rotated ones.
template <class A>
__device__ inline size_t head_at(unsigned page, unsigned stride, int kv_head, int is_value) {
  static_assert(kHeadBytes<A> == target::PAGE * (kFp8Pages ? A::kHeadDim + 1 : 2 * A::kHeadDim),
                "a page has the bytes of its layout");
  const size_t first = static_cast<size_t>(page) * stride;
  if constexpr (kLatent<A>) {
    static_assert(!kFp8Pages && A::kRotaryDim % kPageColumns == 0, "latents are whole blocks");
    return first + is_value * (kHeadBytes<A> - kValueBytes<A>);
  }
  return first + (kv_head * 2 + is_value) * kHeadBytes<A>;
}

}  // namespace atlas::tile
