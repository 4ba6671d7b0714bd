//! Experts on the GPU.

use std::ptr;

use ffi::{Device, DeviceBuf, Stream, ops};

use super::jobs::Wanted;
use super::storage::{Order, Storage};
use super::{Cuda, OPERAND_ROWS, Tensor, Vector, count, least, memory, most, refused};
use crate::ops::{ExpertSource, Logits, ROWS_MAX, Route};
use crate::shapes::Experts as _;
use crate::target::{self, MOE_ROWS, Moe};
use crate::weights::WeightsError;
use step::executor::DeviceError;

/// Elements of a row's widest tensor: the results at all of the row's experts together.
pub const WIDEST_ROW: usize = Moe::ASSIGNED * most(Moe::WIDTH, Moe::INTERMEDIATE);
/// Length of the rows of experts' down matrices.
pub const LONGEST: usize = Moe::INTERMEDIATE;
/// Number of assignments of a step's rows to experts, the shared one included.
const ASSIGNMENTS: usize = ROWS_MAX * Moe::ASSIGNED;
/// Number of rows sorted by expert, one an assignment; each expert's rows fill whole groups.
const SORTED_ROWS: usize = (ASSIGNMENTS + (OPERAND_ROWS - 1) * least(ASSIGNMENTS, Moe::ALL))
    .next_multiple_of(OPERAND_ROWS);
/// Elements that blocks of one launch pass to each other: activations of few rows at their experts,
/// then the rows' choices of experts.
const RELAY: usize = (MOE_ROWS + 1) * Moe::ASSIGNED * Moe::INTERMEDIATE;
/// Byte that fills `relay` between launches: as F32 a NaN that no arithmetic gives, and not the id
/// of an expert.
const NOT_YET: u8 = 0xff;
/// Bytes of the plan of `experts`: tiles of 16 bytes, two numbers for each sorted row, and the
/// counts of tiles, sorted rows and tiles taken.
const PLAN_BYTES: usize = (SORTED_ROWS * (16 + 2 * 4) + 12).next_multiple_of(16);
/// Bytes of `experts`' NVFP4 operands, rows and activations, for block-scaled instructions.
const BLOCK_SCALED_BYTES: usize = if Moe::ROWS_NVFP4 {
    nvfp4_bytes(ROWS_MAX, Moe::WIDTH) + nvfp4_bytes(SORTED_ROWS, Moe::INTERMEDIATE)
} else {
    0
};
/// Bytes of the operands of products with experts' matrices.
pub const OPERAND_BYTES: usize = most(
    BLOCK_SCALED_BYTES,
    if target::OPERANDS {
        2 * SORTED_ROWS * Moe::WIDTH
    } else {
        0
    },
);

/// Bytes that a thread of a kernel reads at once.
const VECTOR_BYTES: usize = 16;

/// Bytes of rows of E2M1 with an E4M3 scale for each 16 columns and an F32 for each row; a multiple
/// of `VECTOR_BYTES`.
const fn nvfp4_bytes(rows: usize, width: usize) -> usize {
    (rows * (width / 2 + width / 16 + size_of::<f32>())).next_multiple_of(VECTOR_BYTES)
}

/// Memory that experts need while they run.
pub struct Workspace {
    plan: DeviceBuf<u8>,
    /// Activations, `[SORTED_ROWS][INTERMEDIATE]` F32, or F16 operands in half of the memory.
    act: DeviceBuf<f32>,
    /// Results of experts, `[SORTED_ROWS][WIDTH / 2]` pairs of F16.
    results: DeviceBuf<u32>,
    /// Values passed between a launch's blocks, `[MOE_ROWS + 1][ASSIGNED][INTERMEDIATE]` (`RELAY`).
    relay: DeviceBuf<f32>,
}

impl Workspace {
    /// Bytes of each buffer of the workspace, and of a `Routing`.
    pub const BYTES: [usize; 6] = {
        const NUMBER: usize = size_of::<f32>();
        [
            PLAN_BYTES,
            SORTED_ROWS * Moe::INTERMEDIATE * NUMBER,
            SORTED_ROWS * Moe::WIDTH / 2 * NUMBER,
            RELAY * NUMBER,
            ASSIGNMENTS * NUMBER,
            ASSIGNMENTS * NUMBER,
        ]
    };

    pub fn new(device: &Device, stream: &Stream) -> Result<Workspace, DeviceError> {
        let mut relay = memory::buffer(device, RELAY)?;
        relay.fill_bytes(NOT_YET, stream).map_err(refused)?;
        // Sums read only written elements, but `initcheck` does not see writes by bulk copies.
        let mut results = memory::buffer(device, SORTED_ROWS * Moe::WIDTH / 2)?;
        results.fill_bytes(0, stream).map_err(refused)?;
        Ok(Workspace {
            plan: memory::buffer(device, PLAN_BYTES)?,
            act: memory::buffer(device, SORTED_ROWS * Moe::INTERMEDIATE)?,
            results,
            relay,
        })
    }
}

/// The experts of one layer, the shared one last, stored one after the other.
pub struct Experts {
    storage: Storage,
    /// Gate and up matrices of all experts.
    pub gate_up: DeviceBuf<u8>,
    /// Down matrices of all experts.
    pub down: DeviceBuf<u8>,
}

/// Chosen experts of each row, the shared one last, and their weights: `[ASSIGNMENTS]` each.
pub struct Routing {
    rows: usize,
    chosen: DeviceBuf<u32>,
    weights: DeviceBuf<f32>,
}

impl Cuda {
    /// Allocates buffers for the experts of a layer, of `gate_up` and `down` bytes each.
    pub fn experts_memory(
        &self,
        storage: Storage,
        [gate_up, down]: [usize; 2],
    ) -> Result<Experts, DeviceError> {
        let experts_of = |bytes| memory::buffer(&self.device, Moe::ALL * bytes);
        Ok(Experts {
            storage,
            gate_up: experts_of(gate_up)?,
            down: experts_of(down)?,
        })
    }
}

/// Pointer to corrections or scales by expert; null if the shape has neither.
fn numbers_of(per_expert: Option<&Vector>) -> *const f32 {
    let has_some = Moe::SCALED || Moe::SIGMOID;
    let elements = per_expert.map(|of| of.0.len());
    assert_eq!(elements, has_some.then_some(Moe::COUNT));
    per_expert.map_or(ptr::null(), |of| of.0.as_ptr())
}

/// Pointer to the tensor that sums of `rows` rows are added to: rows of a step, or latents.
fn sums_of(to: &mut Tensor, rows: usize) -> *mut f32 {
    assert!(Moe::LATENT || (to.rows, to.width) == (rows, Moe::WIDTH));
    to.shape(rows, Moe::WIDTH)
}

impl Route<Moe> for Cuda {
    type Experts = Experts;
    type Routing = Routing;

    fn load_experts(&mut self, parts: &[ExpertSource<'_>]) -> Result<Experts, WeightsError> {
        assert_eq!(parts.len(), Moe::ALL);
        let storage = Storage::of_format(parts[0].down.format()).of_experts();
        let wanted = parts.iter().enumerate().flat_map(|(index, expert)| {
            let both = [
                (expert.inputs.clone(), Order::of_inputs(Moe::INPUTS)),
                (vec![expert.down], Order::Stacked),
            ];
            let source = move |(buffer, (parts, order))| {
                let mut wanted = Wanted {
                    parts,
                    order,
                    storage,
                    to: (buffer, 0),
                };
                wanted.to.1 = index * wanted.bytes();
                wanted
            };
            both.into_iter().enumerate().map(source)
        });
        let wanted: Vec<_> = wanted.collect();
        let bytes = [wanted[0].bytes(), wanted[1].bytes()];
        let mut experts = self.experts_memory(storage, bytes)?;
        self.load(&wanted, &mut [&mut experts.gate_up, &mut experts.down])?;
        self.matrix_bytes += (experts.gate_up.bytes() + experts.down.bytes()) as u64;
        Ok(experts)
    }

    fn routing(&self) -> Result<Routing, DeviceError> {
        Ok(Routing {
            rows: 0,
            chosen: memory::buffer(&self.device, ASSIGNMENTS)?,
            weights: memory::buffer(&self.device, ASSIGNMENTS)?,
        })
    }

    fn route(&mut self, logits: &Tensor, per_expert: Option<&Vector>, routing: &mut Routing) {
        assert_eq!(logits.width, Moe::LOGITS);
        assert!(logits.rows <= ROWS_MAX);
        routing.rows = logits.rows;
        let (rows, per_expert) = (count(logits.rows), numbers_of(per_expert));
        let (chosen, weights) = (routing.chosen.as_mut_ptr(), routing.weights.as_mut_ptr());
        // SAFETY: shapes are checked; a routing suffices for ROWS_MAX rows.
        self.queue.launch("route", |stream| unsafe {
            ops::atlas_route(logits.as_ptr(), per_expert, chosen, weights, rows, stream)
        });
    }

    fn experts(&mut self, x: &Tensor, routing: &Routing, experts: &Experts, to: &mut Tensor) {
        assert_eq!((x.rows, x.width), (routing.rows, Moe::WIDTH));
        let to = sums_of(to, x.rows);
        let (rows, operands) = x.as_factor(&mut self.operands);
        // SAFETY: shapes are checked; the workspace suffices for ROWS_MAX rows; both arrays have
        // all experts' matrices in panels of their storage; kernels that take rounded rows write no
        // operands.
        self.queue.launch("experts", |stream| unsafe {
            ops::atlas_experts(
                rows,
                routing.chosen.as_ptr(),
                routing.weights.as_ptr(),
                experts.gate_up.as_ptr(),
                experts.down.as_ptr(),
                self.experts.plan.as_mut_ptr(),
                operands,
                self.experts.act.as_mut_ptr(),
                self.experts.results.as_mut_ptr(),
                to,
                count(x.rows),
                experts.storage.number(),
                stream,
            )
        });
    }

    fn moe(
        &mut self,
        x: &Tensor,
        (logits, per_expert): Logits<'_, Cuda>,
        routing: &mut Routing,
        experts: &Experts,
        to: &mut Tensor,
    ) {
        let rows = x.rows;
        if rows > MOE_ROWS {
            self.route(logits, per_expert, routing);
            return self.experts(x, routing, experts, to);
        }
        assert_eq!((logits.rows, logits.width), (rows, Moe::LOGITS));
        assert_eq!(x.width, Moe::WIDTH);
        let to = sums_of(to, rows);
        // SAFETY: shapes are checked; the workspace suffices for the rows' assignments; both arrays
        // have all experts' matrices in panels of their storage.
        self.queue.launch("moe", |stream| unsafe {
            ops::atlas_moe(
                x.as_ptr(),
                logits.as_ptr(),
                numbers_of(per_expert),
                experts.gate_up.as_ptr(),
                experts.down.as_ptr(),
                routing.chosen.as_mut_ptr(),
                routing.weights.as_mut_ptr(),
                self.experts.plan.as_mut_ptr(),
                self.operands.as_mut_ptr(),
                self.experts.act.as_mut_ptr(),
                self.experts.relay.as_mut_ptr(),
                self.experts.results.as_mut_ptr(),
                to,
                count(rows),
                experts.storage.number(),
                stream,
            )
        });
    }
}
