// Implements: Ops::experts
// Match:      experts of one weight format and shape, the shared one last; gate and up rows
//             interleaved by 8, or up alone; operands F16
// Bound by:   tensor instructions
// Sync:       four chained launches: plan, gate and up with SwiGLU, down, weighted sum
#pragma once

#include "ops/experts/plan.cuh"

namespace atlas::experts {

// Most rows of a step with tiles of 8 rows: most experts have one or two rows then.
inline constexpr int kFewRows = 64;
inline constexpr int kFewTileRows = 8;
// Whether `moe` leaves steps of few rows to this kernel.
inline constexpr bool kTakesFew = target::MOE_ROWS < kFewRows;

// Addresses of the rows of a tile's assignments: in `x`, or rounded.
template <class Number>
struct Gather {
  const Params& params;
  const Number* rows;
  int first;

  __device__ const Number* operator()(int at) const {
    const unsigned row = params.plan->assignment_of[first + at] / kAssigned;
    return rows + static_cast<size_t>(row) * kWidth;
  }
};

__device__ inline void put(float& to, float value) { to = value; }
__device__ inline void put(f16& to, float value) { to = to_f16(value); }

template <tile::Storage kStorage, class Number>
struct SwiGlu {
  const tile::Matrix<kStorage>& w;
  Number* act;  // of the tile's first assignment

  __device__ void operator()(int panel, int g, int at, float gate, float up) const {
    const int row = panel * tile::kPanelRows + g;
    Number* to = act + static_cast<size_t>(at) * Experts::kIntermediate + panel * kPanelActivations;
    activate(g, w.result(row, gate), w.result(row + 8, up),
             [&](int column, float value) { put(to[column], value); });
  }
};

template <tile::Storage kStorage>
struct Store {
  const tile::Matrix<kStorage>& w;
  f16x2* y;  // of the tile's first assignment

  __device__ void operator()(int panel, int g, int at, float low, float high) const {
    const int row = panel * tile::kPanelRows + g;
    y[SumRows::at(at, panel * 8 + g)] =
        to_parts(result(w.affine(row), low), result(w.affine(row + 8), high));
  }
};

extern __shared__ __align__(16) unsigned char product_shared[];

// Product of tiles of an expert's assignments with the expert's matrix; `rows` are those of `x`.
template <tile::Storage kStorage, class Part, bool kDown, class Number>
__global__ __launch_bounds__(Part::kThreads) void product(Params params, const Number* rows) {
  using W = tile::Matrix<kStorage>;
  auto& shared = *reinterpret_cast<typename Part::SharedStorage*>(product_shared);
  constexpr int kN = kDown ? kWidth : kInputs * Experts::kIntermediate;
  constexpr int kK = kDown ? Experts::kIntermediate : kWidth;
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  if (blockIdx.y >= params.plan->tiles) return;
  const uint4 tile = params.plan->tile[blockIdx.y];
  const int first = tile.y, count = tile.z;
  const W w{(kDown ? params.down : params.gate_up) + tile.x * W::bytes(kN, kK), kN, kK};
  Part part(w, blockIdx.x);
  part.prefetch(shared);
  Number* act = reinterpret_cast<Number*>(params.act) +
                static_cast<size_t>(first) * Experts::kIntermediate;
  if constexpr (kDown) {
    const auto x = [&](int at) -> const Number* { return act + at * Experts::kIntermediate; };
    part.run(count, x, Store<kStorage>{w, params.y + SumRows::at(first, 0)}, shared);
  } else {
    part.run(count, Gather<Number>{params, rows, first}, SwiGlu<kStorage, Number>{w, act}, shared);
  }
}

// Most tiles that a plan makes of `rows` rows.
inline unsigned tiles_max(unsigned rows, unsigned tile_rows) {
  const unsigned assignments = rows * kAssigned;
  const unsigned experts = assignments < kExperts ? assignments : kExperts;
  return (assignments - experts) / tile_rows + experts;
}

inline cudaError_t launch_plan(const Params& params, int tile_rows, cudaStream_t stream,
                               f16* rounded = nullptr, bool early = true) {
  unsigned blocks = 0;
  if (rounded != nullptr) {
    const unsigned parts = blocks_for(params.rows * (kWidth / 4), kRoundVectors);
    blocks = min(blocks_for(parts, kPlanBlocks) * kPlanBlocks, kRoundBlocksMax);
  }
  const bool few = params.rows * kAssigned <= kFewAssignments;
  Launch shape{(few ? 1 : kPlanBlocks) + blocks, kPlanThreads, 0};
  shape.early = early;
  return launch_chained(few ? plan<1> : plan<kPlanBlocks>, shape, stream, params, tile_rows,
                        rounded);
}

template <class Y>
inline cudaError_t launch_sum(const Params& params, cudaStream_t stream, bool early = true) {
  Launch shape{blocks_for(params.rows * WeightedSum::kVectors, kSumThreads), kSumThreads, 0};
  shape.early = early;
  return launch_chained(weighted_sum<Y>, shape, stream, params);
}

// Calls `Products<storage>::launch(params, stream, more...)` with the storage of `format`.
template <template <tile::Storage> class Products, class... More>
cudaError_t launch_format(const Params& params, unsigned format, cudaStream_t stream,
                          More... more) {
  using tile::Storage;
  constexpr Storage kMain = tile::storage_of(target::FORMAT_EXPERTS);
  constexpr Storage kMtp = tile::storage_of(target::FORMAT_MTP_EXPERTS);
  if (format == static_cast<unsigned>(kMain)) {
    return Products<kMain>::launch(params, stream, more...);
  }
  if constexpr (kMtp != kMain) {
    if (format == static_cast<unsigned>(kMtp)) {
      return Products<kMtp>::launch(params, stream, more...);
    }
  }
  return cudaErrorInvalidValue;
}

// Launches the plan, with tiles of `Part::kRows` rows, and both products; `blocks(n, k)` is the
// number of blocks that take all panels of a matrix. The plan's kernel also writes rows of `x`,
// rounded, to `rounded` unless it is null.
template <tile::Storage kStorage, class Part, class Number, class Blocks>
cudaError_t launch_products(const Params& params, const Number* rows, f16* rounded,
                            const Blocks& blocks, cudaStream_t stream) {
  constexpr int kInner = kInputs * Experts::kIntermediate;
  constexpr unsigned kBytes = sizeof(typename Part::SharedStorage);
  static_assert(kFits<kBytes>);
  cudaError_t failed = launch_plan(params, Part::kRows, stream, rounded);
  if (failed != cudaSuccess) return failed;
  const unsigned count = tiles_max(params.rows, Part::kRows);
  const Launch inner{blocks(kInner, kWidth), Part::kThreads, kBytes, count};
  failed = launch_chained(product<kStorage, Part, false, Number>, inner, stream, params, rows);
  if (failed != cudaSuccess) return failed;
  const Launch down{blocks(kWidth, Experts::kIntermediate), Part::kThreads, kBytes, count};
  return launch_chained(product<kStorage, Part, true, Number>, down, stream, params, rows);
}

template <tile::Storage kStorage>
struct GroupedProducts {
  // `rows` are the rows rounded by an earlier kernel, if `params.x` is null.
  static cudaError_t launch(const Params& params, cudaStream_t stream, const f16* rows) {
    using Part = tile::Tiled<kStorage>;
    // Rows that are rounded here use the memory of `y`, which is written later.
    auto* rounded = params.x == nullptr ? nullptr : reinterpret_cast<f16*>(params.y);
    return launch_products<kStorage, Part, f16>(
        params, rounded == nullptr ? rows : rounded, rounded,
        [](int n, int) { return Part::blocks(n); }, stream);
  }
};

// Tiles of few rows, with weights loaded directly into registers.
template <tile::Storage kStorage>
struct FewProducts {
  static cudaError_t launch(const Params& params, cudaStream_t stream) {
    using Part = tile::Flat<kStorage, kFewTileRows / 8>;
    return launch_products<kStorage, Part>(params, params.x, nullptr, Part::blocks, stream);
  }
};

template <class Tile, class E>
struct GroupedF16 {
  static_assert(Tile::kThreads == tile::kPanelThreads, "a block is the panels' warps");

  static cudaError_t launch(const float* x, const unsigned* chosen, const float* weights,
                            const unsigned char* gate_up, const unsigned char* down,
                            unsigned char* scratch, unsigned char* operands, float* act,
                            unsigned* y, float* residual, unsigned rows, unsigned format,
                            cudaStream_t stream) {
    if (rows == 0) return cudaSuccess;
    if (rows > kRowsMax) return cudaErrorInvalidValue;
    const Params params = params_of(x, chosen, weights, gate_up, down, scratch, act, y, residual,
                                    rows);
    const bool few = kTakesFew && rows <= kFewRows;
    cudaError_t failed = cudaSuccess;
    if (few && x == nullptr) return cudaErrorInvalidValue;
    if constexpr (kTakesFew) {
      if (few) failed = launch_format<FewProducts>(params, format, stream);
    }
    const auto* rounded = reinterpret_cast<const f16*>(operands);
    if (!few) failed = launch_format<GroupedProducts>(params, format, stream, rounded);
    return failed == cudaSuccess ? launch_sum<SumRows>(params, stream) : failed;
  }
};

}  // namespace atlas::experts
