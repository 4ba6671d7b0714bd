//! Checks of the machine for `doctor`: programs that use the GPU, its power state, speed of the
//! disk, limits of the kernel.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::param::page_size;

use http::files;
use http::limits::CONNECTIONS_MAX;
use model::target;

use super::boot;
use super::exit::{Exit, Failure};

/// Result of one check, as a line for the operator; an error names what to fix.
pub type Finding = Result<String, String>;

/// Prefix of the driver's device files, which each process that uses a GPU has open.
const DEVICES: &str = "/dev/nvidia";
/// Bytes of a weights file that are read to measure the disk.
const PROBE_BYTES: usize = 256 << 20;
/// Bytes of one read that measures the disk; a multiple of every disk's block.
const READ_BYTES: usize = 8 << 20;
/// Alignment of memory and offsets for direct reads, which bypass the page cache.
const ALIGNMENT: usize = 4096;
/// Read rate below which a start takes minutes.
const SLOW_BYTES_PER_S: f64 = 0.3e9;
const GB: f64 = 1e9;

/// Prints a line for each finding.
///
/// # Errors
/// When anything has to be fixed.
pub fn report(findings: &[Finding]) -> Result<(), Failure> {
    for finding in findings {
        boot::print(&match finding {
            Ok(fine) => format!("ok   {fine}\n"),
            Err(fix) => format!("fix  {fix}\n"),
        })?;
    }
    match findings.iter().filter(|finding| finding.is_err()).count() {
        0 => Ok(()),
        count => Err(Exit::Unavailable.failure(format!("{count} to fix"))),
    }
}

/// Line about other programs that have the GPU open and take memory and time of it.
pub fn holders() -> Finding {
    let own = std::process::id().to_string();
    let mut holders: Vec<String> = processes()
        .filter(|process| *process != own)
        .filter(|process| holds(process, DEVICES))
        .map(|process| format!("{} ({process})", name(&process)))
        .collect();
    holders.sort();
    match holders.is_empty() {
        true => Ok("no other program that this user sees has the GPU open".to_string()),
        // A desktop also has the GPU open, but takes little of it.
        false => Ok(format!(
            "the GPU is open in {}; what they take is not free",
            holders.join(", ")
        )),
    }
}

fn processes() -> impl Iterator<Item = String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether a process has a file under `path` open; false if this user has no access.
fn holds(process: &str, path: &str) -> bool {
    let files = fs::read_dir(format!("/proc/{process}/fd"));
    let files = files.into_iter().flatten().flatten();
    files
        .filter_map(|file| fs::read_link(file.path()).ok())
        .any(|to| to.to_str().is_some_and(|to| to.starts_with(path)))
}

fn name(process: &str) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    name.trim().to_string()
}

pub fn processor() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} processor cores ({})", std::env::consts::ARCH)
}

/// GPU and clocks on which measurements of this machine depend; in a binary without GPU the
/// processor.
pub fn measured_on() -> String {
    match cfg!(feature = "cuda") {
        true => power().unwrap_or_else(|throttled| throttled),
        false => processor(),
    }
}

/// Clocks and power as the driver's tool reports them. A throttled GPU computes correctly, but
/// slowly.
pub fn power() -> Finding {
    const FIELDS: &str = "name,pstate,clocks.sm,clocks.max.sm,power.draw,temperature.gpu,\
                          clocks_event_reasons.sw_thermal_slowdown,\
                          clocks_event_reasons.hw_thermal_slowdown,\
                          clocks_event_reasons.hw_power_brake_slowdown";
    let mut command = Command::new("nvidia-smi");
    command.arg(format!("--query-gpu={FIELDS}"));
    command.args(["--format=csv,noheader", "--id=0"]);
    match command.output() {
        Ok(done) if done.status.success() => power_of(&String::from_utf8_lossy(&done.stdout)),
        _ => {
            Ok("clocks and power are not known: nvidia-smi is not there or does not answer".into())
        }
    }
}

/// Finding from the line that `nvidia-smi` prints.
fn power_of(line: &str) -> Finding {
    let cells: Vec<&str> = line.trim().split(',').map(str::trim).collect();
    let [name, state, clock, most, draw, heat, slowdowns @ ..] = cells.as_slice() else {
        let said = line.trim();
        return Ok(format!(
            "clocks and power are not known: nvidia-smi says {said}"
        ));
    };
    let text = format!("{name} in state {state}, {clock} of {most}, {draw}, {heat} °C");
    match slowdowns.contains(&"Active") {
        true => Err(format!(
            "{text}: it is held back by heat or by its power supply; see to its air, its adapter, \
             and `nvidia-smi -q -d PERFORMANCE`"
        )),
        false => Ok(text),
    }
}

/// Rate of direct reads from a directory of weights, and whether it makes a start slow.
pub fn disk(directory: &Path) -> Finding {
    let size = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = files.map(|entry| entry.path());
    // Packed weights are a file, not a directory.
    let files = files.chain([directory.to_path_buf()]);
    let files: Vec<_> = files.filter(|path| path.is_file()).collect();
    let total: u64 = files.iter().map(|path| size(path)).sum();
    let Some(largest) = files.iter().max_by_key(|path| size(path)) else {
        return Err(format!("{}: holds no files", directory.display()));
    };
    let rate = match rate(largest) {
        Ok(rate) => rate,
        // Some file systems have no direct reads.
        Err(why) => {
            let file = largest.display();
            return Ok(format!("the disk's speed is not known: {file}: {why}"));
        }
    };
    let text = format!("the disk reads {:.1} GB/s", rate / GB);
    let seconds = total as f64 / rate;
    match rate < SLOW_BYTES_PER_S && total > PROBE_BYTES as u64 {
        true => Err(format!(
            "{text}: loading takes about {seconds:.0} s; put the weights onto a faster disk"
        )),
        false => {
            let all = total as f64 / GB;
            Ok(format!(
                "{text}: {all:.1} GB load in {seconds:.0} s at least"
            ))
        }
    }
}

/// Bytes a second of direct reads at the start of a file.
fn rate(path: &Path) -> io::Result<f64> {
    let flags = OFlags::DIRECT.bits().cast_signed();
    let mut file = OpenOptions::new();
    let file = file.read(true).custom_flags(flags).open(path)?;
    let mut memory = vec![0u8; READ_BYTES + ALIGNMENT];
    let skip = memory.as_ptr().align_offset(ALIGNMENT);
    let buffer = &mut memory[skip..skip + READ_BYTES];
    let (begun, mut done) = (Instant::now(), 0);
    while done < PROBE_BYTES {
        match rustix::io::pread(&file, &mut *buffer, done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done as f64 / begun.elapsed().as_secs_f64().max(f64::MIN_POSITIVE))
}

/// Number of connections that the limit of open files allows.
pub fn open_files() -> Finding {
    match files::connections() {
        found if found < CONNECTIONS_MAX => Err(format!(
            "the limit of open files leaves room for {found} connections of {CONNECTIONS_MAX}: \
             `ulimit -n`, or LimitNOFILE= of a unit"
        )),
        found => Ok(format!("open files suffice for {found} connections")),
    }
}

/// Page size and release of the kernel.
pub fn kernel() -> Finding {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let pages = page_size() >> 10;
    let (release, hardware) = (release.trim(), target::HARDWARE);
    Ok(format!("Linux {release}, pages of {pages} KiB, {hardware}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::testing::Folder;

    #[test]
    fn a_gpu_that_is_throttled_is_to_be_fixed() {
        let fine =
            "NVIDIA GB10, P0, 2400 MHz, 2418 MHz, 60.1 W, 55, Not Active, Not Active, Not Active\n";
        assert_eq!(
            power_of(fine).unwrap(),
            "NVIDIA GB10 in state P0, 2400 MHz of 2418 MHz, 60.1 W, 55 °C"
        );
        let hot = fine.replacen("Not Active", "Active", 1);
        assert!(power_of(&hot).unwrap_err().contains("held back"));
        assert!(power_of("no devices").unwrap().contains("no devices"));
    }

    #[test]
    fn a_file_that_this_process_has_open_is_seen() {
        let folder = Folder::new();
        let path = folder.join("open");
        let file = fs::File::create(&path).unwrap();
        let own = std::process::id().to_string();
        assert!(processes().any(|process| process == own));
        assert!(holds(&own, path.to_str().unwrap()));
        drop(file);
        assert!(!holds(&own, "/nowhere/"));
    }

    #[test]
    fn the_disk_of_a_directory_has_a_speed_or_a_reason() {
        assert!(disk(Path::new(env!("CARGO_MANIFEST_DIR"))).is_ok());
        assert!(
            disk(Path::new("/nowhere"))
                .unwrap_err()
                .contains("/nowhere")
        );
    }
}
