// Implements: Ops::norm_linear
// Match:      up to four matrices of any weight format; operands bf16
// Bound by:   few rows: HBM (the weights, once); many rows: as `rms_norm` and `linear`
// Sync:       few rows: a barrier for the norms, then one a panel, chained launch; many rows: as
//             `rms_norm` and `linear`, which they are left to
//
// Of at most 8 rows every block norms all for itself: they are in the second-level cache, and a
// kernel that did it once would cost more than all blocks doing it. Blocks are dealt to matrices by
// their panels.
#pragma once

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/stream.cuh"

namespace atlas::norm_linear {

using target::HIDDEN;

inline constexpr int kParts = 4;

struct Part {
  const unsigned char* weight;  // panels of (n, HIDDEN)
  float* out;                   // (rows, n)
  int n;
  unsigned format;
  int blocks;
};

struct Params {
  const float* residual;  // (rows, HIDDEN)
  const float* gain;      // (HIDDEN)
  float* x;               // (rows, HIDDEN)
  Part part[kParts];
  int rows;
  int turns;  // of a block
};

using Row = tile::NormRow<HIDDEN, tile::kPanelThreads>;

// Rows whose squares are added together.
inline constexpr int kBatch = 4;

struct SharedStorage {
  float squares[tile::kStreamRows][Row::kWarps];
  tile::StreamStorage stream;
};

extern __shared__ __align__(128) unsigned char dynamic_shared[];

// Norms all rows into shared memory; the first block also writes them to `x`.
__device__ inline void norm(const Params& params, const Row& gain, const tile::StagedRows& staged,
                            SharedStorage& shared) {
  const auto row_of = [&](int r) { return params.residual + static_cast<size_t>(r) * HIDDEN; };
  for (int first = 0; first < params.rows; first += kBatch) {
    Row row[kBatch];
#pragma unroll
    for (int r = 0; r < kBatch; ++r) {
      if (first + r < params.rows) row[r].load(row_of(first + r));
    }
#pragma unroll
    for (int r = 0; r < kBatch; ++r) {
      if (first + r < params.rows) row[r].put_squares(shared.squares[first + r]);
    }
  }
  __syncthreads();  // every warp's squares are written
  for (int r = 0; r < params.rows; ++r) {
    Row row;
    row.load(row_of(r));  // the first-level cache has it
    row.scale(gain, target::NORM_EPS, shared.squares[r]);
    Row::for_each_vector([&](int i, int vector) { staged.put(r, vector, row.part[i]); });
    if (blockIdx.x == 0) row.store(params.x + static_cast<size_t>(r) * HIDDEN);
  }
  __syncthreads();  // the rows are staged
}

template <tile::Storage kStorage>
__device__ inline void run(const Params& params, const Part& part, int block) {
  using Stage = tile::Stream<kStorage, tile::Panels>;
  auto& shared = *reinterpret_cast<SharedStorage*>(dynamic_shared);
  auto* x = reinterpret_cast<__nv_bfloat16*>(dynamic_shared + sizeof(SharedStorage));
  const tile::StagedRows staged{x, tile::StagedRows::pitch_of(HIDDEN), params.rows};
  const int each = params.turns * Stage::at_once(HIDDEN), first = block * each;
  const int count = min(tile::panels_of(part.n) - first, each);
  const int turns = (count + Stage::at_once(HIDDEN) - 1) / Stage::at_once(HIDDEN);
  Stage stage(shared.stream, {part.weight, first, count}, part.n, HIDDEN, turns);
  stage.prefetch();
  Row gain;
  gain.load(params.gain);
  ptx::griddepcontrol_wait();  // the weights depend on nothing; everything below does
  norm(params, gain, staged, shared);
  const tile::Matrix<kStorage> w{part.weight, part.n, HIDDEN};
  const auto sink = [&](int unit, int g, int row, float low, float high) {
    const int at = (first + unit) * tile::kPanelRows + g;
    float* to = part.out + static_cast<size_t>(row) * part.n;
    if (unit >= count) return;
    if (at < part.n) to[at] = low * w.row_scale(at);
    if (at + 8 < part.n) to[at + 8] = high * w.row_scale(at + 8);
  };
  stage.run(staged, sink);
}

__host__ __device__ constexpr bool used(tile::Storage storage) {
  using namespace target;
  for (Format format : {FORMAT_GDN, FORMAT_ATTENTION, FORMAT_MTP_ATTENTION}) {
    if (tile::storage_of(format) == storage) return true;
  }
  return storage == tile::Storage::bf16;  // gates and router
}

__global__ __launch_bounds__(tile::kPanelThreads, tile::kResidentBlocks) void few(
    const __grid_constant__ Params params) {
  using tile::Storage;
  ptx::griddepcontrol_launch_dependents();
  int block = blockIdx.x, p = 0;
  while (block >= params.part[p].blocks) block -= params.part[p++].blocks;
  const Part& part = params.part[p];
  if constexpr (used(Storage::nvfp4)) {
    if (part.format == static_cast<unsigned>(Storage::nvfp4)) {
      return run<Storage::nvfp4>(params, part, block);
    }
  }
  if constexpr (used(Storage::fp8_block128)) {
    if (part.format == static_cast<unsigned>(Storage::fp8_block128)) {
      return run<Storage::fp8_block128>(params, part, block);
    }
  }
  run<Storage::bf16>(params, part, block);
}

// Parameters as the ABI gives them, parts with no rows of weights where there is none.
inline Params params_of(const float* residual, const float* gain, float* x,
                        const unsigned char* w0, float* out0, unsigned n0, unsigned format0,
                        const unsigned char* w1, float* out1, unsigned n1, unsigned format1,
                        const unsigned char* w2, float* out2, unsigned n2, unsigned format2,
                        const unsigned char* w3, float* out3, unsigned n3, unsigned format3,
                        unsigned rows) {
  const auto part = [](const unsigned char* w, float* out, unsigned n, unsigned format) {
    return Part{w, out, static_cast<int>(n), format, 0};
  };
  return {residual,
          gain,
          x,
          {part(w0, out0, n0, format0), part(w1, out1, n1, format1), part(w2, out2, n2, format2),
           part(w3, out3, n3, format3)},
          static_cast<int>(rows),
          1};
}

inline cudaError_t launch_few(Params params, cudaStream_t stream) {
  constexpr int kAtOnce = tile::kPanelWarps / tile::segments(HIDDEN);
  unsigned grid = 0, all = 0;
  for (const Part& part : params.part) all += blocks_for(tile::panels_of(part.n), kAtOnce);
  params.turns = static_cast<int>(blocks_for(all, tile::kStreamBlocks * target::SMS));
  for (Part& part : params.part) {
    part.blocks = static_cast<int>(blocks_for(tile::panels_of(part.n), kAtOnce * params.turns));
    grid += part.blocks;
  }
  const unsigned bytes = sizeof(SharedStorage) + tile::StagedRows::bytes(params.rows, HIDDEN);
  return launch_chained(few, {grid, tile::kPanelThreads, bytes}, stream, params);
}

template <class Tile>
struct StreamBf16 {
  static_assert(Tile::kThreads == tile::kPanelThreads, "a block is the panels' warps");
  static_assert(Tile::kSharedBytes ==
                    sizeof(SharedStorage) + tile::StagedRows::bytes(tile::kStreamRows, HIDDEN),
                "the manifest plans this storage");

  // One op after the other, as many rows want it.
  static int many(const Params& params, cudaStream_t stream) {
    const auto rows = static_cast<unsigned>(params.rows);
    int failed = atlas_rms_norm(params.residual, params.gain, params.x, rows, stream);
    for (const Part& part : params.part) {
      if (failed != 0 || part.n == 0) break;
      failed = atlas_linear(params.x, part.weight, part.out, rows, static_cast<unsigned>(part.n),
                            HIDDEN, part.format, stream);
    }
    return failed;
  }

  static int launch(const float* residual, const float* gain, float* x,
                    unsigned char* /* operands */, const unsigned char* w0, float* out0,
                    unsigned n0, unsigned format0, const unsigned char* w1, float* out1,
                    unsigned n1, unsigned format1, const unsigned char* w2, float* out2,
                    unsigned n2, unsigned format2, const unsigned char* w3, float* out3,
                    unsigned n3, unsigned format3, unsigned rows, cudaStream_t stream) {
    const Params params = params_of(residual, gain, x, w0, out0, n0, format0, w1, out1, n1, format1,
                                    w2, out2, n2, format2, w3, out3, n3, format3, rows);
    if (rows == 0) return cudaSuccess;
    return rows > tile::kStreamRows ? many(params, stream) : launch_few(params, stream);
  }
};

}  // namespace atlas::norm_linear
