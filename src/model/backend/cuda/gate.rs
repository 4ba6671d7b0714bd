//! The gate of an MLP on the GPU.

use ffi::ops;

use super::{Cuda, Matrix, Tensor, Vector, count};
use crate::ops::Gate;
use crate::shapes::Mlp as _;
use crate::target::{HIDDEN, Mlp};

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

    fn mlp(
        &mut self,
        residual: &mut Tensor,
        norm: &Vector,
        weights: [&Matrix; 3],
        x: &mut Tensor,
        own: [&mut Tensor; 3],
    ) {
        let (rows, inner) = (residual.rows, Mlp::INTERMEDIATE);
        assert_eq!((residual.width, norm.0.len()), (HIDDEN, HIDDEN));
        let shapes = weights.map(|matrix| (matrix.n, matrix.k));
        assert_eq!(shapes, [(inner, HIDDEN), (inner, HIDDEN), (HIDDEN, inner)]);
        let x = x.shape(rows, HIDDEN);
        let [gates, ups, act] = own.map(|tensor| tensor.shape(rows, inner));
        let [(gate, f0), (up, f1), (down, f2)] =
            weights.map(|matrix| (matrix.bytes.as_ptr(), matrix.storage.number()));
        let (residual, norm) = (residual.as_mut_ptr(), norm.0.as_ptr());
        let (operands, arrived) = (self.operands.as_mut_ptr(), self.arrived.as_mut_ptr());
        // SAFETY: shapes are checked; matrices are in panels of their storage; the operand buffer
        // suffices as for `norm_linear` and `linear_add`; `arrived` has counters; rows as operands
        // take no more bytes than activations in F32, padded to eight.
        self.queue.launch("mlp", |stream| unsafe {
            ops::atlas_mlp(
                residual,
                norm,
                x,
                operands,
                arrived,
                gate,
                f0,
                up,
                f1,
                down,
                f2,
                gates,
                ups,
                act,
                count(rows),
                stream,
            )
        });
    }
}
