// Implements: Ops::norm_linear
// Match:      up to four matrices of any weight format; operands F16
// Bound by:   up to 64 rows: HBM (the weights, once); more: as `rms_norm` and `linear`
// Sync:       up to eight rows: a barrier for the norms, then one a panel, chained launch; up to
//             64: the grid's blocks meet once, then two barriers in turn, chained launch; more: as
//             `rms_norm` and `linear`, which are launched instead
//
// More rows than a tile are normed by the first blocks, a row each, while all blocks load weights.
// Then every block has the rows in registers, and weights are streamed past them.
#pragma once

#include "ops/norm_linear/stream_f16.cuh"
#include "tile/normed_resident.cuh"

namespace atlas::norm_linear {

template <tile::Storage kStorage, int kTiles>
__device__ inline void run_resident(const Params& params, const tile::ResidentRows& to, int first,
                                int block, int blocks) {
  using At = PartPanels<kStorage>;
  using W = tile::Matrix<kStorage>;
  constexpr int kRows = kTiles * tile::kTileRows;
  auto& shared = *reinterpret_cast<tile::ResidentStorage<kRows>*>(dynamic_shared);
  const int rows = min(params.rows - first, kRows);
  const auto share = tile::Share::of(panels_of(params, kStorage), block, blocks);
  const At at{params, share.first};
  tile::Resident<kStorage, HIDDEN, kTiles, At> stage(shared.stream, at, share.count);
  stage.prefetch();
  Row gain;
  gain.load(params.gain);
  ptx::griddepcontrol_wait();  // the weights depend on nothing; everything below does
  const tile::RowsIn from{params.residual};
  const auto meeting = tile::norm_resident(from, params.x, params.rows, gain, to);
  tile::load_normed<kTiles>(stage, to, first, rows);
  stage.run(rows, shared.sums, [&](int unit, int quad, int row, const float4& sums) {
    int panel = at.first + unit;
    const Part& part = at.part_of(panel);
    const W w{part.weight, part.n, HIDDEN};
    float* out = part.out + static_cast<size_t>(first + row) * part.n;
    tile::put_quad<tile::Stores>(w, out, panel * tile::kPanelRows + quad * 4, sums);
  });
  meeting.leave();
}

// Product of rows resident in registers: `groups` of 8 * kTiles rows are neighbours in the grid, so
// that blocks with the same weights run together.
template <int kTiles>
__global__ __launch_bounds__(tile::ResidentShape::kThreads, 1) void resident(
    const __grid_constant__ Params params, const __grid_constant__ tile::ResidentRows to,
    int groups) {
  ptx::griddepcontrol_launch_dependents();
  const int first = static_cast<int>(blockIdx.x) % groups * kTiles * tile::kTileRows;
  const int block = static_cast<int>(blockIdx.x) / groups;
  for_storage(params, block, [&](auto storage, int block, int blocks) {
    run_resident<storage.value, kTiles>(params, to, first, block, blocks);
  });
}

template <int kTiles>
cudaError_t launch_tiles_resident(Params params, const tile::ResidentRows& to,
                                  cudaStream_t stream) {
  constexpr int kRows = kTiles * tile::kTileRows;
  const unsigned groups = blocks_for(params.rows, kRows);
  const unsigned grid = deal(params, target::SMS / static_cast<int>(groups)) * groups;
  const cudaError_t refused = require_coresident(grid);
  if (refused != cudaSuccess) return refused;
  return launch_chained(resident<kTiles>,
                        {grid, tile::ResidentShape::kThreads, sizeof(tile::ResidentStorage<kRows>)},
                        stream, params, to, static_cast<int>(groups));
}

// Launches the kernel that holds normed rows in registers. `operands` has space for the rows in
// F16; `keep` leaves the normed rows in `params.x`.
inline cudaError_t launch_resident(Params params, bool keep, unsigned char* operands,
                               unsigned* arrived, cudaStream_t stream) {
  if (!keep) params.x = nullptr;
  const tile::ResidentRows to{reinterpret_cast<f16*>(operands), arrived};
  return params.rows <= tile::kFewResidentTiles * tile::kTileRows
             ? launch_tiles_resident<tile::kFewResidentTiles>(params, to, stream)
             : launch_tiles_resident<tile::kResidentTiles>(params, to, stream);
}

static_assert(kFits<sizeof(tile::ResidentStorage<tile::kResidentTiles * tile::kTileRows>)>);

// Whether many rows are rounded once for all products.
inline constexpr bool kRounds = tile::takes_rounded(tile::kFlatRowsMax + 1, HIDDEN);
// Rows that two blocks hold in registers.
inline constexpr int kTwoBlocks = 2 * tile::resident_rows(HIDDEN);
// Most rows that are held in registers where panels fill the SMs twice: more would have weights
// read and decoded for each block of rows, and fewer rows would leave tiles half empty.
inline constexpr int kFilledResidentMax =
    kTwoBlocks > tile::kFilledRowsMax ? kTwoBlocks : tile::kFilledRowsMax;
// Value of `keep` that leaves normed rows in `x`.
inline constexpr unsigned kKeep = 1;
// Value of `keep` that leaves normed rows in `x` as F16, if `linear` takes F16.
inline constexpr unsigned kKeepRounded = 2;

// Norms rows, one a block, into `rounded`, and into `x` as well unless `x` is null.
static __global__ __launch_bounds__(tile::kPanelThreads) void norm_many(const float* residual,
                                                                       const float* gains, float* x,
                                                                       f16* rounded) {
  __shared__ Row::SharedStorage shared;
  ptx::griddepcontrol_launch_dependents();
  Row gain;
  gain.load(gains);
  ptx::griddepcontrol_wait();  // the gain depends on nothing; everything below does
  const size_t at = static_cast<size_t>(blockIdx.x) * HIDDEN;
  tile::norm_rounded(residual + at, gain, rounded, x, at, shared);
}

template <class Tile>
struct ResidentF16 {
  static_assert(Tile::kThreads == tile::ResidentShape::kThreads, "all warps hold rows");

  // Launches `rms_norm` and `linear` one after the other, for many rows; if `linear` takes rounded
  // rows, they are rounded once for all products, and left in `x` with `kKeepRounded`.
  static int many(const Params& params, unsigned keep, unsigned char* operands,
                  cudaStream_t stream) {
    const auto rows = static_cast<unsigned>(params.rows);
    if (keep == kKeepRounded) operands = reinterpret_cast<unsigned char*>(params.x);
    int failed = 0;
    if constexpr (kRounds) {
      failed = launch_chained(norm_many, {rows, tile::kPanelThreads, 0}, stream, params.residual,
                              params.gain, keep == kKeep ? params.x : nullptr,
                              reinterpret_cast<f16*>(operands));
    } else {
      failed = atlas_rms_norm(params.residual, params.gain, params.x, 0, 1.0f, rows, HIDDEN,
                              stream);
    }
    for (const Part& part : params.part) {
      if (failed != 0 || part.n == 0) break;
      failed = atlas_linear(kRounds ? nullptr : params.x, part.weight, operands, part.out, rows,
                            static_cast<unsigned>(part.n), HIDDEN, part.format, stream);
    }
    return failed;
  }

  // Whether rows fit the registers of blocks; otherwise rows go in tiles.
  static bool fits_registers(const Params& params) {
    int panels = 0;
    for (const Part& part : params.part) panels += tile::panels_of(part.n);
    constexpr int kBlockPanels = tile::Tiled<tile::Storage::f16>::kBlockPanels;
    const bool fills = kRounds && panels >= 2 * target::SMS * kBlockPanels;
    const int most = fills ? kFilledResidentMax : tile::kResidentRowsMax;
    return params.rows <= min(most, tile::kResidentRowsMax);
  }

  static int launch(const float* residual, const float* gain, float* x, unsigned keep,
                    unsigned char* operands, unsigned* arrived,
                    const unsigned char* w0, float* out0, unsigned n0, unsigned format0,
                    const unsigned char* w1, float* out1, unsigned n1, unsigned format1,
                    const unsigned char* w2, float* out2, unsigned n2, unsigned format2,
                    const unsigned char* w3, float* out3, unsigned n3, unsigned format3,
                    unsigned rows, cudaStream_t stream) {
    const Params params = params_of(residual, gain, x, w0, out0, n0, format0, w1, out1, n1, format1,
                                    w2, out2, n2, format2, w3, out3, n3, format3, rows);
    if (rows == 0) return cudaSuccess;
    if (keep == kKeepRounded && !kRounds) return cudaErrorInvalidValue;
    if (keep == kKeepRounded) return many(params, keep, operands, stream);
    if (rows <= kFewRowsMax) return launch_few(params, stream);
    return fits_registers(params) ? launch_resident(params, keep != 0, operands, arrived, stream)
                         : many(params, keep, operands, stream);
  }
};

}  // namespace atlas::norm_linear
