//! The Messages API on a real socket, over an executor that follows a script.

use std::time::Duration;

use serde_json::{Value, json};

use super::request::MessagesRequest;
use crate::testing::{Answer, Connection, Script, TestServer, with};
use step::testing::TINY;
use text::testing::Random;

const PATH: &str = "/v1/messages";
const CALLS: &str = "Look:\n<tool_call>\n<function=f>\n<parameter=a>\nx y\n</parameter>\n\
    </function>\n</tool_call>\n<tool_call>\n<function=f>\n</function>\n</tool_call>";

fn question(fields: Value) -> Value {
    let body = json!({
        "model": "claude-any",
        "max_tokens": 200,
        "messages": [{"role": "user", "content": "hi"}],
    });
    with(body, fields)
}

fn ask(server: &TestServer, fields: Value) -> Answer {
    server.post(PATH, &question(fields)).answer()
}

fn open(server: &TestServer, fields: Value) -> Connection {
    server.post(PATH, &question(fields))
}

fn tools() -> Value {
    json!([{"name": "f", "input_schema": {"type": "object",
        "properties": {"a": {"type": "string"}}}}])
}

/// The concatenation of one field of all deltas.
fn streamed(answer: &Answer, field: &str) -> String {
    let pieces = answer.named_events().into_iter();
    pieces
        .filter_map(|event| event["delta"][field].as_str().map(str::to_string))
        .collect()
}

#[test]
fn a_whole_message_has_content_reason_and_usage() {
    let server = TestServer::start(Script::text("Hé 🦀!"));
    let answer = ask(&server, json!({}));
    assert_eq!(answer.status, 200);
    let message = answer.json();
    assert_eq!(
        message["content"],
        json!([{"type": "text", "text": "Hé 🦀!"}])
    );
    assert_eq!(message["model"], "scripted");
    assert_eq!(message["stop_reason"], "end_turn");
    assert_eq!(message["stop_sequence"], Value::Null);
    assert_eq!(message["usage"]["output_tokens"], "Hé 🦀!".len() + 1);
    assert_eq!(message["usage"]["cache_read_input_tokens"], 0);
}

#[test]
fn a_streamed_message_concatenates_to_the_whole_one() {
    let server = TestServer::start(Script::text("why\n</think>\n\nBecause é."));
    let thinking = json!({"type": "enabled", "budget_tokens": 1024});
    let whole = ask(&server, json!({"thinking": thinking})).json();
    let answer = ask(&server, json!({"thinking": thinking, "stream": true}));
    assert!(answer.head.contains("content-type: text/event-stream"));
    assert_eq!(streamed(&answer, "thinking"), "why");
    assert_eq!(streamed(&answer, "text"), "Because é.");
    assert_eq!(whole["content"][0]["thinking"], "why");
    assert_eq!(whole["content"][1]["text"], "Because é.");
    let events = answer.named_events();
    assert_eq!(
        events[0]["message"]["usage"]["input_tokens"],
        whole["usage"]["input_tokens"]
    );
    let end = &events[events.len() - 2];
    assert_eq!(end["usage"], whole["usage"]);
    assert_eq!(events.last().unwrap()["type"], "message_stop");
    let signed = events
        .iter()
        .filter(|event| event["delta"]["type"] == "signature_delta");
    assert_eq!(signed.count(), 1);
}

#[test]
fn calls_are_blocks_with_their_input() {
    let server = TestServer::start(Script::text(CALLS));
    let message = ask(&server, json!({"tools": tools()})).json();
    assert_eq!(message["stop_reason"], "tool_use");
    assert_eq!(message["content"][1]["name"], "f");
    assert_eq!(message["content"][1]["input"], json!({"a": "x y"}));
    assert_eq!(message["content"][2]["input"], json!({}));
    let one = json!({"type": "auto", "disable_parallel_tool_use": true});
    let message = ask(&server, json!({"tools": tools(), "tool_choice": one})).json();
    assert_eq!(message["content"].as_array().unwrap().len(), 2);
    let none = json!({"type": "none"});
    let message = ask(&server, json!({"tools": tools(), "tool_choice": none})).json();
    assert_eq!(message["content"].as_array().unwrap().len(), 1);
    let text = message["content"][0]["text"].as_str().unwrap();
    assert!(
        text.starts_with("Look:\n") && !text.contains("<tool_call>"),
        "{text}"
    );
}

#[test]
fn a_stop_sequence_is_named() {
    let server = TestServer::start(Script::endless());
    let stops = json!(["never", "n aga"]);
    for stream in [false, true] {
        let answer = ask(&server, json!({"stop_sequences": stops, "stream": stream}));
        let end = match stream {
            true => answer.named_events().iter().rev().nth(1).unwrap()["delta"].clone(),
            false => answer.json(),
        };
        assert_eq!(end["stop_reason"], "stop_sequence");
        assert_eq!(end["stop_sequence"], "n aga");
    }
}

#[test]
fn the_reason_distinguishes_a_wanted_length_from_a_full_context() {
    let step = Duration::ZERO;
    let server = TestServer::start(Script {
        step,
        ..Script::endless()
    });
    let short = ask(&server, json!({"max_tokens": 5})).json();
    assert_eq!(short["stop_reason"], "max_tokens");
    let long = ask(&server, json!({"max_tokens": 10_000_000})).json();
    assert_eq!(long["stop_reason"], "model_context_window_exceeded");
    let usage = &long["usage"];
    let tokens = ["input_tokens", "output_tokens"].map(|name| usage[name].as_u64().unwrap());
    assert_eq!(tokens.iter().sum::<u64>(), TINY.context as u64);
}

#[test]
fn a_used_up_thinking_budget_ends_the_reasoning() {
    let server = TestServer::start(Script::endless());
    let thinking = json!({"type": "enabled", "budget_tokens": 7});
    let message = ask(&server, json!({"thinking": thinking, "max_tokens": 60})).json();
    let thought = "again a\n\n[The thinking budget is used up.]";
    assert_eq!(message["content"][0]["thinking"], thought);
    assert_eq!(message["usage"]["output_tokens"], 60);
    let text = message["content"][1]["text"].as_str().unwrap();
    let mark = thought.len() + "\n".len() + 1 + "\n\n".len();
    assert_eq!(text.len(), 60 - mark);
}

#[test]
fn a_thinking_block_may_come_without_its_text() {
    let server = TestServer::start(Script::text("why\n</think>\n\nBecause."));
    let thinking = json!({"type": "adaptive", "display": "omitted"});
    let message = ask(&server, json!({"thinking": thinking})).json();
    assert_eq!(message["content"][0]["type"], "thinking");
    assert_eq!(message["content"][0]["thinking"], "");
    let answer = ask(&server, json!({"thinking": thinking, "stream": true}));
    assert_eq!(streamed(&answer, "thinking"), "");
    assert_eq!(streamed(&answer, "text"), "Because.");
}

#[test]
fn a_long_prompt_is_refused_in_the_words_that_clients_parse() {
    let server = TestServer::start(Script::text("a"));
    let long = json!([{"role": "user", "content": "x".repeat(TINY.context)}]);
    let answer = ask(&server, json!({"messages": long}));
    assert_eq!(answer.status, 400);
    let message = answer.error()["message"].as_str().unwrap().to_string();
    let limit = format!(" tokens > {} maximum", TINY.context);
    assert!(message.starts_with("prompt is too long: "), "{message}");
    assert!(message.ends_with(&limit), "{message}");
}

#[test]
fn errors_have_the_shape_and_the_request_id_of_the_api() {
    let server = TestServer::start(Script::text("a"));
    let refused = ask(&server, json!({"max_tokens": 0}));
    let absent = server.get("/v1/messages/nothing");
    let method = server.get(PATH);
    for (answer, status, kind) in [
        (refused, 400, "invalid_request_error"),
        (absent, 404, "not_found_error"),
        (method, 405, "invalid_request_error"),
    ] {
        let body = answer.json();
        assert_eq!((answer.status, &body["type"]), (status, &json!("error")));
        assert_eq!(body["error"]["type"], kind);
        let id = body["request_id"].as_str().unwrap();
        assert!(
            answer.head.contains(&format!("request-id: {id}")),
            "{}",
            answer.head
        );
    }
    let fine = ask(&server, json!({}));
    assert!(fine.head.contains("request-id: req_"));
}

/// Libraries of different ages name different versions, and agents betas that come and go.
#[test]
fn any_version_and_any_beta_are_taken_with_either_header() {
    let server = TestServer::start(Script::text("a"));
    let body = question(json!({}));
    for head in [
        "",
        "anthropic-version: 2023-06-01\r\nx-api-key: none\r\n",
        "anthropic-version: 2099-12-31\r\nauthorization: Bearer none\r\n",
        "anthropic-version: soon\r\nanthropic-beta: a-2099-01-01,b\r\nanthropic-beta: c\r\n",
    ] {
        let answer = server.post_with(&format!("{PATH}?beta=true"), head, &body);
        let answer = answer.answer();
        assert_eq!(answer.status, 200, "{head}: {answer:?}");
        assert_eq!(answer.json()["content"][0]["text"], "a");
    }
}

#[test]
fn a_failure_amid_a_stream_is_an_error_event() {
    let server = TestServer::start(Script {
        fails_at: Some(20),
        ..Script::endless()
    });
    let events = ask(&server, json!({"stream": true})).named_events();
    let last = events.last().unwrap();
    assert_eq!(last["error"]["type"], "api_error");
    assert!(last["request_id"].as_str().unwrap().starts_with("req_"));
    assert_eq!(events[0]["type"], "message_start");
}

#[test]
fn a_quiet_stream_is_kept_alive_with_pings() {
    let step = Duration::from_millis(200);
    let mut server = TestServer::start(Script {
        step,
        ..Script::text("ab")
    });
    let mut open = open(&server, json!({"stream": true}));
    open.read_until("text_delta");
    server.hurry();
    let answer = open.answer();
    let events = answer.named_events();
    assert!(events.iter().any(|event| event["type"] == "ping"));
    assert_eq!(streamed(&answer, "text"), "ab");
}

#[test]
fn the_count_is_what_the_request_costs() {
    let server = TestServer::start(Script::text("a"));
    let body = question(json!({"system": "Be kind.", "tools": tools()}));
    let used = server.post(PATH, &body).answer().json()["usage"]["input_tokens"].clone();
    let path = "/v1/messages/count_tokens?beta=true";
    let counted = server.post(path, &body).answer();
    assert_eq!(counted.json(), json!({"input_tokens": used}));
    assert!(counted.head.contains("request-id: req_"));
    let long = json!({"messages": [{"role": "user", "content": "x".repeat(9000)}]});
    assert!(
        server.post(path, &long).answer().json()["input_tokens"]
            .as_u64()
            .unwrap()
            > 9000
    );
    let tools_only = json!({"tools": tools()});
    assert!(
        server.post(path, &tools_only).answer().json()["input_tokens"]
            .as_u64()
            .unwrap()
            > 10
    );
}

/// A body of any fields and turns that this server knows.
fn any_body(random: &mut Random) -> Value {
    let mut fields = json!({});
    let mut maybe = |name: &str, values: &[Value]| {
        if let Some(value) = values.get(random.below(values.len() + 1)) {
            fields[name] = value.clone();
        }
    };
    let text = |text: &str| json!({"type": "text", "text": text});
    maybe(
        "system",
        &[json!("Be kind."), json!([text("Be"), text("kind.")])],
    );
    maybe("tools", &[tools()]);
    maybe("tool_choice", &[json!({"type": "none"})]);
    maybe(
        "thinking",
        &[json!({"type": "adaptive"}), json!({"type": "disabled"})],
    );
    maybe("output_config", &[json!({"effort": "low"})]);
    maybe(
        "chat_template_kwargs",
        &[json!({"preserve_thinking": true})],
    );
    let call = json!({"type": "tool_use", "id": "t", "name": "f", "input": {"a": "x"}});
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": "y"});
    let thought = json!({"type": "thinking", "thinking": "why", "signature": "s"});
    let picture = json!({"type": "image", "source": {"type": "base64", "data": ""}});
    let turns = [
        json!({"role": "user", "content": "a"}),
        json!({"role": "user", "content": [text("b"), result]}),
        json!({"role": "user", "content": [picture]}),
        json!({"role": "assistant", "content": "c"}),
        json!({"role": "assistant", "content": [thought, text("d"), call]}),
        json!({"role": "system", "content": "e"}),
    ];
    let count = 1 + random.below(4);
    let any: Vec<Value> = (0..count)
        .map(|_| turns[random.below(turns.len())].clone())
        .collect();
    fields["messages"] = Value::from(any);
    question(fields)
}

#[test]
fn the_count_of_any_body_is_what_it_costs() {
    let server = TestServer::start(Script::text("a"));
    let (mut random, mut answered) = (Random::new(5), 0);
    for _ in 0..60 {
        let body = any_body(&mut random);
        let answer = server.post(PATH, &body).answer();
        let counted = server.post("/v1/messages/count_tokens", &body).answer();
        assert_eq!(counted.status, answer.status, "{body}: {counted:?}");
        if answer.status == 200 {
            let usage = &answer.json()["usage"];
            let names = ["input_tokens", "cache_read_input_tokens"];
            let used: u64 = names.iter().filter_map(|name| usage[name].as_u64()).sum();
            assert_eq!(counted.json()["input_tokens"], used, "{body}");
            answered += 1;
        }
    }
    assert!(answered > 10, "{answered}");
}

#[test]
fn a_reply_goes_on_with_what_the_assistant_has_said() {
    let server = TestServer::start(Script::text(" is Rome"));
    let messages = json!([{"role": "user", "content": "hi"},
        {"role": "assistant", "content": "The capital"}]);
    let answer = ask(&server, json!({"messages": messages}));
    assert_eq!(answer.json()["content"][0]["text"], " is Rome");
    let thinking = json!({"messages": messages, "thinking": {"type": "adaptive"}});
    let error = ask(&server, thinking).error();
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("messages[1]: "), "{message}");
}

#[test]
fn thinking_that_was_not_shown_is_in_the_next_prompt() {
    let server = TestServer::start(Script::text("why\n</think>\n\nso"));
    let next = |display: &str| {
        let thinking = json!({"type": "adaptive", "display": display});
        let first = ask(&server, json!({"thinking": thinking})).json();
        let messages = json!([{"role": "user", "content": "hi"},
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": "and?"}]);
        let body = question(json!({"thinking": thinking, "messages": messages}));
        let read = MessagesRequest::parse(&body, &server.state.seal, &TINY).unwrap();
        assert!(read.ask.left_out.is_empty());
        read.ask.messages
    };
    let shown = next("summarized");
    assert_eq!(shown[1]["reasoning_content"], "why");
    assert_eq!(next("omitted"), shown);
}

/// A conversation in which an agent searched for a tool; `found` is what the search returned.
fn searched(found: Value) -> Value {
    let search = json!({"name": "search", "input_schema": {"type": "object"}});
    let deferred = json!({"name": "f", "defer_loading": true, "input_schema": {"type": "object",
        "properties": {"a": {"type": "integer"}}}});
    json!({"tools": [search, deferred], "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant",
         "content": [{"type": "tool_use", "id": "t", "name": "search", "input": {}}]},
        {"role": "user",
         "content": [{"type": "tool_result", "tool_use_id": "t", "content": found}]}]})
}

#[test]
fn a_deferred_tool_costs_nothing_until_it_is_loaded() {
    let server = TestServer::start(Script::text("a"));
    let count = |body: &Value| {
        let path = "/v1/messages/count_tokens";
        server.post(path, body).answer().json()["input_tokens"].as_u64()
    };
    let nothing = searched(json!([{"type": "text", "text": ""}]));
    let mut without = nothing.clone();
    without["tools"].as_array_mut().unwrap().pop();
    assert_eq!(count(&nothing), count(&without));
    let found = searched(json!([{"type": "tool_reference", "tool_name": "f"}]));
    assert!(count(&found) > count(&nothing));
}

#[test]
fn a_loaded_tool_is_called_with_the_types_of_its_schema() {
    let call =
        "<tool_call>\n<function=f>\n<parameter=a>\n5\n</parameter>\n</function>\n</tool_call>";
    let server = TestServer::start(Script::text(call));
    let found = searched(json!([{"type": "tool_reference", "tool_name": "f"}]));
    let answer = ask(&server, found).json();
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    assert_eq!(answer["content"][0]["input"], json!({"a": 5}));
}

/// The queue is full and the only slots are taken: counting goes on.
#[test]
fn counting_never_waits_for_the_engine() {
    let server = TestServer::start(Script::endless());
    let most = TINY.sequences + TINY.queued;
    let taken: Vec<_> = (0..most)
        .map(|_| open(&server, json!({"stream": true, "max_tokens": 1_000_000})))
        .collect();
    server.wait_for(|stats| stats.waiting.get() > 0);
    let path = "/v1/messages/count_tokens";
    for _ in 0..14 {
        assert_eq!(server.post(path, &question(json!({}))).answer().status, 200);
    }
    drop(taken);
}

#[test]
fn what_is_not_enforced_is_reported() {
    let server = TestServer::start(Script::text("x"));
    let tools = json!([{"name": "f", "input_schema": {"type": "object",
        "properties": {"a": {"type": "string", "format": "color"}}, "required": ["a"]}}]);
    let fields = json!({"tools": tools, "tool_choice": {"type": "any"}, "max_tokens": 5});
    let whole = ask(&server, fields.clone()).json();
    assert!(
        whole["warnings"][0].as_str().unwrap().contains("color"),
        "{whole}"
    );
    let mut streamed = fields;
    streamed["stream"] = json!(true);
    let start = ask(&server, streamed).named_events().remove(0);
    assert_eq!(start["message"]["warnings"], whole["warnings"]);
    assert_eq!(ask(&server, json!({})).json().get("warnings"), None);
}
