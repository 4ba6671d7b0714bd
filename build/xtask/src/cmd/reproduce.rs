//! A second build, in another folder and with nothing cached, for comparison.

use std::fs;
use std::path::{Path, PathBuf};

use super::build::{build, plan};
use crate::graph::Source;
use crate::graph::digest::Digest;
use crate::site::{Failure, Site};

/// A copy of the declared inputs, removed when it is no longer needed.
struct Elsewhere(PathBuf);

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Builds `target` from a copy of what its plan declares; the digest of both binaries if they are
/// equal.
///
/// # Errors
/// If the copy does not build, or differs.
pub fn same_elsewhere(site: &Site, target: &str, path: &Path) -> Result<String, Failure> {
    let folder = std::env::temp_dir().join(format!("atlas-elsewhere-{}", std::process::id()));
    let elsewhere = Elsewhere(folder);
    copy_inputs(site, target, &elsewhere.0)?;
    let there = build(
        &Site {
            root: elsewhere.0.clone(),
        },
        Some(target),
        false,
    )?;
    let digest = |path: &Path| {
        Digest::of_file(path).map_err(|why| format!("read {}: {why}", path.display()))
    };
    let (here, there) = (digest(path)?, digest(&there)?);
    if here == there {
        return Ok(here.to_string());
    }
    Err(Failure::Failed(format!(
        "not reproducible: {here} here, {there} in another folder"
    )))
}

fn copy_inputs(site: &Site, target: &str, to: &Path) -> Result<(), Failure> {
    let plan = plan(site, Some(target))?;
    for id in plan.graph.ids() {
        for input in &plan.graph.action(id).inputs {
            let Source::Workspace(path) = &input.from else {
                continue;
            };
            copy(&site.root.join(path), &to.join(path))?;
        }
    }
    let leaf = format!("targets/{target}.toml");
    copy(&site.root.join(&leaf), &to.join(&leaf))
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    let failed =
        |why: std::io::Error| format!("copy {} to {}: {why}", from.display(), to.display());
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::copy(from, to).map_err(failed)?;
    Ok(())
}
