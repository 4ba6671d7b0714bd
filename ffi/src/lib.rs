//! The boundary between Rust and CUDA: device, stream, event, graph and buffers over the driver
//! API, and the linked launchers of `ops.toml`.
//!
//! Nothing here decides anything: no policy, no hidden allocation, no global state beyond the
//! driver's own. Every failing call comes back with its name, code, text and place.

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
