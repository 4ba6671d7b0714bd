//! JSON of the Responses API: items, their events, and the response that consists of the items. A
//! whole answer is the response of the last event, so the two never differ.

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

/// Kind of the text in an item, which has one part of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextPart {
    Output,
    Reasoning,
    /// Reasoning, sent as if it were its own summary.
    Summary,
}

impl TextPart {
    /// Prefix of the item's id, name of text events, name of part events, name of the index field.
    fn names(self) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            TextPart::Output => ("msg", "output_text", "content_part", "content_index"),
            TextPart::Reasoning => ("rs", "reasoning_text", "content_part", "content_index"),
            TextPart::Summary => {
                let [text, part] = ["reasoning_summary_text", "reasoning_summary_part"];
                ("rs", text, part, "summary_index")
            }
        }
    }

    fn json(self, text: &str, logprobs: &[Value]) -> Value {
        match self {
            TextPart::Output => json!({"type": "output_text", "text": text, "annotations": [],
                "logprobs": logprobs}),
            TextPart::Reasoning => json!({"type": "reasoning_text", "text": text}),
            TextPart::Summary => json!({"type": "summary_text", "text": text}),
        }
    }
}

/// The item that is being written.
#[derive(Debug)]
enum Open {
    Text {
        id: String,
        part: TextPart,
        text: String,
        logprobs: Vec<Value>,
    },
    Call(Call),
}

impl Open {
    fn part(&self) -> Option<TextPart> {
        match self {
            Open::Text { part, .. } => Some(*part),
            Open::Call(_) => None,
        }
    }
}

#[derive(Debug)]
struct Call {
    id: String,
    call_id: String,
    tool: Tool,
    /// JSON of the arguments so far.
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

    /// The arguments as an object; empty while they are incomplete.
    fn arguments_object(&self) -> Value {
        serde_json::from_str(&self.arguments).unwrap_or_else(|_| json!({}))
    }

    /// The free text of a custom tool, as far as it has come.
    fn input(&self) -> String {
        let arguments = serde_json::from_str::<Value>(&self.arguments);
        let whole = arguments.ok().map(|arguments| {
            let input = arguments[CUSTOM_ARGUMENT].as_str();
            input.unwrap_or_default().to_string()
        });
        whole.unwrap_or_else(|| self.text.text().to_string())
    }
}

/// Builder of a response, item by item, which writes events as items grow.
pub struct Composer {
    head: Arc<Head>,
    /// Handle by which the response is found and cancelled by its id, until the response ends.
    running: Option<Handle>,
    names: ToolNames,
    /// Seal of the owner for reasoning.
    seal: Seal,
    /// Whether reasoning items also have their text sealed.
    encrypted_reasoning: bool,
    /// Kind of text in which reasoning is sent; some clients show summaries alone.
    reasoning: TextPart,
    /// Warnings about parts of the request that are not enforced; the last event has them.
    warnings: Vec<String>,
    /// Parts of the request to store with the response, and the store; None if it is not stored.
    stored: Option<(StoredRequest, Store)>,
    open: Option<Open>,
    /// Log-probabilities of text that has not been sent yet.
    logprobs: Vec<Value>,
    output: Vec<Value>,
    /// Number of events so far.
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
            reasoning: match request.summarized {
                true => TextPart::Summary,
                false => TextPart::Reasoning,
            },
            warnings,
            stored,
            open: None,
            logprobs: Vec::new(),
            output: Vec::new(),
            events: 0,
            finish: Finish::Stop,
        }
    }

    /// Abort that completes when `abort` does or when the response is cancelled.
    pub fn abort(&self, abort: Abort) -> Abort {
        match &self.running {
            Some(running) => abort.or_when(running.cancellation()),
            None => abort,
        }
    }

    /// The answer to a request that does not stream; `gathered` is the outcome of its reply.
    ///
    /// # Errors
    /// The reply's error, unless the response was cancelled.
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

    /// Appends one event of the type `kind`: `data` with type and number.
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
            Delta::Reasoning(piece) => self.text(self.reasoning, piece, out),
            Delta::Content(piece) => self.text(TextPart::Output, piece, out),
            Delta::ToolCall { name, .. } => self.begin_call(name, out),
            Delta::Arguments { json, .. } => self.piece(json, out),
        }
    }

    fn begin(&mut self, open: Open, item: Value, out: &mut Vec<u8>) {
        self.close("completed", out);
        if open.part() != Some(TextPart::Output) {
            // Pending log-probabilities belong to the new item, which has none, or to text that is
            // dropped.
            self.logprobs.clear();
        }
        let at = self.output.len();
        let data = json!({"output_index": at, "item": item});
        self.event("response.output_item.added", data, out);
        self.open = Some(open);
    }

    /// Appends `piece` to the open item, or begins an item of the kind `part` with it.
    fn text(&mut self, part: TextPart, piece: &str, out: &mut Vec<u8>) {
        if self.open.as_ref().and_then(Open::part) != Some(part) {
            self.begin_text(part, out);
        }
        self.piece(piece, out);
    }

    fn begin_text(&mut self, part: TextPart, out: &mut Vec<u8>) {
        let (prefix, _, kind, index) = part.names();
        let id = new_id(prefix);
        let item = self.text_item(&id, part, None, "in_progress");
        let open = Open::Text {
            id: id.clone(),
            part,
            text: String::new(),
            logprobs: Vec::new(),
        };
        self.begin(open, item, out);
        let (at, part) = (self.output.len(), part.json("", &[]));
        let data = json!({"item_id": id, "output_index": at, index: 0, "part": part});
        self.event(&format!("response.{kind}.added"), data, out);
    }

    /// JSON of an item of text. `json`: its part with the text, which only complete items have.
    fn text_item(&self, id: &str, part: TextPart, json: Option<&Value>, status: &str) -> Value {
        let parts: Vec<&Value> = json.into_iter().collect();
        let (filled, other) = match part {
            TextPart::Output => {
                return json!({"id": id, "type": "message", "status": status, "role": "assistant",
                    "content": parts});
            }
            TextPart::Reasoning => ("content", "summary"),
            TextPart::Summary => ("summary", "content"),
        };
        let mut item =
            json!({"id": id, "type": "reasoning", "status": status, other: [], filled: parts});
        if let Some(json) = json.filter(|_| self.encrypted_reasoning) {
            let text = json["text"].as_str().unwrap_or_default();
            item["encrypted_content"] = Value::from(self.seal.close(text));
        }
        item
    }

    fn begin_call(&mut self, name: &str, out: &mut Vec<u8>) {
        let call = Call::new(self.names.tool(name));
        let item = call.item("in_progress");
        self.begin(Open::Call(call), item, out);
    }

    /// Appends `piece` to the open item.
    fn piece(&mut self, piece: &str, out: &mut Vec<u8>) {
        let at = self.output.len();
        let (kind, data) = match &mut self.open {
            None => return,
            Some(Open::Text {
                id,
                part,
                text,
                logprobs,
            }) => {
                text.push_str(piece);
                let (_, kind, _, index) = part.names();
                let mut data = json!({"item_id": id, "output_index": at, index: 0, "delta": piece});
                if *part == TextPart::Output {
                    logprobs.extend_from_slice(&self.logprobs);
                    data["logprobs"] = Value::from(std::mem::take(&mut self.logprobs));
                }
                (kind, data)
            }
            Some(Open::Call(call)) => {
                call.arguments.push_str(piece);
                let (kind, delta) = match call.tool.kind {
                    ToolKind::Function => ("function_call_arguments", piece.to_string()),
                    ToolKind::Custom => ("custom_tool_call_input", call.text.more(&call.arguments)),
                    // Arguments of a search are a JSON object, which is not streamed.
                    ToolKind::Search => return,
                };
                if delta.is_empty() {
                    return;
                }
                let data = json!({"item_id": call.id, "output_index": at, "delta": delta});
                (kind, data)
            }
        };
        self.event(&format!("response.{kind}.delta"), data, out);
    }

    /// Ends the open item.
    fn close(&mut self, status: &str, out: &mut Vec<u8>) {
        let Some(open) = self.open.take() else {
            return;
        };
        let item = match open {
            Open::Text {
                id,
                part,
                text,
                logprobs,
            } => {
                let json = part.json(&text, &logprobs);
                self.end_part(&id, part, &json, out);
                self.text_item(&id, part, Some(&json), status)
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

    fn end_part(&mut self, id: &str, part: TextPart, json: &Value, out: &mut Vec<u8>) {
        let (_, text, itself, index) = part.names();
        let position = json!({"item_id": id, "output_index": self.output.len(), index: 0});
        let mut done = position.clone();
        done["text"] = json["text"].clone();
        if let Some(logprobs) = json.get("logprobs") {
            done["logprobs"] = logprobs.clone();
        }
        self.event(&format!("response.{text}.done"), done, out);
        let mut done = position;
        done["part"] = json.clone();
        self.event(&format!("response.{itself}.done"), done, out);
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
                // The argument with the free text came after another one, so no delta had it.
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

    /// Ends the open item and sets how the response finishes.
    fn settle(&mut self, finish: Finish, out: &mut Vec<u8>) {
        self.finish = finish;
        let status = match finish.is_incomplete() {
            true => "incomplete",
            false => "completed",
        };
        self.close(status, out);
    }

    /// Writes the terminal event and returns its response, which is stored if the request asks for
    /// it. After a cancellation the response is `cancelled`.
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
            // The API has one reason for a full context and half a call.
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        self.finally(kind, response, out)
    }

    /// [`Composer::end`] of a response that was cancelled.
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

    /// Record of the response for the store; None if it is not stored.
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

/// JSON of the conversation with the messages of the reply.
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
    // `history` is a JSON list and not empty: its last bracket is replaced by the messages.
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
