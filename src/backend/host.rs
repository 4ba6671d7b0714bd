//! What is free of the host's memory.

use std::fs;

use crate::target;

/// What may be taken of the host's memory, bytes, beside what is left to others; none where the
/// model does not lie in it, or the system does not tell.
pub fn room() -> Option<u64> {
    let reserve = target::HOST_RESERVE?;
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let available = available_bytes(&meminfo)?;
    Some(available.saturating_sub(reserve))
}

/// `MemAvailable` of `/proc/meminfo`, which counts caches that can be given up.
pub fn available_bytes(meminfo: &str) -> Option<u64> {
    let mut lines = meminfo.lines();
    let line = lines.find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_can_be_given_up_is_free() {
        let meminfo = "MemTotal:       4096 kB\nMemFree:  1 kB\nMemAvailable:    3072 kB\n";
        assert_eq!(available_bytes(meminfo), Some(3 << 20));
        assert_eq!(available_bytes("what is this"), None);
    }

    #[test]
    fn a_part_is_left_to_others() {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
        let available = available_bytes(&meminfo).unwrap();
        assert!(room().unwrap() < available);
    }
}
