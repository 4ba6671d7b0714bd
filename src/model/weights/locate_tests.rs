//! Mistakes of people about the directory that holds the weights.

use std::os::unix::fs::symlink;

use super::*;
use host::testing::Folder as Scratch;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn refusal(path: &Path) -> String {
    locate(path).unwrap_err().to_string()
}

/// A model's folder of the hub's cache with these snapshots.
fn model_folder(snapshots: &[&str]) -> Scratch {
    let scratch = Scratch::new();
    for name in snapshots {
        let snapshot = scratch.0.join("models--a--b/snapshots").join(name);
        fs::create_dir_all(&snapshot).unwrap();
        fs::write(snapshot.join(CONFIG), "{}").unwrap();
    }
    let refs = scratch.0.join("models--a--b/refs");
    fs::create_dir_all(&refs).unwrap();
    fs::write(refs.join("main"), snapshots[0]).unwrap();
    scratch
}

#[test]
fn a_directory_with_a_model_is_taken_as_it_is() {
    let scratch = Scratch::new();
    fs::write(scratch.0.join(SINGLE), "").unwrap();
    assert_eq!(locate(&scratch.0).unwrap(), as_given(&scratch.0));
}

#[test]
fn the_only_snapshot_is_taken_and_reported() {
    let scratch = model_folder(&[COMMIT]);
    let model = scratch.0.join("models--a--b");
    for given in [model.clone(), model.join(SNAPSHOTS)] {
        let located = locate(&given).unwrap();
        assert_eq!(located.directory, model.join(SNAPSHOTS).join(COMMIT));
        assert!(located.choice.unwrap().contains(COMMIT));
    }
}

#[test]
fn of_several_snapshots_one_is_to_be_given() {
    let scratch = model_folder(&["one", "two"]);
    let said = refusal(&scratch.0.join("models--a--b"));
    for words in ["snapshots/one (main)", "snapshots/two", "give one"] {
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn a_whole_cache_is_distinguished_from_a_model() {
    let scratch = model_folder(&[COMMIT]);
    assert!(refusal(&scratch.0).contains("models--a--b"));
    fs::create_dir(scratch.0.join("home")).unwrap();
    fs::rename(scratch.0.join("models--a--b"), scratch.0.join("hub")).unwrap();
    fs::create_dir_all(scratch.0.join("hub/models--c--d")).unwrap();
    fs::remove_dir_all(scratch.0.join("hub").join(SNAPSHOTS)).unwrap();
    assert!(refusal(&scratch.0).contains("models--c--d"));
}

#[test]
fn a_model_folder_without_a_snapshot_was_not_downloaded() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.0.join(SNAPSHOTS)).unwrap();
    assert!(refusal(&scratch.0).contains("has not begun"));
}

#[test]
fn a_path_that_leads_nowhere_gets_its_own_words() {
    for (path, words) in [
        ("", "is empty"),
        ("~/models", "whole path"),
        (
            "Qwen/Qwen3-8B",
            "`hf download Qwen/Qwen3-8B --local-dir DIR`",
        ),
        ("/nowhere/at/all", "is not there; give the directory"),
    ] {
        assert!(refusal(Path::new(path)).contains(words), "{path}");
    }
    let scratch = Scratch::new();
    symlink("gone", scratch.0.join("link")).unwrap();
    assert!(refusal(&scratch.0.join("link")).contains("a link to gone"));
}

#[test]
fn a_file_is_no_directory() {
    let scratch = Scratch::new();
    for (name, words) in [("a.gguf", "GGUF"), (SINGLE, "give the one that holds")] {
        fs::write(scratch.0.join(name), "").unwrap();
        assert!(refusal(&scratch.0.join(name)).contains(words));
    }
}

/// Hint when `missing` is not in a directory that holds `present`.
fn hint_of(present: &[&str], missing: &str) -> String {
    let scratch = Scratch::new();
    for name in present {
        let path = scratch.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }
    let folder = Folder::open(&scratch.0).unwrap();
    incomplete(&folder, &[missing.to_string()]).to_string()
}

#[test]
fn a_missing_file_has_a_reason_where_there_is_one() {
    for (present, words) in [
        (&["model.safetensors.incomplete"][..], "not finished"),
        (&["model.safetensors.part"], "not finished"),
        (
            &[".cache/huggingface/download/ab.cd.incomplete"],
            "not finished",
        ),
        (&["Model.safetensors"], "case counts"),
        (&["tiny-q4.gguf"], "another format"),
        (&["pytorch_model.bin"], "another format"),
        (&[], "is empty"),
    ] {
        let said = hint_of(present, SINGLE);
        assert!(said.contains(words), "{present:?}: {said}");
        assert!(said.contains("model.safetensors is missing; "), "{said}");
    }
    assert!(hint_of(&["x.safetensors", "y.bin"], SINGLE).contains(&download()));
}

#[test]
fn the_commit_of_a_snapshot_is_in_its_path() {
    let scratch = model_folder(&[COMMIT, "abc"]);
    let snapshots = scratch.0.join("models--a--b").join(SNAPSHOTS);
    let commit = snapshot_commit(&snapshots.join(COMMIT));
    assert_eq!(commit.as_deref(), Some(COMMIT));
    assert_eq!(snapshot_commit(&snapshots.join("abc")), None);
    assert_eq!(snapshot_commit(&scratch.0), None);
}
