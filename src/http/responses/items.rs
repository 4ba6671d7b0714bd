//! `input` of the Responses API, put into the form that templates read.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{Field, Object};
use crate::generate::tools::{CUSTOM_ARGUMENT, arguments_in, left_out};
use crate::generate::transcript::{Read, Transcript, assistant};
use crate::json;
use crate::limits::{BODY_BYTES_MAX, CONTENT_PARTS_MAX, MESSAGES_MAX, TOOL_CALLS_MAX};
use crate::seal::Seal;
use host::log;

use super::store::Store;
use super::tools::{ADDITIONAL_TOOLS, FOUND_TOOLS, TOOL_SEARCH, flat_name, found};

/// Separator of the parts of one text.
const PART_GAP: &str = "\n\n";

/// Types of items of tools that another server ran. Such items are left out: the conversation is
/// then what it would have been with this server.
const HOSTED_ITEMS: &[&str] = &[
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_list_tools",
    "mcp_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "tool_search_call",
    "tool_search_output",
];

/// Types of items that clients keep for themselves, such as the state of their files.
const CLIENT_ITEMS: &[&str] = &["ghost_snapshot"];

/// Longest type of an item that an error repeats.
const QUOTED_TYPE_CHARS_MAX: usize = 64;

/// Text that replaces a part of the conversation which only another server can read.
const COMPACTED: &str = "[an earlier part of this conversation left out: another server kept it]";

/// Reads `input`, which continues `messages`: a string, or a list of items. Reasoning, text and
/// calls of one assistant's turn become one message. References lead to items in `store`.
pub fn read(
    input: &Field<'_>,
    messages: Vec<Value>,
    (store, seal): (&Store, &Seal),
) -> Result<Read, ApiError> {
    let mut turns = Turns::new(messages, (store, seal));
    match input.value {
        Value::String(text) => {
            let message = json!({"role": "user", "content": text});
            turns.messages.push(message);
        }
        Value::Array(_) => {
            for item in input.list(MESSAGES_MAX)? {
                turns.add(&item)?;
            }
        }
        _ => return Err(input.error("must be a string or a list of items")),
    }
    turns.end();
    Ok(turns.messages.end())
}

/// Items of one message of the assistant.
#[derive(Debug, Default)]
struct Turn {
    reasoning: Vec<String>,
    text: Option<String>,
    calls: Vec<Value>,
}

struct Turns<'s> {
    store: &'s Store,
    seal: &'s Seal,
    /// Bytes of stored items that `input` refers to by their ids.
    referenced: usize,
    messages: Transcript,
    open: Option<Turn>,
}

impl Turns<'_> {
    fn new<'s>(messages: Vec<Value>, (store, seal): (&'s Store, &'s Seal)) -> Turns<'s> {
        Turns {
            store,
            seal,
            referenced: 0,
            messages: Transcript::after(messages),
            open: None,
        }
    }

    fn add(&mut self, item: &Field<'_>) -> Result<(), ApiError> {
        let object = item.object()?;
        let Some(kind) = object.get("type") else {
            return match object.get("role") {
                None if object.get("id").is_some() => self.reference(&object),
                _ => self.message(&object),
            };
        };
        match kind.string()? {
            "message" => self.message(&object),
            "reasoning" => self.reasoning(&object),
            "function_call" => {
                let arguments = arguments_in(&object, "arguments")?;
                self.call(&object, Value::Object(arguments))
            }
            "custom_tool_call" => {
                let input = object.require("input")?.string()?;
                self.call(&object, json!({CUSTOM_ARGUMENT: input}))
            }
            "local_shell_call" => self.client_call(&object, "local_shell", "action"),
            "shell_call" => self.client_call(&object, "shell", "action"),
            "apply_patch_call" => self.client_call(&object, "apply_patch", "operation"),
            "computer_call" => self.client_call(&object, "computer", "action"),
            "function_call_output"
            | "custom_tool_call_output"
            | "local_shell_call_output"
            | "shell_call_output"
            | "apply_patch_call_output"
            | "computer_call_output" => self.output(&object),
            // A search without an id is one that another server ran.
            "tool_search_call" if object.get("call_id").is_some() => {
                self.client_call(&object, TOOL_SEARCH, "arguments")
            }
            "tool_search_output" if object.get("call_id").is_some() => self.found(&object),
            ADDITIONAL_TOOLS => Ok(()),
            name if HOSTED_ITEMS.contains(&name) || CLIENT_ITEMS.contains(&name) => {
                log::debug(format_args!("the item of type {name:?} is left out"));
                Ok(())
            }
            "item_reference" => self.reference(&object),
            "compaction" | "compaction_summary" => self.compacted(),
            // A compaction without content marks a position only.
            "context_compaction" => match object.get("encrypted_content") {
                Some(_) => self.compacted(),
                None => {
                    log::debug("the item of type \"context_compaction\" is left out: it is empty");
                    Ok(())
                }
            },
            name => Err(unknown_item(&kind, name)),
        }
    }

    /// Adds a note that a part of the conversation is missing.
    fn compacted(&mut self) -> Result<(), ApiError> {
        self.end();
        let message = json!({"role": "system", "content": COMPACTED});
        self.messages.push(message);
        Ok(())
    }

    /// Reads the stored item to which `object` refers. No stored item is itself a reference.
    fn reference(&mut self, object: &Object<'_>) -> Result<(), ApiError> {
        let id = object.require("id")?;
        let unknown = || id.error("is not stored here, or not any more; send the item itself");
        let item = self.store.item(id.string()?).ok_or_else(unknown)?;
        self.referenced += item.len();
        if self.referenced > BODY_BYTES_MAX {
            let problem = format!(
                "brings the items that are referred to above {BODY_BYTES_MAX} bytes; send less"
            );
            return Err(id.error(problem));
        }
        let value = json::parse(item.as_bytes()).map_err(|_| unknown())?;
        self.add(&Field {
            value: &value,
            path: object.path_of("id"),
        })
    }

    fn message(&mut self, object: &Object<'_>) -> Result<(), ApiError> {
        let role = object.require("role")?;
        let text = text(&object.require("content")?)?;
        let role = match role.string()? {
            "user" => "user",
            "system" | "developer" => "system",
            "assistant" => {
                self.end_answered();
                self.open.get_or_insert_default().text = Some(text);
                return Ok(());
            }
            _ => return Err(role.error("must be user, assistant, system or developer")),
        };
        self.end();
        self.messages.push(json!({"role": role, "content": text}));
        Ok(())
    }

    /// Ends the open turn if it has text or calls, not only reasoning.
    fn end_answered(&mut self) {
        let answered = |turn: &Turn| turn.text.is_some() || !turn.calls.is_empty();
        if self.open.as_ref().is_some_and(answered) {
            self.end();
        }
    }

    fn reasoning(&mut self, object: &Object<'_>) -> Result<(), ApiError> {
        self.end_answered();
        let known = self.reasoning_text(object)?;
        self.open.get_or_insert_default().reasoning.extend(known);
        Ok(())
    }

    /// Text of a reasoning item, from the first field that has one.
    fn reasoning_text(&mut self, object: &Object<'_>) -> Result<Option<String>, ApiError> {
        let parts = |name: &str| -> Result<Option<String>, ApiError> {
            let Some(field) = object.get(name) else {
                return Ok(None);
            };
            let text = text(&field)?;
            Ok(Some(text).filter(|text| !text.is_empty()))
        };
        if let Some(text) = parts("content")? {
            return Ok(Some(text));
        }
        if let Some(sealed) = object.get("encrypted_content") {
            match self.seal.open(sealed.string()?) {
                Some(text) => return Ok(Some(text)),
                None => self.messages.leave_out_reasoning(sealed.path),
            }
        }
        parts("summary")
    }

    fn call(&mut self, object: &Object<'_>, arguments: Value) -> Result<(), ApiError> {
        let id = object.require("call_id")?.string()?;
        let name = object.require("name")?;
        let namespace = object.optional_string("namespace")?;
        self.add_call(id, &name, &flat_name(namespace, name.string()?), arguments)
    }

    /// Call of a tool that this API defines and the client runs, such as a shell; the field
    /// `arguments` has its arguments.
    fn client_call(
        &mut self,
        object: &Object<'_>,
        name: &str,
        arguments: &str,
    ) -> Result<(), ApiError> {
        let id = call_id(object)?;
        let arguments = arguments_in(object, arguments)?;
        self.add_call(id.string()?, &id, name, Value::Object(arguments))
    }

    /// Adds a call to the open turn; `at` is the field at fault if there are too many calls.
    fn add_call(
        &mut self,
        id: &str,
        at: &Field<'_>,
        name: &str,
        arguments: Value,
    ) -> Result<(), ApiError> {
        let function = json!({"name": name, "arguments": arguments});
        let turn = self.open.get_or_insert_default();
        if turn.calls.len() == TOOL_CALLS_MAX {
            return Err(at.error(format!("is call {} of one turn", TOOL_CALLS_MAX + 1)));
        }
        let call = json!({"id": id, "type": "function", "function": function});
        turn.calls.push(call);
        Ok(())
    }

    fn output(&mut self, object: &Object<'_>) -> Result<(), ApiError> {
        let id = call_id(object)?;
        // Output of a patch may be its status alone.
        let text = match object.get("output").or_else(|| object.get("status")) {
            Some(output) => output_text(&output)?,
            None => String::new(),
        };
        self.end();
        self.messages.push_output(&id, &text)
    }

    /// Adds the result of a search, and the tools that it found, which may be called from here on,
    /// also in later requests of the conversation.
    fn found(&mut self, object: &Object<'_>) -> Result<(), ApiError> {
        let id = object.require("call_id")?;
        let tools = object.require("tools")?;
        let text = found(&tools)?;
        self.end();
        let result = json!({"role": "tool", "tool_call_id": id.string()?, "content": text,
            FOUND_TOOLS: tools.value});
        self.messages.push_result(Some(&id), result)
    }

    /// Ends the open turn, whose items become one message of the assistant.
    fn end(&mut self) {
        let Some(turn) = self.open.take() else {
            return;
        };
        let text = turn.text.unwrap_or_default();
        let reasoning = (!turn.reasoning.is_empty()).then(|| turn.reasoning.join(PART_GAP));
        self.messages.push(assistant(&text, reasoning, turn.calls));
    }
}

fn unknown_item(kind: &Field<'_>, name: &str) -> ApiError {
    let name: String = name.chars().take(QUOTED_TYPE_CHARS_MAX).collect();
    kind.error(format!(
        "items of type {name:?} are not read; send message, reasoning, item_reference, \
         compaction, or a call of a tool or its output"
    ))
}

/// Id that a call and its output share; items of some tools have it in `id`.
fn call_id<'v>(object: &Object<'v>) -> Result<Field<'v>, ApiError> {
    let id = object.get("call_id").or_else(|| object.get("id"));
    id.map_or_else(|| object.require("call_id"), Ok)
}

/// Text of a content: a string, or a list of text parts.
fn text(field: &Field<'_>) -> Result<String, ApiError> {
    if let Value::String(text) = field.value {
        return Ok(text.clone());
    }
    if !field.value.is_array() {
        return Err(field.error("must be a string or a list of text parts"));
    }
    let parts = field.list(CONTENT_PARTS_MAX)?;
    let texts: Result<Vec<&str>, ApiError> = parts.iter().map(part).collect();
    Ok(texts?.join(PART_GAP))
}

/// Text of a tool's output, in which placeholders replace parts that are no text.
fn output_text(field: &Field<'_>) -> Result<String, ApiError> {
    match field.value {
        Value::Array(_) => {
            let parts = field.list(CONTENT_PARTS_MAX)?;
            let texts: Result<Vec<_>, ApiError> = parts.iter().map(output_part).collect();
            Ok(texts?.join(PART_GAP))
        }
        Value::Object(_) => Ok(output_part(field)?.into_owned()),
        _ => text(field),
    }
}

fn output_part<'v>(field: &Field<'v>) -> Result<Cow<'v, str>, ApiError> {
    match field.value["type"].as_str() {
        Some(kind @ ("input_image" | "input_file" | "input_audio")) => {
            Ok(left_out(kind.trim_start_matches("input_")).into())
        }
        Some("computer_screenshot") => Ok(left_out("screenshot").into()),
        // The output of a shell is an object with what a command wrote and how it ended.
        None if field.value.is_object() => Ok(field.value.to_string().into()),
        _ => part(field).map(Cow::from),
    }
}

fn part<'v>(field: &Field<'v>) -> Result<&'v str, ApiError> {
    let object = field.object()?;
    let kind = object.require("type")?;
    match kind.string()? {
        "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text" => {
            object.require("text")?.string()
        }
        "refusal" => object.require("refusal")?.string(),
        "input_image" | "input_file" | "input_audio" => {
            Err(kind.error("this server reads text only"))
        }
        _ => Err(kind.error("must be input_text or output_text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::responses::store::Stored;

    fn read(input: Value) -> Result<Vec<Value>, ApiError> {
        let field = Field {
            value: &input,
            path: "input".to_string(),
        };
        read_with(&field, &Seal::new(None)).map(|read| read.messages)
    }

    fn read_with(input: &Field<'_>, seal: &Seal) -> Result<Read, ApiError> {
        super::read(input, Vec::new(), (&stored(), seal))
    }

    /// A store with one response of three items.
    fn stored() -> Store {
        let store = Store::default();
        let item = |id: &str, item: Value| (id.to_string(), item.to_string());
        let thought = json!([{"type": "reasoning_text", "text": "why"}]);
        let huge = "x".repeat(BODY_BYTES_MAX / 2);
        let items = [
            item(
                "rs_1",
                json!({"type": "reasoning", "summary": [], "content": thought}),
            ),
            item(
                "fc_1",
                json!({"type": "function_call", "call_id": "c", "name": "f"}),
            ),
            item(
                "msg_1",
                json!({"type": "message", "role": "assistant", "content": huge}),
            ),
        ];
        let stored = Stored {
            response: "{}".into(),
            history: "[]".into(),
            input: [].into(),
            items: items.into(),
        };
        store.insert("resp_1", stored);
        store
    }

    #[test]
    fn items_of_earlier_responses_may_be_there_by_their_id() {
        let input = json!([
            {"type": "item_reference", "id": "rs_1"}, {"id": "fc_1"},
            {"type": "function_call_output", "call_id": "c", "output": "ok"}]);
        let found = read(input).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0]["reasoning_content"], "why");
        assert_eq!(found[0]["tool_calls"][0]["id"], "c");
        let reference = json!({"type": "item_reference", "id": "msg_1"});
        assert!(read(json!([reference])).is_ok());
        assert_eq!(refused(json!([reference, reference])), "input[1].id");
    }

    fn refused(input: Value) -> String {
        read(input).unwrap_err().param.unwrap()
    }

    #[test]
    fn a_string_is_a_question() {
        let expected = json!({"role": "user", "content": "hi"});
        assert_eq!(read(json!("hi")).unwrap(), [expected]);
    }

    #[test]
    fn roles_and_parts_become_messages() {
        let input = json!([
            {"type": "message", "role": "developer", "content": [
                {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"role": "system", "content": "c"},
            {"role": "user", "content": [{"type": "input_text", "text": "d"}]},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
             "content": [{"type": "output_text", "text": "e", "annotations": []}]}]);
        let expected = json!([
            {"role": "system", "content": "a\n\nb"},
            {"role": "system", "content": "c"},
            {"role": "user", "content": "d"},
            {"role": "assistant", "content": "e"}]);
        assert_eq!(Value::from(read(input).unwrap()), expected);
    }

    #[test]
    fn reasoning_text_and_calls_of_a_turn_are_one_message() {
        let input = json!([
            {"type": "reasoning", "summary": [],
             "content": [{"type": "reasoning_text", "text": "why"}]},
            {"type": "message", "role": "assistant", "content": "Look:"},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\":1}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "namespace": "n",
             "arguments": ""},
            {"type": "function_call_output", "call_id": "c2",
             "output": [{"type": "input_text", "text": "two"}]},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
            {"type": "message", "role": "assistant", "content": "Done."}]);
        let call = |id: &str, name: &str, arguments: Value| {
            json!({"id": id, "type": "function",
                   "function": {"name": name, "arguments": arguments}})
        };
        let expected = json!([
            {"role": "assistant", "content": "Look:", "reasoning_content": "why",
             "tool_calls": [call("c1", "f", json!({"a": 1})), call("c2", "n.g", json!({}))]},
            {"role": "tool", "tool_call_id": "c1", "content": "one"},
            {"role": "tool", "tool_call_id": "c2", "content": "two"},
            {"role": "assistant", "content": "Done.", "reasoning_content": "so"}]);
        assert_eq!(Value::from(read(input).unwrap()), expected);
    }

    #[test]
    fn text_after_calls_begins_a_turn() {
        let input = json!([
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "message", "role": "assistant", "content": "a"},
            {"type": "message", "role": "assistant", "content": "b"}]);
        assert_eq!(read(input).unwrap().len(), 3);
    }

    #[test]
    fn what_a_tool_shows_beside_text_is_left_out_and_said_so() {
        let picture = json!({"type": "input_image", "image_url": "data:,"});
        let output = json!([{"type": "input_text", "text": "Look:"}, picture]);
        let call = json!({"type": "function_call", "call_id": "c", "name": "f"});
        let output = json!({"type": "function_call_output", "call_id": "c", "output": output});
        let found = read(json!([call, output])).unwrap();
        assert_eq!(
            found[1]["content"],
            format!("Look:\n\n{}", left_out("image"))
        );
        let unread = json!([{"type": "function_call_output", "call_id": "c",
            "output": [{"type": "smell"}]}]);
        assert_eq!(refused(unread), "input[0].output[0].type");
    }

    #[test]
    fn free_text_is_one_argument() {
        let input = json!([
            {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "+x"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}]);
        let found = read(input).unwrap();
        let function = &found[0]["tool_calls"][0]["function"];
        assert_eq!(function["arguments"], json!({"input": "+x"}));
        assert_eq!(found[1]["content"], "ok");
    }

    #[test]
    fn calls_of_the_tools_of_this_api_are_calls() {
        for (kind, name, field) in [
            ("local_shell_call", "local_shell", "action"),
            ("shell_call", "shell", "action"),
            ("apply_patch_call", "apply_patch", "operation"),
            ("computer_call", "computer", "action"),
        ] {
            let action = json!({"type": "exec", "command": ["ls"]});
            let call = json!({"type": kind, "call_id": "c", field: action});
            let output = json!({"type": format!("{kind}_output"), "call_id": "c", "output": "a"});
            let call_of = json!({"id": "c", "type": "function",
                "function": {"name": name, "arguments": action}});
            let expected = json!([
                {"role": "assistant", "content": "", "tool_calls": [call_of]},
                {"role": "tool", "tool_call_id": "c", "content": "a"}]);
            assert_eq!(Value::from(read(json!([call, output])).unwrap()), expected);
        }
    }

    #[test]
    fn what_a_tool_of_this_api_puts_out_is_shown_as_it_is() {
        let put_out = |kind: &str, name: &str, value: Value| {
            let call = json!({"type": "function_call", "call_id": "c", "name": "f"});
            let item = json!({"type": kind, "id": "c", name: value});
            read(json!([call, item])).unwrap()[1].clone()
        };
        let wrote = json!({"stdout": "a", "outcome": {"type": "exit", "exit_code": 0}});
        let shell = put_out("shell_call_output", "output", json!([wrote]));
        assert_eq!(
            (&shell["tool_call_id"], &shell["content"]),
            (&json!("c"), &wrote.to_string().into())
        );
        let silent = put_out("function_call_output", "output", Value::Null);
        assert_eq!(silent["content"], "");
        let patch = put_out("apply_patch_call_output", "status", json!("failed"));
        assert_eq!(patch["content"], "failed");
        let picture = json!({"type": "computer_screenshot", "image_url": "data:,"});
        let screen = put_out("computer_call_output", "output", picture);
        assert_eq!(screen["content"], left_out("screenshot"));
    }

    #[test]
    fn what_another_server_compacted_is_said_to_be_missing() {
        let input = json!([
            {"type": "message", "role": "assistant", "content": "a"},
            {"type": "compaction", "encrypted_content": "gAAAA"},
            {"role": "user", "content": "b"}]);
        let found = read(input).unwrap();
        assert_eq!(
            (&found[0]["content"], &found[1]["content"]),
            (&json!("a"), &json!(COMPACTED))
        );
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn what_a_client_notes_for_itself_is_left_out() {
        let input = json!([
            {"role": "user", "content": "a"},
            {"type": "ghost_snapshot", "ghost_commit": {"id": "x", "parent": null}},
            {"type": "context_compaction"}]);
        let expected = json!([{"role": "user", "content": "a"}]);
        assert_eq!(Value::from(read(input).unwrap()), expected);
    }

    #[test]
    fn a_context_that_another_server_compacted_is_said_to_be_missing() {
        let item = json!({"type": "context_compaction", "encrypted_content": "gAAAA"});
        let found = read(json!([item])).unwrap();
        assert_eq!(found, [json!({"role": "system", "content": COMPACTED})]);
    }

    #[test]
    fn an_item_that_is_not_known_is_named() {
        let long = "x".repeat(QUOTED_TYPE_CHARS_MAX + 1);
        for (kind, shown) in [("smell", "\"smell\""), (&long, &long[1..])] {
            let error = read(json!([{"type": kind}])).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("input[0].type"));
            assert!(error.message.contains(shown), "{}", error.message);
            assert!(!error.message.contains(&long));
        }
    }

    #[test]
    fn what_a_search_found_is_shown_where_it_was_found() {
        let tool = json!({"type": "function", "name": "g", "parameters": {}});
        let space = json!({"type": "namespace", "name": "n", "tools": [tool]});
        let arguments = json!({"query": "x"});
        let read_both = |id: Value, tools: Value| {
            let call = json!({"type": "tool_search_call", "call_id": id, "arguments": arguments});
            let output = json!({"type": "tool_search_output", "call_id": id, "tools": tools});
            read(json!([{"role": "user", "content": "hi"}, call, output]))
        };
        let found = read_both(json!("c"), json!([space])).unwrap();
        let function = &found[1]["tool_calls"][0]["function"];
        assert_eq!(
            (&function["name"], &function["arguments"]),
            (&json!(TOOL_SEARCH), &arguments)
        );
        let shown = found[2]["content"].as_str().unwrap();
        assert!(
            shown.contains(r#"{"name":"n.g","parameters":{}}"#),
            "{shown}"
        );
        assert_eq!(found[2][FOUND_TOOLS], json!([space]));
        // Another server searched, and found what stands at the head.
        assert_eq!(read_both(Value::Null, json!([])).unwrap().len(), 1);
        let nameless = read_both(json!("c"), json!([{"type": "function"}]));
        assert_eq!(
            nameless.unwrap_err().param.unwrap(),
            "input[2].tools[0].name"
        );
    }

    #[test]
    fn reasoning_is_read_from_the_first_field_that_has_it() {
        let seal = Seal::new(None);
        let of = |mut item: Value| {
            item["type"] = json!("reasoning");
            let value = json!([item]);
            let path = "input".to_string();
            let read = read_with(
                &Field {
                    value: &value,
                    path,
                },
                &seal,
            )
            .unwrap();
            (read.messages[0]["reasoning_content"].clone(), read.left_out)
        };
        let summary = json!([{"type": "summary_text", "text": "short"}]);
        let none: Vec<String> = Vec::new();
        assert_eq!(
            of(json!({"summary": summary})),
            (json!("short"), none.clone())
        );
        let ours = json!({"summary": summary, "encrypted_content": seal.close("long")});
        assert_eq!(of(ours), (json!("long"), none));
        for (summary, expected) in [(summary, json!("short")), (json!([]), Value::Null)] {
            let (found, left_out) = of(json!({"summary": summary, "encrypted_content": "gAAAA"}));
            assert_eq!(found, expected);
            assert!(left_out[0].starts_with("input[0].encrypted_content: "));
        }
    }

    #[test]
    fn broken_arguments_of_the_history_end_nothing() {
        let input = json!([{"type": "function_call", "call_id": "c", "name": "f",
            "arguments": "{\"a\":"}]);
        let function = &read(input).unwrap()[0]["tool_calls"][0]["function"];
        assert_eq!(function["arguments"], json!({"arguments": "{\"a\":"}));
    }

    #[test]
    fn what_is_not_served_is_refused_by_its_path() {
        assert_eq!(refused(json!(5)), "input");
        assert_eq!(refused(json!([5])), "input[0]");
        assert_eq!(
            refused(json!([{"role": "king", "content": "x"}])),
            "input[0].role"
        );
        assert_eq!(
            refused(json!([{"type": "message", "role": "user"}])),
            "input[0].content"
        );
        let image = json!([{"role": "user", "content": [{"type": "input_image"}]}]);
        assert_eq!(refused(image), "input[0].content[0].type");
        assert_eq!(
            refused(json!([{"type": "item_reference", "id": "x"}])),
            "input[0].id"
        );
        assert_eq!(refused(json!([{"type": "smell"}])), "input[0].type");
        let foreign = json!([{"type": "function_call_output", "call_id": "c", "output": "x"}]);
        assert_eq!(refused(foreign), "input[0].call_id");
        let unnamed = json!([{"type": "function_call", "call_id": "c"}]);
        assert_eq!(refused(unnamed), "input[0].name");
        let hosted = json!([{"type": "web_search_call", "id": "ws_1"}]);
        assert!(read(hosted).unwrap().is_empty());
    }
}
