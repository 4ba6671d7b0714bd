//! Attacks that brought a server down, or shut others out: prompts that cannot fit, memory that the
//! host does not give, slow readers, crowds, and files of the operator that others may touch.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{
    Answer, Folder, PATIENCE, Server, make_pipe, outcome, question, request, run_under, with,
};
use crate::keys::KeyFile;

/// A chat of 7.9 MB, far beyond the context.
fn far_too_long() -> Value {
    question(&"the quick brown fox ".repeat(395_000), 1)
}

/// Memory that sixteen such chats may take at once, and may leave behind: bodies and what is made
/// of them.
const TAKEN_MAX: usize = 200 << 20;
const LEFT_MAX: usize = 48 << 20;

/// A body that the server refuses for want of memory is asked again, as its client is told.
fn ask_until_taken(server: &Server, path: &str, body: &Value) -> Answer {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = server.post_to(path, body);
        if answer.status != 503 {
            return answer;
        }
        assert!(answer.head.contains("retry-after: "), "{}", answer.head);
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn prompts_that_cannot_fit_cost_little_and_leave_nothing() {
    let server = Server::start();
    assert_eq!(server.chat(&question("Hi", 1)).status, 200);
    let before = server.resident();
    let body = far_too_long();
    let peak = thread::scope(|scope| {
        let flood: Vec<_> = (0..16)
            .map(|_| scope.spawn(|| ask_until_taken(&server, "/v1/chat/completions", &body)))
            .collect();
        let mut peak = 0;
        while flood.iter().any(|client| !client.is_finished()) {
            peak = peak.max(server.resident());
            thread::sleep(Duration::from_millis(10));
        }
        for client in flood {
            let answer = client.join().unwrap();
            assert_eq!(answer.status, 400, "{}", answer.body);
            let error = answer.error();
            assert_eq!(error["code"], "context_length_exceeded");
            assert!(error["message"].as_str().unwrap().contains("at least"));
        }
        peak
    });
    assert!(peak < before + TAKEN_MAX, "{before} to {peak} bytes");
    let deadline = Instant::now() + Duration::from_secs(10);
    while server.resident() > before + LEFT_MAX {
        assert!(
            Instant::now() < deadline,
            "{} bytes stay",
            server.resident()
        );
        thread::sleep(Duration::from_millis(100));
    }
}

/// A text whose tokens are counted for half a second.
fn long_text() -> Value {
    json!({"prompt": "the quick brown fox ".repeat(40_000)})
}

#[test]
fn a_small_request_passes_large_ones() {
    let server = Server::lent();
    let (body, small) = (long_text(), question("Hi", 1));
    thread::scope(|scope| {
        let flood: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| ask_until_taken(&server, "/tokenize", &body)))
            .collect();
        // Small requests do not wait for large ones.
        for _ in 0..3 {
            assert_eq!(server.chat(&small).status, 200);
        }
        let waiting = flood.iter().filter(|client| !client.is_finished()).count();
        assert!(waiting > 0, "the large ones were answered first");
        for client in flood {
            assert_eq!(client.join().unwrap().status, 200);
        }
    });
}

#[test]
fn an_address_space_that_is_too_small_is_refused_with_the_figure() {
    for mebibytes in [150, 500, 900] {
        let limit = format!("ulimit -v {}", mebibytes * 1024);
        let output = run_under(&limit, &["serve", "--port", "0"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{mebibytes} MiB: {said}");
        assert!(said.contains(" MiB are needed for "), "{said}");
        let named = format!("the address space has a limit of {mebibytes} MiB");
        assert!(said.contains(&named), "{said}");
    }
    let server = Server::start_under("ulimit -v 2000000", &[]);
    assert_eq!(server.chat(&question("Hi", 4)).status, 200);
}

/// A control group of its own with a limit, removed with it; None where the system has none to
/// give.
struct Group(PathBuf);

impl Group {
    fn new(name: &str, limit: &str) -> Option<Group> {
        let places = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        Group::at(&places, name, limit)
    }

    /// One of so many threads.
    fn of_threads(name: &str, limit: usize) -> Option<Group> {
        let places = [
            ("/sys/fs/cgroup/pids", "pids.max"),
            ("/sys/fs/cgroup", "pids.max"),
        ];
        Group::at(&places, name, &limit.to_string())
    }

    fn at(places: &[(&str, &str)], name: &str, limit: &str) -> Option<Group> {
        places.iter().find_map(|(folder, file)| {
            let group = format!("{folder}/atlas-e2e-{}-{name}", std::process::id());
            fs::create_dir(&group).ok()?;
            let group = Group(group.into());
            fs::write(group.0.join(file), limit).ok()?;
            Some(group)
        })
    }

    /// Command that puts a shell into it.
    fn enter(&self) -> String {
        format!("echo $$ > {}/cgroup.procs", self.0.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes were killed just now.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn the_limit_of_a_control_group_bounds_what_is_taken() {
    let Some(small) = Group::new("small", "160M") else {
        println!("skipped: it needs a memory controller and root");
        return;
    };
    let output = run_under(&small.enter(), &["serve", "--port", "0"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(said.contains("has a limit of 160 MiB"), "{said}");
    let large = Group::new("large", "512M").unwrap();
    let server = Server::start_under(&large.enter(), &[]);
    let body = far_too_long();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let answer = ask_until_taken(&server, "/v1/chat/completions", &body);
                assert_eq!(answer.status, 400);
            });
        }
    });
    assert_eq!(server.chat(&question("Hi", 1)).status, 200);
    drop(server);
}

#[test]
fn threads_that_cannot_be_had_end_the_start_with_their_number() {
    let started = |limit: usize| {
        let group = Group::of_threads(&format!("threads-{limit}"), limit)?;
        let output = run_under(&group.enter(), &["serve", "--port", "0"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(69), "{limit}: {said}");
        let given = format!(" threads are needed, and the system gives {limit}: ");
        let (before, _) = said.split_once(&given).expect(&said);
        let needed = before.split_whitespace().last().unwrap();
        Some(needed.parse::<usize>().unwrap())
    };
    let Some(needed) = started(1) else {
        println!("skipped: it needs a controller of threads and root");
        return;
    };
    for limit in [2, 6, 12, 13, needed - 1] {
        assert_eq!(started(limit), Some(needed), "{limit}");
    }
    let enough = Group::of_threads("threads-enough", needed).unwrap();
    let server = Server::start_under(&enough.enter(), &[]);
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
    let body = with(
        question("Hi", 8),
        json!({"response_format": format, "n": 4}),
    );
    assert_eq!(server.chat(&body).status, 200);
    drop(server);
}

#[test]
fn no_thread_is_made_after_the_start() {
    let keys = KeyFile::new("threads", "key-0123456789abcdef");
    let server = Server::start_with(&["--api-keys-file", keys.path()]);
    // The thread that loaded the model is about to end.
    let mut ready = server.threads();
    loop {
        thread::sleep(Duration::from_millis(100));
        let now = std::mem::replace(&mut ready, server.threads());
        if now == ready {
            break;
        }
    }
    let long = json!({"prompt": "the quick brown fox ".repeat(1_000)});
    thread::scope(|scope| {
        for at in 0..12 {
            let (server, long, key) = (&server, &long, "key-0123456789abcdef");
            scope.spawn(move || {
                let pattern = format!("[a-z]{{{}}}", at + 1);
                let fields = json!({"regex": pattern, "stream": at % 2 == 0});
                let chat = with(question("Hi", 16), fields);
                let answers = [
                    server.chat_as(key, &chat),
                    server.post_as(key, "/tokenize", long),
                ];
                for answer in answers {
                    assert_eq!(answer.status, 200, "{}", answer.body);
                }
            });
        }
        server.signal("-HUP");
    });
    server.line_with("SIGHUP: 1 API keys");
    assert_eq!(server.threads(), ready);
}

/// Slots of the target under test.
const SLOTS: usize = 16;

#[test]
fn readers_that_are_slow_hold_no_slot() {
    let server = Server::start();
    let fields = json!({"stream": true, "ignore_eos": true, "n": 8, "logprobs": true,
        "top_logprobs": 20});
    // Neither is read before all replies are complete.
    let body = with(question("Go on.", 400), fields);
    let open = [server.open_chat(&body), server.open_chat(&body)];
    let finished = "atlas_requests_finished_total{reason=\"length\"}";
    server.wait_for_metric(finished, SLOTS as f64);
    server.wait_for_metric("atlas_requests_running", 0.0);
    let lying = server.metric("atlas_events_waiting_bytes");
    assert!(lying > 0.0, "{lying}");
    for open in open {
        let events = open.answer().events();
        let ends = |event: &&Value| event["choices"][0]["finish_reason"] == "length";
        assert_eq!(events.iter().filter(ends).count(), 8);
    }
    server.wait_for_metric("atlas_events_waiting_bytes", 0.0);
}

#[test]
fn a_batch_and_a_flood_take_turns_with_who_asks_one_thing() {
    let server = Server::start();
    let batch = json!({"prompt": vec!["Go on."; 40], "max_tokens": 60, "ignore_eos": true,
        "stream": true});
    let mut batches: Vec<_> = (0..2)
        .map(|_| server.open_post("/v1/completions", batch.to_string().as_bytes()))
        .collect();
    server.wait_for_metric("atlas_requests_running", SLOTS as f64);
    assert_eq!(server.chat(&question("Hi", 1)).status, 200);
    // It had its turn while others of the first batch waited for theirs.
    assert!(server.metric("atlas_requests_waiting") > 0.0);
    batches.drain(..).for_each(|batch| drop(batch.rest()));
}

#[test]
fn a_new_connection_waits_for_no_end_of_two_batches() {
    let server = Server::start();
    // They want all slots, and all pages.
    let batch = json!({"prompt": "Go on.", "n": 8, "max_tokens": 2000, "ignore_eos": true,
        "stream": true});
    let batch = batch.to_string();
    let _batches = [(); 2].map(|()| server.open_post("/v1/completions", batch.as_bytes()));
    server.wait_for_metric("atlas_requests_running", SLOTS as f64 - 1.0);
    assert_eq!(server.chat(&question("Hi", 1)).status, 200);
    // An end is counted behind its last event. Had a reply of a batch ended first, all eight had.
    let finished = "atlas_requests_finished_total{reason=\"length\"}";
    server.wait_for_metric(finished, 1.0);
}

/// Sends all of a request, however early it is refused, and reads the answer.
fn sent_whole(server: &Server, request: &[u8]) -> Answer {
    let mut connection = server.send(b"");
    connection
        .stream
        .write_all(request)
        .expect("all of it is taken");
    connection.answer()
}

/// A request with a body of so many bytes, none of them JSON.
fn bulky(method: &str, more: &str, bytes: usize) -> Vec<u8> {
    request(method, "/v1/chat/completions", more, &vec![b'x'; bytes])
}

#[test]
fn bodies_that_there_is_no_memory_for_are_told_so() {
    const CLIENTS: usize = 16;
    let server = Server::start();
    let request = bulky("POST", "", 7_900_000);
    // No body ends before all are nearly there.
    let (most, last) = request.split_at(request.len() - 1);
    let all = Barrier::new(CLIENTS);
    let ask = || {
        let mut connection = server.send(b"");
        connection
            .stream
            .write_all(most)
            .expect("all of it is taken");
        all.wait();
        // One that is refused may be gone by now; its answer is here.
        let _ = connection.stream.write_all(last);
        connection.answer().status
    };
    let statuses = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(ask)).collect();
        let statuses = clients.into_iter().map(|client| client.join().unwrap());
        statuses.collect::<Vec<_>>()
    });
    let is_told = |status: &u16| [400, 503].contains(status);
    assert!(
        statuses.iter().all(is_told) && statuses.contains(&503),
        "{statuses:?}"
    );
}

#[test]
fn an_answer_before_the_end_of_a_body_reaches_its_client() {
    let file = KeyFile::new("early", "someone-0123456789abcdef\n");
    let server = Server::start_with(&["--api-keys-file", file.path()]);
    let key = "authorization: Bearer someone-0123456789abcdef\r\n";
    let chunked = |chunks: usize| {
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             {key}transfer-encoding: chunked\r\n\r\n"
        );
        let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
        (head + &chunk.repeat(chunks) + "0\r\n\r\n").into_bytes()
    };
    for (request, status) in [
        (bulky("POST", key, 20_000_000), 413),
        (chunked(20), 413),
        (bulky("POST", "", 8_000_000), 401),
        (bulky("PUT", key, 8_000_000), 405),
        (bulky("POST", &format!("{key}host: b\r\n"), 8_000_000), 400),
        (
            bulky(
                "POST",
                &format!("{key}content-encoding: gzip\r\n"),
                8_000_000,
            ),
            415,
        ),
    ] {
        assert_eq!(sent_whole(&server, &request).status, status);
    }
}

#[test]
fn a_verb_without_its_threads_ends_with_their_number() {
    let folder = Folder::new();
    let (weights, out) = (folder.path("weights"), folder.path("out"));
    let verbs: [&[&str]; 8] = [
        &["verify"],
        &["doctor"],
        &["selftest"],
        &["bench", "decode"],
        &["generate", "Hi"],
        &["synth", &weights],
        &["pack", &weights, &out],
        &["import", &weights, &out],
    ];
    for limit in [1, 2, 5] {
        for verb in verbs {
            let name = format!("verb-{}-{limit}", verb[0]);
            let Some(group) = Group::of_threads(&name, limit) else {
                println!("skipped: it needs a controller of threads and root");
                return;
            };
            let output = run_under(&group.enter(), verb);
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(69), "{verb:?}, {limit}: {said}");
            let given = format!(" threads are needed, and the system gives {limit}: ");
            assert!(said.contains(&given), "{verb:?}, {limit}: {said}");
        }
    }
}

#[test]
fn a_client_for_whom_there_is_no_connection_is_told_so() {
    let server = Server::start_under("ulimit -n 80", &[]);
    // Some files are not for connections.
    let open: Vec<_> = (0..20).map(|_| server.send(b"")).collect();
    let refused = sent_whole(&server, &bulky("POST", "", 4_000_000));
    assert_eq!(
        (refused.status, &refused.error()["code"]),
        (503, &json!("connections"))
    );
    drop(open);
}

#[test]
fn a_pipe_that_nobody_reads_and_a_linked_dump_are_refused_by_name() {
    let folder = Folder::new();
    let [pipe, file, link] = ["pipe", "file", "link"].map(|name| folder.path(name));
    make_pipe(&pipe);
    fs::write(&file, "").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for (flag, path, problem) in [
        ("--access-log", &pipe, "a pipe that nobody reads"),
        ("--dump", &link, "a symbolic link"),
    ] {
        let (code, said) = outcome(&["serve", "--port", "0", flag, path]);
        assert_eq!(code, 78, "{said}");
        assert!(
            said.contains(flag) && said.contains(path) && said.contains(problem),
            "{said}"
        );
    }
}

#[test]
fn what_is_no_file_is_read_of_no_flag() {
    let folder = Folder::new();
    let (pipe, link, directory) = (folder.path("pipe"), folder.path("link"), folder.path(""));
    make_pipe(&pipe);
    std::os::unix::fs::symlink(&pipe, &link).unwrap();
    let out = folder.path("out");
    let serve = ["serve", "--port", "0"];
    for (arguments, path) in [
        ([&serve[..], &["--api-keys-file"]].concat(), &pipe),
        ([&serve[..], &["--api-keys-file"]].concat(), &directory),
        ([&serve[..], &["--warm"]].concat(), &link),
        ([&serve[..], &["--config"]].concat(), &pipe),
        ([&serve[..], &["--golden"]].concat(), &link),
        (vec!["try", "Hi", "--key-file"], &pipe),
        (
            vec![
                "bench",
                "serve",
                "--url",
                "http://127.0.0.1:1",
                "--key-file",
            ],
            &pipe,
        ),
        (vec!["logits", &directory, "--out", &out, "--tokens"], &pipe),
        (vec!["batch"], &link),
    ] {
        let mut all = [&arguments[..], &[path]].concat();
        if arguments == ["batch"] {
            all.push(&out);
        }
        let (code, said) = outcome(&all);
        assert!(code != 0, "{all:?}: {said}");
        assert!(said.contains("is no regular file"), "{all:?}: {said}");
    }
}
