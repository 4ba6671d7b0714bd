// Codings of weights on the device, one file each; `src/model/weights/codings/` is the other side.
#pragma once

#include "base/types.cuh"
#include "target.cuh"

namespace atlas::tile {

// Storage of weights on the device; the numbers are those of `format` in ops.toml.
enum class Storage : unsigned {
  f16 = static_cast<unsigned>(target::Format::bf16),
  nvfp4 = static_cast<unsigned>(target::Format::nvfp4),
  fp8_block128 = static_cast<unsigned>(target::Format::fp8),
  mxfp4 = static_cast<unsigned>(target::Format::mxfp4),
};
// Number of `format` in ops.toml: NVFP4 as `fp4.cuh` has it.
inline constexpr unsigned kBlockScaled = 31;

__host__ __device__ constexpr Storage storage_of(target::Format format) {
  return static_cast<Storage>(format);
}

// Owners of factors in F32 beside scales; blocks are of 128 rows and columns.
enum class Factors { none, matrix, rows, blocks };

// `kOctets` times 8 consecutive columns of a lane's 16 bytes become two instructions' operands:
// `decode`. `packed` puts a lane's 16 bytes of the checkpoint into the order that is decoded, and
// `kLeftOut` is what decoding leaves out of a value: its factor has it. `kScaleColumns` columns
// share a scale of a byte, if any do; a `Scale` is those of a lane's 16 bytes. `ahead` is how many
// groups of columns registers have room for beside the sums of so many tiles.
template <Storage kStorage>
struct Codec;

__device__ inline unsigned scaled(unsigned pair, f16x2 scale) {
  return multiply({pair}, scale).bits;
}

template <class Word>
__device__ inline uint4 each(const uint4& words, Word word) {
  return {word(words.x), word(words.y), word(words.z), word(words.w)};
}

// Bits of both halves of a word.
__device__ inline unsigned of_both(unsigned word, unsigned bits) {
  return word & (bits | bits << 16);
}

}  // namespace atlas::tile

#include "tile/coding_bf16.cuh"
#include "tile/coding_fp8.cuh"
#include "tile/coding_mxfp4.cuh"
#include "tile/coding_nvfp4.cuh"

namespace atlas::tile {

// A storage as a type.
template <Storage kStorage>
struct Constant {
  static constexpr Storage value = kStorage;
};

template <Storage... kStorages>
struct Storages {};

// F16 is the last.
using AllStorages =
    Storages<Storage::nvfp4, Storage::fp8_block128, Storage::mxfp4, Storage::f16>;

// `body(constant)` of all storages in turn, until one gives true; on the side that `body` is for.
#pragma nv_exec_check_disable
template <class Body, Storage... kAll>
__host__ __device__ constexpr bool any_storage(const Body& body, Storages<kAll...>) {
  return (body(Constant<kAll>{}) || ...);
}

#pragma nv_exec_check_disable
template <class Body>
__host__ __device__ constexpr bool any_storage(const Body& body) {
  return any_storage(body, AllStorages{});
}

// Whether factors are of blocks.
__host__ __device__ constexpr bool has_blocks(Storage storage) {
  return any_storage([&](auto each) {
    return each.value == storage && Codec<each.value>::kFactors == Factors::blocks;
  });
}

// Bits of a weight, scales left out.
__host__ __device__ constexpr int bits_of(Storage storage) {
  int bits = 0;
  any_storage([&](auto each) {
    if (each.value == storage) bits = Codec<each.value>::kBits;
    return bits > 0;
  });
  return bits;
}

}  // namespace atlas::tile
