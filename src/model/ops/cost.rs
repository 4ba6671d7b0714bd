//! Lower bounds of the bytes and arithmetic of operations.

use crate::shapes;

/// Lower bound of the bytes and arithmetic of one call: the numerator of a roofline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes that are read and written, and that no cache can save.
    pub bytes: u64,
    /// Number of multiplications and additions.
    pub flops: u64,
}

impl Cost {
    /// Cost of one query row of every head over the `context` positions that it sees.
    pub const fn attend<A: shapes::Attention>(context: usize) -> Cost {
        let macs = context * A::HEADS * (A::HEAD_DIM + A::VALUE_DIM);
        Cost {
            bytes: (context * A::POSITION_BYTES) as u64,
            flops: (2 * macs) as u64,
        }
    }

    /// Cost of one row through the state of every value head: state read and written once.
    pub const fn gated_delta<D: shapes::Delta>() -> Cost {
        Cost {
            bytes: (8 * D::STATE) as u64,
            flops: (7 * D::STATE) as u64,
        }
    }

    /// Cost of `n` calls of this cost.
    pub const fn times(self, n: usize) -> Cost {
        Cost {
            bytes: self.bytes * n as u64,
            flops: self.flops * n as u64,
        }
    }
}
