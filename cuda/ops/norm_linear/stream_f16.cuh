// Product of up to a tile of rows, normed, and weights, which are streamed once and requested
// first. Every block norms all rows for itself: rows are in the second-level cache, and a kernel
// that norms once would take longer. Blocks are distributed to weight formats by bytes of panels.
#pragma once

#include "base/launch.cuh"
#include "target.cuh"
#include "tile/normed.cuh"

namespace atlas::norm_linear {

using target::HIDDEN;

inline constexpr int kParts = 4;
// Number of weight formats of the parts; at least the first three have an entry in any target.
inline constexpr int kStorages = [] {
  int end = 3;
  for (const target::Format format : target::NORM_LINEAR_FORMATS) {
    const int number = static_cast<int>(format);
    end = number < end ? end : number + 1;
  }
  return end;
}();

struct Part {
  const unsigned char* weight;  // panels of (n, HIDDEN)
  float* out;                   // (rows, n)
  int n;
  unsigned format;
  int blocks;
};

struct Params {
  const float* residual;  // (rows, HIDDEN)
  const float* gain;      // (HIDDEN)
  float* x;               // (rows, HIDDEN)
  Part part[kParts];
  int rows;
  int blocks[kStorages];  // of each weight format
};

using Row = tile::NormedRow;

// Most rows for which weights are streamed: as many as a block's shared memory can stage.
inline constexpr int kFewRowsMax = tile::normed_rows_max();

template <class Shape>
using SharedStorage = tile::NormedStorage<Shape>;

extern __shared__ __align__(128) unsigned char dynamic_shared[];

// The panels of all parts of a storage, part by part, from panel `first` on.
template <tile::Storage kStorage>
struct PartPanels {
  const Params& params;
  int first;

  // The part of a panel; `panel` becomes the panel's number in the part.
  __device__ const Part& part_of(int& panel) const {
    int p = 0;
    for (;; ++p) {
      if (params.part[p].format != static_cast<unsigned>(kStorage)) continue;
      const int panels = tile::panels_of(params.part[p].n);
      if (panel < panels) return params.part[p];
      panel -= panels;
    }
  }

  __device__ tile::Unit operator()(int unit) const {
    int panel = first + unit;
    const Part& part = part_of(panel);
    return {part.weight, part.n, panel};
  }
};

// Number of panels in all parts of a storage.
__host__ __device__ inline int panels_of(const Params& params, tile::Storage storage) {
  int panels = 0;
  for (int p = 0; p < kParts; ++p) {
    const Part& part = params.part[p];
    if (part.format == static_cast<unsigned>(storage)) panels += tile::panels_of(part.n);
  }
  return panels;
}

template <tile::Storage kStorage, class Shape>
__device__ inline void run(const Params& params, int block, int blocks) {
  using At = PartPanels<kStorage>;
  auto& shared = *reinterpret_cast<SharedStorage<Shape>*>(dynamic_shared);
  const auto staged = tile::StagedRows<Shape>::at(dynamic_shared + sizeof(SharedStorage<Shape>),
                                                   params.rows, HIDDEN);
  const auto share = tile::Share::of(panels_of(params, kStorage), block, blocks);
  const At at{params, share.first};
  tile::Stream<kStorage, HIDDEN, 1, Shape, At> stage(shared.stream, at, share.count);
  stage.prefetch();
  const tile::NormedGain gain(params.gain);
  ptx::griddepcontrol_wait();  // the weights depend on nothing; everything below does
  tile::norm_rows(tile::RowsIn{params.residual}, params.x, params.rows, gain, staged, shared);
  const auto sink = [&](int unit, int g, int row, float low, float high) {
    int panel = at.first + unit;
    const Part& part = at.part_of(panel);
    const int to = panel * tile::kPanelRows + g;
    float* out = part.out + static_cast<size_t>(row) * part.n;
    if (to < part.n) out[to] = low;
    if (to + 8 < part.n) out[to + 8] = high;
  };
  stage.run(staged, sink);
}

__host__ __device__ constexpr bool used(tile::Storage storage) {
  using namespace target;
  for (const Format format : NORM_LINEAR_FORMATS) {
    if (tile::storage_of(format) == storage) return true;
  }
  return storage == tile::Storage::f16;  // gates and router
}

// Calls `run(storage)` with the first weight format for which `is_of` holds, or the last.
template <tile::Storage kFirst, tile::Storage... kOthers, class Is, class Run>
__device__ inline void run_first(tile::Storages<kFirst, kOthers...>, const Is& is_of,
                                 const Run& run) {
  if constexpr (sizeof...(kOthers) == 0) {
    run(tile::Constant<kFirst>{});
  } else {
    if constexpr (used(kFirst)) {
      if (is_of(kFirst)) return run(tile::Constant<kFirst>{});
    }
    run_first(tile::Storages<kOthers...>{}, is_of, run);
  }
}

// Calls `body(storage, block, blocks)` with the weight format that this block has a share of.
template <class Body>
__device__ inline void for_storage(const Params& params, int block, const Body& body) {
  const auto is_of = [&](tile::Storage storage) {
    const int blocks = params.blocks[static_cast<int>(storage)];
    if (block < blocks) return true;
    block -= blocks;
    return false;
  };
  const auto run = [&](auto storage) {
    body(storage, block, params.blocks[static_cast<int>(storage.value)]);
  };
  run_first(tile::AllStorages{}, is_of, run);
}

template <class Shape>
__global__ __launch_bounds__(Shape::kThreads, tile::kResidentBlocks<Shape>) void few(
    const __grid_constant__ Params params) {
  ptx::griddepcontrol_launch_dependents();
  for_storage(params, blockIdx.x, [&](auto storage, int block, int blocks) {
    run<storage.value, Shape>(params, block, blocks);
  });
}

// Parameters from the arguments of the ABI; parts that are absent have no rows of weights.
inline Params params_of(const float* residual, const float* gain, float* x,
                        const unsigned char* w0, float* out0, unsigned n0, unsigned format0,
                        const unsigned char* w1, float* out1, unsigned n1, unsigned format1,
                        const unsigned char* w2, float* out2, unsigned n2, unsigned format2,
                        const unsigned char* w3, float* out3, unsigned n3, unsigned format3,
                        unsigned rows) {
  const auto part = [](const unsigned char* w, float* out, unsigned n, unsigned format) {
    return Part{w, out, static_cast<int>(n), format, 0};
  };
  return {residual,
          gain,
          x,
          {part(w0, out0, n0, format0), part(w1, out1, n1, format1), part(w2, out2, n2, format2),
           part(w3, out3, n3, format3)},
          static_cast<int>(rows),
          {}};
}

// Bytes of a panel's codes.
constexpr size_t panel_bytes(tile::Storage storage) {
  return tile::kPanelRows * HIDDEN * static_cast<size_t>(tile::bits_of(storage)) / 8;
}

// Share of `blocks` for `bytes` of `all`, rounded up.
constexpr int blocks_of(size_t bytes, size_t all, int blocks) {
  const size_t each = (all + blocks - 1) / blocks;
  return static_cast<int>((bytes + each - 1) / each);
}
static_assert(blocks_of(size_t{3} << 31, size_t{4} << 31, 100) == 75, "beyond 32 bits");

// Distributes blocks to weight formats by bytes; the format with most bytes gets those left over.
inline unsigned deal(Params& params, int all_blocks) {
  int panels[kStorages], main = 0;
  size_t bytes[kStorages], all = 0;
  for (int storage = 0; storage < kStorages; ++storage) {
    panels[storage] = panels_of(params, static_cast<tile::Storage>(storage));
    bytes[storage] = panels[storage] * panel_bytes(static_cast<tile::Storage>(storage));
    all += bytes[storage];
    if (bytes[storage] > bytes[main]) main = storage;
  }
  int others = 0;
  for (int storage = 0; storage < kStorages; ++storage) {
    if (storage == main) continue;
    params.blocks[storage] = min(panels[storage], blocks_of(bytes[storage], all, all_blocks));
    others += params.blocks[storage];
  }
  params.blocks[main] = min(panels[main], max(1, all_blocks - others));
  return static_cast<unsigned>(others + params.blocks[main]);
}

template <class Shape>
cudaError_t launch_shape(Params params, cudaStream_t stream) {
  const unsigned grid = deal(params, target::SMS);
  return launch_chained(few<Shape>,
                        {grid, Shape::kThreads, SharedStorage<Shape>::bytes(params.rows)}, stream,
                        params);
}

// Launches the kernel for up to `kFewRowsMax` rows; more threads norm several rows sooner.
inline cudaError_t launch_few(const Params& params, cudaStream_t stream) {
  int panels = 0;
  for (const Part& part : params.part) panels += tile::panels_of(part.n);
  return params.rows == 1 && tile::is_narrow(panels, 1) ? launch_shape<tile::Narrow>(params, stream)
                                                        : launch_shape<tile::Wide>(params, stream);
}

static_assert(kFits<SharedStorage<tile::Wide>::bytes(kFewRowsMax)> &&
              kFits<SharedStorage<tile::Narrow>::bytes(1)>);

}  // namespace atlas::norm_linear
