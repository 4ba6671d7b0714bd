//! Files copied with progress, verified while they are read, resumed where an earlier run stopped,
//! and seen under their names only when whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::statvfs;
use sha2::{Digest, Sha256};

use crate::cli::meter;
use crate::cli::{Exit, Failure};
use crate::log;

/// Ends the name of a file that is not whole.
pub const UNFINISHED: &str = ".partial";
/// Bytes that are read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// A piece of a file: all of it, or one of several parts that follow each other.
#[derive(Clone, Debug)]
pub struct Piece {
    pub path: PathBuf,
    pub bytes: u64,
    /// What it must have, where that is known.
    pub sha256: Option<String>,
}

impl Piece {
    /// A piece of the size that the file at `path` has now.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn of(path: PathBuf, sha256: Option<String>) -> Result<Piece, Failure> {
        let found = fs::metadata(&path).map_err(|why| unreadable(&path, &why))?;
        if !found.is_file() {
            return Err(Failure::new(
                Exit::Config,
                format!("{}: is no file", path.display()),
            ));
        }
        Ok(Piece {
            bytes: found.len(),
            path,
            sha256,
        })
    }
}

/// A file to be made of its pieces.
#[derive(Clone, Debug)]
pub struct Copy {
    pub pieces: Vec<Piece>,
    pub to: PathBuf,
    /// Permissions of the new file.
    pub mode: u32,
}

impl Copy {
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }

    fn unfinished(&self) -> PathBuf {
        let mut name = self.to.clone().into_os_string();
        name.push(UNFINISHED);
        name.into()
    }

    /// Bytes that are there from an earlier run.
    fn present(&self) -> u64 {
        let size = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
        size(&self.to)
            .max(size(&self.unfinished()))
            .min(self.bytes())
    }
}

/// Copies all, in order; what is there already is read and compared rather than copied.
///
/// # Errors
/// The file that is damaged or cannot be read or written, and how to go on.
pub fn run(copies: &[Copy]) -> Result<(), Failure> {
    room(copies)?;
    let mut told = Told::new(copies.iter().map(Copy::bytes).sum());
    copies.iter().try_for_each(|copy| one(copy, &mut told))
}

/// Refuses before anything is written what the disk has no room for.
fn room(copies: &[Copy]) -> Result<(), Failure> {
    let Some(folder) = copies.first().and_then(|copy| copy.to.parent()) else {
        return Ok(());
    };
    fs::create_dir_all(folder).map_err(|why| unwritable(folder, &why))?;
    let free = statvfs(folder).map(|found| found.f_bavail.saturating_mul(found.f_frsize));
    let needed: u64 = copies
        .iter()
        .map(|copy| copy.bytes() - copy.present())
        .sum();
    match free {
        Ok(free) if free < needed => Err(Failure::new(
            Exit::Io,
            format!(
                "{}: {needed} bytes are needed and {free} are free; free some or take another disk",
                folder.display()
            ),
        )),
        _ => Ok(()),
    }
}

fn one(copy: &Copy, told: &mut Told) -> Result<(), Failure> {
    if let Some(folder) = copy.to.parent() {
        fs::create_dir_all(folder).map_err(|why| unwritable(folder, &why))?;
    }
    let path = copy.unfinished();
    let writing = |why: &io::Error| unwritable(&path, why);
    // A whole file of an earlier run is compared like one that is not.
    if copy.to.is_file() && !path.exists() {
        fs::rename(&copy.to, &path).map_err(|why| writing(&why))?;
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    let mut file = file.map_err(|why| writing(&why))?;
    let mut start = 0;
    for piece in &copy.pieces {
        piece_into(piece, &mut file, start, &path, told)?;
        start += piece.bytes;
    }
    let ended = file.set_len(start).and_then(|()| {
        use std::os::unix::fs::PermissionsExt;
        file.set_permissions(fs::Permissions::from_mode(copy.mode))?;
        file.sync_all()?;
        fs::rename(&path, &copy.to)
    });
    ended.map_err(|why| writing(&why))
}

/// Brings `file` from `start` on to what the piece holds.
fn piece_into(
    piece: &Piece,
    file: &mut File,
    start: u64,
    path: &Path,
    told: &mut Told,
) -> Result<(), Failure> {
    let before = told.done;
    let present = file
        .metadata()
        .map_or(0, |found| found.len())
        .saturating_sub(start);
    // Nothing that was there is trusted without a digest.
    let kept = piece
        .sha256
        .as_ref()
        .map_or(0, |_| present.min(piece.bytes));
    for kept in [kept, 0] {
        told.done = before;
        let digest = continued(piece, file, start, kept, path, told)?;
        if piece.sha256.as_ref().is_none_or(|wanted| *wanted == digest) {
            return Ok(());
        }
        file.set_len(start).map_err(|why| unwritable(path, &why))?;
        if kept == 0 {
            return Err(Failure::new(
                Exit::Config,
                format!(
                    "{}: its digest is not the stated one: it was damaged or cut short; fetch it \
                     again and run the same command, which goes on with it",
                    piece.path.display()
                ),
            ));
        }
    }
    Ok(())
}

/// Digest of a piece whose first `kept` bytes are taken from the file as they are.
fn continued(
    piece: &Piece,
    file: &mut File,
    start: u64,
    kept: u64,
    path: &Path,
    told: &mut Told,
) -> Result<String, Failure> {
    let mut digest = Sha256::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    file.seek(SeekFrom::Start(start))
        .map_err(|why| unreadable(path, &why))?;
    let mut left = kept;
    while left > 0 {
        let most = usize::try_from(left)
            .unwrap_or(CHUNK_BYTES)
            .min(CHUNK_BYTES);
        let read = file
            .read(&mut chunk[..most])
            .map_err(|why| unreadable(path, &why))?;
        if read == 0 {
            break;
        }
        digest.update(&chunk[..read]);
        (left, told.done) = (left - read as u64, told.done + read as u64);
        told.tell();
    }
    let reading = |why: &io::Error| unreadable(&piece.path, why);
    let mut source = File::open(&piece.path).map_err(|why| reading(&why))?;
    source
        .seek(SeekFrom::Start(kept))
        .map_err(|why| reading(&why))?;
    loop {
        let read = source.read(&mut chunk).map_err(|why| reading(&why))?;
        if read == 0 {
            break;
        }
        file.write_all(&chunk[..read])
            .map_err(|why| unwritable(path, &why))?;
        digest.update(&chunk[..read]);
        told.done += read as u64;
        told.tell();
    }
    Ok(hex(&digest.finalize()))
}

/// Digest of a file.
///
/// # Errors
/// If it cannot be read.
pub fn digest(path: &Path) -> Result<String, Failure> {
    let mut file = File::open(path).map_err(|why| unreadable(path, &why))?;
    let (mut digest, mut chunk) = (Sha256::new(), vec![0; CHUNK_BYTES]);
    loop {
        match file
            .read(&mut chunk)
            .map_err(|why| unreadable(path, &why))?
        {
            0 => return Ok(hex(&digest.finalize())),
            read => digest.update(&chunk[..read]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unreadable(path: &Path, why: &io::Error) -> Failure {
    Failure::new(
        Exit::Io,
        format!("{}: cannot be read: {why}", path.display()),
    )
}

/// How a file that cannot be written is reported.
pub fn unwritable(path: &Path, why: &io::Error) -> Failure {
    let fix = match why.kind() {
        io::ErrorKind::StorageFull => "free some of the disk and run the same command: it goes on",
        io::ErrorKind::PermissionDenied => "run it as a user who may, for example with sudo",
        _ => "what is there is kept, and the same command goes on with it",
    };
    Failure::new(
        Exit::Io,
        format!("{}: cannot be written: {why}; {fix}", path.display()),
    )
}

/// Bytes done, told once a second.
struct Told {
    done: u64,
    total: u64,
    begun: Instant,
    last: Instant,
}

impl Told {
    fn new(total: u64) -> Told {
        let now = Instant::now();
        Told {
            done: 0,
            total,
            begun: now,
            last: now,
        }
    }

    fn tell(&mut self) {
        if self.last.elapsed() >= meter::EVERY {
            self.last = Instant::now();
            log::line(meter::line(
                "copying",
                self.done,
                self.total,
                self.begun.elapsed(),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let path =
                std::env::temp_dir().join(format!("atlas-transfer-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Place(path)
        }

        /// Writes two pieces; a copy of both that states their digests.
        fn copy(&self) -> Copy {
            let pieces = ["one", "two"].map(|name| {
                let path = self.0.join(name);
                fs::write(&path, name.repeat(1_000_000)).unwrap();
                let sha256 = Some(digest(&path).unwrap());
                Piece::of(path, sha256).unwrap()
            });
            Copy {
                pieces: pieces.to_vec(),
                to: self.0.join("to/file"),
                mode: 0o644,
            }
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn whole() -> String {
        ["one", "two"].map(|name| name.repeat(1_000_000)).concat()
    }

    #[test]
    fn pieces_become_one_file_and_a_second_run_changes_nothing() {
        let place = Place::new("twice");
        let copy = place.copy();
        for _ in 0..2 {
            run(std::slice::from_ref(&copy)).unwrap();
            assert_eq!(fs::read_to_string(&copy.to).unwrap(), whole());
        }
        assert!(!copy.unfinished().exists());
    }

    #[test]
    fn an_interrupted_copy_goes_on_wherever_it_stopped_and_whatever_is_there() {
        let place = Place::new("resume");
        let copy = place.copy();
        let text = whole();
        for kept in [0, 1, 2_999_999, 3_000_000, 3_000_001, 6_000_000] {
            for damaged in [false, true] {
                let _ = fs::remove_file(&copy.to);
                let mut there = text.as_bytes()[..kept].to_vec();
                if damaged && let Some(byte) = there.last_mut() {
                    *byte ^= 1;
                }
                fs::create_dir_all(copy.to.parent().unwrap()).unwrap();
                fs::write(copy.unfinished(), there).unwrap();
                run(std::slice::from_ref(&copy)).unwrap();
                assert_eq!(
                    fs::read_to_string(&copy.to).unwrap(),
                    text,
                    "{kept} {damaged}"
                );
            }
        }
    }

    #[test]
    fn a_flipped_bit_or_a_part_cut_short_is_named_and_nothing_appears() {
        let place = Place::new("damage");
        let copy = place.copy();
        let two = place.0.join("two");
        let fine = fs::read(&two).unwrap();
        let mut flipped = fine.clone();
        flipped[1_234_567] ^= 4;
        for damaged in [flipped.as_slice(), &fine[..fine.len() - 1]] {
            fs::write(&two, damaged).unwrap();
            let why = run(std::slice::from_ref(&copy)).unwrap_err();
            assert!(
                why.exit == Exit::Config && why.message.contains("two"),
                "{why:?}"
            );
            assert!(!copy.to.exists());
        }
        fs::write(&two, fine).unwrap();
        run(std::slice::from_ref(&copy)).unwrap();
        assert_eq!(fs::read_to_string(&copy.to).unwrap(), whole());
    }

    #[test]
    fn what_has_no_room_is_refused_before_it_begins() {
        let place = Place::new("room");
        let mut copy = place.copy();
        copy.pieces[0].bytes = u64::MAX / 4;
        let why = run(&[copy.clone()]).unwrap_err();
        assert!(
            why.exit == Exit::Io && why.message.contains("are free"),
            "{why:?}"
        );
        assert!(!copy.unfinished().exists());
    }

    #[test]
    fn without_a_digest_what_was_there_is_written_anew() {
        let place = Place::new("unknown");
        let mut copy = place.copy();
        copy.pieces.iter_mut().for_each(|piece| piece.sha256 = None);
        fs::create_dir_all(copy.to.parent().unwrap()).unwrap();
        fs::write(copy.unfinished(), "other").unwrap();
        run(std::slice::from_ref(&copy)).unwrap();
        assert_eq!(fs::read_to_string(&copy.to).unwrap(), whole());
    }
}
