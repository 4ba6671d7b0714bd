//! Mixture of experts: a router's choice, and the experts that rows visit.

use super::Device;
use crate::shapes;
use crate::weights::{MatrixSource, WeightsError};
use step::executor::DeviceError;

/// Experts of one shape.
pub trait Route<E: shapes::Experts>: Device {
    /// The experts of one layer, the shared one last: gate, up `[I, H]` and down `[H, I]` of each.
    type Experts;
    /// Chosen experts and their weights for each row.
    type Routing;

    /// Loads `(gate, up, down)` of each of the `ALL` experts, the shared one last.
    ///
    /// # Errors
    /// `WeightsError` when the checkpoint cannot be read or holds a value that is not finite.
    fn load_experts(
        &mut self,
        parts: &[[MatrixSource<'_>; 3]],
    ) -> Result<Self::Experts, WeightsError>;

    /// Storage for the routing of a step.
    fn routing(&self) -> Result<Self::Routing, DeviceError>;

    /// Softmax over the `COUNT` routed experts, the `PER_TOKEN` most likely (lower index on a tie),
    /// their weights scaled to sum 1 and then multiplied by their `scales`, if the shape is
    /// `SCALED`; then the shared expert if there is one, its weight the sigmoid of the last logit.
    /// `logits [R, LOGITS]`, `scales [COUNT]`.
    fn route(
        &mut self,
        logits: &Self::Tensor,
        scales: Option<&Self::Vector>,
        routing: &mut Self::Routing,
    );

    /// `residual[r] += sum_e weight[r, e] * down_e(activation(gate_e x[r], up_e x[r]))`, by the
    /// shape's `ACTIVATION`, over the row's experts, added in the order of the routing, the shared
    /// one last. `x, residual [R, H]`.
    ///
    /// Where the shape's `ROWS_NVFP4` says so, experts of NVFP4 multiply rows that are rounded
    /// to it, before `gate` and `up` and again before `down`: a row is multiplied by the power of
    /// two that brings its largest magnitude to `2^10 .. 2^11`; 16 columns share a scale, the E4M3
    /// nearest to a sixth of their largest magnitude; each becomes the nearest E2M1 times that.
    fn experts(
        &mut self,
        x: &Self::Tensor,
        routing: &Self::Routing,
        experts: &Self::Experts,
        residual: &mut Self::Tensor,
    );

    /// `route` by `(logits, scales)` into `routing`, then `experts`; what is left in `routing` is
    /// not specified.
    fn moe(
        &mut self,
        x: &Self::Tensor,
        (logits, scales): (&Self::Tensor, Option<&Self::Vector>),
        routing: &mut Self::Routing,
        experts: &Self::Experts,
        residual: &mut Self::Tensor,
    ) {
        self.route(logits, scales, routing);
        self.experts(x, routing, experts, residual);
    }
}
