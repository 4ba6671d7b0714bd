//! `import`: copies weights from a directory or a bundle to the directory that is served.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use argh::{ArgsInfo, FromArgs};
use rustix::fs::FileType;

use super::copy::{self, Copy, Piece, unreadable, unwritable};
use super::stage::Stage;
use super::sums::Sums;
use super::{SUMS, WEIGHTS};
use crate::cli::{Exit, Failure};
use crate::start::boot::{self, Files};
use crate::start::meter::Meter;
use host::beneath::{Beneath, Dir, is_own, kind, refusal};
use model::target;
use model::weights::{self, Folder, Progress, WeightsError, packed};

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

const MODE: u32 = 0o644;
/// Suffixes of the names of files with weights.
const OF_WEIGHTS: [&str; 2] = [".safetensors", ".packed"];

/// Copies and verifies the weights, and makes the directory appear at once.
///
/// # Errors
/// Names the file that is damaged, missing or cannot be written, and how to go on.
pub fn run(options: &Import) -> Result<(), Failure> {
    let key = options.public_key.as_deref();
    let weights = match bundle_at(&options.source)? {
        Some(bundle) => of_bundle(&bundle, &Sums::read(&bundle, key)?)?,
        None if key.is_some() => {
            let message = format!("--public-key: {} is no bundle", options.source.display());
            return Err(Exit::Usage.failure(message));
        }
        None => of_directory(&options.source)?,
    };
    let writing = unwritable(&options.dest);
    let (parent, name) = Beneath::last(&options.dest).map_err(writing)?;
    let parent = Dir::make(parent).map_err(writing)?;
    check_replaced(&parent, &name, &weights).map_err(writing)?;
    let link = |copy: &Copy<'_>, into: &Dir| match options.link {
        true => link(copy, into),
        false => Ok(false),
    };
    let stage = fill(&weights, parent, &name, link)?;
    stage.finish().map_err(writing)?;
    boot::print(&format!("{}\n", options.dest.display()))
}

/// Pieces of each file, by its path in the directory of the weights.
pub type Weights = BTreeMap<Beneath, Vec<Piece>>;

/// The folder at `source`, if it is a bundle.
fn bundle_at(source: &Path) -> Result<Option<Dir>, Failure> {
    let sums = Beneath::parse(SUMS).expect("a plain name");
    match Dir::open(source) {
        Ok(dir) => Ok(matches!(dir.look(&sums), Ok(Some(_))).then_some(dir)),
        Err(why) if why.kind() == io::ErrorKind::InvalidInput => Err(unwritable(source)(why)),
        // No directory: the reader of weights checks whether the path is a packed file.
        Err(_) => Ok(None),
    }
}

/// Files of a directory, whose weights must be this binary's, with digests of the manifest.
fn of_directory(directory: &Path) -> Result<Weights, Failure> {
    let files = Files::locate(Some(directory))?;
    files.open(Arc::default())?;
    let mut weights = carried(&files)?;
    for (name, pieces) in &mut weights {
        let mut files = target::CHECKPOINT.iter();
        let known = files.find(|file| file.name == name.as_str());
        for piece in pieces {
            piece.sha256 = known.map(|file| file.sha256.to_string());
        }
    }
    Ok(weights)
}

/// Files that a server reads, opened for copying, by their paths in the new folder.
///
/// # Errors
/// If a file cannot be read, or a link and its target belong to different users.
pub fn carried(files: &Files) -> Result<Weights, Failure> {
    match files {
        Files::Embedded => Ok(Weights::new()),
        Files::Packed(packed) => {
            let path = packed.path().to_path_buf();
            let file = packed.handle().map_err(unreadable(&path))?;
            let piece = Piece::of(file, path, None)?;
            Ok(Weights::from([(plain(&packed::file_name())?, vec![piece])]))
        }
        Files::Directory(directory) => {
            let folder = Folder::open(directory)?;
            let names = weights::listed(&folder)?.into_iter();
            let opened = names.map(|name| {
                let file = folder.open_to_copy(&name)?;
                let piece = Piece::of(file, directory.join(&name), None)?;
                Ok((plain(&name)?, vec![piece]))
            });
            opened.collect()
        }
    }
}

/// Name of a file in the weights' index, as a checked path.
fn plain(name: &str) -> Result<Beneath, Failure> {
    Beneath::parse(name)
        .map_err(|why| Exit::Config.failure(format!("the file name {name:?} {why}")))
}

/// Opened files of the weights in a bundle, with the digests of its list.
///
/// # Errors
/// If a file of the list is missing or no regular file.
pub fn of_bundle(bundle: &Dir, sums: &Sums) -> Result<Weights, Failure> {
    let mut weights = Weights::new();
    // The list is in the order of paths, so the parts of a file follow each other.
    for (path, sha256) in &sums.0 {
        let Some(name) = path.below(WEIGHTS) else {
            continue;
        };
        let piece = Piece::inside(bundle, path, sha256)?;
        let name = plain(without_part(name.as_str()))?;
        weights.entry(name).or_default().push(piece);
    }
    Ok(weights)
}

/// Name of a file without the suffix `.part000` of a part.
fn without_part(name: &str) -> &str {
    match name.rsplit_once(".part") {
        Some((name, digits)) if digits.len() == 3 && digits.bytes().all(|b| b.is_ascii_digit()) => {
            name
        }
        _ => name,
    }
}

/// Refuses to replace a directory that has files other than weights.
fn check_replaced(parent: &Dir, name: &Beneath, weights: &Weights) -> io::Result<()> {
    let wrong = |why: String| Err(refusal(why));
    match parent.look(name)? {
        None => return Ok(()),
        Some(found) if !is_own(&found) => {
            let owner = found.st_uid;
            return wrong(format!("is user {owner}'s; name another place"));
        }
        Some(found) if kind(&found) != FileType::Directory => {
            return wrong("is no directory; name another place".to_string());
        }
        Some(_) => {}
    }
    let listed = |name: &Beneath| {
        let name = name.as_str();
        let mut ends = OF_WEIGHTS.iter();
        weights::may_be_listed(name) || ends.any(|end| name.ends_with(end))
    };
    let names = parent.folder(name)?.names()?;
    let is_other = |name: &&Beneath| !weights.contains_key(name) && !listed(name);
    match names.iter().find(is_other) {
        None => Ok(()),
        Some(other) => wrong(format!(
            "holds {other}, which is no file of weights and would be lost; move it or name another \
             place"
        )),
    }
}

/// Copies the weights into a folder next to `name`, and verifies them. `link` links a file instead
/// of copying it, if possible.
///
/// # Errors
/// Names the file that is damaged or cannot be written.
pub fn fill(
    weights: &Weights,
    parent: Dir,
    name: &Beneath,
    link: impl Fn(&Copy<'_>, &Dir) -> Result<bool, Failure>,
) -> Result<Stage, Failure> {
    let shown = parent.shown(name);
    let writing = unwritable(&shown);
    let stage = Stage::of(parent, name.clone()).map_err(writing)?;
    let wanted = |name: &Beneath| weights.contains_key(name);
    stage.keep(wanted).map_err(writing)?;
    let mut copies = Vec::new();
    for (name, pieces) in weights {
        let copy = Copy {
            pieces,
            to: name.clone(),
            mode: MODE,
        };
        if !link(&copy, stage.dir())? {
            copies.push(copy);
        }
    }
    copy::run(&copies, stage.dir())?;
    check(&stage.path())?;
    Ok(stage)
}

/// Checks that the imported weights can be served; packed weights are read whole.
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

fn link(copy: &Copy<'_>, into: &Dir) -> Result<bool, Failure> {
    let [piece] = copy.pieces else {
        let message = "--link: files in parts must be copied";
        return Err(Exit::Usage.failure(message));
    };
    let removed = into.remove(&copy.to);
    let linked = removed.and_then(|()| into.link(piece.file(), &copy.to));
    linked.map(|()| true).map_err(|why| {
        let message = format!("--link {}: {why}; copy without it", piece.shown().display());
        Exit::Io.failure(message)
    })
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
