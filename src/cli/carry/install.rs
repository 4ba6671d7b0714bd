//! `install` and `uninstall`: a bundle to where the service looks, and back to nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use argh::{ArgsInfo, FromArgs};

use super::import::{self, of_bundle};
use super::sums::Sums;
use super::transfer::{self, Copy, Piece, unwritable};
use crate::cli::boot;
use crate::cli::{Exit, Failure, about};
use crate::target;

/// install a bundle as a service of this machine
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "install", help_triggers("--help"))]
pub struct Install {
    /// the bundle
    #[argh(positional)]
    bundle: PathBuf,

    /// file of the minisign public key that it must be signed with (default: no signature is asked
    /// for, and every file is compared with the bundle's own list)
    #[argh(option)]
    public_key: Option<PathBuf>,

    /// directory that stands for / (default /)
    #[argh(option, default = "PathBuf::from(\"/\")")]
    root: PathBuf,
}

/// remove what `install` installed
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "uninstall", help_triggers("--help"))]
pub struct Uninstall {
    /// directory that stands for / (default /)
    #[argh(option, default = "PathBuf::from(\"/\")")]
    root: PathBuf,
}

const UNIT: &str = include_str!("../../../packaging/atlas.service");
const DROP_IN: &str = if cfg!(feature = "cuda") {
    include_str!("../../../packaging/drop-ins/gpu.conf")
} else {
    include_str!("../../../packaging/drop-ins/cpu.conf")
};
const SETTINGS: &str = include_str!("../../../packaging/config.toml");
const PROGRAMS: &str = "usr/local/bin";
const MODE_PROGRAM: u32 = 0o755;

/// Where each thing belongs, below a root.
struct Places {
    root: PathBuf,
}

impl Places {
    fn at(&self, path: String) -> PathBuf {
        self.root.join(path)
    }

    fn binary(&self) -> PathBuf {
        self.at(format!("{PROGRAMS}/{}", target::BINARY))
    }

    fn weights(&self) -> PathBuf {
        self.at(format!("var/lib/atlas/{}", target::MODEL))
    }

    fn settings(&self) -> PathBuf {
        self.at(format!("etc/atlas/{}.toml", target::BINARY))
    }

    fn unit(&self) -> PathBuf {
        self.at(format!("etc/systemd/system/{}.service", target::BINARY))
    }

    fn drop_in(&self) -> PathBuf {
        self.at(format!(
            "etc/systemd/system/{}.service.d/10-hardware.conf",
            target::BINARY
        ))
    }

    /// Content of what is written by this program itself, where weights are `brought` or inside.
    fn texts(&self, brought: bool) -> BTreeMap<PathBuf, String> {
        let fill = |text: &str| {
            let weights = match brought {
                true => format!("weights = \"/var/lib/atlas/{}\"", target::MODEL),
                false => "# The weights are inside the binary.".to_string(),
            };
            text.replace("@NAME@", target::BINARY)
                .replace("@BINARY@", &format!("/{PROGRAMS}/{}", target::BINARY))
                .replace("@WEIGHTS_LINE@", &weights)
        };
        BTreeMap::from([
            (self.settings(), fill(SETTINGS)),
            (self.unit(), fill(UNIT)),
            (self.drop_in(), fill(DROP_IN)),
        ])
    }
}

/// Verifies and copies; nothing is started.
///
/// # Errors
/// What is damaged, missing or cannot be written; the same command goes on.
pub fn run(options: &Install) -> Result<(), Failure> {
    let bundle = &options.bundle;
    let sums = Sums::read(bundle, options.public_key.as_deref())?;
    let Some(digest) = sums.0.get(target::BINARY) else {
        let message = format!("{}: is no bundle of {}", bundle.display(), target::BINARY);
        return Err(Failure::new(Exit::Config, message));
    };
    let places = Places {
        root: options.root.clone(),
    };
    let binary = Copy {
        pieces: vec![Piece::of(
            bundle.join(target::BINARY),
            Some(digest.clone()),
        )?],
        to: places.binary(),
        mode: MODE_PROGRAM,
    };
    let weights = of_bundle(bundle, options.public_key.as_deref())?;
    if weights.is_empty() && about::needs_weights() {
        let message = format!("{}: has no weights in its list", bundle.display());
        return Err(Failure::new(Exit::Config, message));
    }
    if !weights.is_empty() {
        import::bring(&weights, &places.weights(), false)?;
    }
    transfer::run(&[binary])?;
    for (path, text) in places.texts(!weights.is_empty()) {
        // Settings stay as their owner left them.
        if path == places.settings() && path.exists() {
            continue;
        }
        write(&path, &text)?;
    }
    let name = target::BINARY;
    boot::print(&format!(
        "installed; `systemctl daemon-reload && systemctl enable --now {name}` starts it, `{name} \
         uninstall` removes it\n"
    ))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(path, text));
    written.map_err(|why| unwritable(path, &why))
}

/// Removes every file and each folder that is empty then.
///
/// # Errors
/// What cannot be removed.
pub fn remove(options: &Uninstall) -> Result<(), Failure> {
    let places = Places {
        root: options.root.clone(),
    };
    let wants = places.at(format!(
        "etc/systemd/system/multi-user.target.wants/{}.service",
        target::BINARY
    ));
    let mut files: Vec<PathBuf> = places.texts(false).into_keys().collect();
    files.extend([wants, places.binary(), unfinished(places.binary())]);
    for path in &files {
        gone(path, fs::remove_file(path))?;
    }
    let weights = places.weights();
    for folder in [&weights, &unfinished(weights.clone())] {
        gone(folder, fs::remove_dir_all(folder))?;
    }
    let folders = files
        .iter()
        .filter_map(|path| path.parent())
        .chain(weights.parent());
    for folder in folders.filter(|folder| folder.ends_with("atlas") || is_drop_in(folder)) {
        // One that holds something else is somebody else's too.
        let _ = fs::remove_dir(folder);
    }
    boot::print("removed; `systemctl daemon-reload` forgets the unit\n")
}

/// The name of what an interrupted installation left.
fn unfinished(path: PathBuf) -> PathBuf {
    let mut name = path.into_os_string();
    name.push(transfer::UNFINISHED);
    name.into()
}

fn is_drop_in(folder: &Path) -> bool {
    folder.extension().is_some_and(|end| end == "d")
}

/// What was not there needs no removal.
fn gone(path: &Path, removed: std::io::Result<()>) -> Result<(), Failure> {
    match removed {
        Err(why) if why.kind() != ErrorKind::NotFound => Err(unwritable(path, &why)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_settings_have_no_gap_left() {
        let places = Places { root: "/r".into() };
        for (path, text) in places.texts(true) {
            assert!(path.starts_with("/r"));
            assert!(
                !text.contains('@') || text.contains("~@"),
                "{}: {text}",
                path.display()
            );
            assert!(
                !text.contains("@NAME@") && !text.contains("@BINARY@"),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_installed_is_removed_and_the_rest_stays() {
        let root = std::env::temp_dir().join(format!("atlas-install-{}", std::process::id()));
        let places = Places { root: root.clone() };
        for (path, text) in places.texts(true) {
            write(&path, &text).unwrap();
        }
        write(&places.binary(), "").unwrap();
        for weights in [places.weights(), unfinished(places.weights())] {
            write(&weights.join("config.json"), "").unwrap();
        }
        let other = root.join("etc/atlas/other.toml");
        write(&other, "").unwrap();
        for _ in 0..2 {
            remove(&Uninstall { root: root.clone() }).unwrap();
        }
        assert!(other.exists() && !places.binary().exists() && !places.unit().exists());
        assert!(!root.join("var/lib/atlas").exists());
        assert!(!places.drop_in().parent().unwrap().exists());
        fs::remove_dir_all(&root).unwrap();
    }
}
