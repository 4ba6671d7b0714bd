//! The workflow files of GitHub Actions, made of the targets: a new target is tested and released
//! without a line of YAML.

use std::fs;
use std::path::Path;

use crate::site::{Failure, Site};

/// Folder of the files, from the root of the workspace.
pub const FOLDER: &str = ".github/workflows";

/// Texts with a mark where something of the targets belongs.
const CI: &str = include_str!("workflow/ci.yml");
const RELEASE: &str = include_str!("workflow/release.yml");
const SETUP: &str = include_str!("workflow/setup.yml");

/// Debian packages of every job.
const PACKAGES: &str = "ca-certificates curl git gcc g++ python3 python3-pip xz-utils zstd";
/// Those that device code for GB10's host needs besides.
const CROSS: &str = "g++-aarch64-linux-gnu binutils-aarch64-linux-gnu qemu-user-static";
/// Those that the suite skips steps without.
const SUITE: &str = "chromium nginx caddy haproxy openssl minisign zsh fish lintian";
/// Targets that are built twice, in different folders, and must be the same to the bit.
const REPRODUCED: [&str; 2] = ["cpu/tiny/nvfp4", "gb10/tiny/nvfp4"];

/// Name and text of each file.
///
/// # Errors
/// If the targets cannot be listed or one is wrong.
pub fn files(site: &Site) -> Result<[(&'static str, String); 2], Failure> {
    let filled = |text: &str, targets: &[String]| {
        let marks = [
            ("@SUITE@", setup(&[PACKAGES, CROSS, SUITE].join(" "))),
            ("@BUILD@", setup(&[PACKAGES, CROSS].join(" "))),
            ("@TARGETS@", rows(targets)),
            ("@REPRODUCED@", rows(&REPRODUCED.map(String::from))),
        ];
        let fill = |text: String, (mark, value): &(&str, String)| text.replace(mark, value);
        marks.iter().fold(text.to_string(), fill)
    };
    Ok([
        ("ci.yml", filled(CI, &site.leaves()?)),
        ("release.yml", filled(RELEASE, &served(site)?)),
    ])
}

/// Targets that answer requests: the others are for tests and measurements.
fn served(site: &Site) -> Result<Vec<String>, Failure> {
    let targets = site.leaves()?.into_iter();
    let targets = targets.map(|leaf| site.target(Some(&leaf)));
    let targets: Vec<_> = targets.collect::<Result<_, _>>()?;
    let served = targets.into_iter().filter(|target| target.serves());
    Ok(served.map(|target| target.name).collect())
}

/// Writes the files.
///
/// # Errors
/// If one cannot be written.
pub fn write(site: &Site) -> Result<(), Failure> {
    let folder = site.root.join(FOLDER);
    let failed = |path: &Path, why: std::io::Error| format!("write {}: {why}", path.display());
    fs::create_dir_all(&folder).map_err(|why| failed(&folder, why))?;
    for (name, text) in files(site)? {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|why| failed(&path, why))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Rows of a matrix.
fn rows(targets: &[String]) -> String {
    let rows = targets.iter().map(|target| format!("          - {target}"));
    rows.collect::<Vec<_>>().join("\n")
}

/// Steps that bring packages, sources and the toolchain that `rust-toolchain.toml` pins.
fn setup(packages: &str) -> String {
    SETUP.trim_end().replace("@PACKAGES@", packages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_those_of_the_targets() {
        let site = Site::here();
        for (name, text) in files(&site).unwrap() {
            let path = site.root.join(FOLDER).join(name);
            let kept = fs::read_to_string(&path).unwrap_or_default();
            assert!(
                kept == text,
                "{name} is out of date: `cargo xtask workflows` makes it"
            );
        }
    }

    #[test]
    fn every_target_is_built_and_released() {
        let site = Site::here();
        let [(_, ci), (_, release)] = files(&site).unwrap();
        let has = |text: &str, leaf: &str| text.contains(&format!("          - {leaf}\n"));
        assert!(site.leaves().unwrap().iter().all(|leaf| has(&ci, leaf)));
        assert!(
            served(&site)
                .unwrap()
                .iter()
                .all(|leaf| has(&release, leaf))
        );
        assert!(has(&release, "gb10/tiny/nvfp4") && !has(&release, "cpu/random-fp8/fp8"));
        let mark = |word: &str| word.len() > 2 && word.starts_with('@') && word.ends_with('@');
        assert!(!ci.split_whitespace().any(mark) && !release.split_whitespace().any(mark));
    }
}
