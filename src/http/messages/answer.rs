//! JSON of a whole message of the Messages API and of its events.

use std::io::Write;

use serde_json::{Value, json};

use crate::call::Usage;
use crate::error::{ApiError, Dialect};
use crate::generate::Gathered;
use crate::generate::generation::{Finish, Settled};
use crate::generate::stream::{KEEP_ALIVE_COMMENT, Writer};
use crate::random;
use crate::seal::Seal;
use text::chat::ChatModel;
use text::reply::Delta;

use super::content::UNSEALED;
use super::partial::{Input, complete_part};
use super::request::MessagesRequest;

/// Facts of a message that are known before its reply.
#[derive(Clone)]
pub struct Identity {
    id: String,
    model: String,
    request_id: String,
    stops: Vec<String>,
    /// Seal of the reasoning, which the signature holds if thinking blocks come without text.
    seal: Option<Seal>,
    /// Parts of the request that are not enforced.
    warnings: Vec<String>,
}

impl Identity {
    /// Identity of an answer to a client that `seal` is of.
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

    /// `stop_reason` and `stop_sequence`.
    fn end(&self, finish: Finish) -> Value {
        let sequence = match finish {
            Finish::StopString(at) | Finish::StopInCall(at) => self.stops.get(at),
            _ => None,
        };
        let reason = match finish {
            Finish::Stop => "end_turn",
            Finish::StopString(_) | Finish::StopInCall(_) => "stop_sequence",
            // With this reason clients retry instead of running half a call.
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

/// Usage; cached tokens of the prompt count apart. Writes to a cache are not billed here.
fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion,
    })
}

/// The answer to a request that does not stream.
pub fn whole_answer(identity: &Identity, reply: Gathered, usage: Usage) -> Value {
    let end = identity.end(reply.finish.unwrap_or(Finish::Stop));
    let content = content(identity, reply.deltas);
    identity.message(content, &end, &usage_json(usage))
}

/// The content blocks of a reply, given its joined deltas.
fn content(identity: &Identity, deltas: Vec<Delta>) -> Vec<Value> {
    let mut blocks = Vec::new();
    let mut deltas = deltas.into_iter().peekable();
    while let Some(delta) = deltas.next() {
        blocks.extend(match delta {
            Delta::Reasoning(text) => {
                let (shown, signature) = match &identity.seal {
                    None => (text, UNSEALED.to_string()),
                    Some(seal) => (String::new(), seal.close(&text)),
                };
                Some(json!({"type": "thinking", "thinking": shown, "signature": signature}))
            }
            Delta::Content(text) => Some(json!({"type": "text", "text": text})),
            Delta::ToolCall { name, .. } => {
                let arguments = deltas.next_if(|next| matches!(next, Delta::Arguments { .. }));
                Some(tool_use(&name, arguments))
            }
            Delta::Arguments { .. } => None,
        });
    }
    blocks
}

/// A call. If the reply's end cut it off, the input has its complete members alone; the stop reason
/// says so.
fn tool_use(name: &str, arguments: Option<Delta>) -> Value {
    let json = match arguments {
        Some(Delta::Arguments { json, .. }) => json,
        _ => String::new(),
    };
    let input = serde_json::from_str(&json).unwrap_or_else(|_| complete_part(&json));
    json!({"type": "tool_use", "id": call_id(), "name": name, "input": input})
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
    open: Option<Block>,
    /// Input of the call that is open.
    input: Input,
    /// Text of the open block that will be sealed.
    unshown: String,
    /// Number of blocks begun.
    blocks: usize,
    finish: Finish,
}

impl MessageWriter {
    pub fn new(identity: Identity) -> MessageWriter {
        MessageWriter {
            identity,
            begun: false,
            open: None,
            input: Input::default(),
            unshown: String::new(),
            blocks: 0,
            finish: Finish::Stop,
        }
    }

    fn write_delta(&mut self, delta: &Delta, out: &mut Vec<u8>) {
        match delta {
            Delta::Reasoning(text) => {
                self.enter(Block::Thinking, out);
                match self.identity.seal {
                    None => self.piece("thinking_delta", "thinking", text, out),
                    Some(_) => self.unshown.push_str(text),
                }
            }
            Delta::Content(text) => {
                self.enter(Block::Text, out);
                self.piece("text_delta", "text", text, out);
            }
            Delta::ToolCall { name, .. } => {
                let block = json!({"type": "tool_use", "id": call_id(), "name": name, "input": {}});
                self.begin(Block::ToolUse, &block, out);
                self.input = Input::default();
            }
            Delta::Arguments { json, .. } => {
                let complete = self.input.push(json);
                if !complete.is_empty() {
                    self.piece("input_json_delta", "partial_json", &complete, out);
                }
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
            let unshown = std::mem::take(&mut self.unshown);
            let sealed = self.identity.seal.as_ref().map(|seal| seal.close(&unshown));
            let signature = sealed.as_deref().unwrap_or(UNSEALED);
            self.piece("signature_delta", "signature", signature, out);
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
    /// The first event has the usage of the prompt, whose cached tokens clients count.
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
