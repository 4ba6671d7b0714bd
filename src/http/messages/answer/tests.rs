use std::sync::LazyLock;

use super::*;
use crate::testing::random_reply;
use text::reply::append;
use text::testing::{Random, chat_model};

fn identity(show_thinking: bool) -> Identity {
    /// One for both forms of an answer.
    static SEAL: LazyLock<Seal> = LazyLock::new(|| Seal::new(None));
    Identity {
        id: "msg_1".to_string(),
        model: "m".to_string(),
        request_id: "req_1".to_string(),
        stops: vec!["a".to_string(), "b".to_string()],
        seal: (!show_thinking).then(|| SEAL.clone()),
        warnings: Vec::new(),
    }
}

const USAGE_BEFORE: Usage = Usage {
    cached: 1,
    completion: 0,
    reasoning: 0,
    ..USAGE
};

fn deltas() -> Vec<Delta> {
    let call = |index| Delta::ToolCall {
        index,
        name: "f".to_string(),
    };
    let arguments = |index, json: &str| Delta::Arguments {
        index,
        json: json.to_string(),
    };
    vec![
        Delta::Reasoning("wh".to_string()),
        Delta::Reasoning("y".to_string()),
        Delta::Content("\"So\"".to_string()),
        call(0),
        arguments(0, "{\"a\":"),
        arguments(0, "1}"),
        call(1),
        arguments(1, "{}"),
    ]
}

fn settled(deltas: Vec<Delta>, finish: Option<Finish>) -> Settled {
    Settled {
        deltas,
        finish,
        ..Settled::default()
    }
}

const USAGE: Usage = Usage {
    prompt: 3,
    cached: 0,
    completion: 4,
    reasoning: 1,
};

fn events(bytes: Vec<u8>) -> Vec<Value> {
    let text = String::from_utf8(bytes).unwrap();
    let event = |event: &str| {
        let (name, data) = event.split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(name.strip_prefix("event: ").unwrap(), data["type"]);
        data
    };
    text.split_terminator("\n\n").map(event).collect()
}

fn streamed(show_thinking: bool, finish: Finish) -> Vec<Value> {
    let mut writer = MessageWriter::new(identity(show_thinking));
    let mut out = Vec::new();
    writer.write_admitted(USAGE_BEFORE, &mut out);
    for delta in deltas() {
        writer.write(&chat_model(), settled(vec![delta], None), &mut out);
    }
    writer.write(&chat_model(), settled(vec![], Some(finish)), &mut out);
    writer.write_end(USAGE, &mut out);
    events(out)
}

/// Message that a client makes of the events.
fn assembled(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut inputs = vec![String::new(); events.len()];
    for event in events {
        let index = event["index"].as_u64().unwrap_or(0) as usize;
        let delta = &event["delta"];
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                content.push(event["content_block"].clone());
                assert_eq!(content.len(), index + 1);
            }
            "content_block_delta" => {
                let block = &mut message["content"][index];
                let (_, piece) = delta.as_object().unwrap().iter().nth(1).unwrap();
                match delta["type"].as_str().unwrap() {
                    "signature_delta" => block["signature"] = piece.clone(),
                    "input_json_delta" => inputs[index] += piece.as_str().unwrap(),
                    kind => {
                        let name = kind.strip_suffix("_delta").unwrap();
                        let text = block[name].as_str().unwrap().to_string();
                        block[name] = Value::from(text + piece.as_str().unwrap());
                    }
                }
            }
            "content_block_stop" if message["content"][index]["type"] == "tool_use" => {
                let input = serde_json::from_str(&inputs[index]).unwrap();
                message["content"][index]["input"] = input;
            }
            "message_delta" => {
                message["usage"] = event["usage"].clone();
                message["stop_reason"] = delta["stop_reason"].clone();
                message["stop_sequence"] = delta["stop_sequence"].clone();
            }
            _ => {}
        }
    }
    message
}

fn without_call_ids(mut message: Value) -> Value {
    for block in message["content"].as_array_mut().unwrap() {
        if let Some(id) = block.as_object_mut().unwrap().remove("id") {
            assert!(id.as_str().unwrap().starts_with("toolu_"));
        }
    }
    message
}

#[test]
fn events_come_in_the_order_of_the_api() {
    let found = streamed(true, Finish::ToolCalls);
    let kinds: Vec<&str> = found
        .iter()
        .map(|event| {
            event["delta"]["type"]
                .as_str()
                .or(event["type"].as_str())
                .unwrap()
        })
        .collect();
    let expected = [
        "message_start",
        "content_block_start",
        "thinking_delta",
        "thinking_delta",
        "signature_delta",
        "content_block_stop",
        "content_block_start",
        "text_delta",
        "content_block_stop",
        "content_block_start",
        "input_json_delta",
        "input_json_delta",
        "content_block_stop",
        "content_block_start",
        "input_json_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(kinds, expected);
    let usage = &found[0]["message"]["usage"];
    let reported = (&usage["input_tokens"], &usage["cache_read_input_tokens"]);
    assert_eq!(reported, (&json!(2), &json!(1)));
    assert_eq!(found[0]["message"]["stop_reason"], Value::Null);
}

#[test]
fn a_streamed_message_equals_the_whole_one() {
    for show_thinking in [true, false] {
        let mut reply = Settled {
            finish: Some(Finish::ToolCalls),
            ..Settled::default()
        };
        deltas()
            .into_iter()
            .for_each(|delta| append(&mut reply.deltas, delta));
        let whole = whole_answer(&identity(show_thinking), reply, USAGE);
        let streamed = assembled(&streamed(show_thinking, Finish::ToolCalls));
        assert_eq!(without_call_ids(streamed), without_call_ids(whole));
    }
}

#[test]
fn the_cut_into_pieces_never_changes_the_message() {
    let (mut random, model) = (Random::new(11), chat_model());
    for _ in 0..500 {
        let (pieces, finish) = (random_reply(&mut random), Finish::ToolCalls);
        let mut reply = Settled {
            finish: Some(finish),
            ..Settled::default()
        };
        let mut writer = MessageWriter::new(identity(true));
        let mut out = Vec::new();
        writer.write_admitted(USAGE_BEFORE, &mut out);
        for delta in pieces {
            append(&mut reply.deltas, delta.clone());
            writer.write(&model, settled(vec![delta], None), &mut out);
        }
        writer.write(&model, settled(vec![], Some(finish)), &mut out);
        writer.write_end(USAGE, &mut out);
        let whole = whole_answer(&identity(true), reply, USAGE);
        let streamed = assembled(&events(out));
        assert_eq!(without_call_ids(streamed), without_call_ids(whole));
    }
}

#[test]
fn the_stop_reason_is_true() {
    let reason = |finish| {
        let end = identity(true).end(finish);
        (end["stop_reason"].clone(), end["stop_sequence"].clone())
    };
    assert_eq!(reason(Finish::Stop), (json!("end_turn"), Value::Null));
    assert_eq!(
        reason(Finish::StopString(1)),
        (json!("stop_sequence"), json!("b"))
    );
    assert_eq!(reason(Finish::Length), (json!("max_tokens"), Value::Null));
    let full = (json!("model_context_window_exceeded"), Value::Null);
    assert_eq!(reason(Finish::ContextFull), full);
    assert_eq!(reason(Finish::ToolCalls), (json!("tool_use"), Value::Null));
}

#[test]
fn a_call_without_its_end_has_the_input_that_is_complete() {
    let deltas = vec![
        Delta::ToolCall {
            index: 0,
            name: "f".to_string(),
        },
        Delta::Arguments {
            index: 0,
            json: r#"{"a":1,"b":"cut"#.to_string(),
        },
    ];
    let reply = Settled {
        deltas,
        finish: Some(Finish::Length),
        ..Settled::default()
    };
    let whole = whole_answer(&identity(true), reply, USAGE);
    assert_eq!(whole["content"][0]["input"], json!({"a": 1}));
    assert_eq!(whole["stop_reason"], "max_tokens");
}

#[test]
fn a_message_that_fails_says_so_after_its_pings() {
    let error = ApiError::draining();
    let mut out = Vec::new();
    let mut writer = MessageWriter::new(identity(true));
    writer.write_admitted(USAGE_BEFORE, &mut out);
    writer.write_keep_alive(&mut out);
    writer.write_keep_alive(&mut out);
    writer.write_error(&error, &mut out);
    let events = events(out);
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["message_start", "ping", "ping", "error"]);
    assert_eq!(events[3]["error"]["type"], "overloaded_error");
    assert_eq!(events[3]["request_id"], "req_1");
}
