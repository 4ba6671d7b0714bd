//! Budget of host memory while a model is loaded.
//!
//! A host whose memory a GPU shares does not fail when it runs out of memory: it freezes. Other
//! programs take memory while a model loads, so the free part is read anew before each allocation.

use super::host_memory::{Files, Left};
use crate::ops::Bound;
use crate::target;
use step::executor::DeviceError;

const MEBIBYTE: u64 = 1 << 20;

/// Budget of host memory that the model may take.
#[derive(Clone, Debug)]
pub struct Budget {
    files: Files,
    /// Bytes that are left to other programs; None if the model does not lie in host memory.
    reserve: Option<u64>,
}

impl Default for Budget {
    /// Budget of this target on this host.
    fn default() -> Budget {
        Budget {
            files: Files::default(),
            reserve: target::HOST_RESERVE,
        }
    }
}

impl Budget {
    /// Bytes that [`Budget::check`] allows.
    #[cfg(test)]
    pub fn available(&self) -> Option<u64> {
        self.least().map(|(bytes, _)| bytes)
    }

    /// Bytes that may be taken now: the free ones less the reserve, or the rest of a control
    /// group's limit if that is less. Reclaimable caches count as free. None if the model does not
    /// lie in host memory, or the system does not say.
    fn least(&self) -> Option<Left> {
        self.files.available(self.reserve?)
    }

    /// Checks that `bytes` more may be taken.
    ///
    /// # Errors
    /// `DeviceError::Memory` if fewer are left.
    pub fn check(&self, bytes: u64) -> Result<(), DeviceError> {
        let Some((left, bound)) = self.least().filter(|(left, _)| *left < bytes) else {
            return Ok(());
        };
        let reserve = self.reserve.unwrap_or(0) / MEBIBYTE;
        let (bound, remedy) = match bound {
            Bound::Free => (
                format!("{reserve} MiB are left to other programs"),
                "Stop other programs",
            ),
            bound => (bound.to_string(), "Raise that limit"),
        };
        Err(DeviceError::Memory(format!(
            "memory: {} MiB more are needed, and {} MiB may be taken now; {bound}: less is free \
             than when the model was planned. {remedy}, or take a smaller model's binary",
            bytes.div_ceil(MEBIBYTE),
            left / MEBIBYTE,
        )))
    }
}

#[cfg(test)]
pub mod simulated {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// A host with files of its own instead of the system's.
    pub struct Host {
        pub budget: Budget,
        folder: PathBuf,
    }

    impl Host {
        /// `name` is the test's own.
        pub fn new(name: &str, reserve: u64) -> Host {
            let folder = format!("atlas-host-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(folder);
            fs::create_dir_all(&folder).unwrap();
            let [meminfo, groups, mounts] =
                ["meminfo", "cgroup", "mountinfo"].map(|file| folder.join(file));
            let files = Files {
                meminfo,
                groups,
                mounts,
            };
            let budget = Budget {
                files,
                reserve: Some(reserve),
            };
            Host { budget, folder }
        }

        /// Has nothing free, and so many bytes of caches that can be given up.
        pub fn caches(&self, bytes: u64) {
            let kibibytes = bytes.div_ceil(1024);
            let meminfo = format!(
                "MemTotal:       131072000 kB\nMemFree:               0 kB\n\
                 MemAvailable:   {kibibytes} kB\nBuffers:               0 kB\n\
                 Cached:         {kibibytes} kB\n"
            );
            fs::write(&self.budget.files.meminfo, meminfo).unwrap();
        }

        /// Has the process in a control group with a limit, of which so many bytes are used.
        pub fn group(&self, limit: u64, used: u64) {
            let folder = self.folder.display();
            let mount = format!("32 22 0:28 / {folder} rw - cgroup2 cgroup2 rw\n");
            for (file, text) in [
                ("mountinfo", mount),
                ("cgroup", "0::/\n".to_string()),
                ("memory.max", limit.to_string()),
                ("memory.current", used.to_string()),
            ] {
                fs::write(self.folder.join(file), text).unwrap();
            }
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.folder);
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
        let DeviceError::Memory(text) = refused else {
            panic!("{refused}")
        };
        for part in ["10 MiB more", " 5 MiB may", "100 MiB are left to other"] {
            assert!(text.contains(part), "{text}");
        }
        host.caches(0);
        host.budget.check(1).unwrap_err();
        host.budget.check(0).unwrap();
    }

    #[test]
    fn the_limit_of_a_control_group_is_asked_at_each_growth() {
        let host = Host::new("group", 0);
        host.caches(1000 * MEBIBYTE);
        host.group(512 * MEBIBYTE, 500 * MEBIBYTE);
        host.budget.check(12 * MEBIBYTE).unwrap();
        // Another process of the group has taken some.
        host.group(512 * MEBIBYTE, 505 * MEBIBYTE);
        let refused = host.budget.check(12 * MEBIBYTE).unwrap_err();
        let DeviceError::Memory(text) = refused else {
            panic!("{refused}")
        };
        for part in [" 7 MiB may", "has a limit of 512 MiB", "Raise that limit"] {
            assert!(text.contains(part), "{text}");
        }
        // Free memory bounds it where that is less.
        host.caches(3 * MEBIBYTE);
        host.budget.check(4 * MEBIBYTE).unwrap_err();
    }

    #[test]
    fn unknown_free_memory_is_no_reason_to_refuse() {
        let mut budget = Host::new("untold", 0).budget.clone();
        assert_eq!(budget.available(), None);
        budget.check(u64::MAX).unwrap();
        budget = Budget {
            reserve: None,
            ..Budget::default()
        };
        budget.check(u64::MAX).unwrap();
    }
}
