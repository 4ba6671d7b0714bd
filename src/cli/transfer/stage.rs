//! A folder that is filled under an unpredictable name, and renamed once it is complete.

use std::fs::{File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::fs::{RenameFlags, Stat};
use rustix::io::Errno;

use host::beneath::{Beneath, Dir, is_own, refusal, trusted};
use host::output::{beside, busy, is_beside, rename_new};

/// Permissions of the folder while it is filled: access for this user alone.
const PRIVATE: u32 = 0o700;
const FINISHED: u32 = 0o755;
const PERMISSIONS: u32 = 0o777;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// A folder that is being filled.
pub struct Stage {
    parent: Dir,
    name: Beneath,
    beside: Beneath,
    dir: Dir,
    /// Handle that locks the folder until this run ends.
    handle: File,
}

impl Stage {
    /// Opens a folder that an earlier run of this user left next to `name`, or makes one.
    ///
    /// # Errors
    /// `ResourceBusy` while another run fills it; the operating system's error.
    pub fn of(parent: Dir, name: Beneath) -> io::Result<Stage> {
        for beside in leavings(&parent, &name) {
            let dir = parent.folder(&beside)?;
            if is_private(&dir.stat()?) {
                return Stage::lock(parent, name, beside, dir);
            }
            // This folder was complete, and was then exchanged for a newer one.
            discard_one(&parent, &beside)?;
        }
        let beside = beside(&name);
        let dir = parent.new_folder(&beside, PRIVATE)?;
        if !is_private(&dir.stat()?) && is_open(&parent.stat()?) {
            return Err(exchanged());
        }
        Stage::lock(parent, name, beside, dir)
    }

    fn lock(parent: Dir, name: Beneath, beside: Beneath, dir: Dir) -> io::Result<Stage> {
        let handle = dir.readable()?;
        match handle.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(busy()),
            // If the file system has no locks, the run goes on without a lock.
            Err(TryLockError::Error(_)) | Ok(()) => {}
        }
        Ok(Stage {
            parent,
            name,
            beside,
            dir,
            handle,
        })
    }

    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Path of the folder while it is filled.
    pub fn path(&self) -> PathBuf {
        self.parent.shown(&self.beside)
    }

    /// Removes files of an earlier run that are not `wanted`.
    pub fn keep(&self, wanted: impl Fn(&Beneath) -> bool) -> io::Result<()> {
        let mut others = self.dir.names()?.into_iter().filter(|name| !wanted(name));
        others.try_for_each(|name| self.dir.remove(&name))
    }

    /// Checks that the temporary name still leads to the folder that was filled.
    fn check_own(&self) -> io::Result<()> {
        let identity = |stat: Stat| (stat.st_dev, stat.st_ino);
        let found = self.parent.look(&self.beside)?.map(identity);
        match found == Some(identity(self.dir.stat()?)) {
            true => Ok(()),
            false => Err(exchanged()),
        }
    }

    /// Renames the folder to its final name. An older folder of that name is removed afterwards;
    /// processes can go on with its open files.
    ///
    /// # Errors
    /// The operating system's error; the older folder is still there then.
    pub fn finish(self) -> io::Result<()> {
        let (parent, name, beside) = (&self.parent, &self.name, &self.beside);
        let old = match parent.look(name)? {
            None => None,
            Some(_) => Some(parent.folder(name)?),
        };
        self.check_own()?;
        self.handle
            .set_permissions(Permissions::from_mode(FINISHED))?;
        self.handle.sync_all()?;
        match &old {
            None => rename_new(parent, beside, name)?,
            Some(_) => exchange(parent, beside, name)?,
        }
        let _ = parent.sync();
        let Some(old) = old else {
            return Ok(());
        };
        old.empty()?;
        parent.remove_folder(beside)
    }
}

fn exchanged() -> io::Error {
    let problem = "somebody put something else in its place; name a folder that is yours";
    refusal(problem)
}

/// Exchanges two names, atomically if the file system supports that.
fn exchange(parent: &Dir, new: &Beneath, old: &Beneath) -> Result<(), Errno> {
    match parent.rename(new, old, RenameFlags::EXCHANGE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            let aside = beside(old);
            parent.rename(old, &aside, RenameFlags::empty())?;
            parent.rename(new, old, RenameFlags::empty())?;
            parent.rename(&aside, new, RenameFlags::empty())
        }
        exchanged => exchanged,
    }
}

/// Removes folders that killed runs left next to `name`.
///
/// # Errors
/// `ResourceBusy` while another run fills one; the operating system's error.
pub fn discard(parent: &Dir, name: &Beneath) -> io::Result<()> {
    let mut left = leavings(parent, name).into_iter();
    left.try_for_each(|beside| discard_one(parent, &beside))
}

fn discard_one(parent: &Dir, beside: &Beneath) -> io::Result<()> {
    let dir = parent.folder(beside)?;
    if let Err(TryLockError::WouldBlock) = dir.readable()?.try_lock() {
        return Err(busy());
    }
    dir.empty()?;
    parent.remove_folder(beside)
}

/// Folders of this user next to `name` whose names [`beside`] may have made.
fn leavings(parent: &Dir, name: &Beneath) -> Vec<Beneath> {
    let found = parent.names().unwrap_or_default().into_iter();
    let found = found.filter(|found| is_beside(found, name));
    let is_own = |found: &Beneath| {
        let stat = parent.folder(found).and_then(|folder| folder.stat());
        stat.is_ok_and(|stat| is_own(&stat))
    };
    found.filter(is_own).collect()
}

fn is_private(stat: &Stat) -> bool {
    is_own(stat) && stat.st_mode & PERMISSIONS == PRIVATE
}

/// Whether other users can exchange files in a folder.
fn is_open(stat: &Stat) -> bool {
    stat.st_mode & WRITABLE_BY_OTHERS != 0 || !trusted().contains(&stat.st_uid)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use host::testing::Folder;

    struct Temp(Folder);

    impl Temp {
        fn new() -> Temp {
            Temp(Folder::new())
        }

        fn stage(&self) -> io::Result<Stage> {
            Stage::of(Dir::open(&self.0).unwrap(), Beneath::parse("dest").unwrap())
        }

        fn names(&self) -> Vec<String> {
            let names = Dir::open(&self.0).unwrap().names().unwrap();
            names.iter().map(Beneath::to_string).collect()
        }
    }

    #[test]
    fn a_folder_replaces_an_older_one() {
        let temp = Temp::new();
        for name in ["one", "two"] {
            let stage = temp.stage().unwrap();
            fs::write(stage.path().join(name), "").unwrap();
            stage.finish().unwrap();
            assert_eq!(temp.names(), ["dest"]);
            let only = fs::read_dir(temp.0.join("dest")).unwrap().next().unwrap();
            assert_eq!(only.unwrap().file_name(), name);
        }
    }

    #[test]
    fn one_run_fills_it_and_the_next_goes_on() {
        let temp = Temp::new();
        let stage = temp.stage().unwrap();
        let beside = stage.beside.clone();
        fs::write(stage.path().join("file"), "").unwrap();
        assert_eq!(
            temp.stage().err().unwrap().kind(),
            io::ErrorKind::ResourceBusy
        );
        drop(stage);
        let stage = temp.stage().unwrap();
        assert!(stage.beside == beside && stage.path().join("file").exists());
        stage.keep(|_| false).unwrap();
        assert!(stage.dir().is_empty().unwrap());
        drop(stage);
        discard(
            &Dir::open(&temp.0).unwrap(),
            &Beneath::parse("dest").unwrap(),
        )
        .unwrap();
        assert_eq!(temp.names(), Vec::<String>::new());
    }

    #[test]
    fn what_was_exchanged_while_it_was_filled_is_not_installed() {
        let temp = Temp::new();
        let stage = temp.stage().unwrap();
        let path = stage.path();
        fs::rename(&path, temp.0.join("away")).unwrap();
        fs::create_dir(&path).unwrap();
        let why = stage.finish().unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::InvalidInput, "{why}");
        assert!(!temp.0.join("dest").exists());
    }

    #[test]
    fn planted_names_are_not_gone_on_with() {
        let temp = Temp::new();
        let names = [1, 2, 3].map(|number| format!(".dest.{number:016x}.partial"));
        fs::create_dir(temp.0.join("elsewhere")).unwrap();
        symlink(temp.0.join("elsewhere"), temp.0.join(&names[0])).unwrap();
        fs::write(temp.0.join(&names[1]), "").unwrap();
        fs::create_dir(temp.0.join(&names[2])).unwrap();
        fs::set_permissions(temp.0.join(&names[2]), Permissions::from_mode(0o777)).unwrap();
        let stage = temp.stage().unwrap();
        assert!(!names.contains(&stage.beside.to_string()));
        fs::write(stage.path().join("file"), "").unwrap();
        stage.finish().unwrap();
        assert!(temp.0.join("dest/file").exists());
        assert_eq!(fs::read_dir(temp.0.join("elsewhere")).unwrap().count(), 0);
    }
}
