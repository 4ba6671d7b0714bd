//! Failures at the boundary to CUDA.

use std::panic::Location;

use thiserror::Error as Texts;

/// A CUDA call that failed.
#[derive(Clone, Debug, Texts)]
#[error("{call} failed with {code}: {text} (at {at})")]
pub struct CudaError {
    /// Name of the function or launcher that failed.
    pub call: &'static str,
    /// CUDA's number for the error; the driver and the runtime share them.
    pub code: i32,
    /// CUDA's name and description of the error.
    pub text: String,
    /// Source location of the call.
    pub at: &'static Location<'static>,
}

/// Calls that take device memory; graphs take some when made or first launched.
const TAKES_DEVICE_MEMORY: [&str; 4] = [
    "cuMemAlloc",
    "cuDevicePrimaryCtxRetain",
    "cuGraphInstantiate",
    "cuGraphLaunch",
];

impl CudaError {
    /// Whether device memory was exhausted; calls for host memory return the same code.
    fn is_out_of_memory(&self) -> bool {
        const OUT_OF_MEMORY: i32 = 2;
        self.code == OUT_OF_MEMORY && TAKES_DEVICE_MEMORY.contains(&self.call)
    }

    /// Advice for a failure, if there is some, as the beginning of its text.
    fn advice(&self) -> &'static str {
        match self.is_out_of_memory() {
            true => {
                "the GPU has too little free memory. Stop other programs that use it \
                 (`nvidia-smi` lists them), or take a smaller model's binary; `doctor` says what \
                 this one needs. "
            }
            false => "",
        }
    }
}

/// Why there is no usable GPU, or which call failed. Versions and numbers are (major, minor).
#[derive(Clone, Debug, Texts)]
pub enum Error {
    /// The driver's library is not on this machine.
    #[error(
        "no NVIDIA driver: libcuda.so.1 cannot be loaded. Install the NVIDIA driver (in a \
         container, start it with the NVIDIA container runtime and `--gpus all`)"
    )]
    NoDriver,
    /// The driver is older than the CUDA version of the kernels.
    #[error(
        "the NVIDIA driver supports CUDA {}.{}, this binary needs {}.{}. Update the driver",
        found.0, found.1, needed.0, needed.1
    )]
    OldDriver {
        found: (i32, i32),
        needed: (i32, i32),
    },
    /// The driver runs but lists no GPU.
    #[error("the NVIDIA driver lists no GPU. Check `nvidia-smi` and CUDA_VISIBLE_DEVICES")]
    NoGpu,
    /// The GPU is not the one the kernels were compiled for.
    #[error(
        "{name} has compute capability {}.{}, this binary is compiled for {}.{} alone. Download \
         the binary for this GPU",
        found.0, found.1, needed.0, needed.1
    )]
    OtherGpu {
        name: String,
        found: (i32, i32),
        needed: (i32, i32),
    },
    /// The GPU, or this process's part of it, has fewer multiprocessors than grids have blocks that
    /// wait for each other.
    #[error(
        "{name} has {found} SMs for this process, this binary needs {needed}. Give it the whole \
         GPU (no MIG instance), or take the binary for this GPU"
    )]
    TooFew {
        name: String,
        found: u32,
        needed: u32,
    },
    /// The GPU is shared by MPS: blocks that wait for each other may find no multiprocessor free,
    /// as blocks of another process hold them and wait likewise.
    #[error(
        "{name} is shared by MPS, under which kernels of two processes may wait for each other's \
         SMs for ever. Stop MPS (`echo quit | nvidia-cuda-mps-control`)"
    )]
    Shared { name: String },
    /// The GPU's driver cannot confine work to `sms` of its `of` multiprocessors.
    #[error(
        "this binary runs on {sms} of the GPU's {of} SMs, and the driver does not keep it to \
         them: {why}. Update the driver, and give this process the whole GPU (no MIG instance, no \
         MPS)"
    )]
    NoPartition { sms: u32, of: u32, why: CudaError },
    /// The driver gives a partition of `found` of `of` multiprocessors, not of `sms`; 0 if none.
    #[error(
        "this binary runs on {sms} of the GPU's SMs, and the driver gives {found} of {of}. Give \
         this process the whole of a GPU with more than {sms} SMs (no MIG instance, no MPS)"
    )]
    OtherPartition { sms: u32, of: u32, found: u32 },
    /// A CUDA call failed.
    #[error("{advice}{0}", advice = .0.advice())]
    Call(#[from] CudaError),
}

impl Error {
    /// Whether the device has too little free memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Error::Call(error) if error.is_out_of_memory())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceInfo, Needed};

    #[test]
    fn too_little_memory_of_the_gpu_is_reported_with_the_fix() {
        let advised = |call, code| {
            let failed = CudaError {
                call,
                code,
                text: "out of memory".to_string(),
                at: Location::caller(),
            };
            Error::Call(failed).to_string()
        };
        for call in TAKES_DEVICE_MEMORY {
            assert!(advised(call, 2).contains("Stop other programs"));
        }
        assert!(!advised("cuMemHostAlloc", 2).contains("GPU"));
        assert!(!advised("cuMemAlloc", 700).contains("memory. Stop"));
    }

    #[test]
    fn a_gpu_that_is_not_whole_is_refused_by_what_is_missing() {
        let needed = Needed {
            compute_capability: (9, 0),
            multiprocessors: 132,
            partition: false,
        };
        let whole = DeviceInfo {
            name: "NVIDIA H200".to_string(),
            driver_cuda: (13, 0),
            compute_capability: (9, 0),
            multiprocessors: 132,
            memory_bytes: 1 << 37,
            shared: false,
        };
        whole.check(&needed).unwrap();
        let refused = |info: DeviceInfo| info.check(&needed).unwrap_err().to_string();
        let other = refused(DeviceInfo {
            compute_capability: (12, 1),
            ..whole.clone()
        });
        assert!(other.contains("12.1"), "{other}");
        let part = refused(DeviceInfo {
            multiprocessors: 60,
            ..whole.clone()
        });
        assert!(part.contains("60 SMs") && part.contains("132"), "{part}");
        let shared = refused(DeviceInfo {
            shared: true,
            ..whole.clone()
        });
        assert!(shared.contains("shared by MPS"), "{shared}");
    }

    #[test]
    fn a_part_that_the_driver_does_not_give_is_named_with_the_fix() {
        let why = CudaError {
            call: "cuGreenCtxCreate",
            code: 801,
            text: "not supported".to_string(),
            at: Location::caller(),
        };
        let (sms, of) = (48, 132);
        let refused = Error::NoPartition { sms, of, why }.to_string();
        for part in [
            "48 of the GPU's 132 SMs",
            "cuGreenCtxCreate failed with 801",
            "Update",
        ] {
            assert!(refused.contains(part), "{refused}");
        }
        let found = 56;
        let other = Error::OtherPartition { sms, of, found }.to_string();
        assert!(
            other.contains("48") && other.contains("gives 56 of 132"),
            "{other}"
        );
    }
}
