//! A partition of the GPU's multiprocessors, for binaries whose grids are made for fewer of them
//! than the GPU has.

use std::mem;
use std::ptr;

use cudarc::driver::sys::{self, CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM as SM};

use crate::check::check;
use crate::error::{CudaError, Error};

/// A green context: kernels in its streams run on its multiprocessors alone, launched or replayed
/// from a graph that was recorded in such a stream. It shares memory, kernels and events with the
/// primary context, which stays the current one: the runtime launches by stream.
///
/// Every driver that is not refused as too old has the functions called here.
#[derive(Debug)]
pub(crate) struct Partition {
    raw: sys::CUgreenCtx,
}

impl Partition {
    /// Makes a partition of exactly `sms` of the `of` multiprocessors of `device`, whose primary
    /// context must be retained.
    ///
    /// # Errors
    /// [`Error::NoPartition`], or [`Error::OtherPartition`] where the driver cannot give that many.
    pub(crate) fn open(device: sys::CUdevice, sms: u32, of: u32) -> Result<Partition, Error> {
        let refused = |why| Error::NoPartition { sms, of, why };
        let exactly = |found| match found == sms {
            true => Ok(()),
            false => Err(Error::OtherPartition { sms, of, found }),
        };
        let part = split(device, sms).map_err(refused)?;
        exactly(count(&part))?;
        let partition = Partition::of(device, part).map_err(refused)?;
        exactly(partition.sms().map_err(refused)?)?;
        Ok(partition)
    }

    fn of(device: sys::CUdevice, mut part: sys::CUdevResource) -> Result<Partition, CudaError> {
        let (mut described, mut raw) = (ptr::null_mut(), ptr::null_mut());
        let flags = sys::CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM as u32;
        // SAFETY: reads one resource; each call writes one handle, the second from the first.
        unsafe {
            check(
                "cuDevResourceGenerateDesc",
                sys::cuDevResourceGenerateDesc(&mut described, &mut part, 1),
            )?;
            check(
                "cuGreenCtxCreate",
                sys::cuGreenCtxCreate(&mut raw, described, device, flags),
            )?;
        }
        Ok(Partition { raw })
    }

    /// Multiprocessors of the partition.
    fn sms(&self) -> Result<u32, CudaError> {
        let mut has = nothing();
        // SAFETY: the context is open; writes one resource.
        check("cuGreenCtxGetDevResource", unsafe {
            sys::cuGreenCtxGetDevResource(self.raw, &mut has, SM)
        })?;
        Ok(count(&has))
    }

    /// A stream whose kernels run in the partition; it does not wait for any default stream.
    pub(crate) fn stream(&self) -> Result<sys::CUstream, CudaError> {
        let mut raw = ptr::null_mut();
        // The driver refuses any other flag.
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is open; writes one handle.
        check("cuGreenCtxStreamCreate", unsafe {
            sys::cuGreenCtxStreamCreate(&mut raw, self.raw, flags, 0)
        })?;
        Ok(raw)
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        // SAFETY: the context is open; streams have references to it, so none is left.
        let _ = unsafe { sys::cuGreenCtxDestroy(self.raw) };
    }
}

/// A resource of at least `sms` multiprocessors of the device: the driver separates whole clusters.
fn split(device: sys::CUdevice, sms: u32) -> Result<sys::CUdevResource, CudaError> {
    let (mut all, mut part, mut rest, mut parts) = (nothing(), nothing(), nothing(), 1);
    // SAFETY: the first call writes one resource; the second reads that resource, and writes at
    // most `parts` parts, their number into `parts`, and the remaining resource.
    unsafe {
        check(
            "cuDeviceGetDevResource",
            sys::cuDeviceGetDevResource(device, &mut all, SM),
        )?;
        check(
            "cuDevSmResourceSplitByCount",
            sys::cuDevSmResourceSplitByCount(&mut part, &mut parts, &all, &mut rest, 0, sms),
        )?;
    }
    // Without a part, the driver leaves `part` as it was: `nothing`.
    Ok(part)
}

/// A resource as it is before the driver writes it: all zeros.
fn nothing() -> sys::CUdevResource {
    // SAFETY: all fields are numbers, or an enum with a variant of value 0.
    unsafe { mem::zeroed() }
}

/// Multiprocessors of a resource: 0 for `nothing`.
fn count(resource: &sys::CUdevResource) -> u32 {
    // SAFETY: all fields of the union are plain numbers.
    unsafe { resource.__bindgen_anon_1.sm.smCount }
}
