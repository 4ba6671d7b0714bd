//! The README's own commands, as a reader would copy them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::{BINARY, Place};

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
/// Name of the default target's binary, under which the README calls it.
const NAME: &str = "atlas-cpu-tiny-nvfp4";

/// The block of commands that holds `text`.
fn commands(text: &str) -> String {
    let readme = fs::read_to_string(README).unwrap();
    let mut blocks = readme.split("\n```");
    let block = blocks.find(|block| block.starts_with("sh\n") && block.contains(text));
    block.expect("the README has it")["sh\n".len()..].to_string()
}

/// Runs commands in the folder `place`, where the binary is in the path.
fn run(place: &Place, commands: &str) -> Output {
    let folder = place.path("");
    let _ = symlink(
        fs::canonicalize(BINARY).unwrap(),
        Path::new(&folder).join(NAME),
    );
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", commands]).current_dir(&folder);
    shell.env("PATH", path).output().unwrap()
}

#[test]
fn a_file_of_requests_is_answered() {
    let place = Place::new("readme-batch");
    let done = run(&place, &commands(" batch "));
    assert!(done.status.success(), "{done:?}");
    let text = fs::read_to_string(place.path("answers.jsonl")).unwrap();
    let answer = |id: &str| {
        let mut lines = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.find(|line| line["custom_id"] == id).unwrap()["response"].to_string()
    };
    assert!(
        answer("france").contains("Paris") && answer("sum").contains("42"),
        "{text}"
    );
}
