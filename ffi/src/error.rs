//! What can go wrong at the boundary.

use std::fmt;
use std::panic::Location;

/// A CUDA call that failed.
#[derive(Clone, Debug)]
pub struct CudaError {
    /// Name of the function or launcher.
    pub call: &'static str,
    /// CUDA's number for the error; the driver and the runtime share them.
    pub code: i32,
    /// CUDA's name and description of it.
    pub text: String,
    /// Where the call was made.
    pub at: &'static Location<'static>,
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CudaError {
            call,
            code,
            text,
            at,
        } = self;
        write!(f, "{call} failed with {code}: {text} (at {at})")
    }
}

impl std::error::Error for CudaError {}

/// Why there is no usable GPU, or which call failed.
#[derive(Clone, Debug)]
pub enum Error {
    /// The driver's library is not on this machine.
    NoDriver,
    /// The driver is older than the CUDA version of the kernels. Versions are (major, minor).
    OldDriver {
        found: (i32, i32),
        needed: (i32, i32),
    },
    /// The driver runs but lists no GPU.
    NoGpu,
    /// The GPU is not the one the kernels were compiled for. Numbers are (major, minor).
    OtherGpu {
        name: String,
        found: (i32, i32),
        needed: (i32, i32),
    },
    /// A call failed.
    Call(CudaError),
}

impl From<CudaError> for Error {
    fn from(error: CudaError) -> Error {
        Error::Call(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoDriver => f.write_str(
                "no NVIDIA driver: libcuda.so.1 cannot be loaded. Install the NVIDIA driver (in a \
                 container, start it with the NVIDIA container runtime and `--gpus all`)",
            ),
            Error::OldDriver { found, needed } => write!(
                f,
                "the NVIDIA driver supports CUDA {}.{}, this binary needs {}.{}. Update the driver",
                found.0, found.1, needed.0, needed.1
            ),
            Error::NoGpu => f.write_str(
                "the NVIDIA driver lists no GPU. Check `nvidia-smi` and CUDA_VISIBLE_DEVICES",
            ),
            Error::OtherGpu {
                name,
                found,
                needed,
            } => write!(
                f,
                "{name} has compute capability {}.{}, this binary is compiled for {}.{} alone. \
                 Download the binary for this GPU",
                found.0, found.1, needed.0, needed.1
            ),
            Error::Call(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}
