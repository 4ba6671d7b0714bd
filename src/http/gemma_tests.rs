//! Tool loops of a model that speaks as Gemma 4, streamed through every dialect: thoughts are in a
//! channel, values of calls are no JSON, and results are in the turn of the model.

use serde_json::{Value, json};

use text::testing::gemma_model;

use crate::harmony::{blocks, completed, input_tokens, post};
use crate::testing::{Script, TestServer};

const CALLS: &str = "<|channel>thought\nI think é.\n<channel|>\
    <|tool_call>call:f{a:1,b:{c:<|\"|>\"x\", {y}<|\"|>,d:[true,<|\"|>\\<|\"|>]}}<tool_call|>\
    <|tool_call>call:f{}<tool_call|>";
const ANSWER: &str = "<|channel>thought\nNow I know.\n<channel|>It is 2 🦀.<turn|>";
/// End of the second prompt, after the first one and the calls.
const RESULTS: &str = "<|tool_response>response:f{value:<|\"|>2<|\"|>}<tool_response|>\
    <|tool_response>response:f{value:<|\"|>\"3\"<|\"|>}<tool_response|>";
/// Contents of the results.
const FOUND: [&str; 2] = ["2", "\"3\""];

fn arguments() -> [Value; 2] {
    [
        json!({"a": 1, "b": {"c": "\"x\", {y}", "d": [true, "\\"]}}),
        json!({}),
    ]
}

fn parameters() -> Value {
    json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "object"}}})
}

fn server() -> TestServer {
    // A result is where the turn of the model ends for the server.
    let called = format!("{CALLS}<|tool_response>");
    TestServer::start(Script::replies(gemma_model, &[&called, ANSWER]))
}

/// Checks that a prompt is the one before, the reply to that and the results.
fn goes_on(before: u64, after: u64) {
    let more = gemma_model().tokenizer.encode(&format!("{CALLS}{RESULTS}"));
    assert_eq!(after, before + more.unwrap().len() as u64);
}

#[test]
fn two_calls_go_through_chat_completions() {
    let server = server();
    let mut body = json!({"stream": true, "stream_options": {"include_usage": true},
        "reasoning_effort": "high", "messages": [{"role": "user", "content": "?"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters()}}]});
    let first = post(&server, "/v1/chat/completions", &body);
    let mut calls = vec![json!({"type": "function", "function": {}}); 2];
    let mut texts = [String::new(), String::new()];
    for event in first.events() {
        let delta = &event["choices"][0]["delta"]["tool_calls"][0];
        let Some(at) = delta["index"].as_u64() else {
            continue;
        };
        let at = usize::try_from(at).unwrap();
        if delta["id"].is_string() {
            calls[at]["id"] = delta["id"].clone();
            calls[at]["function"]["name"] = delta["function"]["name"].clone();
        }
        texts[at].push_str(delta["function"]["arguments"].as_str().unwrap_or_default());
    }
    assert_eq!(
        texts
            .each_ref()
            .map(|text| serde_json::from_str::<Value>(text).unwrap()),
        arguments()
    );
    for (call, text) in calls.iter_mut().zip(texts) {
        call["function"]["arguments"] = json!(text);
    }
    let thoughts = first.streamed(0, "reasoning_content");
    assert_eq!(thoughts, "I think é.");
    let results = calls.iter().zip(FOUND);
    let results: Vec<Value> = results
        .map(|(call, found)| json!({"role": "tool", "tool_call_id": call["id"], "content": found}))
        .collect();
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(
        json!({"role": "assistant", "content": null, "reasoning_content": thoughts,
        "tool_calls": calls}),
    );
    messages.extend(results);
    let second = post(&server, "/v1/chat/completions", &body);
    assert_eq!(second.streamed(0, "reasoning_content"), "Now I know.");
    assert_eq!(second.streamed(0, "content"), "It is 2 🦀.");
    let [before, after] = [&first, &second].map(|answer| {
        let usage = answer.events().pop().unwrap()["usage"].clone();
        usage["prompt_tokens"].as_u64().unwrap()
    });
    goes_on(before, after);
}

#[test]
fn two_calls_go_through_messages() {
    let server = server();
    let mut body = json!({"model": "scripted", "max_tokens": 500, "stream": true,
        "thinking": {"type": "adaptive"}, "messages": [{"role": "user", "content": "?"}],
        "tools": [{"name": "f", "input_schema": parameters()}]});
    let first = post(&server, "/v1/messages", &body);
    let said = blocks(&first);
    let [thinking, calls @ ..] = said.as_slice() else {
        panic!("{first:?}");
    };
    assert_eq!(thinking["thinking"], "I think é.");
    let inputs = calls.iter().map(|call| call["input"].clone());
    assert_eq!(inputs.collect::<Vec<_>>(), arguments());
    let results = calls.iter().zip(FOUND).map(
        |(call, found)| json!({"type": "tool_result", "tool_use_id": call["id"], "content": found}),
    );
    let results: Vec<Value> = results.collect();
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": said}));
    messages.push(json!({"role": "user", "content": results}));
    let second = post(&server, "/v1/messages", &body);
    let answer = blocks(&second);
    assert_eq!(answer[0]["thinking"], "Now I know.");
    assert_eq!(answer[1]["text"], "It is 2 🦀.");
    goes_on(input_tokens(&first), input_tokens(&second));
}

#[test]
fn two_calls_go_through_responses() {
    let server = server();
    let mut body = json!({"stream": true, "reasoning": {"effort": "high"},
        "include": ["reasoning.encrypted_content"], "input": [{"role": "user", "content": "?"}],
        "tools": [{"type": "function", "name": "f", "parameters": parameters()}]});
    let first = completed(&post(&server, "/v1/responses", &body));
    let output = first["output"].as_array().unwrap();
    let [reasoning, calls @ ..] = output.as_slice() else {
        panic!("{first}");
    };
    assert_eq!(reasoning["content"][0]["text"], "I think é.");
    let called = calls.iter().map(|call| call["arguments"].as_str().unwrap());
    let called: Vec<Value> = called
        .map(|text| serde_json::from_str(text).unwrap())
        .collect();
    assert_eq!(called, arguments());
    let results = calls.iter().zip(FOUND).map(|(call, found)| {
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": found})
    });
    let input = body["input"].as_array_mut().unwrap();
    input.extend(output.iter().cloned().chain(results));
    let second = completed(&post(&server, "/v1/responses", &body));
    assert_eq!(second["output"][0]["content"][0]["text"], "Now I know.");
    assert_eq!(second["output"][1]["content"][0]["text"], "It is 2 🦀.");
    let count = |response: &Value| response["usage"]["input_tokens"].as_u64().unwrap();
    goes_on(count(&first), count(&second));
}

/// The prompt ends inside the thoughts then, which the model would open itself, so the script
/// begins there.
#[test]
fn a_budget_is_obeyed_by_a_model_that_opens_its_thoughts_itself() {
    let reply = "Thinking for long.\n<channel|>Done.<turn|>";
    let server = TestServer::start(Script::replies(gemma_model, &[reply]));
    let body = json!({"model": "scripted", "max_tokens": 200,
        "thinking": {"type": "enabled", "budget_tokens": 8},
        "messages": [{"role": "user", "content": "?"}]});
    let message = post(&server, "/v1/messages", &body).json();
    let thoughts = message["content"][0]["thinking"].as_str().unwrap();
    assert_eq!(thoughts, "Thinking\n\n[The thinking budget is used up.]");
}
