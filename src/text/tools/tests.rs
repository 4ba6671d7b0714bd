//! Promises that hold for every syntax. Each test is a function of the syntax and is run for all of
//! them.

use serde_json::{Map, Value, json};

use super::gemma::Gemma;
use super::glm::Glm;
use super::hermes::Hermes;
use super::llama3_json::Llama3Json;
use super::minimax_xml::MinimaxXml;
use super::mistral::Mistral;
use super::qwen3_coder::Qwen3Coder;
use super::*;
use crate::testing::{Random, assert_linear, rechunk_text};

/// Written form of a call, by the template that the model has learnt from.
pub trait Written: Syntax {
    const NAME: &'static str;
    const FORMAT: ToolFormat;
    /// Parts that the texts of hostile replies are made of.
    const PARTS: &'static [&'static str];
    /// End of a text in a call.
    const CLOSE: &'static str;

    fn write(name: &str, arguments: &Map<String, Value>) -> String;
}

/// Calls a generic function for each syntax.
#[macro_export]
macro_rules! for_each_syntax {
    ($run:ident($($argument:expr),*)) => {{
        $run::<$crate::tools::qwen3_coder::Qwen3Coder>($($argument),*);
        $run::<$crate::tools::minimax_xml::MinimaxXml>($($argument),*);
        $run::<$crate::tools::glm::Glm>($($argument),*);
        $run::<$crate::tools::hermes::Hermes>($($argument),*);
        $run::<$crate::tools::llama3_json::Llama3Json>($($argument),*);
        $run::<$crate::tools::mistral::Mistral>($($argument),*);
        $run::<$crate::tools::gemma::Gemma>($($argument),*);
    }};
}
pub use for_each_syntax;

/// A value between tags: text as it is, others as JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn joined(arguments: &Map<String, Value>, one: impl Fn(&str, &Value) -> String) -> String {
    arguments
        .iter()
        .map(|(key, value)| one(key, value))
        .collect()
}

impl Written for Qwen3Coder {
    const NAME: &'static str = "qwen3_coder";
    const FORMAT: ToolFormat = ToolFormat::Qwen3Coder;
    const CLOSE: &'static str = "\n</parameter>\n";
    const PARTS: &'static [&'static str] = &[
        "<tool_call>",
        "\n",
        "<function=edit>",
        "<parameter=path>",
        "<parameter=line>",
        "<parameter=tags>",
        "</parameter>",
        "</function>",
        "</tool_call>",
        "</param",
    ];

    fn write(name: &str, arguments: &Map<String, Value>) -> String {
        let body = joined(arguments, |key, value| {
            format!("<parameter={key}>\n{}\n</parameter>\n", plain(value))
        });
        format!("<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>")
    }
}

impl Written for MinimaxXml {
    const NAME: &'static str = "minimax_xml";
    const FORMAT: ToolFormat = ToolFormat::MinimaxXml;
    const CLOSE: &'static str = "</parameter>\n";
    const PARTS: &'static [&'static str] = &[
        "<minimax:tool_call>",
        "\n",
        "<invoke name=\"edit\">",
        "<parameter name=\"path\">",
        "<parameter name=\"line\">",
        "<parameter name=\"tags\">",
        "</parameter>",
        "</invoke>",
        "</minimax:tool_call>",
        "<invoke na",
    ];

    fn write(name: &str, arguments: &Map<String, Value>) -> String {
        let body = joined(arguments, |key, value| {
            format!("<parameter name=\"{key}\">{}</parameter>\n", plain(value))
        });
        format!(
            "<minimax:tool_call>\n<invoke name=\"{name}\">\n{body}</invoke>\n</minimax:tool_call>"
        )
    }
}

impl Written for Glm {
    const NAME: &'static str = "glm";
    const FORMAT: ToolFormat = ToolFormat::Glm;
    const CLOSE: &'static str = "</arg_value>\n";
    const PARTS: &'static [&'static str] = &[
        "<tool_call>",
        "edit",
        "\n",
        "<arg_key>",
        "path",
        "tags",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "</tool_call>",
        "</arg",
    ];

    fn write(name: &str, arguments: &Map<String, Value>) -> String {
        let body = joined(arguments, |key, value| {
            let value = plain(value);
            format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")
        });
        format!("<tool_call>{name}\n{body}</tool_call>")
    }
}

impl Written for Hermes {
    const NAME: &'static str = "hermes";
    const FORMAT: ToolFormat = ToolFormat::Hermes;
    const CLOSE: &'static str = "\"";
    const PARTS: &'static [&'static str] = &[
        "<tool_call>",
        "\n",
        "{",
        "\"name\"",
        ": ",
        "\"edit\"",
        ", ",
        "\"arguments\": ",
        "{\"path\": \"a\"}",
        "{}",
        "}",
        "</tool_call>",
        "\\",
        "[",
    ];

    fn write(name: &str, arguments: &Map<String, Value>) -> String {
        let call = json!({"name": name, "arguments": arguments});
        format!("<tool_call>\n{call}\n</tool_call>")
    }
}

impl Written for Llama3Json {
    const NAME: &'static str = "llama3_json";
    const FORMAT: ToolFormat = ToolFormat::Llama3Json;
    const CLOSE: &'static str = "\"";
    const PARTS: &'static [&'static str] = &[
        "{",
        "\n",
        "\"name\"",
        ": ",
        "\"edit\"",
        ", ",
        "\"parameters\": ",
        "\"arguments\": ",
        "\"type\": \"function\", ",
        "{\"name\": \"edit\", \"parameters\": {",
        "{\"path\": \"a\"}",
        "{}",
        "}",
        ";",
        "\\",
        "[",
    ];

    fn write(name: &str, arguments: &Map<String, Value>) -> String {
        let arguments = Value::Object(arguments.clone());
        format!("{{\"name\": \"{name}\", \"parameters\": {arguments}}}")
    }
}

impl Written for Mistral {
    const NAME: &'static str = "mistral";
    const FORMAT: ToolFormat = ToolFormat::Mistral;
    const CLOSE: &'static str = "\"";
    const PARTS: &'static [&'static str] = &[
        "[TOOL_CALLS]",
        "edit",
        "[ARGS]",
        "{",
        "\"path\": ",
        "\"a\"",
        "}",
        "{}",
        "[ARG",
        "]",
        "\\",
    ];

    fn write(name: &str, arguments: &Map<String, Value>) -> String {
        let arguments = Value::Object(arguments.clone());
        format!("[TOOL_CALLS]{name}[ARGS]{arguments}")
    }
}

impl Written for Gemma {
    const NAME: &'static str = "gemma";
    const FORMAT: ToolFormat = ToolFormat::Gemma;
    const CLOSE: &'static str = "<|\"|>";
    const PARTS: &'static [&'static str] = &[
        "<|tool_call>",
        "call:",
        "edit",
        "{",
        "path:",
        "<|\"|>",
        "tags:",
        "[",
        "]",
        ",",
        "}",
        "<tool_call|>",
        "<|\"",
        "true",
    ];

    fn write(name: &str, arguments: &Map<String, Value>) -> String {
        fn value(of: &Value) -> String {
            match of {
                Value::String(text) => format!("<|\"|>{text}<|\"|>"),
                Value::Array(items) => {
                    let items: Vec<String> = items.iter().map(value).collect();
                    format!("[{}]", items.join(","))
                }
                Value::Object(map) => object(map),
                scalar => scalar.to_string(),
            }
        }
        fn object(map: &Map<String, Value>) -> String {
            let member = |(key, of): (&String, &Value)| format!("{key}:{}", value(of));
            let members: Vec<String> = map.iter().map(member).collect();
            format!("{{{}}}", members.join(","))
        }
        format!("<|tool_call>call:{name}{}<tool_call|>", object(arguments))
    }
}

pub fn schemas() -> ToolSchemas {
    ToolSchemas::new(&[
        json!({"type": "function", "function": {"name": "edit", "parameters": {
        "type": "object", "properties": {
            "path": {"type": "string"},
            "line": {"type": "integer"},
            "all": {"type": "boolean"},
            "ratio": {"type": ["number", "null"]},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "at": {"type": "object"},
            "mode": {"enum": [1, 2]},
            "free": {}
        }}}}),
        json!({"type": "function", "function": {"name": "now"}}),
    ])
}

pub fn streamed<S: Syntax>(pieces: &[&str]) -> (Vec<Delta>, usize) {
    let mut parser = ToolParser::of::<S>(schemas(), false);
    let mut out = Vec::new();
    for piece in pieces {
        parser.push(piece, &mut out);
    }
    parser.finish(false, &mut out);
    (out, parser.completed())
}

pub fn content(text: &str) -> Delta {
    Delta::Content(text.to_string())
}

/// The calls among deltas, by name and arguments; those that broke off have no arguments.
pub fn calls(deltas: &[Delta]) -> Vec<(String, Option<Value>)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for delta in deltas {
        match delta {
            Delta::ToolCall { index, name } => {
                assert_eq!(*index, found.len());
                found.push((name.clone(), String::new()));
            }
            Delta::Arguments { index, json } => found[*index].1.push_str(json),
            Delta::Content(_) | Delta::Reasoning(_) => {}
        }
    }
    let read = |(name, json): (String, String)| (name, serde_json::from_str(&json).ok());
    found.into_iter().map(read).collect()
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// Text of tags and other oddities, in which no end of a call is whole and no argument begins.
fn hostile_text<S: Written>(random: &mut Random) -> String {
    const ODD: &[&str] = &[
        "", "é🦀", "\"", "\\", "\\\"", "{", "}]", "<", "</", "null", "\t",
    ];
    let mut text = String::new();
    for _ in 0..random.below(8) {
        let parts = if random.below(2) == 0 { S::PARTS } else { ODD };
        text.push_str(parts[random.below(parts.len())]);
        text.push_str(["x", " x", "\nx\n"][random.below(3)]);
    }
    // Another argument begins on a line of its own, whether or not the last one was closed.
    let text = format!("\n{text}").replace("\n<parameter", "\nx<parameter");
    text[1..].replace("<|\"|>", "")
}

fn hostile_arguments<S: Written>(random: &mut Random) -> Map<String, Value> {
    let mut arguments = Map::new();
    let texts = |random: &mut Random| -> Vec<String> {
        let count = random.below(3);
        (0..count).map(|_| hostile_text::<S>(random)).collect()
    };
    for key in ["path", "line", "all", "ratio", "note", "tags", "at"] {
        if random.below(2) == 0 {
            continue;
        }
        let value = match key {
            "line" => json!(random.below(1000)),
            "all" => json!(random.below(2) == 0),
            "ratio" if random.below(2) == 0 => Value::Null,
            "ratio" => json!(0.25),
            "tags" => json!(texts(random)),
            "at" => json!({"x": texts(random), "y": {"z": [1, [], {}]}}),
            _ => json!(hostile_text::<S>(random)),
        };
        arguments.insert(key.to_string(), value);
    }
    arguments
}

#[test]
fn whatever_arguments_hold_they_are_read_as_they_were_written() {
    fn run<S: Written>() {
        let mut random = Random::new(11);
        for _ in 0..1500 {
            let arguments = hostile_arguments::<S>(&mut random);
            let text = S::write("edit", &arguments);
            let (whole, completed) = streamed::<S>(&[&text]);
            let expected = [("edit".to_string(), Some(Value::Object(arguments)))];
            assert_eq!(calls(&whole), expected, "{}: {text}", S::NAME);
            assert_eq!(completed, 1);
            let cut = streamed::<S>(&rechunk_text(&text, &mut random));
            assert_eq!(cut, (whole, completed), "{}: {text}", S::NAME);
        }
    }
    for_each_syntax!(run());
}

#[test]
fn what_is_taken_off_a_text_and_what_stays_are_the_text() {
    let text = "aé🦀\nb";
    for (length, _) in text.char_indices().chain([(text.len(), ' ')]) {
        let mut pending = text.to_string();
        let front = take_front(&mut pending, length);
        assert_eq!((front.as_str(), pending.as_str()), text.split_at(length));
    }
}

/// Most of a reply passes here, a token at a time.
#[test]
fn a_text_that_is_taken_whole_is_not_copied() {
    let mut pending = "a token".to_string();
    let address = pending.as_ptr();
    let front = take_front(&mut pending, "a token".len());
    assert_eq!((front.as_ptr(), pending.capacity()), (address, 0));
}

/// A file about tool calls holds their tags, the whole end of a call among them. Gemma's are tokens
/// that stand for no text, so that none can hold them.
#[test]
fn a_value_may_hold_the_whole_end_of_a_call() {
    fn run<S: Written>() {
        let written = S::write("edit", &object(json!({"path": "SPLIT"})));
        let end = written.split("SPLIT").nth(1).unwrap();
        let mut random = Random::new(9);
        for value in [
            format!("a{end}\nb"),
            format!("a{end}"),
            format!("a{end}b{end}\n"),
        ] {
            let arguments = object(json!({"path": value, "line": 7, "note": value}));
            let call = S::write("edit", &arguments);
            for (before, after) in [("", ""), ("See.", "\n"), ("", " That is all.")] {
                let text = format!("{before}{call}{after}");
                let (deltas, completed) = streamed::<S>(&[&text]);
                let expected = [("edit".to_string(), Some(Value::Object(arguments.clone())))];
                assert_eq!(calls(&deltas), expected, "{}: {text}", S::NAME);
                let passed_on = deltas.iter().any(|delta| *delta == content(after));
                assert_eq!(passed_on, after.len() > 1, "{}: {deltas:?}", S::NAME);
                let cut = streamed::<S>(&rechunk_text(&text, &mut random));
                assert_eq!(cut, (deltas, completed), "{}: {text}", S::NAME);
            }
            let two = format!("{call}\n{}", S::write("edit", &object(json!({"line": 1}))));
            let (deltas, completed) = streamed::<S>(&[&two]);
            assert_eq!(completed, 2, "{}: {two}", S::NAME);
            assert_eq!(calls(&deltas)[0].1, Some(Value::Object(arguments)));
        }
    }
    run::<Qwen3Coder>();
    run::<MinimaxXml>();
    run::<Glm>();
    run::<Hermes>();
    run::<Llama3Json>();
    run::<Mistral>();
}

#[test]
fn the_cut_of_any_text_never_changes_what_is_read() {
    fn run<S: Written>() {
        const ODD: &[&str] = &["é\"\\", "12", "null", " ", "<", "[1, \"", "a", "\n\n"];
        const ROUNDS: usize = if cfg!(debug_assertions) {
            1_000
        } else {
            100_000
        };
        let mut random = Random::new(4);
        for round in 0..ROUNDS {
            let mut text = String::new();
            for _ in 0..random.below(24) {
                let parts = if random.below(4) > 0 { S::PARTS } else { ODD };
                text.push_str(parts[random.below(parts.len())]);
            }
            if round % 2 == 0 {
                let arguments = object(json!({"path": text, "note": "nu", "tags": [text]}));
                text = format!("x\n{}{text}", S::write("edit", &arguments));
            }
            let (whole, completed) = streamed::<S>(&[&text]);
            let cut = streamed::<S>(&rechunk_text(&text, &mut random));
            assert_eq!(cut, (whole.clone(), completed), "{}: {text:?}", S::NAME);
            let objects = calls(&whole)
                .into_iter()
                .filter(|(_, arguments)| arguments.as_ref().is_some_and(Value::is_object));
            assert_eq!(objects.count(), completed, "{}: {text:?}", S::NAME);
        }
    }
    for_each_syntax!(run());
}

#[test]
fn text_before_and_calls_in_a_row_are_told_apart() {
    fn run<S: Written>() {
        let call = |path: &str| S::write("edit", &object(json!({"path": path})));
        let text = format!("Sure.\n\n{}\n{}\n", call("a"), call("b"));
        let (deltas, completed) = streamed::<S>(&[&text]);
        assert_eq!(completed, 2, "{}", S::NAME);
        assert_eq!(deltas[0], content("Sure."));
        let paths: Vec<_> = calls(&deltas)
            .into_iter()
            .map(|(name, arguments)| (name, arguments.unwrap()["path"].clone()))
            .collect();
        let edit = |path: &str| ("edit".to_string(), json!(path));
        assert_eq!(paths, [edit("a"), edit("b")], "{}", S::NAME);
        assert_eq!(deltas.len(), 5, "{deltas:?}");
    }
    for_each_syntax!(run());
}

#[test]
fn a_call_without_arguments_has_an_empty_object() {
    fn run<S: Written>() {
        let (deltas, completed) = streamed::<S>(&[&S::write("now", &Map::new())]);
        assert_eq!(calls(&deltas), [("now".to_string(), Some(json!({})))]);
        assert_eq!(completed, 1, "{}", S::NAME);
    }
    for_each_syntax!(run());
}

fn json_of(deltas: &[Delta]) -> String {
    let json = |delta: &Delta| match delta {
        Delta::Arguments { json, .. } => json.clone(),
        _ => String::new(),
    };
    deltas.iter().map(json).collect()
}

/// Up to its name a call is not known for one: it is left out where the reply was to go on, and
/// text where the model ended it there.
#[test]
fn a_cut_leaves_no_opening_behind() {
    fn run<S: Written>() {
        let call = S::write("edit", &object(json!({"path": "a"})));
        // One sign alone shows little.
        for length in S::OPEN.len().max(2)..call.len() {
            let [deltas_cut, deltas_ended] = [true, false].map(|cut| {
                let mut parser = ToolParser::of::<S>(schemas(), false);
                let mut deltas = Vec::new();
                parser.push(&call[..length], &mut deltas);
                parser.finish(cut, &mut deltas);
                deltas
            });
            match deltas_ended.first() {
                // The model's end after an argument completes it.
                Some(Delta::ToolCall { .. }) => {
                    let [cut, ended] = [&deltas_cut, &deltas_ended].map(|deltas| json_of(deltas));
                    let missing = ended.strip_prefix(&cut).unwrap();
                    assert!(["", "}"].contains(&missing), "{}: {cut}", S::NAME);
                }
                _ => {
                    assert_eq!(deltas_cut, [], "{}", S::NAME);
                    assert_eq!(deltas_ended, [content(&call[..length])]);
                }
            }
        }
    }
    for_each_syntax!(run());
}

#[test]
fn one_call_leaves_nothing_after_it() {
    fn run<S: Written>() {
        let call = S::write("edit", &object(json!({"path": "a"})));
        let mut parser = ToolParser::of::<S>(schemas(), true);
        let mut deltas = Vec::new();
        parser.push(&format!("x{call}\n{call}y"), &mut deltas);
        assert!(parser.has_enough());
        parser.finish(false, &mut deltas);
        assert_eq!(calls(&deltas).len(), 1, "{}", S::NAME);
        assert_eq!(deltas.len(), 3, "{deltas:?}");
    }
    for_each_syntax!(run());
}

#[test]
fn a_tag_without_a_call_is_text() {
    fn run<S: Written>() {
        for rest in ["", "\n", " and so on", "\n<x>", S::OPEN] {
            let text = format!("a {}{rest}", S::OPEN);
            let (deltas, completed) = streamed::<S>(&[&text]);
            assert_eq!(
                (deltas, completed),
                (vec![content(&text)], 0),
                "{}",
                S::NAME
            );
        }
        let half = format!("a {}", &S::OPEN[..S::OPEN.len() - 1]);
        assert_eq!(streamed::<S>(&[&half]).0, [content(&half)]);
    }
    for_each_syntax!(run());
}

#[test]
fn a_call_that_breaks_off_is_not_complete_wherever_it_does() {
    fn run<S: Written>() {
        let text = S::write("edit", &object(json!({"path": "a\"é", "tags": ["b"]})));
        for (at, _) in text.char_indices() {
            let (deltas, completed) = streamed::<S>(&[&text[..at]]);
            let objects = calls(&deltas)
                .into_iter()
                .filter(|(_, arguments)| arguments.is_some());
            assert_eq!(objects.count(), completed, "{}: {}", S::NAME, &text[..at]);
        }
    }
    for_each_syntax!(run());
}

#[test]
fn name_and_text_leave_before_the_call_is_complete() {
    fn run<S: Written>() {
        let long = "word ".repeat(40);
        let text = S::write("edit", &object(json!({"path": long})));
        let at = text.find(&long).unwrap() + 20;
        let mut parser = ToolParser::of::<S>(schemas(), false);
        let mut deltas = Vec::new();
        parser.push(&text[..at], &mut deltas);
        let Some(Delta::Arguments { json, .. }) = deltas.last() else {
            panic!("{}: {deltas:?}", S::NAME);
        };
        assert!(json.contains("word word"), "{}: {json}", S::NAME);
    }
    for_each_syntax!(run());
}

#[test]
fn time_is_linear_in_the_reply() {
    fn run<S: Written>() {
        let open = S::write("edit", &object(json!({"path": "SPLIT"})));
        let listed = S::write("edit", &object(json!({"tags": ["SPLIT"]})));
        let inside = open.split("SPLIT").next().unwrap();
        let in_list = listed.split("SPLIT").next().unwrap();
        let end = open.split("SPLIT").nth(1).unwrap();
        let ended = format!("{inside}x{end}");
        let (opening, part) = (S::PARTS[0], S::PARTS[S::PARTS.len() - 1]);
        for (start, unit) in [
            ("", opening),
            ("", part),
            ("", "\n"),
            (S::OPEN, " "),
            (S::OPEN, "{\""),
            (inside, S::CLOSE),
            (inside, end),
            (&ended, "x"),
            (&ended, "<"),
            (inside, part),
            (in_list, S::CLOSE),
        ] {
            assert_linear(unit, |text| {
                let mut parser = ToolParser::of::<S>(schemas(), false);
                let mut out = Vec::new();
                parser.push(start, &mut out);
                for at in (0..text.len()).step_by(16) {
                    parser.push(&text[at..(at + 16).min(text.len())], &mut out);
                }
                parser.finish(false, &mut out);
            });
        }
    }
    for_each_syntax!(run());
}

/// Arguments of a reply that is cut anywhere, and those of the whole one.
fn arguments_of_cuts<S: Syntax>(text: &str) -> (Vec<String>, String) {
    let arguments = |text: &str, cut: bool| {
        let mut parser = ToolParser::of::<S>(schemas(), false);
        let mut out = Vec::new();
        parser.push(text, &mut out);
        parser.finish(cut, &mut out);
        let pieces = out.into_iter().filter_map(|delta| match delta {
            Delta::Arguments { json, .. } => Some(json),
            _ => None,
        });
        pieces.collect::<String>()
    };
    let cuts = text
        .char_indices()
        .map(|(at, _)| arguments(&text[..at], true));
    (cuts.collect(), arguments(text, true))
}

#[test]
fn what_is_passed_on_of_a_cut_call_is_sure() {
    fn run<S: Written>() {
        let values = [
            "Paris",
            "a < b",
            "<",
            "</",
            "one\n\n two\n",
            "<p>é</p>",
            "{\"a\": \"</",
        ];
        for value in values {
            for arguments in [
                json!({"path": value, "line": 12, "note": value}),
                json!({"tags": [value], "at": {"a": value}, "ratio": 0.5, "path": value}),
            ] {
                let text = S::write("edit", &object(arguments));
                let (cuts, whole) = arguments_of_cuts::<S>(&text);
                for cut in cuts {
                    assert!(whole.starts_with(&cut), "{}: {cut} of {whole}", S::NAME);
                }
            }
        }
    }
    for_each_syntax!(run());
}
