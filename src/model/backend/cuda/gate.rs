//! The gate of an MLP on the GPU.

use ffi::ops;

use super::{Cuda, Tensor, count};
use crate::ops::Gate;
use crate::shapes::Mlp as _;
use crate::target::Mlp;

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
