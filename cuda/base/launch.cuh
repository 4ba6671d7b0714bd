// The one way a kernel is launched: in a stream, chained to the kernel before it.
#pragma once

#include <cuda_runtime.h>

namespace atlas {

struct Launch {
  unsigned grid;
  unsigned threads;
  unsigned shared_bytes;
};

// Launches `kernel` with programmatic dependence on the stream's previous kernel: its blocks may
// start while that one still runs, so it must call `griddepcontrol_wait` before it touches memory
// that any earlier kernel reads or writes. A grid of no blocks is no launch.
template <class... Params, class... Args>
cudaError_t launch_chained(void (*kernel)(Params...), Launch shape, cudaStream_t stream,
                           Args... args) {
  if (shape.grid == 0) return cudaSuccess;
  cudaLaunchAttribute chained{};
  chained.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  chained.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.grid);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = &chained;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, Params(args)...);
}

}  // namespace atlas
