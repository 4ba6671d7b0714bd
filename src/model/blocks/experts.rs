//! Mixture of experts.

use super::{Block, Loader, Norms, Stream};
use crate::ops::{Batch, Dense, ExpertSource, Route};
use crate::shapes;
use crate::target::{Role, Site};
use crate::weights::{Checkpoint, WeightsError};
use step::executor::DeviceError;

/// The router and the experts of one layer.
pub struct Experts<B: Route<E>, E: shapes::Experts> {
    /// A row per expert, the shared one's last.
    router: B::Matrix,
    /// Numbers that the choice of experts adds to their scores.
    correction: Option<B::Vector>,
    pub(crate) experts: B::Experts,
    /// Up and down of the expert beside these.
    beside: Option<[B::Matrix; 2]>,
}

/// Storage of a step.
pub struct Scratch<B: Route<E>, E: shapes::Experts> {
    /// Logits of the router.
    router: B::Tensor,
    routing: B::Routing,
    /// What the expert beside the routed ones makes of rows, before `down`.
    beside: Option<B::Tensor>,
}

/// Experts of a site, the shared one last.
pub fn sources<E: shapes::Experts>(checkpoint: &Checkpoint, site: Site) -> Vec<ExpertSource<'_>> {
    let expert = |[gate, up, down]: [Role; 3], at| {
        let of = |role: &Role| checkpoint.expert(*role, site, at);
        ExpertSource {
            inputs: [gate, up][2 - E::INPUTS..].iter().map(of).collect(),
            down: of(&down),
        }
    };
    let routed = [Role::ExpertGate, Role::ExpertUp, Role::ExpertDown];
    let shared = [Role::SharedGate, Role::SharedUp, Role::SharedDown];
    let routed = (0..E::COUNT).map(|at| expert(routed, at));
    routed
        .chain((E::HAS_SHARED > 0).then(|| expert(shared, 0)))
        .collect()
}

impl<E: shapes::Experts, B: Dense + Route<E>> Block<B> for Experts<B, E> {
    type Scratch = Scratch<B, E>;

    const WIDTHS: &'static [usize] = match E::BESIDE {
        0 => &[E::LOGITS],
        _ => &[E::LOGITS, E::BESIDE],
    };

    fn load(loader: &mut Loader<'_, B>) -> Result<Self, WeightsError> {
        let (checkpoint, site) = (loader.checkpoint, loader.site);
        let mut router = vec![checkpoint.matrix(Role::Router, site)];
        if E::HAS_SHARED > 0 {
            router.push(checkpoint.matrix(Role::SharedRouter, site));
        }
        Ok(Experts {
            router: loader.ops.load_matrix(&router)?,
            correction: match E::SIGMOID {
                true => Some(loader.vector(Role::Correction)?),
                false => None,
            },
            experts: loader.ops.load_experts(&sources::<E>(checkpoint, site))?,
            beside: match E::BESIDE {
                0 => None,
                _ => Some([loader.matrix(Role::MlpUp)?, loader.matrix(Role::MlpDown)?]),
            },
        })
    }

    fn scratch(ops: &B, rows: usize) -> Result<Self::Scratch, DeviceError> {
        Ok(Scratch {
            router: ops.tensor(rows, E::LOGITS)?,
            routing: ops.routing()?,
            beside: match E::BESIDE {
                0 => None,
                width => Some(ops.tensor(rows, width)?),
            },
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
        let mut products = vec![(&self.router, &mut own.router)];
        let mut beside = self.beside.as_ref().zip(own.beside.as_mut());
        products.extend(beside.iter_mut().map(|([up, _], inner)| (up, &mut **inner)));
        ops.norm_linear(residual, &norms.before, x, true, &mut products);
        let (routing, logits) = (&mut own.routing, (&own.router, self.correction.as_ref()));
        ops.moe(x, logits, routing, &self.experts, residual);
        if let Some(([_, down], inner)) = beside {
            ops.relu2(inner);
            ops.linear_add(inner, down, residual);
        }
    }

    fn router(own: &Self::Scratch) -> Option<&B::Tensor> {
        Some(&own.router)
    }
}
