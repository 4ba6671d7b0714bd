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
        let mut router = [(&self.router, &mut own.router)];
        ops.norm_linear(residual, &norms.before, x, true, &mut router);
        let routing = &mut own.routing;
        ops.moe(x, &own.router, routing, &self.experts, residual);
    }

    fn router(own: &Self::Scratch) -> Option<&B::Tensor> {
        Some(&own.router)
    }
}
