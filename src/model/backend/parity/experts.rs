//! Cases of experts: `moe`, which is `route` and `experts`.

use std::marker::PhantomData;

use super::dense::{products, projections};
use super::matrices::{Shape, blocks, name, once, stored};
use super::rows::{Loaded, RowCase, RowOp, RowOpOn};
use super::{BF16_STORED, F16_STORED, Group, Probe, Random};
use crate::backend::cpu::{self, Cpu};
use crate::ops::Route;
use crate::shapes;
use crate::target::{HIDDEN, Moe, Role};
use crate::weights::{Bits, Stored};
use step::executor::DeviceError;

pub(super) const GROUP: Group = Group {
    by_row: &["moe", "norm_linear", "linear", "linear_add"],
    by_sequence: &[],
    formulas: |_, _| {},
    rows,
    sequences: |_| Vec::new(),
};

const ROUTED: [Role; 3] = [Role::ExpertGate, Role::ExpertUp, Role::ExpertDown];
const SHARED: [Role; 3] = [Role::SharedGate, Role::SharedUp, Role::SharedDown];

/// Routers, a row for each expert.
fn routers() -> Vec<Shape> {
    let stacked = |parts: Vec<Shape>| {
        let rows = parts.iter().map(|part| part.0).sum();
        (rows, parts[0].1, parts[0].2)
    };
    let parts = blocks(&[Role::Router, Role::SharedRouter]);
    once(parts.into_iter().map(stacked))
}

/// Experts of each format, and products with routers.
fn rows(random: &mut Random) -> Vec<Box<dyn RowCase>> {
    let mut cases: Vec<Box<dyn RowCase>> = Vec::new();
    for layer in once(blocks(&[ROUTED, SHARED].concat())) {
        cases.push(Box::new(Experts::<Moe>::draw(random, &layer)));
    }
    for router in routers() {
        cases.push(projections(random, &[router]));
        cases.extend(products(random, [router]));
    }
    cases
}

/// What experts of one shape need beside what any case does.
pub trait ProbeExperts<E: shapes::Experts>: Probe + Route<E> {
    /// Gate, up and down of each expert, the shared one last.
    fn experts_of(&mut self, stored: &[[Stored; 3]]) -> Result<Self::Experts, DeviceError>;
}

impl<E: shapes::Experts> ProbeExperts<E> for Cpu {
    fn experts_of(
        &mut self,
        stored: &[[Stored; 3]],
    ) -> Result<<Cpu as Route<E>>::Experts, DeviceError> {
        let is_nvfp4 = matches!(stored[0][0].bits, Bits::Nvfp4 { .. });
        let mut experts = <Cpu as Route<E>>::Experts::stored_as(is_nvfp4);
        for [gate, up, down] in stored {
            let both = cpu::Matrix::new(gate.k, &[gate.values(), up.values()]);
            let bias = [&gate.bias[..], &up.bias].concat();
            experts.gate_up.push(both.biased(&bias));
            experts.down.push(self.matrix_of(down)?);
        }
        Ok(experts)
    }
}

struct Experts<E> {
    /// Gate, up and down of each expert, the shared one last.
    all: Vec<[Stored; 3]>,
    shape: PhantomData<E>,
}

impl<E: shapes::Experts> Experts<E> {
    /// Experts like those of a layer: three matrices of routed ones, then those of the shared one.
    fn draw(random: &mut Random, layer: &[Shape]) -> Experts<E> {
        let (routed, shared) = layer.as_chunks().0.split_at(1);
        let routed = std::iter::repeat_n(&routed[0], E::COUNT);
        let of_expert = |shapes: &[Shape; 3]| shapes.map(|shape| stored(random, shape));
        Experts {
            all: routed.chain(shared).map(of_expert).collect(),
            shape: PhantomData,
        }
    }
}

impl<E: shapes::Experts> RowOp for Experts<E> {
    fn op(&self) -> &'static str {
        "moe"
    }

    fn case(&self, rows: usize) -> String {
        format!("{rows} {}", name(&self.all[0][0].bits))
    }

    fn widths(&self) -> Vec<usize> {
        vec![E::LOGITS, HIDDEN, HIDDEN]
    }

    /// What gate and up give is rounded on its way to `down`, whose sums cancel in part: the error
    /// stays, the norm shrinks. An element of E2M1 beside the middle of two may be rounded to the
    /// other one.
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
        Ok(Box::new(move |b, x, _| {
            let mut routing = b.routing()?;
            let (x, residual) = x.split_at_mut(2);
            b.moe(&x[1], &x[0], &mut routing, &experts, &mut residual[0]);
            Ok(())
        }))
    }
}
