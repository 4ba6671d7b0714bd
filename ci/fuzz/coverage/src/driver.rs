//! A check under libFuzzer: `cargo run --release --bin CHECK -- OPTIONS`, which are libFuzzer's.
//!
//! An input that reaches new code is kept in `corpus/`, where the next run begins, and a finding in
//! `artifacts/`. Each check is a binary of its own: after each input the fuzzer looks at the
//! counters of all code that is linked.

#[path = "../../checks/mod.rs"]
mod checks;

use std::fmt::Write as _;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::{env, fs, panic};

use checks::CHECKS;

/// An input that takes longer is a finding.
const SECONDS_MAX: u64 = 10;
/// The option that says where findings go.
const ARTIFACTS: &str = "-artifact_prefix=";

/// The check of the binary's name.
const NAME: &str = env!("CARGO_BIN_NAME");
const AT: usize = {
    let mut at = 0;
    while !are_equal(CHECKS[at].name.as_bytes(), NAME.as_bytes()) {
        at += 1;
    }
    at
};
/// By themselves, so that no other check is linked.
const CHECK: fn(&[u8]) = CHECKS[AT].run;
const BYTES_MAX: usize = CHECKS[AT].bytes_max;
const _: () = assert!(CHECKS[AT].head < BYTES_MAX, "there is something to try");
const WORDS: &[&str] = CHECKS[AT].words;

const fn are_equal(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

libfuzzer_sys::fuzz_target!(init: begin(), |bytes: &[u8]| CHECK(bytes));

/// The check's words in libFuzzer's format.
fn dictionary() -> String {
    let mut text = String::new();
    for word in WORDS {
        text.push('"');
        word.bytes()
            .for_each(|byte| write!(text, "\\x{byte:02x}").expect("a string takes all"));
        text.push_str("\"\n");
    }
    text
}

/// Starts the program again with the check's files, unless the command line has them.
fn begin() {
    // A panic ends the process where it leaves the check; one that is caught before is no finding.
    drop(panic::take_hook());
    let given: Vec<String> = env::args().skip(1).collect();
    if given.iter().any(|option| option.starts_with(ARTIFACTS)) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let corpus = root.join("corpus").join(NAME);
    let artifacts = root.join("artifacts").join(NAME);
    for folder in [&corpus, &artifacts] {
        fs::create_dir_all(folder).expect("folders for what is found");
    }
    let words = root.join("corpus").join(format!("{NAME}.dict"));
    fs::write(&words, dictionary()).expect("a file for the words");
    // The later of two options of one name counts.
    let why = Command::new(env::current_exe().expect("its own path"))
        .arg(corpus)
        .arg(root.join("../seeds").join(NAME))
        .arg(format!("{ARTIFACTS}{}/", artifacts.display()))
        .arg(format!("-dict={}", words.display()))
        .arg(format!("-max_len={BYTES_MAX}"))
        .arg(format!("-timeout={SECONDS_MAX}"))
        .args(given)
        .exec();
    panic!("it does not start again: {why}");
}
