// The block-scaled product of E2M1 as one instruction of sm_12x.
#pragma once

namespace atlas::tile {

struct Fp4Tensor {
  // D += (A scale_a) (B scale_b) for one 16x8x64 tile: A row-major, B column-major, both E2M1 with
  // an E4M3 scale per 16 of the 64; D in F32.
  //
  // With g = lane / 4 and q = lane % 4: a[0] is row g, columns 8 q .. 8 q + 7, the first in the low
  // bits; a[1] row g + 8; a[2] and a[3] the same rows, columns + 32. b[0] is column g, rows
  // 8 q .. 8 q + 7; b[1] rows + 32. d as `ptx::mma` has it. Byte i of scale_a is of columns
  // 16 i .. 16 i + 15 of row g in lanes of q = 0, of row g + 8 in those of q = 1; byte i of scale_b
  // of rows 16 i .. 16 i + 15 of column g in lanes of q = 0. Other lanes' scales are not read.
  //
  // PTX ISA 9.0, "Matrix Fragments for mma.m16n8k64" and "Block Scaling for mma.sync"; the two
  // selectors of each scale are 0.
  __device__ static void mma(float (&d)[4], const unsigned (&a)[4], unsigned scale_a,
                             const unsigned (&b)[2], unsigned scale_b) {
    asm volatile(
        "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1."
        "f32.ue4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, "
        "{%10}, {0, 0}, {%11}, {0, 0};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scale_a),
          "r"(scale_b));
  }
};

}  // namespace atlas::tile
