//! The server on a real socket, over an executor that follows a script.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::error::internal;
use super::journal::Journal;
use super::limits::{
    BODY_BYTES_MAX, CHOICES_MAX, HEAD_BYTES_MAX, HEAD_TIMEOUT, HEADERS_MAX, URI_BYTES_MAX,
};
use super::settings::Compatibility;
use super::settings::Settings;
use super::testing::{Answer, CONNECTIONS, Connection, PATIENCE, Script, TestServer, with};
use step::testing::TINY;

const CALLS: &str = "Look:\n<tool_call>\n<function=f>\n<parameter=a>\nx y\n</parameter>\n\
    </function>\n</tool_call>\n<tool_call>\n<function=f>\n</function>\n</tool_call>";

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"a": {"type": "string"}}}}}])
}

fn message(answer: &Answer) -> Value {
    answer.json()["choices"][0]["message"].clone()
}

fn finish(answer: &Answer) -> Value {
    answer.json()["choices"][0]["finish_reason"].clone()
}

#[test]
fn a_whole_answer_has_content_finish_and_usage() {
    let server = TestServer::start(Script::text("Hé 🦀!"));
    let answer = server.chat(json!({}));
    assert_eq!(answer.status, 200);
    assert_eq!(
        message(&answer),
        json!({"role": "assistant", "content": "Hé 🦀!"})
    );
    assert_eq!(finish(&answer), "stop");
    let usage = &answer.json()["usage"];
    assert_eq!(usage["completion_tokens"], "Hé 🦀!".len() + 1);
    assert_eq!(
        usage["total_tokens"].as_u64().unwrap(),
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap()
    );
}

/// A reply that breaks off in a call says so to the client, in every dialect.
#[test]
fn a_stop_string_in_a_call_says_that_it_broke_off() {
    let server = TestServer::start(Script::text(CALLS));
    let answer = server.chat(json!({"tools": tools(), "stop": ["y"]}));
    assert_eq!(finish(&answer), "length");
    let call = &message(&answer)["tool_calls"][0]["function"];
    assert_eq!(call["arguments"], "{\"a\":\"x ");
    for stop in ["\n", ">", "<", "}", "function"] {
        let answer = server.chat(json!({"tools": tools(), "stop": [stop]}));
        assert_eq!(finish(&answer), "tool_calls", "{stop:?}");
        assert_eq!(message(&answer)["tool_calls"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn log_probabilities_are_of_the_content_and_on_request_of_the_reasoning() {
    let server = TestServer::start(Script::text(&format!("why</think>\n\n{CALLS}")));
    let fields = json!({"tools": tools(), "logprobs": true, "reasoning_effort": "low"});
    let joined = |answer: &Answer, name: &str| -> String {
        let reported = answer.json()["choices"][0]["logprobs"][name].clone();
        let positions = reported.as_array().into_iter().flatten();
        positions
            .map(|position| position["token"].as_str().unwrap().to_string())
            .collect()
    };
    let answer = server.chat(fields.clone());
    let content = message(&answer)["content"].clone();
    assert_eq!(joined(&answer, "content").trim(), content.as_str().unwrap());
    assert_eq!(joined(&answer, "reasoning_content"), "");
    let mut fields = fields;
    fields["reasoning_logprobs"] = json!(true);
    let answer = server.chat(fields);
    assert_eq!(joined(&answer, "content").trim(), content.as_str().unwrap());
    assert!(joined(&answer, "reasoning_content").starts_with("why"));
}

/// A tag that opens no call is content, with the log-probabilities of its tokens.
#[test]
fn log_probabilities_of_what_seemed_a_call_are_reported() {
    let text = "a <tool_call> b <function=f> c";
    let server = TestServer::start(Script::text(text));
    let answer = server.chat(json!({"tools": tools(), "logprobs": true}));
    assert_eq!(message(&answer)["content"], text);
    let reported = answer.json()["choices"][0]["logprobs"]["content"].clone();
    let reported = reported.as_array().unwrap().iter();
    let joined: String = reported
        .map(|position| position["token"].as_str().unwrap())
        .collect();
    assert_eq!(joined, text);
}

/// Tokens that nothing is seen of, as those of a stop string or of what begins a call, have none.
#[test]
fn log_probabilities_are_of_what_is_visible() {
    for (script, stop) in [
        ("ab and no more", " no"),
        ("no nor nono", "nono"),
        ("aaab and more", "aab"),
        ("🦀🦀🦀 and more", "🦀🦀 "),
        ("<think>why</think>\n\nso it is", "y"),
        (
            "Look:\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
            "x",
        ),
        ("é <tool", "y"),
    ] {
        let server = TestServer::start(Script::text(script));
        let fields = json!({"tools": tools(), "logprobs": true, "stop": [stop]});
        let whole = server.chat(fields.clone());
        let reported = whole.json()["choices"][0]["logprobs"]["content"].clone();
        let positions = reported.as_array().unwrap().iter();
        let bytes = positions.flat_map(|position| position["bytes"].as_array().unwrap());
        let bytes: Vec<u8> = bytes.map(|byte| byte.as_u64().unwrap() as u8).collect();
        let content = message(&whole)["content"].clone();
        assert_eq!(String::from_utf8(bytes).unwrap(), content.as_str().unwrap());
        let mut fields = fields;
        fields["stream"] = json!(true);
        let events = server.chat(fields).events().into_iter();
        let streamed: Vec<Value> = events
            .filter_map(|event| {
                let reported = &event["choices"][0]["logprobs"]["content"];
                reported.as_array().cloned()
            })
            .flatten()
            .collect();
        assert_eq!(Value::from(streamed), reported, "{script}");
    }
}

#[test]
fn what_is_not_offered_counts_as_no_failure_of_the_server() {
    let server = TestServer::start(Script::text("x"));
    assert_eq!(server.get("/v1/embeddings").status, 501);
    let page = server.get("/metrics").body;
    assert!(
        page.contains("atlas_http_responses_total{class=\"5xx\"} 0"),
        "{page}"
    );
}

#[test]
fn a_wrong_path_says_what_was_meant_in_the_dialect_of_its_client() {
    let server = TestServer::start(Script::text("x"));
    for (path, reported) in [
        (
            "/chat/completions",
            "add /v1 to the base URL: it is /v1/chat/completions",
        ),
        (
            "/v1/v1/v1/models",
            "drop the second /v1 of the URL: it is /v1/models",
        ),
        ("/v1/models/", "drop the slash at its end: it is /v1/models"),
        ("/v1/tokenize", "drop /v1: it is /tokenize"),
        ("/v1/nothing", "this server has"),
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.body.contains(reported), "{path}: {}", answer.body);
    }
}

#[test]
fn a_streamed_answer_concatenates_to_the_whole_one() {
    let server = TestServer::start(Script::text("Hé 🦀!"));
    let answer = server.chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    assert!(answer.head.contains("content-type: text/event-stream"));
    assert_eq!(answer.streamed(0, "content"), "Hé 🦀!");
    let events = answer.events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let (usage, chunks) = events.split_last().unwrap();
    assert_eq!(usage["usage"]["completion_tokens"], "Hé 🦀!".len() + 1);
    assert_eq!(
        chunks.last().unwrap()["choices"][0]["finish_reason"],
        "stop"
    );
}

#[test]
fn a_streams_running_counts_grow_to_its_usage() {
    let server = TestServer::start(Script::text("abc"));
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let answer = server.chat(json!({"stream": true, "stream_options": options}));
    let events = answer.events();
    let counts = |name: &str| -> Vec<u64> {
        let usages = events.iter().map(|event| &event["usage"][name]);
        usages.map(|count| count.as_u64().unwrap()).collect()
    };
    // The role, each letter, the token that ends the turn, the reply's end, and the stream's.
    assert_eq!(counts("completion_tokens"), [0, 1, 2, 3, 4, 4, 4]);
    let prompt = counts("prompt_tokens")[0];
    assert!(prompt > 0);
    let total = [0, 1, 2, 3, 4, 4, 4].map(|completion| prompt + completion);
    assert_eq!(counts("total_tokens"), total);
}

/// However many are ready when they are written.
#[test]
fn each_token_is_reported_by_an_event_of_its_own() {
    let text = "0123456789".repeat(5);
    let server = TestServer::start(Script::text(&text));
    let events = server.chat(json!({"stream": true})).events();
    let contents = events.iter().filter_map(|event| {
        let content = event["choices"][0]["delta"]["content"].as_str()?;
        (!content.is_empty()).then(|| content.to_string())
    });
    let contents: Vec<String> = contents.collect();
    assert_eq!(contents.concat(), text);
    assert_eq!(contents.len(), text.len());
}

#[test]
fn a_length_ends_the_reply_and_is_named() {
    let server = TestServer::start(Script::endless());
    let answer = server.chat(json!({"max_tokens": 5}));
    assert_eq!(message(&answer)["content"], "again");
    assert_eq!(finish(&answer), "length");
    assert_eq!(answer.json()["usage"]["completion_tokens"], 5);
}

#[test]
fn a_stop_string_ends_the_reply_and_frees_the_slot() {
    let server = TestServer::start(Script::endless());
    let answer = server.chat(json!({"stop": ["n aga"]}));
    assert_eq!(message(&answer)["content"], "agai");
    assert_eq!(finish(&answer), "stop");
    server.wait_for(|stats| stats.running.get() == 0);
}

#[test]
fn a_stop_token_ends_the_reply_unseen() {
    let server = TestServer::start(Script::endless());
    let answer = server.chat(json!({"stop_token_ids": [b'i']}));
    assert_eq!(message(&answer)["content"], "aga");
    assert_eq!(answer.json()["usage"]["completion_tokens"], 4);
}

#[test]
fn logprobs_come_for_each_token_of_the_text() {
    let server = TestServer::start(Script::text("ab"));
    let wanted = json!({"logprobs": true, "top_logprobs": 2});
    let positions = server.chat(wanted.clone()).json()["choices"][0]["logprobs"]["content"].clone();
    assert_eq!(positions.as_array().unwrap().len(), 2);
    assert_eq!(positions[1]["token"], "b");
    assert_eq!(positions[1]["bytes"], json!([98]));
    assert_eq!(positions[1]["top_logprobs"][0]["token"], "b");
    assert!(positions[1]["logprob"].as_f64().unwrap() <= 0.0);
    let mut streaming = wanted;
    streaming["stream"] = json!(true);
    let streamed: Vec<Value> = server
        .chat(streaming)
        .events()
        .iter()
        .filter_map(|event| {
            event["choices"][0]["logprobs"]["content"]
                .as_array()
                .cloned()
        })
        .flatten()
        .collect();
    assert_eq!(json!(streamed), positions);
}

#[test]
fn several_choices_are_told_apart() {
    let server = TestServer::start(Script::text("one"));
    let choices = server.chat(json!({"n": 3})).json()["choices"].clone();
    let indices: Vec<u64> = choices
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["index"].as_u64().unwrap())
        .collect();
    assert_eq!(indices, [0, 1, 2]);
    let streamed = server.chat(json!({"n": 3, "stream": true}));
    assert!((0..3).all(|index| streamed.streamed(index, "content") == "one"));
}

#[test]
fn reasoning_is_separate_from_the_content() {
    let server = TestServer::start(Script::text("why\n</think>\n\nBecause."));
    let thinking = json!({"chat_template_kwargs": {"enable_thinking": true}});
    let whole = message(&server.chat(thinking));
    assert_eq!(whole["reasoning_content"], "why");
    assert_eq!(whole["content"], "Because.");
    let streamed = server.chat(json!({"reasoning_effort": "high", "stream": true}));
    assert_eq!(streamed.streamed(0, "reasoning_content"), "why");
    assert_eq!(streamed.streamed(0, "content"), "Because.");
}

#[test]
fn a_used_up_thinking_budget_ends_the_reasoning() {
    let server = TestServer::start(Script::endless());
    for mut fields in [
        json!({"thinking": {"type": "enabled", "budget_tokens": 7}}),
        json!({"thinking_token_budget": 7, "reasoning": {"effort": "high"}}),
        json!({"chat_template_kwargs": {"enable_thinking": true, "thinking_budget": 7}}),
    ] {
        fields["max_tokens"] = json!(60);
        let answer = server.chat(fields);
        let message = message(&answer);
        let thought = "again a\n\n[The thinking budget is used up.]";
        assert_eq!(message["reasoning_content"], thought);
        assert!(message["content"].as_str().unwrap().contains("gain"));
        let usage = &answer.json()["usage"];
        let reasoning = thought.len() + "\n".len() + 1;
        assert_eq!(usage["completion_tokens"], 60);
        assert_eq!(
            usage["completion_tokens_details"]["reasoning_tokens"],
            reasoning
        );
    }
}

#[test]
fn tool_calls_are_read_from_the_reply() {
    let server = TestServer::start(Script::text(CALLS));
    let answer = server.chat(json!({"tools": tools()}));
    let message = message(&answer);
    assert_eq!(message["content"], "Look:");
    let function = json!({"name": "f", "arguments": "{\"a\":\"x y\"}"});
    assert_eq!(message["tool_calls"][0]["function"], function);
    assert_eq!(message["tool_calls"][1]["function"]["arguments"], "{}");
    assert_eq!(finish(&answer), "tool_calls");
}

#[test]
fn streamed_tool_calls_name_the_function_once() {
    let server = TestServer::start(Script::text(CALLS));
    let answer = server.chat(json!({"tools": tools(), "stream": true}));
    let calls: Vec<Value> = answer
        .events()
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["tool_calls"].get(0).cloned())
        .filter(|call| call["index"] == 0)
        .collect();
    assert_eq!(
        calls.iter().filter(|call| call["id"].is_string()).count(),
        1
    );
    assert_eq!(calls[0]["function"], json!({"name": "f", "arguments": ""}));
    let arguments: String = calls
        .iter()
        .filter_map(|call| call["function"]["arguments"].as_str())
        .collect();
    assert_eq!(arguments, "{\"a\":\"x y\"}");
}

#[test]
fn calls_are_text_when_no_tool_is_offered() {
    let server = TestServer::start(Script::text(CALLS));
    let answer = server.chat(json!({"tool_choice": "none"}));
    assert_eq!(message(&answer)["content"], CALLS);
}

#[test]
fn one_call_at_a_time_ends_the_reply_after_it() {
    let server = TestServer::start(Script::text(CALLS));
    let answer = server.chat(json!({"tools": tools(), "parallel_tool_calls": false}));
    assert_eq!(message(&answer)["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(finish(&answer), "tool_calls");
}

/// A device that became slow shows in them.
#[test]
fn the_time_of_steps_is_reported() {
    let server = TestServer::start(Script::endless());
    assert_eq!(server.chat(json!({"max_tokens": 5})).status, 200);
    let page = server.get("/metrics").body;
    let figure = |name: &str| -> f64 {
        let mut lines = page.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.expect(name).parse().unwrap()
    };
    let (steps, seconds) = (
        figure("atlas_steps_total"),
        figure("atlas_step_seconds_total"),
    );
    // A step of this script takes a millisecond.
    assert!(
        steps >= 5.0 && seconds >= steps * 1e-3,
        "{steps}, {seconds}"
    );
    assert!(seconds < PATIENCE.as_secs_f64());
    assert_eq!(figure("atlas_step_slowdown_ratio"), 1.0);
}

#[test]
fn while_loading_health_reports_progress_and_chat_says_when_to_retry() {
    let server = TestServer::start_loading();
    let health = server.get("/health");
    assert_eq!(health.status, 503);
    assert_eq!(health.json()["percent"], 25);
    let page = server.get("/metrics").body;
    assert!(page.contains("{class=\"5xx\"} 0"), "{page}");
    let chat = server.chat(json!({}));
    assert_eq!(
        (chat.status, chat.error()["code"].clone()),
        (503, json!("loading"))
    );
    assert!(chat.head.contains("retry-after: "));
}

#[test]
fn a_ready_server_is_healthy() {
    let server = TestServer::start(Script::text("a"));
    server.wait_for(|_| server.state.service().unwrap().engine.phase() == engine::Phase::Serving);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn models_have_the_shape_of_both_dialects() {
    let server = TestServer::start(Script::text("a"));
    let list = server.get("/v1/models?limit=1000").json();
    assert_eq!(
        (&list["object"], &list["has_more"]),
        (&json!("list"), &json!(false))
    );
    let model = &list["data"][0];
    assert_eq!(
        (&model["id"], &model["type"]),
        (&json!("scripted"), &json!("model"))
    );
    assert_eq!(model["display_name"], "scripted");
    assert!(model["created_at"].as_str().unwrap().ends_with('Z'));
    assert!(model["created"].is_u64());
    assert_eq!(
        (&list["first_id"], &list["last_id"]),
        (&model["id"], &model["id"])
    );
    for length in ["max_model_len", "max_input_tokens"] {
        assert_eq!(model[length], TINY.context);
    }
    assert_eq!(&server.get("/v1/models/scripted").json(), model);
    assert_eq!(
        server.get("/v1/models/other").error()["code"],
        "model_not_found"
    );
}

#[test]
fn the_page_at_the_root_keeps_to_itself() {
    let server = TestServer::start(Script::text("a"));
    let page = server.get("/");
    assert_eq!((page.status, page.body.as_str()), (200, ui::PAGE.as_str()));
    for header in [
        "content-type: text/html; charset=utf-8",
        "content-security-policy: default-src 'none'; script-src 'sha256-",
        "x-content-type-options: nosniff",
        "x-frame-options: deny",
        "referrer-policy: no-referrer",
    ] {
        assert!(page.head.contains(header), "{header}: {}", page.head);
    }
    let head = server.ask("HEAD", "/", "");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(server.post("/", &json!({})).answer().status, 405);
}

#[test]
fn what_is_not_offered_is_said_in_the_dialect_of_the_route() {
    let server = TestServer::start(Script::text("a"));
    for path in [
        "/v1/embeddings",
        "/v1/images/generations",
        "/v1/files/x",
        "/v1/responses/compact",
        "/v1/conversations/conv_x/items",
        "/rerank",
    ] {
        let answer = server.post(path, &json!({})).answer();
        assert_eq!(answer.status, 501, "{path}");
        assert_eq!(answer.error()["code"], "not_implemented");
        assert!(answer.head.contains("x-should-retry: false"));
    }
    for path in ["/api/tags", "/api/chat"] {
        let answer = server.get(path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.json()["error"].as_str().unwrap().contains("/v1"));
    }
    // By this path a coding agent opens its connection ahead of the first request.
    assert_eq!(server.get("/api/hello").status, 200);
    assert_eq!(server.get("/v1/embeddingsx").status, 404);
}

#[test]
fn a_reply_goes_on_with_the_final_message_where_that_is_asked_for() {
    let server = TestServer::start(Script::text(" is Rome"));
    let messages = json!([{"role": "user", "content": "hi"},
        {"role": "assistant", "content": "The capital"}]);
    let body = json!({"messages": messages, "continue_final_message": true});
    let with = |fields: Value| with(body.clone(), fields);
    let post = |path: &str, body: &Value| server.post(path, body).answer();
    let open = with(json!({"add_generation_prompt": false}));
    let tokens = post("/tokenize", &open).json()["tokens"].clone();
    let text = post("/detokenize", &json!({"tokens": tokens})).json();
    let end = "<|im_start|>assistant\nThe capital";
    assert!(text["prompt"].as_str().unwrap().ends_with(end), "{text}");
    let answer = post("/v1/chat/completions", &open).json();
    assert_eq!(answer["choices"][0]["message"]["content"], " is Rome");
    assert_eq!(
        answer["usage"]["prompt_tokens"],
        tokens.as_array().unwrap().len()
    );
    for fields in [
        json!({"add_generation_prompt": true}),
        json!({"reasoning_effort": "high"}),
        json!({"messages": [{"role": "user", "content": "hi"}]}),
    ] {
        let answer = post("/v1/chat/completions", &with(fields));
        assert_eq!(answer.error()["param"], "continue_final_message");
    }
}

/// The form is that of the whole message, of which the reply is the rest.
#[test]
fn a_message_that_is_gone_on_with_has_the_form_that_is_asked_for() {
    let server = TestServer::start(Script::text("\"a\":1}"));
    let schema = json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"],
        "additionalProperties": false});
    let ask = |said: &str| {
        let body = json!({"max_tokens": 20,
            "output_config": {"format": {"type": "json_schema", "schema": schema}},
            "messages": [{"role": "user", "content": "hi"},
                {"role": "assistant", "content": said}]});
        server.post("/v1/messages", &body).answer()
    };
    assert_eq!(ask("{").json()["content"][0]["text"], "\"a\":1}");
    assert_eq!(ask(" {").status, 200);
    for (begun, problem) in [
        (
            "Sure: ",
            "output_config: is not what the message begins with",
        ),
        ("{\"a\":1}", "output_config: is had by the message"),
    ] {
        let said = ask(begun).error()["message"].to_string();
        assert!(said.contains(problem), "{said}");
    }
}

#[test]
fn texts_and_conversations_become_tokens_and_text_again() {
    let server = TestServer::start(Script::text("a"));
    let post = |path: &str, body: Value| server.post(path, &body).answer();
    let body = json!({"prompt": "a<|im_end|>é", "add_special_tokens": false});
    let answer = post("/tokenize", body).json();
    let expected = json!({"count": 4, "max_model_len": TINY.context,
        "tokens": [97, 257, 195, 169], "token_strs": null});
    assert_eq!(answer, expected);
    let text = post("/detokenize", json!({"tokens": answer["tokens"]}));
    assert_eq!(text.json(), json!({"prompt": "a<|im_end|>é"}));
    let messages = json!([{"role": "user", "content": "hi"}]);
    let chat = json!({"messages": messages, "return_token_strs": true, "enable_thinking": false});
    let tokens = post("/tokenize", chat).json();
    assert_eq!(tokens["token_strs"][0], "<|im_start|>");
    let usage = server.chat(json!({})).json()["usage"]["prompt_tokens"].clone();
    assert_eq!(tokens["count"], usage);
    for (path, body, param) in [
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({"prompt": 5}), "prompt"),
        ("/tokenize", json!({"messages": []}), "messages"),
        ("/tokenize", json!({"prompt": "a", "model": 5}), "model"),
        ("/detokenize", json!({"tokens": "a"}), "tokens"),
        ("/detokenize", json!({"tokens": [TINY.vocab]}), "tokens[0]"),
    ] {
        let refused = post(path, body);
        assert!((400..500).contains(&refused.status));
        assert_eq!(refused.error()["param"], param);
    }
    assert_eq!(server.get("/tokenize").status, 405);
}

#[test]
fn tokenizer_info_names_the_end_and_the_template() {
    let server = TestServer::start(Script::text("a"));
    let info = server.get("/tokenizer_info").json();
    assert_eq!(info["eos_token"], "<|im_end|>");
    assert_eq!(info["chat_template"], text::testing::TEMPLATE);
}

#[test]
fn a_full_queue_answers_429_with_retry_after() {
    let server = TestServer::start(Script::endless());
    let ask = |fields: Value| {
        let mut open = server.open_chat(fields);
        open.read_until("200 OK");
        open
    };
    // One of them would leave no memory to others.
    let replies = json!({"n": CHOICES_MAX, "stream": true});
    let running: Vec<_> = (0..TINY.sequences / CHOICES_MAX)
        .map(|_| ask(replies.clone()))
        .collect();
    server.wait_for(|stats| stats.running.get() == TINY.sequences as u64 - 1);
    let waiting: Vec<_> = (0..TINY.queued)
        .map(|_| ask(json!({"stream": true})))
        .collect();
    let mut refused = server.chat(json!({}));
    for _ in 0..TINY.sequences {
        if refused.status == 429 {
            break;
        }
        refused = server.open_chat(json!({"stream": true})).answer();
    }
    assert_eq!(
        (refused.status, refused.error()["code"].clone()),
        (429, json!("queue_full"))
    );
    assert!(refused.head.contains("retry-after: 1"));
    drop((running, waiting));
}

/// Long replies that are slow in coming.
fn slow() -> Script {
    Script {
        step: Duration::from_millis(5),
        ..Script::endless()
    }
}

fn completion(max_tokens: usize, choices: usize) -> Value {
    json!({"prompt": "hi", "max_tokens": max_tokens, "n": choices, "stream": true})
}

/// A connection that has brought a request, which was answered.
fn returning(server: &TestServer) -> Connection {
    let mut connection = server.send(b"");
    connection.ask("/v1/completions", &completion(1, 1), "[DONE]");
    connection
}

/// More connections than there are slots, each with a long reply.
const FLOOD: usize = TINY.sequences + 4;

/// Has one thing answered while a flood holds the slots, none of whose replies ends.
fn is_answered_beside_a_flood(server: &TestServer, ask: impl FnOnce()) {
    server
        .wait_for(|stats| (stats.running.get(), stats.waiting.get()) == (TINY.sequences as u64, 4));
    let stats = server.state.service().unwrap().engine.stats();
    let ended = stats.finished_length.get();
    ask();
    // A reply is counted a little after its last token is sent.
    server.wait_for(|stats| stats.finished_length.get() > ended);
    assert_eq!(
        (stats.finished_length.get(), stats.waiting.get()),
        (ended + 1, 4),
        "another reply ended"
    );
}

#[test]
fn a_new_connection_is_taken_before_those_that_keep_sending() {
    let server = TestServer::start(slow());
    let mut flood: Vec<_> = (0..FLOOD).map(|_| returning(&server)).collect();
    let body = completion(1000, 1);
    for connection in &mut flood {
        connection.ask("/v1/completions", &body, "200 OK");
    }
    is_answered_beside_a_flood(&server, || {
        let answer = server.chat(json!({"max_tokens": 1}));
        assert_eq!(answer.status, 200);
    });
}

#[test]
fn a_connection_that_returns_is_taken_before_a_flood_of_new_ones() {
    let server = TestServer::start(slow());
    let mut own = returning(&server);
    let body = completion(1000, 1);
    let _flood: Vec<_> = (0..FLOOD)
        .map(|_| server.post("/v1/completions", &body))
        .collect();
    is_answered_beside_a_flood(&server, || {
        own.ask("/v1/completions", &completion(1, 1), "[DONE]");
    });
}

#[test]
fn a_queue_full_of_batches_has_a_place_for_a_new_connection() {
    let server = TestServer::start(slow());
    // While the queue fills, another first request would wait for the end of a batch.
    let mut batches: Vec<_> = (0..TINY.queued).map(|_| returning(&server)).collect();
    let full = batches.iter_mut().position(|batch| {
        let choices = completion(1000, CHOICES_MAX);
        batch.ask("/v1/completions", &choices, "\r\n\r\n");
        batch.so_far().contains("429 Too Many")
    });
    assert!(full >= Some(TINY.sequences), "{full:?}");
    assert_eq!(server.chat(json!({"max_tokens": 1})).status, 200);
}

#[test]
fn a_client_that_leaves_frees_its_slot() {
    let server = TestServer::start(Script::endless());
    for fields in [json!({"stream": true}), json!({})] {
        let open = server.open_chat(fields);
        server.wait_for(|stats| stats.running.get() == 1);
        drop(open);
        server.wait_for(|stats| stats.running.get() == 0);
    }
    server.wait_for(|stats| stats.cancelled.get() == 2);
}

#[test]
fn a_device_failure_is_reported_to_all_and_to_health() {
    let server = TestServer::start(Script {
        fails_at: Some(20),
        ..Script::endless()
    });
    let streamed = server.open_chat(json!({"stream": true})).rest();
    assert!(
        streamed.contains("data: {\"error\":{\"message\":\"the device failed"),
        "{streamed}"
    );
    assert!(!streamed.contains("[DONE]"));
    assert_eq!(server.get("/health").json()["status"], "stopped");
    assert_eq!(server.chat(json!({})).status, 503);
}

#[test]
fn a_device_failure_fails_a_whole_answer() {
    let server = TestServer::start(Script {
        fails_at: Some(20),
        ..Script::endless()
    });
    let answer = server.chat(json!({}));
    assert_eq!(
        (answer.status, answer.error()["type"].clone()),
        (500, json!("server_error"))
    );
}

#[test]
fn a_stopping_server_finishes_open_replies() {
    let step = Duration::from_millis(20);
    let mut server = TestServer::start(Script {
        step,
        ..Script::text("to the very end")
    });
    let mut open = server.open_chat(json!({"stream": true}));
    open.read_until("role");
    server.signal();
    assert_eq!(open.answer().streamed(0, "content"), "to the very end");
    assert!(server.stop());
}

#[test]
fn a_stopping_server_closes_connections_that_wait_for_a_request() {
    let mut server = TestServer::start(Script::text("a"));
    let mut waiting = server.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n");
    waiting.read_until("\r\n\r\n");
    let start = Instant::now();
    server.signal();
    waiting.rest();
    assert!(start.elapsed() < HEAD_TIMEOUT / 2);
    assert!(server.stop());
}

#[test]
fn a_reply_that_outlasts_the_drain_ends_with_an_error() {
    let step = Duration::from_millis(50);
    let mut server = TestServer::start(Script {
        step,
        ..Script::endless()
    });
    let mut open = server.open_chat(json!({"stream": true}));
    open.read_until("role");
    server.hurry();
    server.signal();
    let rest = open.rest();
    assert!(
        rest.contains("data: {\"error\":{\"message\":\"the server is shutting down"),
        "{rest}"
    );
    assert!(!server.stop());
}

#[test]
fn replies_that_cannot_go_on_end_with_the_reason() {
    let step = PATIENCE;
    let server = TestServer::start(Script {
        step,
        ..Script::endless()
    });
    let mut streamed = server.open_chat(json!({"stream": true}));
    streamed.read_until("role");
    let whole = server.open_chat(json!({}));
    server.wait_for(|stats| stats.running.get() + stats.waiting.get() == 2);
    server.state.abort_replies(internal("the device failed"));
    let (rest, whole) = (streamed.rest(), whole.answer());
    assert!(rest.contains("data: {\"error\":{\"message\":\"the device failed"));
    assert_eq!(whole.status, 500);
    assert!(whole.body.contains("the device failed"));
}

#[test]
fn a_quiet_stream_is_kept_alive_with_comments() {
    let step = Duration::from_millis(200);
    let mut server = TestServer::start(Script {
        step,
        ..Script::text("ab")
    });
    let mut open = server.open_chat(json!({"stream": true}));
    open.read_until("role");
    server.hurry();
    let answer = open.answer();
    assert!(answer.body.contains(": keep-alive\n\n"));
    assert_eq!(answer.streamed(0, "content"), "ab");
}

#[test]
fn a_stream_begins_and_is_kept_alive_while_its_request_waits_in_the_queue() {
    let step = Duration::from_millis(50);
    let mut server = TestServer::start(Script {
        step,
        ..Script::endless()
    });
    let slots: Vec<_> = (0..TINY.sequences)
        .map(|_| server.open_chat(json!({"stream": true})))
        .collect();
    server.wait_for(|stats| stats.running.get() == TINY.sequences as u64);
    let messages = json!([{"role": "user", "content": "hi"}]);
    let mut waiting = [
        (
            "/v1/chat/completions",
            json!({"messages": messages, "stream": true}),
            "\"role\":\"assistant\"",
            ": keep-alive",
        ),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 9, "stream": true}),
            // A message begins with its usage, which is not known before it has a slot.
            ": waiting for a slot",
            ": keep-alive",
        ),
        (
            "/v1/responses",
            json!({"input": "hi", "stream": true}),
            "event: response.in_progress",
            ": keep-alive",
        ),
    ]
    .map(|(path, body, start, later)| {
        let mut open = server.post(path, &body);
        open.read_until(start);
        let received = open.so_far();
        assert!(
            received.find(": waiting for a slot") <= received.find(start),
            "{received}"
        );
        assert!(received.contains(": waiting"), "{received}");
        (open, later)
    });
    server.wait_for(|stats| stats.waiting.get() == waiting.len() as u64);
    server.hurry();
    for (open, later) in &mut waiting {
        open.read_until(later);
    }
    server.wait_for(|stats| stats.waiting.get() == waiting.len() as u64);
    drop(slots);
    for (open, _) in &mut waiting {
        open.read_until(": waited ");
    }
}

/// A server with an access log, and the lines of it that hold `text` once there is one.
fn logged(script: Script, act: impl FnOnce(&TestServer), text: &str) -> Vec<Value> {
    let name = format!("atlas-access-{:016x}", super::random::bits());
    let path = std::env::temp_dir().join(name);
    let journal = Journal::open(&path, 0o600, u64::MAX).unwrap();
    let settings = Settings {
        access_log: Some(Arc::new(journal)),
        ..Settings::default()
    };
    let server = TestServer::start_as(script, settings);
    act(&server);
    let deadline = Instant::now() + Duration::from_secs(20);
    let lines = loop {
        let lines = std::fs::read_to_string(&path).unwrap();
        if lines.contains(text) && lines.ends_with('\n') {
            break lines;
        }
        assert!(Instant::now() < deadline, "no {text} in {lines:?}");
        std::thread::sleep(Duration::from_millis(5));
    };
    std::fs::remove_file(&path).unwrap();
    let lines = lines.lines().filter(|line| line.contains(text));
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn the_access_log_states_how_replies_went() {
    let two = |server: &TestServer| {
        server.chat(json!({"n": 2, "stream": true, "max_tokens": 2}));
    };
    let lines = logged(Script::text("abc"), two, "chat");
    let line = &lines[0];
    assert_eq!((lines.len(), &line["status"]), (1, &json!(200)));
    assert_eq!(line["route"], "/v1/chat/completions");
    assert_eq!(line["finish_reasons"], json!(["length", "length"]));
    assert_eq!(line["completion_tokens"], 4);
    let millis = |name: &str| line[name].as_f64().unwrap();
    assert!(millis("queue_ms") <= millis("ttft_ms") && millis("ttft_ms") <= millis("total_ms"));
}

#[test]
fn the_access_log_states_what_had_no_good_end() {
    let leave = |server: &TestServer| {
        let mut open = server.open_chat(json!({"stream": true}));
        open.read_until("role");
    };
    let line = &logged(Script::endless(), leave, "chat")[0];
    assert_eq!(line["finish_reasons"], json!(["cancelled"]));
    let failing = Script {
        fails_at: Some(1),
        ..Script::endless()
    };
    let fail = |server: &TestServer| drop(server.chat(json!({})));
    let line = &logged(failing, fail, "chat")[0];
    assert_eq!(
        (&line["status"], &line["ttft_ms"]),
        (&json!(500), &Value::Null)
    );
    assert_eq!(line["finish_reasons"], json!(["failed"]));
    let lose = |server: &TestServer| drop(server.get("/secret/path"));
    let line = &logged(Script::text("a"), lose, "404")[0];
    assert_eq!(
        (&line["route"], &line["method"]),
        (&Value::Null, &json!("GET"))
    );
    assert_eq!(line["finish_reasons"], json!([]));
}

#[test]
fn requests_of_one_name_are_told_apart_by_all_but_the_client() {
    const REQUESTS: usize = 1000;
    // None is refused, however many of them the engine has taken up.
    const AT_ONCE: usize = TINY.queued;
    let server = TestServer::start(Script::text("mine"));
    let send = |path: &str, body: Value| server.post_with(path, "x-request-id: same\r\n", &body);
    let numbers: Vec<usize> = (0..REQUESTS).collect();
    for together in numbers.chunks(AT_ONCE) {
        let ask = |number| json!({"prompt": format!("{number}: "), "echo": true, "max_tokens": 9});
        let ask = |number| send("/v1/completions", ask(number));
        let open: Vec<_> = together.iter().map(ask).collect();
        for (number, open) in together.iter().zip(open) {
            let answer = open.answer();
            let text = &answer.json()["choices"][0]["text"];
            assert_eq!(*text, format!("{number}: mine"));
            assert!(answer.head.contains("\r\nx-request-id: same\r\n"));
        }
    }
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9});
    let head = send("/v1/messages", body).answer().head;
    for name in ["x-request-id", "request-id"] {
        assert!(head.contains(&format!("\r\n{name}: same\r\n")), "{head}");
    }
    let head = server.get("/nowhere").head;
    assert!(head.contains("x-request-id: req_"), "{head}");
}

#[test]
fn figures_have_the_names_of_vllm_where_that_is_asked_for() {
    let value = |page: &str, series: &str| -> Option<f64> {
        let mut lines = page.lines().filter_map(|line| line.rsplit_once(' '));
        let (_, value) = lines.find(|(name, _)| *name == series)?;
        value.parse().ok()
    };
    let labels = "engine=\"0\",model_name=\"scripted\"";
    let settings = Settings {
        metrics: Some(Compatibility::Vllm),
        ..Settings::default()
    };
    let server = TestServer::start_as(Script::text("abc"), settings);
    server.chat(json!({"n": 2}));
    server.wait_for(|stats| stats.running.get() == 0);
    let expected = [
        ("vllm:num_requests_running{L}", 0.0),
        ("vllm:kv_cache_usage_perc{L}", 0.0),
        ("vllm:generation_tokens_total{L}", 8.0),
        (
            "vllm:request_success_total{L,finished_reason=\"stop\"}",
            2.0,
        ),
        ("vllm:time_to_first_token_seconds_count{L}", 1.0),
        ("vllm:request_queue_time_seconds_count{L}", 1.0),
        ("vllm:request_prefill_time_seconds_count{L}", 1.0),
        ("vllm:request_time_per_output_token_seconds_count{L}", 1.0),
        ("vllm:request_generation_tokens_sum{L}", 8.0),
        ("vllm:request_generation_tokens_bucket{L,le=\"16\"}", 1.0),
        ("vllm:request_params_n_sum{L}", 2.0),
        ("vllm:request_params_max_tokens_count{L}", 2.0),
        ("vllm:admission_rejections_total{L}", 0.0),
        ("atlas_request_generation_tokens_sum", 8.0),
    ];
    let differs = |page: &str| {
        let found = |series: &str| value(page, &series.replace('L', labels));
        let mut series = expected.iter();
        series.find(|(series, expected)| found(series) != Some(*expected))
    };
    // A request is counted when its answer is on the way, which may be a moment later.
    let deadline = Instant::now() + PATIENCE;
    let mut page = server.get("/metrics").body;
    while differs(&page).is_some() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
        page = server.get("/metrics").body;
    }
    assert_eq!(differs(&page), None, "{page}");
    // Nanoseconds, as they are counted: two printed fractions may add up to more than a third.
    let sum = |name: &str| {
        let seconds = value(&page, &format!("vllm:{name}_seconds_sum{{{labels}}}")).unwrap();
        (seconds * 1e9).round() as u64
    };
    // Two prompts, and each token of a reply but for the last is a row of the next step.
    let rows = value(
        &page,
        &format!("vllm:iteration_tokens_total_sum{{{labels}}}"),
    )
    .unwrap();
    let prompt = value(
        &page,
        &format!("vllm:request_prompt_tokens_sum{{{labels}}}"),
    )
    .unwrap();
    assert_eq!(rows, 2.0 * prompt + 8.0 - 2.0, "{page}");
    let parts = sum("request_prefill_time") + sum("request_decode_time");
    assert!(parts > 0 && parts <= sum("request_inference_time"));
    assert!(sum("request_inference_time") <= sum("e2e_request_latency"));
    let plain = TestServer::start(Script::text("a"));
    assert!(!plain.get("/metrics").body.contains("vllm"));
}

#[test]
fn a_preflight_needs_no_key_and_is_answered_for_listed_pages_alone() {
    let file = std::env::temp_dir().join(format!("atlas-key-{:016x}", super::random::bits()));
    std::fs::write(&file, "key-0123456789abcdef").unwrap();
    let settings = Settings {
        keys: Some(super::keys::Keys::load(&file).unwrap()),
        origins: vec!["https://chat.example".parse().unwrap()],
        ..Settings::default()
    };
    let server = TestServer::start_as(Script::text("a"), settings);
    let ask = |origin: &str| {
        let lines = format!(
            "origin: {origin}\r\naccess-control-request-method: POST\r\n\
             access-control-request-headers: x-api-key,x-any\r\n"
        );
        server.ask("OPTIONS", "/v1/messages", &lines)
    };
    let granted = ask("https://chat.example");
    assert_eq!((granted.status, granted.body.as_str()), (204, ""));
    for header in [
        "access-control-allow-origin: https://chat.example\r\n",
        "access-control-allow-methods: get, head, post, delete\r\n",
        "access-control-allow-headers: x-api-key,x-any\r\n",
        "access-control-max-age: ",
    ] {
        assert!(granted.head.contains(header), "{header}: {}", granted.head);
    }
    let refused = ask("https://evil.example");
    assert_eq!(refused.status, 403);
    assert!(!refused.head.contains("access-control"), "{}", refused.head);
    assert_eq!(server.ask("OPTIONS", "/v1/messages", "").status, 401);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn without_listed_origins_no_answer_speaks_of_them() {
    let server = TestServer::start(Script::text("a"));
    let answer = server.ask("GET", "/version", "origin: http://localhost\r\n");
    assert_eq!(answer.status, 200);
    assert!(!answer.head.contains("access-control") && !answer.head.contains("vary"));
    let other = server.ask("GET", "/version", "origin: http://b\r\n");
    assert_eq!(other.status, 403);
}

#[test]
fn a_head_that_never_ends_is_given_up() {
    let mut server = TestServer::start(Script::text("a"));
    let open = server.send(b"GET /health HTTP/1.1\r\nhost:");
    server.hurry();
    assert_eq!(open.rest(), "");
}

#[test]
fn an_idle_connection_is_closed() {
    let mut server = TestServer::start(Script::text("a"));
    let mut open = server.send(b"GET /version HTTP/1.1\r\nhost: a\r\n\r\n");
    open.read_until("200 OK");
    server.hurry();
    open.rest();
}

#[test]
fn a_body_that_stops_arriving_is_answered_408() {
    let mut server = TestServer::start(Script::text("a"));
    let head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n{";
    let open = server.send(head);
    server.wait_for_body();
    server.hurry();
    let answer = open.answer();
    assert_eq!(answer.status, 408);
    assert!(answer.head.contains("connection: close"));
}

#[test]
fn a_client_that_takes_nothing_holds_no_slot_and_is_given_up() {
    let mut server = TestServer::start(Script {
        step: Duration::ZERO,
        ..Script::endless()
    });
    let wanted = json!({"n": CHOICES_MAX, "stream": true, "logprobs": true, "top_logprobs": 20,
        "max_tokens": 100});
    let open: Vec<_> = (0..2).map(|_| server.open_chat(wanted.clone())).collect();
    // They hold no slot while their replies lie unread.
    let replies = 2 * CHOICES_MAX as u64;
    server.wait_for(|stats| stats.finished_length.get() == replies);
    server.hurry();
    let deadline = Instant::now() + PATIENCE;
    while server.state.service().unwrap().engine.backlog_bytes() > 0 {
        assert!(Instant::now() < deadline, "nobody is given up");
        thread::sleep(Duration::from_millis(5));
    }
    drop(open);
}

fn request(head: &str) -> String {
    format!("{head}\r\n\r\n")
}

#[test]
fn heads_are_bounded() {
    let server = TestServer::start(Script::text("a"));
    let with = |headers: String| server.send(request(&headers).as_bytes()).answer().status;
    let line = "GET /version HTTP/1.1\r\nhost: a\r\nconnection: close";
    let uri = |bytes: usize| {
        let path = format!("/version?{}", "x".repeat(bytes - "/version?".len()));
        with(format!(
            "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close"
        ))
    };
    assert_eq!((uri(URI_BYTES_MAX), uri(URI_BYTES_MAX + 1)), (200, 414));
    let headers = |count: usize| with(format!("{line}{}", "\r\nx: y".repeat(count - 2)));
    assert_eq!((headers(HEADERS_MAX), headers(HEADERS_MAX + 1)), (200, 431));
    let bytes = |bytes: usize| {
        let head = format!("{line}\r\nx: ");
        with(format!("{head}{}", "y".repeat(bytes - head.len() - 4)))
    };
    assert_eq!(
        (bytes(HEAD_BYTES_MAX - 16), bytes(HEAD_BYTES_MAX + 16)),
        (200, 431)
    );
}

#[test]
fn bodies_are_bounded() {
    let server = TestServer::start(Script::text("a"));
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nconnection: close";
    let declared = format!("{head}\r\ncontent-length: {}\r\n\r\n", BODY_BYTES_MAX + 1);
    assert_eq!(server.send(declared.as_bytes()).answer().status, 413);
    let whole = format!(
        "{head}\r\ncontent-length: {BODY_BYTES_MAX}\r\n\r\n{}",
        " ".repeat(BODY_BYTES_MAX)
    );
    assert_eq!(
        server.send(whole.as_bytes()).answer().error()["message"],
        "the body is empty; send a JSON object"
    );
}

#[test]
fn connections_are_bounded() {
    let server = TestServer::start(Script::text("a"));
    let open: Vec<_> = (0..CONNECTIONS).map(|_| server.send(b"")).collect();
    let mut refused = server.send(b"");
    refused.read_until("503 Service Unavailable");
    refused.read_until("too many connections");
    drop(open);
}

#[test]
fn a_reply_calls_none_but_allowed_tools() {
    let server = TestServer::start(Script::text(CALLS));
    let tool = |name: &str| {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object",
            "properties": {}}}})
    };
    let allowed = |mode: &str, name: &str| {
        let tools = json!([{"type": "function", "function": {"name": name}}]);
        json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
    };
    let ask = |choice: Value| {
        let fields = json!({"tools": [tool("f"), tool("g")], "tool_choice": choice,
            "max_tokens": 120});
        server.chat(fields).json()["choices"][0]["message"].clone()
    };
    let names = |message: &Value| -> Vec<String> {
        let calls = message["tool_calls"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let name = |call: &Value| call["function"]["name"].as_str().unwrap().to_string();
        calls.iter().map(name).collect()
    };
    let free = ask(allowed("auto", "f"));
    assert_eq!(
        (free["content"].as_str(), names(&free)[0].as_str()),
        (Some("Look:"), "f")
    );
    for mode in ["auto", "required"] {
        let other = ask(allowed(mode, "g"));
        assert!(
            names(&other).iter().all(|name| name == "g"),
            "{mode}: {other}"
        );
        assert_eq!(
            mode == "required",
            other["content"].is_null(),
            "{mode}: {other}"
        );
    }
    assert_eq!(names(&ask(allowed("required", "g")))[0], "g");
}
