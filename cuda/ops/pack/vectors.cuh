// Implements: Loader::load
// Match:      rows of one matrix as the checkpoint has them, in BF16, NVFP4, MXFP4 or FP8
// Bound by:   HBM; the copy before it, over the link to the host, takes far longer
// Sync:       lanes of a run exchange words; one 16-byte vector a thread; chained launch
//
// A row becomes a row of a panel: runs of 64 bytes, the words of which are in the order that is
// decoded. What decoding leaves out of a value is in its factor.
#pragma once

#include "base/launch.cuh"
#include "base/types.cuh"
#include "target.cuh"
#include "tile/panels.cuh"
#include "tile/ptx.cuh"

namespace atlas::pack {

using tile::Storage;

// Rows of one matrix that lie side by side where several take turns.
inline constexpr unsigned kTurnRows = tile::kPanelRows / 2;
inline constexpr unsigned kRunVectors = tile::kRunBytes / kVectorBytes;
// Rows and columns that share an FP8 scale; as many columns have 8 bytes of NVFP4 scales.
inline constexpr unsigned kBlock = tile::kBlockColumns;
// Threads of a launch.
inline constexpr unsigned kItemsMax = 1u << 31;

struct Params {
  // Codes (rows, k), scales (rows, k / 16), F32 (1), of rows or of blocks, biases F32 (rows)
  const unsigned char* stored;
  unsigned char* weight;        // panels (n, k)
  unsigned rows;
  unsigned zeros;  // rows behind them that fill the last panel
  unsigned first;
  unsigned turn;
  unsigned n;
  unsigned k;
};

template <class Word>
__device__ inline uint4 each(const uint4& words, Word word) {
  return {word(words.x), word(words.y), word(words.z), word(words.w)};
}

// Bits of both halves of a word.
__device__ inline unsigned of_both(unsigned word, unsigned bits) {
  return word & (bits | bits << 16);
}

// Forms that a lane's vector of a run is stored in.
struct F16 {
  static constexpr Storage kStorage = Storage::f16;

  // Below 2^16 a BF16 is an F16 from 2^-17 on, and rounded below.
  __device__ static uint4 of(const uint4& codes) {
    return each(codes, [](unsigned pair) {
      const float2 values = to_float2(bf16x2{pair});
      return to_f16x2(values.x, values.y).bits;
    });
  }
};

struct Fp8 {
  static constexpr Storage kStorage = Storage::fp8_block128;
  static constexpr float kLeftOut = 256.0f;

  // Columns 0 and 1 as an F16 holds them, 2 and 3 into the bits that are left.
  __device__ static uint4 of(const uint4& codes) {
    return each(codes, [](unsigned word) {
      const unsigned whole = __byte_perm(word, 0, 0x4140), between = __byte_perm(word, 0, 0x4342);
      return of_both(whole, 0x80) << 8 | of_both(whole, 0x7f) << 7 | of_both(between, 0x80) << 7 |
             of_both(between, 0x7f);
    });
  }
};

struct Nvfp4 {
  static constexpr Storage kStorage = Storage::nvfp4;
  static constexpr float kLeftOut = 128.0f;

  // Every second one of 8 codes, side by side.
  __device__ static unsigned even(unsigned word) {
    const unsigned codes = word & 0x0f0f0f0fu;
    return __byte_perm(codes | codes >> 4, 0, 0x4420);
  }

  // Even columns into the low half and odd ones into the high half: of four the first as an F16
  // holds it, the others where one shift brings sign and magnitude to its place.
  __device__ static uint4 of(const uint4& codes) {
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

struct Mxfp4 : Nvfp4 {
  static constexpr Storage kStorage = Storage::mxfp4;
  static constexpr float kLeftOut = 16384.0f;
};

// NVFP4 as `fp4.cuh` has it.
struct BlockScaled {
  static constexpr Storage kStorage = Storage::nvfp4;
  static constexpr float kLeftOut = 1.0f;

  __device__ static unsigned word(const uint4& words, unsigned index) {
    const unsigned low = index & 1 ? words.y : words.x, high = index & 1 ? words.w : words.z;
    return index & 2 ? high : low;
  }

  // Lane `q` of a run gets word `q` of every lane.
  __device__ static uint4 of(const uint4& codes) {
    const unsigned q = threadIdx.x % kRunVectors;
    unsigned from[kRunVectors];
#pragma unroll
    for (unsigned apart = 0; apart < kRunVectors; ++apart) {
      from[apart] = __shfl_xor_sync(tile::kAllLanes, word(codes, q ^ apart), apart);
    }
    const uint4 all{from[0], from[1], from[2], from[3]};
    return {word(all, q), word(all, q ^ 1), word(all, q ^ 2), word(all, q ^ 3)};
  }
};

// Rows as they are stored.
template <class Codes>
struct Rows {
  using W = tile::Matrix<Codes::kStorage>;

  const Params& params;

  __host__ __device__ static unsigned vectors(unsigned k) { return k / W::kGroup * kRunVectors; }

  __device__ uint4 codes(unsigned row, unsigned vector) const {
    const auto* from = reinterpret_cast<const uint4*>(params.stored);
    return from[static_cast<size_t>(row) * vectors(params.k) + vector];
  }

  __device__ const unsigned char* scales() const {
    return params.stored + static_cast<size_t>(params.rows) * vectors(params.k) * kVectorBytes;
  }

  // Scales of a row's block of columns, in NVFP4.
  __device__ uint2 block_scales(unsigned row, unsigned block) const {
    const auto* from = reinterpret_cast<const uint2*>(scales());
    return from[static_cast<size_t>(row) * (params.k / kBlock) + block];
  }

  // Numbers behind codes and scales of 16 columns.
  __device__ const float* numbers() const {
    size_t bytes = 0;
    if (W::kNvfp4) bytes = static_cast<size_t>(params.rows) * blocks() * sizeof(uint2);
    return reinterpret_cast<const float*>(scales() + bytes);
  }

  __device__ unsigned blocks() const { return params.k / kBlock; }

  // Factor of the matrix, of the row, or of its block of columns.
  __device__ float factor(unsigned row, unsigned block) const {
    if constexpr (Codes::kStorage == Storage::mxfp4) return numbers()[row];
    if constexpr (W::kNvfp4) return numbers()[0];
    return numbers()[row / kBlock * blocks() + block];
  }

  // Bias of a row's sums, behind all factors.
  __device__ float bias(unsigned row) const {
    unsigned factors = 0;
    if (W::kNvfp4) factors = Codes::kStorage == Storage::mxfp4 ? params.rows : 1;
    if (W::kFp8) factors = (params.rows + kBlock - 1) / kBlock * blocks();
    return numbers()[factors + row];
  }
};

// A row of the panels.
template <class Codes>
struct PanelRow {
  using W = tile::Matrix<Codes::kStorage>;

  const Params& params;
  unsigned row;

  __device__ unsigned panel() const { return row / tile::kPanelRows; }
  __device__ unsigned at() const { return row % tile::kPanelRows; }

  __device__ uint4& codes(unsigned vector) const {
    const size_t run = static_cast<size_t>(panel()) * (params.k / W::kGroup) + vector / kRunVectors;
    unsigned char* to = params.weight + (run * tile::kPanelRows + at()) * tile::kRunBytes;
    return reinterpret_cast<uint4*>(to)[vector % kRunVectors];
  }

  // The scales of all the panel's rows.
  __device__ unsigned char* scales(unsigned block) const {
    const size_t index = static_cast<size_t>(panel()) * (params.k / kBlock) + block;
    return params.weight + W::code_bytes(params.n, params.k) + index * W::kBlockScaleBytes;
  }

  __device__ uint2& block_scales(unsigned block) const {
    return reinterpret_cast<uint2*>(scales(block))[at()];
  }

  // Factor of the row, or of its half of the panel.
  __device__ float& factor(unsigned block) const {
    if constexpr (W::kFp8) return reinterpret_cast<float*>(scales(block))[at() / kTurnRows];
    return of_rows(W::bytes(params.n, params.k) - W::bias_bytes(params.n));
  }

  __device__ float& bias() const { return of_rows(W::bytes(params.n, params.k)); }

  // The row's number among those of all rows, which end behind so many bytes.
  __device__ float& of_rows(size_t end) const {
    const size_t rows = static_cast<size_t>(tile::panels_of(params.n)) * tile::kPanelRows;
    return reinterpret_cast<float*>(params.weight + end - rows * sizeof(float))[row];
  }
};

// A vector of codes and what goes with it: nothing for a row of zeros.
struct Item {
  uint4 codes{};
  uint2 scales{};
  float factor = 0.0f;
  float bias = 0.0f;
};

template <class Codes>
struct Stage {
  using W = tile::Matrix<Codes::kStorage>;
  static constexpr bool kScales = W::kNvfp4;
  static constexpr bool kFactor = W::kNvfp4 || W::kFp8;
  // Vectors of a row's block of columns.
  static constexpr unsigned kBlockVectors = kBlock / W::kGroup * kRunVectors;

  const Params& params;
  unsigned row;     // of those that are stored
  unsigned vector;  // of the row

  __device__ PanelRow<Codes> to() const {
    return {params, params.first + row / kTurnRows * params.turn + row % kTurnRows};
  }
  __device__ bool begins_block() const { return vector % kBlockVectors == 0; }
  __device__ bool has_factor() const {
    return W::kFp8 ? begins_block() && to().row % kTurnRows == 0 : vector == 0;
  }

  __device__ Item load() const {
    Item item;
    if (row >= params.rows) return item;
    const Rows<Codes> from{params};
    item.codes = from.codes(row, vector);
    if constexpr (kScales) {
      if (begins_block()) item.scales = from.block_scales(row, vector / kBlockVectors);
    }
    if constexpr (kFactor) {
      if (has_factor()) item.factor = from.factor(row, vector / kBlockVectors) * Codes::kLeftOut;
    }
    if (target::BIASED && vector == 0) item.bias = from.bias(row);
    return item;
  }

  __device__ void store(const Item& item) const {
    if (row >= params.rows + params.zeros) return;
    to().codes(vector) = item.codes;
    if constexpr (kScales) {
      if (begins_block()) to().block_scales(vector / kBlockVectors) = item.scales;
    }
    if constexpr (kFactor) {
      if (has_factor()) to().factor(vector / kBlockVectors) = item.factor;
    }
    if (target::BIASED && vector == 0) to().bias() = item.bias;
  }
};

template <class Tile, class Codes>
__global__ __launch_bounds__(Tile::kThreads) void vectors(Params params) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const unsigned item = blockIdx.x * Tile::kThreads + threadIdx.x;
  const unsigned width = Rows<Codes>::vectors(params.k);
  const Stage<Codes> stage{params, item / width, item % width};
  Item loaded = stage.load();
  loaded.codes = Codes::of(loaded.codes);
  stage.store(loaded);
}

template <class Tile>
struct Vectors {
  template <class Codes>
  static cudaError_t of(const Params& params, cudaStream_t stream) {
    if (!tile::Matrix<Codes::kStorage>::has(params.k)) return cudaErrorInvalidValue;
    const unsigned rows = params.rows + params.zeros, width = Rows<Codes>::vectors(params.k);
    if (rows > kItemsMax / width) return cudaErrorInvalidValue;
    const Launch shape{blocks_for(rows * width, Tile::kThreads), Tile::kThreads, 0};
    return launch_chained(vectors<Tile, Codes>, shape, stream, params);
  }

  static cudaError_t launch(const unsigned char* stored, unsigned char* weight, unsigned rows,
                            unsigned first, unsigned turn, unsigned n, unsigned k, unsigned format,
                            cudaStream_t stream) {
    if (rows == 0) return cudaSuccess;
    const unsigned end = first + (rows - 1) / kTurnRows * turn + (rows - 1) % kTurnRows + 1;
    const bool whole = turn == kTurnRows || (rows % kTurnRows == 0 && first % kTurnRows == 0);
    if (k == 0 || !whole || end > n) return cudaErrorInvalidValue;
    const unsigned zeros = end == n ? tile::panels_of(n) * tile::kPanelRows - n : 0;
    const Params params{stored, weight, rows, zeros, first, turn, n, k};
    switch (format) {
      case static_cast<unsigned>(Storage::f16):
        return of<F16>(params, stream);
      case static_cast<unsigned>(Storage::nvfp4):
        return of<Nvfp4>(params, stream);
      case static_cast<unsigned>(Storage::fp8_block128):
        return of<Fp8>(params, stream);
      case static_cast<unsigned>(Storage::mxfp4):
        return of<Mxfp4>(params, stream);
      case tile::kBlockScaled:
        return of<BlockScaled>(params, stream);
      default:
        return cudaErrorInvalidValue;
    }
  }
};

}  // namespace atlas::pack
