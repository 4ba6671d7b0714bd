//! Record of installed files, so that `uninstall` removes these files and no others.

use std::collections::BTreeSet;
use std::io;

use sha2::{Digest, Sha256};

use super::copy::{self, unreadable};
use super::import::Weights;
use super::install::{self, Root};
use super::sums;
use crate::cli::{Exit, Failure};
use host::beneath::{Beneath, Dir, trusted};
use model::target;
use model::weights::hex::hex;

/// Paths below the root, with digests. While a newer version is being installed a path may have two
/// digests.
#[derive(Clone, Debug, Default)]
pub struct Record(BTreeSet<(Beneath, String)>);

/// Path of the record, next to the folder of the weights.
pub fn record_path() -> Beneath {
    let name = format!("{}.installed", install::weights());
    Beneath::parse(&name).expect("paths of this program are plain")
}

/// Digest of a text in the form of the record.
pub fn digest_of(text: &str) -> String {
    hex(&Sha256::digest(text))
}

impl Record {
    /// Reads the record of an earlier run; empty if there is none.
    ///
    /// # Errors
    /// If the record is another user's, or damaged.
    pub fn read(root: &Root) -> Result<Record, Failure> {
        let shown = root.shown(&record_path());
        let failed = unreadable(&shown);
        let found = root.open(&record_path()).map_err(failed)?;
        let file = match found.map(|(folder, name)| folder.read(&name)) {
            None => return Ok(Record::default()),
            Some(Err(why)) if why.kind() == io::ErrorKind::NotFound => {
                return Ok(Record::default());
            }
            Some(opened) => opened.map_err(failed)?,
        };
        let wrong = |why: String| Exit::Config.at(&shown, why);
        let found = rustix::fs::fstat(&file);
        let owner = found.map_err(|why| failed(why.into()))?.st_uid;
        if !trusted().contains(&owner) {
            let problem = format!("is user {owner}'s; nothing is removed by it");
            return Err(wrong(problem));
        }
        let text = io::read_to_string(file).map_err(failed)?;
        let lines = text.split_terminator('\n').enumerate();
        let lines = lines.map(|(ix, line)| {
            let read = sums::line(line);
            read.map_err(|why| wrong(format!("line {} {why}", ix + 1)))
        });
        Ok(Record(lines.collect::<Result<_, _>>()?))
    }

    /// Writes the record, writable only by the user of this process.
    pub fn write(&self, root: &Root) -> Result<(), Failure> {
        let lines = self.0.iter();
        let lines = lines.map(|(path, digest)| format!("{digest}  {path}\n"));
        install::write(root, &record_path(), &lines.collect::<String>())
    }

    /// Removes the record's file.
    pub fn forget(root: &Root) -> Result<(), Failure> {
        let removed = root.open(&record_path()).and_then(|found| match found {
            None => Ok(()),
            Some((folder, name)) => folder.remove(&name),
        });
        removed.map_err(root.unwritable(&record_path()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn paths(&self) -> impl Iterator<Item = &Beneath> {
        self.0.iter().map(|(path, _)| path)
    }

    pub fn add(&mut self, path: Beneath, digest: String) {
        self.0.insert((path, digest));
    }

    /// Adds weights that are in `folder` and will have the path `to`.
    pub fn add_weights(
        &mut self,
        weights: &Weights,
        folder: &Dir,
        to: &Beneath,
    ) -> Result<(), Failure> {
        for (name, pieces) in weights {
            let whole = match pieces.as_slice() {
                [piece] => piece.sha256.clone(),
                _ => None,
            };
            let read = || copy::digest(&folder.read(name)?, 0, u64::MAX);
            let digest = whole.map_or_else(read, Ok);
            let digest = digest.map_err(unreadable(&folder.shown(name)))?;
            self.add(to.join(name), digest);
        }
        Ok(())
    }

    /// Adds the entries of `other` for a path.
    pub fn keep(&mut self, other: &Record, path: &Beneath) {
        let lines = other.0.iter().filter(|(found, _)| found == path);
        self.0.extend(lines.cloned());
    }

    /// Record with the entries of `self` and of `other`.
    pub fn with(&self, other: &Record) -> Record {
        Record(self.0.union(&other.0).cloned().collect())
    }

    /// Entries of paths that `other` does not have.
    pub fn without(&self, other: &Record) -> Record {
        let named: BTreeSet<&Beneath> = other.paths().collect();
        let lines = self.0.iter().filter(|(path, _)| !named.contains(path));
        Record(lines.cloned().collect())
    }

    fn states(&self, path: &Beneath, digest: &str) -> bool {
        self.0.contains(&(path.clone(), digest.to_string()))
    }

    /// Removes the recorded files, except for those changed since; returns a line about each
    /// changed file.
    pub fn remove(&self, root: &Root) -> Result<String, Failure> {
        let mut stays = String::new();
        for path in self.paths().collect::<BTreeSet<_>>() {
            let removed = self.remove_one(root, path);
            if !removed.map_err(root.unwritable(path))? {
                let shown = root.shown(path);
                stays.push_str(&format!("{} was changed and stays\n", shown.display()));
            }
        }
        Ok(stays)
    }

    /// Removes a file; returns whether it is gone. Digests of weights are not checked before, since
    /// nobody edits weights.
    fn remove_one(&self, root: &Root, path: &Beneath) -> io::Result<bool> {
        let Some((folder, name)) = root.open(path)? else {
            return Ok(true);
        };
        let file = match folder.read(&name) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(true),
            Err(_) => return Ok(false),
            Ok(file) => file,
        };
        let is_weights = path.below(install::weights().as_str()).is_some();
        if !is_weights && !self.states(path, &copy::digest(&file, 0, u64::MAX)?) {
            return Ok(false);
        }
        folder.remove(&name)?;
        if is_weights && let Some(folder) = path.split().0 {
            remove_if_empty(root, &folder);
        }
        Ok(true)
    }
}

/// Removes the folder `path` and the folder around it, each only if `install` made it and it is
/// empty.
pub fn remove_if_empty(root: &Root, path: &Beneath) {
    for path in [Some(path.clone()), path.split().0].into_iter().flatten() {
        if is_ours(&path)
            && let Ok(Some((folder, name))) = root.open(&path)
        {
            let _ = folder.remove_folder(&name);
        }
    }
}

/// Whether `install` makes a folder, which is then not one of the system's.
fn is_ours(path: &Beneath) -> bool {
    let name = path.split().1;
    let of_atlas = ["var/lib/atlas", "etc/atlas"];
    let mut of_atlas = of_atlas.into_iter();
    of_atlas.any(|folder| path.below(folder).is_some() || path.as_str() == folder)
        || name.as_str().ends_with(".service.d")
}

/// Whether a path is in the package manager's file list of this binary's package.
pub fn is_packaged(root: &Root, path: &Beneath) -> bool {
    let info = Beneath::parse("var/lib/dpkg/info/list").expect("a plain path");
    let Ok(Some((folder, _))) = root.open(&info) else {
        return false;
    };
    let is_list = |name: &Beneath| {
        let rest = name.as_str().strip_prefix(target::BINARY);
        rest.is_some_and(|rest| rest == ".list" || rest.starts_with(':') && rest.ends_with(".list"))
    };
    let names = folder.names().unwrap_or_default().into_iter();
    let mut lists = names.filter(is_list);
    lists.any(|list| {
        let text = folder.read(&list).and_then(io::read_to_string);
        let names = |line: &str| line.strip_prefix('/') == Some(path.as_str());
        text.is_ok_and(|text| text.lines().any(names))
    })
}
