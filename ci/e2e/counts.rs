//! Counts and lengths far beyond what is served: refused before anything is made in their number.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Server, question, with};

/// Longest time that a refusal may take. The binary under test may be unoptimised, and the machine
/// busy with other tests.
const REFUSAL_TIME: Duration = Duration::from_millis(100);
/// Growth of the process that all of them together may leave.
const GROWTH_BYTES: usize = 1024 * 1024;
/// Each thread, and the allocator for it, keeps some memory for good, at one time or another: what
/// grows with the requests grows in every round.
const ROUNDS: usize = 6;
/// More of anything than a request may hold.
const MANY: usize = 5000;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Requests that ask for more than there is of something, with the name that their refusal tells.
fn beyond() -> Vec<(&'static str, Value, &'static str)> {
    let chat = |name: &str, value: &Value| with(question("hi", 4), json!({name: value}));
    let completion = |name: &str, value: &Value| {
        with(
            json!({"prompt": "hi", "max_tokens": 4}),
            json!({name: value}),
        )
    };
    let numbers = [
        json!(-7),
        json!(1u64 << 31),
        json!(1u64 << 63),
        json!(u64::MAX),
        json!(1e308),
        json!("NaN"),
        json!("x"),
        json!([1]),
    ];
    // A length beyond the context is no fault: the reply ends there.
    let is_length = |name: &str, value: &Value| name.ends_with("_tokens") && value.is_u64();
    let mut cases = Vec::new();
    for value in &numbers {
        for name in [
            "n",
            "best_of",
            "top_logprobs",
            "max_tokens",
            "max_completion_tokens",
        ] {
            if !is_length(name, value) {
                cases.push((CHAT, chat(name, value), name));
            }
        }
        for name in ["n", "best_of", "logprobs", "prompt_logprobs", "max_tokens"] {
            if !is_length(name, value) {
                cases.push((COMPLETIONS, completion(name, value), name));
            }
        }
    }
    let many = |item: Value| Value::from(vec![item; MANY]);
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let biases = (0..MANY).map(|id| (id.to_string(), json!(1)));
    let biases = Value::Object(biases.collect());
    for (name, value) in [
        ("stop", many(json!("x"))),
        ("stop", json!("x".repeat(MANY))),
        ("stop_token_ids", many(json!(1))),
        ("logit_bias", biases),
        ("tools", many(tool)),
        ("messages", many(json!({"role": "user", "content": "hi"}))),
    ] {
        cases.push((CHAT, chat(name, &value), name));
    }
    cases.push((
        COMPLETIONS,
        completion("prompt", &many(json!("hi"))),
        "prompt",
    ));
    cases
}

/// Sends them all; returns how long the slowest refusal took.
fn refused(server: &Server) -> Duration {
    let mut slowest = Duration::ZERO;
    for (path, body, name) in beyond() {
        let begun = Instant::now();
        let answer = server.post_to(path, &body);
        slowest = slowest.max(begun.elapsed());
        let what = format!("{path} {name}: {answer:?}");
        assert_eq!(answer.status, 400, "{what}");
        assert!(
            answer.error()["message"].as_str().unwrap().contains(name),
            "{what}"
        );
    }
    slowest
}

#[test]
fn counts_without_bounds_are_refused_in_time_and_memory() {
    let server = Server::start();
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let before = server.resident();
        let slowest = refused(&server);
        rounds.push((server.resident().saturating_sub(before), slowest));
    }
    let growth = rounds.iter().map(|(growth, _)| *growth).min().unwrap();
    let slowest = rounds.iter().map(|(_, slowest)| *slowest).min().unwrap();
    println!(
        "the slowest refusal {slowest:.1?}, {} KiB more",
        growth / 1024
    );
    assert!(slowest < REFUSAL_TIME, "{slowest:?}");
    assert!(growth < GROWTH_BYTES, "{growth} bytes");
}
