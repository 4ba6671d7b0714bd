//! Raw bytes that HTTP servers are known to stumble over.

use serde_json::json;

use crate::harness::{Server, question, with};

const CHAT: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n";
/// Chunk data that would be a request of its own to a reader who frames differently.
const SMUGGLED: &str = "0\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Bytes and the status that answers them; the connection is closed after each.
fn probes() -> Vec<(String, u16)> {
    let get = |rest: &str| format!("GET /version HTTP/1.1\r\n{rest}\r\n");
    let closing = |rest: &str| get(&format!("{rest}connection: close\r\n"));
    let chunked = |body: &str| format!("{CHAT}transfer-encoding: chunked\r\n\r\n{body}");
    let mut probes = vec![
        // Hosts.
        (closing(""), 400),
        (closing("host: localhost\r\nhost: b\r\n"), 400),
        (closing("host: localhost\r\nHost: a\r\n"), 400),
        (closing("host: a/?x=\r\n"), 400),
        (closing("host: a b\r\n"), 400),
        (closing("host: user@a\r\n"), 400),
        (closing("host:\r\n"), 400),
        (closing("host: [::1\r\n"), 400),
        (closing("host: [::1]:80\r\n"), 200),
        ("GET /version HTTP/1.0\r\n\r\n".to_string(), 200),
        (
            "GET http://localhost/version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
                .to_string(),
            200,
        ),
        (
            "GET http://b/version HTTP/1.1\r\nhost: localhost\r\n\r\n".to_string(),
            400,
        ),
        // Lengths told twice or wrongly.
        (
            format!("{CHAT}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n{SMUGGLED}"),
            400,
        ),
        (
            format!("{CHAT}transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n{SMUGGLED}"),
            400,
        ),
        (
            format!("{CHAT}content-length: 2\r\ncontent-length: 2\r\n\r\n{{}}"),
            400,
        ),
        (
            format!("{CHAT}content-length: 2\r\ncontent-length: 3\r\n\r\n{{}}"),
            400,
        ),
        (
            format!("{CHAT}transfer-encoding: xchunked\r\n\r\n{SMUGGLED}"),
            400,
        ),
        (
            format!("{CHAT}transfer-encoding: chunked, identity\r\n\r\n{SMUGGLED}"),
            400,
        ),
        // Line ends and header syntax.
        (
            "GET /version HTTP/1.1\nhost: localhost\n\n".to_string(),
            400,
        ),
        (get("host: localhost\nx: y\r\n"), 400),
        (
            "GET /version HTTP/1.1\r\nhost: localhost\r\n\n".to_string(),
            400,
        ),
        (get("host : a\r\n"), 400),
        (get("host: localhost\r\nx: y\r\n z\r\n"), 400),
        (get("host: localhost\r\nx: \0\r\n"), 400),
        (get("host: localhost\r\nx: a\rb\r\n"), 400),
        (
            "GET /version HTTP/9.9\r\nhost: localhost\r\n\r\n".to_string(),
            400,
        ),
        (
            "GET  /version  HTTP/1.1\r\nhost: localhost\r\n\r\n".to_string(),
            400,
        ),
        ("\0\0\0\0\r\n\r\n".to_string(), 400),
        // Methods.
        (
            "TRACE / HTTP/1.1\r\nhost: localhost\r\n\r\n".to_string(),
            405,
        ),
        (
            "CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n".to_string(),
            405,
        ),
        // Paths.
        (
            closing("host: localhost\r\n").replace("/version", "/../../etc/passwd"),
            404,
        ),
        (
            closing("host: localhost\r\n").replace("/version", "//version"),
            404,
        ),
        (
            closing("host: localhost\r\n").replace("/version", "/v1/models/..%2f..%2fetc"),
            404,
        ),
        // Encodings that are not read.
        (
            format!("{CHAT}content-encoding: gzip\r\ncontent-length: 2\r\n\r\n{{}}"),
            415,
        ),
    ];
    for length in ["3,3", "+3", "-1", "0x3", "18446744073709551616", "", "3 3"] {
        probes.push((format!("{CHAT}content-length: {length}\r\n\r\n{{}} "), 400));
    }
    for chunks in [
        "0x3\r\nabc\r\n0\r\n\r\n",
        "+3\r\nabc\r\n0\r\n\r\n",
        "0_3\r\nabc\r\n0\r\n\r\n",
        "3\nabc\r\n0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "3\r\nabc\n0\r\n\r\n",
        "ffffffffffffffffff\r\nabc",
        "g\r\n\r\n",
        "-1\r\n\r\n",
        "\r\n\r\n",
    ] {
        probes.push((chunked(chunks), 400));
    }
    probes
}

#[test]
fn every_probe_has_one_answer() {
    let server = Server::lent();
    for (bytes, expected) in probes() {
        let rest = server.send(bytes.as_bytes()).rest();
        let status = rest
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse::<u16>().ok());
        assert_eq!(status, Some(expected), "{bytes:?} -> {rest:?}");
        assert_eq!(rest.matches("HTTP/1.").count(), 1, "{bytes:?} -> {rest:?}");
        if expected >= 400 {
            let (_, body) = rest.split_once("\r\n\r\n").unwrap();
            let error: serde_json::Value = serde_json::from_str(body).unwrap();
            assert!(
                error["error"]["message"].is_string(),
                "{bytes:?} -> {rest:?}"
            );
        }
    }
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn http_2_without_asking_is_refused_by_its_version() {
    let server = Server::lent();
    let rest = server.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").rest();
    assert!(rest.starts_with("HTTP/1.1 505 "), "{rest:?}");
    assert_eq!(rest.matches("HTTP/1.1 505 ").count(), 1, "{rest:?}");
}

#[test]
fn a_million_tiny_chunks_are_one_body() {
    let server = Server::lent();
    let head = format!("{CHAT}connection: close\r\ntransfer-encoding: chunked\r\n\r\n");
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(b"1\r\n \r\n".repeat(1_000_000).as_slice());
    bytes.extend_from_slice(b"0\r\n\r\n");
    let answer = server.send(&bytes).answer();
    assert_eq!(
        (answer.status, answer.error()["message"].clone()),
        (400, "the body is empty; send a JSON object".into())
    );
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = Server::lent();
    let one = "GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let last = "GET /nothing HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let rest = server.send(format!("{one}{one}{last}").as_bytes()).rest();
    let statuses: Vec<&str> = rest
        .split("HTTP/1.1 ")
        .skip(1)
        .map(|response| &response[..3])
        .collect();
    assert_eq!(statuses, ["200", "200", "404"]);
}

#[test]
fn errors_are_json_with_the_right_methods_named() {
    let server = Server::lent();
    let missing = server.get("/v2/nothing");
    assert_eq!(
        (missing.status, missing.error()["type"].clone()),
        (404, "not_found_error".into())
    );
    let wrong = server.get("/v1/chat/completions");
    assert_eq!(
        (wrong.status, wrong.error()["type"].clone()),
        (405, "invalid_request_error".into())
    );
    assert!(wrong.head.contains("allow: post"));
    let trace = server.send(b"TRACE /version HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert!(trace.answer().head.contains("allow: get"));
    let head = b"HEAD /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert_eq!(server.send(head).answer().body, "");
}

/// State of a listening socket in the system's tables.
const LISTENS: &str = "0A";

#[test]
fn a_server_listens_once_and_calls_nobody() {
    let server = Server::start();
    assert_eq!(server.chat(&question("Hi", 2)).status, 200);
    let body = with(
        question("Hi", 500),
        json!({"stream": true, "ignore_eos": true}),
    );
    let mut open = server.open_chat(&body);
    open.read_until("role");
    let sockets = server.sockets();
    let port = format!(":{:04X}", server.address.port());
    let (listening, others): (Vec<_>, Vec<_>) = sockets
        .iter()
        .partition(|line| line.split_whitespace().nth(3) == Some(LISTENS));
    assert_eq!(listening.len(), 1, "{listening:?}");
    assert!(!others.is_empty(), "the client's connection is seen");
    for line in &sockets {
        let here = line.split_whitespace().nth(1).unwrap();
        assert!(here.ends_with(&port), "not of the server's port: {line}");
    }
}

#[test]
fn models_version_and_metrics_answer() {
    let server = Server::start();
    assert_eq!(server.get("/v1/models").json()["data"][0]["id"], "tiny");
    assert_eq!(server.get("/v1/models/tiny").json()["max_model_len"], 2048);
    assert_eq!(
        server.get("/version").json()["version"],
        env!("CARGO_PKG_VERSION")
    );
    let metrics = server.get("/metrics");
    assert!(metrics.head.contains("text/plain; version=0.0.4"));
    for line in metrics.body.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let known = ["atlas_", "process_"]
            .iter()
            .any(|start| name.starts_with(start));
        assert!(known, "{line}");
        value.parse::<f64>().unwrap();
    }
}
