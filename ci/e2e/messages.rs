//! The Anthropic Messages API, with the trained model calling tools through it.

use serde_json::{Value, json};
use step::random::Random;

use crate::harness::{Answer, Server, with};
use crate::malformed::broken;

const PATH: &str = "/v1/messages?beta=true";
const FAR: &str = "How far is it from Osaka to Niamey?";

fn question(text: &str) -> Value {
    json!({
        "model": "claude-any",
        "max_tokens": 200,
        "temperature": 0,
        "messages": [{"role": "user", "content": text}],
    })
}

/// A question that the model answers by a call, and its tool.
fn distance() -> Value {
    let city = |text: &str| json!({"type": "string", "description": text});
    let tool = json!({
        "name": "distance_between",
        "description": "How far two places are apart.",
        "input_schema": {
            "type": "object",
            "properties": {"start": city("First city"), "to": city("Second city")},
            "required": ["start", "to"],
        },
    });
    with(question(FAR), json!({"tools": [tool]}))
}

/// The message that a client makes of the events, without what is random.
fn assembled(answer: &Answer) -> Value {
    let mut message = Value::Null;
    let mut input = String::new();
    for event in answer.named_events() {
        let index = event["index"].as_u64().unwrap_or(0) as usize;
        let delta = &event["delta"];
        match event["type"].as_str().unwrap() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(content.len(), index);
                content.push(event["content_block"].clone());
                input.clear();
            }
            "content_block_delta" => {
                let (_, piece) = delta.as_object().unwrap().iter().nth(1).unwrap();
                let piece = piece.as_str().unwrap();
                let block = &mut message["content"][index];
                match delta["type"].as_str().unwrap() {
                    "input_json_delta" => input.push_str(piece),
                    kind => {
                        let name = kind.strip_suffix("_delta").unwrap();
                        let text = block[name].as_str().unwrap().to_string();
                        block[name] = Value::from(text + piece);
                    }
                }
            }
            "content_block_stop" if !input.is_empty() => {
                message["content"][index]["input"] = read_leniently(&input);
            }
            "message_delta" => {
                message["stop_reason"] = delta["stop_reason"].clone();
                message["stop_sequence"] = delta["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "content_block_stop" | "message_stop" | "ping" => {}
            other => panic!("{other}"),
        }
    }
    without_ids(message)
}

/// Input of a call as the API's clients read it: what lacks an end has it there.
fn read_leniently(input: &str) -> Value {
    let complete = input.trim_end_matches([',', ' ']);
    let ends = ["", "}"].map(|end| format!("{complete}{end}"));
    let mut read = ends
        .iter()
        .filter_map(|text| serde_json::from_str(text).ok());
    read.next().unwrap_or_else(|| panic!("{input}"))
}

fn without_ids(mut message: Value) -> Value {
    message.as_object_mut().unwrap().remove("id");
    for block in message["content"].as_array_mut().unwrap() {
        block.as_object_mut().unwrap().remove("id");
    }
    message
}

fn text(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{answer:?}");
    let message = answer.json();
    let blocks = message["content"].as_array().unwrap();
    let last = blocks.last().unwrap();
    last["text"].as_str().unwrap().to_string()
}

#[test]
fn a_streamed_message_equals_the_whole_one() {
    let server = Server::lent();
    let think = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}});
    let sum = question("What is 347 + 285?");
    for body in [sum.clone(), with(sum, think), distance()] {
        // Neither begins behind what was computed for the other.
        let apart = |salt: &str| with(body.clone(), json!({"cache_salt": salt}));
        let whole = server.post_to(PATH, &apart("whole"));
        assert_eq!(whole.status, 200, "{whole:?}");
        let streamed = with(apart("streamed"), json!({"stream": true}));
        let streamed = server.post_to(PATH, &streamed);
        assert_eq!(assembled(&streamed), without_ids(whole.json()));
    }
}

/// Answers whole and as a stream; the request gives both the same state to begin with.
fn told_twice(server: &Server, body: &Value) -> [Value; 2] {
    let whole = without_ids(server.post_to(PATH, body).json());
    let streamed = with(body.clone(), json!({"stream": true}));
    let streamed = assembled(&server.post_to(PATH, &streamed));
    let without_usage = json!({"usage": null});
    [whole, streamed].map(|message| with(message, without_usage.clone()))
}

#[test]
fn a_call_that_a_stop_string_cuts_is_streamed_as_it_is_told_whole() {
    let server = Server::lent();
    for stop in [
        "start", "Osa", "ka", "Osaka", "to", "Nia", "mey", "\"}", ">",
    ] {
        let body = with(distance(), json!({"stop_sequences": [stop]}));
        let [whole, streamed] = told_twice(&server, &body);
        assert_eq!(streamed, whole, "{stop}");
    }
}

#[test]
fn a_call_that_the_length_cuts_is_streamed_as_it_is_told_whole() {
    let server = Server::lent();
    for length in 1..48 {
        let body = with(distance(), json!({"max_tokens": length}));
        let [whole, streamed] = told_twice(&server, &body);
        assert_eq!(streamed, whole, "{length}");
    }
}

#[test]
fn the_trained_model_calls_a_tool_and_reads_its_result() {
    let server = Server::lent();
    let body = distance();
    let first = server.post_to(PATH, &body).json();
    assert_eq!(first["stop_reason"], "tool_use", "{first}");
    let call = first["content"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(call["name"], "distance_between");
    assert_eq!(call["input"], json!({"start": "Osaka", "to": "Niamey"}));

    let mut second = body;
    let messages = second["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": first["content"]}));
    messages.push(json!({"role": "user", "content": [{"type": "tool_result",
        "tool_use_id": call["id"], "cache_control": {"type": "ephemeral"},
        "content": [{"type": "text", "text": "{\"km\": 5023}"}]}]}));
    let answer = server.post_to(PATH, &second);
    assert!(text(&answer).contains("5023"), "{answer:?}");
    assert_eq!(answer.json()["stop_reason"], "end_turn");
}

#[test]
fn thinking_comes_back_signed_and_may_be_sent_again() {
    let server = Server::lent();
    let think = json!({"thinking": {"type": "adaptive"}});
    let mut body = with(question("What is 347 + 285?"), think);
    let first = server.post_to(PATH, &body).json();
    assert_eq!(first["content"][0]["type"], "thinking");
    assert!(
        !first["content"][0]["signature"]
            .as_str()
            .unwrap()
            .is_empty()
    );
    assert!(
        first["content"][1]["text"]
            .as_str()
            .unwrap()
            .contains("632")
    );
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": first["content"]}));
    messages.push(json!({"role": "user", "content": "What is the capital of France?"}));
    assert!(text(&server.post_to(PATH, &body)).contains("Paris"));
}

#[test]
fn a_thinking_budget_is_kept_and_the_answer_still_comes() {
    let server = Server::lent();
    let think = json!({"thinking": {"type": "enabled", "budget_tokens": 10}});
    let answer = server.post_to(PATH, &with(question("What is 347 + 285?"), think));
    let thought = answer.json()["content"][0]["thinking"]
        .as_str()
        .unwrap()
        .to_string();
    assert!(
        thought.ends_with("[The thinking budget is used up.]"),
        "{thought}"
    );
    assert!(text(&answer).contains("632"), "{answer:?}");
}

#[test]
fn a_call_can_be_forced() {
    let server = Server::lent();
    let body = with(distance(), question("What is the capital of France?"));
    for choice in [
        json!({"type": "any", "disable_parallel_tool_use": true}),
        json!({"type": "tool", "name": "distance_between"}),
    ] {
        let answer = server.post_to(PATH, &with(body.clone(), json!({"tool_choice": choice})));
        let message = answer.json();
        assert_eq!(message["stop_reason"], "tool_use", "{answer:?}");
        let call = &message["content"][0];
        assert_eq!(call["name"], "distance_between");
        assert!(call["input"]["start"].is_string() && call["input"]["to"].is_string());
    }
}

#[test]
fn an_answer_obeys_its_schema_behind_its_thinking() {
    let server = Server::lent();
    let schema = json!({"type": "object", "properties": {"sum": {"type": "integer"}},
        "required": ["sum"], "additionalProperties": false});
    let format = json!({"format": {"type": "json_schema", "schema": schema}});
    for thinking in [
        json!({"type": "disabled"}),
        json!({"type": "adaptive"}),
        json!({"type": "enabled", "budget_tokens": 5}),
    ] {
        let fields = json!({"output_config": format, "thinking": thinking});
        let answer = server.post_to(PATH, &with(question("What is 3 + 4?"), fields));
        let value: Value = serde_json::from_str(&text(&answer)).unwrap();
        assert!(value["sum"].is_i64(), "{answer:?}");
    }
}

/// A coding agent's usual request, in miniature.
#[test]
fn a_coding_agents_request_is_answered() {
    let server = Server::start();
    let billing = "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli";
    let body = json!({
        "model": "claude-sonnet-4-5",
        "max_tokens": 32000,
        "stream": true,
        "temperature": 0,
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "metadata": {"user_id": "u"},
        "system": [
            {"type": "text", "text": billing},
            {"type": "text", "text": "Answer briefly.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": FAR,
                "cache_control": {"type": "ephemeral"}}]},
            {"role": "system", "content": "The date is unknown."},
        ],
        "tools": distance()["tools"],
    });
    let answer = server.post_to(PATH, &body);
    let message = assembled(&answer);
    assert_eq!(message["stop_reason"], "tool_use", "{message}");

    let other = body
        .to_string()
        .replace("cc_version=2.1", "cc_version=2.1.329.abcdef");
    let other: Value = serde_json::from_str(&other).unwrap();
    let count = |body: &Value| {
        let answer = server.post_to("/v1/messages/count_tokens?beta=true", body);
        answer.json()["input_tokens"].as_u64().unwrap()
    };
    assert_eq!(count(&body), count(&other));
    assert_eq!(
        count(&body),
        message["usage"]["input_tokens"].as_u64().unwrap()
    );
}

#[test]
fn what_does_not_fit_is_refused_in_the_words_that_clients_parse() {
    let server = Server::lent();
    let long = server.post_to(PATH, &question(&"word ".repeat(4000)));
    assert_eq!(long.status, 400);
    let error = long.json()["error"].clone();
    assert_eq!(error["type"], "invalid_request_error");
    let message = error["message"].as_str().unwrap();
    assert!(message.ends_with(" tokens > 2048 maximum"), "{message}");
}

/// Fields with values that are wrong for them, and the path at fault.
fn wrong(random: &mut Random) -> (Value, &'static str) {
    let content = |role: &str, block: Value| {
        let first = json!({"role": "user", "content": "x"});
        json!({"messages": [first, {"role": role, "content": [block]}]})
    };
    let tool = |tool: Value| json!({"tools": [tool]});
    let cases = [
        (json!({"messages": []}), "messages"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": [{"content": "x"}]}), "messages[0].role"),
        (
            json!({"messages": [{"role": "tool", "content": "x"}]}),
            "messages[0].role",
        ),
        (
            json!({"messages": [{"role": "user", "content": {}}]}),
            "messages[0].content",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": "x"}],
                "thinking": {"type": "adaptive"}}),
            "messages[0]",
        ),
        (
            content("user", json!({"type": "image", "source": {}})),
            "messages[1].content[0].type",
        ),
        (
            content("user", json!({"type": "text"})),
            "messages[1].content[0].text",
        ),
        (
            content("user", json!({"type": "tool_use"})),
            "messages[1].content[0].type",
        ),
        (
            content("user", json!({"text": "x"})),
            "messages[1].content[0].type",
        ),
        (
            content("user", json!({"type": "tool_result", "content": "x"})),
            "messages[1].content[0].tool_use_id",
        ),
        (
            content(
                "user",
                json!({"type": "tool_result", "tool_use_id": "t", "is_error": 1}),
            ),
            "messages[1].content[0].is_error",
        ),
        (
            content(
                "user",
                json!({"type": "tool_result", "tool_use_id": "t",
                    "content": [{"type": "tool_reference", "tool_name": "absent"}]}),
            ),
            "messages[1].content[0].content[0].tool_name",
        ),
        (
            content(
                "system",
                json!({"type": "tool_removal",
                    "tool": {"type": "tool_reference", "name": "absent"}}),
            ),
            "messages[1].content[0].tool.name",
        ),
        (
            content(
                "assistant",
                json!({"type": "tool_use", "id": "t", "name": "f", "input": 1}),
            ),
            "messages[1].content[0].input",
        ),
        (
            content("assistant", json!({"type": "thinking", "signature": "x"})),
            "messages[1].content[0].thinking",
        ),
        (json!({"system": 5}), "system"),
        (json!({"system": [{"type": "image"}]}), "system[0].type"),
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": 1e300}), "max_tokens"),
        (json!({"temperature": 2.5}), "temperature"),
        (json!({"top_p": 1.5}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stop_sequences": "x"}), "stop_sequences"),
        (json!({"stop_sequences": [""]}), "stop_sequences[0]"),
        (json!({"thinking": {"type": "wild"}}), "thinking.type"),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": -1}}),
            "thinking.budget_tokens",
        ),
        (
            json!({"output_config": {"effort": "wild"}}),
            "output_config.effort",
        ),
        (json!({"tool_choice": {"type": "wild"}}), "tool_choice.type"),
        (
            json!({"output_config": {"task_budget": {"type": "tokens", "total": 9}}}),
            "output_config.task_budget",
        ),
        (tool(json!({"name": "f"})), "tools[0].input_schema"),
        (
            tool(json!({"name": "a b", "input_schema": {}})),
            "tools[0].name",
        ),
        (
            tool(json!({"name": "f", "input_schema": {}, "defer_loading": 1})),
            "tools[0].defer_loading",
        ),
        (
            tool(json!({"type": "computer_20250124", "name": "computer"})),
            "tools[0].type",
        ),
        (json!({"mcp_servers": [{}]}), "mcp_servers"),
    ];
    random.of(&cases).clone()
}

fn assert_refused(answer: &Answer, at: &str, context: &str) {
    assert_eq!(answer.status, 400, "{context}: {answer:?}");
    let body = answer.json();
    assert_eq!(body["type"], "error", "{context}");
    assert_eq!(body["error"]["type"], "invalid_request_error", "{context}");
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.starts_with(at), "{context}: {message}");
    assert!(
        body["request_id"].as_str().unwrap().starts_with("req_"),
        "{context}"
    );
}

#[test]
fn malformed_requests_are_told_what_is_wrong() {
    const COUNT: &str = "/v1/messages/count_tokens";
    let server = Server::lent();
    let mut random = Random::new(0x6d65_7373);
    for number in 0..300 {
        let (fields, at) = wrong(&mut random);
        let context = format!("case {number}: {fields}");
        let answer = server.post_to(PATH, &with(question("Hi"), fields));
        assert_refused(&answer, &format!("{at}: "), &context);
        let path = *random.of(&[PATH, COUNT]);
        let body = broken(&mut random);
        let answer = server.open_post(path, &body).answer();
        assert_refused(&answer, "the body is ", &format!("case {number}, broken"));
    }
    assert_eq!(server.get("/health").status, 200);
    server.wait_for_metric("atlas_kv_pages_used", 0.0);
}

#[test]
fn betas_are_named_to_the_operator_who_asks() {
    let server = Server::start_with(&["--log-level", "debug"]);
    let body = with(question("Hi"), json!({"max_tokens": 1})).to_string();
    let betas = "anthropic-beta: a-2099-01-01,b\r\nanthropic-beta: c\r\n";
    assert_eq!(server.ask("POST", PATH, betas, &body).status, 200);
    server.line_with("betas are ignored: \"a-2099-01-01,b\"");
    server.line_with("betas are ignored: \"c\"");
}
