//! Files of requests, answered without a server.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{BINARY, Folder, PATIENCE, Server, kill, outcome, with};

fn request(id: &str, url: &str, body: &Value) -> String {
    json!({"custom_id": id, "method": "POST", "url": url, "body": body}).to_string()
}

fn question(text: &str, fields: Value) -> Value {
    let body = json!({"messages": [{"role": "user", "content": text}], "max_tokens": 48});
    with(body, fields)
}

/// The whole lines of a file of answers; none where there is none yet.
fn lines(path: &str) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    whole
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Bodies of the answers by their names, each of which stands once.
fn answers(path: &str) -> BTreeMap<String, Value> {
    let lines = lines(path);
    let count = lines.len();
    let name = |line: &Value| line["custom_id"].as_str().unwrap_or_default().to_string();
    let named: BTreeMap<_, _> = lines.into_iter().map(|line| (name(&line), line)).collect();
    assert_eq!(named.len(), count, "a name stands twice");
    named
}

/// An answer without what no two answers share.
fn plain(mut body: Value) -> Value {
    for field in ["id", "created", "created_at", "completed_at", "request_id"] {
        body.as_object_mut().unwrap().remove(field);
    }
    for item in body["output"].as_array_mut().into_iter().flatten() {
        item.as_object_mut().unwrap().remove("id");
    }
    body
}

#[test]
fn each_answer_has_the_bits_that_it_has_over_http() {
    let folder = Folder::new();
    let (input, output) = (folder.path("in"), folder.path("out"));
    let capital = "What is the capital of France?";
    let user = json!([{"role": "user", "content": capital}]);
    let scored = json!({"logprobs": true, "top_logprobs": 3, "temperature": 0});
    let drawn = json!({"temperature": 1.0, "seed": 7, "n": 3});
    let asked = [
        ("/v1/chat/completions", question(capital, scored)),
        ("/v1/chat/completions", question(capital, drawn)),
        (
            "/v1/completions",
            json!({"prompt": ["One, two", "Paris is"], "seed": 3}),
        ),
        (
            "/v1/responses",
            json!({"input": capital, "max_output_tokens": 48, "seed": 5}),
        ),
        (
            "/v1/messages",
            json!({"messages": user, "max_tokens": 48, "temperature": 0}),
        ),
        ("/v1/messages/count_tokens", json!({"messages": user})),
        ("/tokenize", json!({"prompt": capital})),
        (
            "/v1/chat/completions",
            question(capital, json!({"temperature": 9})),
        ),
        ("/v1/embeddings", json!({"input": capital})),
    ];
    let name = |at: usize| format!("request {at}");
    let text = asked.iter().enumerate();
    let text = text.map(|(at, (url, body))| request(&name(at), url, body) + "\n");
    fs::write(&input, text.collect::<String>()).unwrap();
    let (code, said) = outcome(&["batch", &input, &output]);
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("9 requests are answered, 2 of them with an error"),
        "{said}"
    );
    let found = answers(&output);
    let server = Server::start();
    for (at, (url, body)) in asked.iter().enumerate() {
        let over_http = server.post_to(url, body);
        let response = &found[&name(at)]["response"];
        assert_eq!(response["status_code"], over_http.status, "{url}");
        assert!(response["request_id"].as_str().unwrap().starts_with("req_"));
        let body = plain(response["body"].clone());
        // Prompts of the run before may be kept, which usage tells.
        assert_eq!(uncached(body), uncached(plain(over_http.json())), "{url}");
    }
}

fn uncached(mut body: Value) -> Value {
    for name in [
        "prompt_tokens_details",
        "input_tokens_details",
        "cache_read_input_tokens",
    ] {
        if let Some(usage) = body["usage"].as_object_mut() {
            usage.remove(name);
        }
    }
    body
}

#[test]
fn what_is_no_request_is_told_with_line_and_field_and_the_rest_goes_on() {
    let folder = Folder::new();
    let (input, output) = (folder.path("in"), folder.path("out"));
    let fine = request(
        "fine",
        "/v1/chat/completions",
        &question("Hello", json!({})),
    );
    let streamed = question("Hello", json!({"stream": true}));
    let text = [
        "not JSON".to_string(),
        fine.replace("fine", "get").replace("POST", "GET"),
        String::new(),
        fine.clone(),
        fine.replace("\"fine\"", "4"),
        request("streamed", "/v1/chat/completions", &streamed),
    ];
    fs::write(&input, text.join("\n")).unwrap();
    let (code, said) = outcome(&["batch", &input, &output]);
    assert_eq!(code, 0, "{said}");
    let found = lines(&output);
    assert_eq!(found.len(), 5);
    let error = |line: usize| {
        let found = found.iter().find(|found| found["error"]["line"] == line);
        found.unwrap()["error"].clone()
    };
    assert!(
        error(1)["message"]
            .as_str()
            .unwrap()
            .starts_with("line 1: ")
    );
    assert_eq!(error(2)["message"], "line 2: method: must be \"POST\"");
    assert_eq!(error(5)["param"], "custom_id");
    let named = |name: &str| {
        found
            .iter()
            .find(|found| found["custom_id"] == name)
            .unwrap()
    };
    assert_eq!(named("fine")["response"]["status_code"], 200);
    assert_eq!(named("streamed")["error"]["param"], "body.stream");
    let (code, said) = outcome(&["batch", &input, &output]);
    assert!(
        code == 0 && said.contains("5 of 5 requests are answered already"),
        "{said}"
    );
    assert_eq!(lines(&output), found, "the second run has nothing to do");
}

#[test]
fn names_that_stand_twice_are_refused_with_their_lines() {
    let folder = Folder::new();
    let (input, output) = (folder.path("in"), folder.path("out"));
    let line = request("a", "/v1/chat/completions", &question("Hello", json!({})));
    fs::write(
        &input,
        format!("{line}\n{}\n{line}\n", line.replace("\"a\"", "\"b\"")),
    )
    .unwrap();
    let (code, said) = outcome(&["batch", &input, &output]);
    assert!(
        code == 78 && said.contains("\"a\" on lines 1 and 3"),
        "{code} {said}"
    );
    assert!(!fs::exists(&output).unwrap());
    let (code, said) = outcome(&["batch", &folder.path("none"), &output]);
    assert!(code == 74 && said.contains("none"), "{code} {said}");
}

#[test]
fn what_is_appended_while_it_is_answered_is_for_the_next_run() {
    let folder = Folder::new();
    let (input, output) = (folder.path("in"), folder.path("out"));
    let body = question("Hello", json!({"max_tokens": 4}));
    let line = |id: &str| request(id, "/v1/chat/completions", &body) + "\n";
    let text: String = (0..80).map(|at| line(&at.to_string())).collect();
    fs::write(&input, &text).unwrap();
    let mut running = Running::start(&input, &output);
    running.wait_for(&output, 1);
    // One that is under way, one that is answered, one of another request, half of one.
    let more = [line("79"), line("0"), line("late"), "{\"custom".to_string()];
    fs::write(&input, format!("{text}{}", more.concat())).unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
    let first = answers(&output);
    assert_eq!((first.len(), first.contains_key("late")), (80, false));
    let (code, said) = outcome(&["batch", &input, &output]);
    assert!(code == 78 && said.contains("stands twice"), "{said}");
    fs::write(&input, text + &line("late")).unwrap();
    let (code, said) = outcome(&["batch", &input, &output]);
    assert_eq!((code, answers(&output).len()), (0, 81), "{said}");
}

#[test]
fn a_file_in_the_place_of_what_is_answered_is_for_the_next_run() {
    let folder = Folder::new();
    let (input, output, newer) = (folder.path("in"), folder.path("out"), folder.path("newer"));
    let body = question("Hello", json!({"max_tokens": 4}));
    let line = |id: String| request(&id, "/v1/chat/completions", &body) + "\n";
    fs::write(
        &input,
        (0..80)
            .map(|at| line(format!("old-{at}")))
            .collect::<String>(),
    )
    .unwrap();
    fs::write(&newer, line("new".to_string())).unwrap();
    let mut running = Running::start(&input, &output);
    running.wait_for(&output, 1);
    fs::rename(&newer, &input).unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
    let answers = answers(&output);
    assert_eq!((answers.len(), answers.contains_key("new")), (80, false));
}

#[test]
fn a_file_that_is_cut_while_it_is_answered_is_told() {
    let folder = Folder::new();
    let (input, output) = (folder.path("in"), folder.path("out"));
    let body = question("Hello", json!({"max_tokens": 4}));
    let line = |id: usize| request(&id.to_string(), "/v1/chat/completions", &body) + "\n";
    let text: String = (0..400).map(line).collect();
    fs::write(&input, &text).unwrap();
    let mut running = Running::start(&input, &output);
    running.wait_for(&output, 1);
    fs::File::options()
        .write(true)
        .open(&input)
        .unwrap()
        .set_len(1000)
        .unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(78));
    // Answers that were written are kept, and the whole file goes on from there.
    fs::write(&input, &text).unwrap();
    assert_eq!(outcome(&["batch", &input, &output]).0, 0);
    assert_eq!(answers(&output).len(), 400);
}

/// A run in the background.
struct Running(Child);

impl Running {
    fn start(input: &str, output: &str) -> Running {
        let mut command = Command::new(&*BINARY);
        command.args(["batch", input, output]);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        Running(command.spawn().unwrap())
    }

    /// Waits until it has written `count` lines.
    fn wait_for(&self, output: &str, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        while lines(output).len() < count {
            assert!(Instant::now() < deadline, "it writes nothing");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends it by `signal` once it has written `count` lines; its exit code.
    fn end(mut self, signal: &str, output: &str, count: usize) -> Option<i32> {
        self.wait_for(output, count);
        kill(&self.0, signal);
        self.0.wait().unwrap().code()
    }
}

#[test]
fn a_run_that_was_killed_or_stopped_goes_on_and_each_request_has_one_answer() {
    let folder = Folder::new();
    let (input, output) = (folder.path("in"), folder.path("out"));
    let count = 240;
    let text = (0..count).map(|at| {
        let body = question(&format!("What is {at} + 3?"), json!({"max_tokens": 24}));
        request(&format!("sum {at}"), "/v1/chat/completions", &body) + "\n"
    });
    fs::write(&input, text.collect::<String>()).unwrap();
    assert_eq!(
        Running::start(&input, &output).end("-KILL", &output, 3),
        None
    );
    let killed = answers(&output);
    // A line that was cut by a kill.
    let torn = fs::read_to_string(&output).unwrap() + "{\"id\":\"batch_req_0\",\"custom";
    fs::write(&output, torn).unwrap();
    let code = Running::start(&input, &output).end("-TERM", &output, killed.len() + 3);
    assert_eq!(code, Some(75));
    let stopped = answers(&output);
    assert!(
        killed.len() < stopped.len() && stopped.len() < count,
        "{}",
        stopped.len()
    );
    let (code, said) = outcome(&["batch", &input, &output]);
    assert_eq!(code, 0, "{said}");
    let found = answers(&output);
    assert!(stopped.iter().all(|(name, line)| found[name] == *line));
    let wanted: HashSet<_> = (0..count).map(|at| format!("sum {at}")).collect();
    assert_eq!(found.into_keys().collect::<HashSet<_>>(), wanted);
}
