//! Embedding, norms, products and the head on the GPU.

use std::ptr;

use ffi::ops;

use super::storage::Storage;
use super::{Cuda, FEW_ROWS, Matrix, NORMED_STORAGES, Tensor, Vector, count};
use crate::ops::ENDS_MAX;
use crate::ops::{Batch, BesideNorms, Dense, Ends, Hidden, RANKED, norm_and_rank};
use crate::target::{EXPERTS_TAKE_ROUNDED, HIDDEN, LOGIT_CAP, MOE_ROWS, VOCAB};

impl Dense for Cuda {
    fn embed(&mut self, table: &Matrix, batch: &Batch, out: &mut Tensor) {
        assert_eq!(
            (table.n, table.k, table.storage),
            (VOCAB, HIDDEN, Storage::F16)
        );
        let rows = batch.rows();
        let out = out.shape(rows, HIDDEN);
        let (table, step) = (table.bytes.as_ptr(), self.step.of(batch));
        // SAFETY: `Batch` has checked the tokens; `shape` the memory of the result.
        self.queue.launch("embed", |stream| unsafe {
            ops::atlas_embed(table, step.tokens(), out, count(rows), stream)
        });
    }

    fn rms_norm(&mut self, x: &Tensor, w: &Vector, out: &mut Tensor, adds: Option<f32>) {
        assert_eq!(x.width, w.0.len());
        assert!(adds.is_none() || (x.width == HIDDEN && out.width == HIDDEN && out.rows == x.rows));
        let out = out.shape(x.rows, x.width);
        let (rows, width) = (count(x.rows), count(x.width));
        let (is_added, factor) = (adds.is_some().into(), adds.unwrap_or(1.0));
        // SAFETY: shapes are checked.
        self.queue.launch("rms_norm", |stream| unsafe {
            ops::atlas_rms_norm(
                x.as_ptr(),
                w.0.as_ptr(),
                out,
                is_added,
                factor,
                rows,
                width,
                stream,
            )
        });
    }

    fn linear(&mut self, x: &Tensor, w: &Matrix, out: &mut Tensor) {
        assert_eq!(x.width, w.k);
        let out = out.shape(x.rows, w.n);
        let (rows, n, k) = (count(x.rows), count(w.n), count(w.k));
        let (format, w) = (w.storage.number(), w.bytes.as_ptr());
        let (x, operands) = x.as_factor(&mut self.operands);
        // SAFETY: shapes are checked; the matrix is in panels of its storage; the operand buffer
        // suffices for the longest rows, or has the rows already, which kernels then leave alone.
        self.queue.launch("linear", |stream| unsafe {
            ops::atlas_linear(x, w, operands, out, rows, n, k, format, stream)
        });
    }

    fn linear_add(&mut self, x: &Tensor, w: &Matrix, residual: &mut Tensor) {
        assert_eq!(x.width, w.k);
        assert_eq!((residual.rows, residual.width), (x.rows, w.n));
        let (rows, n, k) = (count(x.rows), count(w.n), count(w.k));
        let (format, w) = (w.storage.number(), w.bytes.as_ptr());
        let ((x, operands), residual) = (x.as_factor(&mut self.operands), residual.as_mut_ptr());
        // SAFETY: shapes are checked; the matrix is in panels of its storage; the operand buffer
        // suffices for ROWS_MAX rows of the longest sum, or has the rows already, which kernels for
        // such rows do not change.
        self.queue.launch("linear_add", |stream| unsafe {
            ops::atlas_linear_add(x, w, operands, residual, rows, n, k, format, stream)
        });
    }

    fn norm_linear(
        &mut self,
        residual: &Tensor,
        norm: &Vector,
        x: &mut Tensor,
        keep: bool,
        parts: &mut [(&Matrix, &mut Tensor)],
    ) {
        assert_eq!((residual.width, norm.0.len()), (HIDDEN, HIDDEN));
        let rows = residual.rows;
        let normed = x.shape(rows, HIDDEN);
        x.rounded = keep && EXPERTS_TAKE_ROUNDED && rows > MOE_ROWS;
        let storages = parts.iter().map(|(matrix, _)| 1 << matrix.storage.number());
        let storages = storages.fold(0u32, |all, one| all | one).count_ones();
        assert!(
            storages as usize <= NORMED_STORAGES,
            "rows of {storages} storages"
        );
        // A part of null pointers and zeros means that there is no matrix.
        let mut list = [(ptr::null(), ptr::null_mut(), 0, 0); 4];
        for (to, (matrix, out)) in list.iter_mut().zip(parts) {
            assert_eq!(matrix.k, HIDDEN);
            let out = out.shape(rows, matrix.n);
            let format = matrix.storage.number();
            *to = (matrix.bytes.as_ptr(), out, count(matrix.n), format);
        }
        let [
            (w0, out0, n0, f0),
            (w1, out1, n1, f1),
            (w2, out2, n2, f2),
            (w3, out3, n3, f3),
        ] = list;
        let (residual, norm, rows) = (residual.as_ptr(), norm.0.as_ptr(), count(rows));
        let keep = u32::from(keep) + u32::from(x.rounded);
        let (operands, arrived) = (self.operands.as_mut_ptr(), self.arrived.as_mut_ptr());
        // SAFETY: shapes are checked; matrices are in panels of their storage; the operand buffer
        // suffices for FEW_ROWS rows, or for ROWS_MAX for NORMED_STORAGES where kernels lay them
        // out, and parts have no more; `arrived` has counters.
        self.queue.launch("norm_linear", |stream| unsafe {
            ops::atlas_norm_linear(
                residual, norm, normed, keep, operands, arrived, w0, out0, n0, f0, w1, out1, n1,
                f1, w2, out2, n2, f2, w3, out3, n3, f3, rows, stream,
            )
        });
    }

    fn concat(&mut self, a: &Tensor, b: &Tensor, out: &mut Tensor) {
        assert_eq!((a.rows, a.width), (b.rows, b.width));
        assert!(a.width.is_multiple_of(4));
        let out = out.shape(a.rows, 2 * a.width);
        let (rows, width) = (count(a.rows), count(a.width));
        // SAFETY: shapes are checked.
        self.queue.launch("concat", |stream| unsafe {
            ops::atlas_concat(a.as_ptr(), b.as_ptr(), out, rows, width, stream)
        });
    }

    fn embed_beside(
        &mut self,
        table: &Matrix,
        hidden: &Tensor,
        norms: BesideNorms<'_, Cuda>,
        batch: &Batch,
        _: [&mut Tensor; 2],
        out: &mut Tensor,
    ) {
        let rows = batch.rows();
        assert_eq!(
            (table.n, table.k, table.storage),
            (VOCAB, HIDDEN, Storage::F16)
        );
        assert_eq!((hidden.rows, hidden.width), (rows, HIDDEN));
        let (of_embedding, of_hidden) = (&norms.embedding.0, &norms.hidden.0);
        assert_eq!((of_embedding.len(), of_hidden.len()), (HIDDEN, HIDDEN));
        let out = out.shape(rows, 2 * HIDDEN);
        let step = self.step.of(batch);
        // SAFETY: `Batch` has checked the tokens; shapes are checked.
        self.queue.launch("embed_beside", |stream| unsafe {
            ops::atlas_embed_beside(
                table.bytes.as_ptr(),
                step.tokens(),
                of_embedding.as_ptr(),
                hidden.as_ptr(),
                of_hidden.as_ptr(),
                out,
                count(rows),
                stream,
            )
        });
    }

    fn select(&mut self, x: &Tensor, batch: &Batch, out: &mut Tensor) {
        assert_eq!(x.rows, batch.rows());
        assert!(x.width.is_multiple_of(4));
        let wanted = batch.wanted().len();
        let out = out.shape(wanted, x.width);
        let (rows, width) = (count(wanted), count(x.width));
        let step = self.step.of(batch);
        // SAFETY: shapes are checked; `Batch` has checked that wanted rows are rows of the batch.
        self.queue.launch("select", |stream| unsafe {
            ops::atlas_select(x.as_ptr(), step.wanted_rows(), out, rows, width, stream)
        });
    }

    fn cap_logits(&mut self, logits: &mut Tensor) {
        let numbers = count(logits.rows * logits.width);
        // SAFETY: the tensor has as many elements as are passed.
        self.queue.launch("cap_logits", |stream| unsafe {
            ops::atlas_cap_logits(logits.as_mut_ptr(), numbers, stream)
        });
    }

    fn relu2(&mut self, x: &mut Tensor) {
        let numbers = count(x.rows * x.width);
        // SAFETY: the tensor has as many elements as are passed.
        self.queue.launch("relu2", |stream| unsafe {
            ops::atlas_relu2(x.as_mut_ptr(), numbers, stream)
        });
    }

    fn top_k(&mut self, logits: &Tensor, out: &mut Tensor) {
        assert!(logits.width <= VOCAB && logits.rows <= ENDS_MAX);
        let (rows, ids) = (count(logits.rows), count(logits.width));
        let out = out.shape(logits.rows, RANKED);
        let (orders, sums) = (self.orders.as_mut_ptr(), self.sums.as_mut_ptr());
        // SAFETY: shapes are checked; the buffers of ids and sums suffice for `ENDS_MAX` rows.
        self.queue.launch("top_k", |stream| unsafe {
            ops::atlas_top_k(logits.as_ptr(), orders, sums, out, rows, ids, stream)
        });
    }

    fn lm_head(
        &mut self,
        residual: &Tensor,
        norm: &Vector,
        w: &Matrix,
        batch: &Batch,
        out: Ends<'_, Cuda>,
    ) {
        let rows = batch.wanted().len();
        // One launch norms, multiplies and ranks the same rows, at most `FEW_ROWS`. Otherwise the
        // operations are launched one by one.
        let (wanted, x) = match out.hidden {
            _ if rows > FEW_ROWS || LOGIT_CAP > 0.0 => {
                return norm_and_rank(self, residual, norm, w, batch, out);
            }
            Hidden::OfWanted => (self.step.of(batch).wanted_rows(), out.last),
            Hidden::OfRows if batch.wants_all() => (ptr::null(), out.x),
            Hidden::OfRows => return norm_and_rank(self, residual, norm, w, batch, out),
        };
        assert_eq!((residual.rows, residual.width), (batch.rows(), HIDDEN));
        assert_eq!((norm.0.len(), w.n, w.k), (HIDDEN, VOCAB, HIDDEN));
        let x = x.shape(rows, HIDDEN);
        let logits = out.logits.shape(rows, out.ids);
        let ranked = out
            .ranked
            .map_or(ptr::null_mut(), |ranked| ranked.shape(rows, RANKED));
        // SAFETY: shapes are checked; `Batch` has checked that wanted rows are rows of the batch;
        // the matrix is in panels of its storage; the buffers of ids and sums suffice for
        // `ENDS_MAX` rows, the operand buffer for `FEW_ROWS`; `arrived` has counters.
        self.queue.launch("lm_head", |stream| unsafe {
            ops::atlas_lm_head(
                residual.as_ptr(),
                wanted,
                norm.0.as_ptr(),
                x,
                self.operands.as_mut_ptr(),
                w.bytes.as_ptr(),
                logits,
                self.orders.as_mut_ptr(),
                self.sums.as_mut_ptr(),
                self.arrived.as_mut_ptr(),
                ranked,
                count(rows),
                count(out.ids),
                w.storage.number(),
                stream,
            )
        });
    }
}
