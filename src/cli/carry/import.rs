//! `import`: weights from a directory or a bundle to where they are served from.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use argh::{ArgsInfo, FromArgs};

use super::sums::Sums;
use super::transfer::{self, Copy, Piece, unwritable};
use super::{SUMS, WEIGHTS};
use crate::cli::boot::{self, Files};
use crate::cli::meter::Meter;
use crate::cli::{Exit, Failure};
use crate::target;
use crate::weights::{Progress, WeightsError, packed};

/// copy weights to where they are served from, verifying them; goes on where an earlier run stopped
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "import", help_triggers("--help"))]
pub struct Import {
    /// directory of the weights, packed file of them, or bundle
    #[argh(positional)]
    source: PathBuf,

    /// directory to make
    #[argh(positional)]
    dest: PathBuf,

    /// file of the minisign public key that a bundle must be signed with
    #[argh(option)]
    public_key: Option<PathBuf>,

    /// link the files of a directory instead of copying them, where both are on one disk
    #[argh(switch)]
    link: bool,
}

/// Ends the name of a directory that is not whole.
const UNFINISHED: &str = ".partial";
const MODE: u32 = 0o644;

/// Copies, verifies, and makes the directory appear at once.
///
/// # Errors
/// What is damaged, missing or cannot be written, and how to go on.
pub fn run(options: &Import) -> Result<(), Failure> {
    let weights = match options.source.join(SUMS).is_file() {
        true => of_bundle(&options.source, options.public_key.as_deref())?,
        false if options.public_key.is_some() => {
            let message = format!("--public-key: {} is no bundle", options.source.display());
            return Err(Failure::new(Exit::Usage, message));
        }
        false => of_directory(&options.source)?,
    };
    bring(&weights, &options.dest, options.link)?;
    boot::print(&format!("{}\n", options.dest.display()))
}

/// Pieces of each file, by its name.
pub type Weights = BTreeMap<String, Vec<Piece>>;

/// Files of a directory whose weights are those of this binary, with the digests that are known.
fn of_directory(directory: &Path) -> Result<Weights, Failure> {
    let files = Files::locate(Some(directory))?;
    let opened = files.open(Arc::new(Progress::default()));
    opened.map_err(|error| boot::start_failure(&error))?;
    let mut weights = Weights::new();
    for (name, path) in carried(&files)? {
        let known = target::CHECKPOINT.iter().find(|file| file.name == name);
        let sha256 = known.map(|file| file.sha256.to_string());
        let piece = Piece::of(path, sha256)?;
        weights.insert(name, vec![piece]);
    }
    Ok(weights)
}

/// Files to be carried, by the names that they have elsewhere.
///
/// # Errors
/// If a directory cannot be listed.
pub fn carried(files: &Files) -> Result<BTreeMap<String, PathBuf>, Failure> {
    match files {
        Files::Embedded => Ok(BTreeMap::new()),
        Files::Packed(packed) => {
            let name = packed::file_name();
            Ok(BTreeMap::from([(name, packed.path().to_path_buf())]))
        }
        Files::Directory(directory) => {
            let names = files_of(directory)?.into_iter();
            let paths = names.map(|name| (name.clone(), directory.join(name)));
            Ok(paths.collect())
        }
    }
}

/// Names of the files of a directory, but for hidden ones.
fn files_of(directory: &Path) -> Result<Vec<String>, Failure> {
    let unlisted = |why| Failure::new(Exit::Io, format!("{}: {why}", directory.display()));
    let entries = fs::read_dir(directory).map_err(unlisted)?.flatten();
    let files = entries.filter(|entry| entry.path().is_file());
    let names = files.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    Ok(names)
}

/// Files of the weights of a bundle, as its list of digests names them.
///
/// # Errors
/// If the list or its signature is not as it should be, or a file is missing.
pub fn of_bundle(bundle: &Path, key: Option<&Path>) -> Result<Weights, Failure> {
    let sums = Sums::read(bundle, key)?;
    let mut weights = Weights::new();
    // By path, so that the parts of a file follow each other.
    for (path, sha256) in &sums.0 {
        let Some(name) = path
            .strip_prefix(WEIGHTS)
            .and_then(|rest| rest.strip_prefix('/'))
        else {
            continue;
        };
        let piece = Piece::of(bundle.join(path), Some(sha256.clone()))?;
        weights
            .entry(without_part(name).to_string())
            .or_default()
            .push(piece);
    }
    Ok(weights)
}

/// The name of a file without the `.part000` of a part.
fn without_part(name: &str) -> &str {
    match name.rsplit_once(".part") {
        Some((name, digits)) if digits.len() == 3 && digits.bytes().all(|b| b.is_ascii_digit()) => {
            name
        }
        _ => name,
    }
}

/// Makes `dest` of the weights: under another name until all of it is there and verified.
///
/// # Errors
/// As [`run`].
pub fn bring(weights: &Weights, dest: &Path, link: bool) -> Result<(), Failure> {
    let mut unfinished = dest.to_path_buf().into_os_string();
    unfinished.push(UNFINISHED);
    let unfinished = PathBuf::from(unfinished);
    if dest.is_dir() && !unfinished.exists() {
        fs::rename(dest, &unfinished).map_err(|why| unwritable(dest, &why))?;
    }
    let copies = weights.iter().map(|(name, pieces)| Copy {
        pieces: pieces.clone(),
        to: unfinished.join(name),
        mode: MODE,
    });
    let copies: Vec<Copy> = copies.collect();
    match link {
        true => links(&copies)?,
        false => transfer::run(&copies)?,
    }
    check(&unfinished).map_err(|error| boot::start_failure(&error))?;
    fs::rename(&unfinished, dest).map_err(|why| unwritable(dest, &why))
}

/// Whether what was brought can be served; packed weights are read whole.
fn check(directory: &Path) -> Result<(), WeightsError> {
    let files = Files::at(directory)?;
    let progress = Arc::new(Progress::default());
    files.open(progress.clone())?;
    let Files::Packed(packed) = files else {
        return Ok(());
    };
    let _meter = Meter::start(&progress);
    packed.check(&progress)
}

fn links(copies: &[Copy]) -> Result<(), Failure> {
    for copy in copies {
        let [piece] = copy.pieces.as_slice() else {
            return Err(Failure::new(
                Exit::Usage,
                "--link: files in parts must be copied",
            ));
        };
        let folder = copy.to.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder).map_err(|why| unwritable(folder, &why))?;
        let _ = fs::remove_file(&copy.to);
        // Behind a link of the hub's cache lies the file.
        let linked = fs::canonicalize(&piece.path).and_then(|from| fs::hard_link(from, &copy.to));
        linked.map_err(|why| {
            let message = format!("--link {}: {why}; copy without it", piece.path.display());
            Failure::new(Exit::Io, message)
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_belong_to_their_file() {
        assert_eq!(
            without_part("model.safetensors.part000"),
            "model.safetensors"
        );
        assert_eq!(without_part("model.part1"), "model.part1");
        assert_eq!(without_part("config.json"), "config.json");
    }
}
