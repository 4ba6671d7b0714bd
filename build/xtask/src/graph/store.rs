//! The content-addressed store: key -> record of outputs -> blobs and trees by digest.
//!
//! `.atlas/store/action/<key>` lists the outputs of an action, `blob/<digest>` holds files and
//! `tree/<digest>` folders. Everything is renamed into place, the record last, so a killed build
//! leaves no entry.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::action::{Action, Form, Output, Place};
use super::digest::{Digest, Digests};
use super::error::Error;

/// Mode of a stored file: no user of it may write.
const MODE_FILE: u32 = 0o444;
/// Mode of a stored executable.
const MODE_EXECUTABLE: u32 = 0o555;

/// Kind of a stored output, or of an existing input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Executable,
    Tree,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::File, Kind::Executable, Kind::Tree];

    /// Kind of the file or folder that `metadata` is of; not for links.
    pub fn of(metadata: &Metadata) -> Kind {
        match metadata.permissions().mode() & 0o100 != 0 {
            _ if metadata.is_dir() => Kind::Tree,
            true => Kind::Executable,
            false => Kind::File,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::File => "file",
            Kind::Executable => "executable",
            Kind::Tree => "tree",
        }
    }

    /// Text that stands for an input of this kind in a key.
    pub fn content(self, digest: &Digest) -> String {
        match self {
            Kind::File => digest.to_string(),
            kind => format!("{digest} {}", kind.name()),
        }
    }
}

/// An output that is in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub path: String,
    pub kind: Kind,
    pub digest: Digest,
}

/// Result of a look-up by key.
pub enum Lookup {
    Found(Vec<Stored>),
    Absent,
    /// The record exists, but this output does not have the recorded digest.
    Damaged(String),
}

/// The store of one workspace. One process at a time has it open.
pub struct Store {
    atlas: PathBuf,
    pub digests: Digests,
    lock: File,
}

impl Store {
    /// Opens the store below `atlas`, making it if needed. Calls `waiting` once if another process
    /// has it open.
    ///
    /// # Errors
    /// If the host refuses a folder or the lock.
    pub fn open(atlas: &Path, waiting: impl FnOnce()) -> Result<Store, Error> {
        for folder in [
            "store/action",
            "store/blob",
            "store/tree",
            "work",
            "log",
            "explain",
            "out",
        ] {
            let folder = atlas.join(folder);
            fs::create_dir_all(&folder).map_err(Error::io("make", &folder))?;
        }
        let path = atlas.join("lock");
        let mut lock = OpenOptions::new();
        lock.create(true).truncate(false).read(true).write(true);
        let lock = lock.open(&path);
        let lock = lock.map_err(Error::io("open", &path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                waiting();
                lock.lock().map_err(Error::io("lock", &path))?;
            }
            Err(TryLockError::Error(why)) => return Err(Error::io("lock", &path)(why)),
        }
        let digests = Digests::load(atlas.join("digests"));
        Ok(Store {
            atlas: atlas.to_path_buf(),
            digests,
            lock,
        })
    }

    pub fn atlas(&self) -> &Path {
        &self.atlas
    }

    /// A handle on the store's lock for a child process. The store stays locked while any process
    /// has one, so the orphans of a killed build keep other builds out.
    pub fn lock_handle(&self) -> io::Result<File> {
        self.lock.try_clone()
    }

    /// Path of the record that lists a key's outputs; the record's time stamp is their last use.
    pub fn record_path(&self, key: &Digest) -> PathBuf {
        self.atlas.join("store/action").join(key.to_string())
    }

    /// Path of a stored output.
    pub fn path(&self, stored: &Stored) -> PathBuf {
        let digest = &stored.digest;
        self.atlas.join(match stored.kind {
            Kind::File => format!("store/blob/{digest}"),
            Kind::Executable => format!("store/blob/{digest}-x"),
            Kind::Tree => format!("store/tree/{digest}"),
        })
    }

    /// Looks up the outputs of a key and checks their content.
    pub fn lookup(&self, key: &Digest) -> Lookup {
        let path = self.record_path(key);
        let Ok(record) = File::options().append(true).open(&path) else {
            return Lookup::Absent;
        };
        let Some(outputs) = self.outputs(key) else {
            return Lookup::Damaged("record".to_string());
        };
        match outputs.iter().find(|stored| !self.is_intact(stored)) {
            Some(stored) => Lookup::Damaged(stored.path.clone()),
            None => {
                // Without this time stamp, outputs would be removed too early, and made again.
                let _ = record.set_modified(SystemTime::now());
                Lookup::Found(outputs)
            }
        }
    }

    /// Outputs in the record of a key; `None` without a complete record.
    pub fn outputs(&self, key: &Digest) -> Option<Vec<Stored>> {
        let text = fs::read_to_string(self.record_path(key)).ok()?;
        text.lines().map(parse_stored).collect()
    }

    fn is_intact(&self, stored: &Stored) -> bool {
        let path = self.path(stored);
        let digest = match stored.kind {
            Kind::Tree => tree_digest(&path, &|file| self.digests.of_file(file)),
            _ => self.digests.of_file(&path),
        };
        digest.is_ok_and(|digest| digest == stored.digest)
    }

    /// Takes the outputs of `action` from its folder (or cache) into the store and records them
    /// under `key`.
    ///
    /// # Errors
    /// [`Error::Missing`] if the action did not leave a declared output.
    pub fn keep(
        &self,
        key: &Digest,
        action: &Action,
        work: &Path,
        cache: &Path,
    ) -> Result<Vec<Stored>, Error> {
        let kept = |output| self.keep_output(action, output, work, cache);
        let outputs: Vec<_> = action.outputs.iter().map(kept).collect::<Result<_, _>>()?;
        let record: String = outputs.iter().map(line_of).collect();
        let (half, path) = (work.join(".record"), self.record_path(key));
        fs::write(&half, record).map_err(Error::io("write", &half))?;
        fs::rename(&half, &path).map_err(Error::io("move into the store", &path))?;
        Ok(outputs)
    }

    fn keep_output(
        &self,
        action: &Action,
        output: &Output,
        work: &Path,
        cache: &Path,
    ) -> Result<Stored, Error> {
        let missing = || Error::Missing {
            label: action.label.clone(),
            output: output.path.clone(),
        };
        let mut from = output.within(work, cache);
        let metadata = fs::symlink_metadata(&from).map_err(|_| missing())?;
        let right_form = match output.form {
            Form::File => metadata.is_file(),
            Form::Tree => metadata.is_dir(),
        };
        if !right_form {
            return Err(missing());
        }
        if output.place == Place::Cache {
            let copy = work.join(format!(".from-cache/{}", output.path));
            let folder = copy.parent().expect("the copy lies in a folder");
            fs::create_dir_all(folder).map_err(Error::io("make", folder))?;
            copy_all(&from, &copy).map_err(Error::io("copy", &from))?;
            from = copy;
        }
        self.take(&from, &output.path, Kind::of(&metadata))
            .map_err(Error::io("move into the store", &from))
    }

    fn take(&self, from: &Path, path: &str, kind: Kind) -> io::Result<Stored> {
        let digest = match kind {
            Kind::Tree => tree_digest(from, &Digest::of_file)?,
            _ => Digest::of_file(from)?,
        };
        let path = path.to_string();
        let stored = Stored { path, kind, digest };
        let to = self.path(&stored);
        if to.exists() && self.is_intact(&stored) {
            return Ok(stored);
        }
        seal(from)?;
        if kind == Kind::Tree && to.exists() {
            fs::remove_dir_all(&to)?;
        }
        fs::rename(from, &to)?;
        for file in files_below(&to)? {
            match kind {
                Kind::Tree => self.digests.forget(&file),
                _ => self.digests.remember(&file, digest)?,
            }
        }
        Ok(stored)
    }

    /// Puts a link to a stored output at `to`.
    pub fn place(&self, stored: &Stored, to: &Path) -> Result<(), Error> {
        let from = self.path(stored);
        let placed = match stored.kind {
            Kind::Tree => symlink(&from, to),
            _ => fs::hard_link(&from, to),
        };
        placed.map_err(Error::io("place an input at", to))
    }

    /// Copies a stored output to `to`, outside of the store; replaces an existing one in one step.
    pub fn publish(&self, stored: &Stored, to: &Path) -> Result<(), Error> {
        let there = self.digests.of_file(to);
        let same = there.is_ok_and(|digest| digest == stored.digest);
        if same && stored.kind != Kind::Tree {
            return Ok(());
        }
        let folder = to.parent().expect("a published file has a folder");
        fs::create_dir_all(folder).map_err(Error::io("make", folder))?;
        let half = to.with_extension("half");
        let _ = fs::remove_file(&half);
        copy_all(&self.path(stored), &half).map_err(Error::io("copy to", &half))?;
        fs::rename(&half, to).map_err(Error::io("publish", to))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Losing remembered digests costs time only.
        let _ = self.digests.save();
    }
}

fn line_of(stored: &Stored) -> String {
    format!("{} {} {}\n", stored.kind.name(), stored.digest, stored.path)
}

fn parse_stored(line: &str) -> Option<Stored> {
    let mut parts = line.splitn(3, ' ');
    let kind = parts.next()?;
    let kind = Kind::ALL.into_iter().find(|known| known.name() == kind)?;
    let digest = Digest::parse(parts.next()?)?;
    let path = parts.next()?.to_string();
    Some(Stored { path, kind, digest })
}

/// Digest of a folder: names, modes, link targets and contents of everything below it.
fn tree_digest(root: &Path, of_file: &dyn Fn(&Path) -> io::Result<Digest>) -> io::Result<Digest> {
    let mut listing = String::new();
    for path in files_below(root)? {
        let name = path.strip_prefix(root);
        let name = name.expect("files below a root start with it").display();
        let metadata = fs::symlink_metadata(&path)?;
        let line = if metadata.is_symlink() {
            format!("link {name:?} {:?}\n", fs::read_link(&path)?)
        } else {
            let content = Kind::of(&metadata).content(&of_file(&path)?);
            format!("file {name:?} {content}\n")
        };
        listing.push_str(&line);
    }
    Ok(Digest::of(listing.as_bytes()))
}

/// Paths of files and links at or below `path`, sorted.
pub fn files_below(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::symlink_metadata(path)?.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        files.extend(files_below(&entry?.path())?);
    }
    files.sort();
    Ok(files)
}

/// Copies a file, or a folder with everything below it, to a path that does not exist; modes are
/// kept, time stamps are new.
pub fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(from)?;
    if metadata.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if !metadata.is_dir() {
        return fs::copy(from, to).map(|_| ());
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy_all(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Makes `to` equal to a file, or to a folder with everything below it. Equal files are left alone:
/// tools judge them by time stamps.
pub fn copy_changed(from: &Path, to: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(from)?;
    if !metadata.is_dir() {
        if same(from, &metadata, to)? {
            return Ok(());
        }
        remove_all(to)?;
        return copy_all(from, to);
    }
    if !is_folder(to) {
        remove_all(to)?;
        fs::create_dir_all(to)?;
    }
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder)?;
        let names = entries.map(|entry| Ok(entry?.file_name()));
        names.collect::<io::Result<BTreeSet<_>>>()
    };
    let wanted = names(from)?;
    for name in names(to)?.difference(&wanted) {
        remove_all(&to.join(name))?;
    }
    let mut wanted = wanted.iter();
    wanted.try_for_each(|name| copy_changed(&from.join(name), &to.join(name)))
}

/// Whether two files, or links, are equal; `metadata` is that of `from`.
fn same(from: &Path, metadata: &Metadata, to: &Path) -> io::Result<bool> {
    let Ok(there) = fs::symlink_metadata(to) else {
        return Ok(false);
    };
    let form = |of: &Metadata| (of.file_type(), of.len(), of.permissions().mode());
    if form(metadata) != form(&there) {
        return Ok(false);
    }
    match metadata.is_symlink() {
        true => Ok(fs::read_link(from)? == fs::read_link(to)?),
        false => Ok(fs::read(from)? == fs::read(to)?),
    }
}

/// Removes everything below `folder` that is neither one of `kept` nor a folder of one.
pub fn remove_others(folder: &Path, kept: &BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let below = kept.range(path.clone()..).next();
        match below.filter(|kept| kept.starts_with(&path)) {
            Some(kept) if *kept == path => {}
            Some(_) if is_folder(&path) => remove_others(&path, kept)?,
            _ => remove_all(&path)?,
        }
    }
    Ok(())
}

fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|there| there.is_dir())
}

/// Removes a file, or a folder with everything below it, if it exists.
pub fn remove_all(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(there) if there.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    }
}

/// Takes away write permission of a file or folder.
fn seal(path: &Path) -> io::Result<()> {
    for file in files_below(path)? {
        let metadata = fs::symlink_metadata(&file)?;
        if !metadata.is_symlink() {
            let mode = match Kind::of(&metadata) {
                Kind::Executable => MODE_EXECUTABLE,
                _ => MODE_FILE,
            };
            fs::set_permissions(&file, fs::Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}
