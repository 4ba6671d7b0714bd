//! Cases of an MLP: its gate, and products with its matrices.

use std::marker::PhantomData;

use super::dense::{products, projections};
use super::matrices::{blocks, once, stored};
use super::rows::{Loaded, RowCase, RowOp, RowOpOn, gathered, sampled};
use super::{F16_STORED, FORMULA_ROWS, Group, Probe, Random, Report, formula};
use model::backend::cpu::{Cpu, Tensor};
use model::ops::Gate;
use model::shapes::{self, ALPHA, Activation, CLAMP, GELU_CUBIC, GELU_SLOPE};
use model::target::{HIDDEN, Mlp, Role};
use model::weights::Stored;
use step::executor::DeviceError;

pub(super) const GROUP: Group = Group {
    by_row: &["swiglu", "mlp", "norm_linear", "linear", "linear_add"],
    by_sequence: &[],
    formulas,
    rows,
    sequences: |_| Vec::new(),
};

const ROLES: [Role; 3] = [Role::MlpGate, Role::MlpUp, Role::MlpDown];

fn rows(random: &mut Random) -> Vec<Box<dyn RowCase>> {
    let mut cases: Vec<Box<dyn RowCase>> = vec![Box::new(Swiglu::<Mlp>(PhantomData))];
    for block in blocks(&ROLES) {
        cases.push(Box::new(WholeMlp::<Mlp> {
            norm: random.gains(HIDDEN),
            weights: [0, 1, 2].map(|of| stored(random, block[of])),
            shape: PhantomData,
        }));
        cases.push(projections(random, &block[..2]));
        cases.extend(products(random, once(block)));
    }
    cases
}

fn formulas(report: &mut Report, random: &mut Random) {
    if report.wants("swiglu") {
        FORMULA_ROWS
            .into_iter()
            .for_each(|rows| of_formula::<Mlp>(report, random, rows));
    }
}

/// Compares the CPU's `swiglu` of rows of different magnitude with its formula in F64.
fn of_formula<M: shapes::Mlp>(report: &mut Report, random: &mut Random, rows: usize) {
    let size = |at: usize| (1 + at / M::INTERMEDIATE % 9) as f32;
    let mut draw = || random.scaled(rows * M::INTERMEDIATE, size);
    let (gate, up) = (draw(), draw());
    let sample = sampled(random, rows);
    let [of_gate, of_up] = [&gate, &up].map(|values| gathered(values, rows, &sample));
    let wanted: Vec<f32> = of_gate.iter().zip(&of_up).map(activated::<M>).collect();
    let [gate, up] = [gate, up].map(|values| Tensor::of(M::INTERMEDIATE, values));
    let (mut cpu, mut out) = (Cpu::default(), Tensor::default());
    Gate::<M>::swiglu(&mut cpu, &gate, &up, &mut out);
    let found = gathered(&formula::seen(&mut cpu, &out), rows, &sample);
    let shape = format!("{rows} x {}", M::INTERMEDIATE);
    formula::compare(report, "swiglu", &shape, &found, &wanted);
}

fn activated<M: shapes::Mlp>((&gate, &up): (&f32, &f32)) -> f32 {
    let [gate, up, most] = [gate, up, CLAMP].map(f64::from);
    let open = |gate: f64, slope: f64| gate / (1.0 + (-slope).exp());
    let value = match M::ACTIVATION {
        Activation::Silu => open(gate, gate) * up,
        Activation::GeluTanh => {
            let bent = gate + f64::from(GELU_CUBIC) * gate.powi(3);
            open(gate, f64::from(GELU_SLOPE) * bent) * up
        }
        Activation::Clamped => {
            let gate = gate.min(most);
            open(gate, f64::from(ALPHA) * gate) * (up.clamp(-most, most) + 1.0)
        }
        Activation::Relu2 => gate.max(0.0) * up,
    };
    value as f32
}

struct Swiglu<M>(PhantomData<M>);

impl<M: shapes::Mlp> RowOp for Swiglu<M> {
    fn about(&self) -> (&'static str, Vec<usize>) {
        ("swiglu", vec![M::INTERMEDIATE, M::INTERMEDIATE])
    }
}

impl<M: shapes::Mlp, B: Probe + Gate<M>> RowOpOn<B> for Swiglu<M> {
    fn load(&self, _: &mut B) -> Result<Loaded<'_, B>, DeviceError> {
        Ok(Box::new(|b, x, batch| {
            let mut out = b.empty(batch.rows(), M::INTERMEDIATE)?;
            b.swiglu(&x[0], &x[1], &mut out);
            x.push(out);
            Ok(())
        }))
    }
}

struct WholeMlp<M> {
    norm: Vec<f32>,
    weights: [Stored; 3],
    shape: PhantomData<M>,
}

impl<M: shapes::Mlp> RowOp for WholeMlp<M> {
    fn about(&self) -> (&'static str, Vec<usize>) {
        ("mlp", vec![HIDDEN])
    }

    fn case(&self, rows: usize) -> String {
        let formats = self
            .weights
            .each_ref()
            .map(|stored| stored.bits.coding.name());
        format!("{rows} {}", formats.join(" "))
    }

    /// A normed element or an activation near the middle between two F16 may be rounded to either.
    fn limit(&self) -> f64 {
        2.0 * F16_STORED
    }
}

impl<M: shapes::Mlp, B: Probe + Gate<M>> RowOpOn<B> for WholeMlp<M> {
    fn load(&self, b: &mut B) -> Result<Loaded<'_, B>, DeviceError> {
        let norm = b.vector_of(&self.norm)?;
        let matrices = self.weights.iter().map(|stored| b.matrix_of(stored));
        let matrices = matrices.collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(move |b, x, batch| {
            let mut normed = b.empty(batch.rows(), HIDDEN)?;
            let mut output = || b.empty(batch.rows(), M::INTERMEDIATE);
            let (mut gates, mut ups, mut act) = (output()?, output()?, output()?);
            let own = [&mut gates, &mut ups, &mut act];
            let weights = [&matrices[0], &matrices[1], &matrices[2]];
            b.mlp(&mut x[0], &norm, weights, &mut normed, own);
            Ok(())
        }))
    }
}
