// A position written to pages of either format, and pages of FP8 widened.
//
// In FP8 a position of a head is codes of E4M3 times one power of two, the least that keeps its
// largest number within them. What they stand for is exact in bf16, so that products take them as
// they take pages of bf16.
#pragma once

#include "tile/head.cuh"
#include "tile/pages.cuh"

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

// Codes lie in words of four, the middle two swapped: those of a pair of bf16 are 16 bits apart.
__device__ inline int fp8_at(int dim) {
  return (dim & ~3) | (dim & 1) << 1 | (dim >> 1 & 1);
}

// Two codes, in the upper halves of 16 bits each, as bf16 of their bits: 2^-120 of what they stand
// for. `low` is the word with these four bits lower.
__device__ inline bf16x2 bits_of_fp8(unsigned word, unsigned low) {
  return {(low & 0x07f007f0u) | (word & 0x80008000u)};
}

// Eight codes with a stored exponent.
__device__ inline Bf16x8 widened(const uint2& codes, unsigned exponent) {
  // 2^(120 + exponent) in both halves.
  constexpr unsigned kBoth = 0x00010001u;
  const bf16x2 factor{exponent * (kBoth << 7) + 120 * (kBoth << 7)};
  Bf16x8 to{{bits_of_fp8(codes.x << 8, codes.x << 4), bits_of_fp8(codes.x, codes.x >> 4),
             bits_of_fp8(codes.y << 8, codes.y << 4), bits_of_fp8(codes.y, codes.y >> 4)}};
#pragma unroll
  for (auto& pair : to.pair) pair = multiply(pair, factor);
  return to;
}

// Writes a position of a head's keys or values; a warp's work. `each(dim, number)` gets what pages
// then hold, as bf16.
template <class A, class Each>
__device__ inline void put_position(unsigned char* to, int position, const Head<A>& head,
                                    const Each& each) {
  if constexpr (!kFp8Pages) {
#pragma unroll
    for (int i = 0; i < Head<A>::kParts; ++i) {
      const bf16 rounded = to_bf16(head.part[i]);
      each(head.dim(i), rounded);
      reinterpret_cast<bf16*>(to)[page_at(position, head.dim(i))] = rounded;
    }
    return;
  }
  unsigned largest = 0;  // magnitudes are in the order of their bits, infinities and NaN last
#pragma unroll
  for (int i = 0; i < Head<A>::kParts; ++i) {
    largest = max(largest, __float_as_uint(head.part[i]) & 0x7fffffffu);
  }
  const int exponent = fp8_exponent(__reduce_max_sync(kAllLanes, largest));
#pragma unroll
  for (int i = 0; i < Head<A>::kParts; ++i) {
    const unsigned char code = to_fp8(head.part[i], exponent);
    to[position * A::kHeadDim + fp8_at(head.dim(i))] = code;
    const Bf16x8 wide = widened({code, 0}, exponent);
    each(head.dim(i), bf16{static_cast<unsigned short>(wide.pair[0].bits)});
  }
  if (threadIdx.x % kWarpLanes == 0) {
    to[target::PAGE * A::kHeadDim + position] = static_cast<unsigned char>(exponent);
  }
}

// Widens the positions of a block before `live`, codes and exponents, to bf16 with `kGroup`
// threads, of which this is number `thread`; `kAtOnce` vectors are under way. The others become
// zeros, for nobody may have written them; position `own` is left to the caller. `at(position,
// dim)` is where eight numbers lie.
template <class A, int kGroup, int kAtOnce, class At>
__device__ inline void widen_block(const unsigned char* from, int live, int own, int thread,
                                   const At& at) {
  constexpr int kVectors = A::kHeadDim / Bf16x8::kElements;
  constexpr int kStep = kGroup / kVectors;  // positions
  static_assert(kGroup % kVectors == 0 && target::PAGE % (kStep * kAtOnce) == 0, "whole rounds");
  const int first = thread / kVectors, dim = thread % kVectors * Bf16x8::kElements;
  const unsigned char* codes_at = from + first * A::kHeadDim + dim;
  const unsigned char* exponents_at = from + target::PAGE * A::kHeadDim + first;
  const bool is_whole = live >= target::PAGE;
#pragma unroll
  for (int start = 0; start < target::PAGE; start += kStep * kAtOnce) {
    uint2 codes[kAtOnce];
    unsigned exponents[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int position = start + i * kStep;
      codes[i] = *reinterpret_cast<const uint2*>(codes_at + position * A::kHeadDim);
      exponents[i] = exponents_at[position];
    }
    if (!is_whole) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const bool is_live = first + start + i * kStep < live;
        codes[i] = is_live ? codes[i] : uint2{};
        exponents[i] = is_live ? exponents[i] : kFp8ExponentMin;
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int position = first + start + i * kStep;
      const Bf16x8 numbers = widened(codes[i], exponents[i]);
      if (position != own) *reinterpret_cast<Bf16x8*>(at(position, dim)) = numbers;
    }
  }
}

}  // namespace atlas::tile
