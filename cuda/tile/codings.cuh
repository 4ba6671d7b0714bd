// Codings of weights on the device, one file each; `src/model/weights/codings/` has the host's.
#pragma once

#include "base/types.cuh"
#include "target.cuh"

namespace atlas::tile {

// Coding of a matrix on the device; numbers are those of `format` in ops.toml.
enum class Storage : unsigned {
  f16 = static_cast<unsigned>(target::Format::bf16),
  nvfp4 = static_cast<unsigned>(target::Format::nvfp4),
  fp8_block128 = static_cast<unsigned>(target::Format::fp8),
  mxfp4 = static_cast<unsigned>(target::Format::mxfp4),
};
// Number of `format` in ops.toml for NVFP4 in the layout of `fp4.cuh`.
inline constexpr unsigned kBlockScaled = 31;

__host__ __device__ constexpr Storage storage_of(target::Format format) {
  return static_cast<Storage>(format);
}

// Scope of the F32 factors beside one-byte scales; blocks are of 128 rows and columns.
enum class Factors { none, matrix, rows, blocks };

// A coding. `decode` converts `kOctets` times 8 columns of a lane's 16 bytes into operands
// of two instructions. `packed` rearranges 16 bytes of the checkpoint for it. `kLeftOut` is a
// factor that decoding leaves out and the matrix's factor includes. `kScaleColumns` columns share a
// one-byte scale, if any do; a `Scale` is the scales of a lane's 16 bytes. `ahead(tiles)` is how
// many groups of columns fit in registers beside the sums of so many tiles.
template <Storage kStorage>
struct Codec;

__device__ inline unsigned scaled(unsigned pair, f16x2 scale) {
  return multiply({pair}, scale).bits;
}

template <class Word>
__device__ inline uint4 each(const uint4& words, Word word) {
  return {word(words.x), word(words.y), word(words.z), word(words.w)};
}

// Bits `bits` of both halves of a word.
__device__ inline unsigned of_both(unsigned word, unsigned bits) {
  return word & (bits | bits << 16);
}

}  // namespace atlas::tile

#include "tile/coding_bf16.cuh"
#include "tile/coding_fp8.cuh"
#include "tile/coding_mxfp4.cuh"
#include "tile/coding_nvfp4.cuh"

namespace atlas::tile {

// A coding's number as a type.
template <Storage kStorage>
struct Constant {
  static constexpr Storage value = kStorage;
};

template <Storage... kStorages>
struct Storages {};

// All codings that the target uses; F16 is the last.
using AllStorages =
    Storages<Storage::nvfp4, Storage::fp8_block128, Storage::mxfp4, Storage::f16>;

// Calls `body(constant)` with all codings in turn until it returns true, on `body`'s side.
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

// Whether F32 factors are of blocks.
__host__ __device__ constexpr bool has_blocks(Storage storage) {
  return any_storage([&](auto each) {
    return each.value == storage && Codec<each.value>::kFactors == Factors::blocks;
  });
}

// Bits of a weight without scales.
__host__ __device__ constexpr int bits_of(Storage storage) {
  int bits = 0;
  any_storage([&](auto each) {
    if (each.value == storage) bits = Codec<each.value>::kBits;
    return bits > 0;
  });
  return bits;
}

}  // namespace atlas::tile
