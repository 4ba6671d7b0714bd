//! What may be taken of the host's memory at each growth, while a model is loaded.
//!
//! A host whose memory a GPU shares does not fail when it runs out: it freezes. Others take memory
//! while a model loads, so what is free is asked anew before each part is taken.

use std::fs;
use std::path::PathBuf;

use super::host::available_bytes;
use crate::engine::executor::DeviceError;
use crate::target;

/// Where the system tells what is free.
const MEMINFO: &str = "/proc/meminfo";
const MEBIBYTE: u64 = 1 << 20;

/// The host's memory, as far as the model may take it.
#[derive(Clone, Debug)]
pub struct Budget {
    meminfo: PathBuf,
    /// What is left to others, bytes; none where the model does not lie in the host's memory.
    reserve: Option<u64>,
}

impl Default for Budget {
    /// Of this target on this host.
    fn default() -> Budget {
        Budget {
            meminfo: MEMINFO.into(),
            reserve: target::HOST_RESERVE,
        }
    }
}

impl Budget {
    /// What may be taken now, bytes, beside what is left to others; caches that can be given up are
    /// free. None where the model does not lie there, or the system does not tell.
    pub fn room(&self) -> Option<u64> {
        let reserve = self.reserve?;
        let meminfo = fs::read_to_string(&self.meminfo).ok()?;
        let available = available_bytes(&meminfo)?;
        Some(available.saturating_sub(reserve))
    }

    /// Asked before `bytes` more are taken.
    ///
    /// # Errors
    /// `DeviceError::Memory` when there is less than that.
    pub fn check(&self, bytes: u64) -> Result<(), DeviceError> {
        let Some(room) = self.room().filter(|&room| room < bytes) else {
            return Ok(());
        };
        Err(DeviceError::Memory(format!(
            "memory: {} MiB more are needed, and {} MiB may be taken now beside the {} MiB that \
             are left to other programs: less is free than when the model was planned. Stop other \
             programs, or take a smaller model's binary",
            bytes.div_ceil(MEBIBYTE),
            room / MEBIBYTE,
            self.reserve.unwrap_or(0) / MEBIBYTE,
        )))
    }
}

#[cfg(test)]
pub mod simulated {
    use super::*;

    /// A host with a file of its own for `/proc/meminfo`.
    pub struct Host {
        pub budget: Budget,
    }

    impl Host {
        /// `name` is the test's own.
        pub fn new(name: &str, reserve: u64) -> Host {
            let file = format!("atlas-meminfo-{name}-{}", std::process::id());
            let budget = Budget {
                meminfo: std::env::temp_dir().join(file),
                reserve: Some(reserve),
            };
            Host { budget }
        }

        /// Has nothing free, and so many bytes of caches that can be given up.
        pub fn caches(&self, bytes: u64) {
            let kibibytes = bytes.div_ceil(1024);
            let meminfo = format!(
                "MemTotal:       131072000 kB\nMemFree:               0 kB\n\
                 MemAvailable:   {kibibytes} kB\nBuffers:               0 kB\n\
                 Cached:         {kibibytes} kB\n"
            );
            fs::write(&self.budget.meminfo, meminfo).unwrap();
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.budget.meminfo);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::simulated::Host;
    use super::*;

    #[test]
    fn what_is_free_is_asked_at_each_growth() {
        let host = Host::new("growth", 100 * MEBIBYTE);
        host.caches(110 * MEBIBYTE);
        host.budget.check(10 * MEBIBYTE).unwrap();
        // Another program has taken some.
        host.caches(105 * MEBIBYTE);
        let refused = host.budget.check(10 * MEBIBYTE).unwrap_err();
        let DeviceError::Memory(told) = refused else {
            panic!("{refused}")
        };
        for part in ["10 MiB more", " 5 MiB may", "100 MiB that are left"] {
            assert!(told.contains(part), "{told}");
        }
        host.caches(0);
        host.budget.check(1).unwrap_err();
        host.budget.check(0).unwrap();
    }

    #[test]
    fn what_the_system_does_not_tell_is_no_reason_to_refuse() {
        let mut budget = Host::new("untold", 0).budget.clone();
        assert_eq!(budget.room(), None);
        budget.check(u64::MAX).unwrap();
        budget = Budget {
            reserve: None,
            ..Budget::default()
        };
        budget.check(u64::MAX).unwrap();
    }
}
