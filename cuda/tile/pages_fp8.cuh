// Writing of positions to pages of either format, and widening of FP8 pages.
//
// In FP8 a position of a head is E4M3 codes times one power of two, the least that keeps its
// largest number in range. Values of codes are exact in bf16, so products widen FP8 pages to bf16.
// Products of few rows use the codes' bits as bf16, which are 2^-120 of the values: queries, scores
// and weights are multiplied by powers of two instead, which is exact.
#pragma once

#include <type_traits>

#include "tile/head.cuh"
#include "tile/pages.cuh"
#include "tile/ptx.cuh"

namespace atlas::tile {

inline constexpr int kE4m3Exponent = 8;
inline constexpr unsigned kE4m3Mantissa = 0x600000;  // of 448, the largest number: 1.75 * 2^8
// Smallest stored exponent, which is 127 more than the exponent: it keeps E4M3's smallest number,
// 2^-9, a normal bf16.
inline constexpr int kFp8ExponentMin = 127 - 117;
// Largest stored exponent: it keeps the factor of the codes' bits within bf16.
inline constexpr int kFp8ExponentMax = 127 + 7;
// Stored exponent of a position with a number that is not within 448 * 2^7: the position's codes
// are zeros with an infinite factor, so that all its numbers are NaN.
inline constexpr int kFp8ExponentNan = kFp8ExponentMax + 1;

// Stored exponent for a position, from the bits of its largest magnitude.
__device__ inline int fp8_exponent(unsigned largest) {
  const int above = (largest & 0x7fffffu) > kE4m3Mantissa;
  const int exponent = static_cast<int>(largest >> 23) - kE4m3Exponent + above;
  return min(max(exponent, kFp8ExponentMin), kFp8ExponentNan);
}

// E4M3 code of `x` for a stored exponent, rounded to nearest, ties to even.
__device__ inline unsigned char to_fp8(float x, int exponent) {
  unsigned short pair;
  const float down = __uint_as_float(static_cast<unsigned>(254 - exponent) << 23);
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x * down));
  return exponent == kFp8ExponentNan ? 0 : static_cast<unsigned char>(pair);
}

// Dimensions of a strip: FP8 has the layout (kHeadDim / 16, PAGE positions, 16 codes), then the
// exponents of the positions. Instructions load pairs of codes as the 16-bit elements of bf16.
inline constexpr int kFp8Columns = 16;

// Index of a dimension's code in its strip's 16 bytes. A word has two neighbours from the strip's
// first half in its even bytes, and the dimensions eight further in its odd bytes, so that codes of
// a pair are 16 bits apart: a word as stored is an operand of keys, transposed one of values.
__device__ inline int fp8_column(int dim) {
  return dim % 8 * 2 + dim / 8 % 2;
}

// Index of a code in a head's keys, or values.
__device__ inline int fp8_at(int position, int dim) {
  return (dim / kFp8Columns * target::PAGE + position) * kFp8Columns + fp8_column(dim);
}

// Offset of a head's exponents from its codes in a page, bytes.
template <class A>
inline constexpr int kExponentsAt = target::PAGE * A::kHeadDim;

// Two codes in the upper halves of 16 bits each, as bf16: 2^-120 of their values. `low` is `word`
// with the bits of each code shifted down by four.
__device__ inline unsigned bits_of_fp8(unsigned word, unsigned low) {
  return (low & 0x07f007f0u) | (word & 0x80008000u);
}

// Codes in a word's even bytes, each as `bits_of_fp8` gives it.
__device__ inline unsigned even_of_fp8(unsigned word) {
  return bits_of_fp8(word << 8, word << 4);
}
// Codes in a word's odd bytes, each as `bits_of_fp8` gives it.
__device__ inline unsigned odd_of_fp8(unsigned word) { return bits_of_fp8(word, word >> 4); }

// Loads the operands of 8 keys from `position` on, 32 dimensions from `dim` on: FP8 codes as bf16
// of 2^-120 of their values, see `bits_of_fp8`. A strip of the block has kPositions positions.
template <int kPositions>
__device__ inline void fp8_keys(unsigned (&to)[4], const unsigned char* block, int position,
                                int dim) {
  const int lane = threadIdx.x % kWarpLanes, strip = dim / kFp8Columns + lane / 8 % 2;
  unsigned codes[2];
  ptx::ldmatrix(codes, block + (strip * kPositions + position + lane % 8) * kFp8Columns);
  to[0] = even_of_fp8(codes[0]), to[1] = odd_of_fp8(codes[0]);
  to[2] = even_of_fp8(codes[1]), to[3] = odd_of_fp8(codes[1]);
}

// Loads operands of 16 positions' values from `position` on, 16 dimensions from `dim` on: FP8 codes
// as bf16 of 2^-120 of their values, see `bits_of_fp8`.
template <int kPositions>
__device__ inline void fp8_values(unsigned (&to)[4], const unsigned char* block, int position,
                                  int dim) {
  const int row = dim / kFp8Columns * kPositions + position + threadIdx.x % 16;
  unsigned codes[2];
  ptx::ldmatrix_transposed(codes, block + row * kFp8Columns);
  to[0] = even_of_fp8(codes[0]), to[1] = even_of_fp8(codes[1]);
  to[2] = odd_of_fp8(codes[0]), to[3] = odd_of_fp8(codes[1]);
}

// Values of a position's 16 codes in a strip as bf16, for the position's stored exponent: `to[0]`
// are the strip's first eight dimensions, `to[1]` its last eight.
__device__ inline void widened(Bf16x8 (&to)[2], const uint4& codes, unsigned exponent) {
  // 2^(120 + exponent) as bf16 in both halves.
  constexpr unsigned kBoth = 0x00010001u;
  const bf16x2 factor{exponent * (kBoth << 7) + 120 * (kBoth << 7)};
  const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[0].pair[i] = multiply(bf16x2{even_of_fp8(words[i])}, factor);
    to[1].pair[i] = multiply(bf16x2{odd_of_fp8(words[i])}, factor);
  }
}

// Stored type of a number in a page: bf16, or an FP8 code.
using PageNumber = std::conditional_t<kFp8Pages, unsigned char, bf16>;

// Writes a position of a head's keys or values; by a warp. `each(dim, number)` gets every stored
// number; returns the stored exponent of FP8.
template <class A, class Each>
__device__ inline int put_position(unsigned char* to, int position, const Head<A>& head,
                                   const Each& each) {
  if constexpr (kFp8Pages) {
    unsigned largest = 0;  // magnitudes are in the order of their bits, infinities and NaN last
#pragma unroll
    for (int i = 0; i < Head<A>::kParts; ++i) {
      largest = max(largest, __float_as_uint(head.part[i]) & 0x7fffffffu);
    }
    const int exponent = fp8_exponent(__reduce_max_sync(kAllLanes, largest));
#pragma unroll
    for (int i = 0; i < Head<A>::kParts; ++i) {
      const unsigned char code = to_fp8(head.part[i], exponent);
      to[fp8_at(position, head.dim(i))] = code;
      each(head.dim(i), code);
    }
    if (threadIdx.x % kWarpLanes == 0) {
      to[kExponentsAt<A> + position] = static_cast<unsigned char>(exponent);
    }
    return exponent;
  } else {
#pragma unroll
    for (int i = 0; i < Head<A>::kParts; ++i) {
      const bf16 rounded = to_bf16(head.part[i]);
      each(head.dim(i), rounded);
      reinterpret_cast<bf16*>(to)[page_at(position, head.dim(i))] = rounded;
    }
    return 0;
  }
}

// Widens the positions of a block before `live` to bf16, with `kGroup` threads, of which this is
// number `thread`; each has `kAtOnce` loads in flight. Other positions become zeros, as they may
// never have been written. `at(position, dim)` is the address of eight numbers.
template <class A, int kGroup, int kAtOnce, class At>
__device__ inline void widen_block(const unsigned char* from, int live, int thread, const At& at) {
  constexpr int kStrips = A::kHeadDim / kFp8Columns;
  constexpr int kRounds = kStrips * target::PAGE / kGroup;
  static_assert(kGroup % target::PAGE == 0 && kRounds % kAtOnce == 0, "whole rounds");
  // Neighbouring threads have neighbouring positions: 16-byte rows in different banks.
  const int position = thread % target::PAGE, strip = thread / target::PAGE;
  const bool is_live = position < live;
  const unsigned exponent = is_live ? from[kExponentsAt<A> + position] : kFp8ExponentMin;
  const auto* rows = reinterpret_cast<const uint4*>(from) + position;
#pragma unroll
  for (int start = 0; start < kRounds; start += kAtOnce) {
    uint4 codes[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int of = strip + (start + i) * (kGroup / target::PAGE);
      codes[i] = is_live ? rows[of * target::PAGE] : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int dim = (strip + (start + i) * (kGroup / target::PAGE)) * kFp8Columns;
      Bf16x8 wide[2];
      widened(wide, codes[i], exponent);
      *reinterpret_cast<Bf16x8*>(at(position, dim)) = wide[0];
      *reinterpret_cast<Bf16x8*>(at(position, dim + Bf16x8::kElements)) = wide[1];
    }
  }
}

}  // namespace atlas::tile
