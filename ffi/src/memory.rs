//! Owned device memory and page-locked host memory.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::rc::Rc;

use cudarc::driver::sys;

use crate::check::check;
use crate::device::{Context, Device, Stream};
use crate::error::CudaError;

/// A type of which all bits are valid values.
///
/// # Safety
/// Every bit pattern is valid, and the type has no padding and no destructor.
pub unsafe trait Element: Copy + 'static {}

// SAFETY: plain numbers.
unsafe impl Element for u8 {}
// SAFETY: plain numbers.
unsafe impl Element for u16 {}
// SAFETY: plain numbers.
unsafe impl Element for u32 {}
// SAFETY: plain numbers.
unsafe impl Element for u64 {}
// SAFETY: plain numbers.
unsafe impl Element for i32 {}
// SAFETY: plain numbers.
unsafe impl Element for f32 {}

/// `len` elements of device memory, freed when dropped.
pub struct DeviceBuf<T: Element> {
    raw: sys::CUdeviceptr,
    len: usize,
    context: Rc<Context>,
    _elements: PhantomData<T>,
}

impl<T: Element> DeviceBuf<T> {
    /// Takes device memory for `len` elements, at least one, without initialising it.
    ///
    /// # Errors
    /// The call that failed, for example because the device has too little free memory.
    ///
    /// # Panics
    /// If `len` is 0, its bytes overflow, or the device is sealed.
    pub fn uninit(device: &Device, len: usize) -> Result<DeviceBuf<T>, CudaError> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes > 0);
        let bytes = bytes.expect("a buffer has at least one element and fits the address space");
        let context = device.context();
        context.account().check_open();
        let mut raw = 0;
        // SAFETY: writes one address; the context is current.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut raw, bytes) })?;
        context.account().take(bytes);
        Ok(DeviceBuf {
            raw,
            len,
            context,
            _elements: PhantomData,
        })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: a buffer has at least one element.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Device address of the first element, for launchers that read.
    pub fn as_ptr(&self) -> *const T {
        self.raw as *const T
    }

    /// Device address of the first element, for launchers that write.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.raw as *mut T
    }

    /// Sets every byte to `byte`, in stream order.
    pub fn fill_bytes(&mut self, byte: u8, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: the range is this buffer.
        let set = unsafe { sys::cuMemsetD8Async(self.raw, byte, self.bytes(), stream.raw()) };
        check("cuMemsetD8Async", set)
    }

    /// Copies `from` to the elements from `start` on, in stream order, and waits for the copy.
    ///
    /// # Errors
    /// The call that failed.
    ///
    /// # Panics
    /// If `from` does not fit.
    pub fn upload(&mut self, start: usize, from: &[T], stream: &Stream) -> Result<(), CudaError> {
        let to = self.address(start, from.len());
        let (from, bytes) = (from.as_ptr().cast::<c_void>(), size_of_val(from));
        // SAFETY: both ranges have `bytes` bytes, and `from` is borrowed until the copy is done.
        let copied = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes, stream.raw()) };
        check("cuMemcpyHtoDAsync", copied)?;
        stream.synchronize()
    }

    /// Copies the elements from `start` on to `to`, in stream order, and waits for the copy.
    ///
    /// # Errors
    /// The call that failed, or the first error of earlier work in the stream.
    ///
    /// # Panics
    /// If the buffer has fewer elements.
    pub fn download(&self, start: usize, to: &mut [T], stream: &Stream) -> Result<(), CudaError> {
        let from = self.address(start, to.len());
        let (to, bytes) = (to.as_mut_ptr().cast::<c_void>(), size_of_val(to));
        // SAFETY: both ranges have `bytes` bytes, any bits are a `T`, and `to` is borrowed until
        // the copy is done.
        let copied = unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, bytes, stream.raw()) };
        check("cuMemcpyDtoHAsync", copied)?;
        stream.synchronize()
    }

    /// Copies elements from `start` on to `to`, in stream order, without waiting. `to` should be
    /// page-locked; for other memory the call waits until the copy is done.
    ///
    /// # Safety
    /// `to` is neither read, written nor freed before the stream has passed the copy.
    ///
    /// # Errors
    /// The call that failed.
    ///
    /// # Panics
    /// If the buffer has fewer elements.
    pub unsafe fn download_unwaited(
        &self,
        start: usize,
        to: &mut [T],
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let from = self.address(start, to.len());
        let (to, bytes) = (to.as_mut_ptr().cast::<c_void>(), size_of_val(to));
        // SAFETY: both ranges have `bytes` bytes; the caller keeps `to` until the copy is done.
        let copied = unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, bytes, stream.raw()) };
        check("cuMemcpyDtoHAsync", copied)
    }

    /// Copies the first `len` elements of `from` to this buffer, in stream order, without waiting.
    ///
    /// # Safety
    /// `from` is neither written nor dropped before the stream has passed the copy.
    ///
    /// # Errors
    /// The call that failed.
    ///
    /// # Panics
    /// If either buffer is shorter.
    pub unsafe fn upload_unwaited(
        &mut self,
        from: &PinnedBuf<T>,
        len: usize,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let (to, from) = (self.address(0, len), from[..len].as_ptr().cast::<c_void>());
        let bytes = len * size_of::<T>();
        // SAFETY: both ranges have `bytes` bytes; the caller keeps `from` until the copy is done.
        let copied = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes, stream.raw()) };
        check("cuMemcpyHtoDAsync", copied)
    }

    /// Copies `from` to the elements from `start` on, in stream order. `from` should be
    /// page-locked; other memory is copied twice.
    ///
    /// # Safety
    /// `from` is neither written nor freed before the stream has passed the copy.
    ///
    /// # Errors
    /// The call that failed.
    ///
    /// # Panics
    /// If `from` does not fit.
    pub unsafe fn upload_part_unwaited(
        &mut self,
        start: usize,
        from: &[T],
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let to = self.address(start, from.len());
        let (from, bytes) = (from.as_ptr().cast::<c_void>(), size_of_val(from));
        // SAFETY: both ranges have `bytes` bytes; the caller keeps `from` until the copy is done.
        let copied = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes, stream.raw()) };
        check("cuMemcpyHtoDAsync", copied)
    }

    /// Device address of `len` elements from `start` on; panics if the buffer has fewer.
    fn address(&self, start: usize, len: usize) -> sys::CUdeviceptr {
        assert!(
            start <= self.len && len <= self.len - start,
            "elements of the buffer"
        );
        self.raw + (start * size_of::<T>()) as u64
    }
}

impl<T: Element> fmt::Debug for DeviceBuf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuf({} elements at {:#x})", self.len, self.raw)
    }
}

impl<T: Element> Drop for DeviceBuf<T> {
    fn drop(&mut self) {
        self.context.settle();
        // SAFETY: allocated in `uninit`; no work that uses it is under way.
        let _ = unsafe { sys::cuMemFree_v2(self.raw) };
        self.context.account().give_back(self.bytes());
    }
}

/// `len` elements of page-locked host memory, which the device copies directly.
pub struct PinnedBuf<T: Element> {
    raw: NonNull<T>,
    len: usize,
    context: Rc<Context>,
}

impl<T: Element> PinnedBuf<T> {
    /// Takes page-locked host memory for `len` elements, at least one, all bits zero.
    ///
    /// # Errors
    /// The call that failed.
    ///
    /// # Panics
    /// If `len` is 0, its bytes overflow, or the device is sealed.
    pub fn zeroed(device: &Device, len: usize) -> Result<PinnedBuf<T>, CudaError> {
        device.context().account().check_open();
        PinnedBuf::beside_plan(device, len)
    }

    /// `zeroed`, but also for a sealed device: the caller makes sure that the host has the memory.
    ///
    /// # Errors
    /// The call that failed.
    ///
    /// # Panics
    /// If `len` is 0 or its bytes overflow.
    pub fn beside_plan(device: &Device, len: usize) -> Result<PinnedBuf<T>, CudaError> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes > 0);
        let bytes = bytes.expect("a buffer has at least one element and fits the address space");
        let context = device.context();
        let mut raw = ptr::null_mut();
        // SAFETY: writes one address; the context is current; zeros are a `T`.
        unsafe {
            check("cuMemHostAlloc", sys::cuMemHostAlloc(&mut raw, bytes, 0))?;
            ptr::write_bytes(raw.cast::<u8>(), 0, bytes);
        }
        let raw = NonNull::new(raw.cast()).expect("a successful allocation has an address");
        Ok(PinnedBuf { raw, len, context })
    }
}

impl<T: Element> Deref for PinnedBuf<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialised elements, owned by this buffer.
        unsafe { std::slice::from_raw_parts(self.raw.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for PinnedBuf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `len` initialised elements, owned by this buffer and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.raw.as_ptr(), self.len) }
    }
}

impl<T: Element> fmt::Debug for PinnedBuf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedBuf({} elements at {:p})", self.len, self.raw)
    }
}

impl<T: Element> Drop for PinnedBuf<T> {
    fn drop(&mut self) {
        self.context.settle();
        // SAFETY: allocated in `zeroed`; no copy from or to the buffer is under way.
        let _ = unsafe { sys::cuMemFreeHost(self.raw.as_ptr().cast()) };
    }
}

/// Parts of equal length in device memory, at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// First byte of the first part.
    pub start: usize,
    /// Bytes of each part.
    pub bytes: usize,
    /// Bytes from the start of a part to that of the next: a multiple of `bytes` if there are
    /// several parts, else any number.
    pub apart: usize,
    pub count: usize,
}

/// Copies between device memory and page-locked memory that one driver call queues. Several parts
/// of one copy take the driver no longer than a single part.
#[derive(Default)]
pub struct CopyBatch(Vec<sys::CUDA_MEMCPY3D_BATCH_OP>);

impl CopyBatch {
    /// Adds a copy of `parts` of `from` to page-locked memory `to`, where they lie in sequence.
    ///
    /// # Panics
    /// If `to` is not as long as all parts together, there is no part, or one is outside of `from`.
    pub fn download(&mut self, from: &DeviceBuf<u8>, parts: Parts, to: &mut [u8]) {
        let address = to.as_mut_ptr().expose_provenance() as u64;
        let (apart, contiguous) = operands(from, parts, address, to.len());
        self.add(apart, contiguous, parts);
    }

    /// Adds a copy of page-locked memory `from`, where parts lie in sequence, to `parts` of `to`.
    ///
    /// # Panics
    /// If `from` is not as long as all parts together, there is no part, or one is outside of `to`.
    pub fn upload(&mut self, from: &[u8], to: &mut DeviceBuf<u8>, parts: Parts) {
        let address = from.as_ptr().expose_provenance() as u64;
        let (apart, contiguous) = operands(to, parts, address, from.len());
        self.add(contiguous, apart, parts);
    }

    fn add(&mut self, src: sys::CUmemcpy3DOperand, dst: sys::CUmemcpy3DOperand, parts: Parts) {
        self.0.push(sys::CUDA_MEMCPY3D_BATCH_OP {
            src,
            dst,
            extent: sys::CUextent3D {
                width: parts.bytes,
                height: 1,
                depth: parts.count,
            },
            srcAccessOrder: sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            flags: sys::CUmemcpyFlags::CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE as u32,
        });
    }

    /// Queues all copies, which may run in any order, and removes them from the batch.
    ///
    /// # Safety
    /// Until the stream has passed all copies, sources are not written, destinations neither read
    /// nor written, and neither is freed.
    ///
    /// # Errors
    /// The call that failed.
    pub unsafe fn queue(&mut self, stream: &Stream) -> Result<(), CudaError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let (count, operations) = (self.0.len(), self.0.as_mut_ptr());
        // SAFETY: `count` is the number of operations, and each range was in its buffer when it was
        // added; the caller keeps the memory until the copies are done.
        let queued = unsafe { sys::cuMemcpy3DBatchAsync_v2(count, operations, 0, stream.raw()) };
        self.0.clear();
        check("cuMemcpy3DBatchAsync", queued)
    }
}

impl fmt::Debug for CopyBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CopyBatch({} copies)", self.0.len())
    }
}

/// Operands of a copy: parts of device memory, and page-locked memory for all parts in order.
fn operands(
    device: &DeviceBuf<u8>,
    parts: Parts,
    host: sys::CUdeviceptr,
    bytes: usize,
) -> (sys::CUmemcpy3DOperand, sys::CUmemcpy3DOperand) {
    let Parts {
        start,
        bytes: part,
        apart,
        count,
    } = parts;
    assert!(
        bytes > 0 && bytes == part * count,
        "memory has the parts' length"
    );
    assert!(
        count == 1 || apart.is_multiple_of(part),
        "parts are whole parts apart"
    );
    let first = device.address(start, (count - 1) * apart + part);
    let height = if count == 1 { 1 } else { apart / part };
    (operand(first, part, height), operand(host, part, 1))
}

/// Operand for parts of `bytes` bytes each, whose starts are `height` times `bytes` apart.
fn operand(ptr: sys::CUdeviceptr, bytes: usize, height: usize) -> sys::CUmemcpy3DOperand {
    sys::CUmemcpy3DOperand {
        type_: sys::CUmemcpy3DOperandType::CU_MEMCPY_OPERAND_TYPE_POINTER,
        op: sys::CUmemcpy3DOperand_st__bindgen_ty_1 {
            ptr: sys::CUmemcpy3DOperand_st__bindgen_ty_1__bindgen_ty_1 {
                ptr,
                rowLength: bytes,
                layerHeight: height,
                // Hints concern managed memory only, which the driver may move.
                locHint: sys::CUmemLocation {
                    type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID,
                    id: 0,
                },
            },
        },
    }
}
