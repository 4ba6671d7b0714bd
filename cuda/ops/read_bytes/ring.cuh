// Implements: Clock::read_bytes
// Match:      a buffer of whole pieces, read from any piece on and round again
// Bound by:   memory: nothing is done with what comes
// Sync:       none; each warp has a ring of bulk copies of its own; chained launch
//
// Reads memory as products read weights, without computing: one block an SM, with copies under way
// in all the shared memory that a block may have.
#pragma once

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/ptx.cuh"
#include "tile/reduce.cuh"

namespace atlas::read_bytes {

struct Params {
  const unsigned char* from;  // (buffer_lines, kLineBytes)
  unsigned buffer_lines;
  unsigned first;
  unsigned lines;
};

inline constexpr unsigned kLineBytes = 1024;
// Lines of one bulk copy.
inline constexpr unsigned kPieceLines = 4;
inline constexpr unsigned kPieceBytes = kPieceLines * kLineBytes;
// Most lines of a launch: numbers of lines stay below twice this, within 32 bits.
inline constexpr unsigned kLinesMax = 1u << 30;

template <class Tile>
inline constexpr int kWarps = Tile::kThreads / tile::kWarpLanes;
template <class Tile>
inline constexpr int kSlots =
    target::SHARED_BYTES_PER_BLOCK / kWarps<Tile> / (kPieceBytes + sizeof(unsigned long long));

// Most lines that all warps of a grid have in flight.
template <class Tile>
inline constexpr unsigned kStride = target::SMS * kWarps<Tile> * kPieceLines;

template <class Tile>
struct SharedStorage {
  alignas(128) unsigned char ring[kWarps<Tile>][kSlots<Tile>][kPieceBytes];
  unsigned long long full[kWarps<Tile>][kSlots<Tile>];
};

extern __shared__ __align__(128) unsigned char dynamic_shared[];

template <class Tile>
__global__ __launch_bounds__(Tile::kThreads) void ring(Params params) {
  auto& shared = *reinterpret_cast<SharedStorage<Tile>*>(dynamic_shared);
  const unsigned warp = threadIdx.x / tile::kWarpLanes;
  ptx::griddepcontrol_launch_dependents();
  if (threadIdx.x % tile::kWarpLanes == 0) {
    for (int i = 0; i < kSlots<Tile>; ++i) ptx::mbarrier_init(&shared.full[warp][i]);
    ptx::mbarrier_init_fence();
  }
  __syncwarp();  // the barriers are initialised
  ptx::griddepcontrol_wait();
  // Neighbouring pieces are read by different SMs.
  const unsigned begin = (warp * gridDim.x + blockIdx.x) * kPieceLines;
  const unsigned stride = gridDim.x * kWarps<Tile> * kPieceLines;
  unsigned ahead = begin, line = (params.first + begin) % params.buffer_lines;
  const auto ask = [&](int slot) {
    if (ahead < params.lines && ptx::elect()) {
      const unsigned bytes = min(kPieceLines, params.lines - ahead) * kLineBytes;
      size_t from = size_t{line} * kLineBytes;
      // In the probe, half of the first piece is outside the buffer.
      if (kProbe == Probe::stray && ahead == 0) {
        from = size_t{params.buffer_lines} * kLineBytes - kPieceBytes / 2;
      }
      ptx::mbarrier_expect(&shared.full[warp][slot], bytes);
      ptx::copy_bulk(shared.ring[warp][slot], params.from + from, bytes,
                     &shared.full[warp][slot]);
    }
    ahead += stride, line += stride;
    if (line >= params.buffer_lines) line -= params.buffer_lines;
  };
#pragma unroll 1
  for (int i = 0; i < kSlots<Tile>; ++i) ask(i);
  int slot = 0;
  unsigned parity = 0;
#pragma unroll 1
  for (unsigned at = begin; at < params.lines; at += stride) {
    ptx::mbarrier_wait(&shared.full[warp][slot], parity);
    ask(slot);
    if (++slot == kSlots<Tile>) slot = 0, parity ^= 1;
  }
}

template <class Tile>
struct Ring {
  static_assert(kFits<sizeof(SharedStorage<Tile>)>);

  static cudaError_t launch(const unsigned char* from, unsigned buffer_lines, unsigned first,
                            unsigned lines, cudaStream_t stream) {
    const bool whole = buffer_lines % kPieceLines == 0 && first % kPieceLines == 0;
    if (!whole || buffer_lines < kStride<Tile> || first >= buffer_lines || lines > kLinesMax) {
      return cudaErrorInvalidValue;
    }
    const unsigned grid = blocks_for(lines, kWarps<Tile> * kPieceLines);
    const Launch shape{min(grid, static_cast<unsigned>(target::SMS)), Tile::kThreads,
                       sizeof(SharedStorage<Tile>)};
    return launch_chained(ring<Tile>, shape, stream, Params{from, buffer_lines, first, lines});
  }
};

}  // namespace atlas::read_bytes
