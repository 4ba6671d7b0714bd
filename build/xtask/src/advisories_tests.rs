//! Published weaknesses of crates: what is locked is free of those that are listed, and every
//! direct dependency says why it is there.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::site::Site;

/// Advisories about locked crates, a file each, as the RustSec database has them.
const ADVISORIES: &str = "ci/advisories/crates";
const LOCK: &str = "Cargo.lock";

type Version = [u64; 3];

/// An advisory's block of TOML.
#[derive(Deserialize)]
struct Said {
    advisory: Advisory,
    versions: Versions,
}

#[derive(Deserialize)]
struct Advisory {
    package: String,
    /// Set for a notice without a weakness, such as on a crate that is no longer maintained.
    informational: Option<String>,
}

/// Ranges without the weakness, as `>= 1.2.3, < 2.0.0`.
#[derive(Deserialize)]
struct Versions {
    patched: Vec<String>,
    #[serde(default)]
    unaffected: Vec<String>,
}

/// A version `major.minor.patch`, with anything after it ignored.
fn version(text: &str) -> Option<Version> {
    let release = text.split(['-', '+']).next()?;
    let mut numbers = release.split('.').map(|number| number.parse().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

/// Names and versions of all locked crates.
fn locked(lock: &str) -> Vec<(&str, Version)> {
    fn field<'l>(package: &'l str, name: &str) -> Option<&'l str> {
        let opening = format!("{name} = \"");
        let mut lines = package.lines();
        lines.find_map(|line| line.strip_prefix(&opening)?.strip_suffix('"'))
    }
    let packages = lock.split("[[package]]").skip(1);
    let read = |package| {
        Some((
            field(package, "name")?,
            version(field(package, "version")?)?,
        ))
    };
    packages.filter_map(read).collect()
}

/// Whether a range has a version.
fn has(range: &str, found: Version) -> bool {
    range.split(',').all(|bound| {
        let (operator, text) = bound.trim().split_once(' ').unwrap_or_default();
        match (operator, version(text)) {
            (">=", Some(least)) => found >= least,
            ("<", Some(end)) => found < end,
            _ => false,
        }
    })
}

/// Locked crates that an advisory finds weak; an advisory that cannot be read is an error.
fn weak(text: &str, lock: &str) -> Result<Vec<String>, String> {
    let block = text
        .strip_prefix("```toml\n")
        .and_then(|rest| rest.split_once("```"));
    let (block, _) = block.ok_or("it begins with no block of TOML")?;
    let Said { advisory, versions } = toml::from_str(block).map_err(|why| why.to_string())?;
    if advisory.informational.is_some() && versions.patched.is_empty() {
        return Ok(Vec::new());
    }
    let ranges = || versions.patched.iter().chain(&versions.unaffected);
    let found = locked(lock).into_iter();
    let found = found.filter(|(name, version)| {
        *name == advisory.package && !ranges().any(|range| has(range, *version))
    });
    Ok(found
        .map(|(name, version)| format!("{name} {version:?}"))
        .collect())
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("it is there");
    let paths = entries.map(|entry| entry.expect("it can be listed").path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => files(&path),
            false => vec![path],
        })
        .collect()
}

#[test]
fn no_locked_crate_has_a_listed_weakness() {
    let root = Site::here().root;
    let read = |path: &Path| fs::read_to_string(path).expect("it is there");
    let lock = read(&root.join(LOCK));
    let advisories = files(&root.join(ADVISORIES));
    assert!(locked(&lock).len() > 100 && advisories.len() > 10);
    for path in advisories {
        assert_eq!(weak(&read(&path), &lock), Ok(vec![]), "{}", path.display());
    }
}

#[test]
fn an_older_crate_is_found() {
    let lock = "[[package]]\nname = \"a\"\nversion = \"1.9.0\"\n";
    let advisory = |versions: &str| {
        format!("```toml\n[advisory]\npackage = \"a\"\n[versions]\n{versions}\n```\n")
    };
    let found = |versions: &str| weak(&advisory(versions), lock).unwrap().len();
    assert_eq!(found("patched = [\">= 1.10.0\"]"), 1);
    assert_eq!(
        found("patched = [\">= 1.10.0\", \">= 1.8.5, < 1.10.0\"]"),
        0
    );
    assert_eq!(
        found("patched = [\">= 2.0.0\"]\nunaffected = [\"< 1.9.1\"]"),
        0
    );
    assert_eq!(found("patched = []"), 1);
    assert!(weak("no advisory", lock).is_err());
}

/// Lines of dependencies without a comment on their reason.
fn unreasoned(manifest: &str) -> Vec<&str> {
    let mut inside = false;
    let lines = manifest.lines().filter(|line| {
        if line.starts_with('[') {
            inside = line.ends_with("dependencies]");
            return false;
        }
        let stated = line
            .split_once(" # ")
            .is_some_and(|(_, why)| !why.is_empty());
        inside && line.contains('=') && !line.starts_with('#') && !stated
    });
    lines.collect()
}

#[test]
fn every_direct_dependency_has_its_reason() {
    let root = Site::here().root;
    let text = fs::read_to_string(root.join("Cargo.toml")).expect("the workspace has a manifest");
    let manifest: toml::Table = toml::from_str(&text).expect("cargo reads it");
    let members = manifest["workspace"]["members"].as_array().expect("a list");
    let members = members.iter().filter_map(|member| member.as_str());
    for member in members.chain([""]) {
        let path = root.join(member).join("Cargo.toml");
        let text = fs::read_to_string(&path).expect("a member has its manifest");
        assert_eq!(unreasoned(&text), Vec::<&str>::new(), "{}", path.display());
    }
}

#[test]
fn a_dependency_without_a_reason_is_found() {
    let manifest = "[dependencies]\na = \"1\" # reads a\nb = \"1\"\n[features]\nc = []\n";
    assert_eq!(unreasoned(manifest), ["b = \"1\""]);
}
