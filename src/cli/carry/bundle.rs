//! `bundle`: everything that a machine without a network needs, in one folder.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use argh::{ArgsInfo, FromArgs};

use super::import::carried;
use super::sums::Sums;
use super::transfer::{self, unwritable};
use super::{INSTALLER, SUMS, WEIGHTS};
use crate::cli::boot::{self, Files};
use crate::cli::{Exit, Failure};
use crate::target;
use crate::weights::Progress;

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

/// Bytes of a part: FAT32 holds files of less than 4 GiB.
const PART_BYTES: u64 = (4 << 30) - (1 << 20);
const INSTALL_SCRIPT: &str = include_str!("install.sh");
const READ_ME: &str = include_str!("bundle.txt");

/// Writes the folder.
///
/// # Errors
/// What cannot be read or written, or why these weights are not this binary's.
pub fn run(options: &Bundle) -> Result<(), Failure> {
    let dest = &options.dest;
    if fs::read_dir(dest).is_ok_and(|mut entries| entries.next().is_some()) {
        let message = format!("{}: is not empty; name another directory", dest.display());
        return Err(Failure::new(Exit::Usage, message));
    }
    let files = Files::locate(options.weights.as_deref())?;
    let opened = files.open(Arc::new(Progress::default()));
    opened.map_err(|error| boot::start_failure(&error))?;
    fs::create_dir_all(dest).map_err(|why| unwritable(dest, &why))?;
    let own = std::env::current_exe().map_err(|why| Failure::new(Exit::Io, why))?;
    let mut sums = BTreeMap::new();
    let part = if options.parts { PART_BYTES } else { u64::MAX };
    cut(&own, dest, target::BINARY, u64::MAX, &mut sums)?;
    program(&dest.join(target::BINARY))?;
    for (name, text) in [(INSTALLER, INSTALL_SCRIPT), ("README.txt", READ_ME)] {
        let path = dest.join(name);
        let text = text.replace("@NAME@", target::BINARY);
        fs::write(&path, text).map_err(|why| unwritable(&path, &why))?;
        sums.insert(name.to_string(), transfer::digest(&path)?);
    }
    program(&dest.join(INSTALLER))?;
    let carried = carried(&files)?;
    if !carried.is_empty() {
        let folder = dest.join(WEIGHTS);
        fs::create_dir_all(&folder).map_err(|why| unwritable(&folder, &why))?;
    }
    for (name, from) in carried {
        let name = format!("{WEIGHTS}/{name}");
        cut(&from, dest, &name, part, &mut sums)?;
    }
    // Last: a folder without it is no bundle.
    let path = dest.join(SUMS);
    fs::write(&path, Sums(sums).text()).map_err(|why| unwritable(&path, &why))?;
    boot::print(&format!(
        "{}\nsign it with `minisign -Sm {}`, so that who receives it knows from whom it is\n",
        dest.display(),
        path.display()
    ))
}

fn program(path: &Path) -> Result<(), Failure> {
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(path, mode).map_err(|why| unwritable(path, &why))
}

/// Copies a file to `name` in `dest`, or to parts of it; notes the digests.
fn cut(
    from: &Path,
    dest: &Path,
    name: &str,
    part_bytes: u64,
    sums: &mut BTreeMap<String, String>,
) -> Result<(), Failure> {
    let reading = |why: io::Error| Failure::new(Exit::Io, format!("{}: {why}", from.display()));
    let mut source = File::open(from).map_err(reading)?;
    let bytes = source.metadata().map_err(reading)?.len();
    let parts = bytes.div_ceil(part_bytes).max(1);
    for ix in 0..parts {
        let name = match parts {
            1 => name.to_string(),
            _ => format!("{name}.part{ix:03}"),
        };
        let path = dest.join(&name);
        source
            .seek(SeekFrom::Start(ix * part_bytes.min(bytes)))
            .map_err(reading)?;
        let mut to = File::create(&path).map_err(|why| unwritable(&path, &why))?;
        let mut part = (&source).take(part_bytes);
        io::copy(&mut part, &mut to).map_err(|why| unwritable(&path, &why))?;
        to.sync_all().map_err(|why| unwritable(&path, &why))?;
        sums.insert(name, transfer::digest(&path)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::import::of_bundle;
    use super::*;

    #[test]
    fn parts_of_a_bundle_are_the_file() {
        let place = std::env::temp_dir().join(format!("atlas-bundle-{}", std::process::id()));
        fs::create_dir_all(place.join(WEIGHTS)).unwrap();
        let from = place.join("from");
        fs::write(&from, "abcdefghij").unwrap();
        let mut sums = BTreeMap::new();
        cut(&from, &place, "weights/model", 4, &mut sums).unwrap();
        cut(&from, &place, "weights/whole", 10, &mut sums).unwrap();
        assert_eq!(sums.len(), 4);
        fs::write(place.join(SUMS), Sums(sums).text()).unwrap();
        let weights = of_bundle(&place, None).unwrap();
        let text = |name: &str| {
            let pieces = weights[name]
                .iter()
                .map(|piece| fs::read_to_string(&piece.path).unwrap());
            pieces.collect::<String>()
        };
        assert_eq!(
            (text("model"), text("whole")),
            ("abcdefghij".into(), "abcdefghij".into())
        );
        fs::remove_file(place.join("weights/model.part001")).unwrap();
        assert!(
            of_bundle(&place, None)
                .unwrap_err()
                .message
                .contains("part001")
        );
        fs::remove_dir_all(&place).unwrap();
    }
}
