//! Memory that the GPU's backend takes beside weights, caches and activations.

use super::steps::Steps;
use super::{ARRIVED, Cuda, OPERAND_BYTES, PARTS, RECORDS, attend, load, route};
use crate::backend::host_memory;
use crate::ops::{Footprint, HostMemory};
use crate::target;

impl Footprint for Cuda {
    /// Bytes left to other programs: the target's reserve if the GPU uses the host's memory; of a
    /// GPU's own memory a little, since only its driver knows how much it will need.
    const RESERVE_BYTES: u64 = match target::HOST_RESERVE {
        Some(bytes) => bytes,
        None => 256 << 20,
    };
    /// Bytes of the driver's context: the figure of `nvidia-smi` for a server, less the other lines
    /// of the server's ledger.
    const CONTEXT_BYTES: u64 = 576 << 20;
    const GRAPH_LAYER_BYTES: u64 = 24 << 10;
    const LOCKED_BYTES: u64 = match target::HOST_RESERVE {
        Some(_) => (load::LOCKED_BYTES_MAX + Steps::BYTES[0] + Steps::BYTES[1]) as u64,
        None => 0,
    };

    fn buffer_bytes(bytes: u64) -> u64 {
        ffi::buffer_bytes(usize::try_from(bytes).expect("64 bits"))
    }

    /// Buffers of `Cuda`, of `Steps` and of a `Routing`.
    fn workspace() -> impl Iterator<Item = usize> {
        const NUMBER: usize = size_of::<f32>();
        let shared = [
            ARRIVED * NUMBER,
            RECORDS,
            OPERAND_BYTES,
            PARTS * NUMBER,
            PARTS * NUMBER,
            Steps::BYTES[0],
            Steps::BYTES[1],
        ];
        shared
            .into_iter()
            .chain(attend::Workspace::bytes())
            .chain(route::Workspace::BYTES)
    }

    fn host_memory() -> HostMemory {
        host_memory::memory()
    }
}
