//! What the client of the Messages API reads: the JSON of a whole message and of its events.

use std::io::Write;

use serde_json::{Value, json};

use crate::http::error::{ApiError, Dialect};
use crate::http::generate::Gathered;
use crate::http::generate::generation::{Finish, Settled, Usage};
use crate::http::generate::stream::Writer;
use crate::http::random;
use crate::text::chat::ChatModel;
use crate::text::reply::Delta;

use super::request::MessagesRequest;

/// Stands in each thinking block where others vouch for the text; ours comes back in the clear.
const SIGNATURE: &str = "atlas";

/// What is known of a message before its reply.
#[derive(Clone, Debug)]
pub struct Identity {
    id: String,
    model: String,
    request_id: String,
    stops: Vec<String>,
    /// False: thinking blocks come without their text.
    show_thinking: bool,
}

impl Identity {
    pub fn new(model: &str, request_id: String, request: &MessagesRequest) -> Identity {
        Identity {
            id: format!("msg_{}", &random::hex()[..24]),
            model: model.to_string(),
            request_id,
            stops: request.ask.stops.clone(),
            show_thinking: request.show_thinking,
        }
    }

    /// The message with what its reply has come to.
    fn message(&self, content: Vec<Value>, end: &Value, usage: &Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": end["stop_reason"],
            "stop_sequence": end["stop_sequence"],
            "usage": usage,
        })
    }

    /// `stop_reason` and `stop_sequence`.
    fn end(&self, finish: Finish) -> Value {
        let sequence = match finish {
            Finish::StopString(at) => self.stops.get(at),
            _ => None,
        };
        let reason = match finish {
            Finish::Stop => "end_turn",
            Finish::StopString(_) => "stop_sequence",
            Finish::Length => "max_tokens",
            Finish::ContextFull => "model_context_window_exceeded",
            Finish::ToolCalls => "tool_use",
        };
        json!({"stop_reason": reason, "stop_sequence": sequence})
    }
}

fn call_id() -> String {
    format!("toolu_{}", &random::hex()[..24])
}

/// `written`: tokens of the reply. Nothing is read from or written to a cache that would be billed.
fn usage_json(prompt: usize, written: usize) -> Value {
    json!({
        "input_tokens": prompt,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "output_tokens": written,
    })
}

/// The answer to a request that does not stream.
pub fn whole_answer(identity: &Identity, reply: Gathered, usage: Usage) -> Value {
    let finish = reply.finish.unwrap_or(Finish::Stop);
    let usage = usage_json(usage.prompt, usage.completion);
    identity.message(
        content(identity, reply.deltas),
        &identity.end(finish),
        &usage,
    )
}

/// The content blocks of a reply whose pieces are joined.
fn content(identity: &Identity, deltas: Vec<Delta>) -> Vec<Value> {
    let mut blocks = Vec::new();
    let mut deltas = deltas.into_iter().peekable();
    while let Some(delta) = deltas.next() {
        blocks.extend(match delta {
            Delta::Reasoning(text) => {
                let shown = if identity.show_thinking {
                    text
                } else {
                    String::new()
                };
                Some(json!({"type": "thinking", "thinking": shown, "signature": SIGNATURE}))
            }
            Delta::Content(text) => Some(json!({"type": "text", "text": text})),
            Delta::ToolCall { name, .. } => {
                let arguments = deltas.next_if(|next| matches!(next, Delta::Arguments { .. }));
                tool_use(&name, arguments)
            }
            Delta::Arguments { .. } => None,
        });
    }
    blocks
}

/// A call that the reply's end cut off is left out: whatever stood for its input would be a guess
/// that somebody might act on.
fn tool_use(name: &str, arguments: Option<Delta>) -> Option<Value> {
    let Some(Delta::Arguments { json, .. }) = arguments else {
        return None;
    };
    let input: Value = serde_json::from_str(&json).ok()?;
    Some(json!({"type": "tool_use", "id": call_id(), "name": name, "input": input}))
}

/// A content block that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    ToolUse,
}

/// Writes the events of a streamed message.
#[derive(Debug)]
pub struct MessageWriter {
    identity: Identity,
    prompt_tokens: usize,
    started: bool,
    open: Option<Block>,
    /// Blocks that were begun.
    blocks: usize,
    finish: Finish,
}

impl MessageWriter {
    pub fn new(identity: Identity, prompt_tokens: usize) -> MessageWriter {
        MessageWriter {
            identity,
            prompt_tokens,
            started: false,
            open: None,
            blocks: 0,
            finish: Finish::Stop,
        }
    }

    /// The first event, before any other.
    fn start(&mut self, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        let usage = usage_json(self.prompt_tokens, 0);
        let message = self.identity.message(Vec::new(), &Value::Null, &usage);
        event(
            out,
            "message_start",
            &json!({"type": "message_start", "message": message}),
        );
    }

    fn write_delta(&mut self, delta: &Delta, out: &mut Vec<u8>) {
        match delta {
            Delta::Reasoning(text) => {
                self.enter(Block::Thinking, out);
                if self.identity.show_thinking {
                    self.piece("thinking_delta", "thinking", text, out);
                }
            }
            Delta::Content(text) => {
                self.enter(Block::Text, out);
                self.piece("text_delta", "text", text, out);
            }
            Delta::ToolCall { name, .. } => {
                let block = json!({"type": "tool_use", "id": call_id(), "name": name, "input": {}});
                self.begin(Block::ToolUse, &block, out);
            }
            Delta::Arguments { json, .. } => {
                self.piece("input_json_delta", "partial_json", json, out);
            }
        }
    }

    /// Begins a block unless one of its kind is open.
    fn enter(&mut self, block: Block, out: &mut Vec<u8>) {
        if self.open == Some(block) {
            return;
        }
        let start = match block {
            Block::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Block::Text => json!({"type": "text", "text": ""}),
            Block::ToolUse => unreachable!("a call begins with its name"),
        };
        self.begin(block, &start, out);
    }

    fn begin(&mut self, block: Block, start: &Value, out: &mut Vec<u8>) {
        self.close(out);
        let data = json!({"type": "content_block_start", "index": self.blocks,
            "content_block": start});
        event(out, "content_block_start", &data);
        self.open = Some(block);
        self.blocks += 1;
    }

    /// Ends the open block.
    fn close(&mut self, out: &mut Vec<u8>) {
        let Some(block) = self.open.take() else {
            return;
        };
        if block == Block::Thinking {
            self.piece("signature_delta", "signature", SIGNATURE, out);
        }
        let data = json!({"type": "content_block_stop", "index": self.blocks - 1});
        event(out, "content_block_stop", &data);
    }

    /// A delta of the block that was begun last.
    fn piece(&self, kind: &str, name: &str, text: &str, out: &mut Vec<u8>) {
        // Writing to memory does not fail.
        let _ = write!(
            out,
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":{},\
             \"delta\":{{\"type\":\"{kind}\",\"{name}\":",
            self.blocks - 1
        );
        let _ = serde_json::to_writer(&mut *out, text);
        out.extend_from_slice(b"}}\n\n");
    }
}

impl Writer for MessageWriter {
    fn write(&mut self, _: &ChatModel, settled: Settled, out: &mut Vec<u8>) {
        self.start(out);
        for delta in &settled.deltas {
            self.write_delta(delta, out);
        }
        if let Some(finish) = settled.finish {
            self.close(out);
            self.finish = finish;
        }
    }

    fn write_end(&mut self, usage: Usage, out: &mut Vec<u8>) {
        let data = json!({
            "type": "message_delta",
            "delta": self.identity.end(self.finish),
            "usage": usage_json(usage.prompt, usage.completion),
        });
        event(out, "message_delta", &data);
        event(out, "message_stop", &json!({"type": "message_stop"}));
    }

    fn write_error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        self.start(out);
        let mut body = error.body(Dialect::Anthropic);
        body["request_id"] = Value::from(self.identity.request_id.as_str());
        event(out, "error", &body);
    }

    fn write_keep_alive(&mut self, out: &mut Vec<u8>) {
        self.start(out);
        event(out, "ping", &json!({"type": "ping"}));
    }
}

fn event(out: &mut Vec<u8>, name: &str, data: &Value) {
    // Writing to memory does not fail.
    let _ = write!(out, "event: {name}\ndata: {data}\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::testing::random_reply;
    use crate::text::reply::append;
    use crate::text::testing::{Random, chat_model};

    fn identity(show_thinking: bool) -> Identity {
        Identity {
            id: "msg_1".to_string(),
            model: "m".to_string(),
            request_id: "req_1".to_string(),
            stops: vec!["a".to_string(), "b".to_string()],
            show_thinking,
        }
    }

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
        let mut writer = MessageWriter::new(identity(show_thinking), 3);
        let mut out = Vec::new();
        for delta in deltas() {
            writer.write(&chat_model(), settled(vec![delta], None), &mut out);
        }
        writer.write(&chat_model(), settled(vec![], Some(finish)), &mut out);
        writer.write_end(USAGE, &mut out);
        events(out)
    }

    /// What a client makes of the events.
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
        assert_eq!(found[0]["message"]["usage"]["input_tokens"], 3);
        assert_eq!(found[0]["message"]["stop_reason"], Value::Null);
    }

    #[test]
    fn a_streamed_message_equals_the_whole_one() {
        for show_thinking in [true, false] {
            let mut reply = Gathered {
                finish: Some(Finish::ToolCalls),
                ..Gathered::default()
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
            let mut reply = Gathered {
                finish: Some(finish),
                ..Gathered::default()
            };
            let mut writer = MessageWriter::new(identity(true), 3);
            let mut out = Vec::new();
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
    fn a_call_without_its_end_is_left_out_of_a_whole_message() {
        let mut reply = Gathered {
            finish: Some(Finish::Length),
            ..Gathered::default()
        };
        reply.deltas = deltas();
        reply.deltas.truncate(5);
        let whole = whole_answer(&identity(true), reply, USAGE);
        assert!(!whole["content"].to_string().contains("tool_use"));
    }

    #[test]
    fn whatever_comes_first_the_message_starts_before_it() {
        let error = ApiError::unavailable("draining", "the server is shutting down");
        let mut out = Vec::new();
        let mut writer = MessageWriter::new(identity(true), 3);
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
}
