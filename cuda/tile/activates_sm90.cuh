// Activations of a tile's gates and ups, or of its ups alone, as operands of the next product.
#pragma once

#include <type_traits>

#include "tile/warpgroups_sm90.cuh"

namespace atlas::tile {

// Columns of activations that a tile makes, if each of its panels makes an octet.
inline constexpr int kActivatedColumns = kTilePanels * 8;

// Sink that makes activations of a tile's rows as operands of the next product, `kOctets` octets of
// columns from each panel. `Act` takes the sums of a warp's first eight rows as gates and of its
// other eight as ups, or of either alone. Results meet in shared memory, so that each thread writes
// columns that are adjacent in an operand.
template <Storage kStorage, class Act, int kOctets = 1>
struct Activates {
  using W = Matrix<kStorage>;
  using To = Operands<kStorage>;
  // Columns of activations that a tile makes.
  static constexpr int kColumns = kOctets * kActivatedColumns;
  // Pairs of columns of a tile that are side by side in an operand, at most four.
  static constexpr int kPairs = kColumns / W::kLaneColumns < 4 ? kColumns / W::kLaneColumns : 4;
  static constexpr int kPieces = kColumns / 2 / kPairs;  // groups of kPairs in a row
  using Piece = std::conditional_t<kPairs == 4, uint4, uint2>;

  static_assert(sizeof(Piece) == kPairs * 4, "a tile has two or four pairs");
  static_assert(To::kColumns % kColumns == 0 || kColumns % To::kColumns == 0, "blocks are whole");
  static constexpr bool kOneBlock = kColumns <= To::kColumns;

  template <int kRows, int kSums>
  __device__ void operator()(const Consumer<W, OutStorage<kRows, kOctets>>& self,
                             const WarpgroupTile& tile, const float (&sums)[kSums]) const {
    constexpr int kBuffers = OutStorage<kRows, kOctets>::kBuffers;
    auto* staged = self.shared.operands[self.buffer % kBuffers];
    const Affine low = self.template affine<false>(), high = self.template affine<true>();
    const int column = self.panel() * kOctets * 8;
    if constexpr (kBuffers == 1) self.sync();  // the tile before is copied
    if constexpr (kOctets == 1) {
      stage<kSums>(staged, self.lane(), column,
                   [&](int e) { return Act{}(low(sums[e]), high(sums[e + 2])); });
    } else {
      stage<kSums>(staged, self.lane(), column, [&](int e) { return Act{}(low(sums[e])); });
      stage<kSums>(staged, self.lane(), column + 8,
                   [&](int e) { return Act{}(high(sums[e + 2])); });
    }
    self.sync();  // the tile is staged; with two buffers, the tile before is copied
    auto* to = static_cast<unsigned char*>(tile.out);
    const int count = operand_groups(tile.rows) * kPieces * kOperandRows;
    for (int i = self.thread(); i < count; i += kConsumers * 128) {
      const int group = i / (kPieces * kOperandRows), within = i % (kPieces * kOperandRows);
      const int block = kOneBlock ? 0 : within * 16 / To::kBytes * tile.groups;
      const int in_block = kOneBlock ? within * 16 : within * 16 % To::kBytes;
      *reinterpret_cast<Piece*>(to + (block + group) * To::kBytes + in_block) =
          reinterpret_cast<const Piece*>(staged)[i];
    }
  }

  // Stages a warp's octet of columns from `column` on: of a lane's sum `e`, `activated(e)`.
  template <int kSums, class Activated>
  __device__ static void stage(uint4* staged, int lane, int column, const Activated& activated) {
    // This thread's words have column g and its neighbour: even lanes take even rows.
    const int g = lane / 4;
    auto* words = reinterpret_cast<unsigned*>(staged) + word(column + g / 2 * 2) +
                  (lane % 4 * 2 + g % 2) * kPairs;
#pragma unroll
    for (int e = 0; e < kSums; e += 4) {
      const float even = activated(e), odd = activated(e + 1);
      const float other = __shfl_xor_sync(kAllLanes, g % 2 == 0 ? odd : even, 4);
      words[e / 4 * kPieces * kOperandRows * kPairs] =
          g % 2 == 0 ? pack(even, other) : pack(other, odd);
    }
  }

  // Index of the staged word of an even column and its neighbour, in the first row.
  __device__ static int word(int column) {
    const int at = To::offset(column);
    return at / 128 * kOperandRows * kPairs + at % 16 / 4;
  }
};

}  // namespace atlas::tile
