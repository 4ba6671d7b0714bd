// MXFP4: E2M1 with a power of two, the upper byte of an F16, per 16 columns, and a factor per row.
#pragma once

#include "tile/coding_nvfp4.cuh"

namespace atlas::tile {

template <>
struct Codec<Storage::mxfp4> : E2m1 {
  static constexpr Factors kFactors = Factors::rows;
  static constexpr float kLeftOut = 16384.0f;

  // Decodes to values times 2^-14; the row's factor includes 2^14.
  __device__ static void decode(const uint4& run, int octet, Scale scales, unsigned (&to)[4]) {
    E2m1::decode(run, octet, {__byte_perm(scales, 0, octet < 2 ? 0x0404 : 0x1414)}, to);
  }
};

}  // namespace atlas::tile
