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
inline constexpr int kTurns = Experts::kPerToken + (Experts::kShared > 0);
// Multiple to which an expert's assignments are padded: rows of an operand block of warpgroups.
inline constexpr int kPlaceGroup = 8;

inline constexpr int kRowsMax =
    target::PREFILL_TOKENS + target::MAX_SEQUENCES + target::DRAFTS;

// Most places of the plan for `rows` rows: one an assignment, and fewer than `kPlaceGroup` of
// padding an expert.
__host__ __device__ constexpr int places_of(int rows) {
  const int turns = rows * kTurns;
  const int experts = turns < kExperts ? turns : kExperts;
  return turns + (kPlaceGroup - 1) * experts;
}

inline constexpr int kPlacesMax =
    (places_of(kRowsMax) + kPlaceGroup - 1) / kPlaceGroup * kPlaceGroup;
inline constexpr int kPlanThreads = 1024;
inline constexpr int kSumThreads = 256;
// Entry of `turn_of` for a place of padding.
inline constexpr unsigned kNoTurn = ~0u;

static_assert(kExperts <= kPlanThreads, "a thread counts an expert");
static_assert(Experts::kShared == 0 ||
                  (Experts::kShared == Experts::kIntermediate &&
                   target::FORMAT_SHARED_EXPERT == target::FORMAT_EXPERTS),
              "the shared expert is one more expert");
static_assert(Experts::kIntermediate % kPanelActivations == 0, "panels of gate and up are full");

// Assignments of rows to experts, sorted by expert and padded to `kPlaceGroup` each: a place is an
// index in this order, and the rank of an assignment its index among the row's.
struct Plan {
  uint4 tile[kPlacesMax];         // expert, first place, places
  unsigned place_of[kPlacesMax];  // (row, rank) -> place
  unsigned turn_of[kPlacesMax];   // place -> (row, rank)
  unsigned tiles;
  unsigned places;  // padding included
  unsigned taken;   // tiles that blocks have taken after their first ones
};

struct Params {
  const float* x;                // (rows, kWidth)
  const unsigned* chosen;        // (rows, kTurns)
  const float* weights;          // (rows, kTurns)
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
inline constexpr int kFewTurns = 2 * kPlanThreads;
// Most assignments of a planning thread.
template <int kBlocks>
inline constexpr int kTurnsEach = ((kBlocks > 1 ? kRowsMax * kTurns : kFewTurns) +
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
// place. Blocks after those that plan round rows meanwhile.
template <int kBlocks>
__global__ __cluster_dims__(kBlocks) __launch_bounds__(kPlanThreads) void plan(Params params,
                                                                               int tile_rows,
                                                                               f16* rounded) {
  static_assert(kPlanThreads == tile::kWarpLanes * tile::kWarpLanes, "a lane's sum a warp");
  __shared__ unsigned count[kExperts];
  __shared__ unsigned sums[tile::kWarpLanes];
  ptx::griddepcontrol_launch_dependents();
  const int turns = params.rows * kTurns, thread = threadIdx.x;
  const int first = blockIdx.x * kPlanThreads + thread;
  Plan& plan = *params.plan;
  if (thread < kExperts) count[thread] = 0;
  ptx::griddepcontrol_wait();
  if (blockIdx.x >= kBlocks) {
    return round_x(params, rounded, blockIdx.x - kBlocks, gridDim.x - kBlocks);
  }
  __syncthreads();  // counts are zero
  unsigned expert[kTurnsEach<kBlocks>], at[kTurnsEach<kBlocks>];
#pragma unroll
  for (int i = 0; i < kTurnsEach<kBlocks>; ++i) {
    const int turn = first + i * kBlocks * kPlanThreads;
    if (turn < turns) expert[i] = params.chosen[turn];
  }
#pragma unroll
  for (int i = 0; i < kTurnsEach<kBlocks>; ++i) {
    if (first + i * kBlocks * kPlanThreads < turns) at[i] = atomicAdd(&count[expert[i]], 1u);
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
  const unsigned room = (mine + kPlaceGroup - 1) / kPlaceGroup * kPlaceGroup;
  const unsigned start = before(room, sums);
  unsigned tile = before((mine + tile_rows - 1) / tile_rows, sums);
  if (blockIdx.x == 0) {
    for (unsigned done = 0; done < mine; done += tile_rows) {
      const unsigned places = min(mine - done, static_cast<unsigned>(tile_rows));
      plan.tile[tile++] = make_uint4(thread, start + done, places, 0);
    }
    for (unsigned at = start + mine; at < start + room; ++at) plan.turn_of[at] = kNoTurn;
    if (thread == kExperts - 1) {
      plan.tiles = tile;
      plan.places = start + room;
      plan.taken = 0;
    }
  }
  sync<kBlocks>();  // counts are read
  if (thread < kExperts) count[thread] = start + before_this;
  __syncthreads();  // starts are written
#pragma unroll
  for (int i = 0; i < kTurnsEach<kBlocks>; ++i) {
    const int turn = first + i * kBlocks * kPlanThreads;
    if (turn >= turns) break;
    const unsigned place = at[i] + count[expert[i]];
    plan.place_of[turn] = place;
    plan.turn_of[place] = turn;
  }
}

// Products of `down` in the layout (places, kPairs).
struct SumRows {
  __host__ __device__ static size_t at(int place, int pair) {
    return static_cast<size_t>(place) * kPairs + pair;
  }
};

// `residual[row] += sum of weight * y[place]` over the row's assignments, in order; `Y` gives the
// address of four pairs of a place. Static, as `moe` may have the kernel too.
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
  for (int rank = 0; rank < kTurns; ++rank) {
    const int turn = row * kTurns + rank;
    const float weight = params.weights[turn];
    const int place = static_cast<int>(params.plan->place_of[turn]);
    sum.add(weight, params.y + Y::at(place, vector * 4));
  }
  sum.join(params.residual + static_cast<size_t>(row) * kWidth, vector);
}

}  // namespace atlas::experts
