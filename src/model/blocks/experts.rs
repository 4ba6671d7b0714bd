//! Mixture of experts.

use super::{Block, Loader, Norms, Stream};
use crate::ops::{Batch, Dense, Route};
use crate::shapes;
use crate::target::Role;
use crate::weights::WeightsError;
use step::executor::DeviceError;

/// The router and the experts of one layer.
pub struct Experts<B: Route<E>, E: shapes::Experts> {
    /// A row per expert, the shared one's last.
    router: B::Matrix,
    /// Factors of the weights of chosen experts.
    scales: Option<B::Vector>,
    pub(crate) experts: B::Experts,
}

/// Storage of a step.
pub struct Scratch<B: Route<E>, E: shapes::Experts> {
    /// Logits of the router.
    router: B::Tensor,
    routing: B::Routing,
}

impl<E: shapes::Experts, B: Dense + Route<E>> Block<B> for Experts<B, E> {
    type Scratch = Scratch<B, E>;

    const WIDTHS: &'static [usize] = &[E::LOGITS];

    fn load(loader: &mut Loader<'_, B>) -> Result<Self, WeightsError> {
        let (checkpoint, site) = (loader.checkpoint, loader.site);
        let routed = [Role::ExpertGate, Role::ExpertUp, Role::ExpertDown];
        let expert = |e| routed.map(|role| checkpoint.expert(role, site, e));
        let mut experts: Vec<_> = (0..E::COUNT).map(expert).collect();
        let mut router = vec![checkpoint.matrix(Role::Router, site)];
        if E::HAS_SHARED > 0 {
            let shared = [Role::SharedGate, Role::SharedUp, Role::SharedDown];
            experts.push(shared.map(|role| checkpoint.matrix(role, site)));
            router.push(checkpoint.matrix(Role::SharedRouter, site));
        }
        Ok(Experts {
            router: loader.ops.load_matrix(&router)?,
            scales: match E::SCALED {
                true => Some(loader.vector(Role::ExpertScales)?),
                false => None,
            },
            experts: loader.ops.load_experts(&experts)?,
        })
    }

    fn scratch(ops: &B, rows: usize) -> Result<Self::Scratch, DeviceError> {
        Ok(Scratch {
            router: ops.tensor(rows, E::LOGITS)?,
            routing: ops.routing()?,
        })
    }

    fn run(
        &mut self,
        ops: &mut B,
        norms: &Norms<B::Vector>,
        stream: &mut Stream<B>,
        own: &mut Self::Scratch,
        _: &Batch,
    ) {
        let Stream { residual, x, .. } = stream;
        self.choose(ops, residual, &norms.before, x, own);
        self.visit(ops, x, own, residual);
    }

    fn router(own: &Self::Scratch) -> Option<&B::Tensor> {
        Some(&own.router)
    }
}

impl<E: shapes::Experts, B: Dense + Route<E>> Experts<B, E> {
    /// Leaves logits of normed rows, and these in `x`.
    pub(super) fn choose(
        &self,
        ops: &mut B,
        residual: &B::Tensor,
        norm: &B::Vector,
        x: &mut B::Tensor,
        own: &mut Scratch<B, E>,
    ) {
        let mut router = [(&self.router, &mut own.router)];
        ops.norm_linear(residual, norm, x, true, &mut router);
    }

    /// Adds what the experts that `choose` prefers make of `x`.
    pub(super) fn visit(
        &self,
        ops: &mut B,
        x: &B::Tensor,
        own: &mut Scratch<B, E>,
        to: &mut B::Tensor,
    ) {
        let choice = (&own.router, self.scales.as_ref());
        ops.moe(x, choice, &mut own.routing, &self.experts, to);
    }
}
