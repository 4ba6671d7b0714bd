//! Checkouts that git itself made, and bytes that it did not.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::*;
use host::testing::Folder as Scratch;

const REPOSITORY: &str = "owner/model";

/// Runs git in `directory`; its standard output.
fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=a", "-c", "user.email=a@b", "-C"])
        .arg(directory)
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A checkout of some files with an index of the given version.
fn checkout(version: &str) -> Scratch {
    let scratch = Scratch::new();
    git(&scratch.0, &["init", "-q"]);
    git(&scratch.0, &["config", "index.version", version]);
    let url = format!("https://host/{REPOSITORY}");
    git(&scratch.0, &["remote", "add", "origin", &url]);
    fs::create_dir(scratch.0.join("folder")).unwrap();
    for name in ["a", "config.json", "folder/model-1", "folder/model-2"] {
        fs::write(scratch.0.join(name), name).unwrap();
    }
    git(&scratch.0, &["add", "."]);
    git(&scratch.0, &["commit", "-q", "-m", "x"]);
    git(&scratch.0, &["update-index", "--index-version", version]);
    scratch
}

#[test]
fn every_version_of_the_index_is_read() {
    for version in ["2", "3", "4"] {
        let scratch = checkout(version);
        let index = fs::read(scratch.0.join(INDEX)).unwrap();
        let found = entries(&index).unwrap();
        assert_eq!(found.len(), 4);
        for (name, digest) in found {
            let stated = git(&scratch.0, &["hash-object", &name]);
            assert_eq!(stated.trim(), digest, "{name}");
        }
    }
}

#[test]
fn the_commit_is_found_loose_packed_and_detached() {
    let scratch = checkout("2");
    let folder = Folder::open(&scratch.0).unwrap();
    let commit = git(&scratch.0, &["rev-parse", "HEAD"]).trim().to_string();
    assert_eq!(head(&folder, REPOSITORY), Some(commit.clone()));
    assert_eq!(head(&folder, "owner/another"), None);
    git(&scratch.0, &["pack-refs", "--all"]);
    assert_eq!(head(&folder, REPOSITORY), Some(commit.clone()));
    git(&scratch.0, &["checkout", "-q", "--detach"]);
    assert_eq!(head(&folder, REPOSITORY), Some(commit));
}

#[test]
fn an_index_that_is_cut_or_changed_never_panics() {
    for version in ["2", "4"] {
        let scratch = checkout(version);
        let index = fs::read(scratch.0.join(INDEX)).unwrap();
        for end in 0..index.len() {
            let _ = entries(&index[..end]);
        }
        for at in 0..index.len() {
            let mut changed = index.clone();
            for value in [0, 0x7f, 0xff] {
                changed[at] = value;
                let _ = entries(&changed);
            }
        }
    }
    assert_eq!(entries(b"DIRC\0\0\0\x04\xff\xff\xff\xff"), None);
}
