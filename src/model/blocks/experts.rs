//! Mixture of experts.

use super::{Block, Loader, Pass, Stream};
use crate::ops::{Dense, ExpertSource, Route};
use crate::shapes;
use crate::target::{Role, Site};
use crate::weights::{Checkpoint, WeightsError};
use step::executor::DeviceError;

/// The router and the experts of one layer.
pub struct Experts<B: Route<E>, E: shapes::Experts> {
    /// Router matrix with a row per expert, the shared one's last.
    router: B::Matrix,
    /// Numbers per expert that `Route::route` takes beside logits, if the model has any.
    per_expert: Option<B::Vector>,
    /// Matrices of the routed experts, and of the shared one last.
    pub experts: B::Experts,
    /// Projections of hidden states to latents and back, if experts read latents.
    latent: Option<[B::Matrix; 2]>,
    /// Up and down projection of the ungated MLP that runs beside the routed experts, if any.
    beside: Option<[B::Matrix; 2]>,
}

/// Workspace of a step for experts.
pub struct Scratch<B: Route<E>, E: shapes::Experts> {
    /// Logits of the router.
    router: B::Tensor,
    routing: B::Routing,
    /// Latent inputs and outputs of the experts.
    latent: Option<[B::Tensor; 2]>,
    /// Activations of the MLP beside the routed experts.
    beside: Option<B::Tensor>,
}

/// Sources of the matrices of a site's experts, the shared one last.
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

    const WIDTHS: &'static [usize] = match (E::LATENT, E::BESIDE) {
        (true, 0) => &[E::LOGITS, E::WIDTH, E::WIDTH],
        (true, _) => &[E::LOGITS, E::WIDTH, E::WIDTH, E::BESIDE],
        (false, 0) => &[E::LOGITS],
        (false, _) => &[E::LOGITS, E::BESIDE],
    };

    fn load(loader: &mut Loader<'_, B>) -> Result<Self, WeightsError> {
        let (checkpoint, site) = (loader.checkpoint, loader.site);
        let mut router = vec![checkpoint.matrix(Role::Router, site)];
        if E::SHARED_GATED {
            router.push(checkpoint.matrix(Role::SharedRouter, site));
        }
        Ok(Experts {
            router: loader.ops.load_matrix(&router)?,
            per_expert: match (E::SCALED, E::SIGMOID) {
                (true, _) => Some(loader.vector(Role::ExpertScales)?),
                (_, true) => Some(loader.vector(Role::Correction)?),
                _ => None,
            },
            experts: loader.ops.load_experts(&sources::<E>(checkpoint, site))?,
            latent: match E::LATENT {
                false => None,
                true => Some([
                    loader.matrix(Role::ExpertsIn)?,
                    loader.matrix(Role::ExpertsOut)?,
                ]),
            },
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
            latent: match E::LATENT {
                false => None,
                true => Some([ops.tensor(rows, E::WIDTH)?, ops.tensor(rows, E::WIDTH)?]),
            },
            beside: match E::BESIDE {
                0 => None,
                width => Some(ops.tensor(rows, width)?),
            },
        })
    }

    fn run(&mut self, ops: &mut B, pass: Pass<'_, B>, own: &mut Self::Scratch) {
        let Stream { residual, x, .. } = pass.stream;
        self.choose(ops, residual, &pass.norms.before, x, own);
        ops.gather_add(residual, |ops, sum| {
            self.visit(ops, x, own, sum);
            if let Some(([_, down], inner)) = self.beside.as_ref().zip(own.beside.as_mut()) {
                ops.relu2(inner);
                ops.linear_add(inner, down, sum);
            }
        });
    }

    fn router(own: &Self::Scratch) -> Option<&B::Tensor> {
        Some(&own.router)
    }
}

impl<E: shapes::Experts, B: Dense + Route<E>> Experts<B, E> {
    /// Computes the router's logits of normed rows, latents, the inner rows of the MLP beside
    /// experts and, where experts read normed rows, the normed rows, in `x`.
    pub(super) fn choose(
        &self,
        ops: &mut B,
        residual: &B::Tensor,
        norm: &B::Vector,
        x: &mut B::Tensor,
        own: &mut Scratch<B, E>,
    ) {
        let mut products = vec![(&self.router, &mut own.router)];
        let latent = self.latent.as_ref().zip(own.latent.as_mut());
        products.extend(latent.map(|([into, _], [latents, _])| (into, latents)));
        let beside = self.beside.as_ref().zip(own.beside.as_mut());
        products.extend(beside.map(|([up, _], inner)| (up, inner)));
        ops.norm_linear(residual, norm, x, !E::LATENT, &mut products);
    }

    /// Adds the weighted outputs for `x` of the experts that the router's logits prefer.
    pub(super) fn visit(
        &self,
        ops: &mut B,
        x: &B::Tensor,
        own: &mut Scratch<B, E>,
        to: &mut B::Tensor,
    ) {
        let logits = (&own.router, self.per_expert.as_ref());
        let latent = self.latent.as_ref().zip(own.latent.as_mut());
        let Some(([_, back], [latents, made])) = latent else {
            return ops.moe(x, logits, &mut own.routing, &self.experts, to);
        };
        ops.moe(latents, logits, &mut own.routing, &self.experts, made);
        ops.linear_add(made, back, to);
    }
}
