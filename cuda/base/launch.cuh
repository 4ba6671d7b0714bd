// Launches of kernels: always in a stream, and dependent on the kernel before.
#pragma once

#include <cuda_runtime.h>

#include "base/probe.cuh"
#include "ops.h"
#include "target.cuh"

namespace atlas {

// Largest dynamic shared memory of a block that needs no `cudaFuncSetAttribute`, bytes.
inline constexpr unsigned kSharedUnasked = 48 * 1024;

// Shared memory of an SM of the chip, bytes.
inline constexpr unsigned kChipShared = target::COMPUTE_CAPABILITY == 90 ? 228 * 1024 : 100 * 1024;
// Shared memory of the target's SM, bytes: one block of the largest size, and the driver's share.
inline constexpr unsigned kSmShared = target::SHARED_BYTES_PER_BLOCK + 1024;
static_assert(kSmShared <= kChipShared, "a block fits an SM");
// Carveout: percent of an SM's shared memory that is not used as cache. Where the target's SM is
// smaller than the chip's, a larger carveout would let more blocks start on one SM than the target
// counts on, and none on other SMs.
inline constexpr unsigned kCarveout = kSmShared * 100 / kChipShared;

// Compile-time check that `kNeeded` bytes of a block's shared memory are within the target's limit.
template <unsigned kNeeded, unsigned kAvailable = target::SHARED_BYTES_PER_BLOCK>
struct Fits {
  static_assert(kNeeded <= kAvailable, "a block has not the bytes that the kernel needs");
  static constexpr bool value = true;
};
template <unsigned kNeeded>
inline constexpr bool kFits = Fits<kNeeded>::value;

struct Launch {
  unsigned grid;
  unsigned threads;
  unsigned shared_bytes;
  unsigned grid_y = 1;
  unsigned grid_z = 1;
  // Whether blocks may start while the kernel before is running.
  bool early = true;
};

inline constexpr unsigned blocks_for(unsigned items, unsigned per_block) {
  return (items + per_block - 1) / per_block;
}

// Allows a kernel `bytes` of dynamic shared memory. The limit never shrinks: a profiler checks the
// launches of a recorded graph against the present limit, not the one at recording.
inline cudaError_t allow_shared(const void* kernel, unsigned bytes) {
  if (bytes <= kSharedUnasked) return cudaSuccess;
  cudaFuncAttributes known{};
  const cudaError_t failed = cudaFuncGetAttributes(&known, kernel);
  const int wanted = static_cast<int>(bytes);
  if (failed != cudaSuccess || wanted <= known.maxDynamicSharedSizeBytes) return failed;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, wanted);
}

// Refuses a grid whose blocks wait for each other unless all are resident at once, `of_sm` blocks
// an SM. A GPU or partition with fewer SMs than the target, or a shared GPU, is never opened.
inline cudaError_t require_coresident(unsigned blocks, unsigned of_sm = 1) {
  const bool fits = blocks <= of_sm * target::SMS;
  return fits ? cudaSuccess : cudaErrorCooperativeLaunchTooLarge;
}

// Launches `kernel` with programmatic dependence on the stream's previous kernel: unless `shape` is
// not early, blocks may start while that kernel is running, so `kernel` must call
// `griddepcontrol_wait` before it touches memory that an earlier kernel reads or writes. An empty
// grid is not launched.
template <class... Params, class... Args>
cudaError_t launch_chained(void (*kernel)(Params...), Launch shape, cudaStream_t stream,
                           Args... args) {
  if (shape.grid == 0 || shape.grid_y == 0 || shape.grid_z == 0) return cudaSuccess;
  const void* symbol = reinterpret_cast<const void*>(kernel);
  const cudaError_t refused = allow_shared(symbol, shape.shared_bytes);
  if (refused != cudaSuccess) return refused;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed =
      shape.early && kProbe != Probe::serial;
  attributes[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attributes[1].val.sharedMemCarveout = kCarveout;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.grid, shape.grid_y, shape.grid_z);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = kCarveout < 100 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, Params(args)...);
}

}  // namespace atlas
