//! Products of heads with their rows of a matrix: queries of latents, and results of these.

use super::matrix::Matrix;
use super::pool::Pool;
use super::share::Shared;
use super::{Cpu, Tensor, split};
use crate::ops::{Batch, Latent};
use crate::shapes::{self, Attention};

/// Calls `run(head, at, weights)` with each head's rows of `w [heads rows, k]`, `at` of them from
/// the head's first one on; heads are split over the pool.
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

/// Queries of latents of a row: `x [QUERIES]`, `q` with sums in the places of latents.
fn finish<L: shapes::Latent>(x: &[f32], q: &mut [f32], position: usize) {
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

impl<L: shapes::Latent> Latent<L> for Cpu {
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
