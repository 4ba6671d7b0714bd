//! Directories as their owners have them: layouts of the hub's clients, of Git, of people who move
//! files to other disks, which are taken; and those that cannot be, each refused in one sentence
//! with its fix and by the code that keeps a service from starting again.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::corrupt::Model;
use crate::harness::run;

const REFUSED: i32 = 78;
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const WEIGHTS: &str = "model.safetensors";
const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "config.json";
const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";

/// Exit code and output of `verify` for `path`.
fn verify(arguments: &[&str], path: &Path) -> (Option<i32>, String, String) {
    let line = [&["verify"], arguments, &[path.to_str().unwrap()]].concat();
    let output = run(&line);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// The one sentence that refuses `path`.
fn refusal(path: &Path) -> String {
    let (code, _, said) = verify(&[], path);
    assert_eq!(code, Some(REFUSED), "{path:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

/// Whether the files in `path` are found and taken.
fn is_taken(path: &Path) -> bool {
    let (code, told, said) = verify(&["--digests"], path);
    assert_eq!(code, Some(0), "{path:?}: {said}");
    let doctor = run(&["doctor", "--port", "0", path.to_str().unwrap()]);
    let found = String::from_utf8(doctor.stdout).unwrap();
    assert!(found.contains("ok   weights in "), "{found}");
    told.contains(WEIGHTS)
}

/// Moves all files of `model` into a cache of the hub; the folder of the snapshot.
fn to_cache(model: &Model) -> PathBuf {
    let snapshot = model.path("hub/models--org--tiny/snapshots").join(COMMIT);
    let blobs = model.path("hub/models--org--tiny/blobs");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(&blobs).unwrap();
    for entry in fs::read_dir(&model.0).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            let name = entry.file_name().into_string().unwrap();
            fs::rename(entry.path(), blobs.join(format!("digest-{name}"))).unwrap();
            let target = format!("../../blobs/digest-{name}");
            symlink(target, snapshot.join(name)).unwrap();
        }
    }
    snapshot
}

/// Moves the file `name` of `model` to `target` and links it.
fn to_elsewhere(model: &Model, name: &str, target: &str) {
    let target = model.path(target);
    fs::create_dir_all(target.parent().unwrap()).unwrap();
    fs::rename(model.path(name), &target).unwrap();
    symlink(target, model.path(name)).unwrap();
}

#[test]
fn a_snapshot_of_the_hubs_cache_is_taken_and_so_is_its_model_folder() {
    let model = Model::copy("directories-cache");
    let snapshot = to_cache(&model);
    assert!(is_taken(&snapshot));
    let folder = snapshot.ancestors().nth(2).unwrap();
    assert!(is_taken(folder) && is_taken(&folder.join("snapshots")));
    let said = verify(&["--digests"], folder).2;
    assert!(said.contains(COMMIT), "the snapshot is told: {said}");
}

#[test]
fn the_store_that_models_share_is_followed() {
    let model = Model::copy("directories-shared");
    let snapshot = to_cache(&model);
    let blob = model
        .path("hub/models--org--tiny/blobs")
        .join(format!("digest-{WEIGHTS}"));
    let store = model.path("hub/blobs/18");
    fs::create_dir_all(&store).unwrap();
    fs::rename(&blob, store.join("1805")).unwrap();
    symlink("../../blobs/18/1805", &blob).unwrap();
    assert!(is_taken(&snapshot));
}

#[test]
fn blobs_on_another_disk_are_followed() {
    let model = Model::copy("directories-disk");
    let snapshot = to_cache(&model);
    let blobs = model.path("hub/models--org--tiny/blobs");
    fs::create_dir(model.path("disk")).unwrap();
    fs::rename(&blobs, model.path("disk/blobs")).unwrap();
    symlink(model.path("disk/blobs"), blobs).unwrap();
    assert!(is_taken(&snapshot));
}

#[test]
fn files_that_their_owner_linked_are_taken() {
    let model = Model::copy("directories-linked");
    to_elsewhere(&model, WEIGHTS, "elsewhere/weights");
    to_elsewhere(&model, TOKENIZER, "elsewhere/tokens");
    assert!(is_taken(&model.0));
}

#[test]
fn files_beside_the_checkpoint_do_not_matter() {
    let model = Model::copy("directories-more");
    for name in [
        "README.md",
        ".gitattributes",
        "pytorch_model.bin",
        "vocab.json",
    ] {
        fs::write(model.path(name), "x").unwrap();
    }
    fs::create_dir_all(model.path(".cache/huggingface/download")).unwrap();
    fs::create_dir(model.path("onnx")).unwrap();
    assert!(is_taken(&model.0));
    let spaced = model.0.with_file_name("directories sp ünï 'q'");
    let _ = fs::remove_file(&spaced);
    symlink(&model.0, &spaced).unwrap();
    assert!(is_taken(&spaced));
    fs::remove_file(spaced).unwrap();
}

#[test]
fn of_several_snapshots_one_is_asked_for() {
    let model = Model::copy("directories-several");
    let snapshot = to_cache(&model);
    fs::create_dir(snapshot.with_file_name("another")).unwrap();
    let said = refusal(snapshot.ancestors().nth(2).unwrap());
    assert!(said.contains("another") && said.contains(COMMIT), "{said}");
    let said = refusal(&model.path("hub"));
    assert!(said.contains("models--org--tiny"), "{said}");
}

/// A way to spoil a copy of the files, and words of the sentence that tells it.
type Case = (&'static str, fn(&Model), &'static [&'static str]);

/// Puts `content` in the place of `name`.
fn replace(model: &Model, name: &str, content: &str) {
    fs::write(model.remove(name), content).unwrap();
}

fn rename(model: &Model, from: &str, to: &str) {
    fs::rename(model.path(from), model.path(to)).unwrap();
}

const CASES: [Case; 20] = [
    (
        "lfs",
        |model| replace(model, WEIGHTS, POINTER),
        &[WEIGHTS, "git lfs pull"],
    ),
    (
        "lfs-text",
        |model| replace(model, TOKENIZER, POINTER),
        &[TOKENIZER, "git lfs pull"],
    ),
    (
        "page",
        |model| replace(model, TOKENIZER, "<!DOCTYPE html><html>Login</html>"),
        &[TOKENIZER, "web page", "hf auth login"],
    ),
    (
        "empty",
        |model| replace(model, WEIGHTS, ""),
        &[WEIGHTS, "is empty", "download"],
    ),
    (
        "empty-text",
        |model| replace(model, TOKENIZER, ""),
        &[TOKENIZER, "is empty", "download"],
    ),
    (
        "short",
        |model| replace(model, WEIGHTS, "x"),
        &[WEIGHTS, "1 bytes", "download"],
    ),
    (
        "incomplete",
        |model| rename(model, WEIGHTS, "model.safetensors.incomplete"),
        &[
            "model.safetensors is missing",
            ".incomplete is there",
            "start it again",
        ],
    ),
    (
        "part",
        |model| rename(model, WEIGHTS, "model.safetensors.part"),
        &[
            "model.safetensors is missing",
            ".part is there",
            "start it again",
        ],
    ),
    (
        "gguf",
        |model| rename(model, WEIGHTS, "tiny-q4_k_m.gguf"),
        &[
            "model.safetensors is missing",
            "tiny-q4_k_m.gguf is of another format",
        ],
    ),
    (
        "torch",
        |model| rename(model, WEIGHTS, "pytorch_model.bin"),
        &[
            "model.safetensors is missing",
            "pytorch_model.bin is of another format",
        ],
    ),
    (
        "case",
        |model| rename(model, WEIGHTS, "Model.safetensors"),
        &["there is Model.safetensors", "rename it"],
    ),
    (
        "config",
        |model| drop(model.remove(CONFIG)),
        &["config.json is missing; "],
    ),
    (
        "several",
        |model| {
            model.remove(CONFIG);
            model.remove(TOKENIZER);
        },
        &["config.json and tokenizer.json are missing; "],
    ),
    (
        "directory",
        |model| fs::create_dir(model.remove(WEIGHTS)).unwrap(),
        &[WEIGHTS, "no regular file", "in its place"],
    ),
    (
        "device",
        |model| symlink("/dev/zero", model.remove(TOKENIZER)).unwrap(),
        &[TOKENIZER, "no regular file", "in its place"],
    ),
    (
        "dangling",
        |model| symlink("gone/file", model.remove(WEIGHTS)).unwrap(),
        &["is a link to", "gone, which is not there; "],
    ),
    (
        "circle",
        |model| symlink(WEIGHTS, model.remove(WEIGHTS)).unwrap(),
        &[WEIGHTS, "give another path"],
    ),
    (
        "open-to-all",
        |model| {
            use std::os::unix::fs::PermissionsExt;
            to_elsewhere(model, WEIGHTS, "elsewhere/weights");
            let open = fs::Permissions::from_mode(0o777);
            fs::set_permissions(model.path("elsewhere"), open).unwrap();
        },
        &["any user can place links", "chmod o-w"],
    ),
    (
        "index",
        |model| {
            let shard = |n: u32| format!("model-{n:05}-of-00042.safetensors");
            let map: Vec<String> = (1..=42)
                .map(|n| format!("\"t{n}\": \"{}\"", shard(n)))
                .collect();
            let index = format!("{{\"weight_map\": {{{}}}}}", map.join(","));
            fs::write(model.path("model.safetensors.index.json"), index).unwrap();
            for n in [1, 2, 40] {
                fs::write(model.path(&shard(n)), "x").unwrap();
            }
        },
        &["model-[00003-00039,00041-00042]-of-00042.safetensors are missing; "],
    ),
    (
        "theirs",
        |model| {
            model.remove(WEIGHTS);
            fs::create_dir(model.path("models--org--other")).unwrap();
        },
        &["model.safetensors is missing; "],
    ),
];

#[test]
fn each_directory_that_cannot_be_served_is_refused_with_its_fix() {
    for (name, spoil, words) in CASES {
        let model = Model::copy(&format!("directories-{name}"));
        spoil(&model);
        let said = refusal(&model.0);
        for word in words {
            assert!(said.contains(word), "{name}: {said}");
        }
    }
}

#[test]
fn a_cache_without_the_blob_says_how_to_get_it() {
    let model = Model::copy("directories-blob");
    let snapshot = to_cache(&model);
    let blob = model
        .path("hub/models--org--tiny/blobs")
        .join(format!("digest-{WEIGHTS}"));
    fs::rename(&blob, blob.with_extension("incomplete")).unwrap();
    assert!(refusal(&snapshot).contains("which is not there"));
    fs::remove_file(snapshot.join(WEIGHTS)).unwrap();
    let said = refusal(&snapshot);
    assert!(said.contains("the download is not finished"), "{said}");
}

#[test]
fn a_path_that_is_no_directory_is_refused_with_the_fix() {
    let model = Model::copy("directories-none");
    fs::write(model.path("a.gguf"), "GGUF").unwrap();
    for (path, words) in [
        (model.path("a.gguf"), "GGUF"),
        (model.path(WEIGHTS), "give the one that holds the weights"),
        (model.path("nosuch"), "is not there; give the directory"),
        ("Qwen/Qwen3.6-35B-A3B-FP8".into(), "hf download"),
        ("~/models".into(), "whole path"),
        ("".into(), "is empty"),
    ] {
        let said = refusal(&path);
        assert!(said.contains(words), "{path:?}: {said}");
    }
}

#[test]
fn the_digests_of_a_directory_are_those_of_its_manifest() {
    let model = Model::copy("directories-digests");
    let (code, told, _) = verify(&["--digests"], &model.0);
    assert_eq!(code, Some(0));
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets/_model/tiny/model.toml");
    let manifest = fs::read_to_string(manifest).unwrap();
    let block = &told[told.find("files = [").unwrap()..];
    assert!(manifest.contains(block), "{told}");
}
