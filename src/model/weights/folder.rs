//! A directory of files: opens files by name, and follows a link only where no other user can have
//! placed it.
//!
//! Whoever can place a link on the path to a weights file chooses what the server reads. A link
//! counts when the owner of the directory, root or the user of this process placed it, and when
//! these users alone can change the directories that it leads through. Group members are people of
//! the owner's choice. Every step is opened relative to the one before, and checks are made on the
//! opened file, so that nothing can be exchanged in between.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open, openat, readlinkat};
use rustix::io::Errno;

use super::error::{Distrust, WeightsError};
use host::beneath::{self, LOOK, kind};

/// Largest number of links on the path to one file, as in the kernel.
const LINKS_MAX: usize = 40;
/// Name of the folder of the hub's cache that has contents under their digests.
pub(super) const BLOBS: &str = "blobs";
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// An open directory.
pub struct Folder {
    path: PathBuf,
    handle: OwnedFd,
    trusted: Trusted,
}

/// A regular file that was opened, and facts about it.
pub(super) struct Opened {
    pub file: File,
    /// Handle of the file for direct reads; None if its file system has none.
    pub direct: Option<File>,
    /// Name after `blobs/` in the first link to such a folder: the content's digest in a hub cache.
    pub blob: Option<String>,
    /// Users who decided which file this is: those who placed links on the path, and for a file
    /// with several names the owner of the directory.
    chosen_by: Vec<u32>,
}

/// Users who may place links.
struct Trusted([u32; 4]);

impl Trusted {
    /// Root, the user of this process, the owner of a directory, and the owner of `/`, which is
    /// root's number in a container with user ids of its own.
    fn of(directory: &Stat) -> Trusted {
        let [root, container, process] = beneath::trusted();
        Trusted([root, container, process, directory.st_uid])
    }

    fn has(&self, stat: &Stat) -> bool {
        self.0.contains(&stat.st_uid)
    }
}

/// Whether any user may place and remove entries of a directory.
fn is_open_to_all(stat: &Stat) -> bool {
    stat.st_mode & Mode::WOTH.bits() != 0
}

/// Whether entries of a directory can be removed by their owners alone, as in `/tmp`.
fn is_sticky(stat: &Stat) -> bool {
    stat.st_mode & Mode::SVTX.bits() != 0
}

impl Folder {
    /// Opens the directory at `path`, wherever links of the path lead: the caller chose it.
    ///
    /// # Errors
    /// `Denied` or `Io`.
    pub fn open(path: &Path) -> Result<Folder, WeightsError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = open(path, flags, Mode::empty());
        let handle = opened.map_err(|error| WeightsError::of_path(path, error.into()))?;
        let stat = fstat(&handle).map_err(|error| WeightsError::of_path(path, error.into()))?;
        Ok(Folder {
            path: path.to_path_buf(),
            handle,
            trusted: Trusted::of(&stat),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether an entry of this name exists, even a link that leads nowhere.
    pub fn has(&self, name: &str) -> bool {
        openat(&self.handle, name, LOOK, Mode::empty()).is_ok()
    }

    /// Sorted names of the directory's entries; empty if the directory cannot be listed.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// Opens the regular file at `name`, which may include folders.
    ///
    /// # Errors
    /// `Absent`, `Denied`, `NotRegular`, `Untrusted` or `Io`.
    pub(super) fn file(&self, name: &str) -> Result<Opened, WeightsError> {
        Walk::new(self, name).and_then(Walk::arrive)
    }

    /// Opens a file whose content is to be copied to a path that others can read. A link of another
    /// user must lead to a file of that user: other files that this process can read are not that
    /// user's to publish.
    ///
    /// # Errors
    /// `Untrusted` if the link does not; `Absent`, `Denied`, `NotRegular` or `Io`.
    pub fn open_to_copy(&self, name: &str) -> Result<File, WeightsError> {
        let opened = self.file(name)?;
        let path = self.path.join(name);
        let owner = fstat(&opened.file).map_err(|error| WeightsError::of_path(&path, error.into()));
        let owner = owner?.st_uid;
        let trusted = beneath::trusted();
        let mut chosen_by = opened.chosen_by.into_iter();
        match chosen_by.find(|user| *user != owner && !trusted.contains(user)) {
            None => Ok(opened.file),
            Some(user) => Err(WeightsError::Untrusted {
                why: Distrust::ChosenBy(user, path.clone(), owner),
                path,
                directory: self.path.clone(),
            }),
        }
    }

    /// Reads a file of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// Errors of `file`; `LargeFile`.
    pub fn read(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>, WeightsError> {
        let file = self.file(name)?.file;
        let path = self.path.join(name);
        read_whole(file, &path, bytes_max)
    }
}

fn read_whole(file: File, path: &Path, bytes_max: u64) -> Result<Vec<u8>, WeightsError> {
    use std::io::Read;
    let mut content = Vec::new();
    // One byte more than allowed is read, since the file may grow meanwhile.
    let read = file.take(bytes_max + 1).read_to_end(&mut content);
    read.map_err(|error| WeightsError::of_path(path, error))?;
    if content.len() as u64 > bytes_max {
        return Err(WeightsError::LargeFile {
            path: path.to_path_buf(),
            bytes_max,
        });
    }
    Ok(content)
}

/// A walk through directories and links to a file.
struct Walk<'a> {
    folder: &'a Folder,
    /// Path of the file as the caller named it.
    wanted: PathBuf,
    /// Directory that the walk has reached.
    at: OwnedFd,
    /// Path of `at`, for messages.
    at_path: PathBuf,
    /// Names still to be walked, the next one last.
    ahead: Vec<OsString>,
    links: usize,
    blob: Option<String>,
    /// Owners of the links that were followed.
    chosen_by: Vec<u32>,
}

impl<'a> Walk<'a> {
    fn new(folder: &'a Folder, name: &str) -> Result<Walk<'a>, WeightsError> {
        let wanted = folder.path.join(name);
        let at = folder.handle.try_clone();
        let mut walk = Walk {
            at: at.map_err(|error| WeightsError::of_path(&wanted, error))?,
            at_path: folder.path.clone(),
            ahead: Vec::new(),
            links: 0,
            blob: None,
            chosen_by: Vec::new(),
            folder,
            wanted,
        };
        walk.go_by(Path::new(name))?;
        Ok(walk)
    }

    fn arrive(mut self) -> Result<Opened, WeightsError> {
        while let Some(name) = self.ahead.pop() {
            let path = self.at_path.join(&name);
            let seen = self.look(&name, &path)?;
            let stat = self.stat(&seen)?;
            match kind(&stat) {
                FileType::Symlink => self.follow(&seen, &stat, &path)?,
                FileType::Directory if !self.ahead.is_empty() => self.enter(seen, &stat, path)?,
                FileType::RegularFile if self.ahead.is_empty() => {
                    return self.finish(&name, &stat);
                }
                _ => break,
            }
        }
        Err(WeightsError::NotRegular { path: self.wanted })
    }

    fn look(&self, name: &OsStr, path: &Path) -> Result<OwnedFd, WeightsError> {
        openat(&self.at, name, LOOK, Mode::empty()).map_err(|error| match error {
            Errno::NOENT if self.links > 0 => WeightsError::Dangling {
                path: self.wanted.clone(),
                target: path.to_path_buf(),
            },
            Errno::ACCESS => WeightsError::Denied {
                path: self.at_path.clone(),
            },
            error => WeightsError::of_path(&self.wanted, error.into()),
        })
    }

    fn stat(&self, seen: &OwnedFd) -> Result<Stat, WeightsError> {
        fstat(seen).map_err(|error| WeightsError::of_path(&self.wanted, error.into()))
    }

    /// Adds the names of `path`, to be walked before the remaining ones.
    fn go_by(&mut self, path: &Path) -> Result<(), WeightsError> {
        if path.is_absolute() {
            let root = open("/", LOOK, Mode::empty());
            self.at = root.map_err(|error| WeightsError::of_path(&self.wanted, error.into()))?;
            self.at_path = PathBuf::from("/");
        }
        let names = path.components().filter_map(|part| match part {
            Component::ParentDir | Component::Normal(_) => Some(part.as_os_str().to_owned()),
            _ => None,
        });
        let names: Vec<OsString> = names.collect();
        self.ahead.extend(names.into_iter().rev());
        Ok(())
    }

    /// Enters a directory. After a link, the directory decides which file is found, so a trusted
    /// user must own the directory.
    fn enter(&mut self, seen: OwnedFd, stat: &Stat, path: PathBuf) -> Result<(), WeightsError> {
        let up = path.ends_with("..");
        self.at_path = if up { parent(&self.at_path) } else { path };
        if self.links > 0 {
            let directory = self.at_path.clone();
            if !self.folder.trusted.has(stat) {
                return Err(self.untrusted(Distrust::DirectoryOf(stat.st_uid, directory)));
            }
            if is_open_to_all(stat) && !is_sticky(stat) {
                return Err(self.untrusted(Distrust::OpenToAll(directory)));
            }
        }
        self.at = seen;
        Ok(())
    }

    fn follow(&mut self, link: &OwnedFd, stat: &Stat, path: &Path) -> Result<(), WeightsError> {
        let directory = self.stat(&self.at)?;
        if !self.folder.trusted.has(stat) {
            return Err(self.untrusted(Distrust::LinkOf(stat.st_uid, path.to_path_buf())));
        }
        if is_open_to_all(&directory) && !is_sticky(&directory) {
            return Err(self.untrusted(Distrust::OpenToAll(self.at_path.clone())));
        }
        self.links += 1;
        self.chosen_by.push(stat.st_uid);
        if self.links > LINKS_MAX {
            return Err(WeightsError::of_path(&self.wanted, Errno::LOOP.into()));
        }
        let target = readlinkat(link, "", Vec::new());
        let target = target.map_err(|error| WeightsError::of_path(path, error.into()))?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        self.blob = self.blob.take().or_else(|| blob_of(&target));
        self.go_by(&target)
    }

    /// Opens the last name, and makes sure that it is the entry `seen`.
    fn finish(self, name: &OsStr, seen: &Stat) -> Result<Opened, WeightsError> {
        let directory = self.stat(&self.at)?;
        let exchangeable = is_open_to_all(&directory) && !self.folder.trusted.has(seen);
        if self.links > 0 && exchangeable {
            let path = self.at_path.join(name);
            return Err(self.untrusted(Distrust::FileOf(seen.st_uid, path)));
        }
        let file = self.reopen(name, seen, OFlags::empty())?;
        let direct = self.reopen(name, seen, OFlags::DIRECT).ok();
        let mut chosen_by = self.chosen_by;
        chosen_by.extend((seen.st_nlink > 1).then_some(directory.st_uid));
        Ok(Opened {
            file,
            direct,
            blob: self.blob,
            chosen_by,
        })
    }

    fn reopen(&self, name: &OsStr, seen: &Stat, flags: OFlags) -> Result<File, WeightsError> {
        let opened = openat(&self.at, name, READ | flags, Mode::empty());
        let opened = opened.map_err(|error| match error {
            Errno::ACCESS => WeightsError::Denied {
                path: self.at_path.join(name),
            },
            error => WeightsError::of_path(&self.wanted, error.into()),
        })?;
        let found = self.stat(&opened)?;
        if (found.st_dev, found.st_ino) != (seen.st_dev, seen.st_ino) {
            return Err(WeightsError::Changed {
                file: self.wanted.display().to_string(),
            });
        }
        Ok(opened.into())
    }

    fn untrusted(&self, why: Distrust) -> WeightsError {
        WeightsError::Untrusted {
            path: self.wanted.clone(),
            directory: self.folder.path.clone(),
            why,
        }
    }
}

/// The directory above `path`, whose links are resolved first.
fn parent(path: &Path) -> PathBuf {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    real.parent().map(Path::to_path_buf).unwrap_or(real)
}

/// The last name of a link's target, where the name before it is `blobs`.
fn blob_of(target: &Path) -> Option<String> {
    let is_blob = target.parent()?.file_name() == Some(OsStr::new(BLOBS));
    let name = target.file_name()?.as_bytes();
    let name = std::str::from_utf8(name).ok()?;
    is_blob.then(|| name.to_string())
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;
