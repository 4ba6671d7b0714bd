// Probe builds: they show whether kernels wait for each other where they must, and whether a tool
// finds a stray access. The product is built with `none`.
#pragma once

namespace atlas {

enum class Probe {
  none,
  serial,   // no kernel starts before the one before it has ended
  delayed,  // of each kernel the first and the last block rest where the next kernel may start
  stray,    // `read_bytes` reads beyond its buffer
};

// The pipeline defines `ATLAS_PROBE` as the probe to build; the product has no definition.
#ifndef ATLAS_PROBE
#define ATLAS_PROBE none
#endif
inline constexpr Probe kProbe = Probe::ATLAS_PROBE;

// Time that a probe's blocks rest, ns: several times that of a small model's kernel.
inline constexpr unsigned long long kRestNs = 40'000;

__device__ inline unsigned long long clock_ns() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

// Delays the first and the last block of a grid by `kRestNs`.
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
