//! Metrics of the process, under the names that all Prometheus clients use.

use std::fs;

use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::{Page, alone, figures};

/// Appends the process's metrics; `started` is in seconds since 1970.
pub fn write(page: &mut Page, started: u64) {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    let open = fs::read_dir("/proc/self/fd").ok();
    let open = open.map(|open| ("", open.count() as f64));
    let most = getrlimit(Resource::Nofile).current;
    figures! { page:
        counter "process_cpu_seconds_total" "Time of all cores that the process took."
            => [("", seconds)],
        gauge "process_start_time_seconds" "When the process began to listen, since 1970."
            => alone(started),
        gauge "process_resident_memory_bytes"
            "Memory of the process that is in use, mapped weights included."
            => resident().map(|bytes| ("", bytes as f64)),
        gauge "process_open_fds" "Open files and connections." => open,
        gauge "process_max_fds" "Files and connections that the system allows."
            => most.map(|most| ("", most as f64)),
    }
}

/// Bytes of resident memory: the second word of `statm`, in pages.
fn resident() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * page_size() as u64)
}
