//! A tool loop of a model that speaks harmony, streamed through every dialect.

use serde_json::{Value, json};

use text::chat::ChatModel;
use text::testing::harmony_model;

use crate::testing::{Answer, Script, TestServer};

const CALL: &str = "<|channel|>analysis<|message|>I think é.<|end|><|start|>assistant\
    <|channel|>commentary<|message|>I look.<|end|>\
    <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"a\":1}<|call|>";
const ANSWER: &str = "<|channel|>analysis<|message|>Now I know.<|end|><|start|>assistant\
    <|channel|>final<|message|>It is 2 🦀.<|return|>";
/// End of the second prompt, after the first one and the call.
const RESULT: &str = "<|start|>functions.f to=assistant<|channel|>commentary<|message|>2<|end|>\
    <|start|>assistant";

fn parameters() -> Value {
    json!({"type": "object", "properties": {"a": {"type": "integer"}}})
}

fn tokens(model: &ChatModel, text: &str) -> u64 {
    model.tokenizer.encode(text).unwrap().len() as u64
}

/// Checks that a prompt is the one before, the reply to that and the result.
fn goes_on(before: u64, after: u64) {
    let model = harmony_model();
    let more = tokens(&model, CALL) + tokens(&model, RESULT);
    assert_eq!(after, before + more);
}

pub fn post(server: &TestServer, path: &str, body: &Value) -> Answer {
    let answer = server.post(path, body).answer();
    assert_eq!(answer.status, 200, "{answer:?}");
    answer
}

#[test]
fn a_tool_loop_goes_through_chat_completions() {
    let server = TestServer::start(Script::harmony(&[CALL, ANSWER]));
    let mut body = json!({"stream": true, "stream_options": {"include_usage": true},
        "reasoning_effort": "high", "messages": [{"role": "user", "content": "?"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters()}}]});
    let first = post(&server, "/v1/chat/completions", &body);
    let events = first.events();
    let deltas = events.iter().map(|event| &event["choices"][0]["delta"]);
    let calls: Vec<&Value> = deltas
        .filter_map(|delta| delta["tool_calls"].get(0))
        .collect();
    let arguments = calls
        .iter()
        .filter_map(|call| call["function"]["arguments"].as_str());
    let arguments: String = arguments.collect();
    assert_eq!(calls[0]["function"]["name"], "f");
    assert_eq!(arguments, "{\"a\":1}");
    assert!(calls.len() > 2, "arguments come in pieces");
    let said = json!({"role": "assistant", "content": first.streamed(0, "content"),
        "reasoning_content": first.streamed(0, "reasoning_content"),
        "tool_calls": [{"id": calls[0]["id"], "type": "function",
            "function": {"name": "f", "arguments": arguments}}]});
    assert_eq!(
        (&said["content"], &said["reasoning_content"]),
        (&json!("I look."), &json!("I think é."))
    );
    let result = json!({"role": "tool", "tool_call_id": calls[0]["id"], "content": "2"});
    let messages = body["messages"].as_array_mut().unwrap();
    messages.extend([said, result]);
    let second = post(&server, "/v1/chat/completions", &body);
    assert_eq!(second.streamed(0, "reasoning_content"), "Now I know.");
    assert_eq!(second.streamed(0, "content"), "It is 2 🦀.");
    let finishes = |answer: &Answer| {
        let events = answer.events();
        let mut reasons = events
            .iter()
            .map(|event| &event["choices"][0]["finish_reason"]);
        reasons.find(|reason| reason.is_string()).cloned()
    };
    assert_eq!(finishes(&first), Some(json!("tool_calls")));
    assert_eq!(finishes(&second), Some(json!("stop")));
    let [before, after] = [&first, &second].map(|answer| {
        let usage = answer.events().pop().unwrap()["usage"].clone();
        usage["prompt_tokens"].as_u64().unwrap()
    });
    goes_on(before, after);
}

/// The blocks that the events of a message make.
pub fn blocks(answer: &Answer) -> Vec<Value> {
    let mut blocks: Vec<Value> = Vec::new();
    for event in answer.named_events() {
        if event["type"] == "content_block_start" {
            blocks.push(event["content_block"].clone());
        }
        let delta = &event["delta"];
        for (name, field) in [
            ("text", "text"),
            ("thinking", "thinking"),
            ("signature", "signature"),
            ("partial_json", "json"),
        ] {
            if let (Some(more), Some(block)) = (delta[name].as_str(), blocks.last_mut()) {
                let text = block[field].as_str().unwrap_or_default();
                block[field] = json!(format!("{text}{more}"));
            }
        }
    }
    for block in &mut blocks {
        if let Some(json) = block.as_object_mut().and_then(|block| block.remove("json")) {
            block["input"] = serde_json::from_str(json.as_str().unwrap()).unwrap();
        }
    }
    blocks
}

pub fn input_tokens(answer: &Answer) -> u64 {
    let usage = &answer.named_events()[0]["message"]["usage"];
    let fields = [
        "input_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
    ];
    let counts = fields.map(|field| usage[field].as_u64().unwrap_or(0));
    counts.iter().sum()
}

#[test]
fn a_tool_loop_goes_through_messages() {
    let server = TestServer::start(Script::harmony(&[CALL, ANSWER]));
    let mut body = json!({"model": "scripted", "max_tokens": 500, "stream": true,
        "thinking": {"type": "adaptive"}, "messages": [{"role": "user", "content": "?"}],
        "tools": [{"name": "f", "input_schema": parameters()}]});
    let first = post(&server, "/v1/messages", &body);
    let said = blocks(&first);
    let [thinking, text, call] = said.as_slice() else {
        panic!("{said:?}");
    };
    assert_eq!(
        (&thinking["thinking"], &text["text"]),
        (&json!("I think é."), &json!("I look."))
    );
    assert_eq!(
        (&call["name"], &call["input"]),
        (&json!("f"), &json!({"a": 1}))
    );
    assert!(first.body.contains("\"stop_reason\":\"tool_use\""));
    let result = json!({"type": "tool_result", "tool_use_id": call["id"], "content": "2"});
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": said}));
    messages.push(json!({"role": "user", "content": [result]}));
    let second = post(&server, "/v1/messages", &body);
    let answer = blocks(&second);
    assert_eq!(answer[0]["thinking"], "Now I know.");
    assert_eq!(answer[1]["text"], "It is 2 🦀.");
    assert!(second.body.contains("\"stop_reason\":\"end_turn\""));
    goes_on(input_tokens(&first), input_tokens(&second));
}

pub fn completed(answer: &Answer) -> Value {
    answer.named_events().pop().unwrap()["response"].clone()
}

#[test]
fn a_tool_loop_goes_through_responses() {
    let server = TestServer::start(Script::harmony(&[CALL, ANSWER]));
    let mut body = json!({"stream": true, "reasoning": {"effort": "high"},
        "include": ["reasoning.encrypted_content"], "input": [{"role": "user", "content": "?"}],
        "tools": [{"type": "function", "name": "f", "parameters": parameters()}]});
    let answer = post(&server, "/v1/responses", &body);
    let first = completed(&answer);
    let output = first["output"].as_array().unwrap();
    let kinds: Vec<&Value> = output.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    let events = answer.named_events();
    let arguments = events
        .iter()
        .filter(|event| event["type"] == "response.function_call_arguments.delta")
        .filter_map(|event| event["delta"].as_str());
    assert_eq!(arguments.collect::<String>(), "{\"a\":1}");
    let input = body["input"].as_array_mut().unwrap();
    input.extend(output.iter().cloned());
    input.push(
        json!({"type": "function_call_output", "call_id": output[2]["call_id"],
        "output": "2"}),
    );
    let second = completed(&post(&server, "/v1/responses", &body));
    assert_eq!(second["output"][0]["content"][0]["text"], "Now I know.");
    assert_eq!(second["output"][1]["content"][0]["text"], "It is 2 🦀.");
    let count = |response: &Value| response["usage"]["input_tokens"].as_u64().unwrap();
    goes_on(count(&first), count(&second));
}

/// The prompt ends inside the reasoning then, so the script begins there.
#[test]
fn a_used_up_budget_ends_the_reasoning_and_a_schema_begins_after_it() {
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true,
        "schema": {"type": "object", "properties": {"a": {"type": "integer"}},
            "required": ["a"], "additionalProperties": false}}});
    let reply = "Thinking for long.<|start|>assistant<|channel|>final <|constrain|>json\
        <|message|>{\"a\":1}";
    let server = TestServer::start(Script::harmony(&[reply]));
    let answer = server.chat(json!({"thinking_budget": 8, "reasoning_effort": "high",
        "response_format": format, "temperature": 0}));
    let message = answer.json()["choices"][0]["message"].clone();
    let reasoning = message["reasoning_content"].as_str().unwrap();
    assert!(
        reasoning.starts_with("Thinking\n\n[The thinking budget"),
        "{message}"
    );
    let value: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
    assert!(value["a"].is_number(), "{message}");
}

#[test]
fn a_reply_without_thinking_has_no_reasoning() {
    let final_alone = "<|channel|>final<|message|>Hi.<|return|>";
    let server = TestServer::start(Script::harmony(&[final_alone]));
    let message = server.chat(json!({})).json()["choices"][0]["message"].clone();
    assert_eq!(message["content"], "Hi.");
    assert!(
        message["reasoning_content"]
            .as_str()
            .unwrap_or_default()
            .is_empty()
    );
}

#[test]
fn what_must_be_called_is_called_whatever_the_model_would_write() {
    let server = TestServer::start(Script::harmony(&[
        "<|channel|>final<|message|>No.<|return|>",
    ]));
    let tools = json!([{"type": "function", "function": {"name": "f", "strict": true,
        "parameters": {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"],
            "additionalProperties": false}}}]);
    let answer = server.chat(json!({"tools": tools, "tool_choice": "required"}));
    let choice = answer.json()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer:?}");
    let call = &choice["message"]["tool_calls"][0]["function"];
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!((&call["name"], arguments), (&json!("f"), json!({"a": 1})));
}
