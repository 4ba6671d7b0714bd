//! A second build of a release, in another folder without a cache, to compare with the first.

use std::fs;
use std::path::{Path, PathBuf};

use super::dist::{files, plan};
use crate::cuda::pins;
use crate::dist;
use crate::graph::Source;
use crate::graph::digest::Digest;
use crate::site::{Failure, Site};

/// A folder with a copy of the declared inputs, removed when dropped.
struct Elsewhere(PathBuf);

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes the release of `target` here and in a copy of its declared inputs; returns the digest of
/// each file if both releases are equal.
///
/// # Errors
/// If the copy does not build, or the first file that differs.
pub fn same_elsewhere(site: &Site, target: &str) -> Result<Vec<String>, Failure> {
    let here = files(site, Some(target), false)?;
    let folder = std::env::temp_dir().join(format!("atlas-elsewhere-{}", std::process::id()));
    let elsewhere = Elsewhere(folder);
    copy_inputs(site, target, &elsewhere.0)?;
    let site = Site {
        root: elsewhere.0.clone(),
    };
    let there = files(&site, Some(target), false)?;
    let files = here.iter().zip(&there);
    files.map(|(here, there)| same(here, there)).collect()
}

/// Name and digest of two equal files; an error if they differ.
fn same(here: &Path, there: &Path) -> Result<String, Failure> {
    let digest = |path: &Path| {
        Digest::of_file(path).map_err(|why| format!("read {}: {why}", path.display()))
    };
    let name = here.file_name().unwrap_or_default().display();
    let (here, there) = (digest(here)?, digest(there)?);
    match here == there {
        true => Ok(format!("{name} {here}")),
        false => Err(Failure::Failed(format!(
            "not reproducible: {name} is {here} here, {there} in another folder"
        ))),
    }
}

fn copy_inputs(site: &Site, target: &str, to: &Path) -> Result<(), Failure> {
    let (plan, _) = plan(site, Some(target))?;
    for id in plan.graph.ids() {
        for input in &plan.graph.action(id).inputs {
            let Source::Workspace(path) = &input.from else {
                continue;
            };
            copy(&site.root.join(path), &to.join(path))?;
        }
    }
    let commit = to.join(dist::COMMIT);
    fs::write(&commit, dist::commit(&site.root))
        .map_err(|why| format!("write {}: {why}", commit.display()))?;
    // Files that the plan itself is made from.
    let leaf = format!("targets/{target}.toml");
    for path in [leaf.as_str(), pins::FILE] {
        copy(&site.root.join(path), &to.join(path))?;
    }
    Ok(())
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

#[test]
fn a_copy_of_the_inputs_has_the_same_plan() {
    let site = Site::here();
    for target in ["cpu/tiny/nvfp4", "h200/tiny/nvfp4"] {
        let name = format!("atlas-copy-{}", std::process::id());
        let elsewhere = Elsewhere(std::env::temp_dir().join(name));
        copy_inputs(&site, target, &elsewhere.0).unwrap();
        let there = Site {
            root: elsewhere.0.clone(),
        };
        let actions = |site: &Site| plan(site, Some(target)).unwrap().0.graph.ids().count();
        assert_eq!(actions(&there), actions(&site), "{target}");
    }
}
