//! A gated MLP that every row visits.

use super::{Block, Loader, Pass, Stream};
use crate::ops::Gate;
use crate::shapes;
use crate::target::Role;
use crate::weights::WeightsError;
use step::executor::DeviceError;

/// The gate, up and down matrix of one layer.
pub struct Mlp<B: Gate<M>, M: shapes::Mlp> {
    gate: B::Matrix,
    up: B::Matrix,
    down: B::Matrix,
    shape: std::marker::PhantomData<M>,
}

/// Workspace of a step for an MLP.
pub struct Scratch<T> {
    gate: T,
    up: T,
    act: T,
}

impl<M: shapes::Mlp, B: Gate<M>> Block<B> for Mlp<B, M> {
    type Scratch = Scratch<B::Tensor>;

    const WIDTHS: &'static [usize] = &[M::INTERMEDIATE; 3];

    fn load(loader: &mut Loader<'_, B>) -> Result<Self, WeightsError> {
        Ok(Mlp {
            gate: loader.matrix(Role::MlpGate)?,
            up: loader.matrix(Role::MlpUp)?,
            down: loader.matrix(Role::MlpDown)?,
            shape: std::marker::PhantomData,
        })
    }

    fn scratch(ops: &B, rows: usize) -> Result<Self::Scratch, DeviceError> {
        Ok(Scratch {
            gate: ops.tensor(rows, M::INTERMEDIATE)?,
            up: ops.tensor(rows, M::INTERMEDIATE)?,
            act: ops.tensor(rows, M::INTERMEDIATE)?,
        })
    }

    fn run(&mut self, ops: &mut B, pass: Pass<'_, B>, own: &mut Self::Scratch) {
        let norms = pass.norms;
        let Stream { residual, x, .. } = pass.stream;
        if norms.after.is_none() {
            let weights = [&self.gate, &self.up, &self.down];
            let Scratch { gate, up, act } = own;
            return Gate::<M>::mlp(ops, residual, &norms.before, weights, x, [gate, up, act]);
        }
        self.open(ops, residual, &norms.before, x, own);
        norms.add(ops, &own.act, &self.down, x, residual);
    }
}

impl<M: shapes::Mlp, B: Gate<M>> Mlp<B, M> {
    /// Leaves the activations of the normed rows in `own.act`; `x` is workspace for normed rows.
    fn open(
        &self,
        ops: &mut B,
        residual: &B::Tensor,
        norm: &B::Vector,
        x: &mut B::Tensor,
        own: &mut Scratch<B::Tensor>,
    ) {
        let Scratch { gate, up, act } = own;
        let mut products = [(&self.gate, &mut *gate), (&self.up, &mut *up)];
        ops.norm_linear(residual, norm, x, false, &mut products);
        Gate::<M>::swiglu(ops, gate, up, act);
    }

    /// Leaves in `out` the output for normed rows.
    #[cfg(has = "both")]
    pub(super) fn visit(
        &self,
        ops: &mut B,
        residual: &B::Tensor,
        norm: &B::Vector,
        own: &mut Scratch<B::Tensor>,
        out: &mut B::Tensor,
    ) {
        self.open(ops, residual, norm, out, own);
        ops.gather(out, |ops, sum| ops.linear(&own.act, &self.down, sum));
    }
}
