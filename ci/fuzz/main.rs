//! The checks over their seeds and over seeded mixtures of them, with the compiler everyone has.
//!
//! `coverage/` runs the same checks under a fuzzer that sees which code an input reaches; what it
//! finds becomes a seed.

mod checks;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use checks::{CHECKS, Check};
use step::random::Random;

/// Mixtures of one check.
const ROUNDS: usize = 12_000;
/// Changes of one mixture at most.
const CHANGES_MAX: usize = 6;

fn seeds(check: &Check) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("ci/fuzz/seeds")
        .join(check.name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|why| panic!("{}: {why}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Changes `input` at one place.
fn change(input: &mut Vec<u8>, check: &Check, seeds: &[&[u8]], random: &mut Random) {
    let at = random.below(input.len() + 1);
    let end = at + random.below(input.len() - at + 1);
    match random.below(6) {
        0 if at < input.len() => input[at] ^= 1 << random.below(8),
        1 => drop(input.drain(at..end)),
        2 => {
            let part = input[at..end].to_vec();
            input.splice(at..at, part);
        }
        3 => {
            let other = seeds[random.below(seeds.len())];
            let from = random.below(other.len() + 1);
            input.splice(at..end, other[from..].iter().copied());
        }
        _ => {
            let word = check.words[random.below(check.words.len())];
            input.splice(at..at, word.bytes());
        }
    }
}

fn try_input(check: &Check, input: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| (check.run)(input))).is_err() {
        panic!(
            "{}: breaks on {:?}",
            check.name,
            String::from_utf8_lossy(input)
        );
    }
}

fn run(name: &str) {
    let check = CHECKS.iter().find(|check| check.name == name).unwrap();
    let seeds = seeds(check);
    assert!(!seeds.is_empty(), "{name} has no seeds");
    seeds.iter().for_each(|seed| try_input(check, seed));
    // Heads are drawn, so that each way of trying an input has its turn with each seed.
    let bodies: Vec<&[u8]> = seeds.iter().map(|seed| &seed[check.head..]).collect();
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    for _ in 0..ROUNDS {
        let mut body = bodies[random.below(bodies.len())].to_vec();
        for _ in 0..=random.below(CHANGES_MAX) {
            change(&mut body, check, &bodies, &mut random);
        }
        let mut input: Vec<u8> = (0..check.head).map(|_| random.below(256) as u8).collect();
        input.extend(body);
        input.truncate(check.bytes_max);
        try_input(check, &input);
    }
}

#[test]
fn every_check_has_a_test_and_a_target() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("ci/fuzz");
    let tests = include_str!("main.rs");
    for Check { name, .. } in CHECKS {
        assert!(tests.contains(&format!("run(\"{name}\")")), "{name}");
        let target = format!("coverage/src/bin/{name}.rs");
        assert!(root.join(&target).is_file(), "{target}");
    }
}

#[test]
fn chat_request() {
    run("chat_request");
}

#[test]
fn completion_request() {
    run("completion_request");
}

#[test]
fn forged_turns() {
    run("forged_turns");
}

#[test]
fn messages_request() {
    run("messages_request");
}

#[test]
fn responses_request() {
    run("responses_request");
}

#[test]
fn template() {
    run("template");
}

#[test]
fn tool_calls() {
    run("tool_calls");
}

#[test]
fn reply() {
    run("reply");
}

#[test]
fn stop_strings() {
    run("stop_strings");
}

#[test]
fn reasoning() {
    run("reasoning");
}

#[test]
fn harmony() {
    run("harmony");
}

#[test]
fn http_head() {
    run("http_head");
}

#[test]
fn packed_table() {
    run("packed_table");
}

#[test]
fn safetensors_header() {
    run("safetensors_header");
}

#[test]
fn grammar() {
    run("grammar");
}

#[test]
fn schemas() {
    run("schemas");
}
