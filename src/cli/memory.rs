//! Whether the machine has the memory that the model takes, asked before any of it is taken.
//!
//! Where a GPU shares the host's memory, a machine that runs out of it does not fail: it freezes,
//! and only its power switch helps.

use std::fs;

use crate::model::ledger;
use crate::target;

use super::{Exit, Failure};

const MEBIBYTE: u64 = 1024 * 1024;

/// What the ledger adds up to and what is free, in words.
///
/// # Errors
/// When the model does not fit. A GPU with a memory of its own refuses by itself what does not.
pub fn check() -> Result<String, String> {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let needed = ledger::entries().iter().map(|entry| entry.bytes).sum();
    compare(needed, available_bytes(&meminfo), target::IN_HOST_MEMORY)
}

/// Refuses a model that does not fit.
///
/// # Errors
/// Says how much is missing.
pub fn require() -> Result<String, Failure> {
    check().map_err(|problem| Failure::new(Exit::Unavailable, problem))
}

fn compare(needed: u64, free: Option<u64>, in_host_memory: bool) -> Result<String, String> {
    let needed_mib = needed.div_ceil(MEBIBYTE);
    match free {
        _ if !in_host_memory => Ok(format!("{needed_mib} MiB of the GPU's memory are needed")),
        None => Ok(format!(
            "{needed_mib} MiB of memory are needed; what is free is not known"
        )),
        Some(free) if free < needed => Err(format!(
            "memory: {needed_mib} MiB are needed and {} MiB are free; stop other programs",
            free / MEBIBYTE
        )),
        Some(free) => Ok(format!(
            "{needed_mib} MiB of memory are needed, {} MiB free",
            free / MEBIBYTE
        )),
    }
}

/// `MemAvailable` of `/proc/meminfo`, which counts caches that can be given up.
fn available_bytes(meminfo: &str) -> Option<u64> {
    let mut lines = meminfo.lines();
    let line = lines.find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_does_not_fit_is_refused() {
        let meminfo = "MemTotal:       4096 kB\nMemFree:  1 kB\nMemAvailable:    3072 kB\n";
        let free = available_bytes(meminfo);
        assert_eq!(free, Some(3 * MEBIBYTE));
        assert!(compare(3 * MEBIBYTE, free, true).is_ok());
        let refused = compare(3 * MEBIBYTE + 1, free, true).unwrap_err();
        assert!(refused.contains("4 MiB are needed and 3 MiB are free"));
        assert!(compare(3 * MEBIBYTE + 1, free, false).is_ok());
        assert!(compare(u64::MAX, available_bytes("what is this"), true).is_ok());
    }
}
