//! Storage of weights on the device, as in `cuda/tile/panels.cuh` and `cuda/tile/fp4.cuh`.

use crate::ROWS_NVFP4;
pub use crate::target::FP8_BLOCK as BLOCK_ROWS;
use crate::target::{BIASED, Coding, Format, Owner};

/// Rows of a panel.
pub const PANEL_ROWS: usize = 16;
/// Columns of a panel whose scales are stored together as a block.
pub const BLOCK_COLUMNS: usize = 128;

/// Layout of weights on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Panels as in `cuda/tile/panels.cuh`.
    Panels(Coding),
    /// NVFP4 as in `cuda/tile/fp4.cuh`, for products with rows that are rounded to NVFP4 too.
    BlockScaled,
}

impl Storage {
    /// Storage of weights that are BF16 in the checkpoint.
    pub const F16: Storage = Storage::Panels(Coding::Bf16);

    pub const fn of_format(format: Format) -> Storage {
        Storage::Panels(format.coding())
    }

    /// Number of the storage, the value of `format` in `ffi/ops.toml`.
    pub const fn number(self) -> u32 {
        const BLOCK_SCALED: u32 = 31;
        match self {
            Storage::Panels(coding) => coding as u32,
            Storage::BlockScaled => BLOCK_SCALED,
        }
    }

    /// Name of the storage in packed files.
    pub fn word(self) -> String {
        let name = match self {
            Storage::F16 => "f16",
            Storage::Panels(coding) => coding.name(),
            Storage::BlockScaled => "block-scaled",
        };
        format!("cuda-{name}")
    }

    /// Storage of experts' weights in a model whose other matrices of the same coding have `self`.
    pub const fn of_experts(self) -> Storage {
        match self {
            Storage::Panels(Coding::Nvfp4) if ROWS_NVFP4 => Storage::BlockScaled,
            other => other,
        }
    }

    pub const fn coding(self) -> Coding {
        match self {
            Storage::Panels(coding) => coding,
            Storage::BlockScaled => Coding::Nvfp4,
        }
    }

    /// Bytes of a matrix with its scales.
    pub const fn bytes(self, n: usize, k: usize) -> u64 {
        let [codes, scales, factors, biases] = self.sections(n, k);
        (codes + scales + factors + biases) as u64
    }

    /// Bytes of the sections of a matrix in their order: codes, scales, factors of rows, biases of
    /// rows. Each section has an equal part for every panel.
    pub const fn sections(self, n: usize, k: usize) -> [usize; 4] {
        let (rows, blocks) = (n.next_multiple_of(PANEL_ROWS), k / BLOCK_COLUMNS);
        let [codes, scales] = self.coding().sections(rows, k);
        let numbers = rows * size_of::<f32>();
        let biases = if BIASED { numbers } else { 0 };
        match self.coding().factors() {
            Owner::None => [codes, scales, 0, biases],
            Owner::Matrix | Owner::Rows => [codes, scales, numbers, biases],
            Owner::Blocks => [codes, numbers / PANEL_ROWS * blocks * 2, 0, biases],
        }
    }

    /// Count of F32 numbers of `rows` rows: factors beside their scales, then biases.
    pub const fn factors(self, rows: usize, k: usize) -> usize {
        let biases = if BIASED { rows } else { 0 };
        self.coding().factors_of(rows, k) + biases
    }
}

/// Order in which the rows of several matrices form one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Rows of one matrix after the rows of the other.
    Stacked,
    /// Eight rows of each of two matrices in turn.
    Interleaved,
}

impl Order {
    /// Order of the rows of the `inputs` matrices that make the inputs of an expert's activation.
    pub const fn of_inputs(inputs: usize) -> Order {
        match inputs {
            1 => Order::Stacked,
            _ => Order::Interleaved,
        }
    }
}
