//! Packed weights: the same answers as those of the directory, one copy of them for all processes,
//! and one sentence where a file cannot be used.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;

use crate::corrupt::Model;
use crate::harness::{Server, question, run, run_under, with};

/// Begins the bytes of weights.
const HEAD_BYTES: u64 = 4096;

/// Packs the model's weights; where.
fn packed(model: &Model) -> PathBuf {
    let file = model.path("weights.packed");
    let (code, said) = atlas(&["pack", text(&model.0), text(&file)]);
    assert_eq!(code, 0, "{said}");
    file
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Exit code, and what was said.
fn atlas(arguments: &[&str]) -> (i32, String) {
    let done = run(arguments);
    let said = String::from_utf8(done.stdout).unwrap() + &String::from_utf8(done.stderr).unwrap();
    (done.status.code().unwrap(), said)
}

/// Changes a byte of the file.
fn flip(file: &Path, at: u64) {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let mut byte = [0];
    opened.read_exact_at(&mut byte, at).unwrap();
    opened.write_all_at(&[byte[0] ^ 4], at).unwrap();
}

/// Kibibytes that a line of the process's memory map sums up to.
fn kibibytes(server: &Server, name: &str) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", server.id())).unwrap();
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn packed_weights_give_the_same_bits_and_need_nothing_else() {
    let model = Model::copy("packed-bits");
    let (file, again) = (packed(&model), model.path("again"));
    assert_eq!(atlas(&["pack", text(&model.0), text(&again)]).0, 0);
    assert!(
        fs::read(&file).unwrap() == fs::read(&again).unwrap(),
        "the same file every time"
    );
    let tokens = model.path("tokens");
    fs::write(&tokens, "1 5 9 200 17 42 3 8 1000 77").unwrap();
    let logits = |weights: &Path, out: &str| {
        let out = model.path(out);
        let flags = ["--tokens", text(&tokens), "--out", text(&out)];
        let (code, said) = atlas(&[&["logits", text(weights)], &flags[..]].concat());
        assert_eq!(code, 0, "{said}");
        fs::read(out).unwrap()
    };
    assert!(logits(&model.0, "of-directory") == logits(&file, "of-file"));
    let alone = model.path("alone/weights.packed");
    fs::create_dir(alone.parent().unwrap()).unwrap();
    fs::rename(&file, &alone).unwrap();
    let ask = |server: &Server| {
        let body = with(
            question("What is the capital of France?", 12),
            serde_json::json!({
                "temperature": 0, "logprobs": true
            }),
        );
        server.chat(&body).json()["choices"].clone()
    };
    let [of_directory, of_file] =
        [&model.0, &alone].map(|weights| Server::start_with(&[text(weights)]));
    assert_eq!(ask(&of_directory), ask(&of_file));
}

#[test]
fn packed_weights_are_in_memory_once() {
    let model = Model::copy("packed-memory");
    let file = packed(&model);
    let of_directory = Server::start_with(&[text(&model.0)]);
    let [one, two] = [(), ()].map(|()| Server::start_with(&[text(&file)]));
    let weights = file.metadata().unwrap().len() / 1024;
    let [anonymous, mapped] = [&of_directory, &one].map(|server| kibibytes(server, "Anonymous:"));
    assert!(
        mapped + weights / 2 < anonymous,
        "{mapped} {anonymous} of {weights} kB"
    );
    let shared = kibibytes(&two, "Shared_Clean:");
    assert!(shared > weights / 2, "{shared} of {weights} kB");
}

#[test]
fn who_cuts_the_file_of_a_server_ends_it_with_a_sentence() {
    let model = Model::copy("packed-cut");
    let file = packed(&model);
    for busy in [false, true] {
        let copy = model.path(if busy { "busy.packed" } else { "idle.packed" });
        fs::copy(&file, &copy).unwrap();
        let server = Server::start_with(&[text(&copy)]);
        let stream = busy.then(|| {
            let body = with(
                question("Tell me a long story.", 400),
                serde_json::json!({
                    "stream": true, "ignore_eos": true
                }),
            );
            let mut stream = server.open_chat(&body);
            stream.read_until("\"delta\"");
            stream
        });
        let cut = copy.clone();
        let cutter = thread::spawn(move || {
            OpenOptions::new()
                .write(true)
                .open(cut)
                .unwrap()
                .set_len(100_000)
                .unwrap();
        });
        let said = server.line_with("another program opened it to write");
        assert!(
            said.contains("idle.packed") || said.contains("busy.packed"),
            "{said}"
        );
        assert_eq!(server.wait().code(), Some(74));
        cutter.join().unwrap();
        assert_eq!(copy.metadata().unwrap().len(), 100_000);
        if let Some(stream) = stream {
            let rest = stream.rest();
            assert!(!rest.contains("[DONE]") || rest.contains("error"), "{rest}");
        }
    }
}

#[test]
fn a_damaged_file_is_refused_with_its_name() {
    let model = Model::copy("packed-damaged");
    let file = packed(&model);
    let (code, said) = atlas(&["verify", "--full", text(&file)]);
    assert!(code == 0 && said.contains("digests of 1 pieces"), "{said}");
    flip(&file, HEAD_BYTES + 100_000);
    let (code, said) = atlas(&["verify", "--full", text(&file)]);
    assert!(
        code == 78 && said.contains("weights.packed: piece 0 (bytes 4096"),
        "{code} {said}"
    );
    flip(&file, HEAD_BYTES + 100_000);
    let bytes = file.metadata().unwrap().len();
    for (at, why) in [(12, "damaged"), (bytes - 9, "damaged"), (8, "version 5")] {
        flip(&file, at);
        let (code, said) = atlas(&["serve", "--port", "0", text(&file)]);
        assert!(
            code == 78 && said.contains("weights.packed: ") && said.contains(why),
            "{said}"
        );
        flip(&file, at);
    }
    OpenOptions::new()
        .write(true)
        .open(&file)
        .unwrap()
        .set_len(bytes - 1)
        .unwrap();
    for line in [
        &["serve", "--port", "0"][..],
        &["verify"],
        &["doctor", "--port", "0"],
    ] {
        let (_, said) = atlas(&[line, &[text(&file)]].concat());
        assert!(
            said.contains("cut short") && said.contains("weights.packed"),
            "{line:?}: {said}"
        );
    }
}

#[test]
fn a_disk_that_is_full_or_a_run_that_was_killed_leaves_no_file() {
    let model = Model::copy("packed-full");
    let file = model.path("weights.packed");
    let line = ["pack", text(&model.0), text(&file)];
    let done = run_under("trap '' XFSZ; ulimit -f 1000", &line);
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(
        done.status.code() == Some(74) && said.contains("same command"),
        "{said}"
    );
    let partial = || {
        let names = fs::read_dir(&model.0).unwrap().flatten();
        let mut names = names.map(|entry| entry.file_name().into_string().unwrap());
        names.any(|name| name.ends_with(".partial"))
    };
    assert!(!file.exists() && !partial());
    let left = model.path(".weights.packed.0123456789abcdef.partial");
    fs::write(left, "of a run that was killed").unwrap();
    assert_eq!(atlas(&line).0, 0);
    assert!(file.exists() && !partial());
}

#[test]
fn a_bundle_carries_packed_weights() {
    let model = Model::copy("packed-bundle");
    let (file, bundle, dest) = (packed(&model), model.path("bundle"), model.path("dest"));
    let (code, said) = atlas(&["bundle", text(&bundle), "--weights", text(&file)]);
    assert_eq!(code, 0, "{said}");
    let (code, said) = atlas(&["import", text(&bundle), text(&dest)]);
    assert_eq!(code, 0, "{said}");
    let (code, said) = atlas(&["doctor", "--port", "0", text(&dest)]);
    assert!(
        code == 0 && said.contains("ok   weights packed in"),
        "{said}"
    );
}
