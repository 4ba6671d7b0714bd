// Implements: Ops::experts
// Match:      experts of one weight format and shape, the shared one last; gate and up rows
//             interleaved by 8; operands bf16
// Bound by:   few rows: HBM (the weights of the experts chosen); many rows: tensor instructions
// Sync:       four chained launches: plan, gate and up with SwiGLU, down, weighted sum
#pragma once

#include "ops/experts/plan.cuh"
#include "tile/stream.cuh"

namespace atlas::experts {

// Rows of a tile: few rows stream the weights, many share them.
inline constexpr int kFewRows = tile::kTileRows;
inline constexpr int kManyRows = 64;
// Up to this many rows in a step, tiles hold `kFewRows`.
inline constexpr int kFewRowsMax = 64;

// Rows of `x` that the places of a tile stand for.
struct Gather {
  const Params& params;
  int first;

  __device__ const float* operator()(int at) const {
    const unsigned row = params.plan->turn_of[first + at] / kTurns;
    return params.x + static_cast<size_t>(row) * HIDDEN;
  }
};

template <tile::Storage kStorage>
struct SwiGlu {
  const tile::Matrix<kStorage>& w;
  float* act;  // of the tile's first place

  __device__ void operator()(int panel, int g, int at, float gate, float up) const {
    const int row = panel * tile::kPanelRows + g;
    const float activated = tile::silu(gate * w.row_scale(row)) * (up * w.row_scale(row + 8));
    act[static_cast<size_t>(at) * EXPERT_INTERMEDIATE + panel * 8 + g] = activated;
  }
};

template <tile::Storage kStorage>
struct Store {
  const tile::Matrix<kStorage>& w;
  float* y;  // of the tile's first place

  __device__ void operator()(int panel, int g, int at, float low, float high) const {
    const int row = panel * tile::kPanelRows + g;
    float* to = y + static_cast<size_t>(at) * HIDDEN + row;
    to[0] = low * w.row_scale(row);
    to[8] = high * w.row_scale(row + 8);
  }
};

template <tile::Storage kStorage, template <tile::Storage, int> class Stage, int kSize, bool kDown>
__global__ __launch_bounds__(tile::kPanelThreads) void product(Params params) {
  using Part = Stage<kStorage, kSize>;
  using W = tile::Matrix<kStorage>;
  __shared__ typename Part::SharedStorage shared;
  constexpr int kN = kDown ? HIDDEN : 2 * EXPERT_INTERMEDIATE;
  constexpr int kK = kDown ? EXPERT_INTERMEDIATE : HIDDEN;
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  if (blockIdx.y >= params.plan->tiles) return;
  const uint4 tile = params.plan->tile[blockIdx.y];
  const int first = tile.y, places = tile.z;
  const W w{(kDown ? params.down : params.gate_up) + tile.x * W::bytes(kN, kK), kN, kK};
  Part part(w, blockIdx.x);
  part.prefetch();
  if constexpr (kDown) {
    const auto x = [&](int at) {
      return params.act + static_cast<size_t>(first + at) * EXPERT_INTERMEDIATE;
    };
    float* y = params.y + static_cast<size_t>(first) * HIDDEN;
    part.run(places, x, Store<kStorage>{w, y}, shared);
  } else {
    float* act = params.act + static_cast<size_t>(first) * EXPERT_INTERMEDIATE;
    part.run(places, Gather{params, first}, SwiGlu<kStorage>{w, act}, shared);
  }
}

// Tiles that the plan may make of `rows` rows, at most.
inline unsigned tiles_max(unsigned rows, unsigned tile_rows) {
  const unsigned turns = rows * kTurns;
  const unsigned experts = turns < kExperts ? turns : kExperts;
  return (turns - experts) / tile_rows + experts;
}

// The panels of the plan's tiles, tile by tile, from `first` on.
template <tile::Storage kStorage, bool kDown>
struct TilePanels {
  using W = tile::Matrix<kStorage>;
  static constexpr int kN = kDown ? HIDDEN : 2 * EXPERT_INTERMEDIATE;
  static constexpr int kK = kDown ? EXPERT_INTERMEDIATE : HIDDEN;
  static constexpr int kPanels = tile::panels_of(kN);

  const unsigned char* weights;
  const Plan* plan;
  int first;
  int held = -1;  // number of `tile`
  uint4 tile{};

  // Takes the tile of a unit, and says whether it is another one than before.
  __device__ bool hold(int unit) {
    const int number = (first + unit) / kPanels;
    if (number == held) return false;
    held = number;
    tile = plan->tile[number];
    return true;
  }

  __device__ W matrix() const { return {weights + tile.x * W::bytes(kN, kK), kN, kK}; }

  __device__ tile::Unit operator()(int unit) {
    hold(unit);
    return {matrix().base, kN, (first + unit) % kPanels};
  }
};

extern __shared__ __align__(128) unsigned char dynamic_shared[];

// Few rows: each block has a part of all panels of all tiles, and the rows of one tile at a time.
template <tile::Storage kStorage, bool kDown>
__global__ __launch_bounds__(tile::Wide::kThreads, 1) void streamed(Params params) {
  using Units = TilePanels<kStorage, kDown>;
  using Stage = tile::Stream<kStorage, 1, tile::Wide, Units>;
  using W = tile::Matrix<kStorage>;
  using Shared = tile::StreamStorage<tile::Wide>;
  constexpr int kK = Units::kK, kAtOnce = Stage::at_once(kK);
  static_assert(Units::kPanels % kAtOnce == 0, "a turn's units are of one tile");
  // The plan was made two kernels before `down`, whose weights need not wait: the one between them
  // lets it start only behind its own wait.
  if constexpr (!kDown) ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const int panels = static_cast<int>(__ldcg(&params.plan->tiles)) * Units::kPanels;
  const auto share = tile::Share::of(panels / kAtOnce, blockIdx.x, gridDim.x);
  Units units{kDown ? params.down : params.gate_up, params.plan, share.first * kAtOnce};
  Stage stage(*reinterpret_cast<Shared*>(dynamic_shared), units, kK, share.count * kAtOnce);
  stage.prefetch();
  if constexpr (kDown) ptx::griddepcontrol_wait();
  const auto staged = tile::StagedRows<tile::Wide>::at(dynamic_shared + sizeof(Shared),
                                                        tile::kTileRows, kK, W::kRawRows);
  const auto begin = [&](int unit) {
    if (!units.hold(unit)) return;
    constexpr int kVectors = kK / 4;
    const int places = static_cast<int>(units.tile.z);
    for (int item = threadIdx.x; item < places * kVectors; item += tile::Wide::kThreads) {
      const int place = static_cast<int>(units.tile.y) + item / kVectors;
      const float* from = kDown ? params.act + static_cast<size_t>(place) * kK
                                : Gather{params, place}(0);
      staged.put(item / kVectors, item % kVectors, tile::vector_at(from, item % kVectors));
    }
    __syncthreads();  // the tile's rows are staged
  };
  const auto sink = [&](int unit, int g, int at, float low, float high) {
    if (at >= static_cast<int>(units.tile.z)) return;
    const size_t first = units.tile.y;
    const int panel = (units.first + unit) % Units::kPanels;
    const W w = units.matrix();
    if constexpr (kDown) {
      Store<kStorage>{w, params.y + first * HIDDEN}(panel, g, at, low, high);
    } else {
      SwiGlu<kStorage>{w, params.act + first * EXPERT_INTERMEDIATE}(panel, g, at, low, high);
    }
  };
  stage.run(staged, begin, sink);
}

// Both products of a step of few rows.
template <tile::Storage kStorage>
cudaError_t few_rows(const Params& params, cudaStream_t stream) {
  const auto shape = [](int k) -> Launch {
    return {target::SMS, tile::Wide::kThreads,
            tile::stream_bytes<tile::Wide>(tile::kTileRows, k)};
  };
  const cudaError_t failed =
      launch_chained(streamed<kStorage, false>, shape(HIDDEN), stream, params);
  if (failed != cudaSuccess) return failed;
  return launch_chained(streamed<kStorage, true>, shape(EXPERT_INTERMEDIATE), stream, params);
}

inline cudaError_t launch_plan(const Params& params, int tile_rows, cudaStream_t stream) {
  if (params.rows * kTurns <= kFewTurns) {
    return launch_chained(plan<1>, {1, kPlanThreads, 0}, stream, params, tile_rows);
  }
  return launch_chained(plan<kPlanBlocks>, {kPlanBlocks, kPlanThreads, 0}, stream, params,
                        tile_rows);
}

inline cudaError_t launch_sum(const Params& params, cudaStream_t stream) {
  const unsigned blocks = blocks_for(params.rows * (HIDDEN / 4), kSumThreads);
  return launch_chained(weighted_sum, {blocks, kSumThreads, 0}, stream, params);
}

// `Products<storage>::launch(params, stream, more...)` for the storage of `format`.
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

template <tile::Storage kStorage>
struct GroupedProducts {
  static cudaError_t launch(const Params& params, cudaStream_t stream) {
    using W = tile::Matrix<kStorage>;
    constexpr int kThreads = tile::kPanelThreads;
    constexpr int kInner = 2 * EXPERT_INTERMEDIATE;
    if (params.rows <= kFewRowsMax) return few_rows<kStorage>(params, stream);
    constexpr int kPanels = W::kFp8 ? 1 : 2;
    using Stage = tile::Tiled<kStorage, kPanels>;
    const unsigned count = tiles_max(params.rows, kManyRows);
    const cudaError_t failed =
        launch_chained(product<kStorage, tile::Tiled, kPanels, false>,
                       {Stage::blocks(kInner), kThreads, 0, count}, stream, params);
    if (failed != cudaSuccess) return failed;
    return launch_chained(product<kStorage, tile::Tiled, kPanels, true>,
                          {Stage::blocks(HIDDEN), kThreads, 0, count}, stream, params);
  }
};

template <class Tile>
struct GroupedBf16 {
  static_assert(Tile::kThreads == tile::kPanelThreads, "a block is the panels' warps");
  static constexpr unsigned kTiledBytes =
      sizeof(typename tile::Tiled<tile::Storage::bf16, 1>::SharedStorage);
  static constexpr unsigned kStreamBytes = tile::stream_bytes<tile::Wide>(tile::kTileRows, HIDDEN);
  static_assert(Tile::kSharedBytes == (kTiledBytes > kStreamBytes ? kTiledBytes : kStreamBytes),
                "the manifest plans this storage");

  static cudaError_t launch(const float* x, const unsigned* chosen, const float* weights,
                            const unsigned char* gate_up, const unsigned char* down,
                            unsigned char* scratch, unsigned char* /* operands */, float* act,
                            float* y, float* residual, unsigned rows, unsigned format,
                            cudaStream_t stream) {
    if (rows == 0) return cudaSuccess;
    if (rows > kRowsMax) return cudaErrorInvalidValue;
    const Params params{x,   chosen, weights, gate_up, down, reinterpret_cast<Plan*>(scratch),
                        act, y,      residual, static_cast<int>(rows)};
    const int tile_rows = rows <= kFewRowsMax ? kFewRows : kManyRows;
    cudaError_t failed = launch_plan(params, tile_rows, stream);
    if (failed == cudaSuccess) failed = launch_format<GroupedProducts>(params, format, stream);
    return failed == cudaSuccess ? launch_sum(params, stream) : failed;
  }
};

}  // namespace atlas::experts
