// Activations of a tile's gates and ups, as operands of the next product.
#pragma once

#include <type_traits>

#include "tile/warpgroups_sm90.cuh"

namespace atlas::tile {

// Columns of activations that a tile makes: half of its rows of weights.
inline constexpr int kActivatedColumns = kTilePanels * 8;

// `Act` of a warp's first eight rows, gates, and the others, ups, rounded into the operands of the
// next product. A warp has an octet of columns, the tile eight: they meet in shared memory, so that
// a thread writes what lies side by side.
template <Storage kStorage, class Act>
struct Activates {
  using W = Matrix<kStorage>;
  using To = Operands<kStorage>;
  // Pairs of columns of a tile that lie side by side, of four.
  static constexpr int kPairs =
      kActivatedColumns / W::kLaneColumns < 4 ? kActivatedColumns / W::kLaneColumns : 4;
  static constexpr int kPieces = kActivatedColumns / 2 / kPairs;  // of such, in a row
  using Piece = std::conditional_t<kPairs == 4, uint4, uint2>;

  static_assert(sizeof(Piece) == kPairs * 4, "a tile has two or four pairs");
  static_assert(To::kColumns % kActivatedColumns == 0, "a tile's columns are of one block");

  template <int kRows, int kSums>
  __device__ void operator()(const Consumer<W, OutStorage<kRows>>& self, const WarpgroupTile& tile,
                             const float (&sums)[kSums]) const {
    constexpr int kTurns = OutStorage<kRows>::kTurns;
    auto* staged = self.shared.operands[self.turn % kTurns];
    const int lane = self.lane(), g = lane / 4;
    const Affine gate = self.template affine<false>(), up = self.template affine<true>();
    const auto activated = [&](int e) { return Act{}(gate(sums[e]), up(sums[e + 2])); };
    // This thread's words have columns g and its neighbour; rows go to the even or the odd of both.
    auto* words = reinterpret_cast<unsigned*>(staged) + word(self.panel() * 8 + g / 2 * 2) +
                  (lane % 4 * 2 + g % 2) * kPairs;
    if constexpr (kTurns == 1) self.sync();  // the round before is copied
#pragma unroll
    for (int e = 0; e < kSums; e += 4) {
      const float even = activated(e), odd = activated(e + 1);
      const float other = __shfl_xor_sync(kAllLanes, g % 2 == 0 ? odd : even, 4);
      words[e / 4 * kPieces * kOperandRows * kPairs] =
          g % 2 == 0 ? pack(even, other) : pack(other, odd);
    }
    self.sync();  // the tile is staged, and with two turns the round before is copied
    auto* to = static_cast<unsigned char*>(tile.out);
    const int count = operand_groups(tile.rows) * kPieces * kOperandRows;
    for (int i = self.thread(); i < count; i += kConsumers * 128) {
      const int group = i / (kPieces * kOperandRows), within = i % (kPieces * kOperandRows);
      *reinterpret_cast<Piece*>(to + group * To::kBytes + within * 16) =
          reinterpret_cast<const Piece*>(staged)[i];
    }
  }

  // Where the word of an even column and its neighbour is staged, of the first row.
  __device__ static int word(int column) {
    const int at = To::offset(column);
    return at / 128 * kOperandRows * kPairs + at % 16 / 4;
  }
};

}  // namespace atlas::tile
