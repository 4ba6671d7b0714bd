//! Prompts on a disk: a restart finds them, a crash loses some and changes none.

use std::thread;
use std::time::Duration;

use host::testing::Folder;
use serde_json::{Value, json};

use crate::harness::{Server, few_or_many};
use crate::keys::KeyFile;
use crate::prefix::used;

const KEYS: [&str; 2] = ["one-0123456789abcdef", "two-0123456789abcdef"];
/// Prompts and tokens of each.
const PROMPTS: usize = few_or_many(6, 40);
const TOKENS: usize = 720;
/// Servers that are killed while they write.
const KILLS: usize = few_or_many(3, 100);

fn flags(folder: &Folder) -> [String; 4] {
    let path = folder.0.join("cache").display().to_string();
    [
        "--cache-dir".into(),
        path,
        "--cache-disk".into(),
        "2GB".into(),
    ]
}

/// A server once it answers and has read what its folder holds, whichever comes first.
fn start(folder: &Folder, more: &[&str]) -> Server {
    let flags = flags(folder);
    let flags: Vec<&str> = flags
        .iter()
        .map(String::as_str)
        .chain(more.iter().copied())
        .collect();
    let server = Server::spawn(&flags);
    server.lines_with(&["READY ", "bytes of prompts are there"]);
    server
}

fn body(number: usize) -> Value {
    let token = |at| 1 + (61 * number + 7 * at) % 3000;
    let prompt: Vec<usize> = (0..TOKENS).map(token).collect();
    json!({"prompt": prompt, "max_tokens": 3, "temperature": 0, "logprobs": 3})
}

fn ask(server: &Server, key: &str, number: usize) -> Value {
    server.post_as(key, "/v1/completions", &body(number)).json()
}

#[test]
fn a_restart_finds_the_prompts_of_each_key_on_the_disk() {
    let folder = Folder::new();
    let file = KeyFile::new("disk", &KEYS.join("\n"));
    let keys = ["--api-keys-file", file.path()];
    let server = start(&folder, &keys);
    let all = |server: &Server, key| (0..PROMPTS).map(|of| ask(server, key, of)).collect();
    let before: Vec<Value> = all(&server, KEYS[0]);
    server.signal("-TERM");
    assert!(
        server.wait().success(),
        "what was computed is written by then"
    );
    let server = start(&folder, &keys);
    for (key, has_them) in [(KEYS[1], false), (KEYS[0], true)] {
        let found: Vec<Value> = all(&server, key);
        for (computed, found) in before.iter().zip(&found) {
            assert_eq!(computed["choices"], found["choices"], "the same bits");
        }
        let (asked, cached) = found
            .iter()
            .map(used)
            .fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        println!("{cached} of {asked} tokens were cached");
        match has_them {
            true => assert!(cached * 10 >= asked * 9, "{cached} of {asked}"),
            false => assert_eq!(cached, 0, "of another key"),
        }
    }
}

#[test]
fn a_second_server_and_one_without_a_folder_serve_without_it() {
    let folder = Folder::new();
    let first = start(&folder, &[]);
    let second = Server::spawn(&flags(&folder).each_ref().map(String::as_str));
    let line = second.line_with("--cache-dir ");
    assert!(line.contains("another server has it"), "{line}");
    let none = Server::spawn(&["--cache-dir", "/proc/none", "--cache-disk", "1GB"]);
    let line = none.line_with("--cache-dir ");
    assert!(line.starts_with("--cache-dir /proc/none: "), "{line}");
    let answers = [&first, &second, &none].map(|server| {
        let answer = server.post_to("/v1/completions", &body(1)).json();
        answer["choices"].clone()
    });
    assert!(answers[0][0].is_object() && answers.iter().all(|of| *of == answers[0]));
}

#[test]
fn a_server_that_is_killed_while_it_writes_leaves_nothing_wrong() {
    let folder = Folder::new();
    let sound = Server::start();
    let choices = |server: &Server, number| {
        let answer = server.post_to("/v1/completions", &body(number)).json();
        answer["choices"].clone()
    };
    let wanted: Vec<Value> = (0..PROMPTS).map(|number| choices(&sound, number)).collect();
    for kill in 0..KILLS {
        let server = start(&folder, &[]);
        for (number, wanted) in wanted.iter().enumerate() {
            assert_eq!(choices(&server, number), *wanted, "after {kill} kills");
        }
        // Somewhere in what is written behind the last answers.
        thread::sleep(Duration::from_millis(7 * kill as u64 % 50));
        server.signal("-KILL");
        server.wait();
    }
}
