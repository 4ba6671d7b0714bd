// NVFP4: E2M1 with an E4M3 scale per 16 columns and a factor of the matrix. Of 8 columns, even ones
// are in the low half of a word and odd ones in the high half, so that one shift brings sign and
// magnitude of two of them to the bits of an F16.
#pragma once

namespace atlas::tile {

// Decoding of E2M1. Exponent and mantissa, as bits of an F16, are the value times 2^-14;
// products with scales are exact.
struct E2m1 {
  static constexpr int kBits = 4;
  static constexpr int kOctets = 4;
  static constexpr int kScaleColumns = 16;
  // Scales of a lane's 32 columns: one byte for the first 16, one for the last.
  using Scale = unsigned short;

  static constexpr int ahead(int tiles) { return tiles > 1 ? 3 : 4; }

  __device__ static void decode(const uint4& run, int octet, f16x2 factor, unsigned (&to)[4]) {
    const unsigned codes = octet == 0 ? run.x : octet == 1 ? run.y : octet == 2 ? run.z : run.w;
    constexpr unsigned kMagnitude = 0x0e000e00u, kSign = 0x80008000u;
    to[0] = scaled(codes & (kMagnitude | kSign), factor);
    to[1] = scaled((codes << 3) & (kMagnitude | kSign), factor);
    to[3] = scaled(((codes << 6) & kMagnitude) | ((codes << 2) & kSign), factor);
    // A multiplication shifts by 9 and by 1 at once: no bits of both results coincide.
    constexpr unsigned kThird = kMagnitude >> 9 | kSign >> 1, kMoves = 1u << 9 | 1u << 1;
    to[2] = scaled((codes & kThird) * kMoves & (kMagnitude | kSign), factor);
  }

  // Every second one of 8 codes, packed side by side.
  __device__ static unsigned even(unsigned word) {
    const unsigned codes = word & 0x0f0f0f0fu;
    return __byte_perm(codes | codes >> 4, 0, 0x4420);
  }

  // Packs even columns into the low half and odd ones into the high half: of four, the first as in
  // an F16, the others so that one shift brings sign and magnitude there.
  __device__ static uint4 packed(const uint4& codes) {
    return each(codes, [](unsigned word) {
      const unsigned halves = even(word) | even(word >> 4) << 16;
      const unsigned first = of_both(halves, 0x0008) << 12 | of_both(halves, 0x0007) << 9;
      const unsigned second = of_both(halves, 0x0080) << 5 | of_both(halves, 0x0070) << 2;
      const unsigned third = of_both(halves, 0x0800) << 3 | of_both(halves, 0x0700) >> 8;
      const unsigned fourth = of_both(halves, 0x8000) >> 2 | of_both(halves, 0x7000) >> 9;
      return first | second | third | fourth;
    });
  }
};

template <>
struct Codec<Storage::nvfp4> : E2m1 {
  static constexpr Factors kFactors = Factors::matrix;
  static constexpr float kLeftOut = 128.0f;

  // E4M3 in the bits of an F16 is the value times 2^-8; the matrix's factor has the missing 2^7.
  __device__ static void decode(const uint4& run, int octet, Scale scales, unsigned (&to)[4]) {
    const unsigned e4m3 = __byte_perm(scales, 0, octet < 2 ? 0x4040 : 0x4141);
    constexpr f16x2 kUp{0x78007800u};  // 2^15, both
    E2m1::decode(run, octet, multiply({(e4m3 << 7) & 0x3f803f80u}, kUp), to);
  }
};

}  // namespace atlas::tile
