// The one way a kernel is launched: in a stream, chained to the kernel before it.
#pragma once

#include <cuda_runtime.h>

#include "base/probe.cuh"
#include "ops.h"
#include "target.cuh"

namespace atlas {

// Dynamic shared memory that a kernel may ask for without saying so first, bytes.
inline constexpr unsigned kSharedUnasked = 48 * 1024;

// Shared memory of an SM of the chip, and of what the target takes one to be: one block of the
// largest size and what the driver keeps of each, bytes.
inline constexpr unsigned kChipShared = target::COMPUTE_CAPABILITY == 90 ? 228 * 1024 : 100 * 1024;
inline constexpr unsigned kSmShared = target::SHARED_BYTES_PER_BLOCK + 1024;
static_assert(kSmShared <= kChipShared, "a block fits an SM");
// Percent of the chip's that an SM is asked to have; the rest is cache. Where the target's is
// smaller, more blocks of a kernel would start on an SM than the target's has room for, and none on
// others.
inline constexpr unsigned kCarveout = kSmShared * 100 / kChipShared;

// A block's shared memory: what a kernel needs of it, where it is known when compiling.
template <unsigned kNeeded, unsigned kRoom = target::SHARED_BYTES_PER_BLOCK>
struct Fits {
  static_assert(kNeeded <= kRoom, "a block has no room for what the kernel needs, bytes");
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
  // Whether blocks may start while the kernel before still runs.
  bool early = true;
};

inline constexpr unsigned blocks_for(unsigned items, unsigned per_block) {
  return (items + per_block - 1) / per_block;
}

// Lets a kernel have so much dynamic shared memory. What it may have never shrinks: a profiler
// checks the launch of a recorded step against what the kernel may have now, not what it might have
// when the step was recorded.
inline cudaError_t allow_shared(const void* kernel, unsigned bytes) {
  if (bytes <= kSharedUnasked) return cudaSuccess;
  cudaFuncAttributes known{};
  const cudaError_t failed = cudaFuncGetAttributes(&known, kernel);
  const int wanted = static_cast<int>(bytes);
  if (failed != cudaSuccess || wanted <= known.maxDynamicSharedSizeBytes) return failed;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, wanted);
}

// Whether SMs that take `of_sm` each have room for all of `blocks`, which wait for each other: no
// GPU, and no part of one, is opened that has fewer than the target's, and none that others share.
inline cudaError_t room_for_waiting(unsigned blocks, unsigned of_sm = 1) {
  const bool has_room = blocks <= of_sm * target::SMS;
  return has_room ? cudaSuccess : cudaErrorCooperativeLaunchTooLarge;
}

// Launches `kernel` with programmatic dependence on the stream's previous kernel: its blocks may
// start while that one still runs, unless `shape` says otherwise, so it must call
// `griddepcontrol_wait` before it touches memory that any earlier kernel reads or writes. A grid of
// no blocks is no launch.
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
