//! The workspace that verbs work on, and the failures of a verb.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use manifest::Target;

use crate::graph;

/// The target that verbs use when none is named.
pub const DEFAULT_TARGET: &str = "cpu/tiny/nvfp4";

/// Exit code of a build, test or check that failed.
const EXIT_FAILED: u8 = 1;
/// Exit code of a command line that makes no sense.
const EXIT_USAGE: u8 = 2;

/// Reason for which a verb did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line has an unknown verb, flag or target.
    #[error("{0}")]
    Usage(String),
    /// The work of the verb failed.
    #[error("{0}")]
    Failed(String),
    /// The machine lacks programs; the text says how to install them.
    #[error("{0}")]
    Missing(String),
    /// The machine lacks a requirement that no package provides, such as a GPU.
    #[error("{0}")]
    Absent(String),
}

impl Failure {
    /// Prints the reason and returns the exit code.
    pub fn report(&self) -> ExitCode {
        eprintln!("error: {self}");
        match self {
            Failure::Usage(_) => ExitCode::from(EXIT_USAGE),
            _ => ExitCode::from(EXIT_FAILED),
        }
    }
}

impl From<graph::Error> for Failure {
    fn from(error: graph::Error) -> Failure {
        match error {
            graph::Error::Host { what } => Failure::Missing(what),
            // Without a package index, the machine lacks the pinned wheels.
            graph::Error::Failed { label, why, .. } if label.starts_with("fetch ") => {
                Failure::Missing(format!("{label}: {why}"))
            }
            error => Failure::Failed(error.to_string()),
        }
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure::Failed(text)
    }
}

impl From<manifest::ManifestError> for Failure {
    fn from(error: manifest::ManifestError) -> Failure {
        Failure::Failed(error.to_string())
    }
}

/// Text of a file in a folder.
///
/// # Errors
/// The file's name, and why it cannot be read.
pub fn read(folder: &Path, file: &str) -> Result<String, String> {
    std::fs::read_to_string(folder.join(file)).map_err(|why| format!("{file}: {why}"))
}

/// Path of this package's manifest, from the root of the workspace.
const XTASK: &str = "build/xtask/Cargo.toml";

/// Root of the workspace around `folder`.
fn workspace(folder: &Path) -> Option<PathBuf> {
    let mut above = folder.ancestors();
    let root = above.find(|folder| folder.join(XTASK).is_file())?;
    root.canonicalize().ok()
}

/// The workspace.
pub struct Site {
    /// Absolute path of the workspace's root.
    pub root: PathBuf,
}

impl Site {
    /// The workspace whose cargo runs this executable, else the one around the current folder.
    ///
    /// # Errors
    /// If neither folder is in a workspace.
    pub fn find() -> Result<Site, Failure> {
        let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let current = std::env::current_dir().ok();
        let found = [package, current].into_iter().flatten();
        let root = found.filter_map(|folder| workspace(&folder)).next();
        let root = root.ok_or_else(|| {
            let rule = format!("no {XTASK} in the current folder or above; start in the workspace");
            Failure::Usage(rule)
        })?;
        Ok(Site { root })
    }

    /// The workspace around this crate, for tests.
    #[cfg(test)]
    pub fn here() -> Site {
        Site::find().expect("tests run in the workspace")
    }

    /// Folder in which the pipeline keeps its files.
    pub fn atlas(&self) -> PathBuf {
        self.root.join(".atlas")
    }

    /// Names of all targets.
    pub fn leaves(&self) -> Result<Vec<String>, Failure> {
        Ok(manifest::leaves(&self.root)?)
    }

    /// Loads the named target, or the default one.
    ///
    /// # Errors
    /// [`Failure::Usage`] with the nearest target if there is none of this name; else the fault of
    /// the target's manifests.
    pub fn target(&self, name: Option<&str>) -> Result<Target, Failure> {
        let name = name.unwrap_or(DEFAULT_TARGET);
        let leaves = self.leaves()?;
        if !leaves.iter().any(|leaf| leaf == name) {
            let names = leaves.iter().map(String::as_str);
            return Err(Failure::Usage(unknown("target", name, names)));
        }
        Ok(manifest::load(&self.root, name)?)
    }
}

/// Message that `name` is unknown, with the most similar of `known`.
pub fn unknown<'a>(kind: &str, name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let nearest = known.min_by_key(|candidate| strsim::levenshtein(name, candidate));
    let nearest = nearest.map_or(String::new(), |nearest| {
        format!("; did you mean `{nearest}`?")
    });
    format!(
        "unknown {kind} `{name}`{nearest} (`cargo xtask {}` lists all)",
        match kind {
            "target" => "targets",
            _ => "--help",
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_is_found_from_its_folders_and_from_no_other() {
        let root = Site::here().root;
        for folder in [
            root.clone(),
            root.join("build/xtask"),
            root.join("targets/_hw"),
        ] {
            assert_eq!(workspace(&folder), Some(root.clone()));
        }
        assert_eq!(workspace(&std::env::temp_dir()), None);
    }

    #[test]
    fn a_copied_workspace_is_its_own() {
        let copy = std::env::temp_dir().join(format!("atlas-site-{}", std::process::id()));
        std::fs::create_dir_all(copy.join("build/xtask/src")).unwrap();
        std::fs::write(copy.join(XTASK), "").unwrap();
        let found = workspace(&copy.join("build/xtask/src"));
        let right = copy.canonicalize().ok();
        std::fs::remove_dir_all(&copy).unwrap();
        assert_eq!(found, right);
    }

    #[test]
    fn the_nearest_name_is_offered() {
        let text = unknown(
            "target",
            "cpu/tiny/nvpf4",
            ["cpu/tiny/bf16", "cpu/tiny/nvfp4"].into_iter(),
        );
        assert!(text.contains("did you mean `cpu/tiny/nvfp4`?"), "{text}");
    }
}
