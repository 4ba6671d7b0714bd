//! Checkouts that git itself made.

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

/// A checkout of one file.
fn checkout() -> Scratch {
    let scratch = Scratch::new();
    git(&scratch.0, &["init", "-q"]);
    let url = format!("https://host/{REPOSITORY}");
    git(&scratch.0, &["remote", "add", "origin", &url]);
    fs::write(scratch.0.join("a"), "a").unwrap();
    git(&scratch.0, &["add", "."]);
    git(&scratch.0, &["commit", "-q", "-m", "x"]);
    scratch
}

#[test]
fn the_commit_is_found_loose_packed_and_detached() {
    let scratch = checkout();
    let folder = Folder::open(&scratch.0).unwrap();
    let commit = git(&scratch.0, &["rev-parse", "HEAD"]).trim().to_string();
    assert_eq!(head(&folder, REPOSITORY), Some(commit.clone()));
    assert_eq!(head(&folder, "owner/another"), None);
    git(&scratch.0, &["pack-refs", "--all"]);
    assert_eq!(head(&folder, REPOSITORY), Some(commit.clone()));
    git(&scratch.0, &["checkout", "-q", "--detach"]);
    assert_eq!(head(&folder, REPOSITORY), Some(commit));
}
