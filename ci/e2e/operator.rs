//! Records and sockets that the operator's flags open.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Answer, Folder, PATIENCE, Server, run, run_under};

#[test]
fn the_access_log_has_a_line_for_each_request_and_none_of_its_text() {
    let folder = Folder::new();
    let file = folder.path("access");
    let server = Server::start_with(&["--access-log", &file]);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let headers =
        format!("x-request-id: mine-1\r\ntraceparent: 00-{trace}-00f067aa0ba902b7-01\r\n");
    let body = json!({
        "messages": [{"role": "user", "content": "zanzibar"}],
        "max_tokens": 5,
        "ignore_eos": true,
        "stream": true,
    });
    let answer = server.ask("POST", "/v1/chat/completions", &headers, &body.to_string());
    assert!(answer.head.contains("x-request-id: mine-1\r\n"));
    assert_eq!(server.get("/v1/models/zanzibar").status, 404);
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
    let text = fs::read_to_string(&file).unwrap();
    assert!(!text.contains("zanzibar"), "{text}");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2, "{text}");
    let [chat, model] = [&lines[0], &lines[1]];
    assert_eq!(
        (&chat["id"], &chat["trace_id"]),
        (&json!("mine-1"), &json!(trace))
    );
    assert_eq!(chat["finish_reasons"], json!(["length"]));
    assert_eq!(chat["completion_tokens"], 5);
    assert!(chat["prompt_tokens"].as_u64().unwrap() > 5);
    assert!(chat["ttft_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(model["route"], "/v1/models/{id}");
    assert_eq!(
        (&model["status"], &model["trace_id"]),
        (&json!(404), &Value::Null)
    );
}

fn get(server: &Server, headers: &str) -> Answer {
    let head = format!("GET /version HTTP/1.1\r\nconnection: close\r\n{headers}\r\n");
    server.send(head.as_bytes()).answer()
}

#[test]
fn a_server_of_this_machine_answers_to_the_names_that_it_is_told() {
    let server = Server::start();
    let port = server.address.port();
    assert_eq!(
        get(&server, &format!("host: 127.0.0.1:{port}\r\n")).status,
        200
    );
    let rebound = get(&server, &format!("host: evil.example:{port}\r\n"));
    assert_eq!(rebound.status, 403);
    assert_eq!(rebound.error()["code"], "host_not_allowed");
    let server = Server::start_with(&["--allow-host", "spark.local"]);
    assert_eq!(get(&server, "host: spark.local\r\n").status, 200);
    assert_eq!(get(&server, "host: localhost\r\n").status, 200);
    assert_eq!(get(&server, "host: evil.example\r\n").status, 403);
}

#[test]
fn a_page_of_another_origin_is_served_where_it_is_listed() {
    let flags = [
        "--allow-origin",
        "https://chat.example",
        "--allow-origin",
        "http://b:3000",
    ];
    let server = Server::start_with(&flags);
    for origin in ["https://chat.example", "http://b:3000"] {
        let answer = get(&server, &format!("host: localhost\r\norigin: {origin}\r\n"));
        assert_eq!(answer.status, 200);
        let granted = format!("access-control-allow-origin: {origin}\r\n");
        assert!(answer.head.contains(&granted), "{}", answer.head);
        assert!(answer.head.contains("vary: origin"), "{}", answer.head);
    }
    let refused = get(
        &server,
        "host: localhost\r\norigin: https://evil.example\r\n",
    );
    assert_eq!(refused.status, 403);
    assert!(
        !refused.head.contains("access-control-allow-origin"),
        "{}",
        refused.head
    );
    for flag in ["--allow-origin=chat.example", "--allow-host=a:80"] {
        let run = run(&["serve", flag]);
        assert_eq!(run.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&run.stderr).contains("must be "));
    }
}

/// The answer to `GET /version` over a socket in the file system.
fn version_over(path: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = b"GET /version HTTP/1.1\r\nhost: any.name\r\nconnection: close\r\n\r\n";
    stream.write_all(head).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_socket_is_served_replaced_after_a_kill_and_removed_at_the_end() {
    let folder = Folder::new();
    let file = folder.path("socket");
    let flags = ["--socket", &file];
    let killed = Server::start_elsewhere(&flags);
    assert!(version_over(&file).starts_with("HTTP/1.1 200 "));
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let second = run(&["serve", "--socket", &file]);
    assert_eq!(second.status.code(), Some(69));
    assert!(String::from_utf8_lossy(&second.stderr).contains("another server listens"));
    killed.signal("-KILL");
    killed.wait();
    assert!(Path::new(&file).exists());
    let server = Server::start_elsewhere(&flags);
    assert!(version_over(&file).starts_with("HTTP/1.1 200 "));
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
    assert!(!Path::new(&file).exists());
    let both = run(&["serve", "--socket", &file, "--port", "0"]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn what_is_recorded_can_be_replayed() {
    let folder = Folder::new();
    let file = folder.path("dump");
    let server = Server::start_with(&["--dump", &file]);
    let chat = json!({
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 12,
        "temperature": 0,
    });
    let mut streamed = chat.clone();
    streamed["stream"] = json!(true);
    assert_eq!(server.post_to("/v1/messages", &streamed).status, 200);
    assert_eq!(server.chat(&streamed).status, 200);
    assert_eq!(server.chat(&chat).status, 200);
    assert_eq!(server.post(b"{").answer().status, 400);
    assert_eq!(server.get("/version").status, 200);
    server.signal("-TERM");
    server.wait();
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let statuses: Vec<u64> = lines
        .iter()
        .map(|line| line["status"].as_u64().unwrap())
        .collect();
    assert_eq!(statuses, [200, 200, 200, 400]);
    assert_eq!(lines[2]["request"], chat.to_string());
    assert!(
        lines[1]["response"]
            .as_str()
            .unwrap()
            .ends_with("data: [DONE]\n\n")
    );

    let again = Server::start();
    let url = format!("http://{}", again.address);
    let replay = |dump: &str| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/replay.py");
        Command::new("python3").args([script, dump, &url]).output()
    };
    let Ok(same) = replay(&file) else {
        println!("python3 is missing: nothing is replayed");
        return;
    };
    let said = String::from_utf8_lossy(&same.stdout).into_owned();
    assert!(
        same.status.success() && said.contains("4 requests, 0 differ"),
        "{same:?}"
    );
    // Equal requests, recorded with other answers.
    let other = folder.path("other");
    fs::write(&other, text.replace("Paris", "Berlin")).unwrap();
    let other = replay(&other).unwrap();
    assert_eq!(other.status.code(), Some(1), "{other:?}");
}

/// Line of the shell under which files have room for a few lines.
const SMALL_FILES: &str = "trap '' XFSZ; ulimit -f 3";

#[test]
fn a_disk_that_is_full_leaves_whole_lines() {
    let folder = Folder::new();
    let [log, dump, input, output] = ["log", "dump", "in", "out"].map(|name| folder.path(name));
    let flags = ["--access-log", &log, "--dump", &dump];
    let server = Server::start_under(SMALL_FILES, &flags);
    for at in 0..16 {
        let body = json!({"prompt": "a".repeat(20 + at), "max_tokens": 1});
        assert_eq!(server.post_to("/v1/completions", &body).status, 200);
    }
    server.line_with("lines are lost");
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
    let request = |at: usize| {
        let body = json!({"prompt": "a", "max_tokens": 1});
        json!({"custom_id": at.to_string(), "method": "POST", "url": "/v1/completions",
            "body": body})
    };
    let requests: Vec<String> = (0..16).map(|at| request(at).to_string()).collect();
    fs::write(&input, requests.join("\n")).unwrap();
    let done = run_under(SMALL_FILES, &["batch", &input, &output]);
    assert_eq!(done.status.code(), Some(74), "{done:?}");
    for file in [&log, &dump, &output] {
        let text = fs::read_to_string(file).unwrap();
        assert!(text.ends_with('\n'), "{file}: {text}");
        for line in text.lines() {
            assert!(
                serde_json::from_str::<Value>(line).is_ok(),
                "{file}: {line}"
            );
        }
    }
}

#[test]
fn a_log_that_cannot_be_written_is_refused_at_the_start() {
    let run = run(&["serve", "--port", "0", "--access-log", "/nowhere/log"]);
    assert_eq!(run.status.code(), Some(78));
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(text.contains("--access-log /nowhere/log: "), "{text}");
}
