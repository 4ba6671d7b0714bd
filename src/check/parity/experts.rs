//! Cases of experts: `route`, `experts`, and `moe`, which does both.

use std::marker::PhantomData;

use super::dense::{products, projections};
use super::matrices::{Shape, blocks, once, stored};
use super::rows::{Loaded, RowCase, RowOp, RowOpOn};
use super::{BF16_STORED, F16_STORED, Group, Probe, Random};
use model::backend::cpu::{self, Cpu};
use model::ops::Route;
use model::shapes;
use model::target::Coding;
use model::target::{Moe, Role};
use model::weights::Stored;
use step::executor::DeviceError;

pub(super) const GROUP: Group = Group {
    by_row: &["moe", "norm_linear", "linear", "linear_add"],
    by_sequence: &[],
    formulas: |_, _| {},
    rows,
    sequences: |_| Vec::new(),
};

/// Matrices of a routed expert; experts without a gate lack the first one.
const ROUTED: [Role; 3] = [Role::ExpertGate, Role::ExpertUp, Role::ExpertDown];
const SHARED: [Role; 3] = [Role::SharedGate, Role::SharedUp, Role::SharedDown];

/// Shapes of routers, a row for each expert.
fn routers() -> Vec<Shape> {
    let stacked = |parts: Vec<Shape>| {
        let rows = parts.iter().map(|part| part.0).sum();
        (rows, parts[0].1, parts[0].2)
    };
    let parts = blocks(&[Role::Router, Role::SharedRouter]);
    once(parts.into_iter().map(stacked))
}

/// Cases of experts in each format, and of products with routers.
fn rows(random: &mut Random) -> Vec<Box<dyn RowCase>> {
    let mut cases: Vec<Box<dyn RowCase>> = Vec::new();
    for layer in once(blocks(&[ROUTED, SHARED].concat())) {
        cases.push(Box::new(Experts::<Moe>::draw(random, &layer)));
    }
    for router in routers() {
        cases.push(projections(random, &[router]));
        cases.extend(products(random, [router]));
    }
    for read in blocks(&[Role::Router, Role::ExpertsIn, Role::MlpUp]) {
        if read.len() > 1 {
            cases.push(projections(random, &read));
        }
    }
    let beside = [
        Role::Router,
        Role::ExpertsIn,
        Role::ExpertsOut,
        Role::MlpUp,
        Role::MlpDown,
    ];
    let ways = blocks(&beside).into_iter();
    cases.extend(products(random, ways.flat_map(|way| way[1..].to_vec())));
    cases
}

/// Functions beside the operations of one shape of experts that cases need of a backend.
pub trait ProbeExperts<E: shapes::Experts>: Probe + Route<E> {
    /// Experts from stored matrices: gate, if there is one, up and down; the shared one is last.
    fn experts_of(&mut self, stored: &[Vec<Stored>]) -> Result<Self::Experts, DeviceError>;
}

impl<E: shapes::Experts> ProbeExperts<E> for Cpu {
    fn experts_of(
        &mut self,
        stored: &[Vec<Stored>],
    ) -> Result<<Cpu as Route<E>>::Experts, DeviceError> {
        let is_nvfp4 = stored[0][0].bits.coding == Coding::Nvfp4;
        let mut experts = <Cpu as Route<E>>::Experts::stored_as(is_nvfp4);
        for expert in stored {
            let (down, inputs) = expert.split_last().expect("an expert has matrices");
            let values: Vec<_> = inputs.iter().map(Stored::values).collect();
            let both = cpu::Matrix::new(inputs[0].k, &values);
            let bias: Vec<f32> = inputs.iter().flat_map(|part| &part.bias).copied().collect();
            experts.gate_up.push(both.biased(&bias));
            experts.down.push(self.matrix_of(down)?);
        }
        Ok(experts)
    }
}

struct Experts<E> {
    /// Matrices of each expert: gate if there is one, up and down; the shared expert is last.
    all: Vec<Vec<Stored>>,
    /// Factors of the experts' weights, or corrections of sigmoid scores.
    per_expert: Option<Vec<f32>>,
    shape: PhantomData<E>,
}

impl<E: shapes::Experts> Experts<E> {
    /// Random experts in the shape of a layer's: matrices of routed ones, then of the shared one.
    fn draw(random: &mut Random, layer: &[Shape]) -> Experts<E> {
        let (routed, shared) = layer.split_at(E::INPUTS + 1);
        let routed = std::iter::repeat_n(routed, E::COUNT);
        let all = routed.chain((!shared.is_empty()).then_some(shared));
        let mut of_expert = |shapes: &[Shape]| {
            let stored = shapes.iter().map(|shape| stored(random, *shape));
            stored.collect()
        };
        Experts {
            all: all.map(&mut of_expert).collect(),
            per_expert: match (E::SCALED, E::SIGMOID) {
                (true, _) => Some(random.gains(E::COUNT)),
                (_, true) => Some(random.bf16(E::COUNT, 0.2)),
                _ => None,
            },
            shape: PhantomData,
        }
    }
}

impl<E: shapes::Experts> RowOp for Experts<E> {
    fn about(&self) -> (&'static str, Vec<usize>) {
        ("moe", vec![E::LOGITS, E::WIDTH, E::WIDTH])
    }

    fn case(&self, rows: usize) -> String {
        format!("{rows} {}", self.all[0][0].bits.coding.name())
    }

    /// Results of gate and up are rounded before `down`, whose sums cancel in part: the error
    /// remains while the norm shrinks. An element near the middle between two E2M1 values may be
    /// rounded to either.
    fn limit(&self) -> f64 {
        match E::ROWS_NVFP4 {
            true => 2.0 * BF16_STORED,
            false => 2.0 * F16_STORED,
        }
    }
}

impl<E: shapes::Experts, B: ProbeExperts<E>> RowOpOn<B> for Experts<E> {
    fn load(&self, b: &mut B) -> Result<Loaded<'_, B>, DeviceError> {
        let experts = b.experts_of(&self.all)?;
        let per_expert = self.per_expert.as_ref();
        let per_expert = per_expert.map(|of| b.vector_of(of)).transpose()?;
        Ok(Box::new(move |b, x, _| {
            let mut routing = b.routing()?;
            let (x, residual) = x.split_at_mut(2);
            let logits = (&x[0], per_expert.as_ref());
            b.moe(&x[1], logits, &mut routing, &experts, &mut residual[0]);
            Ok(())
        }))
    }
}
