//! JSON of the Responses API: items, their events, and the response they add up to. A whole answer
//! is the response of the last event, so the two never differ.

use std::io::Write;
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::call::Usage;
use crate::chat::answer::logprob_json;
use crate::error::ApiError;
use crate::fields::Field;
use crate::generate::generation::{Finish, Settled};
use crate::generate::stream::Writer;
use crate::generate::tools::CUSTOM_ARGUMENT;
use crate::keys::KeyId;
use crate::random::{self, new_id};
use crate::seal::Seal;
use crate::state::{Abort, ServerState};
use host::calendar::seconds;
use text::chat::ChatModel;
use text::reply::Delta;

use super::free_text::FreeText;
use super::head::Head;
use super::items;
use super::request::{ResponsesRequest, StoredRequest};
use super::running::{CANCELLED, Handle};
use super::store::{Store, Stored};
use super::tools::{Tool, ToolKind, ToolNames};

fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    })
}

/// The item that is being written.
#[derive(Debug)]
enum Open {
    Reasoning {
        id: String,
        text: String,
    },
    Message {
        id: String,
        text: String,
        logprobs: Vec<Value>,
    },
    Call(Call),
}

#[derive(Debug)]
struct Call {
    id: String,
    call_id: String,
    tool: Tool,
    /// JSON of the arguments so far, and the free text in it.
    arguments: String,
    text: FreeText,
}

impl Call {
    fn new(tool: Tool) -> Call {
        let prefix = match tool.kind {
            ToolKind::Function => "fc",
            ToolKind::Custom => "ctc",
            ToolKind::Search => "tsc",
        };
        Call {
            id: new_id(prefix),
            call_id: format!("call_{}", &random::hex()[..24]),
            tool,
            arguments: String::new(),
            text: FreeText::default(),
        }
    }

    fn item(&self, status: &str) -> Value {
        let mut item = json!({"id": self.id, "status": status, "call_id": self.call_id});
        match self.tool.kind {
            ToolKind::Function => {
                item["type"] = Value::from("function_call");
                item["arguments"] = Value::from(self.arguments.as_str());
            }
            ToolKind::Custom => {
                item["type"] = Value::from("custom_tool_call");
                item["input"] = Value::from(self.input());
            }
            ToolKind::Search => {
                item["type"] = Value::from("tool_search_call");
                item["execution"] = Value::from("client");
                item["arguments"] = self.arguments_object();
                return item;
            }
        }
        item["name"] = Value::from(self.tool.name.as_str());
        if let Some(namespace) = &self.tool.namespace {
            item["namespace"] = Value::from(namespace.as_str());
        }
        item
    }

    /// The arguments as an object; none of them while they are incomplete.
    fn arguments_object(&self) -> Value {
        serde_json::from_str(&self.arguments).unwrap_or_else(|_| json!({}))
    }

    /// The free text of a custom tool, as far as it came.
    fn input(&self) -> String {
        let arguments = serde_json::from_str::<Value>(&self.arguments);
        let whole = arguments.ok().map(|arguments| {
            let input = arguments[CUSTOM_ARGUMENT].as_str();
            input.unwrap_or_default().to_string()
        });
        whole.unwrap_or_else(|| self.text.text().to_string())
    }
}

/// The one part of a reasoning item.
fn thought_part(text: &str, summarized: bool) -> Value {
    let kind = match summarized {
        true => "summary_text",
        false => "reasoning_text",
    };
    json!({"type": kind, "text": text})
}

fn reasoning_item(
    id: &str,
    text: Option<&str>,
    (seal, summarized): (Option<&Seal>, bool),
    status: &str,
) -> Value {
    let part = text.map(|text| thought_part(text, summarized));
    let parts: Vec<Value> = part.into_iter().collect();
    let (filled, other) = match summarized {
        true => ("summary", "content"),
        false => ("content", "summary"),
    };
    let mut item =
        json!({"id": id, "type": "reasoning", "status": status, other: [], filled: parts});
    if let (Some(text), Some(seal)) = (text, seal) {
        item["encrypted_content"] = Value::from(seal.close(text));
    }
    item
}

fn message_item(id: &str, part: Option<Value>, status: &str) -> Value {
    let content: Vec<Value> = part.into_iter().collect();
    json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
}

fn text_part(text: &str, logprobs: &[Value]) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
}

/// Builder of a response, item by item, which writes the event of each step.
pub struct Composer {
    head: Arc<Head>,
    /// Handle by which the response is found and cancelled by its id, until its end.
    running: Option<Handle>,
    names: ToolNames,
    /// Owner's seal of reasoning.
    seal: Seal,
    /// Reasoning items hold their text sealed too.
    encrypted_reasoning: bool,
    /// Reasoning is sent as its own summary, which clients show.
    summarized: bool,
    /// Parts of the request that are not enforced; the last event reports them.
    warnings: Vec<String>,
    /// Items that are stored with the response, and where.
    stored: Option<(StoredRequest, Store)>,
    open: Option<Open>,
    /// Log-probabilities of text that has not been sent yet.
    logprobs: Vec<Value>,
    output: Vec<Value>,
    /// Events so far.
    events: u64,
    finish: Finish,
}

impl Composer {
    /// Composer of a response that belongs to `owner`.
    pub fn new(
        state: &Arc<ServerState>,
        owner: Option<KeyId>,
        request: ResponsesRequest,
    ) -> Composer {
        let warnings = [request.ask.warnings(), request.names.warnings.clone()].concat();
        let store = state.responses.of(owner);
        let stored = request.stored.map(|stored| (stored, store));
        let head = Arc::new(Head {
            id: new_id("resp"),
            created: seconds(),
            model: state.model_id.clone(),
            repeated: request.repeated,
        });
        Composer {
            running: state.running.enter(owner, &head),
            head,
            names: request.names,
            seal: state.seal.of(owner),
            encrypted_reasoning: request.encrypted_reasoning,
            summarized: request.summarized,
            warnings,
            stored,
            open: None,
            logprobs: Vec::new(),
            output: Vec::new(),
            events: 0,
            finish: Finish::Stop,
        }
    }

    /// The abort of a response, which ends when `abort` says so or when the response is cancelled.
    pub fn abort(&self, abort: Abort) -> Abort {
        match &self.running {
            Some(running) => abort.or_when(running.cancellation()),
            None => abort,
        }
    }

    /// The answer to a request that does not stream, from what came of its reply.
    ///
    /// # Errors
    /// Those of the reply, where it was not cancelled.
    pub fn whole(
        mut self,
        model: &ChatModel,
        pieces: Vec<Settled>,
        followed: Result<Usage, ApiError>,
    ) -> Result<Value, ApiError> {
        let mut events = Vec::new();
        for piece in pieces {
            self.write(model, piece, &mut events);
            events.clear();
        }
        match followed {
            Ok(usage) => Ok(self.end(usage, &mut events)),
            Err(error) if error.code == Some(CANCELLED) => Ok(self.cancel(&mut events)),
            Err(error) => Err(error),
        }
    }

    fn response(&self, status: &str) -> Value {
        self.head.response(status, &self.output)
    }

    /// Appends one event: `data` with its type and number.
    fn event(&mut self, kind: &str, data: Value, out: &mut Vec<u8>) {
        let mut event = json!({"type": kind, "sequence_number": self.events});
        if let (Value::Object(event), Value::Object(data)) = (&mut event, data) {
            event.extend(data);
        }
        self.events += 1;
        // Writing to memory does not fail.
        let _ = write!(out, "event: {kind}\ndata: {event}\n\n");
    }

    fn add(&mut self, delta: &Delta, out: &mut Vec<u8>) {
        match delta {
            Delta::Reasoning(piece) => {
                if !matches!(self.open, Some(Open::Reasoning { .. })) {
                    self.begin_reasoning(out);
                }
                self.piece(piece, out);
            }
            Delta::Content(piece) => {
                if !matches!(self.open, Some(Open::Message { .. })) {
                    self.begin_message(out);
                }
                self.piece(piece, out);
            }
            Delta::ToolCall { name, .. } => self.begin_call(name, out),
            Delta::Arguments { json, .. } => self.piece(json, out),
        }
    }

    fn begin(&mut self, open: Open, item: Value, out: &mut Vec<u8>) {
        self.close("completed", out);
        if !matches!(open, Open::Message { .. }) {
            // They are of text of the item that begins, or of text that is dropped.
            self.logprobs.clear();
        }
        let at = self.output.len();
        let data = json!({"output_index": at, "item": item});
        self.event("response.output_item.added", data, out);
        self.open = Some(open);
    }

    /// Begins the one part of an item: of its content, or of its summary.
    fn begin_part(&mut self, id: &str, part: Value, out: &mut Vec<u8>) {
        let (kind, index) = match part["type"] == "summary_text" {
            true => ("response.reasoning_summary_part.added", "summary_index"),
            false => ("response.content_part.added", "content_index"),
        };
        let data =
            json!({"item_id": id, "output_index": self.output.len(), index: 0, "part": part});
        self.event(kind, data, out);
    }

    fn begin_reasoning(&mut self, out: &mut Vec<u8>) {
        let id = new_id("rs");
        let item = reasoning_item(&id, None, (None, self.summarized), "in_progress");
        let open = Open::Reasoning {
            id: id.clone(),
            text: String::new(),
        };
        self.begin(open, item, out);
        self.begin_part(&id, thought_part("", self.summarized), out);
    }

    fn begin_message(&mut self, out: &mut Vec<u8>) {
        let id = new_id("msg");
        let item = message_item(&id, None, "in_progress");
        let open = Open::Message {
            id: id.clone(),
            text: String::new(),
            logprobs: Vec::new(),
        };
        self.begin(open, item, out);
        self.begin_part(&id, text_part("", &[]), out);
    }

    fn begin_call(&mut self, name: &str, out: &mut Vec<u8>) {
        let call = Call::new(self.names.tool(name));
        let item = call.item("in_progress");
        self.begin(Open::Call(call), item, out);
    }

    /// More of the open item.
    fn piece(&mut self, piece: &str, out: &mut Vec<u8>) {
        let at = self.output.len();
        let (kind, data) = match &mut self.open {
            None => return,
            Some(Open::Reasoning { id, text }) => {
                text.push_str(piece);
                let (kind, index) = match self.summarized {
                    true => ("response.reasoning_summary_text.delta", "summary_index"),
                    false => ("response.reasoning_text.delta", "content_index"),
                };
                let data = json!({"item_id": id, "output_index": at, index: 0, "delta": piece});
                (kind, data)
            }
            Some(Open::Message { id, text, logprobs }) => {
                text.push_str(piece);
                let new = std::mem::take(&mut self.logprobs);
                logprobs.extend_from_slice(&new);
                let data = json!({"item_id": id, "output_index": at, "content_index": 0,
                    "delta": piece, "logprobs": new});
                ("response.output_text.delta", data)
            }
            Some(Open::Call(call)) => {
                call.arguments.push_str(piece);
                let (kind, delta) = match call.tool.kind {
                    ToolKind::Function => {
                        ("response.function_call_arguments.delta", piece.to_string())
                    }
                    ToolKind::Custom => (
                        "response.custom_tool_call_input.delta",
                        call.text.more(&call.arguments),
                    ),
                    // Arguments of a search are no text, so they are sent at once.
                    ToolKind::Search => return,
                };
                if delta.is_empty() {
                    return;
                }
                let data = json!({"item_id": call.id, "output_index": at, "delta": delta});
                (kind, data)
            }
        };
        self.event(kind, data, out);
    }

    /// Ends the open item.
    fn close(&mut self, status: &str, out: &mut Vec<u8>) {
        let Some(open) = self.open.take() else {
            return;
        };
        let item = match open {
            Open::Reasoning { id, text } => {
                let kind = match self.summarized {
                    true => "response.reasoning_summary_text.done",
                    false => "response.reasoning_text.done",
                };
                self.end_part(kind, &id, thought_part(&text, self.summarized), out);
                let seal = self.encrypted_reasoning.then_some(&self.seal);
                let form = (seal, self.summarized);
                reasoning_item(&id, Some(&text), form, status)
            }
            Open::Message { id, text, logprobs } => {
                let part = text_part(&text, &logprobs);
                self.end_part("response.output_text.done", &id, part.clone(), out);
                message_item(&id, Some(part), status)
            }
            Open::Call(call) => {
                self.end_call(&call, out);
                let complete = serde_json::from_str::<&RawValue>(&call.arguments).is_ok();
                call.item(if complete { status } else { "incomplete" })
            }
        };
        let data = json!({"output_index": self.output.len(), "item": item});
        self.event("response.output_item.done", data, out);
        self.output.push(item);
    }

    fn end_part(&mut self, kind: &str, id: &str, part: Value, out: &mut Vec<u8>) {
        let (ended, index) = match part["type"] == "summary_text" {
            true => ("response.reasoning_summary_part.done", "summary_index"),
            false => ("response.content_part.done", "content_index"),
        };
        let position = json!({"item_id": id, "output_index": self.output.len(), index: 0});
        let mut done = position.clone();
        done["text"] = part["text"].clone();
        if let Some(logprobs) = part.get("logprobs") {
            done["logprobs"] = logprobs.clone();
        }
        self.event(kind, done, out);
        let mut done = position;
        done["part"] = part;
        self.event(ended, done, out);
    }

    fn end_call(&mut self, call: &Call, out: &mut Vec<u8>) {
        let position = json!({"item_id": call.id, "output_index": self.output.len()});
        let with = |name: &str, value: &str| {
            let mut data = position.clone();
            data[name] = Value::from(value);
            data
        };
        match call.tool.kind {
            ToolKind::Function => {
                let mut done = with("arguments", &call.arguments);
                done["name"] = Value::from(call.tool.name.as_str());
                self.event("response.function_call_arguments.done", done, out);
            }
            ToolKind::Custom => {
                let input = call.input();
                // It stands after another argument.
                if call.text.text().is_empty() && !input.is_empty() {
                    let delta = with("delta", &input);
                    self.event("response.custom_tool_call_input.delta", delta, out);
                }
                let done = with("input", &input);
                self.event("response.custom_tool_call_input.done", done, out);
            }
            ToolKind::Search => {}
        }
    }

    /// Completes the response after its reply.
    fn settle(&mut self, finish: Finish, out: &mut Vec<u8>) {
        self.finish = finish;
        let status = match finish.is_incomplete() {
            true => "incomplete",
            false => "completed",
        };
        self.close(status, out);
    }

    /// Writes the terminal event and returns its response, which is stored if the request asks for
    /// it. A client whose cancellation succeeded finds it cancelled.
    fn end(&mut self, usage: Usage, out: &mut Vec<u8>) -> Value {
        if self.running.as_ref().is_some_and(Handle::complete) {
            return self.cancel(out);
        }
        let incomplete = self.finish.is_incomplete();
        let (kind, status) = match incomplete {
            true => ("response.incomplete", "incomplete"),
            false => ("response.completed", "completed"),
        };
        let mut response = self.response(status);
        response["usage"] = usage_json(usage);
        if incomplete {
            // The API has no other word for a full context or for half a call.
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        self.finally(kind, response, out)
    }

    /// `end` of a response that was cancelled.
    fn cancel(&mut self, out: &mut Vec<u8>) -> Value {
        self.close("incomplete", out);
        let response = self.response("cancelled");
        self.finally("response.cancelled", response, out)
    }

    fn finally(&mut self, kind: &str, mut response: Value, out: &mut Vec<u8>) -> Value {
        if !self.warnings.is_empty() {
            response["warnings"] = json!(self.warnings);
        }
        self.event(kind, json!({"response": response}), out);
        let stored = self.stored(&response);
        let insert = || {
            if let Some((stored, store)) = stored {
                store.insert(&self.head.id, stored);
            }
        };
        match self.running.take() {
            Some(running) => running.leave(insert),
            None => insert(),
        }
        response
    }

    /// Record of the response that is to be stored, and where.
    fn stored(&mut self, response: &Value) -> Option<(Stored, Store)> {
        let (request, store) = self.stored.take()?;
        let output = Value::from(self.output.as_slice());
        let output_field = Field {
            value: &output,
            path: "output".to_string(),
        };
        let said = items::read(&output_field, Vec::new(), (&store, &self.seal));
        let said = said.unwrap_or_default().messages;
        let item = |item: &Value| {
            let id = item["id"].as_str().unwrap_or_default();
            (id.to_string(), item.to_string())
        };
        let stored = Stored {
            response: response.to_string().into(),
            history: history(&request, said).into(),
            input: request.input.into(),
            items: self.output.iter().map(item).collect(),
        };
        Some((stored, store))
    }
}

/// JSON of the conversation with what the reply said.
fn history(request: &StoredRequest, said: Vec<Value>) -> String {
    let mut said = said.into_iter();
    let mut history = request.history.clone();
    if request.goes_on
        && let Ok(mut messages) = serde_json::from_str::<Vec<Value>>(&history)
        && let (Some(last), Some(more)) = (messages.last_mut(), said.next())
    {
        let begun = last["content"].as_str().unwrap_or_default().to_string();
        let text = begun + more["content"].as_str().unwrap_or_default();
        *last = more;
        last["content"] = Value::from(text);
        history = Value::from(messages).to_string();
    }
    // `history` is a JSON list and not empty: its last bracket gives way to the message.
    for message in said {
        history.pop();
        history.push_str(&format!(",{message}]"));
    }
    history
}

impl Writer for Composer {
    fn write_start(&mut self, out: &mut Vec<u8>) {
        for kind in ["response.created", "response.in_progress"] {
            let response = self.response("in_progress");
            self.event(kind, json!({"response": response}), out);
        }
    }

    fn write(&mut self, model: &ChatModel, settled: Settled, out: &mut Vec<u8>) {
        let positions = settled.logprobs.iter();
        let positions = positions.map(|(id, logprobs)| logprob_json(model, *id, logprobs));
        self.logprobs.extend(positions);
        for delta in &settled.deltas {
            self.add(delta, out);
        }
        if let Some(finish) = settled.finish {
            self.settle(finish, out);
        }
    }

    fn write_end(&mut self, usage: Usage, out: &mut Vec<u8>) {
        self.end(usage, out);
    }

    fn write_error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        if error.code == Some(CANCELLED) {
            self.cancel(out);
            return;
        }
        let mut response = self.response("failed");
        response["error"] = json!({"code": "server_error", "message": error.message});
        self.event("response.failed", json!({"response": response}), out);
    }
}

#[cfg(test)]
mod tests;
