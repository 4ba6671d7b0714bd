//! Mixture of experts: a router's choice, and the experts that rows visit.

use super::Device;
use crate::shapes;
use crate::weights::{MatrixSource, WeightsError};
use step::executor::DeviceError;

/// Operations of experts of one shape.
pub trait Route<E: shapes::Experts>: Device {
    /// The experts of one layer, the shared one last: gate, where the shape has a gate, and up `[I,
    /// W]` and down `[W, I]` of each, `W` being the shape's `WIDTH`.
    type Experts;
    /// Chosen experts and their weights for each row.
    type Routing;

    /// Loads each of the `ALL` experts, the shared one last.
    ///
    /// # Errors
    /// `WeightsError` when the checkpoint cannot be read or holds a value that is not finite.
    fn load_experts(&mut self, parts: &[ExpertSource<'_>]) -> Result<Self::Experts, WeightsError>;

    /// Storage for the routing of the largest step.
    fn routing(&self) -> Result<Self::Routing, DeviceError>;

    /// Scores are a softmax over the `COUNT` routed experts, or with `SIGMOID` a sigmoid of each.
    /// The experts with the `PER_TOKEN` largest scores are chosen (lower index on a tie), where
    /// `SIGMOID` adds `per_expert` for the choice alone. Weights are the scores scaled to sum
    /// `WEIGHT_SCALE`, and with `SCALED` multiplied by `per_expert`; then the shared expert's, if
    /// there is one: the sigmoid of the last logit, or 1 without `SHARED_GATED`. `logits [R,
    /// LOGITS]`, `per_expert [COUNT]`.
    fn route(
        &mut self,
        logits: &Self::Tensor,
        per_expert: Option<&Self::Vector>,
        routing: &mut Self::Routing,
    );

    /// `to[r] += sum_e weight[r, e] * down_e(activation(gate_e x[r], up_e x[r]))`, by the shape's
    /// `ACTIVATION`, over the row's experts, added in the order of the routing, the shared one
    /// last; with `LATENT` the sum replaces `to[r]`. `x, to [R, WIDTH]`.
    ///
    /// Where the shape's `ROWS_NVFP4` says so, experts of NVFP4 multiply rows that are rounded to
    /// NVFP4, before `gate` and `up` and again before `down`: a row is multiplied by the power of
    /// two that brings its largest magnitude to `2^10 .. 2^11`; 16 columns share a scale, the E4M3
    /// nearest to a sixth of their largest magnitude; each number becomes the nearest E2M1 times
    /// the scale.
    fn experts(
        &mut self,
        x: &Self::Tensor,
        routing: &Self::Routing,
        experts: &Self::Experts,
        to: &mut Self::Tensor,
    );

    /// `route` by `(logits, per_expert)` into `routing`, then `experts`; the content left in
    /// `routing` is not specified.
    fn moe(
        &mut self,
        x: &Self::Tensor,
        (logits, per_expert): Logits<'_, Self>,
        routing: &mut Self::Routing,
        experts: &Self::Experts,
        to: &mut Self::Tensor,
    ) {
        self.route(logits, per_expert, routing);
        self.experts(x, routing, experts, to);
    }
}

/// A router's logits, and numbers per expert if the router takes any.
pub type Logits<'a, B> = (&'a <B as Device>::Tensor, Option<&'a <B as Device>::Vector>);

/// Matrices of one expert, still in the checkpoint.
#[derive(Clone)]
pub struct ExpertSource<'a> {
    /// Gate and up, or up alone where the shape has no gate.
    pub inputs: Vec<MatrixSource<'a>>,
    pub down: MatrixSource<'a>,
}
