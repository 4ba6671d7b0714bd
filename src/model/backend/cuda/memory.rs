//! What the GPU's backend takes beside weights, caches and activations, and what it may take.

use ffi::{Device, DeviceBuf, Element, PinnedBuf};

use super::steps::Steps;
use super::{ARRIVED, Cuda, NEEDED, OPERAND_BYTES, PARTS, RECORDS, attend, load, refused, route};
use crate::backend::budget::Budget;
use crate::backend::host_memory;
use crate::ops::{Footprint, HostMemory};
use crate::target;
use step::executor::DeviceError;

impl Footprint for Cuda {
    /// As much of the host's memory as the target states; a little of a GPU's own, because only its
    /// driver knows what it will want.
    const RESERVE_BYTES: u64 = match target::HOST_RESERVE {
        Some(bytes) => bytes,
        None => 256 << 20,
    };
    /// Figure of a server in `nvidia-smi`, less the other lines of its ledger.
    const CONTEXT_BYTES: u64 = 576 << 20;
    const GRAPH_LAYER_BYTES: u64 = 24 << 10;
    const LOCKED_BYTES: u64 = match target::HOST_RESERVE {
        Some(_) => (load::LOCKED_BYTES_MAX + Steps::BYTES[0] + Steps::BYTES[1]) as u64,
        None => 0,
    };

    fn buffer_bytes(bytes: u64) -> u64 {
        ffi::buffer_bytes(usize::try_from(bytes).expect("64 bits"))
    }

    /// Buffers of `Cuda`, of `Steps` and of a `Routing`.
    fn workspace() -> impl Iterator<Item = usize> {
        const NUMBER: usize = size_of::<f32>();
        let shared = [
            ARRIVED * NUMBER,
            RECORDS,
            OPERAND_BYTES,
            PARTS * NUMBER,
            PARTS * NUMBER,
            Steps::BYTES[0],
            Steps::BYTES[1],
        ];
        shared
            .into_iter()
            .chain(attend::Room::bytes())
            .chain(route::Room::BYTES)
    }

    fn host_memory() -> HostMemory {
        host_memory::memory()
    }
}

/// What may be taken of the memory that this binary's GPU uses, bytes, if the system tells it.
///
/// # Errors
/// Why the GPU cannot be used, and what to do about it.
pub fn room() -> Result<Option<u64>, DeviceError> {
    if target::HOST_RESERVE.is_some() {
        return Ok(host_memory::room());
    }
    let device = Device::open(&NEEDED).map_err(refused)?;
    room_of(&device)
}

/// The same of a GPU that was opened just now, which counts as not yet taken.
pub fn room_of(device: &Device) -> Result<Option<u64>, DeviceError> {
    if target::HOST_RESERVE.is_some() {
        // As it was before the GPU was opened.
        return Ok(host_memory::room());
    }
    let free = device.free_bytes().map_err(refused)?;
    Ok(Some(
        free.saturating_sub(Cuda::RESERVE_BYTES) + Cuda::CONTEXT_BYTES,
    ))
}

/// Takes memory of the GPU for `len` elements.
///
/// # Errors
/// `DeviceError::Memory` when there is too little, also of the host's where the GPU uses that.
pub fn buffer<T: Element>(device: &Device, len: usize) -> Result<DeviceBuf<T>, DeviceError> {
    Budget::default().check(Cuda::buffer_bytes((len * size_of::<T>()) as u64))?;
    DeviceBuf::uninit(device, len).map_err(refused)
}

/// Takes page-locked memory of the host for `len` elements.
pub fn locked<T: Element>(device: &Device, len: usize) -> Result<PinnedBuf<T>, DeviceError> {
    Budget::default().check((len * size_of::<T>()) as u64)?;
    PinnedBuf::zeroed(device, len).map_err(refused)
}
