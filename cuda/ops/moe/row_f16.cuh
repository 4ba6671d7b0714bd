// One row of Ops::moe, or a few rows, each by itself.
// Match:      experts of one weight format and shape, the shared one last, if any; operands F16
// Bound by:   HBM (the weights of the experts chosen)
// Sync:       two chained launches: gate and up with SwiGLU, down with the weighted sum
//
// Every block chooses the experts for itself, which is quicker than waiting for a kernel that
// chooses. The second kernel also chooses by logits, written two kernels before it, so it loads
// weights before its wait: the first kernel lets it start only after its own wait.
#pragma once

#include <type_traits>

#include "ops/experts/parts.cuh"
#include "ops/route/rows_f32.cuh"
#include "tile/stream.cuh"

namespace atlas::moe {

using route::kHasShared;
using route::kAssigned;
using experts::kWidth;
using target::shapes::Experts;

inline constexpr int kThreads = tile::kPanelThreads;  // of `down`
// Shape of the stream in `gate_up`, which has more panels than SMs.
using RowShape = std::conditional_t<tile::kLargeSm, tile::Wide, tile::Narrow>;
// Blocks of `down` on an SM that registers allow. 0 is the compiler's choice, by which a GB10
// spills.
inline constexpr int kDownBlocks = tile::kLargeSm ? 0 : 1;
inline constexpr int kInner = experts::kInputs * Experts::kIntermediate;

struct Params {
  const float* x;                // (rows, kWidth)
  const float* logits;           // (rows, kCount + 1)
  const float* per_expert;       // (kCount), as in `route`; null if there are none
  const unsigned char* gate_up;  // (kCount + 1) matrices of (kInner, kWidth)
  const unsigned char* down;     // (kCount + 1) matrices of (kWidth, kIntermediate)
  f16* act;                      // (rows, kAssigned, kIntermediate)
  float* residual;               // (rows, kWidth), or sums that are latents

  // Parameters of this block's row.
  __device__ Params own() const {
    const size_t row = blockIdx.y;
    return {x + row * kWidth,
            logits + row * route::kLogits,
            per_expert,
            gate_up,
            down,
            act + row * kAssigned * Experts::kIntermediate,
            residual + row * kWidth};
  }
};

// The experts of a row and their weights, the shared one last, chosen by one warp with the
// arithmetic of `route`.
struct Chosen {
  int expert[kAssigned];
  float weight[kAssigned];

  // Chooses the experts, in the first warp; a barrier must follow.
  template <bool kWeights>
  __device__ void choose(const float* logits, const float* per_expert) {
    if (threadIdx.x >= tile::kWarpLanes) return;
    const int lane = threadIdx.x;
    int chosen[1];
    route::best<1>(logits, 0, per_expert, chosen);
    if (lane < kAssigned) expert[lane] = chosen[0];
    if constexpr (kWeights) {
      const float of_expert = route::weight_of(logits, per_expert, chosen[0]);
      if (lane < kAssigned) weight[lane] = of_expert;
    }
  }
};

static_assert(kAssigned <= tile::kWarpLanes, "a lane keeps a chosen expert");

// A block's panels of gate and up: some of the shared expert, whose weights need no choice, then
// some of the chosen experts, by rank. The first blocks have one more panel of chosen experts, the
// last ones one more of the shared expert.
struct GateUpUnits {
  static constexpr int kPanels = tile::panels_of(kInner);
  static constexpr int kUnits = kAssigned * kPanels;

  const unsigned char* base;
  size_t bytes;  // of a matrix
  const int* expert;
  tile::Share shared;
  tile::Share chosen;

  __device__ static GateUpUnits of(const unsigned char* base, size_t bytes, const int* expert) {
    const int block = blockIdx.x, blocks = gridDim.x;
    const auto shared = tile::Share::of(kHasShared ? kPanels : 0, blocks - 1 - block, blocks);
    return {base, bytes, expert, shared,
            tile::Share::of(Experts::kPerToken * kPanels, block, blocks)};
  }

  __device__ int count() const { return shared.count + chosen.count; }

  // Number of a unit's panel among those of all the row's experts.
  __device__ int panel(int unit) const {
    return unit < shared.count ? Experts::kPerToken * kPanels + shared.first + unit
                               : chosen.first + unit - shared.count;
  }

  __device__ tile::Unit operator()(int unit) const {
    const int all = panel(unit);
    const int of = unit < shared.count ? Experts::kCount : expert[all / kPanels];
    return {base + of * bytes, kInner, all % kPanels};
  }
};

struct GateUpStorage {
  tile::StreamStorage<RowShape> stream;
  Chosen chosen;
  alignas(16) unsigned char x[tile::StagedRows<RowShape>::bytes(1, kWidth)];
};

extern __shared__ __align__(128) unsigned char dynamic_shared[];

template <tile::Storage kStorage>
__global__ __launch_bounds__(RowShape::kThreads, tile::kResidentBlocks<RowShape>) void
gate_up(Params all) {
  const Params params = all.own();
  using W = tile::Matrix<kStorage>;
  auto& shared = *reinterpret_cast<GateUpStorage*>(dynamic_shared);
  const auto units =
      GateUpUnits::of(params.gate_up, W::bytes(kInner, kWidth), shared.chosen.expert);
  tile::Stream<kStorage, kWidth, 1, RowShape, GateUpUnits> stage(shared.stream, units,
                                                                 units.count());
  const auto staged = tile::StagedRows<RowShape>::at(shared.x, 1, kWidth);
  stage.init(shared.stream);
  const int slot = stage.ask_before(units.shared.count);
  ptx::griddepcontrol_wait();  // the shared expert's weights depend on nothing
  // The next kernel starts after this wait, as it may read data of the kernel before this one.
  ptx::griddepcontrol_launch_dependents();
  shared.chosen.choose<false>(params.logits, params.per_expert);
  staged.round<kWidth>(params.x);
  __syncthreads();  // the choice is complete, the row staged
  stage.ask_first(slot);
  const auto sink = [&](int unit, int g, int, float gate, float up) {
    // Activations of an expert are stored side by side, like its panels.
    f16* to = params.act + units.panel(unit) * experts::kPanelActivations;
    experts::activate(g, gate, up, [&](int column, float value) { to[column] = to_f16(value); });
  };
  stage.run(staged, sink);
}

// Second product: a block has a panel of the result for all of a row's experts: a warp per segment,
// and as many experts at once as there are warps for.
template <tile::Storage kStorage>
struct Down {
  using W = tile::Matrix<kStorage>;
  static constexpr int kSegments = tile::segments(Experts::kIntermediate);
  static constexpr int kAtOnce = tile::kPanelWarps / kSegments;
  static constexpr int kRounds = (kAssigned + kAtOnce - 1) / kAtOnce;
  static constexpr int kGroups = Experts::kIntermediate / W::kGroup / kSegments;
  static constexpr int kPitch = tile::StagedRows<tile::Narrow>::pitch_of(Experts::kIntermediate);

  struct SharedStorage {
    Chosen chosen;
    float sum[kAssigned][kSegments][tile::kPanelRows];
    alignas(16) f16 act[kAssigned][kPitch];
  };

  const Params& params;
  SharedStorage& shared;
  const int segment = threadIdx.x / tile::kWarpLanes % kSegments;
  const int begin = threadIdx.x / tile::kWarpLanes / kSegments;
  typename W::Fragment part[kRounds][kGroups];
  tile::Affine of[kAssigned];  // of the row that this thread adds

  __device__ W matrix(int rank) const {
    return {params.down + shared.chosen.expert[rank] * W::bytes(kWidth, Experts::kIntermediate),
            kWidth, Experts::kIntermediate};
  }

  __device__ void ask() {
    const int row = blockIdx.x * tile::kPanelRows + threadIdx.x % tile::kPanelRows;
#pragma unroll
    for (int rank = 0; rank < kAssigned; ++rank) of[rank] = matrix(rank).affine(row);
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int rank = begin + round * kAtOnce;
      if (rank >= kAssigned) break;
      const W w = matrix(rank);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        part[round][group] = w.load(blockIdx.x, segment * kGroups + group);
      }
    }
  }

  // Stages the activations of all experts; all loads start before the first is waited for.
  __device__ void bring() {
    constexpr int kVectors = Experts::kIntermediate * sizeof(f16) / kVectorBytes;
    constexpr int kMine = (kAssigned * kVectors + kThreads - 1) / kThreads;
    uint4 mine[kMine];
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int item = threadIdx.x + i * kThreads;
      if (item < kAssigned * kVectors) {
        mine[i] = __ldcg(reinterpret_cast<const uint4*>(params.act) + item);
      }
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int item = threadIdx.x + i * kThreads;
      if (item >= kAssigned * kVectors) break;
      reinterpret_cast<uint4*>(shared.act[item / kVectors])[item % kVectors] = mine[i];
    }
  }

  __device__ void multiply() {
    const int lane = threadIdx.x % tile::kWarpLanes, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int rank = begin + round * kAtOnce;
      if (rank >= kAssigned) break;
      float sum[4] = {}, chain[4] = {};
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int column = (segment * kGroups + group) * W::kGroup + q * W::kLaneColumns;
#pragma unroll
        for (int octet = 0; octet < W::Code::kOctets; ++octet) {
          unsigned first[4], second[4];
          W::decode(part[round][group], octet, first, second);
          // Columns of an instruction without a row use the first row; their sums are dropped.
          const uint4 b = *reinterpret_cast<const uint4*>(shared.act[rank] + column + octet * 8);
          float(&to)[4] = W::kBlockFactors ? chain : sum;
          ptx::mma_f16(to, first, b.x, b.y);
          ptx::mma_f16(to, second, b.z, b.w);
        }
        if (W::kBlockFactors && (group + 1) * W::kGroup % tile::kBlockColumns == 0) {
          const float2 scale = part[round][group].block;
          tile::close_chain(sum, chain, scale);
        }
      }
      if (q == 0) {
        shared.sum[rank][segment][g] = sum[0];
        shared.sum[rank][segment][g + 8] = sum[2];
      }
    }
  }

  __device__ float part_of(int rank, float y) const {
    return experts::as_part(experts::result(of[rank], y));
  }

  // Adds the row's results over its experts, in order of rank.
  __device__ void add() const {
    if (threadIdx.x >= tile::kPanelRows) return;
    const int row = blockIdx.x * tile::kPanelRows + threadIdx.x;
    float total = 0.0f;
#pragma unroll
    for (int rank = 0; rank < kAssigned; ++rank) {
      float y = 0.0f;
      for (int s = 0; s < kSegments; ++s) y += shared.sum[rank][s][threadIdx.x];
      total = fmaf(shared.chosen.weight[rank], part_of(rank, y), total);
    }
    params.residual[row] = experts::onto(params.residual[row], total);
  }
};

template <tile::Storage kStorage>
__global__ __launch_bounds__(kThreads, kDownBlocks) void down(Params all) {
  const Params params = all.own();
  using Stage = Down<kStorage>;
  __shared__ typename Stage::SharedStorage shared;
  ptx::griddepcontrol_launch_dependents();
  shared.chosen.choose<true>(params.logits, params.per_expert);
  __syncthreads();  // the choice is complete
  Stage stage{params, shared};
  stage.ask();
  ptx::griddepcontrol_wait();  // for `act`
  stage.bring();
  __syncthreads();  // the rows are staged
  stage.multiply();
  __syncthreads();  // all sums are there
  stage.add();
}

// Most bytes of a layer's experts that the second-level cache is taken to keep.
inline constexpr size_t kCachedWeights = size_t{4} << 20;
inline constexpr size_t kWeights =
    size_t{Experts::kCount + kHasShared} * (kInner + Experts::kIntermediate) * kWidth;
// Most rows that are computed one by one: an expert that several of them choose is read several
// times, which is faster than planning if the second-level cache has it.
inline constexpr unsigned kApartMax = kWeights <= kCachedWeights ? 8 : 1;

template <tile::Storage kStorage>
cudaError_t launch_apart(const Params& params, unsigned rows, cudaStream_t stream) {
  constexpr unsigned kUnits = GateUpUnits::kUnits, kSms = target::SMS;
  const Launch shape{min(kUnits, kSms), RowShape::kThreads, sizeof(GateUpStorage), rows};
  const cudaError_t failed = launch_chained(gate_up<kStorage>, shape, stream, params);
  if (failed != cudaSuccess) return failed;
  constexpr unsigned kPanels = tile::panels_of(kWidth);
  return launch_chained(down<kStorage>, {kPanels, kThreads, 0, rows}, stream, params);
}

}  // namespace atlas::moe
