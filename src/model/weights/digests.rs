//! Digests of a checkpoint's files, each compared with the most trusted record of it.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::error::WeightsError;
use super::folder::Folder;
use super::hex::hex;
use super::index;
use super::names::{CONFIG, INDEX, MARK, SINGLE};
use super::origin::{Expected, Records, Revision, Witness, revisions};
use super::progress::{Progress, Stage};
use super::source::Source;
use crate::target;

/// Bytes that are hashed per read.
const HASH_BYTES: usize = 1 << 20;
/// Largest number of files that are hashed at once.
const THREADS_MAX: usize = 8;
/// Small files that a checkpoint may have in addition to weights and text files.
pub const SMALL: [&str; 3] = [CONFIG, "generation_config.json", "tokenizer_config.json"];

/// A file of the checkpoint with its digest.
#[derive(Debug)]
pub struct FileDigest {
    pub name: String,
    pub bytes: u64,
    pub sha256: String,
    pub verdict: Verdict,
}

/// Outcome of the comparison of a digest with its most trusted record.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Agrees(Witness),
    Differs {
        by: Witness,
        expected: String,
        found: String,
    },
    /// No record states the file's digest.
    Unknown,
}

/// Names of the files of the checkpoint in `folder`: those that the target names, or those that a
/// server reads.
pub(super) fn names(folder: &Folder) -> Result<Vec<String>, WeightsError> {
    if !target::CHECKPOINT.is_empty() {
        let names = target::CHECKPOINT.iter().map(|file| file.name.to_string());
        return Ok(names.collect());
    }
    let mut names = of_index(folder)?;
    names.extend(of_text().filter(|name| folder.has(name)));
    Ok(names.into_iter().collect())
}

/// Names of the files of weights: the index and its shards, or the single weights file.
fn of_index(folder: &Folder) -> Result<BTreeSet<String>, WeightsError> {
    if !folder.has(INDEX) {
        return Ok(BTreeSet::from([SINGLE.to_string()]));
    }
    let mut names: BTreeSet<String> = index::read(folder)?.into_values().collect();
    names.insert(INDEX.to_string());
    Ok(names)
}

/// Names of the small text files that a server reads if they exist.
fn of_text() -> impl Iterator<Item = String> {
    let text = [target::TOKENIZER_FILE, target::TEMPLATE_FILE];
    let names = SMALL.into_iter().chain(text);
    names.filter(|name| !name.is_empty()).map(str::to_string)
}

/// Names of the files in `folder` that a server may read, and of the file that marks drawn weights.
pub fn listed(folder: &Folder) -> Result<Vec<String>, WeightsError> {
    let mut names = of_index(folder)?;
    names.extend(fixed());
    Ok(names.into_iter().filter(|name| folder.has(name)).collect())
}

/// Whether a checkpoint may list a file of this name, shards aside.
pub fn may_be_listed(name: &str) -> bool {
    name == INDEX || fixed().any(|fixed| fixed == name)
}

/// Names of files that every checkpoint of the target may have.
fn fixed() -> impl Iterator<Item = String> {
    let release = target::CHECKPOINT.iter().map(|file| file.name.to_string());
    of_text().chain(release).chain([MARK.to_string()])
}

/// Revisions that the directory's records state.
pub fn revisions_of(directory: &Path) -> Result<Vec<Revision>, WeightsError> {
    let folder = Folder::open(directory)?;
    Ok(revisions(&folder, &names(&folder)?))
}

/// A file that is to be hashed, and the record of its digest.
struct Job {
    source: Source,
    expected: Option<(Witness, Expected)>,
}

/// Reads the whole checkpoint in `directory` and compares its files' digests.
pub fn of_directory(
    directory: &Path,
    progress: &Progress,
) -> Result<Vec<FileDigest>, WeightsError> {
    let folder = Folder::open(directory)?;
    let names = names(&folder)?;
    let records = Records::of(&folder, &names);
    let jobs = names.iter().map(|name| {
        let (source, blob) = Source::open_named(&folder, name)?;
        let expected = of_manifest(name).or_else(|| records.best(name, blob.as_deref()));
        Ok::<_, WeightsError>(Job { source, expected })
    });
    hash(jobs.collect::<Result<_, WeightsError>>()?, progress)
}

/// Digests of the files inside the binary.
pub fn of_embedded(progress: &Progress) -> Result<Vec<FileDigest>, WeightsError> {
    let jobs = target::EMBEDDED.iter().map(|&(name, content)| Job {
        source: Source::Embedded {
            name: name.to_string(),
            content,
        },
        expected: of_manifest(name),
    });
    hash(jobs.collect(), progress)
}

fn of_manifest(name: &str) -> Option<(Witness, Expected)> {
    let file = target::CHECKPOINT.iter().find(|file| file.name == name)?;
    Some((Witness::Manifest, Expected::Sha256(file.sha256.to_string())))
}

/// Hashes the files of `jobs`, several at a time on their own threads; sorts by name.
fn hash(jobs: Vec<Job>, progress: &Progress) -> Result<Vec<FileDigest>, WeightsError> {
    progress.enter(Stage::Hashing);
    progress.expect(jobs.iter().map(|job| job.source.bytes()).sum());
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = job.digest(progress);
            if result.is_err() {
                next.store(jobs.len(), Ordering::Relaxed);
            }
            done.lock()
                .expect("no thread panics while it holds it")
                .push(result);
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        (0..cores.min(THREADS_MAX)).for_each(|_| drop(scope.spawn(work)));
    });
    let done = done.into_inner().expect("as above");
    let mut files = done.into_iter().collect::<Result<Vec<_>, _>>()?;
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

impl Job {
    fn digest(&self, progress: &Progress) -> Result<FileDigest, WeightsError> {
        let (source, bytes) = (&self.source, self.source.bytes());
        let of_git = |(_, expected): &(Witness, Expected)| !matches!(expected, Expected::Sha256(_));
        let git = self.expected.as_ref().is_some_and(of_git);
        let mut sha1 = git.then(|| git_object(bytes));
        let mut sha256 = Sha256::new();
        let mut buffer = vec![0; HASH_BYTES];
        let mut offset = 0;
        while offset < bytes {
            let chunk = &mut buffer[..(bytes - offset).min(HASH_BYTES as u64) as usize];
            source.read(offset, chunk)?;
            sha256.update(&*chunk);
            if let Some(sha1) = &mut sha1 {
                sha1.update(&*chunk);
            }
            offset += chunk.len() as u64;
            progress.advance(chunk.len() as u64);
        }
        source.check_unchanged()?;
        let sha256 = hex(&sha256.finalize());
        let sha1 = sha1.map(|sha1| hex(&sha1.finalize()));
        let verdict = match &self.expected {
            None => Verdict::Unknown,
            Some((by, expected)) => compare(*by, expected, &sha256, sha1.as_deref()),
        };
        Ok(FileDigest {
            name: source.name().to_string(),
            bytes,
            sha256,
            verdict,
        })
    }
}

/// Git's SHA-1 of an object of `bytes` bytes: the state after the header, before the content.
fn git_object(bytes: u64) -> Sha1 {
    Sha1::new().chain_update(format!("blob {bytes}\0"))
}

fn compare(by: Witness, expected: &Expected, sha256: &str, sha1: Option<&str>) -> Verdict {
    let sha1 = sha1.unwrap_or_default();
    let (expected, found) = match expected {
        Expected::Sha256(expected) => (expected, sha256),
        Expected::GitBlob(expected) => (expected, sha1),
    };
    match expected == found {
        true => Verdict::Agrees(by),
        false => Verdict::Differs {
            by,
            expected: expected.clone(),
            found: found.to_string(),
        },
    }
}

/// Lines about the files in the form of a model's manifest.
pub fn block(files: &[FileDigest]) -> String {
    let mut text = String::from("files = [\n");
    for FileDigest {
        name,
        bytes,
        sha256,
        ..
    } in files
    {
        let _ = writeln!(
            text,
            "    {{ name = {name:?}, bytes = {bytes}, sha256 = {sha256:?} }},"
        );
    }
    text + "]\n"
}

#[cfg(test)]
#[path = "digests_tests.rs"]
mod tests;
