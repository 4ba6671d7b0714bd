use std::sync::atomic::Ordering;

use super::*;

fn command(arguments: &[&str]) -> Command {
    let all = [&["serve"], arguments].concat();
    Command::from_args(&["bench"], &all).unwrap()
}

fn served(arguments: &[&str]) -> Options {
    match command(arguments).what {
        What::Serve(options) => options,
        other => panic!("{other:?}"),
    }
}

fn options(arguments: &[&str]) -> Options {
    served(&[&["--url", "http://127.0.0.1:1"], arguments].concat())
}

fn scratch_file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("atlas-bench-{}-{name}", std::process::id()))
}

#[test]
fn every_scenario_is_the_default_and_names_choose() {
    let names = |arguments: &[&str]| -> Vec<&str> {
        scenarios(&options(arguments))
            .unwrap()
            .iter()
            .map(|scenario| scenario.name)
            .collect()
    };
    assert_eq!(names(&[]), ["decode-1", "decode-8", "prefill-200"]);
    assert_eq!(names(&["--scenario", "decode-8"]), ["decode-8"]);
    assert_eq!(names(&["--streams", "3"]), ["custom"]);
}

#[test]
fn numbers_make_a_scenario() {
    let made = scenarios(&options(&["--streams", "3", "--max-tokens", "9"]))
        .unwrap()
        .remove(0);
    assert_eq!(
        (
            made.streams,
            made.requests,
            made.prompt_tokens,
            made.max_tokens
        ),
        (3, 12, 200, 9)
    );
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let refusal = |arguments: &[&str]| scenarios(&options(arguments)).unwrap_err().message;
    assert!(refusal(&["--streams", "0"]).contains("at least 1"));
    assert!(refusal(&["--streams", "1", "--scenario", "decode-1"]).contains("one or the other"));
    assert!(refusal(&["--scenario", "x"]).contains("no such scenario"));
}

#[test]
fn a_run_measures_prompts_of_the_length_asked_for() {
    for tokens_per_word in [1, 3] {
        let (url, counts) = testing::start(tokens_per_word, 0);
        let asked = [
            "--url",
            &url,
            "--streams",
            "4",
            "--requests",
            "12",
            "--prompt-tokens",
            "100",
        ];
        let report = measure(&served(&asked)).unwrap();
        let figures = &report.scenarios[0];
        assert_eq!(
            (figures.replies, figures.errors),
            (12, 0),
            "{:?}",
            report.first_error
        );
        assert_eq!(
            (figures.prompt_tokens, figures.reply_tokens),
            (100.0, 128.0)
        );
        assert!(figures.ttft_ms.p50 >= 5.0 && figures.total_tok_s > 0.0);
        assert_eq!(counts.open_most.load(Ordering::Relaxed), 4);
        // One to find the length, and four each to warm up and to measure.
        assert_eq!(counts.connections.load(Ordering::Relaxed), 9);
    }
}

#[test]
fn refused_requests_are_counted_and_make_the_run_fail() {
    let (url, _) = testing::start(1, 5);
    let asked = [
        "--url",
        &url,
        "--streams",
        "1",
        "--requests",
        "10",
        "--prompt-tokens",
        "50",
    ];
    let json = scratch_file("refused.json");
    let run = run(command(
        &[&asked[..], &["--json", json.to_str().unwrap()]].concat(),
    ));
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
    let error = run.unwrap_err();
    assert!(
        error.exit == Exit::Unavailable && error.message.starts_with("2 requests failed"),
        "{error:?}"
    );
    assert!(
        error.message.contains("(503 Service Unavailable): busy"),
        "{error:?}"
    );
    assert_eq!(
        (
            &report["scenarios"]["custom"]["replies"],
            &report["scenarios"]["custom"]["errors"]
        ),
        (&8.into(), &2.into())
    );
}

#[test]
fn the_memory_of_the_named_process_is_reported() {
    let (url, _) = testing::start(1, 0);
    let pid = std::process::id().to_string();
    let asked = [
        "--url",
        &url,
        "--streams",
        "1",
        "--requests",
        "1",
        "--pid",
        &pid,
    ];
    let report = measure(&served(&asked)).unwrap();
    assert_eq!(report.server.as_deref(), Some("atlas-stub 1.0"));
    assert!(report.memory.is_some_and(|memory| memory.rss_bytes > 0));
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let error = run(Command {
        what: What::Serve(options(&[])),
    })
    .unwrap_err()
    .message;
    assert!(error.contains("cannot reach http://127.0.0.1:1"), "{error}");
}

#[test]
fn large_scenarios_are_run_when_asked_for() {
    let names = |arguments: &[&str]| {
        let found = scenarios(&options(arguments)).unwrap();
        found
            .iter()
            .map(|scenario| scenario.name)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&["--large"]).last(), Some(&"streams-64"));
    assert_eq!(names(&["--scenario", "first-8192"]), ["first-8192"]);
    assert!(scenarios(&options(&["--large", "--streams", "2"])).is_err());
}
