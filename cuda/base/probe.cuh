// Differences of a probe build: it shows whether kernels wait for each other where they must, and
// whether a tool sees what they must not do. The product is no probe.
#pragma once

namespace atlas {

enum class Probe {
  none,
  serial,   // no kernel starts before the one before it has ended
  delayed,  // of each kernel the first and the last block rest where the next kernel may start
  stray,    // `read_bytes` reads beyond its buffer
};

// The pipeline names it where it was asked for one.
#ifndef ATLAS_PROBE
#define ATLAS_PROBE none
#endif
inline constexpr Probe kProbe = Probe::ATLAS_PROBE;

// Some times what a kernel of a small model takes, ns.
inline constexpr unsigned long long kRestNs = 40'000;

__device__ inline unsigned long long clock_ns() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

// Rests, if this is the first or the last block of its grid.
__device__ inline void rest() {
  const bool first = blockIdx.x + blockIdx.y + blockIdx.z == 0;
  const bool last = blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1 &&
                    blockIdx.z == gridDim.z - 1;
  if (!first && !last) return;
  for (const unsigned long long begin = clock_ns(); clock_ns() - begin < kRestNs;) {
    __nanosleep(1000);
  }
}

}  // namespace atlas
