//! The GPU, its streams and its events.

use std::ffi::{c_char, c_int, c_void};
use std::panic::Location;
use std::ptr;
use std::rc::Rc;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};

use crate::account::Account;
use crate::check::{check, static_text};
use crate::error::{CudaError, Error};
use crate::ops::atlas_stream;
use crate::partition::Partition;

/// Lowest CUDA version of the driver: the linked runtime's, which has all functions called here.
const CUDA_NEEDED: (i32, i32) = (13, 0);
/// Longest GPU name that is read, with its closing zero.
const NAME_BYTES: usize = 256;

/// Facts of one GPU, as `doctor` prints them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    pub name: String,
    /// CUDA version that the driver supports (major, minor).
    pub driver_cuda: (i32, i32),
    /// Compute capability (major, minor).
    pub compute_capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Device memory, bytes.
    pub memory_bytes: u64,
    /// Whether processes share the GPU's contexts by MPS.
    pub shared: bool,
}

/// Requirements of the binary's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    /// Compute capability that kernels are compiled for (major, minor).
    pub compute_capability: (i32, i32),
    /// Least multiprocessors: blocks that wait for each other need one each.
    pub multiprocessors: u32,
    /// Whether kernels must keep to `multiprocessors` of a GPU with more.
    pub partition: bool,
}

impl DeviceInfo {
    /// Whether kernels of `needed` can run here.
    ///
    /// # Errors
    /// [`Error::OtherGpu`], [`Error::TooFew`] or [`Error::Shared`].
    pub fn check(&self, needed: &Needed) -> Result<(), Error> {
        if self.compute_capability != needed.compute_capability {
            return Err(Error::OtherGpu {
                name: self.name.clone(),
                found: self.compute_capability,
                needed: needed.compute_capability,
            });
        }
        if self.multiprocessors < needed.multiprocessors {
            return Err(Error::TooFew {
                name: self.name.clone(),
                found: self.multiprocessors,
                needed: needed.multiprocessors,
            });
        }
        if self.shared {
            return Err(Error::Shared {
                name: self.name.clone(),
            });
        }
        Ok(())
    }
}

/// Loads the driver and reads the facts of GPU 0, without taking any of its memory.
pub fn probe() -> Result<DeviceInfo, Error> {
    let driver_cuda = start_driver()?;
    let device = first_gpu()?;
    let mut name = [0 as c_char; NAME_BYTES];
    let mut memory_bytes = 0;
    // SAFETY: the driver writes at most NAME_BYTES, zero included, and one usize.
    let name = unsafe {
        let written = sys::cuDeviceGetName(name.as_mut_ptr(), NAME_BYTES as c_int, device);
        check("cuDeviceGetName", written)?;
        check(
            "cuDeviceTotalMem",
            sys::cuDeviceTotalMem_v2(&mut memory_bytes, device),
        )?;
        static_text(name.as_ptr())
    };
    let read = |attribute| attribute_of(device, attribute);
    Ok(DeviceInfo {
        name,
        driver_cuda,
        compute_capability: (
            read(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            read(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: read(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        memory_bytes: memory_bytes as u64,
        shared: read(Attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED)? != 0,
    })
}

/// Loads libcuda and returns the CUDA version it supports.
fn start_driver() -> Result<(i32, i32), Error> {
    // SAFETY: loads the driver's library, whose initialisers do not depend on this process.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoDriver);
    }
    let mut version: c_int = 0;
    // SAFETY: writes one int; every libcuda has both functions.
    unsafe {
        match sys::cuInit(0) {
            CUresult::CUDA_ERROR_NO_DEVICE => return Err(Error::NoGpu),
            result => check("cuInit", result)?,
        }
        check("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version))?;
    }
    let found = (version / 1000, version % 1000 / 10);
    // Checked first, as an older library lacks functions that are called below.
    if found < CUDA_NEEDED {
        return Err(Error::OldDriver {
            found,
            needed: CUDA_NEEDED,
        });
    }
    Ok(found)
}

fn first_gpu() -> Result<sys::CUdevice, Error> {
    let (mut count, mut device) = (0, 0);
    // SAFETY: each writes one int; the second is reached with at least one GPU.
    unsafe {
        check("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count))?;
        if count == 0 {
            return Err(Error::NoGpu);
        }
        check("cuDeviceGet", sys::cuDeviceGet(&mut device, 0))?;
    }
    Ok(device)
}

fn attribute_of(device: sys::CUdevice, attribute: Attribute) -> Result<i32, CudaError> {
    let mut value = 0;
    // SAFETY: writes one int.
    let result = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) };
    check("cuDeviceGetAttribute", result).map(|()| value)
}

/// The GPU's primary context, current on the thread that opened it. Every buffer, stream and event
/// has a reference to it, so it is released last; none of them can leave the thread.
#[derive(Debug)]
pub struct Context {
    device: sys::CUdevice,
    /// Partition in which streams run; none: the whole GPU.
    partition: Option<Partition>,
    account: Account,
}

impl Context {
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// Waits until no work is in flight in any stream, those of a partition included, so that
    /// memory can be freed. After a device error no work is in flight any more.
    pub(crate) fn settle(&self) {
        // SAFETY: the context is current on its thread, which neither it nor an owner ever leaves.
        let _ = unsafe { sys::cuCtxSynchronize() };
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // The partition belongs to the primary context, so it is released first.
        drop(self.partition.take());
        // SAFETY: pairs with the retain in `Device::open`; nothing made in the context is left.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// GPU 0, opened on this thread.
#[derive(Clone, Debug)]
pub struct Device {
    info: Rc<DeviceInfo>,
    context: Rc<Context>,
}

impl Device {
    /// Opens GPU 0 for kernels that require `needed`, in a partition of its multiprocessors if
    /// `needed` says so.
    ///
    /// # Errors
    /// Those of [`probe`] and [`DeviceInfo::check`], [`Error::NoPartition`],
    /// [`Error::OtherPartition`], or the call that failed.
    pub fn open(needed: &Needed) -> Result<Device, Error> {
        let info = probe()?;
        info.check(needed)?;
        let device = first_gpu()?;
        let mut primary = ptr::null_mut();
        // SAFETY: the context is retained before it is made current, and released by `Context`.
        let mut context = unsafe {
            let retained = sys::cuDevicePrimaryCtxRetain(&mut primary, device);
            check("cuDevicePrimaryCtxRetain", retained)?;
            let context = Context {
                device,
                partition: None,
                account: Account::default(),
            };
            check("cuCtxSetCurrent", sys::cuCtxSetCurrent(primary))?;
            // The runtime takes memory at its first call, which is made here.
            launched("cudaFree", cudaFree(ptr::null_mut()))?;
            context
        };
        if needed.partition {
            let (sms, of) = (needed.multiprocessors, info.multiprocessors);
            context.partition = Some(Partition::open(device, sms, of)?);
        }
        Ok(Device {
            info: Rc::new(info),
            context: Rc::new(context),
        })
    }

    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    pub(crate) fn context(&self) -> Rc<Context> {
        self.context.clone()
    }

    /// Free device memory, bytes.
    pub fn free_bytes(&self) -> Result<u64, CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two usize; the context is current.
        check("cuMemGetInfo", unsafe {
            sys::cuMemGetInfo_v2(&mut free, &mut total)
        })?;
        Ok(free as u64)
    }

    /// Bytes of all buffers. Seals the device: a later request for device or page-locked memory, or
    /// for recording a graph, panics as a programming error.
    pub fn seal(&self) -> u64 {
        self.context.account.seal()
    }
}

/// A queue of device work, which runs in order. Clones share the queue.
#[derive(Clone, Debug)]
pub struct Stream(Rc<RawStream>);

#[derive(Debug)]
struct RawStream {
    raw: sys::CUstream,
    _context: Rc<Context>,
}

impl Stream {
    /// A stream that does not wait for the default stream; in the partition, if there is one.
    pub fn open(device: &Device) -> Result<Stream, CudaError> {
        let context = device.context();
        let raw = match &context.partition {
            Some(partition) => partition.stream()?,
            None => Stream::anywhere()?,
        };
        Ok(Stream(Rc::new(RawStream {
            raw,
            _context: context,
        })))
    }

    /// A stream whose kernels run on any multiprocessor.
    fn anywhere() -> Result<sys::CUstream, CudaError> {
        let mut raw = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one handle; the context is current.
        check("cuStreamCreate", unsafe {
            sys::cuStreamCreate(&mut raw, flags)
        })?;
        Ok(raw)
    }

    /// Waits until all work in the stream is done. Errors of kernels are returned here.
    #[track_caller]
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is open.
        check("cuStreamSynchronize", unsafe {
            sys::cuStreamSynchronize(self.raw())
        })
    }

    /// Handle of the stream for launchers.
    pub fn launcher(&self) -> *mut atlas_stream {
        self.raw().cast()
    }

    pub(crate) fn raw(&self) -> sys::CUstream {
        self.0.raw
    }
}

impl Drop for RawStream {
    fn drop(&mut self) {
        // SAFETY: the stream is open; pending work still completes.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
    }
}

/// A point in a stream, with the time at which it is passed.
#[derive(Debug)]
pub struct Event {
    raw: sys::CUevent,
    _context: Rc<Context>,
}

impl Event {
    /// # Errors
    /// The call that failed.
    pub fn open(device: &Device) -> Result<Event, CudaError> {
        let mut raw = ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT as u32;
        // SAFETY: writes one handle; the context is current.
        check("cuEventCreate", unsafe {
            sys::cuEventCreate(&mut raw, flags)
        })?;
        Ok(Event {
            raw,
            _context: device.context(),
        })
    }

    /// Sets the event after the work that `stream` has so far.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both handles are open.
        check("cuEventRecord", unsafe {
            sys::cuEventRecord(self.raw, stream.raw())
        })
    }

    /// Makes later work in `stream` wait until the event is passed.
    pub fn hold(&self, stream: &Stream) -> Result<(), CudaError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT as u32;
        // SAFETY: both handles are open.
        check("cuStreamWaitEvent", unsafe {
            sys::cuStreamWaitEvent(stream.raw(), self.raw, flags)
        })
    }

    /// Waits until the event is passed; returns at once if it was never recorded.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the event is open.
        check("cuEventSynchronize", unsafe {
            sys::cuEventSynchronize(self.raw)
        })
    }

    /// Whether the event is passed, without waiting.
    pub fn is_passed(&self) -> Result<bool, CudaError> {
        // SAFETY: the event is open.
        match unsafe { sys::cuEventQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("cuEventQuery", result).map(|()| true),
        }
    }

    /// Milliseconds from `start` to this event, waiting for both.
    ///
    /// # Errors
    /// The call that failed, as it does for an event that was never recorded.
    pub fn since_ms(&self, start: &Event) -> Result<f32, CudaError> {
        let mut ms = 0.0;
        // SAFETY: both handles are open; writes one float.
        unsafe {
            check("cuEventSynchronize", sys::cuEventSynchronize(self.raw))?;
            let read = sys::cuEventElapsedTime_v2(&mut ms, start.raw, self.raw);
            check("cuEventElapsedTime", read)?;
        }
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is open.
        let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
    }
}

// Functions of the linked runtime: one that initialises it, and names of its error codes.
unsafe extern "C" {
    fn cudaFree(address: *mut c_void) -> c_int;
    fn cudaGetErrorName(code: c_int) -> *const c_char;
    fn cudaGetErrorString(code: c_int) -> *const c_char;
}

/// Turns the return code of a launcher of `ops.toml` into a `Result`.
#[track_caller]
pub fn launched(op: &'static str, code: c_int) -> Result<(), CudaError> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: both return static strings for every number.
    let (name, text) = unsafe {
        (
            static_text(cudaGetErrorName(code)),
            static_text(cudaGetErrorString(code)),
        )
    };
    Err(CudaError {
        call: op,
        code,
        text: format!("{name}, {text}"),
        at: Location::caller(),
    })
}
