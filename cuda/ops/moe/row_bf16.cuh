// Implements: Ops::moe for one row
// Match:      experts of one weight format and shape, the shared one last; operands bf16
// Bound by:   HBM (the weights of the experts chosen)
// Sync:       two chained launches: gate and up with SwiGLU, down with the weighted sum
//
// Every block chooses the experts for itself, which is quicker than waiting for a kernel that does.
// The second kernel's weights are known from logits of two kernels before, so it asks for them
// before its wait: the first lets it start only behind its own wait.
#pragma once

#include "ops/route/rows_f32.cuh"
#include "tile/stream.cuh"

namespace atlas::moe {

using route::kTurns;
using target::EXPERT_INTERMEDIATE;
using target::EXPERTS;
using target::EXPERTS_PER_TOKEN;
using target::HIDDEN;

inline constexpr int kThreads = tile::kPanelThreads;
inline constexpr int kInner = 2 * EXPERT_INTERMEDIATE;

struct Params {
  const float* x;                // (HIDDEN)
  const float* logits;           // (EXPERTS + 1)
  const unsigned char* gate_up;  // (EXPERTS + 1) matrices of (kInner, HIDDEN)
  const unsigned char* down;     // (EXPERTS + 1) matrices of (HIDDEN, EXPERT_INTERMEDIATE)
  float* act;                    // (kTurns, EXPERT_INTERMEDIATE)
  float* residual;               // (HIDDEN)
};

// A logit and its expert. Before another is the larger logit, or the lower index on a tie.
struct Candidate {
  float logit;
  int expert;

  __device__ bool is_before(const Candidate& other) const {
    return logit > other.logit || (logit == other.logit && expert < other.expert);
  }
};

// The row's experts and their weights, the shared one last. The arithmetic is that of `route`: an
// expert's rank is the number of experts before it, counted among a warp's, then among the best of
// all warps.
struct Chosen {
  static constexpr int kPerWarp =
      EXPERTS_PER_TOKEN < tile::kWarpLanes ? EXPERTS_PER_TOKEN : tile::kWarpLanes;
  static constexpr int kWarps = (EXPERTS + tile::kWarpLanes - 1) / tile::kWarpLanes;
  static constexpr int kCandidates = kWarps * kPerWarp;

  Candidate candidate[kCandidates];
  Candidate best[EXPERTS_PER_TOKEN];
  int expert[kTurns];
  float weight[kTurns];

  __device__ void choose(const float* logits) {
    const int lane = threadIdx.x % tile::kWarpLanes;
    for (int warp = threadIdx.x / tile::kWarpLanes; warp < kWarps; warp += tile::kPanelWarps) {
      const int expert = warp * tile::kWarpLanes + lane;
      const float logit = expert < EXPERTS ? __ldcg(logits + expert) : -INFINITY;
      // What is no number is never the best.
      const Candidate mine{logit == logit ? logit : -INFINITY, expert};
      int rank = 0;
#pragma unroll
      for (int other = 0; other < tile::kWarpLanes; ++other) {
        const float value = __shfl_sync(tile::kAllLanes, mine.logit, other);
        rank += Candidate{value, warp * tile::kWarpLanes + other}.is_before(mine);
      }
      if (rank < kPerWarp) candidate[warp * kPerWarp + rank] = mine;
    }
    __syncthreads();  // every warp's best are there
    for (int at = threadIdx.x; at < kCandidates; at += kThreads) {
      const Candidate mine = candidate[at];
      int rank = 0;
#pragma unroll 8
      for (int other = 0; other < kCandidates; ++other) rank += candidate[other].is_before(mine);
      if (rank < EXPERTS_PER_TOKEN) best[rank] = mine;
    }
    __syncthreads();  // every rank is taken
    if (threadIdx.x < EXPERTS_PER_TOKEN) {
      float total = 0.0f;
      for (int rank = 0; rank < EXPERTS_PER_TOKEN; ++rank) total += raised(rank);
      weight[threadIdx.x] = raised(threadIdx.x) / total;
      expert[threadIdx.x] = best[threadIdx.x].expert;
    } else if (threadIdx.x == EXPERTS_PER_TOKEN) {
      weight[EXPERTS_PER_TOKEN] = tile::sigmoid(__ldcg(logits + EXPERTS));
      expert[EXPERTS_PER_TOKEN] = EXPERTS;
    }
    __syncthreads();  // the choice is complete
  }

 private:
  __device__ float raised(int rank) const { return expf(best[rank].logit - best[0].logit); }
};

// Panels of gate and up of the chosen experts, turn by turn.
struct GateUpUnits {
  static constexpr int kPanels = tile::panels_of(kInner);
  static constexpr int kUnits = kTurns * kPanels;

  const unsigned char* base;
  size_t bytes;  // of a matrix
  const int* expert;
  int first;

  __device__ tile::Unit operator()(int unit) const {
    const int all = min(first + unit, kUnits - 1);
    return {base + expert[all / kPanels] * bytes, all % kPanels};
  }
};

struct GateUpStorage {
  tile::StreamStorage stream;
  Chosen chosen;
  alignas(16) __nv_bfloat16 x[tile::StagedRows::pitch_of(HIDDEN)];
};

extern __shared__ __align__(128) unsigned char dynamic_shared[];

template <tile::Storage kStorage>
__global__ __launch_bounds__(kThreads, tile::kResidentBlocks) void gate_up(Params params) {
  using Stage = tile::Stream<kStorage, GateUpUnits>;
  using W = tile::Matrix<kStorage>;
  auto& shared = *reinterpret_cast<GateUpStorage*>(dynamic_shared);
  constexpr int kAtOnce = Stage::at_once(HIDDEN);
  constexpr int kRounds = (GateUpUnits::kUnits + kAtOnce - 1) / kAtOnce;
  const int begin = kRounds * blockIdx.x / gridDim.x;
  const int turns = kRounds * (blockIdx.x + 1) / gridDim.x - begin, first = begin * kAtOnce;
  const int count = min(GateUpUnits::kUnits - first, turns * kAtOnce);
  const GateUpUnits units{params.gate_up, W::bytes(kInner, HIDDEN), shared.chosen.expert, first};
  Stage stage(shared.stream, units, kInner, HIDDEN, turns);
  ptx::griddepcontrol_wait();
  // Here, so that the next kernel may read what the one before this has written.
  ptx::griddepcontrol_launch_dependents();
  shared.chosen.choose(params.logits);
  stage.prefetch();
  const tile::StagedRows staged{shared.x, tile::StagedRows::pitch_of(HIDDEN), 1};
  staged.round(params.x, HIDDEN);
  __syncthreads();  // the row is staged
  const auto sink = [&](int unit, int g, int, float gate, float up) {
    if (unit >= count) return;
    const auto [base, panel] = units(unit);
    const W w{base, kInner, HIDDEN};
    const int row = panel * tile::kPanelRows + g, turn = (first + unit) / GateUpUnits::kPanels;
    params.act[turn * EXPERT_INTERMEDIATE + panel * 8 + g] =
        tile::silu(gate * w.row_scale(row)) * (up * w.row_scale(row + 8));
  };
  stage.run(staged, sink);
}

// A block has a panel of the result and all experts' parts of it: a warp per segment, and as many
// turns at once as that leaves.
template <tile::Storage kStorage>
struct Down {
  using W = tile::Matrix<kStorage>;
  static constexpr int kSegments = tile::segments(EXPERT_INTERMEDIATE);
  static constexpr int kAtOnce = tile::kPanelWarps / kSegments;
  static constexpr int kRounds = (kTurns + kAtOnce - 1) / kAtOnce;
  static constexpr int kGroups = EXPERT_INTERMEDIATE / W::kGroup / kSegments;

  struct SharedStorage {
    Chosen chosen;
    float sum[kTurns][kSegments][tile::kPanelRows];
    alignas(16) __nv_bfloat16 act[kTurns][tile::StagedRows::pitch_of(EXPERT_INTERMEDIATE)];
  };

  const Params& params;
  SharedStorage& shared;
  const int segment = threadIdx.x / tile::kWarpLanes % kSegments;
  const int begin = threadIdx.x / tile::kWarpLanes / kSegments;
  typename W::Fragment part[kRounds][kGroups];

  __device__ W matrix(int turn) const {
    return {params.down + shared.chosen.expert[turn] * W::bytes(HIDDEN, EXPERT_INTERMEDIATE),
            HIDDEN, EXPERT_INTERMEDIATE};
  }

  __device__ void ask() {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int turn = begin + round * kAtOnce;
      if (turn >= kTurns) break;
      const W w = matrix(turn);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        part[round][group] = w.load(blockIdx.x, segment * kGroups + group);
      }
    }
  }

  __device__ void multiply() {
    const int lane = threadIdx.x % tile::kWarpLanes, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int turn = begin + round * kAtOnce;
      if (turn >= kTurns) break;
      const tile::StagedRows staged{shared.act[turn],
                                    tile::StagedRows::pitch_of(EXPERT_INTERMEDIATE), 1};
      float sum[4] = {}, chain[4] = {};
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int column = (segment * kGroups + group) * W::kGroup + q * W::kLaneColumns;
#pragma unroll
        for (int octet = 0; octet < W::Code::kOctets; ++octet) {
          unsigned first[4], second[4];
          W::decode(part[round][group], octet, first, second);
          const uint4 b = staged.octet(g, column + octet * 8);
          float(&to)[4] = W::kFp8 ? chain : sum;
          ptx::mma(to, first, b.x, b.y);
          ptx::mma(to, second, b.z, b.w);
        }
        if (W::kFp8 && (group + 1) * W::kGroup % tile::kBlockColumns == 0) {
          tile::close_chain(sum, chain, part[round][group].block);
        }
      }
      if (q == 0) {
        shared.sum[turn][segment][g] = sum[0];
        shared.sum[turn][segment][g + 8] = sum[2];
      }
    }
  }

  // The row's sums over its experts, in the order of the turns.
  __device__ void add() const {
    if (threadIdx.x >= tile::kPanelRows) return;
    const int row = blockIdx.x * tile::kPanelRows + threadIdx.x;
    float total = 0.0f;
    for (int turn = 0; turn < kTurns; ++turn) {
      float y = 0.0f;
      for (int s = 0; s < kSegments; ++s) y += shared.sum[turn][s][threadIdx.x];
      total = fmaf(shared.chosen.weight[turn], y * matrix(turn).row_scale(row), total);
    }
    params.residual[row] += total;
  }
};

template <tile::Storage kStorage>
__global__ __launch_bounds__(kThreads) void down(Params params) {
  using Stage = Down<kStorage>;
  __shared__ typename Stage::SharedStorage shared;
  ptx::griddepcontrol_launch_dependents();
  shared.chosen.choose(params.logits);
  Stage stage{params, shared};
  stage.ask();
  ptx::griddepcontrol_wait();  // for `act`
  constexpr int kVectors = EXPERT_INTERMEDIATE / 4;
  for (int item = threadIdx.x; item < kTurns * kVectors; item += kThreads) {
    const tile::StagedRows staged{shared.act[item / kVectors],
                                  tile::StagedRows::pitch_of(EXPERT_INTERMEDIATE), 1};
    staged.put(0, item % kVectors, reinterpret_cast<const float4*>(params.act)[item]);
  }
  __syncthreads();  // the rows are staged
  stage.multiply();
  __syncthreads();  // all sums are there
  stage.add();
}

template <class Tile>
struct RowBf16 {
  static_assert(Tile::kThreads == kThreads, "a block is the panels' warps");

  template <tile::Storage kStorage>
  static cudaError_t of(const Params& params, cudaStream_t stream) {
    using Stage = tile::Stream<kStorage, GateUpUnits>;
    static_assert(Tile::kSharedBytes >= sizeof(GateUpStorage) &&
                      Tile::kSharedBytes >= sizeof(typename Down<kStorage>::SharedStorage),
                  "the manifest plans this storage");
    const unsigned rounds = blocks_for(GateUpUnits::kUnits, Stage::at_once(HIDDEN));
    constexpr unsigned kBlocks = tile::kStreamBlocks * target::SMS;
    const Launch shape{rounds < kBlocks ? rounds : kBlocks, kThreads, sizeof(GateUpStorage)};
    const cudaError_t failed = launch_chained(gate_up<kStorage>, shape, stream, params);
    if (failed != cudaSuccess) return failed;
    constexpr unsigned kPanels = tile::panels_of(HIDDEN);
    return launch_chained(down<kStorage>, {kPanels, kThreads, 0}, stream, params);
  }

  static cudaError_t launch(const float* x, const float* logits, const unsigned char* gate_up,
                            const unsigned char* down, float* act, float* residual,
                            unsigned format, cudaStream_t stream) {
    using tile::Storage;
    constexpr Storage kMain = tile::storage_of(target::FORMAT_EXPERTS);
    constexpr Storage kMtp = tile::storage_of(target::FORMAT_MTP_EXPERTS);
    const Params params{x, logits, gate_up, down, act, residual};
    if (format == static_cast<unsigned>(kMain)) return of<kMain>(params, stream);
    if constexpr (kMtp != kMain) {
      if (format == static_cast<unsigned>(kMtp)) return of<kMtp>(params, stream);
    }
    return cudaErrorInvalidValue;
  }
};

}  // namespace atlas::moe
