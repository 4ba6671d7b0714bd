use serde_json::json;

use super::*;
use crate::testing::{Random, assert_linear, rechunk_text};

fn schemas() -> Arc<ToolSchemas> {
    let tool = |name| json!({"function": {"name": name, "parameters": {"properties": {}}}});
    ToolSchemas::new(&[tool("f"), tool("bash")]).into()
}

/// A piece of a reply.
enum Piece<'t> {
    Text(&'t str),
    Mark(Mark),
}

/// Text between marks, which are written as their texts.
fn pieces(mut text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    while !text.is_empty() {
        let marks = Mark::ALL.into_iter();
        let found = marks.filter_map(|mark| Some((text.find(mark.text())?, mark)));
        let Some((at, mark)) = found.min_by_key(|(at, _)| *at) else {
            pieces.push(Piece::Text(text));
            break;
        };
        pieces.push(Piece::Text(&text[..at]));
        pieces.push(Piece::Mark(mark));
        text = &text[at + mark.text().len()..];
    }
    pieces
}

fn read_by(mut reader: HarmonyReader, text: &str, cut: bool) -> Vec<Delta> {
    let mut out = Vec::new();
    for piece in pieces(text) {
        match piece {
            Piece::Text(text) => reader.push(text, &mut out),
            Piece::Mark(mark) => reader.mark(mark, &mut out),
        }
    }
    reader.finish(cut, &mut out);
    out
}

fn read(text: &str) -> Vec<Delta> {
    read_by(
        HarmonyReader::new(Begin::Header, Some(schemas()), false),
        text,
        false,
    )
}

fn reasoning(text: &str) -> Delta {
    Delta::Reasoning(text.to_string())
}

fn content(text: &str) -> Delta {
    Delta::Content(text.to_string())
}

fn call(index: usize, name: &str, json: &str) -> [Delta; 2] {
    let (name, json) = (name.to_string(), json.to_string());
    [
        Delta::ToolCall { index, name },
        Delta::Arguments { index, json },
    ]
}

#[test]
fn each_channel_is_passed_on_as_what_it_is() {
    let text = "<|channel|>analysis<|message|>I think.<|end|>\
        <|start|>assistant<|channel|>commentary<|message|>I look.<|end|>\
        <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json\
        <|message|>{\"a\": 1}<|call|>";
    let [name, arguments] = call(0, "f", "{\"a\": 1}");
    assert_eq!(
        read(text),
        [reasoning("I think."), content("I look."), name, arguments]
    );
    let text = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final\
        <|message|>b<|return|>";
    assert_eq!(read(text), [reasoning("a"), content("b")]);
}

#[test]
fn calls_in_a_row_and_in_any_channel_are_read() {
    let text = "<|channel|>analysis to=functions.f code<|message|>{}<|end|>\
        <|start|>assistant to=functions.bash<|channel|>final json<|message|>{\"b\":[]} x<|call|>";
    let expected = [call(0, "f", "{}"), call(1, "bash", "{\"b\":[]}")].concat();
    assert_eq!(read(text), expected);
}

#[test]
fn a_known_tool_needs_no_namespace_and_unknown_ones_are_no_calls() {
    let to = |recipient: &str| {
        read(&format!(
            "<|channel|>commentary to={recipient} code<|message|>{{}}<|call|>"
        ))
    };
    assert_eq!(to("bash"), call(0, "bash", "{}"));
    assert_eq!(to("functions.other"), call(0, "other", "{}"));
    for builtin in ["python", "browser.search", "container.exec", "functions."] {
        assert_eq!(to(builtin), [reasoning("{}")], "{builtin}");
    }
}

#[test]
fn a_call_that_is_not_wanted_is_text() {
    let text = "<|channel|>commentary to=functions.f<|message|>{}<|call|>";
    let reader = HarmonyReader::new(Begin::Header, None, false);
    assert_eq!(read_by(reader, text, false), [content("{}")]);
}

#[test]
fn a_call_without_text_has_no_arguments_unless_it_is_cut() {
    let head = "<|channel|>commentary to=functions.f<|message|> ";
    assert_eq!(read(&format!("{head}<|call|>")), call(0, "f", "{}"));
    assert_eq!(read(head), call(0, "f", "{}"));
    let reader = HarmonyReader::new(Begin::Header, Some(schemas()), false);
    assert_eq!(read_by(reader, head, true), call(0, "f", "{}")[..1]);
}

#[test]
fn what_breaks_the_frame_is_forgiven() {
    for (text, expected) in [
        ("I cannot.", vec![content("I cannot.")]),
        (
            "<|channel|>final I cannot.<|return|>",
            vec![content("I cannot.")],
        ),
        ("<|channel|>odd<|message|>a<|return|>", vec![content("a")]),
        (
            "<|channel|>analysis<|message|>a<|channel|>final<|message|>b",
            vec![reasoning("a"), content("b")],
        ),
        (
            "<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b",
            vec![reasoning("a"), content("b")],
        ),
        (
            "<|channel|>final<|message|>a<|message|>b<|constrain|>c",
            vec![content("abc")],
        ),
        (
            "<|start|>assistant<|start|>assistant<|channel|>final<|message|>a",
            vec![content("a")],
        ),
        (
            "<|start|>functions.f to=assistant<|channel|>commentary<|message|>made up<|end|>",
            vec![reasoning("made up")],
        ),
    ] {
        assert_eq!(read(text), expected, "{text}");
    }
}

#[test]
fn texts_of_several_messages_are_apart() {
    let message = |channel: &str, text: &str| {
        format!("<|start|>assistant<|channel|>{channel}<|message|>{text}<|end|>")
    };
    let text = ["analysis", "analysis", "commentary", "final"].map(|channel| message(channel, "a"));
    let expected = [reasoning("a\n\na"), content("a\n\na")];
    assert_eq!(read(&text.concat()), expected);
}

#[test]
fn a_header_that_is_cut_is_not_passed_on_and_text_is() {
    let cut = |text: &str| {
        read_by(
            HarmonyReader::new(Begin::Header, Some(schemas()), false),
            text,
            true,
        )
    };
    assert_eq!(cut("<|channel|>comm"), []);
    assert_eq!(
        cut("<|channel|>commentary to=functions.f <|constrain|>js"),
        []
    );
    assert_eq!(cut("Well, I"), [content("Well, I")]);
}

#[test]
fn one_call_leaves_nothing_after_it() {
    let text = "<|channel|>commentary to=functions.f<|message|>{}<|end|>\
        <|start|>assistant<|channel|>final<|message|>b<|end|>";
    let reader = HarmonyReader::new(Begin::Header, Some(schemas()), true);
    assert_eq!(read_by(reader, text, false), call(0, "f", "{}"));
}

#[test]
fn a_prompt_may_have_opened_the_reasoning() {
    let reader = HarmonyReader::new(Begin::Reasoning, None, false);
    assert_eq!(reader.section(), Section::Reasoning);
    let text = "a<|end|><|start|>assistant<|channel|>final<|message|>b";
    assert_eq!(read_by(reader, text, false), [reasoning("a"), content("b")]);
}

/// Replies of any marks and texts, in any pieces.
#[test]
fn the_cut_of_a_text_never_changes_what_is_passed_on() {
    let words = [
        "assistant",
        "analysis",
        "commentary",
        "final",
        " to=",
        "functions.",
        "f",
        "é🦀",
        " json",
        "{\"a\":",
        "1}",
        "{}",
        "\n",
        "user",
        "long text, and more of it ",
    ];
    let mut random = Random::new(5);
    for _ in 0..3000 {
        let mut reply = Vec::new();
        for _ in 0..random.below(60) {
            reply.push(match random.below(3) {
                0 => Err(Mark::ALL[random.below(7)]),
                _ => Ok(words[random.below(words.len())].repeat(1 + random.below(4))),
            });
        }
        let (one_call, cut) = (random.below(2) == 0, random.below(2) == 0);
        let mut run = |pieces: bool| {
            let mut reader = HarmonyReader::new(Begin::Header, Some(schemas()), one_call);
            let mut out = Vec::new();
            for piece in &reply {
                match piece {
                    Err(mark) => reader.mark(*mark, &mut out),
                    Ok(text) if pieces => {
                        let cut = rechunk_text(text, &mut random);
                        cut.iter().for_each(|text| reader.push(text, &mut out));
                    }
                    Ok(text) => reader.push(text, &mut out),
                }
            }
            reader.finish(cut, &mut out);
            out
        };
        assert_eq!(run(false), run(true), "{reply:?}");
    }
}

#[test]
fn time_is_linear_in_the_reply() {
    for unit in ["a", " to=functions.f", "{\"a\": [1, 2]} "] {
        assert_linear(unit, |text| {
            let head = "<|channel|>commentary to=functions.f<|message|>";
            drop(read(&format!("{head}{text}")));
            drop(read(text));
        });
    }
}
