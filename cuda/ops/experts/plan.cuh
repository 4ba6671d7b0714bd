// Rows regrouped by expert, and their way back: what every algorithm of `experts` shares.
#pragma once

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/math.cuh"
#include "tile/panels.cuh"

namespace atlas::experts {

using target::EXPERT_INTERMEDIATE;
using target::HIDDEN;

// Routed experts and the shared one.
inline constexpr int kExperts = target::EXPERTS + 1;
// Experts that a row visits, the shared one last.
inline constexpr int kTurns = target::EXPERTS_PER_TOKEN + 1;
// An expert's places are whole groups of so many: operands of warpgroup instructions.
inline constexpr int kPlaceGroup = 8;

inline constexpr int kRowsMax = target::PREFILL_TOKENS + target::MAX_SEQUENCES;

// Places of `rows` rows, at most.
__host__ __device__ constexpr int places_of(int rows) {
  const int turns = rows * kTurns;
  const int experts = turns < kExperts ? turns : kExperts;
  return turns + (kPlaceGroup - 1) * experts;
}

inline constexpr int kPlacesMax =
    (places_of(kRowsMax) + kPlaceGroup - 1) / kPlaceGroup * kPlaceGroup;
inline constexpr int kPlanThreads = 1024;
inline constexpr int kSumThreads = 256;
// A place that is no row's.
inline constexpr unsigned kNoTurn = ~0u;

static_assert(kExperts <= kPlanThreads, "a thread counts an expert");
static_assert(target::SHARED_INTERMEDIATE == EXPERT_INTERMEDIATE &&
                  target::FORMAT_SHARED_EXPERT == target::FORMAT_EXPERTS,
              "the shared expert is one more expert");
static_assert(EXPERT_INTERMEDIATE % 8 == 0, "gate and up interleave by 8 rows");

// A place is a row's turn at one of its experts.
struct Plan {
  uint4 tile[kPlacesMax];         // expert, first place, places
  unsigned place_of[kPlacesMax];  // (row, rank) -> place
  unsigned turn_of[kPlacesMax];   // place -> (row, rank)
  unsigned tiles;
  unsigned places;  // of all experts, those between them included
};

struct Params {
  const float* x;                // (rows, HIDDEN)
  const unsigned* chosen;        // (rows, kTurns)
  const float* weights;          // (rows, kTurns)
  const unsigned char* gate_up;  // (kExperts) matrices of (2 * EXPERT_INTERMEDIATE, HIDDEN)
  const unsigned char* down;     // (kExperts) matrices of (HIDDEN, EXPERT_INTERMEDIATE)
  Plan* plan;
  float* act;       // (places, EXPERT_INTERMEDIATE)
  float* y;         // (places, HIDDEN)
  float* residual;  // (rows, HIDDEN)
  int rows;
};

// Sum of `value` over the threads before this one; needs kPlanThreads threads.
__device__ inline unsigned before(unsigned value, unsigned (&sums)[tile::kWarpLanes]) {
  const int lane = threadIdx.x % tile::kWarpLanes, warp = threadIdx.x / tile::kWarpLanes;
  unsigned sum = value;
#pragma unroll
  for (int distance = 1; distance < tile::kWarpLanes; distance *= 2) {
    const unsigned other = __shfl_up_sync(tile::kAllLanes, sum, distance);
    if (lane >= distance) sum += other;
  }
  __syncthreads();  // `sums` is free
  if (lane == tile::kWarpLanes - 1) sums[warp] = sum;
  __syncthreads();  // every warp's sum is there
  for (int other = 0; other < warp; ++other) sum += sums[other];
  return sum - value;
}

// The order of the places of an expert depends on which thread counts first; a row's result does
// not depend on its place.
__global__ __launch_bounds__(kPlanThreads) void plan(Params params, int tile_rows) {
  static_assert(kPlanThreads == tile::kWarpLanes * tile::kWarpLanes, "a lane's sum a warp");
  __shared__ unsigned count[kExperts];
  __shared__ unsigned sums[tile::kWarpLanes];
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int turns = params.rows * kTurns, thread = threadIdx.x;
  Plan& plan = *params.plan;
  if (thread < kExperts) count[thread] = 0;
  __syncthreads();  // counts are zero
#pragma unroll 4
  for (int turn = thread; turn < turns; turn += kPlanThreads) {
    plan.place_of[turn] = atomicAdd(&count[params.chosen[turn]], 1u);
  }
  __syncthreads();  // counts are complete
  const unsigned mine = thread < kExperts ? count[thread] : 0;
  const unsigned room = (mine + kPlaceGroup - 1) / kPlaceGroup * kPlaceGroup;
  const unsigned start = before(room, sums);
  unsigned tile = before((mine + tile_rows - 1) / tile_rows, sums);
  for (unsigned done = 0; done < mine; done += tile_rows) {
    const unsigned places = min(mine - done, static_cast<unsigned>(tile_rows));
    plan.tile[tile++] = make_uint4(thread, start + done, places, 0);
  }
  for (unsigned place = start + mine; place < start + room; ++place) plan.turn_of[place] = kNoTurn;
  if (thread == kExperts - 1) {
    plan.tiles = tile;
    plan.places = start + room;
  }
  if (thread < kExperts) count[thread] = start;
  __syncthreads();  // starts are written
#pragma unroll 4
  for (int turn = thread; turn < turns; turn += kPlanThreads) {
    const unsigned place = plan.place_of[turn] + count[params.chosen[turn]];
    plan.place_of[turn] = place;
    plan.turn_of[place] = turn;
  }
}

// `residual[row] += sum over turns of weight * y[place]`, in the order of the turns.
__global__ __launch_bounds__(kSumThreads) void weighted_sum(Params params) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  constexpr int kVectors = HIDDEN / 4;
  const int item = blockIdx.x * kSumThreads + threadIdx.x;
  const int row = item / kVectors, vector = item % kVectors;
  if (row >= params.rows) return;
  float4 sum{};
#pragma unroll
  for (int rank = 0; rank < kTurns; ++rank) {
    const int turn = row * kTurns + rank;
    const float weight = params.weights[turn];
    const size_t place = params.plan->place_of[turn];
    const float4 y = reinterpret_cast<const float4*>(params.y + place * HIDDEN)[vector];
    sum.x = fmaf(weight, y.x, sum.x);
    sum.y = fmaf(weight, y.y, sum.y);
    sum.z = fmaf(weight, y.z, sum.z);
    sum.w = fmaf(weight, y.w, sum.w);
  }
  float4& to = tile::vector_at(params.residual, item);
  to = tile::zip(to, sum, [](float residual, float more) { return residual + more; });
}

}  // namespace atlas::experts
