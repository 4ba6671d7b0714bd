//! Records that a download leaves beside the files: the revision that they are of, and their
//! digests.
//!
//! - The hub's cache: `snapshots/<commit>/<file>` is a link into `blobs/`, whose name is the
//!   SHA-256 of a large file and git's SHA-1 of a small one; `trees/<commit>.json` lists them too.
//! - `hf download --local-dir`: `.cache/huggingface/download/<file>.metadata` holds the commit and
//!   that same digest in two lines, and `.cache/huggingface/trees/` the lists.
//! - A git checkout: `.git/HEAD` leads to the commit.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use super::error::WeightsError;
use super::folder::Folder;
use super::hex::{SHA1_DIGITS, is_commit, is_lower_hex};
use super::{git, locate};
use crate::target;

/// Folders of the hub's client in a directory; the second one is of versions before 0.24.
const CLIENT_FOLDERS: [&str; 2] = [".cache/huggingface", ".huggingface"];
/// Largest record in bytes that is read: a list of a revision.
const BYTES_MAX: u64 = 64 << 20;
/// Digits of a SHA-256.
const SHA256_DIGITS: usize = 64;

/// Record that states a digest, the most trusted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Witness {
    Manifest,
    Blob,
    Metadata,
    Tree,
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Witness::Manifest => "the manifest of this binary states",
            Witness::Blob => "the hub's cache names the blobs",
            Witness::Metadata => "the hub's client noted beside them",
            Witness::Tree => "the hub listed for the revision",
        })
    }
}

/// A digest that a file should have, in lower-case hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    Sha256(String),
    /// SHA-1 of git's object of the content.
    GitBlob(String),
}

impl Expected {
    /// Digest in an etag of the hub: the length tells the kind.
    fn of_etag(etag: &str) -> Option<Expected> {
        match etag.len() {
            _ if !is_lower_hex(etag) => None,
            SHA256_DIGITS => Some(Expected::Sha256(etag.to_string())),
            SHA1_DIGITS => Some(Expected::GitBlob(etag.to_string())),
            _ => None,
        }
    }
}

/// A revision (`commit`), and the file or folder that states it (`by`, in words).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    pub by: String,
    pub commit: String,
}

/// The first two lines of a file's metadata, commit and etag, and the path of the metadata.
fn metadata(folder: &Folder, name: &str) -> Option<(String, [String; 2])> {
    CLIENT_FOLDERS.iter().find_map(|client| {
        let path = format!("{client}/download/{name}.metadata");
        let text = String::from_utf8(folder.read(&path, BYTES_MAX).ok()?).ok()?;
        let mut lines = text.lines().map(|line| line.trim().to_string());
        Some((path, [lines.next()?, lines.next()?]))
    })
}

/// All records that state the revision of the files `names`.
pub(super) fn revisions(folder: &Folder, names: &[String]) -> Vec<Revision> {
    let shown = folder.path().display();
    let snapshot = locate::snapshot_commit(folder.path()).map(|commit| Revision {
        by: format!("the folder of the snapshot {shown}"),
        commit,
    });
    let noted = names.iter().filter_map(|name| {
        let (path, [commit, _]) = metadata(folder, name)?;
        is_commit(&commit).then(|| Revision {
            by: format!("{shown}/{path}"),
            commit,
        })
    });
    let head = target::REPOSITORY.and_then(|repository| git::head(folder, repository));
    let head = head.map(|commit| Revision {
        by: format!("the git checkout {shown}"),
        commit,
    });
    snapshot.into_iter().chain(noted).chain(head).collect()
}

/// Compares the revision that the directory's records state with the manifest's.
///
/// # Errors
/// `Revision` with the first one that differs.
pub(super) fn check_revision(folder: &Folder, names: &[String]) -> Result<(), WeightsError> {
    let Some(pinned) = target::REVISION else {
        return Ok(());
    };
    let mut revisions = revisions(folder, names).into_iter();
    match revisions.find(|revision| revision.commit != pinned) {
        None => Ok(()),
        Some(Revision { by, commit: found }) => Err(WeightsError::Revision { by, found }),
    }
}

/// Digests that a directory's own records state of its files.
pub(super) struct Records<'a> {
    folder: &'a Folder,
    tree: BTreeMap<String, TreeEntry>,
}

impl<'a> Records<'a> {
    pub fn of(folder: &'a Folder, names: &[String]) -> Records<'a> {
        let revisions = revisions(folder, names);
        let tree = revisions
            .first()
            .and_then(|revision| tree(folder, &revision.commit));
        Records {
            folder,
            tree: tree.unwrap_or_default(),
        }
    }

    /// The most trusted record of the digest of the file `name`, whose link leads to `blob`.
    pub fn best(&self, name: &str, blob: Option<&str>) -> Option<(Witness, Expected)> {
        let blob = || Some((Witness::Blob, Expected::of_etag(blob?)?));
        let noted = || {
            let (_, [_, etag]) = metadata(self.folder, name)?;
            Some((Witness::Metadata, Expected::of_etag(&etag)?))
        };
        let listed = || Some((Witness::Tree, self.tree.get(name)?.expected()?));
        blob().or_else(noted).or_else(listed)
    }
}

/// The hub's list of a revision's files.
#[derive(Deserialize)]
struct Tree {
    files: BTreeMap<String, TreeEntry>,
}

#[derive(Deserialize)]
struct TreeEntry {
    blob_id: String,
    lfs_sha256: Option<String>,
}

impl TreeEntry {
    fn expected(&self) -> Option<Expected> {
        Expected::of_etag(self.lfs_sha256.as_ref().unwrap_or(&self.blob_id))
    }
}

/// The list of `commit`, beside the snapshots or in the folder of the hub's client.
fn tree(folder: &Folder, commit: &str) -> Option<BTreeMap<String, TreeEntry>> {
    let folders = ["../..", CLIENT_FOLDERS[0]];
    folders.into_iter().find_map(|parent| {
        let text = folder.read(&format!("{parent}/trees/{commit}.json"), BYTES_MAX);
        let tree: Tree = serde_json::from_slice(&text.ok()?).ok()?;
        Some(tree.files)
    })
}

#[cfg(test)]
#[path = "origin_tests.rs"]
mod tests;
