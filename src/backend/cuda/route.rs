//! Experts on the GPU.

use ffi::{DeviceBuf, ops};

use super::jobs::Wanted;
use super::storage::{Order, Storage};
use super::{Cuda, TURNS, Tensor, count, memory};
use crate::engine::executor::DeviceError;
use crate::model::ROWS_MAX;
use crate::ops::Route;
use crate::shapes::Experts as _;
use crate::target::{HIDDEN, MOE_ROWS, Moe};
use crate::weights::{MatrixSource, WeightsError};

/// The experts of one layer, the shared one last, each a matrix of its own behind the one before.
pub struct Experts {
    storage: Storage,
    pub(super) gate_up: DeviceBuf<u8>,
    pub(super) down: DeviceBuf<u8>,
}

/// Chosen experts, the shared one last, and their weights: `[TURNS]` each.
pub struct Routing {
    rows: usize,
    chosen: DeviceBuf<u32>,
    weights: DeviceBuf<f32>,
}

impl Cuda {
    /// Room for the experts of a layer, each `gate_up` and `down` bytes.
    pub(super) fn experts_room(
        &self,
        storage: Storage,
        [gate_up, down]: [usize; 2],
    ) -> Result<Experts, DeviceError> {
        let room = |bytes| memory::buffer(&self.device, Moe::ALL * bytes);
        Ok(Experts {
            storage,
            gate_up: room(gate_up)?,
            down: room(down)?,
        })
    }
}

impl Route<Moe> for Cuda {
    type Experts = Experts;
    type Routing = Routing;

    fn load_experts(&mut self, parts: &[[MatrixSource<'_>; 3]]) -> Result<Experts, WeightsError> {
        assert_eq!(parts.len(), Moe::ALL);
        let storage = Storage::of_format(parts[0][0].format()).of_experts();
        let wanted = parts.iter().enumerate().flat_map(|(index, expert)| {
            let [gate, up, down] = *expert;
            let both = [
                (vec![gate, up], Order::Interleaved),
                (vec![down], Order::Stacked),
            ];
            let place = move |(buffer, (parts, order))| {
                let mut wanted = Wanted {
                    parts,
                    order,
                    storage,
                    to: (buffer, 0),
                };
                wanted.to.1 = index * wanted.bytes();
                wanted
            };
            both.into_iter().enumerate().map(place)
        });
        let wanted: Vec<_> = wanted.collect();
        let bytes = [wanted[0].bytes(), wanted[1].bytes()];
        let mut experts = self.experts_room(storage, bytes)?;
        self.load(&wanted, &mut [&mut experts.gate_up, &mut experts.down])?;
        self.matrix_bytes += (experts.gate_up.bytes() + experts.down.bytes()) as u64;
        Ok(experts)
    }

    fn routing(&self) -> Result<Routing, DeviceError> {
        Ok(Routing {
            rows: 0,
            chosen: memory::buffer(&self.device, TURNS)?,
            weights: memory::buffer(&self.device, TURNS)?,
        })
    }

    fn route(&mut self, logits: &Tensor, routing: &mut Routing) {
        assert_eq!(logits.width, Moe::LOGITS);
        assert!(logits.rows <= ROWS_MAX);
        routing.rows = logits.rows;
        let rows = count(logits.rows);
        let (chosen, weights) = (routing.chosen.as_mut_ptr(), routing.weights.as_mut_ptr());
        // SAFETY: shapes are checked; a routing has room for ROWS_MAX rows.
        self.queue.launch("route", |stream| unsafe {
            ops::atlas_route(logits.as_ptr(), chosen, weights, rows, stream)
        });
    }

    fn experts(&mut self, x: &Tensor, routing: &Routing, experts: &Experts, residual: &mut Tensor) {
        assert_eq!((x.rows, x.width), (routing.rows, HIDDEN));
        assert_eq!((residual.rows, residual.width), (x.rows, HIDDEN));
        // SAFETY: shapes are checked; the scratch has room for the places of ROWS_MAX rows; both
        // arrays hold all experts' matrices in panels of their storage.
        self.queue.launch("experts", |stream| unsafe {
            ops::atlas_experts(
                x.as_ptr(),
                routing.chosen.as_ptr(),
                routing.weights.as_ptr(),
                experts.gate_up.as_ptr(),
                experts.down.as_ptr(),
                self.plan.as_mut_ptr(),
                self.operands.as_mut_ptr(),
                self.act.as_mut_ptr(),
                self.turns.as_mut_ptr(),
                residual.as_mut_ptr(),
                count(x.rows),
                experts.storage as u32,
                stream,
            )
        });
    }

    fn moe(
        &mut self,
        x: &Tensor,
        logits: &Tensor,
        routing: &mut Routing,
        experts: &Experts,
        residual: &mut Tensor,
    ) {
        let rows = x.rows;
        if rows > MOE_ROWS {
            self.route(logits, routing);
            return self.experts(x, routing, experts, residual);
        }
        assert_eq!((logits.rows, logits.width), (rows, Moe::LOGITS));
        assert_eq!(x.width, HIDDEN);
        assert_eq!((residual.rows, residual.width), (rows, HIDDEN));
        // SAFETY: shapes are checked; the scratch has room for the turns of the rows; both arrays
        // hold all experts' matrices in panels of their storage.
        self.queue.launch("moe", |stream| unsafe {
            ops::atlas_moe(
                x.as_ptr(),
                logits.as_ptr(),
                experts.gate_up.as_ptr(),
                experts.down.as_ptr(),
                routing.chosen.as_mut_ptr(),
                routing.weights.as_mut_ptr(),
                self.plan.as_mut_ptr(),
                self.operands.as_mut_ptr(),
                self.act.as_mut_ptr(),
                self.relay.as_mut_ptr(),
                self.turns.as_mut_ptr(),
                residual.as_mut_ptr(),
                count(rows),
                experts.storage as u32,
                stream,
            )
        });
    }
}
