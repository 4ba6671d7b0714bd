//! A file of weights mapped into memory, under a lease.
//!
//! A page of a mapping whose file was cut short raises SIGBUS, which ends a process without a word.
//! So a file is mapped only under a read lease of the kernel (`fcntl(2)`, F_SETLEASE): a process
//! that opens it for writing or truncates it then waits until the lease is given back, for as long
//! as `/proc/sys/fs/lease-break-time` says, 45 s unless somebody changed it; a process that asked
//! not to wait is refused. Meanwhile the mapping is as it was, the holder learns that the lease is
//! wanted, reports so and ends, and the writer goes on. Any number of processes have a lease of the
//! same file. A lease is for the owner of the file (or CAP_LEASE) on a file system that has leases,
//! and protects where every way to the file leads through this kernel's view of it: not on FUSE or
//! a network, whose other end changes files by itself, nor on overlays, below which files have
//! other names. Elsewhere weights are copied to memory, where nobody can cut them. Renaming another
//! file to its place disturbs no lease. A disk that fails under a mapping still raises SIGBUS: no
//! lease helps against that.
//!
//! The kernel notifies the holder by a signal; here the signal does nothing by default, and the
//! state of the lease is queried instead, at each step and a few times a second between them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use libc::{F_GETLEASE, F_RDLCK, F_SETLEASE, SIGURG, c_int};
use memmap2::{Advice, Mmap};
use rustix::fs::fstatfs;

/// File systems of local disks and of memory, by their numbers (`statfs(2)`).
const LOCAL: [(&str, u64); 9] = [
    ("ext2, ext3 or ext4", 0xEF53),
    ("XFS", 0x5846_5342),
    ("Btrfs", 0x9123_683E),
    ("tmpfs", 0x0102_1994),
    ("ZFS", 0x2FC1_2FC1),
    ("F2FS", 0xF2F5_2010),
    ("bcachefs", 0xCA45_1A4E),
    ("SquashFS", 0x7371_7368),
    ("EROFS", 0xE0F5_E1E2),
];

/// `fcntl` command to choose the signal of a lease, which would end the process; not in `libc`.
const F_SETSIG: c_int = 10;

/// A whole file, mapped read-only as long as this value lives.
pub struct Mapping {
    memory: Mmap,
    /// The file with the lease, closed after the mapping.
    file: File,
    name: String,
}

impl Mapping {
    /// Maps `file`, of `bytes` bytes, which is open for reading alone.
    ///
    /// # Errors
    /// The file system is not known to be local, the kernel gives no lease, or the file has another
    /// size by now.
    pub fn new(file: File, name: String, bytes: u64) -> io::Result<Mapping> {
        require_local(fstatfs(&file)?.f_type as u64)?;
        lease(&file)?;
        // From here on, the lease protects the file's size.
        if file.metadata()?.len() != bytes {
            return Err(io::Error::other("it was cut short"));
        }
        // SAFETY: nobody changes the file while the lease is held, and work on the mapping ends
        // when the lease is wanted back.
        let memory = unsafe { Mmap::map(&file)? };
        // Advice to the kernel, which may fail: a start reads nearly the whole file.
        let _ = memory.advise(Advice::WillNeed);
        Ok(Mapping { memory, file, name })
    }

    /// Fails once somebody wants to write to the file: the mapping must not be read any more.
    ///
    /// # Errors
    /// Names the file and the fix.
    pub fn check(&self) -> Result<(), String> {
        match control(&self.file, F_GETLEASE, 0) {
            Ok(F_RDLCK) => Ok(()),
            _ => Err(format!(
                "{}: another program opened it to write to it or to cut it short, and its weights \
                 are served from there; to exchange it, write another file and rename that to its \
                 name",
                self.name
            )),
        }
    }
}

/// Refuses a file system, by its number, on which a lease might protect nothing.
fn require_local(number: u64) -> io::Result<()> {
    // Some systems fill the upper half of the number with its sign.
    let number = number & u64::from(u32::MAX);
    match LOCAL.iter().any(|(_, local)| *local == number) {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "its file system, {number:#x}, is none of a local disk"
        ))),
    }
}

/// Takes a read lease on the open file.
fn lease(file: &File) -> io::Result<()> {
    control(file, F_SETSIG, SIGURG)?;
    control(file, F_SETLEASE, F_RDLCK).map(drop)
}

fn control(file: &File, command: c_int, argument: c_int) -> io::Result<c_int> {
    // SAFETY: these commands of `fcntl` take and return a number.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } {
        -1 => Err(io::Error::last_os_error()),
        found => Ok(found),
    }
}

/// A range of bytes of a mapping; the range keeps the mapping alive.
#[derive(Clone)]
pub struct Stretch {
    mapping: Arc<Mapping>,
    range: Range<usize>,
}

impl Stretch {
    /// # Panics
    /// If the file has no such bytes.
    pub fn new(mapping: Arc<Mapping>, range: Range<usize>) -> Stretch {
        assert!(range.start <= range.end && range.end <= mapping.memory.len());
        Stretch { mapping, range }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.mapping.memory[self.range.clone()]
    }

    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_trusted_on_file_systems_of_this_machine_alone() {
        let [overlay, fuse, nfs, smb] = [0x794C_7630, 0x6573_5546, 0x6969, 0xFE53_4D42];
        for number in [overlay, fuse, nfs, smb, 0] {
            let why = require_local(number).unwrap_err().to_string();
            assert!(why.contains(&format!("{number:#x}")), "{why}");
        }
        let sign_extended = i64::from(0x9123_683E_u32.cast_signed()).cast_unsigned();
        for number in [0xEF53, 0x0102_1994, sign_extended] {
            require_local(number).unwrap();
        }
    }
}
