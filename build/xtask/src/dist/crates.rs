//! Crates whose code a binary contains, as cargo resolves them, with their licence texts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::graph::Sandbox;
use crate::site::read;
use crate::toolchain::said;

/// The crate that the binary is built from.
const ROOT: &str = "atlas";
/// Licences of code that a binary may contain: none requires more than its text and its notices.
const ALLOWED: [&str; 12] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "MIT",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "0BSD",
    "BSL-1.0",
    "CC0-1.0",
    "Unicode-3.0",
    "Unlicense",
];

/// Beginnings of the names of licence and notice files, in capitals.
const LICENCE_FILES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];

/// A crate whose code the binary contains.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct Crate {
    pub name: String,
    pub version: String,
    /// SPDX expression of the licence, as the author wrote it.
    pub licence: String,
    pub repository: Option<String>,
    /// Digest of the archive on the registry; none for crates of this workspace.
    pub sha256: Option<String>,
    /// Package URLs of the crates that this one depends on.
    pub needs: Vec<String>,
    /// Name and text of each licence or notice file.
    pub texts: Vec<(String, String)>,
}

/// Writes the list of crates as `crates.json`, by asking the `cargo` of the action's argument.
pub fn collect(sandbox: &Sandbox<'_>) -> Result<(), String> {
    let mut command = Command::new(sandbox.arg("cargo")?);
    command
        .args(["metadata", "--locked", "--offline", "--format-version=1"])
        .args(["--filter-platform", sandbox.arg("triple")?])
        .args(["--features", sandbox.arg("features")?])
        .current_dir(sandbox.work)
        .env("RUSTC", sandbox.arg("rustc")?)
        .env("CARGO_HOME", sandbox.arg("cargo_home")?)
        .env_remove("ATLAS_TARGET");
    let metadata = said(&mut command, "cargo metadata")?;
    let metadata = serde_json::from_slice(&metadata).map_err(|why| why.to_string())?;
    let lock = read(sandbox.work, "Cargo.lock")?;
    let crates = linked(&metadata, &checksums(&lock)?)?;
    allowed(&crates)?;
    let text = serde_json::to_string_pretty(&crates).map_err(|why| why.to_string())?;
    sandbox.write("crates.json", text)
}

/// Digest of each locked crate, by name and version.
fn checksums(lock: &str) -> Result<BTreeMap<(String, String), String>, String> {
    #[derive(Deserialize)]
    struct Lock {
        package: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        version: String,
        checksum: Option<String>,
    }
    let lock: Lock = toml::from_str(lock).map_err(|why| format!("Cargo.lock: {why}"))?;
    let packages = lock.package.into_iter();
    let sums = packages.filter_map(|of| Some(((of.name, of.version), of.checksum?)));
    Ok(sums.collect())
}

/// Crates that the root reaches by normal dependencies: not by those of builds and tests, and not
/// through macros, which run in the compiler.
fn linked(
    metadata: &Value,
    checksums: &BTreeMap<(String, String), String>,
) -> Result<Vec<Crate>, String> {
    let packages = by_id(&metadata["packages"]);
    let nodes = by_id(&metadata["resolve"]["nodes"]);
    let root = packages.values().find(|package| package["name"] == ROOT);
    let root = root.and_then(|root| root["id"].as_str());
    let mut open = vec![root.ok_or("cargo metadata names no crate of the binary")?];
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    while let Some(id) = open.pop() {
        let package = packages.get(id);
        let package = package.ok_or_else(|| format!("cargo metadata lacks {id}"))?;
        if !seen.insert(id) || is_macro(package) {
            continue;
        }
        let node = nodes.get(id).into_iter();
        let below: Vec<&str> = node.flat_map(|node| dependencies(node)).collect();
        let linked = below.iter().filter_map(|id| packages.get(id));
        let linked = linked.filter(|package| !is_macro(package));
        let mut needs: Vec<String> = linked.map(|package| purl(package)).collect();
        needs.sort();
        found.push(Crate {
            needs,
            ..known(package, checksums)
        });
        open.extend(below);
    }
    found.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(found)
}

/// Refuses crates whose licence is not one of [`ALLOWED`].
fn allowed(crates: &[Crate]) -> Result<(), String> {
    let refused = crates.iter().find(|known| !is_allowed(&known.licence));
    match refused {
        None => Ok(()),
        Some(Crate {
            name,
            version,
            licence,
            ..
        }) => Err(format!(
            "{name} {version} is under `{licence}`, which is not among the licences that may be in \
             a binary"
        )),
    }
}

/// Whether an SPDX expression leaves a choice of allowed licences. Parentheses are assumed to hold
/// alternatives only, as they do in all known expressions.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    let known = |name: &str| ALLOWED.contains(&name.trim_matches(['(', ')', ' ']));
    let any = |choices: &str| choices.split(" OR ").any(known);
    // `A OR B AND C` is read as `(A OR B) AND C`: stricter, never laxer, for a list of licences.
    expression.split(" AND ").all(any)
}

fn by_id(list: &Value) -> BTreeMap<&str, &Value> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|entry| Some((entry["id"].as_str()?, entry)))
        .collect()
}

fn is_macro(package: &Value) -> bool {
    let targets = package["targets"].as_array().into_iter().flatten();
    let kinds = targets.flat_map(|target| target["kind"].as_array());
    kinds.flatten().any(|kind| kind == "proc-macro")
}

/// Package ids of a node's normal dependencies.
fn dependencies(node: &Value) -> impl Iterator<Item = &str> {
    let deps = node["deps"].as_array().into_iter().flatten();
    let normal = deps.filter(|dep| {
        let kinds = dep["dep_kinds"].as_array();
        kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
    });
    normal.filter_map(|dep| dep["pkg"].as_str())
}

/// Package URL of a crate.
fn purl(package: &Value) -> String {
    let text = |field: &str| package[field].as_str().unwrap_or_default();
    format!("pkg:cargo/{}@{}", text("name"), text("version"))
}

fn known(package: &Value, checksums: &BTreeMap<(String, String), String>) -> Crate {
    let text = |field: &str| package[field].as_str().map(str::to_string);
    let name = text("name").unwrap_or_default();
    let version = text("version").unwrap_or_default();
    let manifest = package["manifest_path"].as_str();
    let folder = manifest.and_then(|path| Path::new(path).parent());
    let sha256 = checksums.get(&(name.clone(), version.clone())).cloned();
    Crate {
        licence: text("license").unwrap_or_else(|| "see its files".to_string()),
        repository: text("repository"),
        needs: Vec::new(),
        // Crates of the workspace have the licence at its root.
        texts: match sha256 {
            Some(_) => folder.map(licences).unwrap_or_default(),
            None => Vec::new(),
        },
        sha256,
        name,
        version,
    }
}

/// Name and text of the licence and notice files in a folder, by name.
fn licences(folder: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let upper = name.to_uppercase();
        let is_one = LICENCE_FILES.iter().any(|start| upper.starts_with(start));
        let text = fs::read_to_string(entry.path()).ok();
        Some((name, text.filter(|_| is_one)?))
    });
    let mut files: Vec<_> = files.collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, kind: &str) -> Value {
        json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT",
            "manifest_path": "/nowhere/Cargo.toml", "targets": [{"kind": [kind]}]})
    }

    fn depends(on: &str, kind: Value) -> Value {
        json!({"pkg": on, "dep_kinds": [{"kind": kind}]})
    }

    #[test]
    fn what_runs_in_the_compiler_is_not_in_the_binary() {
        let metadata = json!({
            "packages": [package(ROOT, "lib"), package("a", "lib"), package("b", "lib"),
                package("m", "proc-macro"), package("below-m", "lib"), package("t", "lib")],
            "resolve": {"nodes": [
                {"id": ROOT, "deps": [depends("a", Value::Null), depends("m", Value::Null),
                    depends("t", json!("dev"))]},
                {"id": "a", "deps": [depends("b", Value::Null), depends(ROOT, Value::Null)]},
                {"id": "b", "deps": []},
                {"id": "m", "deps": [depends("below-m", Value::Null)]},
            ]},
        });
        let sums = BTreeMap::from([(("a".into(), "1.0.0".into()), "77".to_string())]);
        let found = linked(&metadata, &sums).unwrap();
        let names: Vec<&str> = found.iter().map(|known| known.name.as_str()).collect();
        assert_eq!(names, ["a", ROOT, "b"]);
        assert_eq!(found[1].needs, ["pkg:cargo/a@1.0.0"]);
        assert_eq!(found[0].sha256.as_deref(), Some("77"));
    }

    #[test]
    fn a_licence_must_be_known() {
        for fine in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
        ] {
            assert!(is_allowed(fine), "{fine}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "see its files", ""] {
            assert!(!is_allowed(bad), "{bad}");
        }
    }

    #[test]
    fn digests_come_from_the_lock() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"77\"\n\
            [[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
        let sums = checksums(lock).unwrap();
        assert_eq!(sums.len(), 1);
    }
}
