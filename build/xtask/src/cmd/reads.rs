//! Inputs of a test step. A step that passed is up to date until one of them changes.
//!
//! Tests are not confined to declared inputs as actions are, so a step must list here everything
//! that may change its result. A clone without `.atlas` runs every step.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use super::build::build;
use crate::graph::digest::Digests;
use crate::plan::files;
use crate::site::{DEFAULT_TARGET, Failure, Site};

/// Sources of the binary and of its end-to-end tests, and files that its tests read.
pub const PRODUCT: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    ".cargo",
    "README.md",
    "build",
    "ci",
    "ffi",
    "packaging",
    "scripts",
    "src",
    "targets",
];
/// Folders among [`PRODUCT`] that cannot change a result of the binary's tests.
pub const BESIDE_PRODUCT: &[&str] = &["build/xtask", "build/gguf", "ci/baseline"];
/// Files that decide how any crate of the workspace is compiled.
pub const WORKSPACE: [&str; 4] = ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", ".cargo"];
/// Sources of the pipeline's libraries, and files that their tests read: kernel headers, table of
/// operations, declarations of operations in the model, targets.
pub const MANIFEST_TESTS: &[&str] = &["build", "cuda", "ffi", "src/model/ops", "targets"];
/// Sources of the pipeline, and files that its tests read: all but most of the server's sources, of
/// which the tests need a text and the crates' dependencies.
pub const PIPELINE_TESTS: &[&str] = &[
    ".ci",
    ".github",
    "README.md",
    "build",
    "ci",
    "cuda",
    "ffi",
    "packaging",
    "scripts",
    "src/cli/about.rs",
    "src/engine/Cargo.toml",
    "src/host/Cargo.toml",
    "src/model",
    "src/step",
    "targets",
];
/// Files of the small model with which crates without a target test.
pub const TEST_MODEL: &str = "targets/_model/tiny";

/// Inputs that decide the result of a step, beside xtask itself and the compiler.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    /// Files, and folders with everything below them.
    paths: Vec<String>,
    /// Paths below `paths` that are left out.
    but: &'static [&'static str],
    /// Target whose manifests and weights are read.
    leaf: Option<String>,
    /// Target whose binary is started.
    binary: Option<String>,
}

impl Reads {
    pub fn of<'a>(paths: impl IntoIterator<Item = &'a &'a str>) -> Reads {
        Reads {
            paths: paths.into_iter().map(ToString::to_string).collect(),
            ..Reads::default()
        }
    }

    /// Inputs of the tests of the crate in `folder`: the crate, and workspace crates that it uses.
    pub fn of_crate(site: &Site, folder: &str) -> Result<Reads, Failure> {
        let mut paths = vec![folder.to_string()];
        let mut at = 0;
        while let Some(folder) = paths.get(at) {
            let needed = needed_crates(&site.root, folder)?;
            let more = needed.into_iter().filter(|path| !paths.contains(path));
            paths.extend(more.collect::<BTreeSet<_>>());
            at += 1;
        }
        let reads = Reads {
            paths,
            ..Reads::default()
        };
        Ok(reads.and(&WORKSPACE))
    }

    pub fn and(mut self, paths: &[&str]) -> Reads {
        self.paths.extend(paths.iter().map(ToString::to_string));
        self
    }

    pub fn but(self, but: &'static [&'static str]) -> Reads {
        Reads { but, ..self }
    }

    pub fn leaf(self, target: &str) -> Reads {
        let leaf = Some(target.to_string());
        Reads { leaf, ..self }
    }

    pub fn binary(self, target: &str) -> Reads {
        let binary = Some(target.to_string());
        Reads { binary, ..self }
    }

    /// Whether the step neither starts a binary nor reads another target than the default one.
    pub fn is_near(&self) -> bool {
        let of_default = |leaf: &String| leaf == DEFAULT_TARGET;
        self.binary.is_none() && self.leaf.as_ref().is_none_or(of_default)
    }

    /// Facts by which a passed step is recorded, one a line: `input PATH = DIGEST`.
    pub fn facts(&self, site: &Site, digests: &Digests) -> Result<String, Failure> {
        let mut paths = Vec::new();
        for path in &self.paths {
            files(&site.root, Path::new(path), &mut paths).map_err(|why| why.to_string())?;
        }
        paths.retain(|path| !self.but.iter().any(|but| Path::new(path).starts_with(but)));
        if let Some(leaf) = &self.leaf {
            let target = site.target(Some(leaf))?;
            let read = target.files_read();
            paths.extend(read.iter().map(|path| path.display().to_string()));
            let model = format!("targets/_model/{}", target.leaf.model);
            files(&site.root, Path::new(&model), &mut paths).map_err(|why| why.to_string())?;
        }
        let paths = BTreeSet::from_iter(paths);
        let mut facts = String::new();
        let mut fact = |name: &str, path: &Path| {
            let digest = digests.of_file(path);
            let digest = digest.map_err(|why| format!("read {}: {why}", path.display()))?;
            writeln!(facts, "input {name} = {digest}").expect("a String takes any text");
            Ok::<_, Failure>(())
        };
        for path in &paths {
            fact(path, &site.root.join(path))?;
        }
        if let Some(target) = &self.binary {
            fact("binary", &build(site, Some(target), false)?)?;
        }
        Ok(facts)
    }
}

/// Folders of the workspace crates that the crate in `folder` depends on.
fn needed_crates(root: &Path, folder: &str) -> Result<Vec<String>, Failure> {
    let path = root.join(folder).join("Cargo.toml");
    let text = std::fs::read_to_string(&path);
    let text = text.map_err(|why| format!("read {}: {why}", path.display()))?;
    let manifest: toml::Table =
        toml::from_str(&text).map_err(|why| format!("{}: {why}", path.display()))?;
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    let kinds = kinds.iter();
    let tables = kinds.filter_map(|kind| manifest.get(*kind)?.as_table());
    let paths = tables.flat_map(toml::Table::values);
    let paths = paths.filter_map(|dependency| dependency.get("path")?.as_str());
    Ok(paths.map(|path| joined(folder, path)).collect())
}

/// `path`, relative to `folder`, as a path relative to the workspace's root.
fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_reads_what_it_needs_and_nothing_above_it() {
        let reads = Reads::of_crate(&Site::here(), "src/engine").unwrap();
        let has = |path: &str| reads.paths.iter().any(|read| read == path);
        assert!(
            ["src/engine", "src/step", "src/host", "Cargo.lock"]
                .iter()
                .all(|path| has(path))
        );
        assert!(
            !reads
                .paths
                .iter()
                .any(|path| ["src", "src/http"].contains(&&**path))
        );
        assert_eq!(
            joined("src/engine", "../../build/manifest"),
            "build/manifest"
        );
    }

    #[test]
    fn what_is_left_out_is_there() {
        let root = Site::here().root;
        let exists = |path: &&&str| root.join(path).exists();
        assert!(BESIDE_PRODUCT.iter().all(|path| exists(&path)));
        assert!(PIPELINE_TESTS.iter().all(|path| exists(&path)));
    }

    #[test]
    fn facts_change_with_what_is_read_alone() {
        let root = std::env::temp_dir().join(format!("atlas-reads-{}", std::process::id()));
        std::fs::create_dir_all(root.join("src/http")).unwrap();
        let write = |path: &str, text: &str| std::fs::write(root.join(path), text).unwrap();
        let reads = Reads::of(&["src"]).but(&["src/http"]);
        let site = Site { root: root.clone() };
        let facts = || {
            let digests = Digests::load(root.join("digests"));
            reads.facts(&site, &digests).unwrap()
        };
        write("src/a.rs", "one");
        let first = facts();
        write("src/http/b.rs", "one");
        assert_eq!(facts(), first);
        write("src/a.rs", "two");
        assert_ne!(facts(), first);
        std::fs::remove_dir_all(root).unwrap();
    }
}
