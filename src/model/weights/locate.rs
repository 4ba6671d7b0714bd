//! Search for the directory of a checkpoint from the operator's path, and messages if there is none
//! or an incomplete one.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::error::{WeightsError, download};
use super::folder::{BLOBS, Folder};
use super::hex::is_commit;
use super::names::{CONFIG, INDEX, SINGLE, shortest};
use crate::target;
use host::operator_file;

/// Folder of the hub's cache that holds a folder for each revision.
pub(super) const SNAPSHOTS: &str = "snapshots";
/// Prefix of a model's folder in the hub's cache.
const MODEL_FOLDER: &str = "models--";
/// Largest file in bytes that names a revision.
const REF_BYTES_MAX: u64 = 1024;
/// Suffixes of the names of files that are being downloaded, by `hf`, `wget`, `aria2c`, browsers.
const UNFINISHED: [&str; 6] = [
    ".incomplete",
    ".part",
    ".aria2",
    ".crdownload",
    ".tmp",
    ".partial",
];

/// A directory that may hold a checkpoint.
#[derive(Debug, PartialEq)]
pub struct Located {
    pub directory: PathBuf,
    /// Sentence for the operator about the directory that was chosen, if it is not the given one.
    pub choice: Option<String>,
}

/// Finds the directory of the checkpoint that `path` means.
///
/// # Errors
/// `Directory` or `Denied`.
pub fn locate(path: &Path) -> Result<Located, WeightsError> {
    let refused = |problem: String| WeightsError::Directory {
        path: path.to_path_buf(),
        problem,
    };
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => settle(path),
        Ok(_) => Err(refused(file_given(path))),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(refused(nothing_there(path))),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(WeightsError::Denied {
            path: closed_parent(path),
        }),
        Err(error) => Err(WeightsError::of_path(path, error)),
    }
}

/// Nearest ancestor of `path` that exists for this process, which may not search it.
fn closed_parent(path: &Path) -> PathBuf {
    let mut above = path.ancestors().skip(1);
    let seen = above.find(|above| fs::metadata(above).is_ok());
    seen.unwrap_or(path).to_path_buf()
}

fn nothing_there(path: &Path) -> String {
    let text = path.to_string_lossy();
    if text.is_empty() {
        return "the path of the weights is empty; give the directory that holds them".to_string();
    }
    if let Ok(link) = fs::read_link(path) {
        return format!(
            "is a link to {}, which is not there; give the directory that holds the weights",
            link.display()
        );
    }
    if text.starts_with('~') {
        return "is not there; a shell does not write out a ~ in quotes, give the whole path"
            .to_string();
    }
    if is_hub_name(&text) {
        return format!(
            "is a name on the hub, and this program downloads nothing; `hf download {text} \
             --local-dir DIR` does, then give DIR"
        );
    }
    format!(
        "is not there; give the directory that holds the weights of {}; {}",
        target::MODEL,
        download()
    )
}

/// Whether `text` has the form `owner/name` of a repository on the hub.
fn is_hub_name(text: &str) -> bool {
    let plain = |part: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(is_plain)
    };
    let parts = text.split_once('/');
    parts.is_some_and(|(owner, name)| plain(owner) && plain(name))
}

fn file_given(path: &Path) -> String {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new(".")).display();
    match path.extension().and_then(|end| end.to_str()) {
        Some("gguf") => format!(
            "is a GGUF file, this binary reads the safetensors files of the release; {}",
            download()
        ),
        _ => format!(
            "is neither a directory nor a file that `pack` wrote; give the one that holds the \
             weights, as {directory}"
        ),
    }
}

/// Chooses `directory` itself, or the snapshot in it.
fn settle(directory: &Path) -> Result<Located, WeightsError> {
    let holds = |name: &str| directory.join(name).symlink_metadata().is_ok();
    let inside = directory.join(SNAPSHOTS);
    let refused = |problem| {
        Err(WeightsError::Directory {
            path: directory.to_path_buf(),
            problem,
        })
    };
    if [INDEX, SINGLE, CONFIG].iter().any(|name| holds(name)) {
        return Ok(as_given(directory));
    }
    if inside.is_dir() {
        return choose(&inside);
    }
    if directory.file_name().is_some_and(|name| name == SNAPSHOTS) {
        return choose(directory);
    }
    for cache in [directory.to_path_buf(), directory.join("hub")] {
        let models = folders(&cache);
        if models.iter().any(|name| name.starts_with(MODEL_FOLDER)) {
            return refused(of_cache(&cache, &models));
        }
    }
    Ok(as_given(directory))
}

fn as_given(directory: &Path) -> Located {
    Located {
        directory: directory.to_path_buf(),
        choice: None,
    }
}

/// Advice for an operator who gave a whole cache instead of one model.
fn of_cache(cache: &Path, models: &[String]) -> String {
    let repository = target::REPOSITORY.map(|name| name.replace('/', "--"));
    let folder = repository.map(|name| format!("{MODEL_FOLDER}{name}"));
    match folder.filter(|folder| models.contains(folder)) {
        Some(folder) => format!(
            "is the cache of all models; give {}",
            cache.join(folder).display()
        ),
        None => {
            let models: Vec<&String> = models
                .iter()
                .filter(|name| name.starts_with(MODEL_FOLDER))
                .collect();
            format!("is a cache of models, {models:?}; give the folder of one of them")
        }
    }
}

/// The snapshot of the revision that the binary was built for, or the only one.
fn choose(snapshots: &Path) -> Result<Located, WeightsError> {
    let names = folders(snapshots);
    let taken = |name: &str, which: &str| Located {
        directory: snapshots.join(name),
        choice: Some(format!("weights: {which}, {name}")),
    };
    let pinned = target::REVISION.filter(|revision| names.iter().any(|name| name == revision));
    let problem = match (pinned, &names[..]) {
        (Some(revision), _) => {
            return Ok(taken(revision, "the snapshot of this binary's revision"));
        }
        (None, [only]) => return Ok(taken(only, "the only snapshot")),
        (None, []) => format!(
            "holds no snapshot, the download has not begun; {}",
            download()
        ),
        (None, names) => several(snapshots, names),
    };
    Err(WeightsError::Directory {
        path: snapshots.to_path_buf(),
        problem,
    })
}

fn several(snapshots: &Path, names: &[String]) -> String {
    let main = snapshots.with_file_name("refs").join("main");
    let main = operator_file::text(&main, REF_BYTES_MAX);
    let main = main.map(|text| text.trim().to_string()).unwrap_or_default();
    let named = names.iter().map(|name| match *name == main {
        true => format!("{} (main)", snapshots.join(name).display()),
        false => snapshots.join(name).display().to_string(),
    });
    let named: Vec<String> = named.collect();
    format!(
        "holds {} snapshots; give one: {}",
        names.len(),
        named.join(" or ")
    )
}

/// Names of the folders in `directory`, sorted, without links.
fn folders(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Error for a directory that lacks the files `missing`, at least one.
pub fn incomplete(folder: &Folder, missing: &[String]) -> WeightsError {
    let verb = if missing.len() == 1 { "is" } else { "are" };
    WeightsError::Incomplete {
        directory: folder.path().to_path_buf(),
        names: format!("{} {verb}", shortest(missing)),
        hint: hint(folder, missing),
    }
}

/// Reason for which files may be missing, with the fix.
fn hint(folder: &Folder, missing: &[String]) -> String {
    let present = folder.names();
    let ends = |end: &str| present.iter().find(|name| name.ends_with(end));
    let of_missing = |name: &&String| missing.iter().any(|missing| name.starts_with(missing));
    let unfinished = |name: &&String| UNFINISHED.iter().any(|end| name.ends_with(end));
    if let Some(part) = present.iter().filter(unfinished).find(of_missing) {
        return unfinished_words(part);
    }
    if let Some(part) = unfinished_blob(folder) {
        return unfinished_words(&part);
    }
    let same = |a: &String| missing.iter().any(|b| a.eq_ignore_ascii_case(b));
    if let Some(other) = present.iter().find(|name| same(name)) {
        return format!("there is {other}, and case counts: rename it");
    }
    let weights = missing.iter().any(|name| name.ends_with(".safetensors"));
    let other = [".gguf", ".bin", ".pth", ".pt"].into_iter().find_map(ends);
    match other.filter(|_| weights && ends(".safetensors").is_none()) {
        Some(other) => format!(
            "{other} is of another format than the safetensors files that this binary reads; {}",
            download()
        ),
        None if present.is_empty() => format!("the directory is empty; {}", download()),
        None => download(),
    }
}

fn unfinished_words(part: &str) -> String {
    format!(
        "{part} is there, the download is not finished: start it again, it goes on where it ended"
    )
}

/// A file that the hub's client has begun to fetch for this directory.
fn unfinished_blob(folder: &Folder) -> Option<String> {
    let real = fs::canonicalize(folder.path()).ok()?;
    let model = real.parent().filter(|parent| parent.ends_with(SNAPSHOTS));
    let blobs = model.and_then(Path::parent).map(|model| model.join(BLOBS));
    let local = real.join(".cache/huggingface/download");
    [blobs, Some(local)]
        .into_iter()
        .flatten()
        .find_map(|folder| {
            let entries = fs::read_dir(&folder).ok()?.flatten();
            let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            let part = names.find(|name| name.ends_with(UNFINISHED[0]))?;
            Some(folder.join(part).display().to_string())
        })
}

/// The commit in the path of a snapshot of the hub's cache.
pub(super) fn snapshot_commit(directory: &Path) -> Option<String> {
    let real = fs::canonicalize(directory).ok()?;
    let in_snapshots = real.parent()?.ends_with(SNAPSHOTS);
    let name = real.file_name()?.to_str()?;
    (in_snapshots && is_commit(name)).then(|| name.to_string())
}

#[cfg(test)]
#[path = "locate_tests.rs"]
mod tests;
