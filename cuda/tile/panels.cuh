// Weight matrices in the layout that tensor instructions read, with the checkpoint's values.
//
// A panel is 16 rows of `[N, K]` (the last one padded with zeros), the M of an instruction. Within
// a panel, `kGroup` columns are 16 runs of 64 bytes, one per row; lane (g, q) of a warp, g = lane /
// 4 and q = lane % 4, takes bytes 16 q .. 16 q + 15 of rows g and g + 8: a warp reads 512 bytes
// side by side, twice. Decoding gives pairs of neighbouring columns in F16. After the codes, the
// matrix has the scales and factors of its coding:
//   scales of columns:   bytes (panel, K / kGroup, 16 rows, kGroup / columns)
//   factors of rows:     F32 (panel * 16), of the rows or of the tensor
//   factors of blocks:   F32 (panel, K / 128, 2), for rows 0 .. 7 and 8 .. 15 of the panel
//
// Last are biases of rows, F32 (panel * 16), where the target has matrices with biases.
//
// The sum over K is cut into `segments(K)` equal parts. Each is one chain of instructions from
// zero, in the order of K (fp8: a chain per 128 columns, times its scale); the parts are added in
// order. Which warp, block or kernel computes a part changes no bit, so any number of rows may be
// taken together.
#pragma once

#include "base/types.cuh"
#include "target.cuh"
#include "tile/codings.cuh"
#include "tile/ptx.cuh"
#include "tile/reduce.cuh"

namespace atlas::tile {

inline constexpr int kPanelRows = 16;
inline constexpr int kRunBytes = 64;
// Columns that share an FP8 scale, of which K is a multiple; for F16, a multiple of kRunColumns.
inline constexpr int kBlockColumns = 128;
inline constexpr int kRunColumns = kRunBytes / 2;  // columns of a run of F16
inline constexpr int kSegmentsMax = 8;
inline constexpr int kPanelWarps = 8;
inline constexpr int kPanelThreads = kPanelWarps * kWarpLanes;

__host__ __device__ constexpr int panels_of(int n) { return (n + kPanelRows - 1) / kPanelRows; }

// Number of segments of K: the largest power of two by which segments are whole blocks of columns,
// or whole runs where K is not whole blocks.
__host__ __device__ constexpr int segments(int k) {
  const int runs = k / kRunColumns, parts = runs & -runs;
  constexpr int kRuns = kBlockColumns / kRunColumns;
  return parts < kRuns ? parts : parts < kRuns * kSegmentsMax ? parts / kRuns : kSegmentsMax;
}
static_assert(segments(128) == 1 && segments(768) == 2 && segments(2048) == 8 &&
              segments(5120) == 8 && segments(576) == 2);

__device__ inline unsigned pack(float low, float high) { return to_f16x2(low, high).bits; }

// Four columns of a row as F16 operands.
__device__ inline uint2 pack_vector(const float4& value) {
  return make_uint2(pack(value.x, value.y), pack(value.z, value.w));
}

__device__ inline void put_vector(f16* row, int vector, const float4& value) {
  reinterpret_cast<uint2*>(row)[vector] = pack_vector(value);
}

// Eight consecutive columns of a row as operands of two instructions.
__device__ inline uint4 encode(const float (&x)[8]) {
  return {pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7])};
}

// Factor of a row's sums, and its bias where the target has matrices with biases.
struct Affine {
  float scale;
  float bias;

  __device__ float operator()(float sum) const {
    if constexpr (target::BIASED) return __fmaf_rn(sum, scale, bias);
    return sum * scale;
  }
};

// A matrix on the device, in panels.
template <Storage kStorage>
struct Matrix {
  using Code = Codec<kStorage>;
  using Scale = typename Code::Scale;
  // Columns of a run of 64 bytes, a group.
  static constexpr int kGroup = kRunBytes * 8 / Code::kBits;
  // Columns of a group that one lane has.
  static constexpr int kLaneColumns = kGroup / 4;
  static constexpr int kGroupBytes = kPanelRows * kRunBytes;
  static constexpr bool kBlockFactors = Code::kFactors == Factors::blocks;
  static constexpr bool kRowFactors =
      Code::kFactors == Factors::matrix || Code::kFactors == Factors::rows;
  // Whether columns share one-byte scales.
  static constexpr bool kScales = Code::kScaleColumns > 0;
  // Bytes of the one-byte scales of a row in a group of columns.
  static constexpr int kRowScaleBytes = kScales ? kGroup / Code::kScaleColumns : 0;
  // Bytes of the one-byte scales of a panel in a group of columns.
  static constexpr int kGroupScaleBytes = kPanelRows * kRowScaleBytes;

  // Whether matrices of this coding may have `k` columns.
  __host__ __device__ static constexpr bool has(int k) {
    return k % (kStorage == Storage::f16 ? kRunColumns : kBlockColumns) == 0;
  }

  const unsigned char* base;
  int n;
  int k;

  // A lane's scales in a group of columns.
  struct Scales {
    Scale scale[2];  // of rows g and g + 8
    float2 block;    // of rows g and g + 8
  };

  // A lane's codes and scales in a group of columns: its columns of rows g and g + 8.
  struct Fragment : Scales {
    uint4 run[2];
  };

  __host__ __device__ static size_t code_bytes(int n, int k) {
    return static_cast<size_t>(panels_of(n)) * kPanelRows * k * Code::kBits / 8;
  }

  // Bytes of a matrix with its scales, factors and biases.
  __host__ __device__ static size_t bytes(int n, int k) {
    const size_t panels = panels_of(n), blocks = k / kBlockColumns;
    size_t scales = panels * blocks * kBlockScaleBytes;
    if (kRowFactors) scales += panels * kPanelRows * sizeof(float);
    return code_bytes(n, k) + scales + bias_bytes(n);
  }

  __host__ __device__ static size_t bias_bytes(int n) {
    return target::BIASED ? static_cast<size_t>(panels_of(n)) * kPanelRows * sizeof(float) : 0;
  }

  // Address of a panel's codes in a group of columns; groups of a panel are side by side.
  __device__ const unsigned char* codes(int panel, int group) const {
    return base + (static_cast<size_t>(panel) * (k / kGroup) + group) * kGroupBytes;
  }

  // Bytes of scales or factors of a panel in 128 columns.
  static constexpr int kBlockScaleBytes =
      kBlockFactors ? static_cast<int>(sizeof(float2)) : kBlockColumns / kGroup * kGroupScaleBytes;

  // Address of a panel's scales in a block of columns; blocks of a panel are side by side.
  __device__ const unsigned char* block_scales(int panel, int block) const {
    const size_t at = static_cast<size_t>(panel) * (k / kBlockColumns) + block;
    return base + code_bytes(n, k) + at * kBlockScaleBytes;
  }

  // Address of a panel's scales in a group of columns, or of the factors of the group's block.
  __device__ const unsigned char* scales_of(int panel, int group) const {
    const unsigned char* of_block = block_scales(panel, group * kGroup / kBlockColumns);
    if constexpr (!kScales || kGroup == kBlockColumns) return of_block;
    return of_block + group % (kBlockColumns / kGroup) * kGroupScaleBytes;
  }

  // Bytes of scales that a lane loads for one row and one group of columns.
  static constexpr int kLaneScaleBytes = sizeof(Scale);
  // Adjacent lanes that load the same scales of a row and group.
  static constexpr int kAlikeLanes = kScales ? 4 * kLaneScaleBytes / kRowScaleBytes : 1;

  // A lane's scale in a group of columns, for row g or g + 8.
  __device__ static Scale lane_scale(const unsigned char* of_group, int others) {
    const int lane = threadIdx.x % kWarpLanes, g = lane / 4, q = lane % 4 / kAlikeLanes;
    return *reinterpret_cast<const Scale*>(of_group + others * (kGroupScaleBytes / 2) +
                                           g * kRowScaleBytes + q * kLaneScaleBytes);
  }

  // A lane's scales in a group of columns, or its factors in the group's block.
  __device__ static Scales lane_scales(const unsigned char* from) {
    Scales scales;
    if constexpr (kScales) {
      scales.scale[0] = lane_scale(from, 0), scales.scale[1] = lane_scale(from, 1);
    }
    if constexpr (kBlockFactors) scales.block = *reinterpret_cast<const float2*>(from);
    return scales;
  }

  __device__ Scales scales(int panel, int group) const {
    return scales_at(scales_of(panel, group));
  }

  // A lane's scales in a group of columns, or its factors in the group's block, read from device
  // memory.
  __device__ static Scales scales_at(const unsigned char* from) {
    Scales scales;
    if constexpr (kScales) {
      const int lane = threadIdx.x % kWarpLanes, g = lane / 4, q = lane % 4 / kAlikeLanes;
      const unsigned char* scale = from + g * kRowScaleBytes + q * kLaneScaleBytes;
      scales.scale[0] = __ldg(reinterpret_cast<const Scale*>(scale));
      scales.scale[1] = __ldg(reinterpret_cast<const Scale*>(scale + kGroupScaleBytes / 2));
    }
    if constexpr (kBlockFactors) scales.block = __ldg(reinterpret_cast<const float2*>(from));
    return scales;
  }

  // A lane's codes of a group at `codes`, with its scales.
  __device__ static Fragment fragment(const unsigned char* codes, const Scales& scales) {
    const int lane = threadIdx.x % kWarpLanes;
    const auto* run = reinterpret_cast<const uint4*>(codes) + lane;
    return {scales, {run[0], run[kWarpLanes]}};
  }

  __device__ Fragment load(int panel, int group) const {
    const int lane = threadIdx.x % kWarpLanes;
    const auto* run = reinterpret_cast<const uint4*>(codes(panel, group)) + lane;
    return {scales(panel, group), {__ldg(run), __ldg(run + kWarpLanes)}};
  }

  // Decodes an octet of a fragment into the operands of two instructions.
  __device__ static void decode(const Fragment& from, int octet, unsigned (&first)[4],
                                unsigned (&second)[4]) {
    unsigned low[4], high[4];
    Code::decode(from.run[0], octet, from.scale[0], low);
    Code::decode(from.run[1], octet, from.scale[1], high);
    first[0] = low[0], first[1] = high[0], first[2] = low[1], first[3] = high[1];
    second[0] = low[2], second[1] = high[2], second[2] = low[3], second[3] = high[3];
  }

  // Address of the factors of all rows' sums, after the scales.
  __device__ const float* row_scales() const {
    const size_t rows = static_cast<size_t>(panels_of(n)) * kPanelRows;
    const size_t scales = kScales ? rows * (k / Code::kScaleColumns) : 0;
    return reinterpret_cast<const float*>(base + code_bytes(n, k) + scales);
  }

  // Factor of a row's sums.
  __device__ float row_scale(int row) const {
    if constexpr (!kRowFactors) return 1.0f;
    return __ldg(row_scales() + row);
  }

  // Address of the biases of all rows' sums.
  __device__ const float* biases() const {
    return reinterpret_cast<const float*>(base + bytes(n, k) - bias_bytes(n));
  }

  // Factor and bias of a row's sums.
  __device__ Affine affine(int row) const {
    if constexpr (target::BIASED) return {row_scale(row), __ldg(biases() + row)};
    return {row_scale(row), 0.0f};
  }

  __device__ float result(int row, float sum) const { return affine(row)(sum); }
};

__device__ inline void load_octet(const float* from, float (&to)[8]) {
  const float4 low = reinterpret_cast<const float4*>(from)[0];
  const float4 high = reinterpret_cast<const float4*>(from)[1];
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
  to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

// Writing of a result, or of four adjacent results, in place of the numbers in memory.
struct Stores {
  template <class T>
  __device__ static void put(T& to, const T& value) {
    to = value;
  }
};
// Addition of a result to the number in memory: a launch adds to each element once, in no order.
struct Adds {
  template <class T>
  __device__ static void put(T& to, const T& value) {
    ptx::add(&to, value);
  }
};

// Puts a row's results for the matrix's rows `at` .. `at` + 3, of which there may be fewer, to `to`
// from `at` on.
template <class Put, class W>
__device__ inline void put_quad(const W& w, float* to, int at, const float4& sums) {
  if (at >= w.n) return;
  const float results[4] = {w.result(at, sums.x), w.result(at + 1, sums.y),
                            w.result(at + 2, sums.z), w.result(at + 3, sums.w)};
  if (w.n % 4 == 0) {
    const float4 all{results[0], results[1], results[2], results[3]};
    return Put::put(*reinterpret_cast<float4*>(to + at), all);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (at + i < w.n) Put::put(to[at + i], results[i]);
  }
}

// Adds a finished chain to the sum of its segment, and starts the next chain from zero.
__device__ inline void close_chain(float (&sum)[4], float (&chain)[4], float2 scale) {
  sum[0] = fmaf(chain[0], scale.x, sum[0]);
  sum[1] = fmaf(chain[1], scale.x, sum[1]);
  sum[2] = fmaf(chain[2], scale.y, sum[2]);
  sum[3] = fmaf(chain[3], scale.y, sum[3]);
#pragma unroll
  for (int i = 0; i < 4; ++i) chain[i] = 0.0f;
}

// Product of up to 8 * kTiles rows with all panels of a matrix: weights are streamed once, straight
// into registers. A block has kPanelWarps warps: one per segment, for as many panels as fit.
//
// `x(row)` is the address of a row's K activations. `sink(panel, g, row, low, high)` takes the sums
// of the panel's rows g and g + 8, without their row scale.
template <Storage kStorage, int kTiles>
struct Flat {
  using W = Matrix<kStorage>;
  static constexpr int kThreads = kPanelThreads;
  static constexpr int kRows = 8 * kTiles;
  // Groups of columns that a warp has in flight.
  static constexpr int kAhead = W::Code::ahead(kTiles);

  struct SharedStorage {
    float partial[kPanelWarps][kPanelRows][kRows];  // (warp, panel row, row)
  };

  int segment, segment_count, panel_in_block, panels_per_block, panel, groups;
  W w;
  typename W::Fragment ring[kAhead];

  __host__ __device__ static unsigned blocks(int n, int k) {
    const int panels = kPanelWarps / segments(k);
    return (panels_of(n) + panels - 1) / panels;
  }

  __device__ Flat(const W& matrix, int block) : w(matrix) {
    const int warp = threadIdx.x / kWarpLanes;
    segment_count = segments(w.k);
    panels_per_block = kPanelWarps / segment_count;
    segment = warp % segment_count;
    panel_in_block = warp / segment_count;
    panel = block * panels_per_block + panel_in_block;
    groups = panel < panels_of(w.n) ? w.k / W::kGroup / segment_count : 0;
  }

  // Starts loading weights; may be called before the wait for earlier kernels.
  __device__ void prefetch(SharedStorage&) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (j < groups) ring[j] = w.load(panel, segment * groups + j);
    }
  }

  template <class X, class Sink>
  __device__ void run(int rows, X x, Sink sink, SharedStorage& shared) {
    const int lane = threadIdx.x % kWarpLanes, g = lane / 4, q = lane % 4;
    const float* from[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) from[t] = t * 8 + g < rows ? x(t * 8 + g) : nullptr;
    float sum[kTiles][4] = {}, chain[kTiles][4] = {};
    for (int start = 0; start < groups; start += kAhead) {
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int group = start + j;
        if (group >= groups) break;
        const typename W::Fragment now = ring[j];
        const int column = (segment * groups + group) * W::kGroup + q * W::kLaneColumns;
        if (group + kAhead < groups) {
          ring[j] = w.load(panel, segment * groups + group + kAhead);
        }
        multiply(now, from, column, W::kBlockFactors ? chain : sum);
        if (W::kBlockFactors && (group + 1) * W::kGroup % kBlockColumns == 0) {
#pragma unroll
          for (int t = 0; t < kTiles; ++t) close_chain(sum[t], chain[t], now.block);
        }
      }
    }
    reduce(rows, sum, sink, shared);
  }

  __device__ static void multiply(const typename W::Fragment& now, const float* (&from)[kTiles],
                                  int column, float (&to)[kTiles][4]) {
#pragma unroll
    for (int octet = 0; octet < W::Code::kOctets; ++octet) {
      unsigned first[4], second[4];
      W::decode(now, octet, first, second);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        float x[8] = {};
        if (from[t] != nullptr) load_octet(from[t] + column + octet * 8, x);
        const uint4 b = encode(x);
        ptx::mma_f16(to[t], first, b.x, b.y);
        ptx::mma_f16(to[t], second, b.z, b.w);
      }
    }
  }

  template <class Sink>
  __device__ void reduce(int rows, const float (&sum)[kTiles][4], Sink sink,
                         SharedStorage& shared) {
    const int lane = threadIdx.x % kWarpLanes, g = lane / 4, q = lane % 4;
    auto& mine = shared.partial[threadIdx.x / kWarpLanes];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int row = t * 8 + 2 * q;
      mine[g][row] = sum[t][0], mine[g][row + 1] = sum[t][1];
      mine[g + 8][row] = sum[t][2], mine[g + 8][row + 1] = sum[t][3];
    }
    __syncthreads();  // all segments' sums are written
    const int first = panel - panel_in_block;
    for (int item = threadIdx.x; item < panels_per_block * 8 * rows; item += kPanelThreads) {
      const int at = item % (panels_per_block * 8), row = item / (panels_per_block * 8);
      const int in_block = at / 8, r = at % 8;
      if (first + in_block >= panels_of(w.n)) continue;
      float low = 0.0f, high = 0.0f;
      for (int s = 0; s < segment_count; ++s) {
        const auto& part = shared.partial[in_block * segment_count + s];
        low += part[r][row];
        high += part[r + 8][row];
      }
      sink(first + in_block, r, row, low, high);
    }
  }
};

// Division of a matrix's panels among warps, of which each has `kPanels`.
template <Storage kStorage, int kPanels, int kWarps = kPanelWarps>
struct WarpPanels {
  using W = Matrix<kStorage>;
  static constexpr int kBlockPanels = kWarps * kPanels;

  __host__ __device__ static unsigned blocks(int n) {
    return (panels_of(n) + kBlockPanels - 1) / kBlockPanels;
  }

  W w;
  int first_panel;  // of this warp

  __device__ WarpPanels(const W& matrix, int block)
      : w(matrix),
        first_panel(block * kBlockPanels + threadIdx.x / kWarpLanes * kPanels) {}
};

// Most rows that are multiplied from registers where panels are few; more rows go in tiles.
inline constexpr int kFlatRowsMax = 64;
// Most rows that are multiplied from registers where panels fill the SMs, as tiles would be sparse.
inline constexpr int kFilledRowsMax = 32;

// Whether a product of `rows` rows and `k` columns takes F16 rows: if there are more than `most`,
// and columns fill whole blocks, as tiles need.
__host__ __device__ constexpr bool takes_rounded(int rows, int k, int most = kFlatRowsMax) {
  return rows > most && k % kBlockColumns == 0;
}

// Product of F16 rows with the panels of four warps, two panels each: a warp reads each row once
// for both. Rows and weights of a group of columns are a stage in shared memory; later stages are
// loaded while earlier ones are multiplied. The arithmetic is that of `Flat`.
template <Storage kStorage>
struct Tiled : WarpPanels<kStorage, 2, 4> {
  using Base = WarpPanels<kStorage, 2, 4>;
  using W = typename Base::W;
  using Base::first_panel;
  using Base::w;
  static constexpr int kThreads = 4 * kWarpLanes;
  static constexpr int kPanels = 2;  // of a warp
  // Tiles of rows: FP8 has a third set of sums, which leaves registers for seven.
  static constexpr int kTiles = W::kBlockFactors ? 7 : 8;
  static constexpr int kRows = 8 * kTiles;
  static constexpr int kParts = W::Code::kOctets;  // octets of a lane's part of a group
  static constexpr int kRowOctets = W::kGroup / 8;
  // Adjacent threads that load a row together, so that whole sectors are read.
  static constexpr int kRowThreads = 2;
  // Octets of a row that each of its threads loads.
  static constexpr int kMine = kRowOctets / kRowThreads;
  // Granularity of the number of tiles that are multiplied.
  static constexpr int kLiveStep = 2;
  // Groups of columns that share scales.
  static constexpr int kTogether = W::kBlockFactors ? kBlockColumns / W::kGroup : 1;

  struct Stage {
    uint4 x[kParts][kTiles][kWarpLanes];
    uint4 codes[kPanels][2][kThreads];  // of rows g, and of rows g + 8
  };

  // Bytes of a block's stages: an SM of a GB10 has space for two blocks.
  static constexpr int kStagesBytes = 48 * 1024;
  static constexpr int kStages = kStagesBytes / sizeof(Stage);

  struct SharedStorage {
    Stage stages[kStages];
  };

  static_assert(kStages >= 2, "a stage is asked for while another is multiplied");
  static_assert(kRows * kRowThreads <= kThreads, "a thread asks for a part of one row");

  // Addresses of the warp's next codes and scales to load, of its first panel.
  const unsigned char* codes;
  const unsigned char* block_scales;

  // Panels after the last one repeat it; their sums are dropped.
  __device__ Tiled(const W& matrix, int block) : Base(matrix, block) {
    const int first = min(first_panel, panels_of(w.n) - 1);
    codes = w.codes(first, 0) + threadIdx.x % kWarpLanes * sizeof(uint4);
    block_scales = w.block_scales(first, 0);
  }

  // Bytes from the codes of the warp's first panel to those of its second one.
  __device__ unsigned second() const {
    return first_panel < panels_of(w.n) - 1 ? w.k / W::kGroup * W::kGroupBytes : 0;
  }

  // Index in a tile of the octet of row `r` in quarter 0; exclusive or with `q` gives the index in
  // quarter `q`. So neither reads of eight octets at once nor writes have bank conflicts.
  __device__ static int position(int part, int r) {
    return r / 2 * 8 + ((r % 2 * 4) ^ (r / 2 % 2 * 2) ^ (part % 2));
  }

  // Loads of codes by a thread in a stage; only the thread's own warp reads them.
  static constexpr int kCodes = 2 * kPanels;
  // Loads of a thread in a stage: of codes and of octets of a row.
  static constexpr int kAsked = kCodes + kMine;

  __device__ void ask_codes(Stage& to, int i) const {
    const unsigned char* from = codes + i / 2 * second() + i % 2 * kWarpLanes * sizeof(uint4);
    ptx::copy_async(&to.codes[i / 2][i % 2][threadIdx.x], from, true);
  }

  // Starts a thread's load `i` of a row, whose next group of columns is at `row`.
  __device__ static void ask_row(Stage& to, const f16* row, int i) {
    const int r = threadIdx.x / kRowThreads, in_pair = threadIdx.x % kRowThreads;
    const int octet = i * kRowThreads + in_pair;
    const int q = octet / kParts, part = octet % kParts;
    if (r < kRows) {
      ptx::copy_async(&to.x[part][r / 8][position(part, r % 8) ^ q], row + octet * 8, true);
    }
  }

  // Starts loading the codes of the first groups, before the wait for earlier kernels.
  __device__ void prefetch(SharedStorage& shared) {
#pragma unroll
    for (int group = 0; group < kStages - 1; ++group) {
      if (group >= w.k / W::kGroup) break;
#pragma unroll
      for (int i = 0; i < kCodes; ++i) ask_codes(shared.stages[group], i);
      codes += W::kGroupBytes;
    }
  }

  // Computes the product; `x` and `sink` as in `Flat`. Few rows use only some tiles.
  template <class X, class Sink>
  __device__ void run(int rows, X x, Sink sink, SharedStorage& shared) {
    run_tile<true>((rows + 7) / 8, [&](int row) { return x(min(row, rows - 1)); },
                   [&](int panel, int g, int row, float low, float high) {
                     if (row < rows) sink(panel, g, row, low, high);
                   },
                   shared);
  }

  // Computes the product of a tile; `x` gives an address for rows after the last one too, and
  // `sink` drops them. `kPartial`: only the first `live` tiles have rows.
  template <bool kPartial, class X, class Sink>
  __device__ void run_tile(int live, X x, Sink sink, SharedStorage& shared) {
    const int lane = threadIdx.x % kWarpLanes, g = lane / 4, q = lane % 4;
    const int groups = w.k / W::kGroup, segment_groups = groups / segments(w.k);
    const f16* row = x(static_cast<int>(threadIdx.x) / kRowThreads);
#pragma unroll
    for (int group = 0; group < kStages - 1; ++group) {
      if (group < groups) {
#pragma unroll
        for (int i = 0; i < kMine; ++i) ask_row(shared.stages[group], row, i);
        row += W::kGroup;
      }
      ptx::copy_async_commit();
    }
    float total[kPanels][kTiles][4] = {}, sum[kPanels][kTiles][4] = {};
    typename W::Scales scales[kPanels];
    load_scales(scales);
    int now = 0, left = segment_groups;  // of this segment
#pragma unroll 1
    for (int first = 0; first < groups; first += kTogether) {
      const bool more = first + kTogether < groups;
      float chain[kPanels][kTiles][4] = {};
      typename W::Scales next[kPanels];
      if (!W::kBlockFactors && more) load_scales(next);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        ptx::copy_async_wait<kStages - 2>();
        __syncthreads();  // this stage is written, and the one before has been read
        const bool asks = first + i + kStages - 1 < groups;
        auto& ahead = shared.stages[now == 0 ? kStages - 1 : now - 1];
        const auto ask = [&](int i) {
          if (!asks) return;
          if (i < kCodes) ask_codes(ahead, i);
          if (i >= kCodes) ask_row(ahead, row, i - kCodes);
        };
        multiply<kPartial ? kLiveStep : kTiles>(live, shared.stages[now], scales,
                                                W::kBlockFactors ? chain : sum, ask);
        ptx::copy_async_commit();
        if (asks) codes += W::kGroupBytes, row += W::kGroup;
        now = now + 1 == kStages ? 0 : now + 1;
      }
      if constexpr (W::kBlockFactors) {
        close_chains(sum, chain, scales);
        if (more) load_scales(scales);
      } else {
#pragma unroll
        for (int p = 0; p < kPanels; ++p) scales[p] = next[p];
      }
      left -= kTogether;
      if (left == 0) {
        close_segment(total, sum);
        left = segment_groups;
      }
    }
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      if (first_panel + p >= panels_of(w.n)) break;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int row = t * 8 + 2 * q + e;
          sink(first_panel + p, g, row, total[p][t][e], total[p][t][e + 2]);
        }
      }
    }
  }

  __device__ static void close_chains(float (&sum)[kPanels][kTiles][4],
                                      float (&chain)[kPanels][kTiles][4],
                                      const typename W::Scales (&scales)[kPanels]) {
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) close_chain(sum[p][t], chain[p][t], scales[p].block);
    }
  }

  __device__ static void close_segment(float (&total)[kPanels][kTiles][4],
                                       float (&sum)[kPanels][kTiles][4]) {
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          total[p][t][e] += sum[p][t][e];
          sum[p][t][e] = 0.0f;
        }
      }
    }
  }

  // Loads the scales of the next group, or the factors of the next block.
  __device__ void load_scales(typename W::Scales (&scales)[kPanels]) {
    constexpr int kBytes = W::kScales ? W::kGroupScaleBytes : W::kBlockScaleBytes;
    if constexpr (kBytes > 0) {
      constexpr unsigned kRatio = W::kGroupBytes * kTogether / kBytes;
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        scales[p] = W::scales_at(block_scales + p * (second() / kRatio));
      }
      block_scales += kBytes;
    }
  }

  // Multiplies the first `live` tiles, rounded up to `kLive` or to all. `ask(i)` starts a thread's
  // loads for a later stage, between the products of the first tiles.
  template <int kLive, class Ask>
  __device__ static void multiply(int live, const Stage& stage,
                                  const typename W::Scales (&scales)[kPanels],
                                  float (&to)[kPanels][kTiles][4], const Ask& ask) {
    if constexpr (kLive < kTiles) {
      if (live > kLive) {
        constexpr int kMore = kLive + kLiveStep < kTiles ? kLive + kLiveStep : kTiles;
        return multiply<kMore>(live, stage, scales, to, ask);
      }
    }
    const int lane = threadIdx.x % kWarpLanes;
    typename W::Fragment now[kPanels];
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      now[p] = {scales[p], {stage.codes[p][0][threadIdx.x], stage.codes[p][1][threadIdx.x]}};
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      unsigned first[kPanels][4], second[kPanels][4];
#pragma unroll
      for (int p = 0; p < kPanels; ++p) W::decode(now[p], part, first[p], second[p]);
      const int at = position(part, lane / 4) ^ lane % 4;
#pragma unroll
      for (int t = 0; t < kLive; ++t) {
        const uint4 b = stage.x[part][t][at];
#pragma unroll
        for (int p = 0; p < kPanels; ++p) {
          ptx::mma_f16(to[p][t], first[p], b.x, b.y);
          ptx::mma_f16(to[p][t], second[p], b.z, b.w);
        }
        if (part > 0) continue;
#pragma unroll
        for (int i = t; i < kAsked; i += kLive) ask(i);
      }
    }
  }
};

}  // namespace atlas::tile
