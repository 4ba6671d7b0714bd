//! `targets/_hw/<hw>.toml`: what a machine is.

use std::collections::BTreeMap;
use std::ops::Not;

use serde::{Deserialize, Serialize};

use super::leaf::Op;

/// Implementation of the ops that a target is compiled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// Portable Rust, the reference.
    Cpu,
    /// Device code for the one architecture of `gpu.arch`.
    Cuda,
}

/// Facts of one machine.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// Name of the machine, for people.
    pub title: String,
    /// `cpu` or `cuda`; `cuda` requires `[gpu]` and `host`.
    pub backend: Backend,
    /// Rust triple of the host; absent when any host will do.
    pub host: Option<String>,
    /// Bytes of the host's memory left to other programs, if the model is in this memory: on a CPU,
    /// or where a GPU shares it.
    pub host_reserve_bytes: Option<u64>,
    /// Longest time between two tokens of a reply that bounds the prefill beside it, milliseconds.
    pub reply_gap_ms: u64,
    /// The accelerator.
    pub gpu: Option<Gpu>,
    /// Kernel of each op, by name of the op, unless a leaf chooses another; empty for a CPU. Ops
    /// whose kernel is the first of their row in `ffi/ops.toml` are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub op: BTreeMap<String, Op>,
}

/// Facts of one accelerator.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Exact architecture, `sm_<number>a`.
    pub arch: String,
    /// Streaming multiprocessors, at least 1.
    pub sms: u32,
    /// Whether `sms` are a part of the chip's, which the program then keeps to.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub partition: bool,
    /// Resident threads per multiprocessor, a multiple of 32.
    pub threads_per_sm: u32,
    /// Shared memory that one block may ask for, bytes.
    pub shared_bytes_per_block: u64,
    /// Second-level cache, bytes.
    pub l2_bytes: u64,
    /// Device memory that a program sees, bytes.
    pub memory_bytes: u64,
    /// Rated memory bandwidth, bytes per second.
    pub bandwidth_rated: u64,
    /// Read bandwidth measured with a read-only kernel, bytes per second; not above the rated one.
    pub bandwidth_read_measured: u64,
}

impl Gpu {
    /// Number of the architecture: 121 for `sm_121a`; 0, which no check passes, for no number.
    pub(crate) fn capability(&self) -> u32 {
        let digits = self.arch.trim_start_matches("sm_").trim_end_matches('a');
        digits.parse().unwrap_or(0)
    }
}
