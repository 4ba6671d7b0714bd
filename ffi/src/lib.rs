//! The boundary between Rust and CUDA: device, stream, event, graph and buffers over the driver
//! API, and the linked launchers of `ops.toml`.
//!
//! The crate has no policy, no hidden allocation and no global state beyond the driver's own. An
//! error of a call has its name, code, text and source location.

mod account;
mod check;
mod device;
mod error;
mod graph;
mod memory;
pub mod ops;
mod partition;

pub use account::buffer_bytes;
pub use device::{Context, Device, DeviceInfo, Event, Needed, Stream, launched, probe};
pub use error::{CudaError, Error};
pub use graph::Graph;
pub use memory::{CopyBatch, DeviceBuf, Element, Parts, PinnedBuf};
