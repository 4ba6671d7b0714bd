//! Copies of files with progress lines, verified while they are read, and resumed after an
//! interruption.

use std::fs::{File, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::fstatvfs;
use sha2::{Digest, Sha256};

use crate::cli::{Exit, Failure};
use crate::start::meter;
use host::beneath::{Beneath, Dir};
use host::log;
use model::weights::hex::hex;

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// A whole file, or a part of one in a bundle, opened when it is found, so that the copied file is
/// the one that was checked.
#[derive(Debug)]
pub struct Piece {
    file: File,
    /// Path for messages.
    shown: PathBuf,
    pub bytes: u64,
    /// Digest that the piece must have, if known.
    pub sha256: Option<String>,
}

impl Piece {
    /// A piece with the current size of a regular file.
    pub fn of(file: File, shown: PathBuf, sha256: Option<String>) -> Result<Piece, Failure> {
        let found = file.metadata().map_err(unreadable(&shown))?;
        Ok(Piece {
            bytes: found.len(),
            file,
            shown,
            sha256,
        })
    }

    /// A piece that is a file in a folder, with a stated digest.
    pub fn inside(folder: &Dir, path: &Beneath, sha256: &str) -> Result<Piece, Failure> {
        let shown = folder.shown(path);
        let file = folder.read(path).map_err(unreadable(&shown))?;
        Piece::of(file, shown, Some(sha256.to_string()))
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn shown(&self) -> &Path {
        &self.shown
    }
}

/// A file to be made from pieces.
#[derive(Debug)]
pub struct Copy<'a> {
    pub pieces: &'a [Piece],
    pub to: Beneath,
    /// Permissions of the new file.
    pub mode: u32,
}

impl Copy<'_> {
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }

    /// Whether `file` has exactly the pieces' bytes; reads it.
    pub fn is_in(&self, file: &File) -> io::Result<bool> {
        let mut at = 0;
        for piece in self.pieces {
            let found = digest(file, at, piece.bytes)?;
            if piece.sha256.as_ref() != Some(&found) {
                return Ok(false);
            }
            at += piece.bytes;
        }
        Ok(file.metadata()?.len() == at)
    }
}

/// Makes all files in order, in a folder that only this run writes to. Bytes of an earlier run are
/// verified instead of copied.
///
/// # Errors
/// Names the file that is damaged or cannot be read or written, and how to go on.
pub fn run(copies: &[Copy<'_>], into: &Dir) -> Result<(), Failure> {
    require_space(copies, into)?;
    let mut meter = Meter::new(copies.iter().map(Copy::bytes).sum());
    let mut copies = copies.iter();
    copies.try_for_each(|copy| one(copy, into, &mut meter))
}

/// Refuses copies that the disk has no space for, before anything is written.
fn require_space(copies: &[Copy<'_>], into: &Dir) -> Result<(), Failure> {
    let present = |copy: &Copy<'_>| match into.look(&copy.to) {
        Ok(Some(found)) => (found.st_size as u64).min(copy.bytes()),
        _ => 0,
    };
    let needed = copies.iter().map(|copy| copy.bytes() - present(copy)).sum();
    enough(into, needed)
}

/// Refuses to write `needed` bytes if the disk of a folder has no space for them.
///
/// # Errors
/// The numbers of bytes needed and free.
pub fn enough(folder: &Dir, needed: u64) -> Result<(), Failure> {
    let space = folder.readable().map(fstatvfs);
    let Ok(Ok(found)) = space else {
        return Ok(());
    };
    match found.f_bavail.saturating_mul(found.f_frsize) {
        free if free < needed => Err(Exit::Io.failure(format!(
            "{}: {needed} bytes are needed and {free} are free; free some or take another disk",
            folder.path().display()
        ))),
        _ => Ok(()),
    }
}

fn one(copy: &Copy<'_>, into: &Dir, meter: &mut Meter) -> Result<(), Failure> {
    let path = into.shown(&copy.to);
    let mut file = opened(copy, into).map_err(unwritable(&path))?;
    bring(copy, &mut file, &path, meter)
}

/// Copies all pieces into one open file, whose path for messages is `path`.
///
/// # Errors
/// Names the piece that is damaged or cannot be read, or the file that cannot be written.
pub fn into_file(copy: &Copy<'_>, file: &mut File, path: &Path) -> Result<(), Failure> {
    bring(copy, file, path, &mut Meter::new(copy.bytes()))
}

fn bring(copy: &Copy<'_>, file: &mut File, path: &Path, meter: &mut Meter) -> Result<(), Failure> {
    let mut start = 0;
    for piece in copy.pieces {
        piece_into(piece, file, start, path, meter)?;
        start += piece.bytes;
    }
    let ended = file.set_len(start).and_then(|()| {
        file.set_permissions(Permissions::from_mode(copy.mode))?;
        file.sync_all()
    });
    ended.map_err(unwritable(path))
}

/// Opens the file of an earlier run, or makes it.
fn opened(copy: &Copy<'_>, into: &Dir) -> io::Result<File> {
    if let (Some(folder), _) = copy.to.split() {
        into.make_folder(&folder, 0o755)?;
    }
    if let Some(file) = into.resume(&copy.to)? {
        return Ok(file);
    }
    into.remove(&copy.to)?;
    into.create(&copy.to, 0o600)
}

/// Makes `file` from byte `start` on equal to the piece.
fn piece_into(
    piece: &Piece,
    file: &mut File,
    start: u64,
    path: &Path,
    meter: &mut Meter,
) -> Result<(), Failure> {
    let before = meter.done;
    let present = file.metadata().map_or(0, |found| found.len());
    let present = present.saturating_sub(start);
    // Without a digest, bytes of an earlier run are not trusted.
    let known = piece.sha256.is_some();
    let resumed = if known { present.min(piece.bytes) } else { 0 };
    for resumed in [resumed, 0] {
        meter.done = before;
        let digest = continued(piece, file, start, resumed, path, meter)?;
        if piece.sha256.as_ref().is_none_or(|wanted| *wanted == digest) {
            return Ok(());
        }
        file.set_len(start).map_err(unwritable(path))?;
        if resumed == 0 {
            return Err(Exit::Config.failure(format!(
                "{}: its digest is not the stated one: it was damaged or cut short; fetch it \
                     again and run the same command, which goes on with it",
                piece.shown.display()
            )));
        }
    }
    Ok(())
}

/// Digest of a piece; copies all but the first `kept` bytes, which are read from the new file.
fn continued(
    piece: &Piece,
    file: &mut File,
    start: u64,
    resumed: u64,
    path: &Path,
    meter: &mut Meter,
) -> Result<String, Failure> {
    let mut digest = Sha256::new();
    let resumed = each_chunk(
        file,
        start,
        resumed,
        unreadable(path),
        &mut digest,
        |chunk| {
            meter.advance(chunk.len());
            Ok(())
        },
    )?;
    let unwritten = unwritable(path);
    file.seek(SeekFrom::Start(start + resumed))
        .map_err(unwritten)?;
    let (from, unread) = (&piece.file, unreadable(&piece.shown));
    each_chunk(from, resumed, u64::MAX, unread, &mut digest, |chunk| {
        meter.advance(chunk.len());
        file.write_all(chunk).map_err(unwritten)
    })?;
    Ok(hex(&digest.finalize()))
}

/// Appends at most `most` bytes of a piece from `start` on to a file; returns their digest.
///
/// # Errors
/// If the piece cannot be read or the file cannot be written.
pub fn copy_range(
    from: &Piece,
    start: u64,
    most: u64,
    to: &mut File,
    shown: &Path,
) -> Result<String, Failure> {
    let (mut digest, unread) = (Sha256::new(), unreadable(&from.shown));
    each_chunk(&from.file, start, most, unread, &mut digest, |chunk| {
        to.write_all(chunk).map_err(unwritable(shown))
    })?;
    Ok(hex(&digest.finalize()))
}

/// Passes at most `most` bytes of a file from `at` on to `take`; returns their number.
fn each_chunk<E>(
    file: &File,
    at: u64,
    most: u64,
    unread: impl Fn(io::Error) -> E,
    digest: &mut Sha256,
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<u64, E> {
    let (mut chunk, mut done) = (vec![0; CHUNK_BYTES], 0);
    while done < most {
        let bytes = usize::try_from(most - done).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
        match file.read_at(&mut chunk[..bytes], at + done) {
            Ok(0) => break,
            Ok(read) => {
                digest.update(&chunk[..read]);
                take(&chunk[..read])?;
                done += read as u64;
            }
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(unread(why)),
        }
    }
    Ok(done)
}

/// Digest of at most `most` bytes of a file from `at` on.
pub fn digest(file: &File, at: u64, most: u64) -> io::Result<String> {
    let mut digest = Sha256::new();
    each_chunk(file, at, most, |why| why, &mut digest, |_| Ok(()))?;
    Ok(hex(&digest.finalize()))
}

/// Report of a file that cannot be read, for `map_err`.
pub fn unreadable(path: &Path) -> impl Fn(io::Error) -> Failure + std::marker::Copy {
    move |why| Exit::Io.at(path, format!("cannot be read: {why}"))
}

/// Report of a file that cannot be written, for `map_err`.
pub fn unwritable(path: &Path) -> impl Fn(io::Error) -> Failure + std::marker::Copy {
    use io::ErrorKind as Kind;
    move |why| {
        let (exit, fix) = match why.kind() {
            // The text of the error names the fix.
            Kind::InvalidInput => return Exit::Usage.at(path, why),
            Kind::StorageFull => (Exit::Io, "free some of the disk and run the same command"),
            Kind::PermissionDenied => (
                Exit::Io,
                "run it as a user who may, for example with sudo, or name another place",
            ),
            Kind::ResourceBusy => (Exit::Unavailable, "wait for its end, or name another place"),
            _ => (Exit::Io, "run the same command again"),
        };
        exit.at(path, format!("cannot be written: {why}; {fix}"))
    }
}

/// Progress in bytes, printed once a second.
struct Meter {
    done: u64,
    total: u64,
    begun: Instant,
    last: Instant,
}

impl Meter {
    fn new(total: u64) -> Meter {
        let now = Instant::now();
        Meter {
            done: 0,
            total,
            begun: now,
            last: now,
        }
    }

    fn advance(&mut self, bytes: usize) {
        self.done += bytes as u64;
        if self.last.elapsed() >= meter::EVERY {
            self.last = Instant::now();
            let took = self.begun.elapsed();
            log::line(meter::line("copying", self.done, self.total, took));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use host::testing::Folder;

    struct Temp(Folder);

    impl Temp {
        fn new() -> Temp {
            Temp(Folder::new())
        }

        fn dir(&self) -> Dir {
            Dir::make(&self.0.join("to")).unwrap()
        }

        /// Writes two pieces that state their digests.
        fn pieces(&self) -> Vec<Piece> {
            let pieces = ["one", "two"].map(|name| {
                fs::write(self.0.join(name), name.repeat(1_000_000)).unwrap();
                self.piece(name)
            });
            pieces.into()
        }

        fn piece(&self, name: &str) -> Piece {
            let file = File::open(self.0.join(name)).unwrap();
            let sha256 = digest(&file, 0, u64::MAX).unwrap();
            Piece::of(file, name.into(), Some(sha256)).unwrap()
        }

        fn run(&self, pieces: &[Piece]) -> Result<(), Failure> {
            run(&[copy(pieces)], &self.dir())
        }

        fn text(&self) -> String {
            fs::read_to_string(self.0.join("to/file")).unwrap()
        }
    }

    fn copy(pieces: &[Piece]) -> Copy<'_> {
        Copy {
            pieces,
            to: Beneath::parse("file").unwrap(),
            mode: 0o644,
        }
    }

    fn whole() -> String {
        ["one", "two"].map(|name| name.repeat(1_000_000)).concat()
    }

    #[test]
    fn pieces_become_one_file_and_a_second_run_changes_nothing() {
        let temp = Temp::new();
        let pieces = temp.pieces();
        for _ in 0..2 {
            temp.run(&pieces).unwrap();
            assert_eq!(temp.text(), whole());
        }
        let file = File::open(temp.0.join("to/file")).unwrap();
        assert!(copy(&pieces).is_in(&file).unwrap());
        assert!(!copy(&pieces[1..]).is_in(&file).unwrap());
        assert!(!copy(&pieces[..1]).is_in(&file).unwrap());
    }

    #[test]
    fn an_interrupted_copy_goes_on_wherever_it_stopped_and_whatever_is_there() {
        let temp = Temp::new();
        let (pieces, text) = (temp.pieces(), whole());
        for resumed in [0, 1, 2_999_999, 3_000_000, 3_000_001, 6_000_000] {
            for damaged in [false, true] {
                let mut there = text.as_bytes()[..resumed].to_vec();
                if damaged && let Some(byte) = there.last_mut() {
                    *byte ^= 1;
                }
                temp.dir();
                fs::write(temp.0.join("to/file"), there).unwrap();
                temp.run(&pieces).unwrap();
                assert_eq!(temp.text(), text, "{resumed} {damaged}");
            }
        }
    }

    #[test]
    fn a_flipped_bit_or_a_part_cut_short_is_named() {
        let temp = Temp::new();
        let mut pieces = temp.pieces();
        let two = temp.0.join("two");
        let fine = fs::read(&two).unwrap();
        let mut flipped = fine.clone();
        flipped[1_234_567] ^= 4;
        for damaged in [flipped.as_slice(), &fine[..fine.len() - 1]] {
            fs::write(&two, damaged).unwrap();
            let sha256 = pieces[1].sha256.take();
            pieces[1] = temp.piece("two");
            pieces[1].sha256 = sha256;
            let why = temp.run(&pieces).unwrap_err();
            assert!(
                why.exit == Exit::Config && why.message.contains("two"),
                "{why:?}"
            );
        }
        fs::write(&two, fine).unwrap();
        temp.run(&[temp.piece("one"), temp.piece("two")]).unwrap();
        assert_eq!(temp.text(), whole());
    }

    #[test]
    fn a_copy_that_does_not_fit_is_refused_before_it_begins() {
        let temp = Temp::new();
        let mut pieces = temp.pieces();
        pieces[0].bytes = u64::MAX / 4;
        let why = temp.run(&pieces).unwrap_err();
        assert!(
            why.exit == Exit::Io && why.message.contains("are free"),
            "{why:?}"
        );
        assert!(temp.dir().is_empty().unwrap());
    }

    #[test]
    fn without_a_digest_what_was_there_is_written_anew() {
        let temp = Temp::new();
        let mut pieces = temp.pieces();
        pieces.iter_mut().for_each(|piece| piece.sha256 = None);
        temp.dir();
        fs::write(temp.0.join("to/file"), "other").unwrap();
        temp.run(&pieces).unwrap();
        assert_eq!(temp.text(), whole());
    }

    #[test]
    fn what_has_another_name_is_not_written_to() {
        let temp = Temp::new();
        let pieces = temp.pieces();
        temp.dir();
        fs::write(temp.0.join("other"), "other").unwrap();
        fs::hard_link(temp.0.join("other"), temp.0.join("to/file")).unwrap();
        temp.run(&pieces).unwrap();
        assert_eq!(temp.text(), whole());
        assert_eq!(fs::read_to_string(temp.0.join("other")).unwrap(), "other");
    }
}
