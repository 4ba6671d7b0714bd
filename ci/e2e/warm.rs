//! `serve --warm FILE`: conversations that are kept before the first request.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{Folder, Server, outcome, with};
use crate::keys::KeyFile;
use crate::prefix::{OPENING, PAGE, body, question, used};

/// A conversation whose system message has some pages.
fn messages() -> Vec<Value> {
    let system = "Answer briefly, and only what is asked. ".repeat(10);
    vec![json!({"role": "system", "content": system}), question(1)]
}

/// A file of lines in a folder of its own, and its path.
fn file(lines: &[Value]) -> (Folder, String) {
    let folder = Folder::new();
    let path = folder.path("warm.jsonl");
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(&path, text).unwrap();
    (folder, path)
}

/// Tokens of a prompt that are kept of it.
fn kept(prompt: u64) -> u64 {
    (prompt - OPENING) / PAGE * PAGE
}

#[test]
fn the_first_request_finds_what_was_warmed_and_gets_the_same_bits() {
    let line = json!({"messages": messages(), "chat_template_kwargs": {"enable_thinking": false}});
    let (_folder, path) = file(&[line.clone(), line]);
    let (warm, cold) = (Server::spawn(&["--warm", &path]), Server::start());
    warm.line_with("warming: 0 of 2 conversations");
    let told = warm.line_with("conversations warmed: 2, ");
    warm.line_with("READY ");
    let [found, fresh] = [&warm, &cold].map(|server| server.chat(&body(&messages())).json());
    let (prompt, cached) = used(&found);
    assert_eq!((cached, used(&fresh).1), (kept(prompt), 0));
    let computed = 2 * prompt - kept(prompt);
    let figures = format!(
        "{} tokens, {computed} of them computed and the others shared; {} tokens are kept",
        2 * prompt,
        kept(prompt)
    );
    assert!(told.ends_with(&figures), "{told}, not {figures}");
    assert_eq!(found["choices"], fresh["choices"], "the same bits");
}

#[test]
fn every_key_and_salt_finds_what_was_warmed_and_shares_nothing_else() {
    let line = with(body(&messages()), json!({"max_tokens": null}));
    let (_folder, path) = file(&[line]);
    let keys = ["one-0123456789abcdef", "two-0123456789abcdef"];
    let of_keys = KeyFile::new("warm", &keys.join("\n"));
    let server = Server::start_with(&["--warm", &path, "--api-keys-file", of_keys.path()]);
    let ask = |key: &str, salt: Value, more: usize| {
        let mut messages = messages();
        messages.extend((0..more).flat_map(|turn| {
            let said = json!({"role": "assistant", "content": "5"});
            [said, question(2 + turn)]
        }));
        let fields = json!({"max_tokens": 1, "cache_salt": salt});
        used(&server.chat_as(key, &with(body(&messages), fields)).json()).1
    };
    let warmed = ask(keys[0], Value::Null, 0);
    assert!(warmed >= 2 * PAGE, "{warmed}");
    for (key, salt) in [
        (keys[0], Value::Null),
        (keys[1], Value::Null),
        (keys[1], json!("a")),
    ] {
        assert_eq!(
            ask(key, salt.clone(), 2),
            warmed,
            "what is behind it is new to each"
        );
        assert!(ask(key, salt, 2) > warmed, "and its own from then on");
    }
}

#[test]
fn what_was_warmed_stays_whatever_many_keys_ask() {
    // More of them than an owner's equal part of what is kept.
    let head = |ix: usize| {
        let system = format!("Number {ix}. {}", "Answer briefly. ".repeat(25));
        let talk = [json!({"role": "system", "content": system}), question(1)];
        with(body(&talk), json!({"max_tokens": 1}))
    };
    let bodies: Vec<Value> = (0..8).map(head).collect();
    let (_folder, path) = file(&bodies);
    let keys: Vec<String> = (0..30)
        .map(|key| format!("key-{key:02}-0123456789abcdef"))
        .collect();
    let of_keys = KeyFile::new("warm-stays", &keys.join("\n"));
    let server = Server::start_with(&["--warm", &path, "--api-keys-file", of_keys.path()]);
    for (at, key) in keys.iter().enumerate() {
        for length in [1, 2] {
            let prompt = vec![1 + at; length * PAGE as usize + 10];
            let body = json!({"prompt": prompt, "max_tokens": 1});
            let answer = server.post_as(key, "/v1/completions", &body);
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }
    for body in &bodies {
        let found = used(&server.chat_as(&keys[29], body).json()).1;
        assert!(found >= PAGE, "{found}: {body}");
    }
}

#[test]
fn a_file_that_cannot_be_warmed_ends_the_start_with_its_line() {
    let fits = json!({"messages": [{"role": "user", "content": "hi"}]});
    let long = json!({"messages": [{"role": "user", "content": "word ".repeat(20_000)}]});
    for (name, lines, part) in [
        ("empty", vec![], "no conversation"),
        ("array", vec![fits.clone(), json!([])], "line 2: "),
        ("field", vec![json!({"messages": []})], "line 1: messages: "),
        (
            "salt",
            vec![with(fits.clone(), json!({"cache_salt": "a"}))],
            "line 1: cache_salt: ",
        ),
        ("long", vec![fits.clone(), fits.clone(), long], "line 3: "),
    ] {
        let (_folder, path) = file(&lines);
        let (code, told) = outcome(&["serve", "--port", "0", "--warm", &path]);
        assert_eq!(code, 78, "{name}: {told}");
        let named = format!("--warm {path}: ");
        assert!(
            told.contains(&named) && told.contains(part),
            "{name}: {told}"
        );
    }
    let (code, told) = outcome(&["serve", "--port", "0", "--warm", "/nowhere/warm.jsonl"]);
    assert_eq!(code, 78);
    assert!(told.contains("/nowhere/warm.jsonl: No such file"), "{told}");
}
