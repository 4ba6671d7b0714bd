//! Devices that run `crate::ops`.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod parity;

/// What the device of this binary adds to the self-test, and what `doctor` says about it.
mod device {
    #[cfg(feature = "cuda")]
    pub use super::cuda::check::{describe, measure, parity};
    #[cfg(not(feature = "cuda"))]
    pub use super::parity::host::{describe, measure, parity};
}
