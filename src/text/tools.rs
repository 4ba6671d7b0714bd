//! Tool calls in a reply's text, in the `qwen3_coder` format:
//!
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=ARGUMENT>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! A call is announced once its name is complete and its arguments follow in pieces, as JSON. What
//! is no call is given back as text. A call that breaks off keeps the arguments that came, which
//! are then no complete JSON, so that no client runs half a call.

use std::collections::HashMap;

use serde_json::Value;
use serde_json::value::RawValue;

use super::held_prefix;
use super::reply::{Delta, append};

pub const CALL_OPEN: &str = "<tool_call>";
pub const CALL_CLOSE: &str = "</tool_call>";
const FUNCTION_OPEN: &str = "<function=";
const FUNCTION_CLOSE: &str = "</function>";
const PARAMETER_OPEN: &str = "<parameter=";
const PARAMETER_CLOSE: &str = "</parameter>";

/// Longest name of a function or argument that is taken for one.
pub const NAME_BYTES_MAX: usize = 128;
/// Newlines around a call that belong to the format rather than to the text.
const NEWLINES_DROPPED_MAX: usize = 8;
/// Depth to which a schema's alternatives are looked into.
const SCHEMA_DEPTH_MAX: usize = 8;

/// What the tools of a request say about the types of arguments.
#[derive(Debug, Default)]
pub struct ToolSchemas {
    functions: HashMap<String, HashMap<String, Types>>,
}

impl ToolSchemas {
    /// Reads tools in the form of the chat completions API; what it does not understand is
    /// taken as text.
    pub fn new(tools: &[Value]) -> ToolSchemas {
        let functions = tools.iter().filter_map(|tool| {
            let function = &tool["function"];
            let root = &function["parameters"];
            let parameters = root["properties"].as_object();
            let types = parameters
                .into_iter()
                .flatten()
                .map(|(name, schema)| (name.clone(), Types::of(schema, root)));
            Some((function["name"].as_str()?.to_string(), types.collect()))
        });
        ToolSchemas {
            functions: functions.collect(),
        }
    }

    fn types(&self, function: &str, argument: &str) -> Types {
        let known = self
            .functions
            .get(function)
            .and_then(|types| types.get(argument));
        known.copied().unwrap_or(Types {
            string: true,
            ..Types::default()
        })
    }
}

/// JSON types that an argument may have; none set means that the schema does not say.
#[derive(Clone, Copy, Debug, Default)]
pub struct Types {
    string: bool,
    number: bool,
    boolean: bool,
    null: bool,
    array: bool,
    object: bool,
}

impl Types {
    /// The types that a schema allows; `root` holds what it refers to.
    pub fn of(schema: &Value, root: &Value) -> Types {
        let mut types = Types::default();
        types.add(schema, root, 0);
        types
    }

    /// Whether a value is read as text rather than as JSON.
    pub fn is_text(self) -> bool {
        self.string || self.unsaid()
    }

    /// Whether the value can only be null.
    pub fn is_null(self) -> bool {
        let others = self.string || self.number || self.boolean || self.array || self.object;
        self.null && !others
    }

    fn add(&mut self, schema: &Value, root: &Value, depth: usize) {
        if depth > SCHEMA_DEPTH_MAX {
            return;
        }
        let schema = resolved(schema, root);
        match &schema["type"] {
            Value::String(name) => self.add_name(name),
            Value::Array(names) => {
                names
                    .iter()
                    .filter_map(Value::as_str)
                    .for_each(|name| self.add_name(name));
            }
            _ => {}
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            for alternative in schema[key].as_array().into_iter().flatten() {
                self.add(alternative, root, depth + 1);
            }
        }
        if schema.get("type").is_none() {
            schema
                .get("const")
                .into_iter()
                .for_each(|value| self.add_type_of(value));
            for value in schema["enum"].as_array().into_iter().flatten() {
                self.add_type_of(value);
            }
        }
    }

    fn add_name(&mut self, name: &str) {
        match name {
            "string" => self.string = true,
            "number" | "integer" => self.number = true,
            "boolean" => self.boolean = true,
            "null" => self.null = true,
            "array" => self.array = true,
            "object" => self.object = true,
            _ => {}
        }
    }

    fn add_type_of(&mut self, value: &Value) {
        match value {
            Value::Null => self.null = true,
            Value::Bool(_) => self.boolean = true,
            Value::Number(_) => self.number = true,
            Value::String(_) => self.string = true,
            Value::Array(_) => self.array = true,
            Value::Object(_) => self.object = true,
        }
    }

    fn unsaid(self) -> bool {
        !(self.string || self.number || self.boolean || self.null || self.array || self.object)
    }

    /// Whether a value that begins with `start` is a string whatever follows.
    fn surely_string(self, start: &str) -> bool {
        self.string && !(self.null && "null".starts_with(start))
    }

    /// The JSON of a complete value: of the schema's type if it can be read so, else a string.
    fn to_json(self, text: &str) -> String {
        let trimmed = text.trim();
        let lower = trimmed.to_ascii_lowercase();
        if self.null && (lower == "null" || lower == "none") {
            return "null".to_string();
        }
        if self.string {
            return quoted(text);
        }
        if self.boolean && (lower == "true" || lower == "false") {
            return lower;
        }
        let wanted = match trimmed.as_bytes().first() {
            Some(b'[') => self.array || self.unsaid(),
            Some(b'{') => self.object || self.unsaid(),
            Some(b'-' | b'0'..=b'9') => self.number,
            _ => false,
        };
        if wanted && serde_json::from_str::<&RawValue>(trimmed).is_ok() {
            return trimmed.to_string();
        }
        quoted(text)
    }
}

/// The schema that `schema` refers to inside `root`, or itself.
pub fn resolved<'v>(mut schema: &'v Value, root: &'v Value) -> &'v Value {
    for _ in 0..SCHEMA_DEPTH_MAX {
        let reference = schema["$ref"].as_str();
        let pointer = reference.and_then(|reference| reference.strip_prefix('#'));
        match pointer.and_then(|pointer| root.pointer(pointer)) {
            Some(found) => schema = found,
            None => break,
        }
    }
    schema
}

/// Whether calls can name a function or an argument so.
pub fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(|byte| is_name_byte(&byte))
}

fn is_name_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.:".contains(byte)
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Escapes a piece of a JSON string, without the quotes.
fn escaped(text: &str) -> String {
    let mut json = quoted(text);
    json.pop();
    json.remove(0);
    json
}

#[derive(Debug)]
enum State {
    /// Outside a call. `after_call`: newlines are dropped until text comes.
    Text { after_call: bool },
    /// Behind `<tool_call>`; `held` starts with the newlines and tag, `tag_end` bytes.
    Header { tag_end: usize },
    /// Between the arguments of a call.
    Arguments(Call),
    /// In the value of an argument.
    Value(Call, Argument),
    /// Behind `</function>`.
    Closing,
}

#[derive(Debug, Default)]
struct Call {
    function: String,
    /// Names of the arguments so far.
    arguments: Vec<String>,
}

#[derive(Debug)]
struct Argument {
    types: Types,
    /// Said before in this call: its value is dropped.
    repeated: bool,
    /// The newline behind the tag has been seen to.
    started: bool,
    /// The value is being streamed as a string.
    streaming: bool,
    /// The value so far, while it is not streamed.
    value: String,
}

/// Follows one reply.
#[derive(Debug)]
pub struct ToolParser {
    schemas: ToolSchemas,
    state: State,
    held: String,
    /// Calls announced so far.
    announced: usize,
    /// Calls whose arguments are complete.
    completed: usize,
}

/// What a step of the parser found in the held text.
enum Step {
    /// Look again, something was consumed.
    Again,
    /// More text is needed.
    Wait,
}

impl ToolParser {
    pub fn new(schemas: ToolSchemas) -> ToolParser {
        ToolParser {
            schemas,
            state: State::Text { after_call: false },
            held: String::new(),
            announced: 0,
            completed: 0,
        }
    }

    /// Calls whose arguments are complete.
    pub fn completed(&self) -> usize {
        self.completed
    }

    /// Appends to `out` what `text` settles.
    pub fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        self.held.push_str(text);
        while let Step::Again = self.step(out) {}
    }

    /// Appends to `out` what was held back.
    pub fn finish(&mut self, out: &mut Vec<Delta>) {
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Text { after_call: false }) {
            State::Text { .. } | State::Header { .. } => append(out, Delta::Content(held)),
            State::Value(_, argument) if argument.streaming && !argument.repeated => {
                self.emit(out, escaped(&held));
            }
            State::Value(..) | State::Arguments(_) | State::Closing => {}
        }
    }

    fn step(&mut self, out: &mut Vec<Delta>) -> Step {
        match std::mem::replace(&mut self.state, State::Closing) {
            State::Text { after_call } => self.text(after_call, out),
            State::Header { tag_end } => self.header(tag_end, out),
            State::Arguments(call) => self.arguments(call, out),
            State::Value(call, argument) => self.value(call, argument, out),
            State::Closing => self.closing(),
        }
    }

    /// Arguments of the call at hand.
    fn emit(&mut self, out: &mut Vec<Delta>, json: String) {
        append(
            out,
            Delta::Arguments {
                index: self.announced - 1,
                json,
            },
        );
    }

    /// Passes text on up to what may be the start of a call.
    fn text(&mut self, after_call: bool, out: &mut Vec<Delta>) -> Step {
        if after_call {
            let kept = self.held.trim_start_matches('\n').len();
            self.held.drain(..self.held.len() - kept);
        }
        let found = self.held.find(CALL_OPEN);
        let end = found.unwrap_or_else(|| self.held.len() - held_prefix(&self.held, CALL_OPEN));
        let free = end - newlines_at_end(&self.held[..end]);
        let text: String = self.held.drain(..free).collect();
        let after_call = after_call && text.is_empty();
        append(out, Delta::Content(text));
        if found.is_some() {
            self.state = State::Header {
                tag_end: end - free + CALL_OPEN.len(),
            };
            return Step::Again;
        }
        self.state = State::Text { after_call };
        Step::Wait
    }

    /// Reads `<function=NAME>`, and announces the call; or gives the tag back as text.
    fn header(&mut self, tag_end: usize, out: &mut Vec<Delta>) -> Step {
        match tag_with_name(&self.held[tag_end..], FUNCTION_OPEN) {
            Tag::Found { name, length } => {
                self.held.drain(..tag_end + length);
                append(
                    out,
                    Delta::ToolCall {
                        index: self.announced,
                        name: name.clone(),
                    },
                );
                self.announced += 1;
                self.state = State::Arguments(Call {
                    function: name,
                    arguments: Vec::new(),
                });
                Step::Again
            }
            Tag::Unfinished => {
                self.state = State::Header { tag_end };
                Step::Wait
            }
            Tag::Other => {
                let text: String = self.held.drain(..tag_end).collect();
                append(out, Delta::Content(text));
                self.state = State::Text { after_call: false };
                Step::Again
            }
        }
    }

    /// Reads the next `<parameter=NAME>` or the end of the function.
    fn arguments(&mut self, mut call: Call, out: &mut Vec<Delta>) -> Step {
        let blank = self.held.len() - self.held.trim_start().len();
        self.held.drain(..blank);
        if self.held.starts_with(FUNCTION_CLOSE) {
            self.held.drain(..FUNCTION_CLOSE.len());
            let end = if call.arguments.is_empty() { "{}" } else { "}" };
            self.emit(out, end.to_string());
            self.completed += 1;
            self.state = State::Closing;
            return Step::Again;
        }
        match tag_with_name(&self.held, PARAMETER_OPEN) {
            Tag::Found { name, length } => {
                self.held.drain(..length);
                let argument = self.open_argument(&mut call, name, out);
                self.state = State::Value(call, argument);
                Step::Again
            }
            Tag::Other if !FUNCTION_CLOSE.starts_with(self.held.as_str()) => {
                // The call is broken: what came stays as it is, the rest is text.
                self.state = State::Text { after_call: false };
                Step::Again
            }
            Tag::Unfinished | Tag::Other => {
                self.state = State::Arguments(call);
                Step::Wait
            }
        }
    }

    fn open_argument(&mut self, call: &mut Call, name: String, out: &mut Vec<Delta>) -> Argument {
        let types = self.schemas.types(&call.function, &name);
        let repeated = call.arguments.contains(&name);
        if !repeated {
            let opening = if call.arguments.is_empty() { '{' } else { ',' };
            self.emit(out, format!("{opening}{}:", quoted(&name)));
            call.arguments.push(name);
        }
        Argument {
            types,
            repeated,
            started: false,
            streaming: false,
            value: String::new(),
        }
    }

    /// Passes a value on, or gathers it, up to its closing tag.
    fn value(&mut self, call: Call, mut argument: Argument, out: &mut Vec<Delta>) -> Step {
        if !argument.started && !self.held.is_empty() {
            argument.started = true;
            if self.held.starts_with('\n') {
                self.held.remove(0);
            }
        }
        let found = self.held.find(PARAMETER_CLOSE);
        let end =
            found.unwrap_or_else(|| self.held.len() - held_prefix(&self.held, PARAMETER_CLOSE));
        let last_newline = usize::from(self.held[..end].ends_with('\n'));
        let piece: String = self.held.drain(..end - last_newline).collect();
        if found.is_some() {
            self.held.drain(..last_newline + PARAMETER_CLOSE.len());
            self.close_value(argument, piece, out);
            self.state = State::Arguments(call);
            return Step::Again;
        }
        self.extend_value(&mut argument, piece, out);
        self.state = State::Value(call, argument);
        Step::Wait
    }

    fn extend_value(&mut self, argument: &mut Argument, piece: String, out: &mut Vec<Delta>) {
        if argument.repeated {
            return;
        }
        if argument.streaming {
            self.emit(out, escaped(&piece));
            return;
        }
        argument.value.push_str(&piece);
        if !argument.value.is_empty() && argument.types.surely_string(&argument.value) {
            argument.streaming = true;
            let start = std::mem::take(&mut argument.value);
            self.emit(out, format!("\"{}", escaped(&start)));
        }
    }

    fn close_value(&mut self, mut argument: Argument, piece: String, out: &mut Vec<Delta>) {
        if argument.repeated {
            return;
        }
        if argument.streaming {
            self.emit(out, format!("{}\"", escaped(&piece)));
            return;
        }
        argument.value.push_str(&piece);
        let json = argument.types.to_json(&argument.value);
        self.emit(out, json);
    }

    /// Drops the end of a call; a missing end is forgiven.
    fn closing(&mut self) -> Step {
        let blank = self.held.len() - self.held.trim_start_matches('\n').len();
        self.held.drain(..blank);
        if self.held.starts_with(CALL_CLOSE) {
            self.held.drain(..CALL_CLOSE.len());
        } else if CALL_CLOSE.starts_with(self.held.as_str()) {
            return Step::Wait;
        }
        self.state = State::Text { after_call: true };
        Step::Again
    }
}

/// What stands at the head of a text where a tag with a name is expected.
enum Tag {
    Found { name: String, length: usize },
    Unfinished,
    Other,
}

/// Reads blank text and `open NAME >`.
fn tag_with_name(text: &str, open: &str) -> Tag {
    let head = text.trim_start();
    let blank = text.len() - head.len();
    if blank > NEWLINES_DROPPED_MAX {
        return Tag::Other;
    }
    let Some(name) = head.strip_prefix(open) else {
        return if open.starts_with(head) {
            Tag::Unfinished
        } else {
            Tag::Other
        };
    };
    let length = name.bytes().take_while(is_name_byte).count();
    match name.as_bytes().get(length) {
        _ if length > NAME_BYTES_MAX => Tag::Other,
        None => Tag::Unfinished,
        Some(b'>') if length > 0 => Tag::Found {
            name: name[..length].to_string(),
            length: blank + open.len() + length + 1,
        },
        Some(_) => Tag::Other,
    }
}

fn newlines_at_end(text: &str) -> usize {
    text.bytes()
        .rev()
        .take(NEWLINES_DROPPED_MAX)
        .take_while(|byte| *byte == b'\n')
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::testing::{Random, assert_linear, rechunk_text};
    use serde_json::json;

    fn schemas() -> ToolSchemas {
        ToolSchemas::new(&[
            json!({"type": "function", "function": {"name": "edit", "parameters": {
            "type": "object", "properties": {
                "path": {"type": "string"},
                "line": {"type": "integer"},
                "all": {"type": "boolean"},
                "ratio": {"type": ["number", "null"]},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "mode": {"enum": [1, 2]},
                "free": {}
            }}}}),
        ])
    }

    fn streamed(pieces: &[&str]) -> (Vec<Delta>, usize) {
        let mut parser = ToolParser::new(schemas());
        let mut out = Vec::new();
        for piece in pieces {
            parser.push(piece, &mut out);
        }
        parser.finish(&mut out);
        (out, parser.completed())
    }

    fn call(arguments: &[(&str, &str)]) -> String {
        let body: String = arguments
            .iter()
            .map(|(name, value)| format!("<parameter={name}>\n{value}\n</parameter>\n"))
            .collect();
        format!("<tool_call>\n<function=edit>\n{body}</function>\n</tool_call>")
    }

    fn arguments(text: &str) -> Value {
        let (deltas, completed) = streamed(&[text]);
        assert_eq!(completed, 1, "{deltas:?}");
        match &deltas[..] {
            [
                Delta::ToolCall { index: 0, name },
                Delta::Arguments { index: 0, json },
            ] => {
                assert_eq!(name, "edit");
                serde_json::from_str(json).unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    fn content(text: &str) -> Vec<Delta> {
        vec![Delta::Content(text.to_string())]
    }

    #[test]
    fn values_take_the_types_of_the_schema() {
        let text = call(&[
            ("path", "42"),
            ("line", "42"),
            ("all", "True"),
            ("ratio", "null"),
            ("note", "null"),
            ("tags", "[\"a\", \"b\"]"),
            ("mode", "2"),
            ("free", "{\"a\": 1}"),
        ]);
        let expected = json!({"path": "42", "line": 42, "all": true, "ratio": null, "note": null,
            "tags": ["a", "b"], "mode": 2, "free": {"a": 1}});
        assert_eq!(arguments(&text), expected);
    }

    #[test]
    fn a_value_that_misses_its_type_stays_text() {
        let text = call(&[
            ("line", "many"),
            ("tags", "[1"),
            ("all", "maybe"),
            ("note", "nullable"),
        ]);
        let expected = json!({"line": "many", "tags": "[1", "all": "maybe", "note": "nullable"});
        assert_eq!(arguments(&text), expected);
    }

    #[test]
    fn a_value_keeps_its_inner_newlines_and_markup() {
        let text = call(&[("path", "\n a\n</p> \"é\"\n")]);
        assert_eq!(arguments(&text), json!({"path": "\n a\n</p> \"é\"\n"}));
    }

    #[test]
    fn a_long_integer_keeps_all_digits() {
        let text = call(&[("line", "123456789012345678901234567890")]);
        let (deltas, _) = streamed(&[&text]);
        let json = "{\"line\":123456789012345678901234567890}".to_string();
        assert_eq!(deltas[1], Delta::Arguments { index: 0, json });
    }

    #[test]
    fn a_repeated_argument_counts_once() {
        let text = call(&[("path", "a"), ("path", "b")]);
        assert_eq!(arguments(&text), json!({"path": "a"}));
    }

    #[test]
    fn a_call_without_arguments_has_an_empty_object() {
        assert_eq!(arguments(&call(&[])), json!({}));
    }

    #[test]
    fn text_before_and_calls_in_a_row_are_told_apart() {
        let text = format!(
            "Sure.\n\n{}\n{}\n",
            call(&[("path", "a")]),
            call(&[("path", "b")])
        );
        let (deltas, completed) = streamed(&[&text]);
        assert_eq!(completed, 2);
        assert_eq!(deltas[0], Delta::Content("Sure.".to_string()));
        assert_eq!(
            deltas[3],
            Delta::ToolCall {
                index: 1,
                name: "edit".to_string()
            }
        );
        assert_eq!(deltas.len(), 5);
    }

    #[test]
    fn what_is_no_call_is_given_back_as_text() {
        for text in [
            "<tool_call>",
            "\n<tool_call>\n{\"name\": \"edit\"}\n</tool_call>",
            "<tool_call><tool_call>\n<function=>",
            "a <tool_cal",
            "<tool_call>\n<function=na me>\n</function>",
        ] {
            assert_eq!(streamed(&[text]), (content(text), 0));
        }
    }

    #[test]
    fn a_broken_call_is_not_completed() {
        let (deltas, completed) =
            streamed(&["<tool_call><function=edit><parameter=path>a</parameter>oops"]);
        assert_eq!(completed, 0);
        assert_eq!(
            deltas[1],
            Delta::Arguments {
                index: 0,
                json: "{\"path\":\"a\"".to_string()
            }
        );
        assert_eq!(deltas[2], Delta::Content("oops".to_string()));
    }

    #[test]
    fn the_name_leaves_before_the_arguments_do() {
        let mut parser = ToolParser::new(schemas());
        let mut out = Vec::new();
        parser.push("<tool_call>\n<function=edit>", &mut out);
        assert_eq!(
            out,
            [Delta::ToolCall {
                index: 0,
                name: "edit".to_string()
            }]
        );
        out.clear();
        parser.push("\n<parameter=path>\nab", &mut out);
        assert_eq!(
            out,
            [Delta::Arguments {
                index: 0,
                json: "{\"path\":\"ab".to_string()
            }]
        );
    }

    #[test]
    fn rechunking_never_changes_the_result() {
        let mut random = Random::new(4);
        let parts = [
            "<tool_call>",
            "\n",
            "<function=edit>",
            "<parameter=path>",
            "<parameter=line>",
            "</parameter>",
            "</function>",
            "</tool_call>",
            "é\"\\",
            "12",
            "null",
            "<parameter=note>",
            " ",
            "<",
            "</param",
        ];
        for round in 0..4000 {
            let mut text: String = (0..random.below(24))
                .map(|_| parts[random.below(parts.len())])
                .collect();
            if round % 2 == 0 {
                text = format!("x\n{}{text}", call(&[("path", &text), ("note", "nu")]));
            }
            assert_eq!(
                streamed(&[&text]),
                streamed(&rechunk_text(&text, &mut random)),
                "{text:?}"
            );
        }
    }

    #[test]
    fn time_is_linear_in_the_reply() {
        let open = "<tool_call><function=edit><parameter=path>";
        for (start, unit) in [
            ("", "<tool_call>"),
            ("", "\n"),
            ("", "<tool_cal"),
            (open, "\n"),
            (open, "</paramete"),
            ("<tool_call><function=edit><parameter=tags>", "["),
            ("<tool_call><function=edit>", " "),
            (
                "",
                "<tool_call>\n<function=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ",
            ),
        ] {
            assert_linear(unit, |text| {
                let mut parser = ToolParser::new(schemas());
                let mut out = Vec::new();
                parser.push(start, &mut out);
                for at in (0..text.len()).step_by(4) {
                    parser.push(&text[at..(at + 4).min(text.len())], &mut out);
                }
                parser.finish(&mut out);
            });
        }
    }
}
