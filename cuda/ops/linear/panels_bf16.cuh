// Implements: Ops::linear
// Match:      any N, K a multiple of 128, every weight format of the target; operands bf16
// Bound by:   few rows: HBM (the weights, once); many rows: tensor instructions
// Sync:       one barrier a block (few rows) or a step of 128 columns (many); chained launch
#pragma once

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/stream.cuh"

namespace atlas::linear {

struct Params {
  const float* x;               // (rows, k)
  const unsigned char* weight;  // panels of (n, k)
  float* out;                   // (rows, n)
  int rows;
  int n;
  int k;
};

// Where sums of a panel go.
template <tile::Storage kStorage, class Put>
struct Sink {
  const tile::Matrix<kStorage>& w;
  float* out;  // of the block's first row

  __device__ void operator()(int panel, int g, int row, float low, float high) const {
    const int at = panel * tile::kPanelRows + g;
    float* to = out + static_cast<size_t>(row) * w.n;
    if (at < w.n) Put::put(to[at], low * w.row_scale(at));
    if (at + 8 < w.n) Put::put(to[at + 8], high * w.row_scale(at + 8));
  }
};

extern __shared__ __align__(128) unsigned char dynamic_shared[];

template <tile::Storage kStorage, int kTiles, class Shape, class Put>
__global__ __launch_bounds__(Shape::kThreads, tile::resident_blocks<Shape>(kTiles)) void stream(
    Params params) {
  using W = tile::Matrix<kStorage>;
  using Shared = tile::StreamStorage<Shape>;
  const auto staged = tile::StagedRows<Shape>::at(dynamic_shared + sizeof(Shared), params.rows,
                                                   params.k, W::kRawRows);
  ptx::griddepcontrol_launch_dependents();
  const auto share = tile::Share::of(tile::panels_of(params.n), blockIdx.x, gridDim.x);
  tile::Stream<kStorage, kTiles, Shape, tile::Panels> stage(
      *reinterpret_cast<Shared*>(dynamic_shared), {params.weight, params.n, share.first}, params.k,
      share.count);
  stage.prefetch();
  ptx::griddepcontrol_wait();  // the weights depend on nothing; everything below does
  staged.round(params.x, params.k);
  __syncthreads();  // the rows are staged
  const Sink<kStorage, Put> to{{params.weight, params.n, params.k}, params.out};
  const auto sink = [&](int unit, int g, int row, float low, float high) {
    to(share.first + unit, g, row, low, high);
  };
  stage.run(staged, sink);
}

template <tile::Storage kStorage, int kTiles, class Put>
__global__ __launch_bounds__(tile::kPanelThreads) void flat(Params params) {
  using Stage = tile::Flat<kStorage, kTiles>;
  __shared__ typename Stage::SharedStorage shared;
  ptx::griddepcontrol_launch_dependents();
  const tile::Matrix<kStorage> w{params.weight, params.n, params.k};
  Stage stage(w, blockIdx.x);
  stage.prefetch();
  ptx::griddepcontrol_wait();  // the weights depend on nothing; everything below does
  const auto x = [&](int row) { return params.x + static_cast<size_t>(row) * params.k; };
  stage.run(params.rows, x, Sink<kStorage, Put>{w, params.out}, shared);
}

template <tile::Storage kStorage, int kPanels, class Put>
__global__ __launch_bounds__(tile::kPanelThreads) void tiled(Params params) {
  using Stage = tile::Tiled<kStorage, kPanels>;
  __shared__ typename Stage::SharedStorage shared;
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const tile::Matrix<kStorage> w{params.weight, params.n, params.k};
  const int first = blockIdx.y * Stage::kRows;
  const auto x = [&](int row) { return params.x + static_cast<size_t>(first + row) * params.k; };
  const Sink<kStorage, Put> sink{w, params.out + static_cast<size_t>(first) * params.n};
  Stage(w, blockIdx.x).run(min(params.rows - first, Stage::kRows), x, sink, shared);
}

// What a block needs to stream for rows of any length in this model.
constexpr unsigned streaming() {
  using namespace target;
  unsigned most = 0;
  for (int k : {HIDDEN, 2 * HIDDEN, GDN_VALUE_HEADS * GDN_VALUE_DIM, HEADS * HEAD_DIM}) {
    for (unsigned bytes : {tile::stream_bytes<tile::Wide>(tile::kTileRows, k),
                           tile::stream_bytes<tile::Narrow>(tile::kTileRows, k),
                           tile::stream_bytes<tile::Tall>(tile::stream_rows(k), k)}) {
      most = bytes > most ? bytes : most;
    }
  }
  return most;
}

// With so many rows and fewer weights, registers are the better place for them.
inline constexpr int kFlatRowsMax = 64;

template <class Tile, class Put = tile::Stores>
struct PanelsBf16 {
  static_assert(Tile::kThreads == tile::kPanelThreads, "a block is the panels' warps");
  static constexpr unsigned kTiledBytes =
      sizeof(typename tile::Tiled<tile::Storage::bf16, 1>::SharedStorage);
  static_assert(Tile::kSharedBytes == (kTiledBytes > streaming() ? kTiledBytes : streaming()),
                "the manifest plans this storage");

  template <tile::Storage kStorage, int kTiles>
  static cudaError_t few(const Params& params, cudaStream_t stream) {
    const unsigned blocks = tile::Flat<kStorage, kTiles>::blocks(params.n, params.k);
    return launch_chained(flat<kStorage, kTiles, Put>, {blocks, tile::kPanelThreads, 0}, stream,
                          params);
  }

  template <tile::Storage kStorage, int kTiles, class Shape>
  static cudaError_t streamed(const Params& params, cudaStream_t stream) {
    const auto panels = static_cast<unsigned>(tile::panels_of(params.n));
    const Launch shape{min(panels, static_cast<unsigned>(target::SMS)), Shape::kThreads,
                       tile::stream_bytes<Shape>(params.rows, params.k)};
    return launch_chained(linear::stream<kStorage, kTiles, Shape, Put>, shape, stream, params);
  }

  // Up to a tile of rows.
  template <tile::Storage kStorage>
  static cudaError_t tile_streamed(const Params& params, cudaStream_t stream) {
    return tile::panels_of(params.n) > target::SMS
               ? streamed<kStorage, 1, tile::Wide>(params, stream)
               : streamed<kStorage, 1, tile::Narrow>(params, stream);
  }

  // Many weights, as often as a block has no room for all rows.
  template <tile::Storage kStorage>
  static cudaError_t tiles_streamed(Params params, cudaStream_t stream) {
    const int at_once = tile::stream_rows(params.k);
    cudaError_t failed = cudaSuccess;
    for (int left = params.rows; left > 0 && failed == cudaSuccess; left -= params.rows) {
      params.rows = min(left, at_once);
      if (params.rows <= tile::kTileRows) {
        failed = tile_streamed<kStorage>(params, stream);
      } else {
        failed = params.rows <= 2 * tile::kTileRows
                     ? streamed<kStorage, 2, tile::Tall>(params, stream)
                     : streamed<kStorage, 4, tile::Tall>(params, stream);
      }
      params.x += static_cast<size_t>(params.rows) * params.k;
      params.out += static_cast<size_t>(params.rows) * params.n;
    }
    return failed;
  }

  template <tile::Storage kStorage>
  static cudaError_t of(const Params& params, cudaStream_t stream) {
    if (params.rows <= tile::kTileRows) return tile_streamed<kStorage>(params, stream);
    if constexpr (tile::kLargeSm) {
      const bool large = tile::panels_of(params.n) > 2 * target::SMS;
      if (large && params.rows <= kFlatRowsMax) return tiles_streamed<kStorage>(params, stream);
    }
    if (params.rows <= 16) return few<kStorage, 2>(params, stream);
    if (params.rows <= 32) return few<kStorage, 4>(params, stream);
    if (params.rows <= kFlatRowsMax) return few<kStorage, 8>(params, stream);
    // Decoding takes registers, and FP8 a third set of sums: such a warp holds one panel.
    constexpr int kPanels = kStorage == tile::Storage::bf16 ? 2 : 1;
    using Stage = tile::Tiled<kStorage, kPanels>;
    const unsigned rows = blocks_for(params.rows, Stage::kRows);
    return launch_chained(tiled<kStorage, kPanels, Put>,
                          {Stage::blocks(params.n), tile::kPanelThreads, 0, rows}, stream, params);
  }

  static constexpr bool used(tile::Storage storage) {
    using namespace target;
    for (Format format : {Format::bf16, FORMAT_EMBED, FORMAT_HEAD, FORMAT_GDN, FORMAT_ATTENTION,
                          FORMAT_SHARED_EXPERT, FORMAT_MTP_ATTENTION, FORMAT_MTP_EXPERTS}) {
      if (tile::storage_of(format) == storage) return true;
    }
    return false;
  }

  static cudaError_t launch(const float* x, const unsigned char* weight, float* out, unsigned rows,
                            unsigned n, unsigned k, unsigned format, cudaStream_t stream) {
    using tile::Storage;
    if (rows == 0) return cudaSuccess;
    const Params params{x, weight, out, static_cast<int>(rows), static_cast<int>(n),
                        static_cast<int>(k)};
    if (format == static_cast<unsigned>(Storage::bf16)) return of<Storage::bf16>(params, stream);
    if constexpr (used(Storage::nvfp4)) {
      if (format == static_cast<unsigned>(Storage::nvfp4)) {
        return of<Storage::nvfp4>(params, stream);
      }
    }
    if constexpr (used(Storage::fp8_block128)) {
      if (format == static_cast<unsigned>(Storage::fp8_block128)) {
        return of<Storage::fp8_block128>(params, stream);
      }
    }
    return cudaErrorInvalidValue;
  }
};

}  // namespace atlas::linear
