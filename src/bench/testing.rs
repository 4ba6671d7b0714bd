//! A server that answers from a table, for the tests of the client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

/// Tokens that the pretended chat template adds, and tokens per word.
const TEMPLATE_TOKENS: usize = 7;

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub chats: AtomicUsize,
    pub connections: AtomicUsize,
    /// Streams that were open at once, at most.
    pub open: AtomicUsize,
    pub open_most: AtomicUsize,
}

/// Serves until the process ends. Every `fail_every`-th chat is refused, if not zero.
pub(super) fn start(tokens_per_word: usize, fail_every: usize) -> (String, Arc<Counts>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let counts = Arc::new(Counts::default());
    let shared = counts.clone();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let counts = shared.clone();
            counts.connections.fetch_add(1, Ordering::Relaxed);
            thread::spawn(move || while answer(&stream, &counts, tokens_per_word, fail_every) {});
        }
    });
    (url, counts)
}

/// Serves until the process ends; `answer` has the whole response for each path.
pub(crate) fn canned(answer: fn(&str) -> String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                while let Some((path, _)) = receive(&stream) {
                    stream.write_all(answer(&path).as_bytes()).unwrap();
                }
            });
        }
    });
    url
}

/// Answers one request; false when the client has closed the connection.
fn answer(stream: &TcpStream, counts: &Counts, tokens_per_word: usize, fail_every: usize) -> bool {
    let Some((path, body)) = receive(stream) else {
        return false;
    };
    let response = if path == "/v1/models" {
        whole("200 OK", r#"{"data":[{"id":"stub"}]}"#)
    } else if path == "/version" {
        whole("200 OK", r#"{"target":"atlas-stub","version":"1.0"}"#)
    } else {
        let number = counts.chats.fetch_add(1, Ordering::Relaxed) + 1;
        let open = counts.open.fetch_add(1, Ordering::Relaxed) + 1;
        counts.open_most.fetch_max(open, Ordering::Relaxed);
        thread::sleep(std::time::Duration::from_millis(5));
        counts.open.fetch_sub(1, Ordering::Relaxed);
        match fail_every > 0 && number.is_multiple_of(fail_every) {
            true => whole("503 Service Unavailable", "busy"),
            false => whole("200 OK", &chat(&body, tokens_per_word)),
        }
    };
    (&mut &*stream).write_all(response.as_bytes()).is_ok()
}

fn receive(stream: &TcpStream) -> Option<(String, Value)> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).ok()?;
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((path, serde_json::from_slice(&body).unwrap_or_default()))
}

pub(crate) fn whole(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn chat(body: &Value, tokens_per_word: usize) -> String {
    let words = body["messages"][0]["content"]
        .as_str()
        .unwrap()
        .split(' ')
        .count();
    let prompt = TEMPLATE_TOKENS + words * tokens_per_word;
    let tokens = body["max_tokens"].as_u64().unwrap();
    assert_eq!(body["ignore_eos"], true);
    let piece = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
    let usage = json!({
        "choices": [],
        "usage": {"prompt_tokens": prompt, "completion_tokens": tokens},
    });
    piece.repeat(tokens as usize) + &format!("data: {usage}\n\ndata: [DONE]\n\n")
}
