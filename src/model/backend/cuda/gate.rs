//! The gate of an MLP on the GPU.

use ffi::{Device, Stream, ops};

use super::{Cuda, Tensor, count};
use crate::ops::Gate;
use crate::shapes::Mlp as _;
use crate::target::Mlp;
use step::executor::DeviceError;

/// Longest sum of its products beside the hidden size.
pub const WIDEST: usize = Mlp::INTERMEDIATE;
/// Elements of its widest row.
pub const WIDEST_ROW: usize = Mlp::INTERMEDIATE;
/// Longest row of its matrices.
pub const LONGEST: usize = Mlp::INTERMEDIATE;

/// Bytes of operands beside those of products.
pub const OPERAND_BYTES: usize = 0;

/// The gate works in no memory.
pub struct Room;

impl Room {
    pub const BYTES: [usize; 0] = [];

    pub fn new(_: &Device, _: &Stream) -> Result<Room, DeviceError> {
        Ok(Room)
    }
}

impl Gate<Mlp> for Cuda {
    fn swiglu(&mut self, gate: &Tensor, up: &Tensor, out: &mut Tensor) {
        let width = Mlp::INTERMEDIATE;
        assert_eq!((gate.rows, gate.width), (up.rows, up.width));
        assert_eq!(gate.width, width);
        let out = out.shape(gate.rows, width);
        let rows = count(gate.rows);
        // SAFETY: shapes are checked.
        self.queue.launch("swiglu", |stream| unsafe {
            ops::atlas_swiglu(gate.as_ptr(), up.as_ptr(), out, rows, stream)
        });
    }
}
