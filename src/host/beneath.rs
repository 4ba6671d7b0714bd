//! Paths that cannot leave a folder, and folders that open them.
//!
//! A bundle from elsewhere lists files that are read and written, often by root. [`Beneath`] is a
//! checked path of such a list, and [`Dir`] opens the path from the handle of a folder without
//! following links: the path stays inside, whatever is renamed or linked meanwhile.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, fstat, linkat, mkdirat,
    open, openat, openat2, readlinkat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// A path below a folder: parts with one slash between them, none of which is `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Beneath(String);

impl Beneath {
    /// Checks the text of a path.
    ///
    /// # Errors
    /// The rule that the text breaks.
    pub fn parse(path: &str) -> Result<Beneath, &'static str> {
        let is_dots = |part: &str| matches!(part, "." | "..");
        match path {
            "" => Err("is empty"),
            _ if path.starts_with('/') => Err("is absolute"),
            _ if path.ends_with('/') => Err("ends with a slash"),
            _ if path.contains("//") => Err("has an empty part"),
            _ if path.chars().any(char::is_control) => Err("has a control character"),
            _ if path.split('/').any(is_dots) => Err("has a part \".\" or \"..\""),
            _ => Ok(Beneath(path.to_string())),
        }
    }

    /// The folder and the last name of a path that an operator gave.
    ///
    /// # Errors
    /// `InvalidInput` when the path does not end in a name for a file.
    pub fn last(path: &Path) -> io::Result<(&Path, Beneath)> {
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        let ends_in_name = matches!(path.components().next_back(), Some(Component::Normal(_)));
        let name = path.file_name().filter(|_| ends_in_name);
        let name = name.and_then(|name| Beneath::parse(name.to_str()?).ok());
        let problem = "ends in no name of plain characters; give it one";
        let name = name.ok_or_else(|| refusal(problem))?;
        Ok((folder.unwrap_or(Path::new(".")), name))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The rest of the path below the folder `first`; None if the path is not below it.
    pub fn below(&self, first: &str) -> Option<Beneath> {
        let rest = self.0.strip_prefix(first)?.strip_prefix('/')?;
        Some(Beneath(rest.to_string()))
    }

    pub fn join(&self, rest: &Beneath) -> Beneath {
        Beneath(format!("{self}/{rest}"))
    }

    /// Folder and last name of the path.
    pub fn split(&self) -> (Option<Beneath>, Beneath) {
        match self.0.rsplit_once('/') {
            None => (None, self.clone()),
            Some((folder, name)) => (Some(Beneath(folder.into())), Beneath(name.into())),
        }
    }

    /// Paths of the folders around this path, the outermost first, then the path itself.
    fn prefixes(&self) -> impl Iterator<Item = Beneath> {
        let ends = self.0.match_indices('/').map(|(at, _)| at);
        ends.chain([self.0.len()])
            .map(|end| Beneath(self.0[..end].to_string()))
    }
}

impl fmt::Display for Beneath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Users whose links are followed: root, this process, and the owner of `/`, which in a container
/// with its own users is the outer root.
pub fn trusted() -> [u32; 3] {
    let root = open("/", LOOK, Mode::empty()).and_then(fstat);
    [0, root.map_or(0, |stat| stat.st_uid), geteuid().as_raw()]
}

/// Whether the user of this process owns a file.
pub fn is_own(stat: &Stat) -> bool {
    stat.st_uid == geteuid().as_raw()
}

pub fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Flags to open an entry for its status only, without waiting for the writer of a pipe.
pub const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const FOLDER: OFlags = LOOK.union(OFlags::DIRECTORY);
/// Flags to open without waiting for the writer of a pipe.
const AT_ONCE: OFlags = OFlags::NONBLOCK
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);
/// Most links that are followed to open one folder, as in the kernel.
const LINKS_MAX: usize = 40;

/// An open folder.
#[derive(Debug)]
pub struct Dir {
    /// Path of the folder, for messages.
    path: PathBuf,
    handle: OwnedFd,
}

impl Dir {
    /// Opens a folder that an operator named. Links in the path are followed if root or the user of
    /// this process placed them: anybody can place links in a folder that all may write to.
    ///
    /// # Errors
    /// The operating system's error, or one that names another user's link in the path.
    pub fn open(path: &Path) -> io::Result<Dir> {
        Way::to(path)?.walk(false)
    }

    /// Opens a folder like [`Dir::open`], and makes missing folders in the path.
    ///
    /// # Errors
    /// The operating system's error, or one that names another user's link in the path.
    pub fn make(path: &Path) -> io::Result<Dir> {
        Way::to(path)?.walk(true)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of an entry of the folder, for messages.
    pub fn shown(&self, path: &Beneath) -> PathBuf {
        self.path.join(path.as_str())
    }

    /// Opens the entry at `path` in the folder without following links.
    fn at(&self, path: &Beneath, flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
        let (flags, mode) = (flags | OFlags::NOFOLLOW, Mode::from_raw_mode(mode));
        let stays = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match openat2(&self.handle, path.as_str(), flags, mode, stays) {
            // Kernels before 5.6 do not have the call, and some containers forbid it.
            Err(Errno::NOSYS | Errno::PERM) => Ok(self.at_by_parts(path, flags, mode)?),
            opened => Ok(opened?),
        }
    }

    /// [`Dir::at`], one folder of the path at a time.
    fn at_by_parts(&self, path: &Beneath, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let (folder, name) = path.split();
        let Some(folder) = folder else {
            return openat(&self.handle, name.as_str(), flags, mode);
        };
        let mut parts = folder.as_str().split('/');
        let first = parts.next().unwrap_or_default();
        let first = openat(&self.handle, first, FOLDER, Mode::empty());
        let folder = parts.try_fold(first?, |at, part| openat(&at, part, FOLDER, Mode::empty()));
        openat(folder?, name.as_str(), flags, mode)
    }

    /// Opens a folder below this one.
    ///
    /// # Errors
    /// The operating system's error; a link is no folder.
    pub fn folder(&self, path: &Beneath) -> io::Result<Dir> {
        Ok(Dir {
            handle: self.at(path, FOLDER, 0)?,
            path: self.shown(path),
        })
    }

    /// Opens a folder below this one, and makes missing folders in the path, with `mode` less the
    /// process's mask.
    ///
    /// # Errors
    /// The operating system's error; a link is no folder.
    pub fn make_folder(&self, path: &Beneath, mode: u32) -> io::Result<Dir> {
        for folder in path.prefixes() {
            let (holder, name) = self.holder(&folder)?;
            match mkdirat(&holder, name.as_str(), Mode::from_raw_mode(mode)) {
                Err(Errno::EXIST) => {}
                made => made?,
            }
        }
        self.folder(path)
    }

    /// Makes one new folder.
    ///
    /// # Errors
    /// `AlreadyExists`, and the operating system's error.
    pub fn new_folder(&self, path: &Beneath, mode: u32) -> io::Result<Dir> {
        let (holder, name) = self.holder(path)?;
        mkdirat(&holder, name.as_str(), Mode::from_raw_mode(mode))?;
        self.folder(path)
    }

    /// Opens a regular file to read it.
    ///
    /// # Errors
    /// The operating system's error, or that the entry is no regular file.
    pub fn read(&self, path: &Beneath) -> io::Result<File> {
        let file = File::from(self.at(path, OFlags::RDONLY | AT_ONCE, 0)?);
        regular(file)
    }

    /// Opens a regular file to append to it; makes the file if it does not exist.
    ///
    /// # Errors
    /// The operating system's error, or that the entry is no regular file.
    pub fn append(&self, path: &Beneath) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | AT_ONCE;
        regular(File::from(self.at(path, flags, 0o666)?))
    }

    /// Makes a new file, with `mode` less the process's mask.
    ///
    /// # Errors
    /// `AlreadyExists`, and the operating system's error.
    pub fn create(&self, path: &Beneath, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        Ok(self.at(path, flags, mode)?.into())
    }

    /// Opens a regular file of this process's user to continue writing it. None if there is no such
    /// file, or if it has other names, by which others may use it.
    ///
    /// # Errors
    /// The operating system's error, or that the entry is no regular file.
    pub fn resume(&self, path: &Beneath) -> io::Result<Option<File>> {
        let alone =
            |stat: &Stat| kind(stat) == FileType::RegularFile && is_own(stat) && stat.st_nlink == 1;
        match self.look(path)?.is_some_and(|stat| alone(&stat)) {
            true => Ok(Some(self.at(path, OFlags::RDWR | AT_ONCE, 0)?.into())),
            false => Ok(None),
        }
    }

    /// Gives an open file another name.
    ///
    /// # Errors
    /// The operating system's error, such as for a file of another file system.
    pub fn link(&self, file: &File, path: &Beneath) -> io::Result<()> {
        let (holder, name) = self.holder(path)?;
        // The link is made by handle: the file's old name may lead to another file by now.
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        let follow = AtFlags::SYMLINK_FOLLOW;
        Ok(linkat(CWD, from, &holder, name.as_str(), follow)?)
    }

    /// Status of the entry at a path, of a link itself if it is one; None if there is no entry.
    pub fn look(&self, path: &Beneath) -> io::Result<Option<Stat>> {
        let found = self
            .holder(path)
            .and_then(|(holder, name)| Ok(statat(&holder, name.as_str(), NOFOLLOW)?));
        match found {
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Status of the folder itself.
    pub fn stat(&self) -> io::Result<Stat> {
        Ok(fstat(&self.handle)?)
    }

    /// Target of the link at a path; None if there is no link.
    pub fn link_target(&self, path: &Beneath) -> Option<PathBuf> {
        let (holder, name) = self.holder(path).ok()?;
        let target = readlinkat(&holder, name.as_str(), Vec::new()).ok()?;
        Some(OsString::from_vec(target.into_bytes()).into())
    }

    /// Handle of the folder around a path, and the last name.
    fn holder(&self, path: &Beneath) -> io::Result<(OwnedFd, Beneath)> {
        let (folder, name) = path.split();
        let holder = match folder {
            None => self.handle.try_clone()?,
            Some(folder) => self.at(&folder, FOLDER, 0)?,
        };
        Ok((holder, name))
    }

    /// Sorted names of the folder's entries, without those that are not UTF-8.
    pub fn names(&self) -> io::Result<Vec<Beneath>> {
        let names = self.entries()?.into_iter();
        let names = names.filter_map(|name| Beneath::parse(name.to_str()?).ok());
        let mut names: Vec<Beneath> = names.collect();
        names.sort();
        Ok(names)
    }

    fn entries(&self) -> io::Result<Vec<OsString>> {
        let names = rustix::fs::Dir::new(self.readable()?)?.map(|entry| {
            let name = entry?.file_name().to_bytes().to_vec();
            Ok(OsString::from_vec(name))
        });
        let names: io::Result<Vec<OsString>> = names.collect();
        let is_entry = |name: &OsString| !matches!(name.as_bytes(), b"." | b"..");
        Ok(names?.into_iter().filter(is_entry).collect())
    }

    /// Whether the folder is empty.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.entries()?.is_empty())
    }

    /// Renames an entry, with the options `flags`.
    pub fn rename(&self, from: &Beneath, to: &Beneath, flags: RenameFlags) -> Result<(), Errno> {
        let (folder, from, to) = (&self.handle, from.as_str(), to.as_str());
        renameat_with(folder, from, folder, to, flags)
    }

    /// Removes a file or link.
    ///
    /// # Errors
    /// The operating system's error; none if the entry does not exist.
    pub fn remove(&self, path: &Beneath) -> io::Result<()> {
        self.unlink(path, AtFlags::empty())
    }

    /// Removes an empty folder.
    ///
    /// # Errors
    /// The operating system's error; none if the folder does not exist.
    pub fn remove_folder(&self, path: &Beneath) -> io::Result<()> {
        self.unlink(path, AtFlags::REMOVEDIR)
    }

    fn unlink(&self, path: &Beneath, flags: AtFlags) -> io::Result<()> {
        let removed = self
            .holder(path)
            .and_then(|(holder, name)| Ok(unlinkat(&holder, name.as_str(), flags)?));
        match removed {
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Removes everything in the folder; targets of links stay.
    pub fn empty(&self) -> io::Result<()> {
        for name in self.entries()? {
            match unlinkat(&self.handle, &name, AtFlags::empty()) {
                Err(Errno::ISDIR) => {
                    let inner = Dir {
                        handle: openat(&self.handle, &name, FOLDER, Mode::empty())?,
                        path: self.path.join(&name),
                    };
                    inner.empty()?;
                    unlinkat(&self.handle, &name, AtFlags::REMOVEDIR)?;
                }
                removed => removed?,
            }
        }
        Ok(())
    }

    /// Handle of the folder that can be locked, given a mode and flushed to the disk.
    ///
    /// # Errors
    /// The operating system's error, such as for a folder that this process may not list.
    pub fn readable(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat(&self.handle, ".", flags, Mode::empty())?.into())
    }

    /// Flushes the names of the folder's entries to the disk.
    pub fn sync(&self) -> io::Result<()> {
        self.readable()?.sync_all()
    }
}

const NOFOLLOW: AtFlags = AtFlags::SYMLINK_NOFOLLOW;

/// Error `InvalidInput` with the text `problem`, which also names the fix if there is one.
pub fn refusal(problem: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, problem.into())
}

fn regular(file: File) -> io::Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(refusal("is no regular file")),
    }
}

/// Walk through folders and links to a folder.
struct Way {
    path: PathBuf,
    at: OwnedFd,
    /// Names still to be walked, the next one last.
    ahead: Vec<OsString>,
    links: usize,
}

impl Way {
    fn to(path: &Path) -> io::Result<Way> {
        let mut way = Way {
            path: path.to_path_buf(),
            at: open(".", FOLDER, Mode::empty())?,
            ahead: Vec::new(),
            links: 0,
        };
        way.go_by(path)?;
        Ok(way)
    }

    /// Puts the names of `path` before the names still to be walked.
    fn go_by(&mut self, path: &Path) -> io::Result<()> {
        if path.is_absolute() {
            self.at = open("/", FOLDER, Mode::empty())?;
        }
        let names = path.components().rev().filter_map(|part| match part {
            Component::ParentDir | Component::Normal(_) => Some(part.as_os_str().to_owned()),
            _ => None,
        });
        self.ahead.extend(names);
        Ok(())
    }

    fn walk(mut self, make: bool) -> io::Result<Dir> {
        while let Some(name) = self.ahead.pop() {
            let mut seen = openat(&self.at, &name, LOOK, Mode::empty());
            if make && matches!(seen, Err(Errno::NOENT)) {
                mkdirat(&self.at, &name, Mode::from_raw_mode(0o777))?;
                seen = openat(&self.at, &name, LOOK, Mode::empty());
            }
            let seen = seen?;
            let stat = fstat(&seen)?;
            match kind(&stat) {
                FileType::Directory => self.at = seen,
                FileType::Symlink => self.follow(&seen, &stat, &name)?,
                _ => return Err(Errno::NOTDIR.into()),
            }
        }
        Ok(Dir {
            path: self.path,
            handle: self.at,
        })
    }

    fn follow(&mut self, link: &OwnedFd, stat: &Stat, name: &OsString) -> io::Result<()> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        if !trusted().contains(&stat.st_uid) {
            return Err(refusal(format!(
                "{name:?} on the way is a link that user {} placed; give the path that it leads to",
                stat.st_uid
            )));
        }
        let target = readlinkat(link, "", Vec::new())?;
        let target: PathBuf = OsString::from_vec(target.into_bytes()).into();
        self.go_by(&target)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;
    use crate::testing::Folder;

    struct Temp(Folder);

    impl Temp {
        fn new() -> Temp {
            let folder = Folder::new();
            fs::create_dir_all(folder.join("in/a")).unwrap();
            fs::write(folder.join("in/a/b"), "inside").unwrap();
            fs::write(folder.join("out"), "outside").unwrap();
            Temp(folder)
        }

        fn dir(&self) -> Dir {
            Dir::open(&self.0.join("in")).unwrap()
        }
    }

    fn path(text: &str) -> Beneath {
        Beneath::parse(text).unwrap()
    }

    #[test]
    fn paths_that_lead_elsewhere_are_none() {
        let wrong = [
            "", "/", "/a", "a/", "a//b", "//a", ".", "..", "./a", "a/.", "a/..", "a/../b", "a\n",
            "a\0b", "\x1b[2J", "a\u{85}b",
        ];
        for wrong in wrong {
            assert!(Beneath::parse(wrong).is_err(), "{wrong:?}");
        }
        for right in ["a", "a/b", ".a", "..a", "a..", "...", "a b", "ä/~"] {
            assert_eq!(path(right).as_str(), right);
        }
        assert_eq!(path("a/b/c").below("a"), Some(path("b/c")));
        assert_eq!(path("ab/c").below("a"), None);
    }

    #[test]
    fn what_is_below_is_opened_and_no_link_is_followed_with_or_without_the_call() {
        let temp = Temp::new();
        let dir = temp.dir();
        symlink(temp.0.join("out"), temp.0.join("in/file")).unwrap();
        symlink(&temp.0, temp.0.join("in/folder")).unwrap();
        symlink("b", temp.0.join("in/a/near")).unwrap();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | AT_ONCE;
        let ways = [
            |dir: &Dir, path: &Beneath, flags| dir.at(path, flags, 0),
            |dir: &Dir, path: &Beneath, flags| Ok(dir.at_by_parts(path, flags, Mode::empty())?),
        ];
        for open in ways {
            for wrong in ["file", "folder/out", "a/near", "a/b/c", "none"] {
                assert!(open(&dir, &path(wrong), flags).is_err(), "{wrong}");
            }
            assert!(open(&dir, &path("a/b"), flags).is_ok());
        }
        assert!(dir.read(&path("a")).is_err(), "a folder is no file");
    }

    #[test]
    fn a_folder_is_emptied_and_what_its_links_lead_to_stays() {
        let temp = Temp::new();
        let dir = temp.dir();
        symlink(temp.0.join("out"), temp.0.join("in/a/file")).unwrap();
        symlink(&temp.0, temp.0.join("in/folder")).unwrap();
        dir.empty().unwrap();
        assert!(dir.is_empty().unwrap());
        assert_eq!(fs::read_to_string(temp.0.join("out")).unwrap(), "outside");
    }

    #[test]
    fn a_linked_file_is_not_gone_on_with() {
        let temp = Temp::new();
        let dir = temp.dir();
        assert!(dir.resume(&path("a/b")).unwrap().is_some());
        let file = dir.read(&path("a/b")).unwrap();
        dir.link(&file, &path("c")).unwrap();
        assert_eq!(file.metadata().unwrap().nlink(), 2);
        assert!(dir.resume(&path("c")).unwrap().is_none());
        assert!(dir.resume(&path("none")).unwrap().is_none());
    }

    #[test]
    fn folders_are_made_on_the_way_and_own_links_are_followed() {
        let temp = Temp::new();
        symlink("in", temp.0.join("near")).unwrap();
        Dir::make(&temp.0.join("near/x/../y")).unwrap();
        assert!(temp.0.join("in/y").is_dir());
        temp.dir().make_folder(&path("a/d/e"), 0o700).unwrap();
        assert!(temp.0.join("in/a/d/e").is_dir());
        assert!(temp.dir().make_folder(&path("a/b/e"), 0o700).is_err());
        assert!(Dir::open(&temp.0.join("out")).is_err());
    }
}
