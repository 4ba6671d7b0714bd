//! Figures of the process, under the names that clients of Prometheus give them everywhere.

use std::fs;

use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::Page;

/// Writes them; `started` is in seconds since 1970.
pub fn write(page: &mut Page, started: u64) {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    page.series(
        "counter",
        "process_cpu_seconds_total",
        "Time of all cores that the process took.",
        [("", seconds)],
    );
    for (name, help, value) in [
        (
            "process_start_time_seconds",
            "When the process began to listen, since 1970.",
            Some(started),
        ),
        (
            "process_resident_memory_bytes",
            "Memory of the process that is in use, mapped weights included.",
            resident(),
        ),
        (
            "process_open_fds",
            "Open files and connections.",
            fs::read_dir("/proc/self/fd")
                .ok()
                .map(|open| open.count() as u64),
        ),
        (
            "process_max_fds",
            "Files and connections that the system allows.",
            getrlimit(Resource::Nofile).current,
        ),
    ] {
        if let Some(value) = value {
            page.gauge(name, help, value);
        }
    }
}

/// Bytes in memory, as the second word of `statm` counts pages.
fn resident() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * page_size() as u64)
}
