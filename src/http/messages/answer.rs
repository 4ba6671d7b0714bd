//! JSON of a whole message of the Messages API and of its events.

use std::io::Write;

use serde_json::{Value, json};

use crate::call::Usage;
use crate::error::{ApiError, Dialect};
use crate::generate::generation::{Finish, Settled};
use crate::generate::stream::{KEEP_ALIVE_COMMENT, Writer};
use crate::random;
use crate::seal::Seal;
use text::chat::ChatModel;
use text::reply::Delta;

use super::content::UNSEALED;
use super::partial::{Input, complete_part};
use super::request::MessagesRequest;

/// Members of a message that are known before its reply.
#[derive(Clone)]
pub struct Identity {
    id: String,
    model: String,
    request_id: String,
    stops: Vec<String>,
    /// Seal of the thinking text in signatures; None if thinking blocks show their text.
    seal: Option<Seal>,
    /// Warnings for the client about parts of the request that are not enforced.
    warnings: Vec<String>,
}

impl Identity {
    /// Identity of an answer; `seal` is the client's.
    pub fn new(model: &str, request_id: &str, request: &MessagesRequest, seal: Seal) -> Identity {
        Identity {
            id: format!("msg_{}", &random::hex()[..24]),
            model: model.to_string(),
            request_id: request_id.to_string(),
            stops: request.ask.stops.clone(),
            seal: (!request.show_thinking).then_some(seal),
            warnings: request.ask.warnings(),
        }
    }

    /// The message with the content, end and usage of its reply.
    fn message(&self, content: Vec<Value>, end: &Value, usage: &Value) -> Value {
        let mut message = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": end["stop_reason"],
            "stop_sequence": end["stop_sequence"],
            "usage": usage,
        });
        if !self.warnings.is_empty() {
            message["warnings"] = json!(self.warnings);
        }
        message
    }

    /// The members `stop_reason` and `stop_sequence`.
    fn end(&self, finish: Finish) -> Value {
        let sequence = match finish {
            Finish::StopString(at) | Finish::StopInCall(at) => self.stops.get(at),
            _ => None,
        };
        let reason = match finish {
            Finish::Stop => "end_turn",
            Finish::StopString(_) | Finish::StopInCall(_) => "stop_sequence",
            // With `max_tokens` clients retry instead of running half a call.
            Finish::Length | Finish::HalfCall => "max_tokens",
            Finish::ContextFull => "model_context_window_exceeded",
            Finish::ToolCalls => "tool_use",
        };
        json!({"stop_reason": reason, "stop_sequence": sequence})
    }
}

fn call_id() -> String {
    format!("toolu_{}", &random::hex()[..24])
}

/// Usage in the form of the API, where cached tokens of the prompt count apart from its other
/// tokens. Writes to the cache cost nothing here.
fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion,
    })
}

/// The answer to a request that does not stream, which equals the sum of a stream's events.
pub fn whole_answer(identity: &Identity, reply: Settled, usage: Usage) -> Value {
    let mut writer = MessageWriter::new(identity.clone());
    let mut events = Vec::new();
    for delta in &reply.deltas {
        writer.write_delta(delta, &mut events);
        events.clear();
    }
    writer.close(&mut events);
    let end = identity.end(reply.finish.unwrap_or(Finish::Stop));
    identity.message(writer.content, &end, &usage_json(usage))
}

/// A content block that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    ToolUse,
}

/// Writes the events of a streamed message.
pub struct MessageWriter {
    identity: Identity,
    begun: bool,
    /// The open block and its JSON, which gets its text when the block ends.
    open: Option<(Block, Value)>,
    /// Text, reasoning or JSON of the input in the open block.
    text: String,
    /// Streamed JSON of the arguments, if the open block is a call.
    input: Input,
    /// JSON of the blocks before the open one.
    content: Vec<Value>,
    finish: Finish,
}

impl MessageWriter {
    pub fn new(identity: Identity) -> MessageWriter {
        MessageWriter {
            identity,
            begun: false,
            open: None,
            text: String::new(),
            input: Input::default(),
            content: Vec::new(),
            finish: Finish::Stop,
        }
    }

    fn write_delta(&mut self, delta: &Delta, out: &mut Vec<u8>) {
        match delta {
            Delta::Reasoning(text) => {
                self.enter(Block::Thinking, out);
                self.text.push_str(text);
                if self.identity.seal.is_none() {
                    self.piece("thinking_delta", "thinking", text, out);
                }
            }
            Delta::Content(text) => {
                self.enter(Block::Text, out);
                self.text.push_str(text);
                self.piece("text_delta", "text", text, out);
            }
            Delta::ToolCall { name, .. } => {
                let block = json!({"type": "tool_use", "id": call_id(), "name": name, "input": {}});
                self.begin(Block::ToolUse, block, out);
                self.input = Input::default();
            }
            Delta::Arguments { json, .. } => {
                self.text.push_str(json);
                let complete = self.input.push(json);
                if !complete.is_empty() {
                    self.piece("input_json_delta", "partial_json", &complete, out);
                }
            }
        }
    }

    /// Begins a block unless one of its kind is open.
    fn enter(&mut self, block: Block, out: &mut Vec<u8>) {
        if self.open.as_ref().is_some_and(|(open, _)| *open == block) {
            return;
        }
        let start = match block {
            Block::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Block::Text => json!({"type": "text", "text": ""}),
            Block::ToolUse => unreachable!("a call begins with its name"),
        };
        self.begin(block, start, out);
    }

    fn begin(&mut self, block: Block, start: Value, out: &mut Vec<u8>) {
        self.close(out);
        let data = json!({"type": "content_block_start", "index": self.content.len(),
            "content_block": start});
        event(out, "content_block_start", &data);
        self.open = Some((block, start));
    }

    /// Ends the open block. If the reply's end cut off the arguments of a call, only their complete
    /// members are kept, and the stop reason tells the client.
    fn close(&mut self, out: &mut Vec<u8>) {
        let Some((block, mut json)) = self.open.take() else {
            return;
        };
        let text = std::mem::take(&mut self.text);
        match block {
            Block::Thinking => {
                let (shown, signature) = match &self.identity.seal {
                    None => (text, UNSEALED.to_string()),
                    Some(seal) => (String::new(), seal.close(&text)),
                };
                self.piece("signature_delta", "signature", &signature, out);
                json["thinking"] = Value::from(shown);
                json["signature"] = Value::from(signature);
            }
            Block::Text => json["text"] = Value::from(text),
            Block::ToolUse => {
                let input = serde_json::from_str(&text);
                json["input"] = input.unwrap_or_else(|_| complete_part(&text));
            }
        }
        let data = json!({"type": "content_block_stop", "index": self.content.len()});
        event(out, "content_block_stop", &data);
        self.content.push(json);
    }

    /// Writes a delta of the block that was begun last.
    fn piece(&self, kind: &str, name: &str, text: &str, out: &mut Vec<u8>) {
        // Writing to memory does not fail.
        let _ = write!(
            out,
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":{},\
             \"delta\":{{\"type\":\"{kind}\",\"{name}\":",
            self.content.len()
        );
        let _ = serde_json::to_writer(&mut *out, text);
        out.extend_from_slice(b"}}\n\n");
    }
}

impl Writer for MessageWriter {
    /// The first event has the usage of the prompt, since clients count its cached tokens.
    fn write_admitted(&mut self, usage: Usage, out: &mut Vec<u8>) {
        self.begun = true;
        let usage = usage_json(usage);
        let message = self.identity.message(Vec::new(), &Value::Null, &usage);
        let data = json!({"type": "message_start", "message": message});
        event(out, "message_start", &data);
    }

    fn write(&mut self, _: &ChatModel, settled: Settled, out: &mut Vec<u8>) {
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
            "usage": usage_json(usage),
        });
        event(out, "message_delta", &data);
        event(out, "message_stop", &json!({"type": "message_stop"}));
    }

    fn write_error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        let mut body = error.body(Dialect::Anthropic);
        body["request_id"] = Value::from(self.identity.request_id.as_str());
        event(out, "error", &body);
    }

    fn write_keep_alive(&mut self, out: &mut Vec<u8>) {
        match self.begun {
            true => event(out, "ping", &json!({"type": "ping"})),
            // The API has no event before the message begins.
            false => out.extend_from_slice(KEEP_ALIVE_COMMENT),
        }
    }
}

fn event(out: &mut Vec<u8>, name: &str, data: &Value) {
    // Writing to memory does not fail.
    let _ = write!(out, "event: {name}\ndata: {data}\n\n");
}

#[cfg(test)]
mod tests;
