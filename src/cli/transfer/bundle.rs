//! `bundle`: one folder with all that a machine without a network needs.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use argh::{ArgsInfo, FromArgs};
use sha2::{Digest, Sha256};

use super::copy::{self, Piece, unreadable, unwritable};
use super::import::carried;
use super::sums::Sums;
use super::{INSTALLER, SUMS, WEIGHTS};
use crate::cli::Failure;
use crate::start::boot::{self, Files};
use host::beneath::{Beneath, Dir, is_own, refusal};
use host::log;
use model::target;
use model::weights::hex::hex;

/// write a folder that installs this model on a machine without a network
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "bundle", help_triggers("--help"))]
pub struct Bundle {
    /// directory to make
    #[argh(positional)]
    dest: PathBuf,

    /// directory that holds the weights, or packed file; none for a model inside the binary
    #[argh(option)]
    weights: Option<PathBuf>,

    /// cut files into parts of less than 4 GiB, for media that take no larger ones
    #[argh(switch)]
    parts: bool,
}

/// Bytes of a part: files on FAT32 have less than 4 GiB.
const PART_BYTES: u64 = (4 << 30) - (1 << 20);
const INSTALL_SCRIPT: &str = include_str!("install.sh");
const READ_ME: &str = include_str!("bundle.txt");

/// Name of the file that marks a bundle as incomplete.
const UNFINISHED: &str = ".unfinished";
const MODE: u32 = 0o644;
const MODE_PROGRAM: u32 = 0o755;

/// Writes the bundle.
///
/// # Errors
/// The file that cannot be read or written, or the reason why the weights are not this binary's.
pub fn run(options: &Bundle) -> Result<(), Failure> {
    let shown = &options.dest;
    let files = Files::locate(options.weights.as_deref())?;
    files.open(Arc::default())?;
    let carried = carried(&files)?;
    let dest = empty_folder(shown).map_err(unwritable(shown))?;
    let mut writer = Writer {
        dest: &dest,
        sums: BTreeMap::new(),
    };
    // The running program, even if its path leads to another file now.
    let own = Path::new("/proc/self/exe");
    let own = File::open(own).map_err(unreadable(own))?;
    let own = Piece::of(own, target::BINARY.into(), None)?;
    writer.cut(&own, target::BINARY, u64::MAX, MODE_PROGRAM)?;
    for (name, text, mode) in [
        (INSTALLER, INSTALL_SCRIPT, MODE_PROGRAM),
        ("README.txt", READ_ME, MODE),
    ] {
        writer.text(name, &text.replace("@NAME@", target::BINARY), mode)?;
    }
    let part = if options.parts { PART_BYTES } else { u64::MAX };
    for (name, pieces) in &carried {
        for piece in pieces {
            writer.cut(piece, &format!("{WEIGHTS}/{name}"), part, MODE)?;
        }
    }
    // The list is written last: a folder without a list is no bundle.
    let sums = Sums(std::mem::take(&mut writer.sums)).text();
    writer.text(SUMS, &sums, MODE)?;
    let ended = dest.remove(&Beneath::parse(UNFINISHED).expect("a plain name"));
    ended.map_err(unwritable(shown))?;
    boot::print(&format!(
        "{}\nsign it with `minisign -Sm {}`, so that who receives it knows from whom it is\n",
        shown.display(),
        shown.join(SUMS).display()
    ))
}

/// Makes a folder and marks it as incomplete. An existing folder must be empty, or left by a killed
/// run.
fn empty_folder(path: &Path) -> io::Result<Dir> {
    let (parent, name) = Beneath::last(path)?;
    let parent = Dir::make(parent)?;
    let folder = match parent.look(&name)? {
        None => parent.new_folder(&name, MODE_PROGRAM)?,
        Some(_) => {
            let folder = parent.folder(&name);
            folder.map_err(|_| refusal("is no directory; name another"))?
        }
    };
    let mark = Beneath::parse(UNFINISHED).expect("a plain name");
    if folder.look(&mark)?.is_some_and(|stat| is_own(&stat)) {
        let shown = path.display();
        log::line(format_args!("{shown} is unfinished, and begun anew"));
        folder.empty()?;
    }
    match folder.is_empty()? {
        true => folder.create(&mark, MODE).map(|_| folder),
        false => Err(refusal("is not empty; name another directory")),
    }
}

/// Writer of files of a bundle, which collects their digests.
struct Writer<'a> {
    dest: &'a Dir,
    sums: BTreeMap<Beneath, String>,
}

impl Writer<'_> {
    /// Copies a file to `name`, or to several parts of at most `most` bytes.
    fn cut(&mut self, from: &Piece, name: &str, most: u64, mode: u32) -> Result<(), Failure> {
        let parts = from.bytes.div_ceil(most).max(1);
        for ix in 0..parts {
            let name = match parts {
                1 => name.to_string(),
                _ => format!("{name}.part{ix:03}"),
            };
            let start = ix * most.min(from.bytes);
            self.write(&name, mode, |to, shown| {
                copy::copy_range(from, start, most, to, shown)
            })?;
        }
        Ok(())
    }

    fn text(&mut self, name: &str, text: &str, mode: u32) -> Result<(), Failure> {
        self.write(name, mode, |to, shown| {
            let written = to.write_all(text.as_bytes());
            written.map_err(unwritable(shown))?;
            Ok(hex(&Sha256::digest(text)))
        })
    }

    fn write(
        &mut self,
        name: &str,
        mode: u32,
        fill: impl FnOnce(&mut File, &Path) -> Result<String, Failure>,
    ) -> Result<(), Failure> {
        let name = Beneath::parse(name).expect("names of a bundle are plain");
        let shown = self.dest.shown(&name);
        let unwritten = unwritable(&shown);
        if let (Some(folder), _) = name.split() {
            let made = self.dest.make_folder(&folder, MODE_PROGRAM);
            made.map_err(unwritten)?;
        }
        let mut file = self.dest.create(&name, mode).map_err(unwritten)?;
        let digest = fill(&mut file, &shown)?;
        let written = file
            .set_permissions(Permissions::from_mode(mode))
            .and_then(|()| file.sync_all());
        written.map_err(unwritten)?;
        self.sums.insert(name, digest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::import::of_bundle;
    use super::*;
    use host::testing::Folder;

    #[test]
    fn parts_of_a_bundle_are_the_file() {
        let folder = Folder::new();
        fs::write(folder.join("from"), "abcdefghij").unwrap();
        let from = File::open(folder.join("from")).unwrap();
        let from = Piece::of(from, "from".into(), None).unwrap();
        let dest = empty_folder(&folder.join("dest")).unwrap();
        let mut writer = Writer {
            dest: &dest,
            sums: BTreeMap::new(),
        };
        writer.cut(&from, "weights/model", 4, MODE).unwrap();
        writer.cut(&from, "weights/whole", 10, MODE).unwrap();
        let sums = Sums(writer.sums);
        assert_eq!(sums.0.len(), 4);
        let weights = of_bundle(&dest, &sums).unwrap();
        for name in ["model", "whole"] {
            let name = Beneath::parse(name).unwrap();
            let pieces = weights[&name].iter();
            let text = pieces.map(|piece| io::read_to_string(piece.file()).unwrap());
            assert_eq!(text.collect::<String>(), "abcdefghij");
        }
        fs::remove_file(folder.join("dest/weights/model.part001")).unwrap();
        let why = of_bundle(&dest, &sums).unwrap_err();
        assert!(why.message.contains("part001"), "{why:?}");
        // A finished folder has no mark, and is not begun anew.
        fs::remove_file(folder.join("dest").join(UNFINISHED)).unwrap();
        assert!(empty_folder(&folder.join("dest")).is_err());
    }
}
