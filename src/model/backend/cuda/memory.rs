//! Memory of the GPU, and page-locked memory of the host: how much may be taken, and allocation.

use ffi::{Device, DeviceBuf, Element, PinnedBuf};

use super::{Cuda, NEEDED, refused};
use crate::backend::budget::Budget;
use crate::backend::host_memory;
use crate::ops::Footprint;
use crate::target;
use step::executor::DeviceError;

/// Bytes that may be taken of the memory that this binary's GPU uses, if the system says.
///
/// # Errors
/// Why the GPU cannot be used, and the fix.
pub fn available() -> Result<Option<u64>, DeviceError> {
    if target::HOST_RESERVE.is_some() {
        return Ok(host_memory::available());
    }
    let device = Device::open(&NEEDED).map_err(refused)?;
    available_of(&device)
}

/// [`available`] for a GPU that has just been opened; memory that it took itself counts as free.
pub fn available_of(device: &Device) -> Result<Option<u64>, DeviceError> {
    if target::HOST_RESERVE.is_some() {
        // The host's memory is as it was before the GPU was opened.
        return Ok(host_memory::available());
    }
    let free = device.free_bytes().map_err(refused)?;
    Ok(Some(
        free.saturating_sub(Cuda::RESERVE_BYTES) + Cuda::CONTEXT_BYTES,
    ))
}

/// Allocates memory of the GPU for `len` elements.
///
/// # Errors
/// `DeviceError::Memory` if the GPU, or the host if the GPU uses its memory, has too little.
pub fn buffer<T: Element>(device: &Device, len: usize) -> Result<DeviceBuf<T>, DeviceError> {
    Budget::default().check(Cuda::buffer_bytes((len * size_of::<T>()) as u64))?;
    DeviceBuf::uninit(device, len).map_err(refused)
}

/// Allocates page-locked memory of the host for `len` elements.
pub fn locked<T: Element>(device: &Device, len: usize) -> Result<PinnedBuf<T>, DeviceError> {
    Budget::default().check((len * size_of::<T>()) as u64)?;
    PinnedBuf::zeroed(device, len).map_err(refused)
}
