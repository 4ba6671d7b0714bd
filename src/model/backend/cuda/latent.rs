//! Products that make queries of latents, and results of them, on the GPU.

use ffi::ops;

use super::storage::Storage;
use super::{Cuda, Matrix, Tensor, count};
use crate::ops::Batch;
use crate::shapes::{self, Attention as _, Latent as _};
use crate::target::Latent;

type Attention = <Latent as shapes::Latent>::Attention;

/// Checks a matrix whose rows are those of heads, `[HEADS rows, VALUE_DIM]`.
fn check(w: &Matrix, rows: usize) {
    assert_eq!((w.n, w.k), (Attention::HEADS * rows, Attention::VALUE_DIM));
    assert!(w.storage == Storage::F16, "rows of heads are floats");
}

impl crate::ops::Latent<Latent> for Cuda {
    fn latent_queries(&mut self, x: &Tensor, w: &Matrix, batch: &Batch, q: &mut Tensor) {
        assert_eq!((x.rows, x.width), (batch.rows(), Latent::QUERIES));
        check(w, Latent::NOPE_DIM);
        let (rows, q) = (count(x.rows), q.shape(x.rows, Attention::QUERIES));
        let positions = self.step.of(batch).positions();
        // SAFETY: shapes are checked; the matrix is in panels of F16.
        self.queue.launch("latent_queries", |stream| unsafe {
            ops::atlas_latent_queries(x.as_ptr(), w.bytes.as_ptr(), positions, q, rows, stream)
        });
    }

    fn latent_results(&mut self, mixed: &Tensor, w: &Matrix, out: &mut Tensor) {
        assert_eq!(mixed.width, Attention::MIXED);
        check(w, Latent::RESULT_DIM);
        let (rows, out) = (count(mixed.rows), out.shape(mixed.rows, Latent::RESULTS));
        // SAFETY: as above.
        self.queue.launch("latent_results", |stream| unsafe {
            ops::atlas_latent_results(mixed.as_ptr(), w.bytes.as_ptr(), out, rows, stream)
        });
    }
}
