//! Memory that a kind of device takes beside buffers, known before a device is opened.

use std::fmt;
use std::path::PathBuf;

use super::Device;
use crate::target;

const MEBIBYTE: u64 = 1024 * 1024;

/// Memory that a kind of device needs, bytes.
pub trait Footprint: Device {
    /// Bytes, of the memory that holds the model, that are left to other programs.
    const RESERVE_BYTES: u64;
    /// Largest memory that the driver takes for an open device.
    const CONTEXT_BYTES: u64;
    /// Largest memory that the driver takes for a layer of a recorded step.
    const GRAPH_LAYER_BYTES: u64;
    /// Largest page-locked memory of the host that loading and steps take, where the device uses
    /// the host's memory.
    const LOCKED_BYTES: u64;

    /// Largest memory that a buffer of `bytes` takes.
    fn buffer_bytes(bytes: u64) -> u64;

    /// Bytes of each buffer that operations take in addition to tensors.
    fn workspace() -> impl Iterator<Item = usize>;

    /// Memory of the host at the first call.
    fn host_memory() -> HostMemory;
}

/// Memory of the host, as of the first request for it, before anything was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// Memory that may be taken, bytes, if the system says.
    pub bytes: Option<u64>,
    /// Limit that bounds `bytes`.
    pub bound: Option<&'static Bound>,
    /// Largest number of bytes that the server takes beside the model.
    pub server: u64,
}

impl HostMemory {
    /// Host memory that a model may take; none if the model does not lie in host memory.
    pub fn available(&self) -> Option<u64> {
        target::HOST_RESERVE.and(self.bytes)
    }
}

/// Limit that bounds the memory of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The free memory, less a reserve.
    Free,
    /// A control group with a limit of so many bytes.
    Group(PathBuf, u64),
    AddressSpace(u64),
    Data(u64),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = |bytes: &u64| bytes / MEBIBYTE;
        match self {
            Bound::Free => write!(
                f,
                "{:.1} MiB are left to other programs",
                target::HOST_RESERVE.unwrap_or(0) as f64 / MEBIBYTE as f64
            ),
            Bound::Group(path, limit) => write!(
                f,
                "the control group {} has a limit of {} MiB",
                path.display(),
                mebibytes(limit)
            ),
            Bound::AddressSpace(limit) => write!(
                f,
                "the address space has a limit of {} MiB (`ulimit -v`), of which threads and pools \
                 reserve a part",
                mebibytes(limit)
            ),
            Bound::Data(limit) => {
                write!(
                    f,
                    "data has a limit of {} MiB (`ulimit -d`)",
                    mebibytes(limit)
                )
            }
        }
    }
}
