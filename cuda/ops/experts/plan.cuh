// Grouping of rows by expert, and the sum back by row: shared by all algorithms of `experts`.
#pragma once

#include "base/launch.cuh"
#include "ops/experts/parts.cuh"
#include "ops/experts/scan.cuh"
#include "target.cuh"
#include "tile/math.cuh"
#include "tile/panels.cuh"

namespace atlas::experts {

using target::shapes::Experts;

// Routed experts and the shared one, if there is one.
inline constexpr int kExperts = Experts::kCount + (Experts::kShared > 0);
// Assignments of a row, one to each of its experts; the shared expert's is last.
inline constexpr int kAssigned = Experts::kPerToken + (Experts::kShared > 0);
// Multiple to which an expert's assignments are padded: rows of an operand block of warpgroups.
inline constexpr int kSortedGroup = 8;

inline constexpr int kRowsMax =
    target::PREFILL_TOKENS + target::MAX_SEQUENCES + target::DRAFTS;

// Most places of the plan for `rows` rows: one an assignment, and fewer than `kSortedGroup` of
// padding an expert.
__host__ __device__ constexpr int sorted_rows(int rows) {
  const int assignments = rows * kAssigned;
  const int experts = assignments < kExperts ? assignments : kExperts;
  return assignments + (kSortedGroup - 1) * experts;
}

inline constexpr int kSortedMax =
    (sorted_rows(kRowsMax) + kSortedGroup - 1) / kSortedGroup * kSortedGroup;
inline constexpr int kPlanThreads = 1024;
inline constexpr int kSumThreads = 256;
// Entry of a sorted row that is padding.
inline constexpr unsigned kPadding = ~0u;

static_assert(kExperts <= kPlanThreads, "a thread counts an expert");
static_assert(Experts::kShared == 0 ||
                  (Experts::kShared == Experts::kIntermediate &&
                   target::FORMAT_SHARED_EXPERT == target::FORMAT_EXPERTS),
              "the shared expert is one more expert");
static_assert(Experts::kIntermediate % kPanelActivations == 0, "panels of gate and up are full");

// Assignments of rows to experts, sorted by expert and padded to `kSortedGroup` each: a place is an
// index in this order, and the rank of an assignment its index among the row's.
struct Plan {
  uint4 tile[kSortedMax];              // expert, first sorted row, rows
  unsigned sorted_row_of[kSortedMax];  // (row, rank) -> sorted row
  unsigned assignment_of[kSortedMax];  // sorted row -> (row, rank)
  unsigned tiles;
  unsigned sorted;  // padding included
  unsigned taken;   // tiles that blocks have taken after their first ones
};

struct Params {
  const float* x;                // (rows, kWidth)
  const unsigned* chosen;        // (rows, kAssigned)
  const float* weights;          // (rows, kAssigned)
  const unsigned char* gate_up;  // (kExperts) matrices of (kInputs * kIntermediate, kWidth)
  const unsigned char* down;     // (kExperts) matrices of (kWidth, kIntermediate)
  Plan* plan;
  float* act;       // (places, kIntermediate)
  f16x2* y;         // (places, kPairs), or in the layout of an algorithm's products
  float* residual;  // (rows, kWidth), or sums that are latents
  int rows;
};

// Parameters from the arguments of the ABI.
inline Params params_of(const float* x, const unsigned* chosen, const float* weights,
                        const unsigned char* gate_up, const unsigned char* down,
                        unsigned char* scratch, float* act, unsigned* y, float* residual,
                        unsigned rows) {
  return {x,   chosen, weights, gate_up, down, reinterpret_cast<Plan*>(scratch),
          act, reinterpret_cast<f16x2*>(y), residual, static_cast<int>(rows)};
}

// Barrier of the blocks that plan.
template <int kBlocks>
__device__ inline void sync() {
  if constexpr (kBlocks > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
}

// Blocks of the cluster that plans many assignments.
inline constexpr int kPlanBlocks = 8;
// Most assignments that one block plans alone.
inline constexpr int kFewAssignments = 2 * kPlanThreads;
// Most assignments of a planning thread.
template <int kBlocks>
inline constexpr int kAssignmentsEach = ((kBlocks > 1 ? kRowsMax * kAssigned : kFewAssignments) +
                                   kBlocks * kPlanThreads - 1) / (kBlocks * kPlanThreads);

// Most blocks that round rows beside those that plan: whole clusters, one block an SM.
inline constexpr unsigned kRoundBlocksMax = target::SMS / kPlanBlocks * kPlanBlocks - kPlanBlocks;
// Vectors that a rounding thread has in flight.
inline constexpr int kRoundAtOnce = 4;
inline constexpr int kRoundVectors = kRoundAtOnce * kPlanThreads;

// Rounds `x`, (rows, kWidth), for kernels that read each row several times: part `block` of
// `blocks`.
__device__ inline void round_x(const Params& params, f16* rounded, int block, int blocks) {
  const int vectors = params.rows * (kWidth / 4);
  for (int first = block * kRoundVectors; first < vectors; first += blocks * kRoundVectors) {
    float4 part[kRoundAtOnce];
#pragma unroll
    for (int i = 0; i < kRoundAtOnce; ++i) {
      const int vector = first + i * kPlanThreads + threadIdx.x;
      if (vector < vectors) part[i] = tile::vector_at(params.x, vector);
    }
#pragma unroll
    for (int i = 0; i < kRoundAtOnce; ++i) {
      const int vector = first + i * kPlanThreads + threadIdx.x;
      if (vector < vectors) tile::put_vector(rounded, vector, part[i]);
    }
  }
}

// Kernel of the plan: blocks count the assignments of each expert and exchange counts. The order of
// an expert's places depends on which thread counts first; a row's result does not depend on its
// place. Blocks after the planning ones round rows meanwhile.
template <int kBlocks>
__global__ __cluster_dims__(kBlocks) __launch_bounds__(kPlanThreads) void plan(Params params,
                                                                               int tile_rows,
                                                                               f16* rounded) {
  static_assert(kPlanThreads == tile::kWarpLanes * tile::kWarpLanes, "a lane's sum a warp");
  __shared__ unsigned count[kExperts];
  __shared__ unsigned sums[tile::kWarpLanes];
  ptx::griddepcontrol_launch_dependents();
  const int assignments = params.rows * kAssigned, thread = threadIdx.x;
  const int first = blockIdx.x * kPlanThreads + thread;
  Plan& plan = *params.plan;
  if (thread < kExperts) count[thread] = 0;
  ptx::griddepcontrol_wait();
  if (blockIdx.x >= kBlocks) {
    return round_x(params, rounded, blockIdx.x - kBlocks, gridDim.x - kBlocks);
  }
  __syncthreads();  // counts are zero
  unsigned expert[kAssignmentsEach<kBlocks>], at[kAssignmentsEach<kBlocks>];
#pragma unroll
  for (int i = 0; i < kAssignmentsEach<kBlocks>; ++i) {
    const int assignment = first + i * kBlocks * kPlanThreads;
    if (assignment < assignments) expert[i] = params.chosen[assignment];
  }
#pragma unroll
  for (int i = 0; i < kAssignmentsEach<kBlocks>; ++i) {
    if (first + i * kBlocks * kPlanThreads < assignments) at[i] = atomicAdd(&count[expert[i]], 1u);
  }
  sync<kBlocks>();  // counts are complete
  unsigned mine = 0, before_this = 0;
  if (thread < kExperts) {
#pragma unroll
    for (unsigned block = 0; block < kBlocks; ++block) {
      if (block == blockIdx.x) before_this = mine;
      mine += kBlocks > 1 ? ptx::cluster_load(&count[thread], block) : count[thread];
    }
  }
  const unsigned padded = (mine + kSortedGroup - 1) / kSortedGroup * kSortedGroup;
  const unsigned start = before(padded, sums);
  unsigned tile = before((mine + tile_rows - 1) / tile_rows, sums);
  if (blockIdx.x == 0) {
    for (unsigned done = 0; done < mine; done += tile_rows) {
      const unsigned rows = min(mine - done, static_cast<unsigned>(tile_rows));
      plan.tile[tile++] = make_uint4(thread, start + done, rows, 0);
    }
    for (unsigned at = start + mine; at < start + padded; ++at) plan.assignment_of[at] = kPadding;
    if (thread == kExperts - 1) {
      plan.tiles = tile;
      plan.sorted = start + padded;
      plan.taken = 0;
    }
  }
  sync<kBlocks>();  // counts are read
  if (thread < kExperts) count[thread] = start + before_this;
  __syncthreads();  // starts are written
#pragma unroll
  for (int i = 0; i < kAssignmentsEach<kBlocks>; ++i) {
    const int assignment = first + i * kBlocks * kPlanThreads;
    if (assignment >= assignments) break;
    const unsigned sorted = at[i] + count[expert[i]];
    plan.sorted_row_of[assignment] = sorted;
    plan.assignment_of[sorted] = assignment;
  }
}

// Products of `down` in the layout (sorted rows, kPairs).
struct SumRows {
  __host__ __device__ static size_t at(int sorted, int pair) {
    return static_cast<size_t>(sorted) * kPairs + pair;
  }
};

// `residual[row] += sum of weight * y[place]` over the row's assignments, in order; `Y` gives the
// address of four pairs of a place. The kernel is static, as code of `moe` may define it too.
template <class Y>
static __global__ __launch_bounds__(kSumThreads) void weighted_sum(Params params) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  constexpr int kVectors = WeightedSum::kVectors;
  const int item = blockIdx.x * kSumThreads + threadIdx.x;
  const int row = item / kVectors, vector = item % kVectors;
  if (row >= params.rows) return;
  WeightedSum sum;
#pragma unroll
  for (int rank = 0; rank < kAssigned; ++rank) {
    const int assignment = row * kAssigned + rank;
    const float weight = params.weights[assignment];
    const int sorted = static_cast<int>(params.plan->sorted_row_of[assignment]);
    sum.add(weight, params.y + Y::at(sorted, vector * 4));
  }
  sum.join(params.residual + static_cast<size_t>(row) * kWidth, vector);
}

}  // namespace atlas::experts
