// A position written to pages of either format, and pages of FP8 widened.
//
// In FP8 a position of a head is codes of E4M3 times one power of two, the least that keeps its
// largest number within them. What they stand for is exact in bf16, so that products take them as
// they take pages of bf16. Few rows are multiplied by the codes' bits as they are, 2^-120 of what
// codes stand for: powers of two go to queries, scores and weights, where they change no bit.
#pragma once

#include <type_traits>

#include "tile/head.cuh"
#include "tile/pages.cuh"
#include "tile/ptx.cuh"

namespace atlas::tile {

inline constexpr int kE4m3Exponent = 8;
inline constexpr unsigned kE4m3Mantissa = 0x600000;  // of 448, the largest number: 1.75 * 2^8
// Exponents are stored 127 higher. The least one keeps E4M3's smallest number, 2^-9, a normal bf16;
// behind the largest one what bits are multiplied by has no room in bf16.
inline constexpr int kFp8ExponentMin = 127 - 117;
inline constexpr int kFp8ExponentMax = 127 + 7;
// Exponent of a position with what is no number up to 448 * 2^7: codes are zeros and what they are
// multiplied by is infinity, so that all of it is NaN.
inline constexpr int kFp8ExponentNan = kFp8ExponentMax + 1;

// Stored exponent of a position whose largest magnitude has these bits.
__device__ inline int fp8_exponent(unsigned largest) {
  const int above = (largest & 0x7fffffu) > kE4m3Mantissa;
  const int exponent = static_cast<int>(largest >> 23) - kE4m3Exponent + above;
  return min(max(exponent, kFp8ExponentMin), kFp8ExponentNan);
}

// Code of `x` with a stored exponent: rounded to nearest, ties to even.
__device__ inline unsigned char to_fp8(float x, int exponent) {
  unsigned short pair;
  const float down = __uint_as_float(static_cast<unsigned>(254 - exponent) << 23);
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x * down));
  return exponent == kFp8ExponentNan ? 0 : static_cast<unsigned char>(pair);
}

// Dimensions of a strip: FP8 lies as (kHeadDim / 16, PAGE positions, 16 codes), then the positions'
// exponents. Matrices of 16-bit units, which instructions load for bf16, are pairs of codes then.
inline constexpr int kFp8Columns = 16;

// Place of a dimension's code in its strip's row. A word has two neighbours from the strip's first
// half in its even bytes, and those eight dimensions on in its odd ones, so that each pair's codes
// are 16 bits apart: as it is loaded the operand of keys, and transposed that of values.
__device__ inline int fp8_column(int dim) {
  return dim % 8 * 2 + dim / 8 % 2;
}

// Place of a code in a head's keys, or values.
__device__ inline int fp8_at(int position, int dim) {
  return (dim / kFp8Columns * target::PAGE + position) * kFp8Columns + fp8_column(dim);
}

// A head's exponents of a page.
template <class A>
inline constexpr int kExponentsAt = target::PAGE * A::kHeadDim;

// Two codes, in the upper halves of 16 bits each, as bf16 of their bits: 2^-120 of what they stand
// for. `low` is the word with these four bits lower.
__device__ inline unsigned bits_of_fp8(unsigned word, unsigned low) {
  return (low & 0x07f007f0u) | (word & 0x80008000u);
}

// Codes of a word's even bytes, and of its odd ones.
__device__ inline unsigned even_of_fp8(unsigned word) {
  return bits_of_fp8(word << 8, word << 4);
}
__device__ inline unsigned odd_of_fp8(unsigned word) { return bits_of_fp8(word, word >> 4); }

// Operands of 8 keys from `position` on, 32 dimensions from `dim` on, of a block whose strips have
// kPositions: bits of its codes.
template <int kPositions>
__device__ inline void fp8_keys(unsigned (&to)[4], const unsigned char* block, int position,
                                int dim) {
  const int lane = threadIdx.x % kWarpLanes, strip = dim / kFp8Columns + lane / 8 % 2;
  unsigned codes[2];
  ptx::ldmatrix(codes, block + (strip * kPositions + position + lane % 8) * kFp8Columns);
  to[0] = even_of_fp8(codes[0]), to[1] = odd_of_fp8(codes[0]);
  to[2] = even_of_fp8(codes[1]), to[3] = odd_of_fp8(codes[1]);
}

// Operands of 16 values, 16 dimensions, likewise.
template <int kPositions>
__device__ inline void fp8_values(unsigned (&to)[4], const unsigned char* block, int position,
                                  int dim) {
  const int row = dim / kFp8Columns * kPositions + position + threadIdx.x % 16;
  unsigned codes[2];
  ptx::ldmatrix_transposed(codes, block + row * kFp8Columns);
  to[0] = even_of_fp8(codes[0]), to[1] = even_of_fp8(codes[1]);
  to[2] = odd_of_fp8(codes[0]), to[3] = odd_of_fp8(codes[1]);
}

// A strip's codes of a position as bf16, with a stored exponent: the first and the last eight.
__device__ inline void widened(Bf16x8 (&to)[2], const uint4& codes, unsigned exponent) {
  // 2^(120 + exponent) in both halves.
  constexpr unsigned kBoth = 0x00010001u;
  const bf16x2 factor{exponent * (kBoth << 7) + 120 * (kBoth << 7)};
  const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[0].pair[i] = multiply(bf16x2{even_of_fp8(words[i])}, factor);
    to[1].pair[i] = multiply(bf16x2{odd_of_fp8(words[i])}, factor);
  }
}

// Number as a page has it: bf16, or a code of FP8.
using PageNumber = std::conditional_t<kFp8Pages, unsigned char, bf16>;

// Writes a position of a head's keys or values; a warp's work. `each(dim, number)` gets what it
// writes; returns the stored exponent of FP8.
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

// Widens the positions of a block before `live`, codes and exponents, to bf16 with `kGroup`
// threads, of which this is number `thread`; `kAtOnce` strips' rows are under way. The others
// become zeros, for nobody may have written them. `at(position, dim)` is where eight numbers lie.
template <class A, int kGroup, int kAtOnce, class At>
__device__ inline void widen_block(const unsigned char* from, int live, int thread, const At& at) {
  constexpr int kStrips = A::kHeadDim / kFp8Columns;
  constexpr int kRounds = kStrips * target::PAGE / kGroup;
  static_assert(kGroup % target::PAGE == 0 && kRounds % kAtOnce == 0, "whole rounds");
  // Threads beside each other have positions beside each other: rows of 16 bytes, in other banks.
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
