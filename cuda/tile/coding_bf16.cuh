// BF16 weights, which are F16 on the device.
#pragma once

namespace atlas::tile {

template <>
struct Codec<Storage::f16> {
  static constexpr int kBits = 16;
  static constexpr int kOctets = 1;
  static constexpr int kScaleColumns = 0;
  static constexpr Factors kFactors = Factors::none;
  static constexpr float kLeftOut = 1.0f;
  struct Scale {};

  static constexpr int ahead(int) { return 4; }

  __device__ static void decode(const uint4& run, int, Scale, unsigned (&to)[4]) {
    to[0] = run.x;
    to[1] = run.y;
    to[2] = run.z;
    to[3] = run.w;
  }

  // Packs a lane's BF16 as F16: exact from 2^-17 to 2^16, rounded if smaller.
  __device__ static uint4 packed(const uint4& codes) {
    return each(codes, [](unsigned pair) {
      const float2 values = to_float2(bf16x2{pair});
      return to_f16x2(values.x, values.y).bits;
    });
  }
};

}  // namespace atlas::tile
