//! Requests that take long to read, beside those of others: their clients have left, there are many
//! of them, or they were made to cost much.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use http::keys::Keys;
use http::settings::Settings;
use serde_json::{Map, Value, json};

use crate::clients::scripted_server;
use crate::harness::{self, Answer, Connection, PATIENCE, Server, bearer, few_or_many, send_to};
use crate::keys::KeyFile;

const CROWD: &str = "crowd-0123456789abcdef";
const OTHER: &str = "other-0123456789abcdef";

fn keys(name: &str) -> KeyFile {
    KeyFile::new(name, &[CROWD, OTHER].join("\n"))
}

/// A request with a key, as bytes.
fn request(key: &str, path: &str, body: &str) -> Vec<u8> {
    harness::request("POST", path, &bearer(key), body.as_bytes())
}

fn ask(address: SocketAddr, request: &[u8]) -> Answer {
    send_to(address, request).answer()
}

fn text(unit: &str, bytes: usize) -> String {
    unit.repeat(bytes / unit.len())
}

/// Properties of an object, so many, whose names have `mark` in them.
fn properties(mark: &str, count: usize) -> Value {
    let one = |at: usize| (format!("{mark}{at}"), json!({"type": "string"}));
    Value::Object((0..count).map(one).collect::<Map<_, _>>())
}

/// Rules of GBNF of which each leads to the next, and the last one back.
fn rules(count: usize) -> String {
    let one = |at: usize| format!("r{at} ::= \"a\" r{}\n", at + 1);
    let rules: String = (0..count).map(one).collect();
    format!("root ::= r0\n{rules}r{count} ::= \"b\" r0 | \"c\"\n")
}

/// Paths and bodies that cost much to read for their size; `mark` tells them from others.
fn dear(mark: &str) -> Vec<(&'static str, Value)> {
    let form = |fields: Value| {
        let mut body = json!({"prompt": "Hi", "max_tokens": 1});
        body.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        ("/v1/completions", body)
    };
    let messages = vec![json!({"role": "user", "content": text("<|im_end|>", 400)}); 1_000];
    let tool = |at: usize| {
        let schema = json!({"type": "object", "properties": properties(mark, 60)});
        json!({"type": "function", "function": {"name": format!("f{at}"), "parameters": schema}})
    };
    let tools: Vec<Value> = (0..40).map(tool).collect();
    let called = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": tools,
        "tool_choice": "required", "max_tokens": 1});
    let schema = json!({"type": "object", "properties": properties(mark, 390)});
    vec![
        (
            "/tokenize",
            json!({"prompt": mark.to_string() + &text("e\u{301}", 100_000)}),
        ),
        (
            "/tokenize",
            json!({"prompt": mark.to_string() + &text("the quick brown fox ", 500_000)}),
        ),
        ("/detokenize", json!({"tokens": vec![5; 100_000]})),
        ("/v1/messages/count_tokens", json!({"messages": messages})),
        ("/v1/chat/completions", called),
        form(json!({"grammar": rules(1_200)})),
        form(json!({"guided_json": schema})),
        form(json!({"guided_regex": format!(
            "({mark}|(a|b|[c-z]{{1,40}}){{1,30}}){{1,2}}x{{1,200}}"
        )})),
    ]
}

/// Time of a processor after which texts are surely being read.
const READING: Duration = Duration::from_millis(200);

#[test]
fn clients_that_have_left_cost_others_nothing() {
    let file = keys("left");
    let server = Server::start_with(&["--api-keys-file", file.path()]);
    let units = ["e\u{301}", "the quick brown fox "];
    let bodies = units.map(|unit| json!({"prompt": text(unit, 2_000_000)}).to_string());
    let before = server.cpu_time();
    // The server's words lie unread at the client, so that its end is told as a reset.
    let expects = "expect: 100-continue\r\n";
    let head = format!("{expects}{}", bearer(CROWD));
    let bytes = |body: &String| harness::request("POST", "/tokenize", &head, body.as_bytes());
    let clients: Vec<Connection> = (0..6)
        .map(|at| server.send(&bytes(&bodies[at % 2])))
        .collect();
    let deadline = Instant::now() + PATIENCE;
    while server.cpu_time() - before < READING {
        assert!(Instant::now() < deadline, "nothing is read");
        thread::sleep(Duration::from_millis(5));
    }
    drop(clients);
    let begun = Instant::now();
    let body = json!({"prompt": text("a question of some words ", 45_000)}).to_string();
    let answer = ask(server.address, &request(OTHER, "/tokenize", &body));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(
        begun.elapsed() < Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    // All of them to their ends would take several seconds.
    thread::sleep(Duration::from_millis(500));
    let took = server.cpu_time() - before;
    assert!(took < Duration::from_millis(1_500), "{took:?}");
}

#[test]
fn what_costs_much_to_read_is_read_or_refused_in_time() {
    let file = keys("dear");
    let server = Server::start_with(&["--api-keys-file", file.path()]);
    let again = json!({"prompt": "Hi", "grammar": format!("root ::= \"a\"{}", "*".repeat(60_000))});
    let rules = json!({"prompt": "Hi", "max_tokens": 1, "grammar": rules(4_000)});
    let worse = [("/v1/completions", again), ("/v1/completions", rules)];
    for (path, body) in dear("m").into_iter().chain(worse) {
        let before = server.cpu_time();
        let answer = ask(server.address, &request(CROWD, path, &body.to_string()));
        let took = server.cpu_time() - before;
        assert!([200, 400].contains(&answer.status), "{answer:?}");
        let shown: String = body.to_string().chars().take(80).collect();
        assert!(
            took < Duration::from_millis(600),
            "{path}: {took:?} for {shown}"
        );
    }
}

/// Clients of the crowd, and the requests of the other key that are timed.
const CLIENTS: usize = 8;
const TIMED: usize = few_or_many(12, 100);
/// Time of a step of the model.
const STEP: Duration = Duration::from_millis(5);
/// Tries, of which other programs may make some slower.
const TRIES: usize = 3;

/// The median time of one token for the other key.
fn first_token(address: SocketAddr, timed: usize) -> Duration {
    let body = json!({"prompt": "Hi", "max_tokens": 1}).to_string();
    let small = request(OTHER, "/v1/completions", &body);
    let one = |_| {
        thread::sleep(Duration::from_millis(15));
        let begun = Instant::now();
        assert_eq!(ask(address, &small).status, 200);
        begun.elapsed()
    };
    let mut times: Vec<Duration> = (0..timed).map(one).collect();
    times.sort();
    times[timed / 2]
}

/// The median time of one token for the other key, while the crowd has what costs much read.
fn first_token_in_a_crowd(address: SocketAddr) -> Duration {
    let ends = &AtomicBool::new(false);
    let client = |client: usize| {
        let bodies = dear(&format!("c{client}")).into_iter();
        let requests = bodies.map(|(path, body)| request(CROWD, path, &body.to_string()));
        let requests: Vec<Vec<u8>> = requests.collect();
        let mut next = requests.iter().cycle().skip(client);
        while !ends.load(Ordering::Relaxed) {
            ask(address, next.next().unwrap());
        }
    };
    thread::scope(|scope| {
        for at in 0..CLIENTS {
            scope.spawn(move || client(at));
        }
        thread::sleep(Duration::from_millis(100));
        let beside = first_token(address, TIMED);
        ends.store(true, Ordering::Relaxed);
        beside
    })
}

#[test]
fn a_first_token_comes_as_soon_beside_what_another_key_has_read() {
    let file = keys("first");
    let settings = Settings {
        keys: Some(Keys::load(Path::new(file.path())).unwrap()),
        ..Settings::default()
    };
    let (address, _stop) = scripted_server(STEP, settings);
    let mut found = Vec::new();
    let holds = (0..TRIES).any(|_| {
        let alone = first_token(address, TIMED);
        let beside = first_token_in_a_crowd(address);
        found.push((alone, beside));
        beside < 2 * alone
    });
    println!("alone, and beside the crowd: {found:?}");
    assert!(holds, "alone, and beside the crowd: {found:?}");
}
