//! Memory of a process, from `/proc`.

use serde::Serialize;

/// Resident memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Resident memory now (`VmRSS`).
    pub rss_bytes: u64,
    /// Largest resident memory so far (`VmHWM`).
    pub peak_bytes: u64,
}

/// Memory of the process `pid`.
///
/// # Errors
/// If there is no such process, or it is a kernel thread, which has no memory of its own.
pub fn memory(pid: u32) -> Result<Memory, String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .map_err(|cause| format!("--pid {pid}: {cause}"))?;
    parse(&status).ok_or_else(|| format!("--pid {pid}: it has no memory of its own"))
}

/// Format: proc_pid_status(5); figures are in units of 1024 bytes.
fn parse(status: &str) -> Option<Memory> {
    let bytes = |name: &str| -> Option<u64> {
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
    };
    Some(Memory {
        rss_bytes: bytes("VmRSS")?,
        peak_bytes: bytes("VmHWM")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_read_in_bytes() {
        let status = "Name:\tx\nVmHWM:\t     300 kB\nVmRSS:\t     200 kB\n";
        assert_eq!(
            parse(status),
            Some(Memory {
                rss_bytes: 204_800,
                peak_bytes: 307_200
            })
        );
        assert_eq!(parse("Name:\tkthread\n"), None);
    }

    #[test]
    fn this_process_has_memory() {
        let memory = memory(std::process::id()).unwrap();
        assert!(memory.rss_bytes > 1 << 20 && memory.peak_bytes >= memory.rss_bytes);
    }
}
