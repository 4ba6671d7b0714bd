//! Cases of operations that every model has: embedding, norms, products and the head.

use super::matrices::{Shape, blocks, once, stored};
use super::probe::as_factors;
use super::rows::{Loaded, RowCase, RowOp, RowOpOn};
use super::{F16_STORED, FORMULA_ROWS, Group, Probe, Random, Report, formula};
use model::ops::ENDS_MAX;
use model::ops::{BesideNorms, Ends, Hidden, RANKED, cap};
use model::shapes::Attention as _;
use model::target::{DRAFT_IDS, HIDDEN, MAX_SEQUENCES, Role, TOP_K, VOCAB, each_attention};
use model::weights::Stored;
use step::executor::DeviceError;

pub(super) const GROUP: Group = Group {
    by_row: &[
        "embed",
        "embed_beside",
        "rms_norm",
        "linear",
        "linear_add",
        "norm_linear",
        "concat",
        "select",
        "cap_logits",
        "relu2",
        "top_k",
        "lm_head",
    ],
    by_sequence: &[],
    formulas,
    rows,
    sequences: |_| Vec::new(),
};

fn formulas(report: &mut Report, random: &mut Random) {
    for rows in FORMULA_ROWS {
        if report.wants("rms_norm") {
            formula::norms(report, random, rows);
        }
        if report.wants("linear") {
            formula::products(report, random, rows);
        }
    }
}

/// Cases of all operations; of `linear` with the matrices that belong to no block.
fn rows(random: &mut Random) -> Vec<Box<dyn RowCase>> {
    let head = match blocks(&[Role::Head]) {
        heads if heads.is_empty() => blocks(&[Role::Embedding]),
        heads => heads,
    };
    let embedding = blocks(&[Role::Embedding])[0][0];
    let mut cases: Vec<Box<dyn RowCase>> = vec![
        Box::new(Embed(stored(random, embedding))),
        Box::new(EmbedBeside {
            table: stored(random, embedding),
            norms: [random.gains(HIDDEN), random.gains(HIDDEN)],
        }),
        Box::new(RmsNorm {
            norm: random.gains(HIDDEN),
            adds: None,
        }),
        Box::new(RmsNorm {
            norm: random.gains(HIDDEN),
            adds: Some(0.75),
        }),
        Box::new(CapLogits),
        Box::new(Relu2),
        Box::new(Concat),
        Box::new(Select),
        Box::new(TopK),
    ];
    for width in normed_rows() {
        cases.push(Box::new(RmsNorm {
            norm: random.gains(width),
            adds: None,
        }));
    }
    for hidden in [Hidden::OfRows, Hidden::OfWanted] {
        cases.push(Box::new(LmHead {
            norm: random.gains(HIDDEN),
            matrix: stored(random, head[0][0]),
            hidden,
        }));
    }
    cases.extend(products(random, fusion()));
    cases
}

/// Shapes of the products that join embedding and hidden state for a prediction, if any.
fn fusion() -> Vec<Shape> {
    blocks(&[Role::Fusion]).concat()
}

/// Cases of `linear` with some matrices, once for each shape and format; and of `linear_add` where
/// the result is as wide as the residual stream.
pub(super) fn products(
    random: &mut Random,
    shapes: impl IntoIterator<Item = Shape>,
) -> Vec<Box<dyn RowCase>> {
    let of_matrix = |shape| {
        let matrix = stored(random, shape);
        let adds = (matrix.n == HIDDEN).then(|| LinearAdd(matrix.clone()));
        let adds = adds.map(|adds| Box::new(adds) as Box<dyn RowCase>);
        let linear: Box<dyn RowCase> = Box::new(Linear(matrix));
        adds.into_iter().chain([linear])
    };
    once(shapes).into_iter().flat_map(of_matrix).collect()
}

/// Case of `norm_linear` with matrices of one block.
pub(super) fn projections(random: &mut Random, shapes: &[Shape]) -> Box<dyn RowCase> {
    Box::new(NormLinear {
        norm: random.gains(HIDDEN),
        parts: shapes.iter().map(|shape| stored(random, *shape)).collect(),
    })
}

/// Declares cases of operations without weights: name, operation, widths of inputs, overridden
/// methods if any, and a call of the operation.
macro_rules! weightless {
    ($(
        $name:ident $op:literal [$($width:expr),+] $({ $($special:tt)* })?
        |$b:ident, $x:ident, $batch:pat_param| $run:block
    )+) => {$(
        struct $name;

        impl RowOp for $name {
            fn about(&self) -> (&'static str, Vec<usize>) {
                ($op, vec![$($width),+])
            }

            $($($special)*)?
        }

        impl<B: Probe> RowOpOn<B> for $name {
            fn load(&self, _: &mut B) -> Result<Loaded<'_, B>, DeviceError> {
                Ok(Box::new(|$b, $x, $batch| {
                    $run
                    Ok(())
                }))
            }
        }
    )+};
}

weightless! {
    Relu2 "relu2" [HIDDEN] |b, x, _| { b.relu2(&mut x[0]); }

    CapLogits "cap_logits" [VOCAB] {
        fn takes(&self, rows: usize) -> bool {
            rows <= ENDS_MAX
        }
    } |b, x, _| { cap(b, &mut x[0]); }

    Concat "concat" [HIDDEN, HIDDEN] |b, x, batch| {
        let mut out = b.empty(batch.rows(), 2 * HIDDEN)?;
        b.concat(&x[0], &x[1], &mut out);
        x.push(out);
    }

    Select "select" [HIDDEN] {
        fn is_by_row(&self) -> bool {
            false
        }
    } |b, x, batch| {
        let mut out = b.empty(batch.rows(), HIDDEN)?;
        b.select(&x[0], batch, &mut out);
        x.push(out);
    }

    TopK "top_k" [VOCAB] {
        fn takes(&self, rows: usize) -> bool {
            rows <= MAX_SEQUENCES
        }

        /// Rounds every third row to whole numbers: equal logits are ranked by another path.
        fn alter(&self, inputs: &mut [Vec<f32>]) {
            for logits in inputs[0].chunks_exact_mut(VOCAB).skip(1).step_by(3) {
                logits.iter_mut().for_each(|logit| *logit = logit.round());
            }
        }

        fn parts(&self, mut left: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
            let ranked = left.pop().expect("the ranking");
            left.extend(ranked_parts(&ranked));
            left
        }
    } |b, x, batch| {
        let mut out = b.empty(batch.rows(), RANKED)?;
        b.top_k(&x[0], &mut out);
        x.push(out);
    }
}

struct Embed(Stored);

impl RowOp for Embed {
    fn about(&self) -> (&'static str, Vec<usize>) {
        ("embed", Vec::new())
    }
}

impl<B: Probe> RowOpOn<B> for Embed {
    fn load(&self, b: &mut B) -> Result<Loaded<'_, B>, DeviceError> {
        let table = b.matrix_of(&self.0)?;
        Ok(Box::new(move |b, x, batch| {
            let mut out = b.empty(batch.rows(), HIDDEN)?;
            b.embed(&table, batch, &mut out);
            x.push(out);
            Ok(())
        }))
    }
}

struct EmbedBeside {
    table: Stored,
    norms: [Vec<f32>; 2],
}

impl RowOp for EmbedBeside {
    fn about(&self) -> (&'static str, Vec<usize>) {
        ("embed_beside", vec![HIDDEN])
    }
}

impl<B: Probe> RowOpOn<B> for EmbedBeside {
    fn load(&self, b: &mut B) -> Result<Loaded<'_, B>, DeviceError> {
        let table = b.matrix_of(&self.table)?;
        let [embedding, hidden] = &self.norms;
        let (embedding, hidden) = (b.vector_of(embedding)?, b.vector_of(hidden)?);
        Ok(Box::new(move |b, x, batch| {
            let norms = BesideNorms {
                embedding: &embedding,
                hidden: &hidden,
            };
            let rows = batch.rows();
            let (mut normed, mut other) = (b.empty(rows, HIDDEN)?, b.empty(rows, HIDDEN)?);
            let mut out = b.empty(rows, 2 * HIDDEN)?;
            let scratch = [&mut normed, &mut other];
            b.embed_beside(&table, &x[0], norms, batch, scratch, &mut out);
            x.push(out);
            Ok(())
        }))
    }
}

/// Widths of queries and keys that attention norms as whole rows.
fn normed_rows() -> Vec<usize> {
    let widths = each_attention![A => match A::ROWS_NORMED {
        true => vec![A::QUERIES, A::KEYS],
        false => Vec::new(),
    }];
    widths.concat()
}

/// Case of `rms_norm` whose results replace other rows or are added to them.
struct RmsNorm {
    /// Weights of the norm, one for each element of a row.
    norm: Vec<f32>,
    adds: Option<f32>,
}

impl RowOp for RmsNorm {
    fn about(&self) -> (&'static str, Vec<usize>) {
        ("rms_norm", vec![self.norm.len(); 2])
    }
}

impl<B: Probe> RowOpOn<B> for RmsNorm {
    fn load(&self, b: &mut B) -> Result<Loaded<'_, B>, DeviceError> {
        let norm = b.vector_of(&self.norm)?;
        Ok(Box::new(move |b, x, _| {
            let (x, out) = x.split_at_mut(1);
            b.rms_norm(&x[0], &norm, &mut out[0], self.adds);
            Ok(())
        }))
    }
}

struct Linear(Stored);

impl RowOp for Linear {
    fn about(&self) -> (&'static str, Vec<usize>) {
        ("linear", vec![self.0.k])
    }

    fn case(&self, rows: usize) -> String {
        product(rows, &self.0)
    }
}

impl<B: Probe> RowOpOn<B> for Linear {
    fn load(&self, b: &mut B) -> Result<Loaded<'_, B>, DeviceError> {
        let matrix = b.matrix_of(&self.0)?;
        Ok(Box::new(move |b, x, batch| {
            let mut out = b.empty(batch.rows(), self.0.n)?;
            b.linear(&x[0], &matrix, &mut out);
            x.push(out);
            Ok(())
        }))
    }
}

struct LinearAdd(Stored);

impl RowOp for LinearAdd {
    fn about(&self) -> (&'static str, Vec<usize>) {
        ("linear_add", vec![self.0.k, self.0.n])
    }

    fn case(&self, rows: usize) -> String {
        product(rows, &self.0)
    }
}

impl<B: Probe> RowOpOn<B> for LinearAdd {
    fn load(&self, b: &mut B) -> Result<Loaded<'_, B>, DeviceError> {
        let matrix = b.matrix_of(&self.0)?;
        Ok(Box::new(move |b, x, _| {
            let (x, residual) = x.split_at_mut(1);
            b.linear_add(&x[0], &matrix, &mut residual[0]);
            Ok(())
        }))
    }
}

struct NormLinear {
    norm: Vec<f32>,
    parts: Vec<Stored>,
}

impl RowOp for NormLinear {
    fn about(&self) -> (&'static str, Vec<usize>) {
        ("norm_linear", vec![HIDDEN])
    }

    fn case(&self, rows: usize) -> String {
        format!("{rows} {}", self.parts[0].bits.coding.name())
    }

    /// A normed element near the middle between two F16 numbers may be rounded to either.
    fn limit(&self) -> f64 {
        F16_STORED
    }

    fn parts(&self, mut left: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let normed = left.pop().expect("normed rows are last");
        left.push(as_factors(normed));
        left
    }
}

impl<B: Probe> RowOpOn<B> for NormLinear {
    fn load(&self, b: &mut B) -> Result<Loaded<'_, B>, DeviceError> {
        let norm = b.vector_of(&self.norm)?;
        let matrices = self.parts.iter().map(|part| b.matrix_of(part));
        let matrices = matrices.collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(move |b, x, batch| {
            let mut normed = b.empty(batch.rows(), HIDDEN)?;
            let outs = self.parts.iter().map(|part| b.empty(batch.rows(), part.n));
            let mut outs = outs.collect::<Result<Vec<_>, _>>()?;
            let mut parts: Vec<_> = matrices.iter().zip(&mut outs).collect();
            b.norm_linear_rounded(&x[0], &norm, &mut normed, &mut parts)?;
            x.extend(outs);
            x.push(normed);
            Ok(())
        }))
    }
}

struct LmHead {
    norm: Vec<f32>,
    matrix: Stored,
    hidden: Hidden,
}

impl RowOp for LmHead {
    fn about(&self) -> (&'static str, Vec<usize>) {
        ("lm_head", vec![HIDDEN])
    }

    fn case(&self, rows: usize) -> String {
        let matrix = self.matrix.bits.coding.name();
        match self.wanted(rows) {
            Some(wanted) => format!("{} of {rows} {matrix}", wanted.len()),
            None => format!("{rows} {matrix}"),
        }
    }

    /// A normed element near the middle between two F16 numbers may be rounded to either.
    fn limit(&self) -> f64 {
        F16_STORED
    }

    fn takes(&self, rows: usize) -> bool {
        match self.wanted(rows) {
            Some(wanted) => wanted.len() <= ENDS_MAX,
            None => rows <= MAX_SEQUENCES,
        }
    }

    /// Numbers of the rows with logits: every third row and the last one.
    fn wanted(&self, rows: usize) -> Option<Vec<usize>> {
        let third = || ((rows - 1) % 3..rows).step_by(3).collect();
        (self.hidden == Hidden::OfWanted).then(third)
    }

    /// Results that are compared separately: normed rows, logits, logits of ranked ids, ranked
    /// logits, and logarithms of sums of weights, whose relative error is the largest logit's
    /// absolute error.
    fn parts(&self, left: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let [x, logits, ranked]: [_; 3] = left.try_into().expect("three tensors");
        let [ids, largest, sums] = ranked_parts(&ranked);
        let of_ids = logits_at(&logits, &ids);
        let rows = sums.iter().zip(largest.chunks_exact(TOP_K));
        let weights = rows.map(|(sum, largest)| sum.ln() + largest[0]).collect();
        vec![x, logits, of_ids, largest, weights]
    }
}

impl<B: Probe> RowOpOn<B> for LmHead {
    fn load(&self, b: &mut B) -> Result<Loaded<'_, B>, DeviceError> {
        let (norm, matrix) = (b.vector_of(&self.norm)?, b.matrix_of(&self.matrix)?);
        Ok(Box::new(move |b, x, batch| {
            let (rows, wanted) = (batch.rows(), batch.wanted().len());
            let (mut normed, mut last) = (b.empty(rows, HIDDEN)?, b.empty(wanted, HIDDEN)?);
            // For drafts, wanted rows have logits of the draft ids alone.
            let ids = match self.hidden {
                Hidden::OfRows => VOCAB,
                Hidden::OfWanted => DRAFT_IDS,
            };
            let (mut logits, mut ranked) = (b.empty(wanted, ids)?, b.empty(wanted, RANKED)?);
            let ends = Ends {
                hidden: self.hidden,
                x: &mut normed,
                last: &mut last,
                ids,
                logits: &mut logits,
                ranked: Some(&mut ranked),
            };
            b.lm_head_rounded(&x[0], &norm, &matrix, batch, ends)?;
            let normed = match self.hidden {
                Hidden::OfRows => normed,
                Hidden::OfWanted => last,
            };
            *x = vec![normed, logits, ranked];
            Ok(())
        }))
    }
}

fn product(rows: usize, matrix: &Stored) -> String {
    let Stored { n, k, bits, .. } = matrix;
    format!("{rows} x {n} x {k} {}", bits.coding.name())
}

/// Ids, logits and sums of ranked rows, each with a norm of its own.
fn ranked_parts(ranked: &[f32]) -> [Vec<f32>; 3] {
    [0..TOP_K, TOP_K..2 * TOP_K, 2 * TOP_K..RANKED].map(|part| {
        let rows = ranked.chunks_exact(RANKED);
        rows.flat_map(|row| row[part.clone()].iter().copied())
            .collect()
    })
}

/// Logits of ranked ids: ids of nearly equal logits may be swapped, but the logits stay near.
fn logits_at(logits: &[f32], ids: &[f32]) -> Vec<f32> {
    let rows = ids.len() / TOP_K;
    let rows = logits
        .chunks_exact(logits.len() / rows)
        .zip(ids.chunks_exact(TOP_K));
    rows.flat_map(|(row, ids)| ids.iter().map(|&id| row[id as usize]))
        .collect()
}
