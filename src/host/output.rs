//! Files that a verb writes, which appear under their names only when complete.
//!
//! Bytes go to a temporary file of an unpredictable name next to the path, which is then renamed.
//! Only a regular file of the same user is replaced: a device, a pipe or a link under the name has
//! another purpose and is refused.

use std::collections::hash_map::RandomState;
use std::fs::{File, TryLockError};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use rustix::fs::{FileType, Mode, RenameFlags, Stat, fchmod};
use rustix::io::Errno;

use crate::beneath::{Beneath, Dir, is_own, kind, refusal};

/// Suffix of a temporary file.
pub const UNFINISHED: &str = ".partial";
/// Bytes of the final name that a temporary name repeats; names have at most 255 bytes.
const REPEATED_BYTES: usize = 200;
/// Random digits of a temporary name.
const DIGITS: usize = 16;

/// A file that is being written.
#[derive(Debug)]
pub struct Output {
    folder: Dir,
    name: Beneath,
    beside: Beneath,
    file: File,
}

impl Output {
    /// Begins a file next to `path`; removes temporary files that a killed run left there.
    ///
    /// # Errors
    /// `InvalidInput` states why an existing entry is not replaced, `ResourceBusy` that another run
    /// writes the file; else the operating system's error.
    pub fn create(path: &Path) -> io::Result<Output> {
        let (folder, name) = Beneath::last(path)?;
        Output::inside(Dir::open(folder)?, name)
    }

    /// Begins a file in an open folder, like [`Output::create`].
    ///
    /// # Errors
    /// `InvalidInput` and `ResourceBusy` like [`Output::create`]; the operating system's error.
    pub fn inside(folder: Dir, name: Beneath) -> io::Result<Output> {
        let replaced = replaceable(&folder, &name)?;
        sweep(&folder, &name)?;
        let beside = beside(&name);
        let file = folder.create(&beside, 0o666)?;
        let output = Output {
            folder,
            name,
            beside,
            file,
        };
        output.file.try_lock()?;
        if let Some(replaced) = replaced {
            fchmod(&output.file, Mode::from_raw_mode(replaced.st_mode & 0o777))?;
        }
        Ok(output)
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn folder(&self) -> &Dir {
        &self.folder
    }

    /// Flushes the file to the disk and renames it to its final name.
    ///
    /// # Errors
    /// `InvalidInput` and `ResourceBusy` like [`Output::create`]; the operating system's error.
    pub fn finish(self) -> io::Result<()> {
        self.file.sync_all()?;
        match replaceable(&self.folder, &self.name)? {
            Some(_) => {
                let (folder, beside) = (&self.folder, &self.beside);
                folder.rename(beside, &self.name, RenameFlags::empty())?;
            }
            None => rename_new(&self.folder, &self.beside, &self.name)?,
        }
        // A folder without read permission cannot be flushed, which is harmless.
        let _ = self.folder.sync();
        Ok(())
    }
}

impl Drop for Output {
    /// An incomplete file is removed, since its bytes on a full disk would be of no use.
    fn drop(&mut self) {
        let _ = self.folder.remove(&self.beside);
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a file with the content `content`.
///
/// # Errors
/// `InvalidInput` and `ResourceBusy` like [`Output::create`]; the operating system's error.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    let mut output = Output::create(path)?;
    output.write_all(content.as_ref())?;
    output.finish()
}

/// Opens a file to append lines to it; makes the file if it does not exist.
///
/// # Errors
/// `InvalidInput` and `ResourceBusy` like [`Output::create`]; the operating system's error.
pub fn append(path: &Path) -> io::Result<File> {
    let (folder, name) = Beneath::last(path)?;
    let folder = Dir::open(folder)?;
    replaceable(&folder, &name)?;
    folder.append(&name)
}

/// Renames an entry to a name that must not exist.
///
/// # Errors
/// `EXIST`, and the operating system's error.
pub fn rename_new(folder: &Dir, from: &Beneath, to: &Beneath) -> Result<(), Errno> {
    match folder.rename(from, to, RenameFlags::NOREPLACE) {
        // Some file systems, such as those of a network, cannot refuse to replace an entry.
        Err(Errno::INVAL | Errno::NOSYS) => folder.rename(from, to, RenameFlags::empty()),
        renamed => renamed,
    }
}

/// Status of the file that would be replaced; None if there is none.
fn replaceable(folder: &Dir, name: &Beneath) -> io::Result<Option<Stat>> {
    let found = folder.look(name)?;
    match found.as_ref().and_then(obstacle) {
        None => Ok(found),
        Some(what) => Err(refusal(format!(
            "is {what}, which is not written over; name another file"
        ))),
    }
}

/// Reason why the file under a name must not be replaced, if there is one.
fn obstacle(found: &Stat) -> Option<String> {
    Some(match kind(found) {
        FileType::RegularFile if is_own(found) => return None,
        FileType::RegularFile => format!("a file of user {}", found.st_uid),
        FileType::Directory => "a directory".to_string(),
        FileType::Symlink => "a link".to_string(),
        FileType::Fifo => "a pipe".to_string(),
        FileType::Socket => "a socket".to_string(),
        FileType::CharacterDevice | FileType::BlockDevice => "a device".to_string(),
        FileType::Unknown => "no file".to_string(),
    })
}

/// An unpredictable temporary name for `name`.
pub fn beside(name: &Beneath) -> Beneath {
    let number = RandomState::new().build_hasher().finish();
    let name = format!("{}{number:016x}{UNFINISHED}", beginning(name));
    Beneath::parse(&name).expect("a name with more letters")
}

fn beginning(name: &Beneath) -> String {
    let mut end = name.as_str().len().min(REPEATED_BYTES);
    while !name.as_str().is_char_boundary(end) {
        end -= 1;
    }
    format!(".{}.", &name.as_str()[..end])
}

/// Whether `found` is a name that [`beside`] may have made for `name`.
pub fn is_beside(found: &Beneath, name: &Beneath) -> bool {
    let found = found.as_str().strip_prefix(&beginning(name));
    let digits = found.and_then(|found| found.strip_suffix(UNFINISHED));
    digits.is_some_and(|digits| {
        digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Removes temporary files that killed runs left for `name`.
///
/// # Errors
/// `ResourceBusy` while another run writes; the operating system's error.
pub fn sweep(folder: &Dir, name: &Beneath) -> io::Result<()> {
    let names = folder.names().unwrap_or_default().into_iter();
    for left in names.filter(|found| is_beside(found, name)) {
        let Some(file) = folder.resume(&left)? else {
            continue;
        };
        match file.try_lock() {
            Ok(()) => folder.remove(&left)?,
            Err(TryLockError::WouldBlock) => return Err(busy()),
            Err(TryLockError::Error(_)) => {}
        }
    }
    Ok(())
}

/// Error if another run has the lock.
pub fn busy() -> io::Error {
    io::Error::new(ErrorKind::ResourceBusy, "another run writes it")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use super::*;
    use crate::testing::Folder;

    struct Temp(Folder);

    impl Temp {
        fn new() -> Temp {
            Temp(Folder::new())
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        fn count(&self) -> usize {
            fs::read_dir(&self.0).unwrap().count()
        }
    }

    #[test]
    fn a_file_is_whole_or_as_it_was_and_keeps_its_mode() {
        let temp = Temp::new();
        let file = temp.path("file");
        write(&file, "one").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let mut second = Output::create(&file).unwrap();
        second.write_all(b"two").unwrap();
        assert_eq!(
            Output::create(&file).unwrap_err().kind(),
            ErrorKind::ResourceBusy
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), "one");
        drop(second);
        assert_eq!(temp.count(), 1);
        write(&file, "three").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "three");
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o640
        );
    }

    #[test]
    fn leavings_of_a_killed_run_are_removed_and_files_of_others_are_not() {
        let temp = Temp::new();
        let left = [
            ".file.0123456789abcdef.partial",
            ".file.partial",
            ".other.0123456789abcdef.partial",
        ];
        for name in left {
            fs::write(temp.path(name), "").unwrap();
        }
        write(&temp.path("file"), "").unwrap();
        assert_eq!(
            left.map(|name| temp.path(name).exists()),
            [false, true, true]
        );
        let long = "ä".repeat(120);
        write(&temp.path(&long), "").unwrap();
        assert!(temp.path(&long).exists());
    }

    #[test]
    fn what_is_no_file_stays_and_is_named() {
        let temp = Temp::new();
        fs::write(temp.path("target"), "kept").unwrap();
        fs::create_dir(temp.path("folder")).unwrap();
        symlink(temp.path("target"), temp.path("link")).unwrap();
        symlink("nowhere", temp.path("dangling")).unwrap();
        let _socket = UnixListener::bind(temp.path("socket")).unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(temp.path("pipe"))
            .status();
        assert!(made.unwrap().success());
        let there = temp.count();
        for name in ["folder", "link", "dangling", "socket", "pipe"] {
            for refused in [
                write(&temp.path(name), "x"),
                append(&temp.path(name)).map(drop),
            ] {
                let why = refused.unwrap_err();
                assert_eq!(why.kind(), ErrorKind::InvalidInput, "{name}: {why}");
            }
        }
        assert_eq!(temp.count(), there);
        assert_eq!(fs::read_to_string(temp.path("target")).unwrap(), "kept");
    }

    #[test]
    fn devices_and_files_of_others_are_obstacles() {
        let temp = Temp::new();
        write(&temp.path("file"), "").unwrap();
        let (folder, name) = (Dir::open(&temp.0).unwrap(), Beneath::parse("file").unwrap());
        let own = folder.look(&name).unwrap().unwrap();
        assert_eq!(obstacle(&own), None);
        for (kind, what) in [(0o020_000, "a device"), (0o060_000, "a device")] {
            let mut found = own;
            found.st_mode = kind | 0o644;
            assert_eq!(obstacle(&found).as_deref(), Some(what));
        }
        let mut found = own;
        found.st_uid += 1;
        assert!(obstacle(&found).unwrap().starts_with("a file of user "));
    }

    #[test]
    fn what_comes_under_the_name_meanwhile_is_not_replaced() {
        let temp = Temp::new();
        let output = Output::create(&temp.path("file")).unwrap();
        symlink("elsewhere", temp.path("file")).unwrap();
        assert_eq!(output.finish().unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(
            fs::read_link(temp.path("file")).unwrap(),
            Path::new("elsewhere")
        );
        assert_eq!(temp.count(), 1);
    }
}
