//! Recurrent mixers on the GPU.

use std::ptr;

use ffi::ops;

use super::pieces::Pieces;
use super::steps::cells_of;
use super::{Cuda, Matrix, Tensor, Vector, count};
use crate::ops::{Batch, CELL, Delta, DeltaNet, ENDS_MAX, GatedDelta, PoolRegion, ROWS_MAX, Taps};
use crate::shapes::Delta as _;
use crate::target::{HIDDEN, Recurrent};

/// Bytes of a cell's record: for each key head keys and queries, for each value head the 16 x 16
/// tiles of two lower triangles, all F16, and three F32 a row; with Mamba-2 one triangle, and four
/// F32 a row.
const CELL_RECORD: usize = Recurrent::KEY_HEADS * 2 * CELL * Recurrent::KEY_DIM * 2
    + Recurrent::VALUE_HEADS
        * (TRIANGLES * CELL_TRIANGLE * 16 * 16 * 2 + (5 - TRIANGLES) * CELL * 4);
const TRIANGLES: usize = if Recurrent::MAMBA { 1 } else { 2 };
const CELL_TRIANGLE: usize = (CELL / 16) * (CELL / 16 + 1) / 2;
/// Bytes of the records of a step's cells.
pub const RECORDS: usize = cells_of(ROWS_MAX) * CELL_RECORD;

/// Number of counters of blocks that have read a key head's channels in a span.
pub const ARRIVED: usize = ENDS_MAX * Recurrent::KEY_HEADS;

/// States of one recurrent layer. The layer's part of each state has first the matrix states,
/// `[VALUE_HEADS][VALUE_DIM][KEY_DIM]`, then the tail, `[CONV][QKV]`: the input of position `p` is
/// at `p % CONV`.
pub struct LayerStates {
    region: PoolRegion<Pieces>,
}

impl LayerStates {
    fn matrices(&self) -> *mut f32 {
        self.region.first()
    }

    fn tails(&self) -> *mut f32 {
        self.matrices().wrapping_add(Recurrent::STATE)
    }

    fn stride(&self) -> u32 {
        self.region.stride::<f32>()
    }
}

/// Pointer to a vector that only Mamba-2 has; null for other rules.
fn of_mamba(vector: Option<&Vector>, elements: usize) -> *const f32 {
    assert_eq!(
        vector.map(|vector| vector.0.len()),
        Recurrent::MAMBA.then_some(elements)
    );
    vector.map_or(ptr::null(), |vector| vector.0.as_ptr())
}

impl Cuda {
    /// Pointer to flags of the rows of `x`, a tensor of the step, that are F16; null if none is.
    fn in_cells(&self, x: &Tensor) -> *const u32 {
        match x.cells_f16 {
            true => self.step.now.in_cells(),
            false => ptr::null(),
        }
    }
}

impl Delta<Recurrent> for Cuda {
    type LayerStates = LayerStates;

    const CELL_BYTES: usize = 2;

    const STATE_BYTES: [usize; 2] = [
        Recurrent::STATE * size_of::<f32>(),
        Recurrent::CONV * Recurrent::QKV * size_of::<f32>(),
    ];

    fn state_at(&self, region: PoolRegion<Pieces>) -> LayerStates {
        // Kernels copy vectors of 16 bytes.
        let (at, stride) = (region.at, region.stride::<u8>());
        assert!(at % 16 == 0 && stride % 16 == 0 && Recurrent::STATE % 4 == 0);
        LayerStates { region }
    }

    fn conv_silu(
        &mut self,
        x: &Tensor,
        (w, bias): Taps<'_, Cuda>,
        state: &mut LayerStates,
        batch: &Batch,
        out: &mut Tensor,
    ) {
        assert_eq!((x.rows, x.width), (batch.rows(), Recurrent::QKV));
        assert_eq!(w.0.len(), Recurrent::QKV * Recurrent::CONV);
        let to = out.shape(x.rows, Recurrent::QKV);
        out.cells_f16 = true;
        let step = self.step.of(batch);
        // SAFETY: shapes are checked; `Batch` has checked slots, and that no slot is written by two
        // sequences, or by one and read by another.
        self.queue.launch("conv_silu", |stream| unsafe {
            ops::atlas_conv_silu(
                x.as_ptr(),
                w.0.as_ptr(),
                of_mamba(bias, Recurrent::QKV),
                state.tails(),
                step.chunk_list(),
                step.positions(),
                step.source_slots(),
                step.slots(),
                step.snapshot_rows(),
                step.snapshot_slots(),
                step.draft_states(),
                step.in_cells(),
                to,
                state.stride(),
                count(x.rows),
                count(step.chunks),
                stream,
            )
        });
    }

    fn gated_delta(
        &mut self,
        input: GatedDelta<'_, Cuda>,
        state: &mut LayerStates,
        batch: &Batch,
        out: &mut Tensor,
    ) {
        let GatedDelta { qkv, b, a, decay } = input;
        let rows = batch.rows();
        assert_eq!((qkv.rows, qkv.width), (rows, Recurrent::QKV));
        assert!(qkv.cells_f16);
        assert_eq!((b.rows, b.width), (rows, Recurrent::VALUE_HEADS));
        assert_eq!((a.rows, a.width), (rows, Recurrent::VALUE_HEADS));
        let heads = (decay.a_log.0.len(), decay.dt_bias.0.len());
        assert_eq!(heads, (Recurrent::VALUE_HEADS, Recurrent::VALUE_HEADS));
        let to = out.shape(rows, Recurrent::VALUES);
        out.cells_f16 = true;
        let step = self.step.of(batch);
        // SAFETY: shapes are checked; `Batch` has checked slots, and that no slot is written by two
        // sequences, or by one and read by another; `records` suffices for all cells of a step.
        self.queue.launch("gated_delta", |stream| unsafe {
            ops::atlas_gated_delta(
                qkv.as_ptr(),
                b.as_ptr(),
                a.as_ptr(),
                decay.a_log.0.as_ptr(),
                decay.dt_bias.0.as_ptr(),
                of_mamba(decay.skip.as_ref(), Recurrent::VALUE_HEADS),
                state.matrices(),
                step.span_list(),
                step.cell_list(),
                step.run_list(),
                step.positions(),
                step.source_slots(),
                step.slots(),
                step.snapshot_rows(),
                step.snapshot_slots(),
                step.draft_states(),
                self.records.as_mut_ptr(),
                to,
                state.stride(),
                count(rows),
                count(step.spans),
                count(step.cells),
                count(step.runs),
                count(CELL_RECORD),
                stream,
            )
        });
    }

    fn gated_rms_norm(&mut self, x: &mut Tensor, w: &Vector, z: &Tensor) {
        assert_eq!((x.rows, x.width), (z.rows, Recurrent::VALUES));
        assert_eq!((z.width, w.0.len()), (Recurrent::VALUES, Recurrent::GAINS));
        let (rows, in_cells) = (count(x.rows), self.in_cells(x));
        let (w, z) = (w.0.as_ptr(), z.as_ptr());
        x.cells_f16 = false;
        // SAFETY: shapes are checked.
        self.queue.launch("gated_rms_norm", |stream| unsafe {
            ops::atlas_gated_rms_norm(x.as_mut_ptr(), w, z, in_cells, rows, stream)
        });
    }

    fn gated_linear_add(
        &mut self,
        x: &mut Tensor,
        norm: &Vector,
        z: &Tensor,
        w: &Matrix,
        residual: &mut Tensor,
    ) {
        assert_eq!((x.rows, x.width), (z.rows, Recurrent::VALUES));
        assert_eq!(
            (z.width, norm.0.len()),
            (Recurrent::VALUES, Recurrent::GAINS)
        );
        assert_eq!((w.n, w.k), (HIDDEN, Recurrent::VALUES));
        assert_eq!((residual.rows, residual.width), (x.rows, HIDDEN));
        let (rows, format, in_cells) = (count(x.rows), w.storage.number(), self.in_cells(x));
        let (norm, z, w) = (norm.0.as_ptr(), z.as_ptr(), w.bytes.as_ptr());
        x.cells_f16 = false;
        let (operands, residual) = (self.operands.as_mut_ptr(), residual.as_mut_ptr());
        // SAFETY: shapes are checked; the matrix is in panels of its storage; the operand buffer
        // suffices for ROWS_MAX rows of the longest sum.
        self.queue.launch("gated_linear_add", |stream| unsafe {
            let x = x.as_mut_ptr();
            ops::atlas_gated_linear_add(
                x, norm, z, in_cells, w, operands, residual, rows, format, stream,
            )
        });
    }

    fn delta_net(
        &mut self,
        input: DeltaNet<'_, Cuda>,
        conv: &mut Tensor,
        state: &mut LayerStates,
        batch: &Batch,
        out: &mut Tensor,
    ) {
        let DeltaNet { rows, z, .. } = input;
        if !batch.is_short() {
            self.conv_silu(rows.qkv, input.conv, state, batch, conv);
            self.gated_delta(GatedDelta { qkv: conv, ..rows }, state, batch, out);
            return self.gated_rms_norm(out, input.norm, z);
        }
        let GatedDelta { qkv, b, a, decay } = rows;
        let rows = batch.rows();
        assert_eq!((qkv.rows, qkv.width), (rows, Recurrent::QKV));
        assert_eq!((z.rows, z.width), (rows, Recurrent::VALUES));
        assert_eq!((b.rows, b.width), (rows, Recurrent::VALUE_HEADS));
        assert_eq!((a.rows, a.width), (rows, Recurrent::VALUE_HEADS));
        assert_eq!(input.conv.0.0.len(), Recurrent::QKV * Recurrent::CONV);
        let heads = (decay.a_log.0.len(), decay.dt_bias.0.len());
        assert_eq!(heads, (Recurrent::VALUE_HEADS, Recurrent::VALUE_HEADS));
        assert_eq!(input.norm.0.len(), Recurrent::GAINS);
        let out = out.shape(rows, Recurrent::VALUES);
        let step = self.step.of(batch);
        let (spans, span_count) = match batch.is_decode() {
            true => (ptr::null(), rows),
            false => (step.span_list(), step.spans),
        };
        assert!(span_count <= ENDS_MAX);
        // SAFETY: shapes are checked; `Batch` has checked slots, and that no slot is written by two
        // sequences, or by one and read by another; all spans are short, and `arrived` suffices for
        // `ENDS_MAX` spans.
        self.queue.launch("delta_net", |stream| unsafe {
            ops::atlas_delta_net(
                qkv.as_ptr(),
                z.as_ptr(),
                b.as_ptr(),
                a.as_ptr(),
                input.conv.0.0.as_ptr(),
                of_mamba(input.conv.1, Recurrent::QKV),
                decay.a_log.0.as_ptr(),
                decay.dt_bias.0.as_ptr(),
                of_mamba(decay.skip.as_ref(), Recurrent::VALUE_HEADS),
                input.norm.0.as_ptr(),
                state.tails(),
                state.matrices(),
                step.positions(),
                step.source_slots(),
                step.slots(),
                step.draft_states(),
                spans,
                self.arrived.as_mut_ptr(),
                out,
                state.stride(),
                count(rows),
                count(span_count),
                stream,
            )
        });
    }
}
