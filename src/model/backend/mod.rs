//! Devices that run the operations of `crate::ops`.

#[macro_use]
pub mod metered;

mod budget;
pub mod clock;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod host_memory;
#[cfg(has = "latent")]
mod latent;
pub mod mapping;

/// Storage and loading of the GPU's weights, and reports of failures, which are tested without one.
#[cfg(all(test, not(feature = "cuda"), has = "experts"))]
#[path = "cuda"]
#[allow(dead_code, reason = "the GPU's backend is not there to use all of it")]
mod weights {
    mod failures;
    mod jobs;
    mod packed;
    mod panels;
    mod storage;
}

/// The device of a binary for processors.
#[cfg(not(feature = "cuda"))]
mod device {
    use super::cpu::{Cpu, THREADS_MAX};
    use crate::ops::LOGITS_ROWS_MAX;
    use host::threads;
    use step::executor::DeviceError;

    pub use super::cpu::{READER, pack};

    /// Device that runs the model.
    pub type Backend = Cpu;

    /// Bytes of the device's memory that may be taken, if the system says so.
    pub fn available() -> Result<Option<u64>, DeviceError> {
        Ok(super::host_memory::available())
    }

    /// Largest number of threads that work for the device at once: those of its operations without
    /// their caller, and those of a check before serving.
    pub fn threads() -> usize {
        let cores = threads::cores();
        cores.min(THREADS_MAX) - 1 + cores.min(LOGITS_ROWS_MAX)
    }

    /// Text about the part of the device in use: none, since the processor is used as a whole.
    pub fn partition() -> Option<String> {
        None
    }

    /// Description of the processors in use.
    pub fn describe() -> Result<String, String> {
        Ok(format!(
            "the host's processor, {} threads; this binary uses no GPU",
            threads::cores()
        ))
    }

    /// Opens the host's processor.
    pub fn open() -> Result<Backend, DeviceError> {
        Ok(Cpu::default())
    }
}

/// The device of a binary for GPUs.
#[cfg(feature = "cuda")]
mod device {
    use super::cuda::{Cuda, READERS, copy_threads};
    use host::threads;
    use step::executor::DeviceError;

    pub use super::cuda::about::{describe, partition};
    pub use super::cuda::memory::available;
    pub use super::cuda::packed::{READER, pack};

    /// Device that runs the model.
    pub type Backend = Cuda;

    /// Number of threads that the driver may start.
    const DRIVER: usize = 8;

    /// Largest number of threads that work for the device at once: the driver's, those of
    /// checksums, and those that read weights or check the model before serving.
    pub fn threads() -> usize {
        DRIVER + copy_threads() + READERS.max(threads::cores())
    }

    /// Opens the GPU.
    ///
    /// # Errors
    /// Why the GPU cannot be used, and the fix.
    pub fn open() -> Result<Backend, DeviceError> {
        Cuda::open()
    }
}

#[cfg(test)]
pub use budget::simulated;
pub use device::{Backend, READER, available, describe, open, pack, partition, threads};
