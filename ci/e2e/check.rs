//! The check of the model before it serves, and checkpoints of drawn weights.

use std::fs;

use serde_json::Value;

use crate::harness::{Folder, Server, question, run};

#[test]
fn a_start_says_what_was_checked() {
    let server = Server::start_loading();
    let golden = server.line_with("golden tokens of the binary");
    assert!(golden.contains("agree"), "{golden}");
    let text = server.line_with("nats per token");
    assert!(
        text.contains("the same bits however the prompt is cut"),
        "{text}"
    );
    server.line_with("READY ");
}

#[test]
fn drawn_weights_are_served_under_a_loud_line() {
    let folder = Folder::new();
    let weights = folder.path("weights");
    assert!(run(&["synth", &weights]).status.success());
    let server = Server::start_with(&[&weights]);
    let reply = server.chat(&question("Say something.", 4)).json();
    assert_eq!(reply["usage"]["completion_tokens"], 4, "{reply}");
    // A file that is missing is named though the weights mean nothing.
    fs::remove_file(folder.join("weights/tokenizer.json")).unwrap();
    let refused = run(&["serve", "--port", "0", &weights]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(78), "{said}");
    assert!(
        said.contains("ARE DRAWN AT RANDOM") && said.contains("tokenizer.json"),
        "{said}"
    );
}

#[test]
fn golden_tokens_that_are_kept_are_compared_at_a_start() {
    let folder = Folder::new();
    let file = folder.path("golden.json");
    let kept = run(&["verify", "--oracle", "--golden", &file]);
    let said = String::from_utf8(kept.stdout).unwrap();
    assert!(kept.status.success() && said.contains("0 of"), "{said}");
    let server = Server::start_with(&["--golden", &file]);
    drop(server);
    let mut golden: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let logprob = &mut golden["sequences"][0]["top"][2][0][1];
    *logprob = (logprob.as_f64().unwrap() - 0.1).into();
    fs::write(&file, golden.to_string()).unwrap();
    let refused = run(&["serve", "--port", "0", "--golden", &file]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(70), "{said}");
    assert!(said.contains("golden sequence 0, token 2"), "{said}");
}

#[test]
fn golden_tokens_are_kept_behind_a_comparison_alone() {
    let refused = run(&["verify", "--golden", "/nowhere/golden.json"]);
    assert_eq!(refused.status.code(), Some(2));
    let missing = run(&["serve", "--port", "0", "--golden", "/nowhere/golden.json"]);
    let said = String::from_utf8(missing.stderr).unwrap();
    assert_eq!(missing.status.code(), Some(78), "{said}");
    assert!(said.contains("/nowhere/golden.json"), "{said}");
}
