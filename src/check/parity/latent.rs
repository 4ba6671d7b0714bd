//! Cases of attention over latents: products that make queries of latents, and results of latents.

use std::marker::PhantomData;

use super::dense::{products, projections};
use super::matrices::{Shape, blocks, once, stored};
use super::rows::{Loaded, RowCase, RowOp, RowOpOn};
use super::{FORMULA_ROWS, Group, Probe, Random, Report, formula};
use model::backend::cpu::{Cpu, Tensor};
use model::blocks::latent::{self, Ops};
use model::ops::Batch;
use model::shapes::Attention as _;
use model::target::{self, Role};
use model::weights::Stored;
use step::executor::DeviceError;

pub(super) const GROUP: Group = Group {
    by_row: &[
        "latent_queries",
        "latent_results",
        "norm_linear",
        "linear",
        "linear_add",
    ],
    by_sequence: &[],
    formulas,
    rows,
    sequences: |_| Vec::new(),
};

/// Roles of matrices whose products are compared; the first two multiply hidden states.
const ROLES: [Role; 4] = [
    Role::QueryDown,
    Role::LatentDown,
    Role::QueryUp,
    Role::Output,
];

/// Cases of both operations with rows of each format.
fn of_heads(random: &mut Random) -> Vec<OfHeads<target::Latent>> {
    let blocks = blocks(&[Role::LatentKeys, Role::LatentValues]);
    let mut draw = |block: &Vec<Shape>, at: usize, queries: bool| OfHeads {
        queries,
        weights: stored(random, block[at]),
        shape: PhantomData,
    };
    let both = blocks
        .iter()
        .flat_map(|block| [draw(block, 0, true), draw(block, 1, false)]);
    both.collect()
}

fn rows(random: &mut Random) -> Vec<Box<dyn RowCase>> {
    let boxed = |case| Box::new(case) as Box<dyn RowCase>;
    let mut cases: Vec<_> = of_heads(random).into_iter().map(boxed).collect();
    for block in blocks(&ROLES) {
        cases.push(projections(random, &block[..2]));
        cases.extend(products(random, once(block)));
    }
    cases
}

fn formulas(report: &mut Report, random: &mut Random) {
    for case in of_heads(random) {
        if report.wants(case.op()) {
            FORMULA_ROWS
                .into_iter()
                .for_each(|rows| case.of_formula(report, random, rows));
        }
    }
}

/// A case of an operation in which each head has its own rows of a matrix.
struct OfHeads<L> {
    /// Whether the operation makes queries; otherwise it makes results.
    queries: bool,
    weights: Stored,
    shape: PhantomData<L>,
}

impl<L: latent::Shape> OfHeads<L> {
    fn run<B: Probe + Ops<L>>(
        &self,
        b: &mut B,
        x: &B::Tensor,
        w: &B::Matrix,
        batch: &Batch,
    ) -> Result<B::Tensor, DeviceError> {
        let rows = batch.rows();
        if self.queries {
            let mut out = b.empty(rows, L::Attention::QUERIES)?;
            b.latent_queries(x, w, batch, &mut out);
            return Ok(out);
        }
        let mut out = b.empty(rows, L::RESULTS)?;
        b.latent_results(x, w, &mut out);
        Ok(out)
    }

    /// Compares the CPU on a sequence's rows with the formula in F64.
    fn of_formula(&self, report: &mut Report, random: &mut Random, rows: usize) {
        let width = self.widths()[0];
        let x = random.scaled(rows * width, |at| (1 + at / width % 9) as f32);
        let values = self.weights.values();
        let of_row = |(position, row)| self.formula(row, &values, position);
        let wanted: Vec<f32> = x.chunks_exact(width).enumerate().flat_map(of_row).collect();
        let mut cpu = Cpu::default();
        let w = cpu.matrix_of(&self.weights).expect("the CPU has memory");
        let batch = formula::batch(0..rows, rows.div_ceil(target::PAGE));
        let out = self.run(&mut cpu, &Tensor::of(width, x), &w, &batch);
        let found = formula::seen(&mut cpu, &out.expect("the CPU has memory"));
        let shape = format!("{rows} x {width}");
        formula::compare(report, self.op(), &shape, &found, &wanted);
    }

    fn formula(&self, row: &[f32], weights: &[f32], position: usize) -> Vec<f32> {
        let rank = L::Attention::VALUE_DIM;
        let of_heads = row.chunks_exact(row.len() / L::Attention::HEADS);
        let of_weights = weights.chunks_exact(weights.len() / L::Attention::HEADS);
        let heads = of_heads.zip(of_weights);
        if !self.queries {
            let dot = |x: &[f32], w: &[f32]| -> f64 {
                x.iter()
                    .zip(w)
                    .map(|(&x, &w)| f64::from(x) * f64::from(w))
                    .sum()
            };
            let of_head = |(x, w): (_, &[f32])| -> Vec<f32> {
                w.chunks_exact(rank).map(|w| dot(x, w) as f32).collect()
            };
            return heads.flat_map(of_head).collect();
        }
        let growth = L::TEMPERATURE.map_or(1.0, |growth| f64::from(growth.of(position)));
        let of_head = |(x, w): (&[f32], &[f32])| -> Vec<f32> {
            let (plain, rotated) = x.split_at(L::NOPE_DIM);
            let second = |from: usize| rotated[from..].iter().step_by(2).map(|&x| f64::from(x));
            let latent = (0..rank).map(|at| -> f64 {
                let rows = plain.iter().zip(w.chunks_exact(rank));
                rows.map(|(&x, w)| f64::from(x) * f64::from(w[at])).sum()
            });
            let all = second(0).chain(second(1)).chain(latent);
            all.map(|x| (growth * x) as f32).collect()
        };
        heads.flat_map(of_head).collect()
    }
}

impl<L: latent::Shape> RowOp for OfHeads<L> {
    fn about(&self) -> (&'static str, Vec<usize>) {
        match self.queries {
            true => ("latent_queries", vec![L::QUERIES]),
            false => ("latent_results", vec![L::Attention::MIXED]),
        }
    }

    fn is_placed(&self) -> bool {
        self.queries
    }
}

impl<L: latent::Shape, B: Probe + Ops<L>> RowOpOn<B> for OfHeads<L> {
    fn load(&self, b: &mut B) -> Result<Loaded<'_, B>, DeviceError> {
        let w = b.matrix_of(&self.weights)?;
        Ok(Box::new(move |b, x, batch| {
            let out = self.run(b, &x[0], &w, batch)?;
            x.push(out);
            Ok(())
        }))
    }
}
