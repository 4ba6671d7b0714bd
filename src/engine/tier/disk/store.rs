//! Storage of entries: a folder, which one server uses at a time.

use std::fs::{self, DirBuilder, File, FileTimes, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Mode of an entry's file: for the server's user alone.
const FILE_MODE: u32 = 0o600;
/// Mode of the folder: for the server's user alone.
const FOLDER_MODE: u32 = 0o700;
/// Name of the file that is locked by the server that uses the folder.
const LOCK: &str = "lock";
/// Extension of the file name of a complete entry.
const WHOLE: &str = ".kv";
/// Extension of the file name of an entry that is still being written.
const PART: &str = ".part";
/// Digits of an entry's number in its file name.
const NUMBER_DIGITS: usize = 16;

/// Entries of the disk cache by their numbers.
pub trait Storage: Send + Sync {
    /// Numbers and bytes of entries, the least recently used first. Incomplete ones are removed.
    ///
    /// # Errors
    /// The storage cannot be read.
    fn list(&self) -> io::Result<Vec<(u64, u64)>>;

    /// Fills `to` with the bytes of an entry from the offset `at` on.
    ///
    /// # Errors
    /// `UnexpectedEof` or `NotFound` if the entry has too few bytes.
    fn read(&self, entry: u64, at: u64, to: &mut [u8]) -> io::Result<()>;

    /// Writes a part of an entry that is not complete yet.
    ///
    /// # Errors
    /// The storage cannot be written.
    fn write(&self, entry: u64, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes a written entry visible as complete.
    ///
    /// # Errors
    /// Errors of `write`.
    fn publish(&self, entry: u64) -> io::Result<()>;

    /// Notes a use of an entry.
    ///
    /// # Errors
    /// Errors of `write`.
    fn touch(&self, entry: u64) -> io::Result<()>;

    /// Removes an entry if there is one, complete or not.
    ///
    /// # Errors
    /// Errors of `write`.
    fn remove(&self, entry: u64) -> io::Result<()>;
}

/// A folder with a file for each entry.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Lock file, locked as long as it is open.
    _lock: File,
}

impl Folder {
    /// Opens the folder at a path, which is made if missing.
    ///
    /// # Errors
    /// Says why the folder cannot be used; another server may have locked it.
    pub fn open(path: &Path) -> Result<Folder, String> {
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(FOLDER_MODE).create(path);
        let lock = made.and_then(|()| draft().open(path.join(LOCK)));
        let lock = lock.map_err(|error| error.to_string())?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => "another server has it".to_owned(),
            TryLockError::Error(error) => error.to_string(),
        })?;
        Ok(Folder {
            path: path.to_path_buf(),
            _lock: lock,
        })
    }

    fn file(&self, entry: u64, end: &str) -> PathBuf {
        self.path.join(format!("{entry:016x}{end}"))
    }
}

fn draft() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    options.mode(FILE_MODE);
    options
}

impl Storage for Folder {
    fn list(&self) -> io::Result<Vec<(u64, u64)>> {
        let mut found = vec![];
        for file in fs::read_dir(&self.path)? {
            let file = file?;
            let name = file.file_name();
            let Some(name) = name.to_str() else { continue };
            let own = |end: &str| {
                let number = name.strip_suffix(end);
                let number = number.filter(|number| number.len() == NUMBER_DIGITS)?;
                u64::from_str_radix(number, 16).ok()
            };
            if own(PART).is_some() {
                fs::remove_file(file.path())?;
            } else if let Some(entry) = own(WHOLE) {
                let data = file.metadata()?;
                found.push((data.modified()?, entry, data.len()));
            }
        }
        found.sort_unstable();
        let found = found.into_iter();
        Ok(found.map(|(_, entry, bytes)| (entry, bytes)).collect())
    }

    fn read(&self, entry: u64, at: u64, to: &mut [u8]) -> io::Result<()> {
        File::open(self.file(entry, WHOLE))?.read_exact_at(to, at)
    }

    fn write(&self, entry: u64, at: u64, bytes: &[u8]) -> io::Result<()> {
        let file = draft().open(self.file(entry, PART))?;
        file.write_all_at(bytes, at)
    }

    fn publish(&self, entry: u64) -> io::Result<()> {
        fs::rename(self.file(entry, PART), self.file(entry, WHOLE))
    }

    fn touch(&self, entry: u64) -> io::Result<()> {
        let file = draft().create(false).open(self.file(entry, WHOLE))?;
        file.set_times(FileTimes::new().set_modified(SystemTime::now()))
    }

    fn remove(&self, entry: u64) -> io::Result<()> {
        for end in [PART, WHOLE] {
            match fs::remove_file(self.file(entry, end)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_whole_entries_and_one_server() {
        let folder = host::testing::Folder::new();
        let path = folder.0.join("cache");
        let folder = Folder::open(&path).unwrap();
        assert_eq!(Folder::open(&path).unwrap_err(), "another server has it");
        for entry in [1, 2, 3] {
            folder.write(entry, 4, &[entry as u8; 4]).unwrap();
        }
        folder.publish(1).unwrap();
        folder.publish(3).unwrap();
        let mut read = [0; 8];
        folder.read(3, 0, &mut read).unwrap();
        assert_eq!(read, [0, 0, 0, 0, 3, 3, 3, 3]);
        let short = folder.read(3, 1, &mut read).unwrap_err().kind();
        let absent = folder.read(2, 0, &mut read).unwrap_err().kind();
        assert_eq!(short, io::ErrorKind::UnexpectedEof);
        assert_eq!(absent, io::ErrorKind::NotFound);
        folder.touch(1).unwrap();
        assert_eq!(folder.list().unwrap(), [(3, 8), (1, 8)]);
        assert!(!folder.file(2, PART).exists(), "what is not whole goes");
        folder.remove(3).unwrap();
        assert_eq!(folder.list().unwrap(), [(1, 8)]);
        drop(folder);
        assert!(Folder::open(&path).is_ok());
    }
}
