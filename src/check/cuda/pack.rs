//! Panels packed by the device from the checkpoint's rows, against the host's, bit by bit.

use std::sync::Arc;

use ffi::DeviceBuf;

use super::{GUARD, POISON, compare_bytes, experts, loaded, routed};
use crate::parity::{Random, Report, stored};
use model::backend::cuda::jobs::{Destination, factors};
use model::backend::cuda::panels::Panels;
use model::backend::cuda::storage::{BLOCK_ROWS, Order, Storage};
use model::backend::cuda::{Cuda, load, refused};
use model::target::{BIASED, Coding, Format, Owner, Role, Site};
use model::weights::{self, Bits, Factors, Stored, WeightsError};
use step::executor::DeviceError;

/// Rows of the matrices that are stacked to one: whole panels, edges of a panel and of an FP8
/// block, and matrices that end within a panel.
const SHAPES: [(Order, &[usize]); 9] = [
    (Order::Stacked, &[256]),
    (Order::Stacked, &[1]),
    (Order::Stacked, &[15]),
    (Order::Stacked, &[17]),
    (Order::Stacked, &[129]),
    (Order::Stacked, &[256, 1]),
    (Order::Stacked, &[131, 7, 24]),
    (Order::Interleaved, &[8, 8]),
    (Order::Interleaved, &[264, 264]),
];
const COLUMNS: [usize; 3] = [128, 384, 2048];
/// Compares every storage format and order, then the matrices of a layer as loading packs them.
pub fn parity(report: &mut Report, random: &mut Random, cuda: &mut Cuda) {
    let panels = Format::ALL.map(|format| (Storage::of_format(format), format));
    let block_scaled = (Storage::BlockScaled, Format::Nvfp4CompressedTensors);
    for (storage, format) in panels.into_iter().chain([block_scaled]) {
        for (order, rows) in SHAPES {
            for k in COLUMNS {
                let drawn = rows.iter().map(|&n| stored(random, (n, k, format)));
                let parts: Vec<Stored> = drawn.collect();
                let case = format!("{rows:?} x {k} {storage:?}");
                compare(report, cuda, &case, &parts, order, storage);
            }
        }
    }
    let case = "every BF16";
    compare(
        report,
        cuda,
        case,
        &[every_bf16()],
        Order::Stacked,
        Storage::F16,
    );
    if let Err(why) = layer(report, cuda) {
        report.push(
            "pack",
            "a layer",
            "the GPU loads it",
            why.to_string(),
            false,
        );
    }
}

/// Every BF16 value that loading accepts.
fn every_bf16() -> Stored {
    const COLUMNS: usize = 128;
    let codes = (0..143 << 7).flat_map(|magnitude: u16| [magnitude, magnitude | 0x8000]);
    let codes: Vec<u8> = codes.flat_map(u16::to_le_bytes).collect();
    Stored {
        n: codes.len() / 2 / COLUMNS,
        k: COLUMNS,
        bits: Bits::new(Coding::Bf16, codes, Vec::new(), Factors::default()),
        bias: Vec::new(),
    }
}

fn compare(
    report: &mut Report,
    cuda: &Cuda,
    case: &str,
    parts: &[Stored],
    order: Order,
    storage: Storage,
) {
    let wanted = Panels::new(parts, order, storage);
    match on_device(cuda, parts, order, &wanted) {
        Ok(found) => compare_bytes(report, case, &found, &wanted.bytes),
        Err(why) => report.push("pack", case, "cuda runs", why.to_string(), false),
    }
}

/// The panels that the device packs from `parts`, in launches of few rows.
fn on_device(
    cuda: &Cuda,
    parts: &[Stored],
    order: Order,
    like: &Panels,
) -> Result<Vec<u8>, DeviceError> {
    let (stream, len) = (&cuda.queue.stream, like.bytes.len());
    let memory = DeviceBuf::<u8>::uninit(&cuda.device, len + 2 * GUARD);
    let mut matrix = memory.map_err(refused)?;
    matrix.fill_bytes(POISON, stream).map_err(refused)?;
    let weight = matrix.as_mut_ptr().wrapping_add(GUARD);
    let rows: Vec<usize> = parts.iter().map(|part| part.n).collect();
    for (index, part) in parts.iter().enumerate() {
        for start in (0..part.n).step_by(BLOCK_ROWS) {
            let (first, stride) = order.destination(&rows, index, start);
            let to = Destination {
                first,
                stride,
                n: like.n,
                k: like.k,
                storage: like.storage,
            };
            let count = BLOCK_ROWS.min(part.n - start);
            let bytes = as_read(part, start, count);
            let slot = cuda.filled(&bytes)?;
            // SAFETY: the slot holds the rows and lives until the stream has passed the launch; the
            // matrix has the panels' bytes between its guards.
            let queued = unsafe { load::pack(slot.as_ptr(), count, &to, weight, stream) };
            queued.map_err(refused)?;
            stream.synchronize().map_err(refused)?;
        }
    }
    let mut all = vec![0; len + 2 * GUARD];
    matrix.download(0, &mut all, stream).map_err(refused)?;
    let mut guards = all[..GUARD].iter().chain(&all[GUARD + len..]);
    match guards.all(|&byte| byte == POISON) {
        true => Ok(all[GUARD..][..len].to_vec()),
        false => Err(DeviceError::Failed(
            "memory around the matrix was written".into(),
        )),
    }
}

/// Bytes of rows from `start` on, as `Job::read` leaves them for the device.
fn as_read(part: &Stored, start: usize, count: usize) -> Vec<u8> {
    let of_rows = |bytes: &[u8]| {
        let row = bytes.len() / part.n;
        bytes[start * row..][..count * row].to_vec()
    };
    let [codes, scales] = [&part.bits.codes, &part.bits.scales].map(|bytes| of_rows(bytes));
    let all = factors(part);
    let (all, biases) = all.split_at(all.len() - if BIASED { part.n } else { 0 });
    let coding = part.bits.coding;
    let range = match coding.factors() {
        Owner::None | Owner::Matrix => 0..all.len(),
        Owner::Rows | Owner::Blocks => {
            let [first, end] = [start, start + count].map(|rows| coding.factors_of(rows, part.k));
            first..end
        }
    };
    let mut factors = all[range].to_vec();
    if BIASED {
        factors.extend(&biases[start..][..count]);
    }
    let factors: Vec<u8> = factors.into_iter().flat_map(f32::to_le_bytes).collect();
    [codes, scales, factors].concat()
}

/// Compares the matrices of drawn layers, up to the first one with experts, read and packed as for
/// any checkpoint.
fn layer(report: &mut Report, cuda: &mut Cuda) -> Result<(), WeightsError> {
    let layers = match routed() {
        Some(Site::Layer(layer)) => layer + 1,
        _ => 1,
    };
    let checkpoint = weights::open_seeded_layers(layers, Arc::default());
    let of_layers = checkpoint.layout().matrices();
    let of_layers = of_layers.filter(|matrix| matches!(matrix.site(), Site::Layer(_)));
    for matrix in of_layers.filter(|matrix| !is_of_experts(matrix.role())) {
        let source = checkpoint.matrix(matrix.role(), matrix.site());
        loaded(report, cuda, &[source], matrix.role())?;
    }
    experts::pack(report, cuda, &checkpoint)
}

/// Whether a matrix is packed together with others: a router's or an expert's.
fn is_of_experts(role: Role) -> bool {
    let is_router = matches!(role, Role::Router | Role::SharedRouter);
    is_router || role.is_expert() || role.is_shared_expert()
}
