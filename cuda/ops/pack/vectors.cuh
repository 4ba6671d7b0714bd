// Implements: Loader::load
// Match:      rows of one matrix as the checkpoint has them, in any coding
// Bound by:   HBM; the copy before it, over the link to the host, takes far longer
// Sync:       lanes of a run exchange words; one 16-byte vector a thread; chained launch
//
// A row becomes a row of a panel: runs of 64 bytes, whose words are in the order of decoding. The
// part of a value that decoding leaves out is in its factor.
#pragma once

#include <type_traits>

#include "base/launch.cuh"
#include "base/types.cuh"
#include "target.cuh"
#include "tile/panels.cuh"
#include "tile/ptx.cuh"

namespace atlas::pack {

using tile::Factors;
using tile::Storage;

// Adjacent rows of one matrix in a panel where two matrices are interleaved, as gate and up are.
inline constexpr unsigned kGroupRows = tile::kPanelRows / 2;
inline constexpr unsigned kRunVectors = tile::kRunBytes / kVectorBytes;
// Rows and columns that share a block's factor.
inline constexpr unsigned kBlock = tile::kBlockColumns;
// Most threads of a launch.
inline constexpr unsigned kItemsMax = 1u << 31;

struct Params {
  // Stored rows: codes (rows, k), then scales, factors F32, biases F32 (rows).
  const unsigned char* stored;
  unsigned char* weight;        // panels (n, k)
  unsigned rows;
  unsigned zeros;  // rows of zeros after `stored` that fill the last panel
  unsigned first;
  // Distance in the panels between groups of `kGroupRows` stored rows.
  unsigned stride;
  unsigned n;
  unsigned k;
};

// Rearrangement of a lane's vector of a run, for a coding's panels.
template <Storage kOf>
struct Panels {
  static constexpr Storage kStorage = kOf;
  static constexpr float kLeftOut = tile::Codec<kOf>::kLeftOut;

  __device__ static uint4 of(const uint4& codes) { return tile::Codec<kOf>::packed(codes); }
};

// Coding of NVFP4 in the layout of `fp4.cuh`.
struct BlockScaled {
  static constexpr Storage kStorage = Storage::nvfp4;
  static constexpr float kLeftOut = 1.0f;

  __device__ static unsigned word(const uint4& words, unsigned index) {
    const unsigned low = index & 1 ? words.y : words.x, high = index & 1 ? words.w : words.z;
    return index & 2 ? high : low;
  }

  // Transposes words between the four lanes of a run: lane `q` gets word `q` of every lane.
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

// Scales of a row's group of columns.
template <class W, int kBytes = W::kRowScaleBytes>
using GroupScales = std::conditional_t<
    kBytes == 8, uint2,
    std::conditional_t<kBytes == 4, unsigned,
                       std::conditional_t<kBytes == 2, unsigned short, unsigned char>>>;

// Rows of a matrix in the layout of `Params::stored`.
template <class Codes>
struct Rows {
  using W = tile::Matrix<Codes::kStorage>;
  static_assert(W::kRowScaleBytes == 0 || W::kRowScaleBytes == sizeof(GroupScales<W>));

  const Params& params;

  __host__ __device__ static unsigned vectors(unsigned k) { return k / W::kGroup * kRunVectors; }

  __device__ uint4 codes(unsigned row, unsigned vector) const {
    const auto* from = reinterpret_cast<const uint4*>(params.stored);
    return from[static_cast<size_t>(row) * vectors(params.k) + vector];
  }

  __device__ const unsigned char* scales() const {
    return params.stored + static_cast<size_t>(params.rows) * vectors(params.k) * kVectorBytes;
  }

  // Scales of a row's group of columns.
  __device__ GroupScales<W> group_scales(unsigned row, unsigned group) const {
    const auto* from = reinterpret_cast<const GroupScales<W>*>(scales());
    return from[static_cast<size_t>(row) * (params.k / W::kGroup) + group];
  }

  // Numbers in F32, stored after codes and scales.
  __device__ const float* numbers() const {
    const size_t groups = static_cast<size_t>(params.rows) * (params.k / W::kGroup);
    const size_t bytes = groups * W::kRowScaleBytes;
    return reinterpret_cast<const float*>(scales() + bytes);
  }

  __device__ unsigned blocks() const { return params.k / kBlock; }

  // Factor of the matrix, of a row, or of a block of columns, as the coding has it.
  __device__ float factor(unsigned row, unsigned block) const {
    if constexpr (W::Code::kFactors == Factors::rows) return numbers()[row];
    if constexpr (W::Code::kFactors == Factors::matrix) return numbers()[0];
    return numbers()[row / kBlock * blocks() + block];
  }

  // Bias of a row's sums, stored after all factors.
  __device__ float bias(unsigned row) const {
    unsigned factors = 0;
    if (W::kRowFactors) factors = W::Code::kFactors == Factors::rows ? params.rows : 1;
    if (W::kBlockFactors) factors = (params.rows + kBlock - 1) / kBlock * blocks();
    return numbers()[factors + row];
  }
};

// Destination of a row in the panels.
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

  // The row's scales of a group of columns.
  __device__ GroupScales<W>& group_scales(unsigned group) const {
    const size_t index = static_cast<size_t>(panel()) * (params.k / W::kGroup) + group;
    unsigned char* to = params.weight + W::code_bytes(params.n, params.k);
    return reinterpret_cast<GroupScales<W>*>(to + index * W::kGroupScaleBytes)[at()];
  }

  // Address of the factors of all rows of the panel in a block of columns.
  __device__ unsigned char* factors(unsigned block) const {
    const size_t index = static_cast<size_t>(panel()) * (params.k / kBlock) + block;
    return params.weight + W::code_bytes(params.n, params.k) + index * W::kBlockScaleBytes;
  }

  // Factor of the row, or of the half of the panel that has the row.
  __device__ float& factor(unsigned block) const {
    if constexpr (W::kBlockFactors) {
      return reinterpret_cast<float*>(factors(block))[at() / kGroupRows];
    }
    return of_rows(W::bytes(params.n, params.k) - W::bias_bytes(params.n));
  }

  __device__ float& bias() const { return of_rows(W::bytes(params.n, params.k)); }

  // Element of the row in an array of F32 for all rows, which ends `end` bytes into the matrix.
  __device__ float& of_rows(size_t end) const {
    const size_t rows = static_cast<size_t>(tile::panels_of(params.n)) * tile::kPanelRows;
    return reinterpret_cast<float*>(params.weight + end - rows * sizeof(float))[row];
  }
};

// A vector of codes with its scales; zeros for a row of padding.
template <class W>
struct Item {
  uint4 codes{};
  GroupScales<W> scales{};
  float factor = 0.0f;
  float bias = 0.0f;
};

template <class Codes>
struct Stage {
  using W = tile::Matrix<Codes::kStorage>;
  static constexpr bool kFactor = W::kRowFactors || W::kBlockFactors;
  // Vectors of a row in a block of columns.
  static constexpr unsigned kBlockVectors = kBlock / W::kGroup * kRunVectors;

  const Params& params;
  unsigned row;     // index among the stored rows
  unsigned vector;  // of the row

  __device__ PanelRow<Codes> to() const {
    return {params, params.first + row / kGroupRows * params.stride + row % kGroupRows};
  }
  __device__ bool begins_group() const { return vector % kRunVectors == 0; }
  __device__ bool begins_block() const { return vector % kBlockVectors == 0; }
  __device__ bool has_factor() const {
    return W::kBlockFactors ? begins_block() && to().row % kGroupRows == 0 : vector == 0;
  }

  __device__ Item<W> load() const {
    Item<W> item;
    if (row >= params.rows) return item;
    const Rows<Codes> from{params};
    item.codes = from.codes(row, vector);
    if constexpr (W::kScales) {
      if (begins_group()) item.scales = from.group_scales(row, vector / kRunVectors);
    }
    if constexpr (kFactor) {
      if (has_factor()) item.factor = from.factor(row, vector / kBlockVectors) * Codes::kLeftOut;
    }
    if (target::BIASED && vector == 0) item.bias = from.bias(row);
    return item;
  }

  __device__ void store(const Item<W>& item) const {
    if (row >= params.rows + params.zeros) return;
    to().codes(vector) = item.codes;
    if constexpr (W::kScales) {
      if (begins_group()) to().group_scales(vector / kRunVectors) = item.scales;
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
  auto loaded = stage.load();
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
                            unsigned first, unsigned stride, unsigned n, unsigned k,
                            unsigned format, cudaStream_t stream) {
    if (rows == 0) return cudaSuccess;
    const unsigned end = first + (rows - 1) / kGroupRows * stride + (rows - 1) % kGroupRows + 1;
    const bool whole = stride == kGroupRows || (rows % kGroupRows == 0 && first % kGroupRows == 0);
    if (k == 0 || !whole || end > n) return cudaErrorInvalidValue;
    const unsigned zeros = end == n ? tile::panels_of(n) * tile::kPanelRows - n : 0;
    const Params params{stored, weight, rows, zeros, first, stride, n, k};
    if (format == tile::kBlockScaled) return of<BlockScaled>(params, stream);
    cudaError_t result = cudaErrorInvalidValue;
    tile::any_storage([&](auto storage) {
      if (format != static_cast<unsigned>(storage.value)) return false;
      result = of<Panels<storage.value>>(params, stream);
      return true;
    });
    return result;
  }
};

}  // namespace atlas::pack
