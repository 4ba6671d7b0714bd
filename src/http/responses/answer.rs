//! What the client of the Responses API reads: items, their events, and the response they add up
//! to. A whole answer is the response of the last event, so the two never differ.

use std::io::Write;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::http::error::ApiError;
use crate::http::fields::Field;
use crate::http::generate::Gathered;
use crate::http::generate::generation::{Finish, Settled, Usage};
use crate::http::generate::stream::{KEEP_ALIVE_COMMENT, Writer};
use crate::http::random;
use crate::http::state::State;
use crate::text::chat::ChatModel;
use crate::text::reply::Delta;

use super::items;
use super::request::ResponsesRequest;
use super::store::Stored;
use super::tools::{CUSTOM_ARGUMENT, Tool, ToolNames};

fn new_id(prefix: &str) -> String {
    format!("{prefix}_{}", random::hex())
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    })
}

/// The item that is being written.
#[derive(Debug)]
enum Open {
    Reasoning { id: String, text: String },
    Message { id: String, text: String },
    Call(Call),
}

#[derive(Debug)]
struct Call {
    id: String,
    call_id: String,
    tool: Tool,
    /// JSON of the arguments so far.
    arguments: String,
}

impl Call {
    fn item(&self, status: &str) -> Value {
        let mut item = json!({
            "id": self.id,
            "type": if self.tool.custom { "custom_tool_call" } else { "function_call" },
            "status": status,
            "call_id": self.call_id,
            "name": self.tool.name,
        });
        match self.tool.custom {
            true => item["input"] = Value::from(self.input()),
            false => item["arguments"] = Value::from(self.arguments.as_str()),
        }
        if let Some(namespace) = &self.tool.namespace {
            item["namespace"] = Value::from(namespace.as_str());
        }
        item
    }

    /// The free text of a custom tool; empty while its arguments are incomplete.
    fn input(&self) -> String {
        let arguments: Value = serde_json::from_str(&self.arguments).unwrap_or_default();
        let input = arguments[CUSTOM_ARGUMENT].as_str();
        input.unwrap_or_default().to_string()
    }
}

fn reasoning_item(id: &str, text: Option<&str>, encrypted: bool, status: &str) -> Value {
    let part = |text: &str| json!({"type": "reasoning_text", "text": text});
    let content: Vec<Value> = text.map(part).into_iter().collect();
    let mut item = json!({"id": id, "type": "reasoning", "status": status, "summary": [],
        "content": content});
    if let Some(text) = text.filter(|_| encrypted) {
        item["encrypted_content"] = Value::from(items::encrypted(text));
    }
    item
}

fn message_item(id: &str, text: Option<&str>, status: &str) -> Value {
    let content: Vec<Value> = text.map(text_part).into_iter().collect();
    json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// Puts a response together, item by item, and writes the event of each step.
pub struct Composer {
    id: String,
    created: u64,
    model: String,
    repeated: Map<String, Value>,
    names: ToolNames,
    encrypted_reasoning: bool,
    /// JSON of the conversation to be stored with the response, and where.
    history: Option<(String, Arc<State>)>,
    started: bool,
    open: Option<Open>,
    output: Vec<Value>,
    /// Events so far.
    events: u64,
    finish: Finish,
}

impl Composer {
    pub fn new(state: &Arc<State>, request: ResponsesRequest) -> Composer {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let history = request.history.map(|history| (history, state.clone()));
        Composer {
            id: new_id("resp"),
            created: since.map_or(0, |since| since.as_secs()),
            model: state.model_id.clone(),
            repeated: request.repeated,
            names: request.names,
            encrypted_reasoning: request.encrypted_reasoning,
            history,
            started: false,
            open: None,
            output: Vec::new(),
            events: 0,
            finish: Finish::Stop,
        }
    }

    /// The answer to a request that does not stream.
    pub fn whole(mut self, reply: Gathered, usage: Usage) -> Value {
        let mut events = Vec::new();
        for delta in &reply.deltas {
            self.add(delta, &mut events);
            events.clear();
        }
        self.settle(reply.finish.unwrap_or(Finish::Stop), &mut events);
        self.end(usage, &mut events)
    }

    fn response(&self, status: &str) -> Value {
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.model,
            "output": self.output,
            "error": null,
            "incomplete_details": null,
            "usage": null,
        });
        for (name, value) in &self.repeated {
            response[name] = value.clone();
        }
        response
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

    /// The first events, before any other.
    fn start(&mut self, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        for kind in ["response.created", "response.in_progress"] {
            let response = self.response("in_progress");
            self.event(kind, json!({"response": response}), out);
        }
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
        let at = self.output.len();
        let data = json!({"output_index": at, "item": item});
        self.event("response.output_item.added", data, out);
        self.open = Some(open);
    }

    /// Begins the one part of an item.
    fn begin_part(&mut self, id: &str, part: Value, out: &mut Vec<u8>) {
        let data = json!({"item_id": id, "output_index": self.output.len(), "content_index": 0,
            "part": part});
        self.event("response.content_part.added", data, out);
    }

    fn begin_reasoning(&mut self, out: &mut Vec<u8>) {
        let id = new_id("rs");
        let item = reasoning_item(&id, None, false, "in_progress");
        let text = String::new();
        self.begin(
            Open::Reasoning {
                id: id.clone(),
                text,
            },
            item,
            out,
        );
        self.begin_part(&id, json!({"type": "reasoning_text", "text": ""}), out);
    }

    fn begin_message(&mut self, out: &mut Vec<u8>) {
        let id = new_id("msg");
        let item = message_item(&id, None, "in_progress");
        let text = String::new();
        self.begin(
            Open::Message {
                id: id.clone(),
                text,
            },
            item,
            out,
        );
        self.begin_part(&id, text_part(""), out);
    }

    fn begin_call(&mut self, name: &str, out: &mut Vec<u8>) {
        let tool = self.names.tool(name);
        let call = Call {
            id: new_id(if tool.custom { "ctc" } else { "fc" }),
            call_id: format!("call_{}", &random::hex()[..24]),
            tool,
            arguments: String::new(),
        };
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
                let data = json!({"item_id": id, "output_index": at, "content_index": 0,
                    "delta": piece});
                ("response.reasoning_text.delta", data)
            }
            Some(Open::Message { id, text }) => {
                text.push_str(piece);
                let data = json!({"item_id": id, "output_index": at, "content_index": 0,
                    "delta": piece, "logprobs": []});
                ("response.output_text.delta", data)
            }
            Some(Open::Call(call)) => {
                call.arguments.push_str(piece);
                if call.tool.custom {
                    // Its text is inside JSON, which is told whole.
                    return;
                }
                let data = json!({"item_id": call.id, "output_index": at, "delta": piece});
                ("response.function_call_arguments.delta", data)
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
                let part = json!({"type": "reasoning_text", "text": text});
                self.end_part("response.reasoning_text.done", &id, &text, part, out);
                reasoning_item(&id, Some(&text), self.encrypted_reasoning, status)
            }
            Open::Message { id, text } => {
                let part = text_part(&text);
                self.end_part("response.output_text.done", &id, &text, part, out);
                message_item(&id, Some(&text), status)
            }
            Open::Call(call) => {
                self.end_call(&call, out);
                call.item(status)
            }
        };
        let data = json!({"output_index": self.output.len(), "item": item});
        self.event("response.output_item.done", data, out);
        self.output.push(item);
    }

    fn end_part(&mut self, kind: &str, id: &str, text: &str, part: Value, out: &mut Vec<u8>) {
        let place = json!({"item_id": id, "output_index": self.output.len(), "content_index": 0});
        let mut done = place.clone();
        done["text"] = Value::from(text);
        if kind == "response.output_text.done" {
            done["logprobs"] = json!([]);
        }
        self.event(kind, done, out);
        let mut done = place;
        done["part"] = part;
        self.event("response.content_part.done", done, out);
    }

    fn end_call(&mut self, call: &Call, out: &mut Vec<u8>) {
        let place = json!({"item_id": call.id, "output_index": self.output.len()});
        let with = |name: &str, value: &str| {
            let mut data = place.clone();
            data[name] = Value::from(value);
            data
        };
        if call.tool.custom {
            let input = call.input();
            let delta = with("delta", &input);
            self.event("response.custom_tool_call_input.delta", delta, out);
            self.event(
                "response.custom_tool_call_input.done",
                with("input", &input),
                out,
            );
            return;
        }
        let mut done = with("arguments", &call.arguments);
        done["name"] = Value::from(call.tool.name.as_str());
        self.event("response.function_call_arguments.done", done, out);
    }

    /// The reply is complete.
    fn settle(&mut self, finish: Finish, out: &mut Vec<u8>) {
        self.finish = finish;
        let status = match finish {
            Finish::Length | Finish::ContextFull => "incomplete",
            Finish::Stop | Finish::StopString(_) | Finish::ToolCalls => "completed",
        };
        self.close(status, out);
    }

    /// Writes the terminal event and returns its response, which is stored where that was asked
    /// for.
    fn end(&mut self, usage: Usage, out: &mut Vec<u8>) -> Value {
        let incomplete = matches!(self.finish, Finish::Length | Finish::ContextFull);
        let (kind, status) = match incomplete {
            true => ("response.incomplete", "incomplete"),
            false => ("response.completed", "completed"),
        };
        let mut response = self.response(status);
        response["usage"] = usage_json(usage);
        if incomplete {
            // The API has no other word for a full context.
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        self.event(kind, json!({"response": response}), out);
        self.store(&response);
        response
    }

    fn store(&mut self, response: &Value) {
        let Some((mut history, state)) = self.history.take() else {
            return;
        };
        let output = Value::from(self.output.as_slice());
        let said = items::messages(&Field {
            value: &output,
            path: "output".to_string(),
        });
        // Both are lists in JSON, and neither is empty once the reply says something.
        for message in said.unwrap_or_default() {
            history.pop();
            history.push_str(&format!(",{message}]"));
        }
        let stored = Stored {
            response: response.to_string().into(),
            history: history.into(),
        };
        state.responses.insert(&self.id, stored);
    }
}

impl Writer for Composer {
    fn write(&mut self, _: &ChatModel, settled: Settled, out: &mut Vec<u8>) {
        self.start(out);
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
        self.start(out);
        let mut response = self.response("failed");
        response["error"] = json!({"code": "server_error", "message": error.message});
        self.event("response.failed", json!({"response": response}), out);
    }

    fn write_keep_alive(&mut self, out: &mut Vec<u8>) {
        self.start(out);
        out.extend_from_slice(KEEP_ALIVE_COMMENT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::responses::store::Store;
    use crate::http::state::Loading;
    use crate::http::testing::random_reply;
    use crate::text::reply::append;
    use crate::text::testing::{Random, chat_model};

    const USAGE: Usage = Usage {
        prompt: 3,
        completion: 9,
        reasoning: 4,
    };

    fn composer(state: &Arc<State>) -> Composer {
        let body = json!({
            "input": "hi",
            "include": ["reasoning.encrypted_content"],
            "tools": [
                {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
                {"type": "custom", "name": "patch"},
            ],
        });
        let request = ResponsesRequest::parse(&body, &Store::default()).unwrap();
        Composer::new(state, request)
    }

    fn state() -> Arc<State> {
        State::new("m", || Loading {
            stage: "",
            bytes_done: 0,
            bytes_total: 0,
        })
    }

    fn deltas() -> Vec<Delta> {
        let call = |index, name: &str| Delta::ToolCall {
            index,
            name: name.to_string(),
        };
        let arguments = |index, json: &str| Delta::Arguments {
            index,
            json: json.to_string(),
        };
        vec![
            Delta::Reasoning("wh".to_string()),
            Delta::Reasoning("y".to_string()),
            Delta::Content("So".to_string()),
            call(0, "n.f"),
            arguments(0, "{\"a\":"),
            arguments(0, "1}"),
            call(1, "patch"),
            arguments(1, "{\"input\":\"+x\"}"),
        ]
    }

    fn settled(deltas: Vec<Delta>, finish: Option<Finish>) -> Settled {
        Settled {
            deltas,
            finish,
            ..Settled::default()
        }
    }

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

    fn streamed(state: &Arc<State>, deltas: Vec<Delta>, finish: Finish) -> Vec<Value> {
        streamed_by(&chat_model(), state, deltas, finish)
    }

    fn streamed_by(
        model: &ChatModel,
        state: &Arc<State>,
        deltas: Vec<Delta>,
        finish: Finish,
    ) -> Vec<Value> {
        let mut composer = composer(state);
        let mut out = Vec::new();
        for delta in deltas {
            composer.write(model, settled(vec![delta], None), &mut out);
        }
        composer.write(model, settled(vec![], Some(finish)), &mut out);
        composer.write_end(USAGE, &mut out);
        events(out)
    }

    #[test]
    fn events_come_in_the_order_of_the_api_and_are_numbered() {
        let found = streamed(&state(), deltas(), Finish::ToolCalls);
        let kinds: Vec<&str> = found
            .iter()
            .map(|event| {
                event["type"]
                    .as_str()
                    .unwrap()
                    .strip_prefix("response.")
                    .unwrap()
            })
            .collect();
        let expected = [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "output_item.added",
            "custom_tool_call_input.delta",
            "custom_tool_call_input.done",
            "output_item.done",
            "completed",
        ];
        assert_eq!(kinds, expected);
        for (at, event) in found.iter().enumerate() {
            assert_eq!(event["sequence_number"], at);
        }
    }

    #[test]
    fn the_items_of_the_events_are_those_of_the_response() {
        let found = streamed(&state(), deltas(), Finish::ToolCalls);
        let done: Vec<&Value> = found
            .iter()
            .filter(|event| event["type"] == "response.output_item.done")
            .map(|event| &event["item"])
            .collect();
        let response = &found.last().unwrap()["response"];
        assert_eq!(json!(done), response["output"]);
        let of = |at: usize, name: &str| response["output"][at][name].clone();
        assert_eq!(of(0, "content")[0]["text"], "why");
        assert_eq!(of(0, "encrypted_content"), items::encrypted("why"));
        assert_eq!(of(1, "content")[0]["text"], "So");
        assert_eq!(
            (of(2, "namespace"), of(2, "name")),
            (json!("n"), json!("f"))
        );
        assert_eq!(of(2, "arguments"), "{\"a\":1}");
        assert_eq!(
            (of(3, "type"), of(3, "input")),
            (json!("custom_tool_call"), json!("+x"))
        );
        assert_eq!(
            response["usage"]["output_tokens_details"]["reasoning_tokens"],
            4
        );
    }

    /// Ids are random.
    fn without_ids(mut response: Value) -> Value {
        response["id"] = Value::Null;
        for item in response["output"].as_array_mut().unwrap() {
            item["id"] = Value::Null;
            item["call_id"] = Value::Null;
        }
        response
    }

    #[test]
    fn a_streamed_response_equals_the_whole_one() {
        for finish in [Finish::ToolCalls, Finish::Length] {
            let mut reply = Gathered {
                finish: Some(finish),
                ..Gathered::default()
            };
            deltas()
                .into_iter()
                .for_each(|delta| append(&mut reply.deltas, delta));
            let state = state();
            let mut whole = composer(&state).whole(reply, USAGE);
            let streamed = streamed(&state, deltas(), finish);
            let last = streamed.last().unwrap()["response"].clone();
            whole["created_at"] = last["created_at"].clone();
            assert_eq!(without_ids(last), without_ids(whole));
        }
    }

    #[test]
    fn the_cut_into_pieces_never_changes_the_response() {
        let mut random = Random::new(12);
        let (state, model) = (state(), chat_model());
        for _ in 0..500 {
            let pieces = random_reply(&mut random);
            let mut reply = Gathered {
                finish: Some(Finish::Stop),
                ..Gathered::default()
            };
            for delta in pieces.clone() {
                append(&mut reply.deltas, delta);
            }
            let mut whole = composer(&state).whole(reply, USAGE);
            let streamed = streamed_by(&model, &state, pieces, Finish::Stop);
            let last = streamed.last().unwrap()["response"].clone();
            whole["created_at"] = last["created_at"].clone();
            assert_eq!(without_ids(last), without_ids(whole));
        }
    }

    #[test]
    fn a_cut_reply_is_incomplete() {
        let found = streamed(
            &state(),
            vec![Delta::Content("a".to_string())],
            Finish::Length,
        );
        let last = found.last().unwrap();
        assert_eq!(last["type"], "response.incomplete");
        let response = &last["response"];
        assert_eq!(response["status"], "incomplete");
        assert_eq!(
            response["incomplete_details"]["reason"],
            "max_output_tokens"
        );
        assert_eq!(response["output"][0]["status"], "incomplete");
    }

    #[test]
    fn a_failure_is_the_one_terminal_event() {
        let mut composer = composer(&state());
        let mut out = Vec::new();
        composer.write_error(&ApiError::full(), &mut out);
        let found = events(out);
        assert_eq!(found.len(), 3);
        let response = &found[2]["response"];
        assert_eq!(found[2]["type"], "response.failed");
        assert_eq!(response["error"]["code"], "server_error");
    }

    #[test]
    fn what_is_stored_continues_the_conversation() {
        let state = state();
        let found = streamed(&state, deltas(), Finish::ToolCalls);
        let response = &found.last().unwrap()["response"];
        let stored = state
            .responses
            .get(response["id"].as_str().unwrap())
            .unwrap();
        assert_eq!(
            &serde_json::from_str::<Value>(&stored.response).unwrap(),
            response
        );
        let history: Value = serde_json::from_str(&stored.history).unwrap();
        assert_eq!(history[0], json!({"role": "user", "content": "hi"}));
        assert_eq!(history[1]["reasoning_content"], "why");
        assert_eq!(history[1]["tool_calls"][0]["function"]["name"], "n.f");
    }
}
