//! The life of a server: loading, overload, cancellation, stopping.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{PATIENCE, Server, question, with};

/// Sequences of the target under test.
const SLOTS: usize = 16;
/// Requests that may wait in that target.
const QUEUED: usize = 64;

fn endless(max_tokens: usize) -> serde_json::Value {
    with(
        question("Go on.", max_tokens),
        json!({"ignore_eos": true, "stream": true}),
    )
}

#[test]
fn health_tells_loading_until_the_server_is_ready() {
    let server = Server::start_loading();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let health = server.get("/health");
        if health.status == 200 {
            assert_eq!(health.json()["status"], "ready");
            return;
        }
        assert_eq!(health.status, 503);
        assert!(health.head.contains("retry-after: "));
        assert!(["loading", "stopped"].contains(&health.json()["status"].as_str().unwrap()));
        assert!(Instant::now() < deadline);
    }
}

#[test]
fn a_flood_is_answered_429_and_what_was_accepted_is_finished() {
    let server = Server::start();
    let holding: Vec<_> = (0..SLOTS)
        .map(|_| server.open_chat(&endless(1800)))
        .collect();
    server.wait_for_metric("atlas_requests_running", SLOTS as f64);
    let statuses: Vec<u16> = thread::scope(|scope| {
        let one = || {
            let answer = server.chat(&with(question("Hi", 8), json!({"ignore_eos": true})));
            if answer.status == 429 {
                assert!(answer.head.contains("retry-after: "));
                assert_eq!(answer.error()["type"], "rate_limit_error");
            }
            answer.status
        };
        let clients: Vec<_> = (0..QUEUED * 2).map(|_| scope.spawn(one)).collect();
        server.wait_for_metric("atlas_requests_rejected_total", QUEUED as f64);
        assert_eq!(server.metric("atlas_requests_waiting"), QUEUED as f64);
        drop(holding);
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .collect()
    });
    let count = |status| statuses.iter().filter(|found| **found == status).count();
    assert_eq!((count(200), count(429)), (QUEUED, QUEUED));
    server.wait_for_metric("atlas_requests_running", 0.0);
    assert_eq!(server.metric("atlas_kv_pages_used"), 0.0);
}

#[test]
fn clients_that_leave_free_their_slots() {
    let server = Server::start();
    let open: Vec<_> = (0..20)
        .map(|_| {
            let mut open = server.open_chat(&endless(1800));
            open.read_until("200 OK");
            open
        })
        .collect();
    server.wait_for_metric("atlas_requests_running", 16.0);
    drop(open);
    server.wait_for_metric("atlas_requests_running", 0.0);
    server.wait_for_metric("atlas_requests_waiting", 0.0);
    server.wait_for_metric("atlas_requests_finished_total{reason=\"cancelled\"}", 20.0);
    // Between those that ran and those that waited none runs, and a step under way has its pages.
    server.wait_for_metric("atlas_kv_pages_used", 0.0);
}

fn stops_cleanly_on(signal: &str) {
    let server = Server::start();
    let mut open = server.open_chat(&endless(60));
    open.read_until("role");
    server.signal(signal);
    server.line_with("finishing open replies");
    let answer = open.answer();
    assert_eq!(
        answer.events().last().unwrap()["choices"][0]["finish_reason"],
        "length"
    );
    let address = server.address;
    assert_eq!(server.wait().code(), Some(0));
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn sigterm_finishes_open_replies_and_ends_with_0() {
    stops_cleanly_on("-TERM");
}

#[test]
fn sigint_finishes_open_replies_and_ends_with_0() {
    stops_cleanly_on("-INT");
}

#[test]
fn a_hangup_ends_nothing() {
    let server = Server::start_loading();
    server.signal("-HUP");
    server.line_with("SIGHUP: there are no keys");
    server.line_with("READY ");
    let mut open = server.open_chat(&endless(60));
    open.read_until("role");
    server.signal("-HUP");
    server.line_with("SIGHUP: there are no keys");
    let last = open.answer().events().pop().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
}

#[test]
fn a_second_signal_cuts_open_replies_and_says_so() {
    let server = Server::start();
    let mut open = server.open_chat(&endless(1800));
    open.read_until("role");
    server.signal("-TERM");
    server.line_with("finishing open replies");
    server.signal("-TERM");
    server.line_with("replies that took too long were ended");
    assert!(open.rest().contains("the server is shutting down"));
    assert_eq!(server.wait().code(), Some(75));
}

#[test]
fn a_client_that_ends_its_side_behind_a_request_gets_its_answer() {
    let server = Server::lent();
    for stream in [false, true] {
        let body = with(endless(200), json!({"stream": stream}));
        let open = server.open_chat(&body);
        open.stream.shutdown(Shutdown::Write).unwrap();
        let answer = open.answer();
        assert_eq!(answer.status, 200, "{}", answer.head);
        assert!(answer.body.contains("\"finish_reason\":\"length\""));
    }
}

#[test]
fn a_client_that_leaves_before_its_answer_frees_its_slot() {
    // Drafts would end replies of a fast machine before the server knows that nobody waits.
    let server = Server::start_with(&["--speculate", "off"]);
    let body = with(endless(1800), json!({"stream": false, "n": 8}));
    let open = server.open_chat(&body);
    server.wait_for_metric("atlas_requests_running", 8.0);
    drop(open);
    server.wait_for_metric("atlas_requests_finished_total{reason=\"cancelled\"}", 8.0);
}

#[test]
fn an_idle_connection_says_how_long_it_is_kept_and_takes_what_comes_late() {
    let server = Server::start();
    let get = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut open = server.send(get);
    open.read_until("keep-alive: timeout=75\r\n");
    // A request that is on its way when the server is told to stop is told so.
    server.signal("-TERM");
    server.line_with("finishing open replies");
    thread::sleep(Duration::from_millis(50));
    let late = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";
    open.stream.write_all(late).unwrap();
    open.read_until("503 Service Unavailable");
    let rest = open.rest();
    assert!(
        rest.contains("connection: close") && rest.contains("shutting down"),
        "{rest}"
    );
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn slow_clients_are_given_up_while_others_are_served() {
    let server = Server::start();
    let started = Instant::now();
    let begun_head = server.send(b"GET /health HTTP/1.1\r\nhost:");
    let head =
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{";
    let begun_body = server.send(head);
    assert_eq!(server.chat(&question("Hi", 1)).status, 200);
    assert_eq!(begun_head.rest(), "");
    assert_eq!(begun_body.answer().status, 408);
    let waited = started.elapsed();
    assert!(
        waited > Duration::from_secs(8) && waited < Duration::from_secs(20),
        "{waited:?}"
    );
}

#[test]
fn a_thousand_requests_leave_nothing_behind() {
    let server = Server::start();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..250).for_each(|_| assert_eq!(server.get("/v1/models").status, 200)));
        }
    });
    // The connection that asks is one.
    server.wait_for_metric("atlas_connections", 1.0);
}
