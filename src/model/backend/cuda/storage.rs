//! Storage of weights on the device, as `cuda/tile/panels.cuh` and `cuda/tile/fp4.cuh` say it.

use crate::ROWS_NVFP4;
use crate::target::{BIASED, Coding, Format};
use crate::weights::Bits;

/// Rows of a panel.
pub const PANEL_ROWS: usize = 16;
/// Columns that share an FP8 scale.
pub const BLOCK_COLUMNS: usize = 128;
/// Columns of a run of F16.
const RUN_COLUMNS: usize = 32;
/// Rows that share an FP8 scale in the checkpoint.
pub const BLOCK_ROWS: usize = 128;
/// Columns that share an NVFP4 scale.
pub const GROUP_COLUMNS: usize = 16;

/// Storage of weights on the device; the numbers are those of `format` in `ffi/ops.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Storage {
    /// Weights that the checkpoint has in BF16.
    F16 = 0,
    Nvfp4 = 1,
    Fp8Block128 = 2,
    /// NVFP4 as `cuda/tile/fp4.cuh` has it, for rows that are rounded to the same.
    BlockScaled = 3,
    /// Codes as of NVFP4, scales that are the upper bytes of F16.
    Mxfp4 = 4,
}

impl Storage {
    pub const fn of_format(format: Format) -> Storage {
        Storage::of_coding(format.coding())
    }

    const fn of_coding(coding: Coding) -> Storage {
        match coding {
            Coding::Bf16 => Storage::F16,
            Coding::Nvfp4 => Storage::Nvfp4,
            Coding::Fp8 => Storage::Fp8Block128,
            Coding::Mxfp4 => Storage::Mxfp4,
        }
    }

    /// In the words of packed files.
    pub const fn word(self) -> &'static str {
        match self {
            Storage::F16 => "cuda-f16",
            Storage::Nvfp4 => "cuda-nvfp4",
            Storage::Fp8Block128 => "cuda-fp8",
            Storage::BlockScaled => "cuda-block-scaled",
            Storage::Mxfp4 => "cuda-mxfp4",
        }
    }

    /// Storage of experts whose weights are otherwise stored so.
    pub const fn of_experts(self) -> Storage {
        match self {
            Storage::Nvfp4 if ROWS_NVFP4 => Storage::BlockScaled,
            other => other,
        }
    }

    /// Bytes of a matrix with its scales.
    pub const fn bytes(self, n: usize, k: usize) -> u64 {
        let [codes, scales, factors, biases] = self.sections(n, k);
        (codes + scales + factors + biases) as u64
    }

    /// Bytes of a matrix's codes, of its scales, of what its rows are multiplied by, and of what is
    /// added to their sums, in the order in which they follow each other. Each section is as long
    /// for every panel.
    pub const fn sections(self, n: usize, k: usize) -> [usize; 4] {
        let (rows, blocks) = (n.next_multiple_of(PANEL_ROWS), k / BLOCK_COLUMNS);
        let (codes, numbers) = (rows * self.row_bytes(k), rows * size_of::<f32>());
        let biases = if BIASED { numbers } else { 0 };
        match self {
            Storage::F16 => [codes, 0, 0, biases],
            Storage::Nvfp4 | Storage::BlockScaled | Storage::Mxfp4 => {
                [codes, rows * (k / GROUP_COLUMNS), numbers, biases]
            }
            Storage::Fp8Block128 => {
                let scales = rows / PANEL_ROWS * blocks * 2 * size_of::<f32>();
                [codes, scales, 0, biases]
            }
        }
    }

    /// Numbers in F32 that `rows` rows of the checkpoint are multiplied by beside their scales: of
    /// the matrix, of its blocks, or of its rows; then what is added to their sums.
    pub const fn factors(self, rows: usize, k: usize) -> usize {
        let biases = if BIASED { rows } else { 0 };
        let factors = match self {
            Storage::F16 => 0,
            Storage::Nvfp4 | Storage::BlockScaled => 1,
            Storage::Fp8Block128 => rows.div_ceil(BLOCK_ROWS) * (k / BLOCK_COLUMNS),
            Storage::Mxfp4 => rows,
        };
        factors + biases
    }

    pub const fn of(bits: &Bits) -> Storage {
        Storage::of_coding(bits.coding())
    }

    /// Columns that every `K` is a multiple of.
    pub const fn columns(self) -> usize {
        match self {
            Storage::F16 => RUN_COLUMNS,
            _ => BLOCK_COLUMNS,
        }
    }

    /// Bytes of the codes of a row of `k` weights.
    pub const fn row_bytes(self, k: usize) -> usize {
        match self {
            Storage::F16 => 2 * k,
            Storage::Nvfp4 | Storage::BlockScaled | Storage::Mxfp4 => k / 2,
            Storage::Fp8Block128 => k,
        }
    }
}

/// Order in which the rows of several matrices make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One matrix below the other.
    Stacked,
    /// Eight rows of each of two in turn.
    Interleaved,
}

impl Order {
    /// Order of the rows of `inputs` matrices that make the activations of an expert.
    pub const fn of_inputs(inputs: usize) -> Order {
        match inputs {
            1 => Order::Stacked,
            _ => Order::Interleaved,
        }
    }
}
