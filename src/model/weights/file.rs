//! An open file of weights, read by position: cached pages from the page cache, the rest directly
//! from the disk.
//!
//! Weights are read once and stored elsewhere. In the page cache they would evict other files, and
//! where host and device share memory they would take memory that the weights need. There, pages
//! that were read are also dropped from the cache.

use std::cell::RefCell;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, IoSliceMut};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::target;

/// Whether the page cache takes its pages from the memory that the weights are in.
const SHARES_MEMORY: bool = target::HOST_RESERVE.is_some();
/// Size in bytes below which reads, as of scales and vectors, go through the page cache, unless it
/// would keep the pages that the system reads ahead.
const DIRECT_BYTES_MIN: usize = 64 << 10;
/// Number of direct reads after the page cache lacked a page, until it is tried again: trying may
/// start a read-ahead.
const ASKED_EVERY: u32 = 16;
/// Bytes of which offset and length of direct reads are multiples; no disk has larger blocks.
const ALIGN: usize = 4096;
/// Largest number of bytes of one direct read.
const DIRECT_BYTES: usize = 2 << 20;

pub struct WeightsFile {
    file: File,
    /// The file opened for direct reads, or the reason why it cannot be.
    direct: Result<File, &'static str>,
    /// Number of reads until the page cache is tried again, after it lacked a page.
    asked_in: AtomicU32,
    stamp: Stamp,
}

/// Properties of a file that change when it is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

impl WeightsFile {
    /// Takes a regular file, and the same file opened for direct reads if they are possible.
    pub fn of(file: File, direct: Option<File>) -> io::Result<WeightsFile> {
        let stamp = Stamp::of(&file.metadata()?);
        let direct = match (direct, cached(&file, 0, &mut [0])) {
            (None, _) => Err("its file system has no direct reads"),
            (_, Err(_)) => Err("its file system does not tell what the page cache holds"),
            (Some(direct), Ok(_)) => Ok(direct),
        };
        Ok(WeightsFile {
            file,
            direct,
            asked_in: AtomicU32::new(0),
            stamp,
        })
    }

    /// Size of the file when it was opened, in bytes.
    pub fn bytes(&self) -> u64 {
        self.stamp.bytes
    }

    /// Handle by which the file is read through the page cache.
    pub fn handle(&self) -> &File {
        &self.file
    }

    /// Whether `path` leads to this file at present.
    pub fn is_at(&self, path: &Path) -> io::Result<bool> {
        let (own, found) = (self.file.metadata()?, path.metadata()?);
        Ok((own.dev(), own.ino()) == (found.dev(), found.ino()))
    }

    /// Reason for which the file is read through the page cache alone; None if it is not.
    pub fn detour(&self) -> Option<&'static str> {
        self.direct.as_ref().err().copied()
    }

    /// Whether the file is as it was when it was opened.
    pub fn is_unchanged(&self) -> io::Result<bool> {
        Ok(Stamp::of(&self.file.metadata()?) == self.stamp)
    }

    /// Fills `out` from `offset` on; returns how many bytes were read directly from the disk.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before, or the operating system's error.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<u64> {
        let is_small = out.len() < DIRECT_BYTES_MIN;
        let direct = match &self.direct {
            Ok(direct) if SHARES_MEMORY || !is_small => direct,
            _ => {
                self.file.read_exact_at(out, offset)?;
                self.drop_cached(offset, out.len());
                return Ok(0);
            }
        };
        let had = match is_small {
            true => 0,
            false => self.cached_now_and_then(offset, out)?,
        };
        let rest = &mut out[had..];
        read_direct(direct, offset + had as u64, rest)?;
        Ok(rest.len() as u64)
    }

    /// Reads cached pages as `cached` does, unless a page was missing a few reads ago.
    fn cached_now_and_then(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        // Concurrent reads may be counted as one, which does no harm.
        let asked_in = self.asked_in.load(Ordering::Relaxed);
        if asked_in > 0 {
            self.asked_in.store(asked_in - 1, Ordering::Relaxed);
            return Ok(0);
        }
        let had = cached(&self.file, offset, out)?;
        // The last page may be missing because it was dropped with the pages of the next read.
        if had + ALIGN < out.len() {
            self.asked_in.store(ASKED_EVERY, Ordering::Relaxed);
        }
        self.drop_cached(offset, out.len());
        Ok(had)
    }

    /// Drops the pages of a read from the page cache if that shares its memory with the weights:
    /// whole pages, and the first one, whose other part belongs to an earlier read. This is advice;
    /// pages that are to be written to the disk stay.
    fn drop_cached(&self, offset: u64, len: usize) {
        let page = ALIGN as u64;
        let (start, end) = (offset / page * page, (offset + len as u64) / page * page);
        if let Some(pages) = NonZeroU64::new(end.saturating_sub(start)).filter(|_| SHARES_MEMORY) {
            let _ = fadvise(&self.file, start, Some(pages), Advice::DontNeed);
        }
    }
}

impl Drop for WeightsFile {
    /// Drops from the page cache also pages at the edges of reads, and the system's read-ahead.
    fn drop(&mut self) {
        if SHARES_MEMORY {
            let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
        }
    }
}

/// Fills the first bytes of `out` with cached pages up to the first gap; returns their length.
fn cached(file: &File, offset: u64, out: &mut [u8]) -> io::Result<usize> {
    let mut had = 0;
    while had < out.len() {
        let mut rest = [IoSliceMut::new(&mut out[had..])];
        match preadv2(file, &mut rest, offset + had as u64, ReadWriteFlags::NOWAIT) {
            Ok(0) | Err(Errno::AGAIN) => break,
            Ok(count) => had += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(had)
}

thread_local! {
    /// Aligned memory of direct reads; each thread has its own.
    static LANDING: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn read_direct(file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    LANDING.with_borrow_mut(|landing| {
        landing.resize(DIRECT_BYTES + ALIGN, 0);
        let start = landing.as_ptr().align_offset(ALIGN);
        read_aligned(file, offset, out, &mut landing[start..][..DIRECT_BYTES])
    })
}

/// Reads into `landing`, which begins and ends at multiples of `ALIGN`.
fn read_aligned(
    file: &File,
    mut offset: u64,
    mut out: &mut [u8],
    landing: &mut [u8],
) -> io::Result<()> {
    while !out.is_empty() {
        let skipped = (offset % ALIGN as u64) as usize;
        let wanted = (skipped + out.len())
            .next_multiple_of(ALIGN)
            .min(landing.len());
        let count = match file.read_at(&mut landing[..wanted], offset - skipped as u64) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let count = count.saturating_sub(skipped).min(out.len());
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let (now, rest) = out.split_at_mut(count);
        now.copy_from_slice(&landing[skipped..][..count]);
        (out, offset) = (rest, offset + count as u64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::folder::Folder;
    use super::*;
    use host::testing::Folder as Scratch;

    const BYTES: usize = 3 * DIRECT_BYTES + 123;

    fn content() -> Vec<u8> {
        (0..BYTES).map(|at| ((at * 31) ^ (at >> 9)) as u8).collect()
    }

    fn file(folder: &Scratch) -> WeightsFile {
        std::fs::write(folder.0.join("weights"), content()).unwrap();
        let file = opened(folder);
        file.file.sync_all().unwrap(); // The page cache drops what is on the disk.
        file
    }

    fn opened(folder: &Scratch) -> WeightsFile {
        let opened = Folder::open(&folder.0).unwrap().file("weights").unwrap();
        WeightsFile::of(opened.file, opened.direct).unwrap()
    }

    /// Bytes at the file's start that the page cache holds.
    fn cached_bytes(file: &WeightsFile) -> usize {
        cached(&file.file, 0, &mut vec![0; BYTES]).unwrap_or(BYTES)
    }

    fn fill_cache(file: &WeightsFile) {
        file.file.read_exact_at(&mut vec![0; BYTES], 0).unwrap();
    }

    /// Whether `try_once` succeeds in one of a few tries. The kernel keeps pages in spite of the
    /// advice while it moves, scans or writes them.
    fn in_some_try(mut try_once: impl FnMut() -> bool) -> bool {
        (0..20).any(|_| {
            let is_done = try_once();
            if !is_done {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            is_done
        })
    }

    #[test]
    fn nothing_that_was_read_stays_in_the_cache() {
        let folder = Scratch::new();
        let mut file = file(&folder);
        for direct in [true, false] {
            if !direct {
                file.direct = Err("a test wants it so");
            }
            for (offset, len) in [(0, BYTES), (3, 70_000)] {
                let is_dropped = in_some_try(|| {
                    fill_cache(&file);
                    file.asked_in.store(0, Ordering::Relaxed);
                    file.read(offset, &mut vec![0; len]).unwrap();
                    cached_bytes(&file) == 0
                });
                assert!(is_dropped, "{offset} {len} {direct}");
            }
        }
        assert!(in_some_try(|| {
            fill_cache(&file);
            drop(opened(&folder));
            cached_bytes(&file) == 0
        }));
    }

    #[test]
    fn any_part_is_read_cached_or_not() {
        let (folder, content) = (Scratch::new(), content());
        let file = file(&folder);
        for asked_in in [0, u32::MAX] {
            let large = DIRECT_BYTES + 5000;
            for (offset, len) in [
                (0, BYTES),
                (1, 70_000),
                (4095, large),
                (BYTES - 70_001, 70_001),
            ] {
                fill_cache(&file);
                file.asked_in.store(asked_in, Ordering::Relaxed);
                let mut out = vec![0; len];
                let direct = file.read(offset as u64, &mut out).unwrap();
                assert!(out == content[offset..][..len], "{offset} {len}");
                let none = asked_in == 0 || file.direct.is_err();
                assert_eq!(direct, if none { 0 } else { len as u64 });
            }
        }
    }

    /// Where the file system has direct reads; elsewhere the reason is reported.
    #[test]
    fn aligned_reads_end_anywhere() {
        let (folder, content) = (Scratch::new(), content());
        let file = file(&folder);
        let Ok(direct) = &file.direct else {
            return assert!(file.detour().is_some());
        };
        file.file.sync_all().unwrap();
        fadvise(&file.file, 0, None, Advice::DontNeed).unwrap();
        for (offset, len) in [(0, 1), (4097, 2), (7, DIRECT_BYTES), (BYTES - 1, 1)] {
            let mut out = vec![0; len];
            read_direct(direct, offset as u64, &mut out).unwrap();
            assert!(out == content[offset..][..len], "{offset} {len}");
        }
        let beyond = read_direct(direct, BYTES as u64 - 1, &mut [0; 2]).unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_file_that_was_cut_or_written_to_is_found() {
        let folder = Scratch::new();
        let file = file(&folder);
        assert!(file.is_unchanged().unwrap());
        let path = folder.0.join("weights");
        let other = File::options().write(true).open(&path).unwrap();
        other.set_len(BYTES as u64 / 2).unwrap();
        assert!(!file.is_unchanged().unwrap());
        for asked_in in [0, u32::MAX] {
            file.asked_in.store(asked_in, Ordering::Relaxed);
            let error = file.read(0, &mut vec![0; BYTES]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        }
    }
}
