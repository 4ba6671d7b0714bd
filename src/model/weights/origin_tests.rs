//! Directories as clients of the hub leave them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::*;
use host::testing::Folder as Scratch;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const SHA1: &str = "89abcdef0123456789abcdef0123456789abcdef";
const NAME: &str = "model.safetensors";

fn sha256() -> String {
    "0123456789abcdef".repeat(4)
}

fn put(path: PathBuf, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn names() -> Vec<String> {
    vec![NAME.to_string()]
}

/// Digest that the directory states of `NAME`.
fn best(folder: &Folder) -> Option<(Witness, Expected)> {
    let blob = folder.file(NAME).unwrap().blob;
    Records::of(folder, &names()).best(NAME, blob.as_deref())
}

#[test]
fn the_name_of_the_first_blob_counts() {
    let scratch = Scratch::new();
    let snapshot = scratch.0.join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    for digest in [sha256(), SHA1.to_string(), "etag".to_string()] {
        // A store that all models share has last names of another kind.
        let stored = scratch.0.join("store").join("f".repeat(64));
        put(stored, "x");
        let blobs = scratch.0.join("blobs");
        fs::create_dir_all(&blobs).unwrap();
        symlink(format!("../store/{}", "f".repeat(64)), blobs.join(&digest)).unwrap();
        let _ = fs::remove_file(snapshot.join(NAME));
        symlink(format!("../../blobs/{digest}"), snapshot.join(NAME)).unwrap();
        let folder = Folder::open(&snapshot).unwrap();
        let expected = match digest.len() {
            64 => Some((Witness::Blob, Expected::Sha256(digest))),
            40 => Some((Witness::Blob, Expected::GitBlob(digest))),
            _ => None,
        };
        assert_eq!(best(&folder), expected);
        assert_eq!(revisions(&folder, &names())[0].commit, COMMIT);
    }
}

#[test]
fn notes_of_both_generations_of_the_client_count() {
    for client in CLIENT_FOLDERS {
        let scratch = Scratch::new();
        put(scratch.0.join(NAME), "x");
        let note = format!("{client}/download/{NAME}.metadata");
        put(
            scratch.0.join(note),
            &format!("{COMMIT}\n{}\n1.5\n", sha256()),
        );
        let folder = Folder::open(&scratch.0).unwrap();
        let expected = Expected::Sha256(sha256());
        assert_eq!(best(&folder), Some((Witness::Metadata, expected)));
        let found = &revisions(&folder, &names())[0];
        assert_eq!(found.commit, COMMIT);
        assert!(found.by.ends_with(".metadata"), "{}", found.by);
    }
}

#[test]
fn the_list_of_the_revision_counts_where_nothing_else_does() {
    let large = format!(
        r#"{{"size": 1, "blob_id": "{SHA1}", "lfs_sha256": "{}"}}"#,
        sha256()
    );
    let small = format!(r#"{{"size": 1, "blob_id": "{SHA1}"}}"#);
    for (entry, expected) in [
        (large, Expected::Sha256(sha256())),
        (small, Expected::GitBlob(SHA1.to_string())),
    ] {
        let scratch = Scratch::new();
        let snapshot = scratch.0.join("snapshots").join(COMMIT);
        put(snapshot.join(NAME), "x");
        let list = format!(r#"{{"format_version": 1, "files": {{"{NAME}": {entry}}}}}"#);
        put(scratch.0.join(format!("trees/{COMMIT}.json")), &list);
        let folder = Folder::open(&snapshot).unwrap();
        assert_eq!(best(&folder), Some((Witness::Tree, expected)));
    }
}

#[test]
fn a_plain_directory_states_nothing() {
    let scratch = Scratch::new();
    put(scratch.0.join(NAME), "x");
    let folder = Folder::open(&scratch.0).unwrap();
    assert_eq!(best(&folder), None);
    assert_eq!(revisions(&folder, &names()), []);
}

#[test]
fn notes_that_are_broken_state_nothing() {
    for text in ["", "\n", "main\nnothing\n", "\u{0}"] {
        let scratch = Scratch::new();
        put(scratch.0.join(NAME), "x");
        let note = format!("{}/download/{NAME}.metadata", CLIENT_FOLDERS[0]);
        put(scratch.0.join(note), text);
        let folder = Folder::open(&scratch.0).unwrap();
        assert_eq!(best(&folder), None);
        assert_eq!(revisions(&folder, &names()), []);
    }
}
