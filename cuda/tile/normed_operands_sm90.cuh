// Rows normed into operands of warpgroup instructions, once for all products.
#pragma once

#include "base/launch.cuh"
#include "tile/normed.cuh"
#include "tile/warpgroups_sm90.cuh"

namespace atlas::tile {

using OperandNormRow = AnyWarpNormRow<target::HIDDEN, kPanelThreads>;

// Normed rows in the layouts for matrices of different bits a weight; a layout that no matrix uses
// is empty.
struct NormedOperands {
  Operands<Storage::f16> f16;
  Operands<Storage::nvfp4> four;
  Operands<Storage::fp8_block128> eight;

  template <Storage kStorage>
  auto& of() {
    constexpr int kBits = bits_of(kStorage);
    static_assert(kBits == 16 || kBits == 8 || kBits == 4);
    if constexpr (kBits == 16) return f16;
    if constexpr (kBits == 8) return eight;
    if constexpr (kBits == 4) return four;
  }
};

inline constexpr int kNormBytes = operand_bytes(kOperandRows, target::HIDDEN);

// Most rows that are normed one a block.
inline constexpr int kFewNormsMax = 2 * target::SMS;

extern __shared__ __align__(128) unsigned char norm_shared[];

// Writes four columns of a row as operands.
template <Storage kStorage>
__device__ inline void put(const Operands<kStorage>& to, int row, int vector,
                           const float4& part) {
  unsigned char* first = to.at(row, vector * 4);
  *reinterpret_cast<unsigned*>(first) = pack(part.x, part.y);
  *reinterpret_cast<unsigned*>(first + 128) = pack(part.z, part.w);
}

// Writes a block's eight rows, one a warp, from shared memory: columns of eight rows are neighbours
// in operands, and a line together.
template <Storage kStorage>
__device__ inline void put(const Operands<kStorage>& to, OperandNormRow& row) {
  __syncthreads();  // the rows before have been copied
  const Operands<kStorage> staged{norm_shared, 1};
  row.for_each_vector([&](int vector, const float4& part) {
    put(staged, threadIdx.x / kWarpLanes, vector, part);
  });
  __syncthreads();  // all rows are there
  constexpr int kBlockVectors = Operands<kStorage>::kBytes / 16;
  for (int vector = threadIdx.x; vector < kNormBytes / 16; vector += kRoundThreads) {
    const size_t block = static_cast<size_t>(vector / kBlockVectors) * to.groups + blockIdx.x;
    reinterpret_cast<uint4*>(to.base)[block * kBlockVectors + vector % kBlockVectors] =
        reinterpret_cast<const uint4*>(norm_shared)[vector];
  }
}

// Norms row `from(r)` in block r; `x` is null where normed rows are not needed in F32.
template <class From>
__global__ __launch_bounds__(kPanelThreads) void norm_few_operands(From from, const float* gains,
                                                                   float* x, NormedOperands to) {
  __shared__ NormedRow::SharedStorage shared;
  ptx::griddepcontrol_launch_dependents();
  NormedRow gain;
  gain.load(gains);
  ptx::griddepcontrol_wait();  // the gain depends on nothing; everything below does
  const int r = static_cast<int>(blockIdx.x);
  NormedRow row;
  row.load(from(r));
  row.normalise(gain, target::NORM_EPS, shared);
  if (x != nullptr) row.store(x + static_cast<size_t>(r) * target::HIDDEN);
  NormedRow::for_each_vector([&](int i, int vector) {
    if (to.f16.base != nullptr) put(to.f16, r, vector, row.part[i]);
    if (to.four.base != nullptr) put(to.four, r, vector, row.part[i]);
    if (to.eight.base != nullptr) put(to.eight, r, vector, row.part[i]);
  });
}

// Norms many rows, eight a block.
template <class From>
__global__ __launch_bounds__(kRoundThreads) void norm_operands(From from, int rows,
                                                               const float* gains, float* x,
                                                               NormedOperands to) {
  static_assert(kRoundThreads == kOperandRows * kWarpLanes, "a row is of a warp");
  ptx::griddepcontrol_launch_dependents();
  OperandNormRow gain;
  gain.load(gains);
  ptx::griddepcontrol_wait();  // the gain depends on nothing; everything below does
  const int row = static_cast<int>(blockIdx.x) * kOperandRows + threadIdx.x / kWarpLanes;
  OperandNormRow normed{};
  if (row < rows) {
    normed.load(from(row));
    normed.normalise(gain, target::NORM_EPS);
    if (x != nullptr) {
      auto* to = reinterpret_cast<float4*>(x + static_cast<size_t>(row) * target::HIDDEN);
      normed.for_each_vector([&](int vector, const float4& part) { to[vector] = part; });
    }
  }
  if (to.f16.base != nullptr) put(to.f16, normed);
  if (to.four.base != nullptr) put(to.four, normed);
  if (to.eight.base != nullptr) put(to.eight, normed);
}

template <class From>
cudaError_t launch_norm_operands(const From& from, int rows, const float* gain, float* x,
                                 const NormedOperands& to, cudaStream_t stream) {
  static_assert(kFits<kNormBytes>);
  // With eight rows a block, few rows would leave most SMs idle.
  if (rows <= kFewNormsMax) {
    const Launch shape{static_cast<unsigned>(rows), kPanelThreads, 0};
    return launch_chained(norm_few_operands<From>, shape, stream, from, gain, x, to);
  }
  const Launch shape{static_cast<unsigned>(operand_groups(rows)), kRoundThreads, kNormBytes, 1, 1,
                     starts_early(rows)};
  return launch_chained(norm_operands<From>, shape, stream, from, rows, gain, x, to);
}

}  // namespace atlas::tile
