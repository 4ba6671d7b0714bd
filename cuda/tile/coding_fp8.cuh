// FP8: E4M3 with a factor per block of 128 x 128. Of each four columns, two are stored where an F16
// has sign, exponent and mantissa, the other two in the bits between.
#pragma once

namespace atlas::tile {

// Decoding of E4M3.
struct E4m3 {
  static constexpr int kBits = 8;
  static constexpr int kOctets = 2;

  // Exponent and mantissa, as bits of an F16, are the value times 2^-8.
  __device__ static void decode(const uint4& run, int octet, unsigned (&to)[4]) {
    constexpr unsigned kMagnitude = 0x3f803f80u, kSign = 0x80008000u;
    const unsigned words[2] = {octet == 0 ? run.x : run.z, octet == 0 ? run.y : run.w};
#pragma unroll
    for (int word = 0; word < 2; ++word) {
      const unsigned codes = words[word];
      to[2 * word] = codes & (kMagnitude | kSign);
      to[2 * word + 1] = ((codes << 7) & kMagnitude) | ((codes << 1) & kSign);
    }
  }

  // Packs columns 0 and 1 in an F16's bits, 2 and 3 in the bits that are left.
  __device__ static uint4 packed(const uint4& codes) {
    return each(codes, [](unsigned word) {
      const unsigned whole = __byte_perm(word, 0, 0x4140), between = __byte_perm(word, 0, 0x4342);
      return of_both(whole, 0x80) << 8 | of_both(whole, 0x7f) << 7 | of_both(between, 0x80) << 7 |
             of_both(between, 0x7f);
    });
  }
};

template <>
struct Codec<Storage::fp8_block128> : E4m3 {
  static constexpr int kScaleColumns = 0;
  static constexpr Factors kFactors = Factors::blocks;
  static constexpr float kLeftOut = 256.0f;
  struct Scale {};

  // Groups loaded ahead: sums of blocks take registers beside those of rows.
  static constexpr int ahead(int tiles) { return tiles > 2 ? 2 : 4; }

  __device__ static void decode(const uint4& run, int octet, Scale, unsigned (&to)[4]) {
    E4m3::decode(run, octet, to);
  }
};

}  // namespace atlas::tile
