// Implements: Ops::linear
// Match:      any N, K a multiple of 128, every weight format of the target; operands bf16
// Bound by:   few rows: HBM (the weights, once); many rows: tensor instructions
// Sync:       one barrier a block (few rows) or a step of 128 columns (many); chained launch
#pragma once

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/panels.cuh"

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
template <tile::Storage kStorage>
struct Sink {
  const tile::Matrix<kStorage>& w;
  float* out;  // of the block's first row

  __device__ void operator()(int panel, int g, int row, float low, float high) const {
    const int at = panel * tile::kPanelRows + g;
    float* to = out + static_cast<size_t>(row) * w.n;
    if (at < w.n) to[at] = low * w.row_scale(at);
    if (at + 8 < w.n) to[at + 8] = high * w.row_scale(at + 8);
  }
};

template <tile::Storage kStorage, int kTiles>
__global__ __launch_bounds__(tile::kPanelThreads) void flat(Params params) {
  using Stage = tile::Flat<kStorage, kTiles>;
  __shared__ typename Stage::SharedStorage shared;
  ptx::griddepcontrol_launch_dependents();
  const tile::Matrix<kStorage> w{params.weight, params.n, params.k};
  Stage stage(w, blockIdx.x);
  stage.prefetch();
  ptx::griddepcontrol_wait();  // the weights depend on nothing; everything below does
  const auto x = [&](int row) { return params.x + static_cast<size_t>(row) * params.k; };
  stage.run(params.rows, x, Sink<kStorage>{w, params.out}, shared);
}

template <tile::Storage kStorage, int kPanels>
__global__ __launch_bounds__(tile::kPanelThreads) void tiled(Params params) {
  using Stage = tile::Tiled<kStorage, kPanels>;
  __shared__ typename Stage::SharedStorage shared;
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const tile::Matrix<kStorage> w{params.weight, params.n, params.k};
  const int first = blockIdx.y * Stage::kRows;
  const auto x = [&](int row) { return params.x + static_cast<size_t>(first + row) * params.k; };
  const Sink<kStorage> sink{w, params.out + static_cast<size_t>(first) * params.n};
  Stage(w, blockIdx.x).run(min(params.rows - first, Stage::kRows), x, sink, shared);
}

template <class Tile>
struct PanelsBf16 {
  static_assert(Tile::kThreads == tile::kPanelThreads, "a block is the panels' warps");
  static_assert(Tile::kSharedBytes ==
                    sizeof(typename tile::Tiled<tile::Storage::bf16, 1>::SharedStorage),
                "the manifest plans this storage");

  template <tile::Storage kStorage, int kTiles>
  static cudaError_t few(const Params& params, cudaStream_t stream) {
    const unsigned blocks = tile::Flat<kStorage, kTiles>::blocks(params.n, params.k);
    return launch_chained(flat<kStorage, kTiles>, {blocks, tile::kPanelThreads, 0}, stream,
                          params);
  }

  template <tile::Storage kStorage>
  static cudaError_t of(const Params& params, cudaStream_t stream) {
    if (params.rows <= 8) return few<kStorage, 1>(params, stream);
    if (params.rows <= 16) return few<kStorage, 2>(params, stream);
    if (params.rows <= 64) return few<kStorage, 8>(params, stream);
    // Decoding takes registers, and FP8 a third set of sums: such a warp holds one panel.
    constexpr int kPanels = kStorage == tile::Storage::bf16 ? 2 : 1;
    using Stage = tile::Tiled<kStorage, kPanels>;
    const unsigned rows = blocks_for(params.rows, Stage::kRows);
    return launch_chained(tiled<kStorage, kPanels>,
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
