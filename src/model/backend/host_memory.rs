//! Memory of the host that may be taken: its free part, within the limits of this process. Limits
//! are the memory of its control groups, versions 1 and 2, and the address space and data that it
//! may have (`ulimit -v`, `-d`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::process::{Resource, getrlimit};

use step::{DEEP_STACKS_BYTES, SERVER_BYTES};

use crate::ops::{Bound, HostMemory};
use crate::target;
use host::allocator;
use host::threads::cores;

/// Number of threads assumed for the addresses that threads, allocators' pools and mapped files
/// reserve beyond the memory in use; two for each core are added.
const THREADS: u64 = 32;
const STACK_BYTES: u64 = 2 * MEBIBYTE;
const POOLS_BYTES: u64 = allocator::POOLS as u64 * allocator::POOL_BYTES;
/// Bytes from which on a group's limit means no limit: the largest number of pages.
const NO_LIMIT: u64 = 1 << 62;
const MEBIBYTE: u64 = 1024 * 1024;

/// Bytes that may be taken, and the limit that bounds them.
pub type Left = (u64, Bound);

/// Files in which the system states free memory and the control groups of this process.
#[derive(Clone, Debug)]
pub struct Files {
    pub meminfo: PathBuf,
    pub groups: PathBuf,
    pub mounts: PathBuf,
}

impl Default for Files {
    /// Files of Linux (proc(5)).
    fn default() -> Files {
        Files {
            meminfo: "/proc/meminfo".into(),
            groups: "/proc/self/cgroup".into(),
            mounts: "/proc/self/mountinfo".into(),
        }
    }
}

impl Files {
    /// Free memory beyond a reserve of `reserve` bytes.
    fn free(&self, reserve: u64) -> Option<Left> {
        let available = available_bytes(&fs::read_to_string(&self.meminfo).ok()?)?;
        Some((available.saturating_sub(reserve), Bound::Free))
    }

    /// Memory below the limits of the control groups that is not taken.
    fn group(&self) -> Option<Left> {
        let groups = fs::read_to_string(&self.groups).ok()?;
        let mounts = fs::read_to_string(&self.mounts).ok()?;
        group_left(&groups, &mounts, &|file| fs::read_to_string(file).ok())
    }

    /// The lesser of the free memory and the rest of the control groups' limits.
    pub fn available(&self, reserve: u64) -> Option<Left> {
        let bounds = [self.free(reserve), self.group()];
        bounds.into_iter().flatten().min_by_key(|(bytes, _)| *bytes)
    }
}

/// Memory of the host that may be taken, the reserve for other programs excluded.
pub fn memory() -> HostMemory {
    let least = least().as_ref();
    HostMemory {
        bytes: least.map(|(bytes, _)| *bytes),
        bound: least.map(|(_, bound)| bound),
        server: SERVER_BYTES,
    }
}

/// Bytes of host memory that a model may take; None if the model does not lie there, or the system
/// does not tell.
pub fn available() -> Option<u64> {
    memory().available()
}

fn least() -> &'static Option<Left> {
    static LEAST: OnceLock<Option<Left>> = OnceLock::new();
    LEAST.get_or_init(|| {
        let reserve = target::HOST_RESERVE.unwrap_or(0);
        let bounds = [Files::default().available(reserve), address_space(), data()];
        bounds.into_iter().flatten().min_by_key(|(bytes, _)| *bytes)
    })
}

fn stacks_bytes() -> u64 {
    (THREADS + 2 * cores() as u64) * STACK_BYTES + DEEP_STACKS_BYTES
}

fn address_space() -> Option<Left> {
    let limit = getrlimit(Resource::As).current?;
    let reserved = stacks_bytes() + POOLS_BYTES;
    let bytes = limit.saturating_sub(status_bytes("VmSize:")? + reserved);
    Some((bytes, Bound::AddressSpace(limit)))
}

fn data() -> Option<Left> {
    let limit = getrlimit(Resource::Data).current?;
    let bytes = limit.saturating_sub(status_bytes("VmData:")? + stacks_bytes());
    Some((bytes, Bound::Data(limit)))
}

/// Value of the line `name` of `/proc/self/status`, in bytes.
fn status_bytes(name: &str) -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/self/status").ok()?, name)
}

/// `MemAvailable` of `/proc/meminfo`, which includes caches that can be reclaimed.
pub fn available_bytes(meminfo: &str) -> Option<u64> {
    kibibytes(meminfo, "MemAvailable:")
}

/// The value of the line `name`, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The least rest of a limit of this process's control groups, by `/proc/self/cgroup` and
/// `/proc/self/mountinfo`; each group bounds the groups inside it. `read` reads a file.
fn group_left(groups: &str, mounts: &str, read: &dyn Fn(&Path) -> Option<String>) -> Option<Left> {
    let all = mounts.lines().filter_map(Mount::parse).filter_map(|mount| {
        let path = mount.version.path(groups)?;
        // A path outside of the mounted part belongs to a group above it.
        let below = Path::new(path)
            .strip_prefix(mount.root)
            .unwrap_or(Path::new(""));
        let deepest = Path::new(mount.point).join(below);
        let within = |level: &&Path| level.starts_with(mount.point);
        let levels = deepest.ancestors().take_while(within);
        let all = levels.filter_map(|level| mount.version.available(level, read));
        all.min_by_key(|(bytes, _)| *bytes)
    });
    all.min_by_key(|(bytes, _)| *bytes)
}

/// A mounted hierarchy of control groups that limits memory.
struct Mount<'m> {
    version: Version,
    /// Group that is mounted.
    root: &'m str,
    /// Path at which the group is mounted.
    point: &'m str,
}

impl Mount<'_> {
    /// Parses a line of `/proc/self/mountinfo` (proc(5)): number, parent, device, root, mount
    /// point, options and some more up to a dash, then type, source and options of the file system.
    fn parse(line: &str) -> Option<Mount<'_>> {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let mut system = system.split(' ');
        let version = match (system.next()?, system.nth(1)?) {
            ("cgroup2", _) => Version::Two,
            ("cgroup", options) if options.split(',').any(|option| option == "memory") => {
                Version::One
            }
            _ => return None,
        };
        Some(Mount {
            version,
            root: mount.next()?,
            point: mount.next()?,
        })
    }
}

#[derive(Clone, Copy)]
enum Version {
    One,
    Two,
}

impl Version {
    /// The path of this process's group in `/proc/self/cgroup`: lines of number, controllers, path.
    fn path(self, groups: &str) -> Option<&str> {
        let mut lines = groups.lines().filter_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let own = match self {
                Version::One => controllers.split(',').any(|name| name == "memory"),
                Version::Two => number == "0" && controllers.is_empty(),
            };
            own.then_some(path)
        });
        lines.next()
    }

    /// Bytes left below the limit of the group at `level`; None without a limit. Caches of files
    /// count as free, since they can be reclaimed.
    fn available(self, level: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Option<Left> {
        let [limit, usage, prefix] = match self {
            Version::One => ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_"],
            Version::Two => ["memory.max", "memory.current", ""],
        };
        let number = |file| -> Option<u64> { read(&level.join(file))?.trim().parse().ok() };
        let limit = number(limit).filter(|limit| *limit < NO_LIMIT)?;
        let statistics = read(&level.join("memory.stat")).unwrap_or_default();
        let cached = ["inactive_file", "active_file"].map(|name| {
            let name = format!("{prefix}{name} ");
            let mut lines = statistics.lines();
            let value = lines.find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok());
            value.unwrap_or(0)
        });
        let used = number(usage)?.saturating_sub(cached.iter().sum());
        let bound = Bound::Group(level.to_path_buf(), limit);
        Some((limit.saturating_sub(used), bound))
    }
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
        let of_system = available_bytes(&meminfo).unwrap();
        assert!(available().unwrap() < of_system);
    }

    const MOUNTS: &str = "\
        22 1 8:1 / / rw - ext4 /dev/sda rw\n\
        30 22 0:26 / /cg/cpu rw shared:9 - cgroup cgroup rw,cpu\n\
        31 22 0:27 / /cg/memory rw,nosuid shared:10 - cgroup cgroup rw,memory\n\
        32 22 0:28 /pod /cg/unified rw - cgroup2 cgroup2 rw\n";
    const GROUPS: &str = "4:cpu:/other\n3:name=x,memory:/a/b\n0::/pod/c\n";

    fn found(files: &[(&str, &str)]) -> Option<(u64, String)> {
        let read = |path: &Path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path);
            file.map(|(_, text)| text.to_string())
        };
        match group_left(GROUPS, MOUNTS, &read)? {
            (bytes, Bound::Group(path, _)) => Some((bytes, path.display().to_string())),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_narrowest_group_of_either_version_bounds_the_memory() {
        let first = [
            ("/cg/memory/a/b/memory.limit_in_bytes", "1000\n"),
            ("/cg/memory/a/b/memory.usage_in_bytes", "300\n"),
            (
                "/cg/memory/a/b/memory.stat",
                "active_file 9\ntotal_inactive_file 100\ntotal_active_file 50\n",
            ),
        ];
        assert_eq!(found(&first), Some((850, "/cg/memory/a/b".to_string())));
        let above = [
            ("/cg/memory/a/memory.limit_in_bytes", "900"),
            ("/cg/memory/a/memory.usage_in_bytes", "500"),
        ];
        let both = [&first[..], &above].concat();
        assert_eq!(found(&both), Some((400, "/cg/memory/a".to_string())));
        let second = [
            ("/cg/unified/c/memory.max", "300"),
            ("/cg/unified/c/memory.current", "250"),
            ("/cg/unified/c/memory.stat", "anon 1\ninactive_file 100\n"),
        ];
        let all = [&both[..], &second].concat();
        assert_eq!(found(&all), Some((150, "/cg/unified/c".to_string())));
    }

    #[test]
    fn a_group_without_a_limit_bounds_nothing() {
        assert_eq!(found(&[]), None);
        let unlimited = [
            ("/cg/memory/memory.limit_in_bytes", "9223372036854771712"),
            ("/cg/memory/memory.usage_in_bytes", "5"),
            ("/cg/unified/c/memory.max", "max"),
            ("/cg/unified/c/memory.current", "5"),
        ];
        assert_eq!(found(&unlimited), None);
    }

    #[test]
    fn a_group_that_uses_more_than_its_limit_has_no_memory_left() {
        let files = [
            ("/cg/unified/memory.max", "10"),
            ("/cg/unified/memory.current", "50"),
        ];
        assert_eq!(found(&files), Some((0, "/cg/unified".to_string())));
    }
}
