//! The GPU: operations that have a kernel in this binary.
//!
//! Every method has the name, the formula and the shapes of its operation in `crate::ops`. A launch
//! that fails is remembered and reported by the next `read`, as `Ops` asks for.

pub mod check;

use ffi::ops::atlas_bf16;
use ffi::{CudaError, Device, DeviceBuf, Stream, launched};

use crate::engine::executor::DeviceError;
use crate::model::ROWS_MAX;
use crate::target::{self, HIDDEN};

/// GPU 0 with one stream, bound to the thread that opened it.
pub struct Cuda {
    device: Device,
    stream: Stream,
    /// The first call that failed since the last `read`.
    failed: Option<CudaError>,
}

/// Activations `[rows, width]` in BF16, with room for the largest step.
pub struct Tensor {
    rows: usize,
    width: usize,
    values: DeviceBuf<atlas_bf16>,
}

/// A vector of weights in BF16.
pub struct Vector(DeviceBuf<atlas_bf16>);

/// Device addresses of one call of `add_rms_norm`.
#[derive(Clone, Copy)]
struct AddRmsNormArgs {
    /// `[rows, HIDDEN]`.
    x: *const atlas_bf16,
    /// `[rows, HIDDEN]`.
    residual: *mut atlas_bf16,
    /// `[HIDDEN]`.
    weight: *const atlas_bf16,
    /// `[rows, HIDDEN]`.
    out: *mut atlas_bf16,
    rows: usize,
}

impl Cuda {
    /// Opens GPU 0, which must be the one that this binary is compiled for.
    ///
    /// # Errors
    /// Why it cannot be used, and what to do about it.
    pub fn open() -> Result<Cuda, DeviceError> {
        let device = Device::open(target::COMPUTE_CAPABILITY).map_err(refused)?;
        let stream = Stream::open(&device).map_err(refused)?;
        Ok(Cuda {
            device,
            stream,
            failed: None,
        })
    }

    /// Storage for activations of `width` elements per row.
    ///
    /// # Errors
    /// Too little memory.
    pub fn tensor(&self, width: usize) -> Result<Tensor, DeviceError> {
        let values = DeviceBuf::uninit(&self.device, ROWS_MAX * width).map_err(refused)?;
        Ok(Tensor {
            rows: 0,
            width,
            values,
        })
    }

    /// `Ops::add_rms_norm`, with `residual` and `out` stored as BF16.
    pub fn add_rms_norm(
        &mut self,
        residual: &mut Tensor,
        x: &Tensor,
        weight: &Vector,
        out: &mut Tensor,
    ) {
        let shape = (residual.rows, residual.width);
        assert_eq!((x.rows, x.width), shape);
        assert_eq!(
            (out.width, weight.0.len(), shape.1),
            (HIDDEN, HIDDEN, HIDDEN)
        );
        out.rows = shape.0;
        let args = AddRmsNormArgs {
            x: x.values.as_ptr(),
            residual: residual.values.as_mut_ptr(),
            weight: weight.0.as_ptr(),
            out: out.values.as_mut_ptr(),
            rows: shape.0,
        };
        // SAFETY: tensors hold ROWS_MAX rows of HIDDEN, the vector HIDDEN, and none overlap.
        if let Err(error) = unsafe { self.launch_add_rms_norm(args) } {
            self.failed.get_or_insert(error);
        }
    }

    /// # Safety
    /// The addresses are of device memory of the shapes stated, 16-byte aligned, apart, and alive
    /// until the stream has passed the call.
    unsafe fn launch_add_rms_norm(&self, args: AddRmsNormArgs) -> Result<(), CudaError> {
        let AddRmsNormArgs {
            x,
            residual,
            weight,
            out,
            rows,
        } = args;
        let rows = u32::try_from(rows).expect("a step has fewer rows than 2^32");
        // SAFETY: as the caller promises; the stream is open.
        let code = unsafe {
            let stream = self.stream.launcher();
            ffi::ops::atlas_add_rms_norm(x, residual, weight, out, rows, stream)
        };
        launched("add_rms_norm", code)
    }

    /// Appends all elements of `x`, row by row, to `out` on the host.
    ///
    /// # Errors
    /// The first call of this step that failed.
    pub fn read(&mut self, x: &Tensor, out: &mut Vec<f32>) -> Result<(), DeviceError> {
        if let Some(error) = self.failed.take() {
            return Err(refused(error));
        }
        let mut bits = vec![atlas_bf16 { bits: 0 }; x.values.len()];
        x.values
            .download(&mut bits, &self.stream)
            .map_err(refused)?;
        let live = &bits[..x.rows * x.width];
        out.extend(live.iter().map(|&value| f32_of(value)));
        Ok(())
    }
}

/// What the engine is told of a failure at the boundary.
fn refused(error: impl Into<ffi::Error>) -> DeviceError {
    DeviceError(error.into().to_string())
}

fn f32_of(value: atlas_bf16) -> f32 {
    f32::from_bits(u32::from(value.bits) << 16)
}

/// `value` is a BF16.
fn bf16_of(value: f32) -> atlas_bf16 {
    atlas_bf16 {
        bits: (value.to_bits() >> 16) as u16,
    }
}
