//! Products of attention over latents, on each device: of heads' queries and results with each
//! head's rows of a matrix.

use super::clock::Timed;
use super::cpu::pool::Pool;
use super::cpu::share::Shared;
use super::cpu::{Cpu, Matrix, Tensor, split};
use super::metered::{Metered, multiplies};
use crate::blocks::latent::{Ops, Shape};
use crate::ops::Batch;
use crate::shapes::Attention as _;

impl<L: Shape, B: Ops<L> + Timed> Ops<L> for Metered<B> {
    metered! { Ops<L>:
        latent_queries(x[tensor] w[matrix] batch[&Batch] q[out]) {
            q.shape(x.rows, L::Attention::QUERIES);
            multiplies(x.rows, (w.n, w.k), w.bytes + x.bytes + q.bytes)
        }
        latent_results(mixed[tensor] w[matrix] out[out]) {
            out.shape(mixed.rows, L::RESULTS);
            multiplies(mixed.rows, (w.n, w.k), w.bytes + mixed.bytes + out.bytes)
        }
    }
}

/// Calls `run(head, at, weights)` for each row of `w [heads rows, k]`, row `at` of `head`; heads
/// are split over the pool.
fn each_row(
    pool: &mut Pool,
    w: &Matrix,
    heads: usize,
    rows_of_x: usize,
    run: impl Fn(usize, usize, &[f32]) + Sync,
) {
    let rows = w.n / heads;
    split(pool, heads, rows_of_x * rows * w.k, |heads| {
        let mut weights = vec![0.0; w.k];
        for row in heads.start * rows..heads.end * rows {
            w.row(row, &mut weights);
            run(row / rows, row % rows, &weights);
        }
    });
}

/// Completes a row of queries of latents: `x [QUERIES]` as projected; `q` already has the products
/// in its latent elements.
fn finish<L: Shape>(x: &[f32], q: &mut [f32], position: usize) {
    let heads = q.chunks_exact_mut(L::Attention::HEAD_DIM);
    for (q, x) in heads.zip(x.chunks_exact(L::QUERY)) {
        let pairs = x[L::NOPE_DIM..].chunks_exact(2).enumerate();
        for (pair, elements) in pairs {
            (q[pair], q[L::Attention::PAIRS + pair]) = (elements[0], elements[1]);
        }
        if let Some(temperature) = L::TEMPERATURE {
            let factor = temperature.of(position);
            q.iter_mut().for_each(|x| *x *= factor);
        }
    }
}

impl<L: Shape> Ops<L> for Cpu {
    fn latent_queries(&mut self, x: &Tensor, w: &Matrix, batch: &Batch, q: &mut Tensor) {
        let (heads, rank) = (L::Attention::HEADS, L::Attention::VALUE_DIM);
        let (width, all) = (L::Attention::HEAD_DIM, L::Attention::QUERIES);
        assert_eq!((x.rows, x.width), (batch.rows(), L::QUERIES));
        assert_eq!((w.n, w.k), (heads * L::NOPE_DIM, rank));
        q.shape(x.rows, all).fill(0.0);
        let out = Shared::new(&mut q.values);
        each_row(&mut self.pool, w, heads, x.rows, |head, at, weights| {
            for row in 0..x.rows {
                let end = row * all + (head + 1) * width;
                // SAFETY: each head belongs to one task.
                let sums = unsafe { out.range(end - rank..end) };
                let factor = x.row(row)[head * L::QUERY + at];
                let pairs = sums.iter_mut().zip(weights);
                pairs.for_each(|(sum, w)| *sum += factor * w);
            }
        });
        for (row, &position) in batch.positions().iter().enumerate() {
            let q = &mut q.values[row * all..][..all];
            finish::<L>(x.row(row), q, position);
        }
    }

    fn latent_results(&mut self, mixed: &Tensor, w: &Matrix, out: &mut Tensor) {
        let (heads, width) = (L::Attention::HEADS, L::Attention::VALUE_DIM);
        assert_eq!(mixed.width, L::Attention::MIXED);
        assert_eq!((w.n, w.k), (L::RESULTS, width));
        let out = Shared::new(out.shape(mixed.rows, L::RESULTS));
        each_row(&mut self.pool, w, heads, mixed.rows, |head, at, weights| {
            for row in 0..mixed.rows {
                let latent = mixed.row(row)[head * width..][..width].iter();
                let sum = latent.zip(weights).fold(0.0, |sum, (x, w)| sum + x * w);
                let at = row * L::RESULTS + head * L::RESULT_DIM + at;
                // SAFETY: each head belongs to one task.
                let to = unsafe { out.range(at..at + 1) };
                to[0] = sum;
            }
        });
    }
}

#[cfg(feature = "cuda")]
mod on_gpu {
    use ffi::ops;

    use crate::backend::cuda::storage::Storage;
    use crate::backend::cuda::{Cuda, Matrix, Tensor, count};
    use crate::blocks::latent::{Ops, Shape};
    use crate::ops::Batch;
    use crate::shapes::Attention as _;
    use crate::target::Latent;

    type Attention = <Latent as Shape>::Attention;

    /// Checks a matrix `[HEADS rows, VALUE_DIM]`, whose rows belong to heads.
    fn check(w: &Matrix, rows: usize) {
        assert_eq!((w.n, w.k), (Attention::HEADS * rows, Attention::VALUE_DIM));
        assert!(w.storage == Storage::F16, "rows of heads are floats");
    }

    impl Ops<Latent> for Cuda {
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
            // SAFETY: shapes are checked; the matrix is in panels of F16.
            self.queue.launch("latent_results", |stream| unsafe {
                ops::atlas_latent_results(mixed.as_ptr(), w.bytes.as_ptr(), out, rows, stream)
            });
        }
    }
}
