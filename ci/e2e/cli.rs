//! The command line and its exit codes.

use std::net::TcpListener;

use serde_json::Value;

use crate::harness::{BINARY, Folder, Server, run};

fn code(arguments: &[&str]) -> i32 {
    run(arguments).status.code().unwrap()
}

fn stderr(arguments: &[&str]) -> String {
    String::from_utf8(run(arguments).stderr).unwrap()
}

fn stdout(arguments: &[&str]) -> String {
    String::from_utf8(run(arguments).stdout).unwrap()
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    for line in [
        &[][..],
        &["dance"],
        &["serve", "--prot=1"],
        &["serve", "--port", "x"],
        &["serve", "--log-level", "loud"],
        &["generate"],
    ] {
        assert_eq!(code(line), 2, "{line:?}");
        assert!(!stderr(line).is_empty());
    }
}

#[test]
fn a_mistyped_flag_is_told_with_what_was_meant_and_where_help_is() {
    let said = stderr(&["serve", "--prot=1"]);
    for text in [
        "atlas-cpu-tiny-nvfp4 serve: --prot",
        "did you mean --port?",
        "serve --help",
    ] {
        assert!(said.contains(text), "{said}");
    }
    // A value that only the verb can refuse.
    let said = stderr(&["connect", "claude", "--key", ""]);
    assert!(
        said.contains("atlas-cpu-tiny-nvfp4 connect: --key"),
        "{said}"
    );
}

#[test]
fn a_reader_that_has_enough_is_no_failure_to_tell_of() {
    let line = format!("(sleep 0.1; exec {} about) | true", *BINARY);
    let mut shell = std::process::Command::new("sh");
    let done = shell.args(["-c", &line]).output().unwrap();
    assert!(done.stderr.is_empty(), "{done:?}");
}

#[test]
fn a_binary_without_tls_says_how_to_get_it() {
    assert_eq!(code(&["serve", "--tls-cert", "a.pem"]), 2);
    let both = ["serve", "--tls-cert", "a.pem", "--tls-key", "b.pem"];
    assert_eq!(code(&both), 78);
    assert!(stderr(&both).contains("--features tls"));
}

#[test]
fn help_goes_to_standard_output_and_lists_exit_codes() {
    let help = stdout(&["--help"]);
    for text in [
        "serve", "generate", "about", "verify", "doctor", "selftest", "bench", "69", "78",
    ] {
        assert!(help.contains(text), "{text}");
    }
    assert_eq!(code(&["serve", "-h"]), 0);
}

#[test]
fn a_taken_port_ends_with_69_and_names_the_fix() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let port = taken.local_addr().unwrap().port().to_string();
    assert_eq!(code(&["serve", "--port", &port]), 69);
    let said = stderr(&["serve", "--port", &port]);
    assert!(said.contains(&address) && said.contains("--port"), "{said}");
}

#[test]
fn a_weights_directory_that_is_none_ends_with_78() {
    for verb in ["serve", "verify"] {
        assert_eq!(code(&[verb, "/nowhere/at/all"]), 78);
        assert!(stderr(&[verb, "/nowhere/at/all"]).contains("/nowhere/at/all"));
    }
}

/// Lines of what each verb says of weights that are at `path`.
fn told_of_weights(path: &str) -> Vec<(&'static str, Vec<String>)> {
    let verbs = ["serve", "verify", "doctor"];
    let told = verbs.map(|verb| {
        let done = match verb {
            "verify" => run(&[verb, path]),
            _ => run(&[verb, path, "--port", "0"]),
        };
        let said = [done.stdout, done.stderr].concat();
        let lines = String::from_utf8(said).unwrap();
        let lines = lines.lines().map(str::to_string);
        (verb, lines.filter(|line| line.contains(path)).collect())
    });
    told.to_vec()
}

#[test]
fn weights_that_are_none_are_told_once() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("empty")).unwrap();
    for path in [folder.path("none"), folder.path("empty")] {
        for (verb, lines) in told_of_weights(&path) {
            assert_eq!(lines.len(), 1, "{verb}: {lines:?}");
        }
    }
}

#[test]
fn about_is_json_when_asked() {
    let about: Value = serde_json::from_str(&stdout(&["about", "--json"])).unwrap();
    assert_eq!(about["hardware"], "cpu");
    assert_eq!(about["version"], env!("CARGO_PKG_VERSION"));
    assert!(stdout(&["--version"]).contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn verify_and_selftest_pass() {
    assert_eq!(code(&["verify", "--full"]), 0);
    assert_eq!(code(&["selftest"]), 0);
}

#[test]
fn doctor_names_what_is_to_be_fixed() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let said = stdout(&["doctor", "--port", &port]);
    assert!(
        said.contains("ok   ") && said.contains(&format!("fix  port {port}")),
        "{said}"
    );
    assert_eq!(code(&["doctor", "--port", &port]), 69);
}

#[test]
fn doctor_tells_which_server_has_the_port() {
    let server = Server::start();
    let port = server.address.port().to_string();
    let said = stdout(&["doctor", "--port", &port]);
    let version = env!("CARGO_PKG_VERSION");
    let told = format!("port {port}: atlas-cpu-tiny-nvfp4 {version} has it and serves tiny");
    assert!(said.contains(&told), "{said}");
}

#[test]
fn doctor_states_the_memory_that_serving_takes() {
    let server = Server::start_loading();
    let lines = ["weights, at most", " sum "].map(|name| server.line_with(name));
    let said = stdout(&["doctor", "--port", "0"]);
    for line in lines {
        assert!(said.contains(&line), "{line} is not in {said}");
    }
}

#[test]
fn a_refusal_of_the_server_is_a_sentence() {
    let server = Server::start();
    let url = format!("http://{}", server.address);
    let said = stderr(&["try", "--url", &url, &"too long ".repeat(9000)]);
    assert!(
        said.starts_with("the server refuses (400 Bad Request): "),
        "{said}"
    );
    assert!(!said.contains('{'), "{said}");
}

#[test]
fn serving_begins_with_what_memory_is_needed_and_free() {
    let server = Server::start_loading();
    server.line_with("memory:");
    assert!(server.line_with("  sum ").ends_with(" MiB"));
    let free = server.line_with(" may be taken, ");
    assert!(free.ends_with(" KV pages for 32768 tokens"), "{free}");
    server.line_with("READY ");
}

#[test]
fn generate_prints_the_reply() {
    let said = run(&[
        "generate",
        "--max-tokens=64",
        "What is the capital of France?",
    ]);
    assert_eq!(said.status.code(), Some(0));
    assert!(said.stdout.len() > 1);
    assert_eq!(code(&["generate", "--max-tokens=0", "hi"]), 2);
}

#[test]
fn thinking_goes_beside_the_answer() {
    let said = run(&["generate", "--temperature=0", "What is 17 + 25?"]);
    let [answer, beside] = [said.stdout, said.stderr].map(|text| String::from_utf8(text).unwrap());
    assert_eq!(answer.trim(), "17 + 25 = 42.");
    // A sum is thought about digit by digit.
    assert!(
        beside.contains("7 + 5 = 12") && !answer.contains("12"),
        "{beside}"
    );
}

#[test]
fn the_way_to_ready_is_told_stage_by_stage() {
    let told = stdout(&["bench", "start", "--runs", "2", "--json", "-"]);
    let report: Value = serde_json::from_str(&told).unwrap();
    let stages = report["stages"].as_array().unwrap();
    let names: Vec<_> = stages.iter().map(|stage| &stage["name"]).collect();
    for name in [
        "starting the process",
        "loading weights",
        "checking answers",
    ] {
        assert!(names.contains(&&Value::from(name)), "{names:?}");
    }
    assert!(
        stages
            .iter()
            .all(|stage| stage["s"].as_f64().unwrap() >= 0.0)
    );
    let total = report["total_s"].as_f64().unwrap();
    assert!(report["fastest_s"].as_f64().unwrap() <= total);
    assert!(report["text_s"].as_f64().unwrap() > 0.0);
    assert!(report["bytes"].as_u64().unwrap() > 1 << 20);
}

#[test]
fn drafts_are_timed_and_their_acceptance_is_told_to_be_simulated() {
    let file = std::env::temp_dir().join(format!("atlas-e2e-drafts-{}", std::process::id()));
    let json = file.to_str().unwrap();
    let line = [
        "bench",
        "drafts",
        "--layers",
        "1",
        "--acceptance",
        "0.75",
        "--json",
        json,
    ];
    let told = stdout(&line);
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(told.contains("\nacceptance 0.75, simulated: "), "{told}");
    assert_eq!(report["acceptance_is"], "simulated");
    let drafts = report["drafts"].as_array().unwrap();
    let depths = |sequences: u64| {
        let those = drafts.iter().filter(|of| of["sequences"] == sequences);
        those
            .filter_map(|of| of["depth"].as_u64())
            .collect::<Vec<_>>()
    };
    assert_eq!(depths(1), [0, 1, 2, 3, 4, 5, 6, 7]);
    // Cases with no more rows of logits than a step of this target has.
    assert_eq!(depths(8), [0, 1, 2]);
    for of in drafts {
        let (depth, bytes) = (&of["depth"], of["predictions_bytes"].as_u64().unwrap());
        assert_eq!(bytes > 0, depth != 0, "{of}");
        assert!(of["tok_s"].as_f64().unwrap() > 0.0, "{of}");
    }
    assert_eq!(code(&["bench", "drafts", "--acceptance", "1.5"]), 2);
}

#[test]
fn a_start_that_fails_ends_as_its_process_did() {
    let empty = std::env::temp_dir().join(format!("atlas-e2e-empty-{}", std::process::id()));
    std::fs::create_dir_all(&empty).unwrap();
    let line = ["bench", "start", empty.to_str().unwrap()];
    assert_eq!(code(&line), 78);
    let said = stderr(&line);
    std::fs::remove_dir(&empty).unwrap();
    assert!(
        said.contains("a run failed") && said.contains("the directory is empty"),
        "{said}"
    );
}
