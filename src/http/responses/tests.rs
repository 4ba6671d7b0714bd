//! The Responses API on a real socket, over an executor that follows a script.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::testing::{Answer, Connection, PATIENCE, Script, TestServer, with};

const PATH: &str = "/v1/responses";
const CALL: &str = "Look:\n<tool_call>\n<function=n.f>\n<parameter=a>\nx y\n</parameter>\n\
    </function>\n</tool_call>";

fn question(fields: Value) -> Value {
    let body = json!({"model": "gpt-any", "input": "hi", "reasoning": {"effort": "none"}});
    with(body, fields)
}

fn ask(server: &TestServer, fields: Value) -> Answer {
    server.post(PATH, &question(fields)).answer()
}

fn tools() -> Value {
    let function = json!({"type": "function", "name": "f", "parameters": {"type": "object",
        "properties": {"a": {"type": "string"}}}});
    json!([{"type": "namespace", "name": "n", "tools": [function]}, {"type": "web_search"}])
}

/// The response of the last event; events are numbered and only the last one is terminal.
fn last(answer: &Answer) -> Value {
    let events = answer.named_events();
    let terminal =
        ["completed", "incomplete", "failed", "cancelled"].map(|kind| format!("response.{kind}"));
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], at);
        let ends = terminal.iter().any(|kind| event["type"] == kind.as_str());
        assert_eq!(ends, at + 1 == events.len(), "{event}");
    }
    events.last().unwrap()["response"].clone()
}

#[test]
fn a_whole_response_has_output_status_and_usage() {
    let server = TestServer::start(Script::text("Hé 🦀!"));
    let answer = ask(&server, json!({"metadata": {"k": "v"}}));
    assert_eq!(answer.status, 200);
    let response = answer.json();
    assert_eq!(response["status"], "completed");
    assert_eq!(response["output"][0]["content"][0]["text"], "Hé 🦀!");
    assert_eq!(response["model"], "scripted");
    assert_eq!(response["metadata"], json!({"k": "v"}));
    let usage = &response["usage"];
    assert_eq!(usage["output_tokens"], "Hé 🦀!".len() + 1);
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], 0);
    assert_eq!(usage["input_tokens_details"]["cached_tokens"], 0);
}

#[test]
fn a_streamed_response_adds_up_to_the_whole_one() {
    let server = TestServer::start(Script::text("why\n</think>\n\nBecause é."));
    let effort = json!({"effort": "high"});
    let whole = ask(&server, json!({"reasoning": effort})).json();
    let answer = ask(&server, json!({"reasoning": effort, "stream": true}));
    assert!(answer.head.contains("content-type: text/event-stream"));
    let streamed = last(&answer);
    for at in 0..2 {
        assert_eq!(
            streamed["output"][at]["content"],
            whole["output"][at]["content"]
        );
    }
    assert_eq!(whole["output"][0]["content"][0]["text"], "why");
    assert_eq!(whole["output"][1]["content"][0]["text"], "Because é.");
    assert_eq!(streamed["usage"], whole["usage"]);
    let spoken = whole["usage"]["output_tokens_details"]["reasoning_tokens"]
        .as_u64()
        .unwrap();
    assert_eq!(spoken, "why\n".len() as u64 + 1);
    let deltas: String = answer
        .named_events()
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta")
        .filter_map(|event| event["delta"].as_str().map(str::to_string))
        .collect();
    assert_eq!(deltas, "Because é.");
}

#[test]
fn calls_keep_their_namespace_and_come_back_with_their_output() {
    let server = TestServer::start(Script::text(CALL));
    let first = ask(&server, json!({"tools": tools()})).json();
    let call = first["output"][1].clone();
    assert_eq!(
        (&call["namespace"], &call["name"]),
        (&json!("n"), &json!("f"))
    );
    assert_eq!(call["arguments"], "{\"a\":\"x y\"}");
    let mut input = vec![json!({"role": "user", "content": "hi"})];
    input.extend(first["output"].as_array().unwrap().iter().cloned());
    input.push(
        json!({"type": "function_call_output", "call_id": call["call_id"],
        "output": "done"}),
    );
    let second = ask(&server, json!({"tools": tools(), "input": input}));
    assert_eq!(second.status, 200, "{second:?}");
}

#[test]
fn a_length_makes_the_response_incomplete() {
    let server = TestServer::start(Script::endless());
    for stream in [false, true] {
        let answer = ask(&server, json!({"max_output_tokens": 5, "stream": stream}));
        let response = if stream { last(&answer) } else { answer.json() };
        assert_eq!(response["status"], "incomplete");
        assert_eq!(
            response["incomplete_details"]["reason"],
            "max_output_tokens"
        );
        assert_eq!(response["usage"]["output_tokens"], 5);
    }
}

#[test]
fn a_stored_response_is_found_continued_and_deleted() {
    let server = TestServer::start(Script::text("a"));
    let first = last(&ask(&server, json!({"stream": true})));
    let path = format!("{PATH}/{}", first["id"].as_str().unwrap());
    assert_eq!(server.get(&path).json(), first);
    let next = json!({"previous_response_id": first["id"], "input": "and?"});
    let second = ask(&server, next.clone()).json();
    let tokens = |response: &Value| response["usage"]["input_tokens"].as_u64().unwrap();
    assert!(tokens(&second) > tokens(&first), "{second}");
    assert_eq!(second["previous_response_id"], first["id"]);

    let cancel = server.ask("POST", &format!("{path}/cancel"), "");
    assert_eq!(cancel.status, 400);
    let deleted = server.ask("DELETE", &path, "");
    assert_eq!(deleted.json()["deleted"], true);
    for (method, path) in [("GET", path.clone()), ("POST", format!("{path}/cancel"))] {
        assert_eq!(server.ask(method, &path, "").status, 404);
    }
    let gone = ask(&server, next);
    assert_eq!(
        (gone.status, &gone.error()["code"]),
        (404, &json!("previous_response_not_found"))
    );
}

#[test]
fn a_response_that_is_not_to_be_stored_is_not() {
    let server = TestServer::start(Script::text("a"));
    let response = ask(&server, json!({"store": false})).json();
    let path = format!("{PATH}/{}", response["id"].as_str().unwrap());
    assert_eq!(server.get(&path).status, 404);
    assert_eq!(response["store"], false);
}

/// The id of the response that a stream has begun.
fn begun(stream: &mut Connection) -> String {
    stream.read_until("output_text.delta");
    let text = stream.so_far();
    let at = text.find("resp_").unwrap();
    text[at..].split('"').next().unwrap().to_string()
}

/// Waits until so many responses are known by their ids, and as many replies are generated.
fn wait_for_running(server: &TestServer, count: usize) {
    server.wait_for(|stats| stats.running.get() == count as u64);
    let deadline = Instant::now() + PATIENCE;
    while server.state.running.ids().len() != count {
        assert!(Instant::now() < deadline, "{:?}", server.state.running);
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_running_response_is_cancelled_by_its_id() {
    let server = TestServer::start(Script::endless());
    let mut stream = server.post(PATH, &question(json!({"stream": true})));
    let path = format!("{PATH}/{}", begun(&mut stream));
    let running = server.get(&path).json();
    assert_eq!(running["status"], "in_progress", "{running}");
    assert_eq!(running["object"], "response");

    let cancelled = server.ask("POST", &format!("{path}/cancel"), "");
    assert_eq!(
        (cancelled.status, &cancelled.json()["status"]),
        (200, &json!("cancelled"))
    );
    let end = last(&stream.answer());
    assert_eq!(
        (&end["status"], &end["error"]),
        (&json!("cancelled"), &json!(null))
    );
    assert_eq!(end["output"][0]["status"], "incomplete");
    wait_for_running(&server, 0);
    // It is stored as it ended, and may be cancelled once more.
    assert_eq!(server.get(&path).json(), end);
    assert_eq!(
        server.ask("POST", &format!("{path}/cancel"), "").json(),
        end
    );
}

#[test]
fn the_input_of_a_stored_response_is_listed() {
    let server = TestServer::start(Script::text("a"));
    let id = ask(&server, json!({})).json()["id"].clone();
    let path = format!("{PATH}/{}/input_items", id.as_str().unwrap());
    let page = server.get(&format!("{path}?limit=1&order=asc")).json();
    assert_eq!(
        (&page["object"], &page["has_more"]),
        (&json!("list"), &json!(false))
    );
    assert_eq!(page["data"][0]["role"], "user");
    assert_eq!(
        server.get(&format!("{path}?limit=0")).error()["param"],
        "limit"
    );
    assert_eq!(
        server.get(&format!("{PATH}/resp_x/input_items")).status,
        404
    );
}

#[test]
fn a_reply_goes_on_with_a_last_item_that_is_not_complete() {
    let server = TestServer::start(Script::text(" is Rome"));
    let goes_on = |status: &str| {
        let said = json!({"role": "assistant", "content": "The capital", "status": status});
        let body = json!({"input": [{"role": "user", "content": "hi"}, said]});
        let id = server.post(PATH, &body).answer().json()["id"].clone();
        let stored = server.state.responses.of(None).get(id.as_str().unwrap());
        let history: Value = serde_json::from_str(&stored.unwrap().history).unwrap();
        history.as_array().unwrap()[1..]
            .iter()
            .map(|one| one["content"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(goes_on("incomplete"), ["The capital is Rome"]);
    assert_eq!(goes_on("completed").len(), 2);
}

#[test]
fn a_running_response_that_is_deleted_ends_and_is_not_stored() {
    let server = TestServer::start(Script::endless());
    for stream in [true, false] {
        let open = server.post(PATH, &question(json!({"stream": stream})));
        wait_for_running(&server, 1);
        let id = server.state.running.ids().remove(0);
        let path = format!("{PATH}/{id}");
        let deleted = server.ask("DELETE", &path, "").json();
        let expected = json!({"id": id, "object": "response", "deleted": true});
        assert_eq!(deleted, expected);
        let answer = open.answer();
        let end = if stream { last(&answer) } else { answer.json() };
        assert_eq!(end["status"], "cancelled");
        wait_for_running(&server, 0);
        for method in ["GET", "DELETE"] {
            assert_eq!(server.ask(method, &path, "").status, 404);
        }
    }
}

#[test]
fn a_whole_answer_is_cancelled_too() {
    let server = TestServer::start(Script::endless());
    let waiting = server.post(PATH, &question(json!({})));
    wait_for_running(&server, 1);
    let id = server.state.running.ids().remove(0);
    let cancelled = server.ask("POST", &format!("{PATH}/{id}/cancel"), "");
    assert_eq!(cancelled.status, 200);
    let answer = waiting.answer();
    assert_eq!(
        (answer.status, &answer.json()["status"]),
        (200, &json!("cancelled"))
    );
    wait_for_running(&server, 0);
}

#[test]
fn a_response_whose_client_leaves_is_not_known_any_more() {
    let server = TestServer::start(Script::endless());
    for stream in [true, false] {
        let open = server.post(PATH, &question(json!({"stream": stream})));
        wait_for_running(&server, 1);
        drop(open);
        wait_for_running(&server, 0);
    }
}

#[test]
fn a_response_is_streamed_to_who_asked_for_it_alone() {
    let server = TestServer::start(Script::text("a"));
    let response = ask(&server, json!({})).json();
    let path = format!("{PATH}/{}", response["id"].as_str().unwrap());
    let again = server.get(&format!("{path}?include=x&stream=true"));
    assert_eq!(
        (again.status, &again.error()["param"]),
        (400, &json!("stream"))
    );
    assert_eq!(server.get(&format!("{path}?stream=false")).json(), response);
}

#[test]
fn a_failure_amid_a_stream_is_a_failed_response() {
    let server = TestServer::start(Script {
        fails_at: Some(20),
        ..Script::endless()
    });
    let response = last(&ask(&server, json!({"stream": true})));
    assert_eq!(response["status"], "failed");
    assert_eq!(response["error"]["code"], "server_error");
}

#[test]
fn a_quiet_stream_is_kept_alive_with_comments() {
    let step = Duration::from_millis(200);
    let mut server = TestServer::start(Script {
        step,
        ..Script::text("ab")
    });
    let mut open = server.post(PATH, &question(json!({"stream": true})));
    open.read_until("output_text.delta");
    server.hurry();
    let answer = open.answer();
    assert!(answer.body.contains(": keep-alive\n\n"));
    assert!(answer.body.contains("response.completed"));
}

#[test]
fn the_count_is_what_the_request_costs() {
    let server = TestServer::start(Script::text("a"));
    let body = question(json!({"instructions": "Be kind.", "tools": tools()}));
    let used = server.post(PATH, &body).answer().json()["usage"]["input_tokens"].clone();
    let counted = server.post("/v1/responses/input_tokens", &body).answer();
    let expected = json!({"object": "response.input_tokens", "input_tokens": used});
    assert_eq!(counted.json(), expected);
}

#[test]
fn errors_have_the_shape_of_the_api() {
    let server = TestServer::start(Script::text("a"));
    let refused = ask(&server, json!({"background": true}));
    assert_eq!(
        (refused.status, &refused.error()["param"]),
        (400, &json!("background"))
    );
    assert_eq!(server.ask("GET", "/v1/responses/resp_x/y", "").status, 404);
    let method = server.ask("PUT", "/v1/responses/resp_x", "");
    assert_eq!(method.status, 405);
    assert!(method.head.contains("allow: get, head, delete"));
    let long = ask(&server, json!({"input": "x".repeat(5000)}));
    assert_eq!(long.error()["code"], "context_length_exceeded");
    assert_eq!(long.error()["param"], "input");
}

/// The bytes of all positions.
fn position_bytes(positions: &Value) -> Vec<u8> {
    let positions = positions.as_array().unwrap().iter();
    let bytes = positions.flat_map(|position| position["bytes"].as_array().unwrap());
    bytes.map(|byte| byte.as_u64().unwrap() as u8).collect()
}

#[test]
fn logprobs_are_those_of_the_answers_text() {
    for (script, thinks, at, text) in [
        ("why\n</think>\n\nBecause é.", true, 1, "Because é."),
        (CALL, false, 0, "Look:"),
    ] {
        let server = TestServer::start(Script::text(script));
        let mut fields = json!({"include": ["message.output_text.logprobs"], "top_logprobs": 2,
            "tools": tools()});
        if thinks {
            fields["reasoning"] = json!({"effort": "high"});
        }
        let whole = ask(&server, fields.clone()).json();
        assert_eq!(whole["top_logprobs"], 2);
        let part = &whole["output"][at]["content"][0];
        assert_eq!(part["text"], text);
        assert_eq!(position_bytes(&part["logprobs"]), text.as_bytes());
        let top = part["logprobs"][0]["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 2);
        fields["stream"] = json!(true);
        let answer = ask(&server, fields);
        let streamed = last(&answer);
        assert_eq!(
            streamed["output"][at]["content"],
            whole["output"][at]["content"]
        );
        let events = answer.named_events().into_iter();
        let deltas: Vec<Value> = events
            .filter(|event| event["type"] == "response.output_text.delta")
            .flat_map(|event| event["logprobs"].as_array().unwrap().clone())
            .collect();
        assert_eq!(Value::from(deltas), part["logprobs"]);
    }
}

/// The client searched for a tool; this request and one that continues its answer may call it.
#[test]
fn a_tool_that_a_search_found_is_called_as_its_client_knows_it() {
    let call = CALL.replace("x y", "5");
    let server = TestServer::start(Script::text(&call));
    let function = json!({"type": "function", "name": "f", "parameters": {"type": "object",
        "properties": {"a": {"type": "integer"}}}});
    let found = json!([{"type": "namespace", "name": "n", "tools": [function]}]);
    let search = json!([{"type": "tool_search", "execution": "client"}]);
    let first = json!({"tools": search, "input": [
        {"role": "user", "content": "hi"},
        {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {}},
        {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": found}]});
    let mut response = ask(&server, first).json();
    for _ in 0..2 {
        let called = &response["output"][1];
        assert_eq!(called["namespace"], "n", "{response}");
        assert_eq!(called["arguments"], r#"{"a":5}"#);
        let output = json!([{"type": "function_call_output", "call_id": called["call_id"],
            "output": "x"}]);
        let fields = json!({"tools": search, "previous_response_id": response["id"],
            "input": output});
        response = ask(&server, fields).json();
    }
}

#[test]
fn what_is_not_enforced_is_reported() {
    let server = TestServer::start(Script::text("[]"));
    let schema = json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true});
    let format = json!({"type": "json_schema", "name": "s", "schema": schema});
    let fields = json!({"text": {"format": format}});
    let whole = ask(&server, fields.clone()).json();
    assert!(
        whole["warnings"][0]
            .as_str()
            .unwrap()
            .contains("uniqueItems"),
        "{whole}"
    );
    assert_eq!(ask(&server, json!({})).json().get("warnings"), None);
    let mut streamed = fields;
    streamed["stream"] = json!(true);
    assert_eq!(last(&ask(&server, streamed))["warnings"], whole["warnings"]);
}

#[test]
fn a_grammar_that_is_not_enforced_is_reported() {
    let server = TestServer::start(Script::text("a"));
    let format = json!({"type": "grammar", "syntax": "regex", "definition": "a+"});
    let tool = json!({"type": "custom", "name": "patch", "format": format});
    let response = ask(&server, json!({"tools": [tool]})).json();
    let warnings = response["warnings"].as_array().unwrap();
    assert!(
        warnings[0].as_str().unwrap().ends_with(": patch"),
        "{response}"
    );
}
