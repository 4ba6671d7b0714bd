//! From tokens to what a client is told. How a reply comes in pieces never changes what it says.

use std::sync::LazyLock;

use ::model::target::VOCAB;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use step::executor::TokenId;
use text::detokenize::Detokenizer;
use text::reasoning::{ReasoningSplitter, Split};
use text::reply::{Delta, Flow, OutputParser, ReplyFormat};
use text::stop::StopMatcher;
use text::tools::gemma::Gemma;
use text::tools::glm::Glm;
use text::tools::harmony::Mark;
use text::tools::harmony::reader::{Begin, HarmonyReader};
use text::tools::hermes::Hermes;
use text::tools::llama3_json::Llama3Json;
use text::tools::minimax_xml::MinimaxXml;
use text::tools::mistral::Mistral;
use text::tools::qwen3_coder::Qwen3Coder;
use text::tools::{Syntax, ToolParser, ToolSchemas};

use super::choice::{Choices, Cut};
use super::model;

/// Check of a text's calls when it is cut so; with or without an end behind the first call.
type Calls = fn(text: &str, cut: Cut, one_call: bool);

/// By syntax.
const CALLS: [Calls; 7] = [
    calls_in::<Qwen3Coder>,
    calls_in::<MinimaxXml>,
    calls_in::<Glm>,
    calls_in::<Hermes>,
    calls_in::<Mistral>,
    calls_in::<Gemma>,
    calls_in::<Llama3Json>,
];

const STOP: &str = "zq";

/// A tool with an argument of each type.
fn schemas() -> ToolSchemas {
    static TOOL: LazyLock<Value> = LazyLock::new(|| {
        json!({"function": {"name": "f", "parameters": {"properties": {
            "s": {"type": "string"}, "n": {"type": "number"}, "b": {"type": ["boolean", "null"]},
            "o": {"type": "object"}, "a": {"type": "array"}}}}})
    });
    ToolSchemas::new([&*TOOL])
}

/// The cut of a text never changes its calls, and complete calls alone have JSON objects. The head
/// chooses the syntax, whether the first call is the last, and the cut.
pub fn tool_calls(input: &[u8]) {
    let mut choices = Choices::of(input);
    let check = CALLS[choices.below(CALLS.len())];
    let (one_call, cut) = (choices.flag(), choices.cut());
    check(&String::from_utf8_lossy(choices.rest()), cut, one_call);
}

fn calls_in<S: Syntax>(text: &str, cut: Cut, one_call: bool) {
    let parser = || ToolParser::of::<S>(schemas(), one_call);
    let (mut whole, mut pieces) = (parser(), parser());
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    whole.push(text, &mut expected);
    whole.finish(one_call, &mut expected);
    cut.text(text, |piece| pieces.push(piece, &mut found));
    pieces.finish(one_call, &mut found);
    assert_eq!(found, expected, "{}", S::OPEN);
    let mut arguments: Vec<String> = Vec::new();
    for delta in found {
        match delta {
            Delta::ToolCall { index, .. } => {
                assert_eq!(index, arguments.len());
                arguments.push(String::new());
            }
            Delta::Arguments { index, json } => arguments[index].push_str(&json),
            Delta::Content(_) | Delta::Reasoning(_) => {}
        }
    }
    let is_json = |json: &str| serde_json::from_str::<&RawValue>(json).is_ok();
    let complete = arguments
        .iter()
        .filter(|json| json.starts_with('{') && is_json(json));
    assert_eq!(complete.count(), whole.completed(), "{arguments:?}");
}

/// The cut of the text between marks never changes what a reply in harmony tells. The head chooses
/// whether calls are wanted, whether the first one is the last, and the cut.
pub fn harmony(input: &[u8]) {
    let mut choices = Choices::of(input);
    let (wanted, one_call, cut) = (choices.flag(), choices.flag(), choices.cut());
    let text = String::from_utf8_lossy(choices.rest());
    let reader = || {
        let tools = wanted.then(|| schemas().into());
        HarmonyReader::new(Begin::Header, tools, one_call)
    };
    let (mut whole, mut pieces) = (reader(), reader());
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    let mut rest = &*text;
    loop {
        let marks = Mark::ALL.into_iter();
        let next = marks.filter_map(|mark| Some((rest.find(mark.text())?, mark)));
        let next = next.min_by_key(|(at, _)| *at);
        let end = next.map_or(rest.len(), |(at, _)| at);
        whole.push(&rest[..end], &mut expected);
        cut.text(&rest[..end], |piece| pieces.push(piece, &mut found));
        let Some((_, mark)) = next else {
            break;
        };
        whole.mark(mark, &mut expected);
        pieces.mark(mark, &mut found);
        rest = &rest[end + mark.text().len()..];
    }
    whole.finish(one_call, &mut expected);
    pieces.finish(one_call, &mut found);
    assert_eq!(found, expected);
}

/// Any tokens make a reply of valid text, and a stop string never shows. The head chooses what the
/// reply may hold; two bytes are a token.
pub fn reply(input: &[u8]) {
    let mut choices = Choices::of(input);
    let format = ReplyFormat {
        reasoning_opened: choices.flag(),
        raw: choices.flag(),
        tools: choices.flag().then(|| schemas().into()),
        lenient: true,
        one_call: choices.flag(),
        stops: vec![STOP.to_string()],
        min_tokens: 0,
        ..ReplyFormat::default()
    };
    let model = model::chat();
    let mut reply = OutputParser::new(model, format);
    let (mut deltas, mut flow) = (Vec::new(), Flow::Continue(()));
    for pair in choices.rest().chunks_exact(2) {
        let id = usize::from(u16::from_le_bytes([pair[0], pair[1]])) % VOCAB;
        flow = reply.push(model, id as TokenId, &mut deltas);
        if flow.is_break() {
            break;
        }
    }
    if flow.is_continue() {
        let _ = reply.finish(false, &mut deltas);
    }
    for delta in deltas {
        if let Delta::Content(text) = delta {
            assert!(!text.contains(STOP), "{text:?}");
        }
    }
}

/// The cut of bytes never changes their text, and that of a text never where a stop string ends it.
/// The head chooses which of the two is looked at, and the cut.
pub fn stop_strings(input: &[u8]) {
    let mut choices = Choices::of(input);
    let (stops, cut) = (choices.flag(), choices.cut());
    match stops {
        false => decoded(choices.rest(), cut),
        true => stopped(&String::from_utf8_lossy(choices.rest()), cut),
    }
}

fn decoded(bytes: &[u8], cut: Cut) {
    let (mut whole, mut pieces) = (Detokenizer::default(), Detokenizer::default());
    let (mut expected, mut found) = (String::new(), String::new());
    whole.push(bytes, &mut expected);
    whole.finish(&mut expected);
    cut.bytes(bytes, |piece| pieces.push(piece, &mut found));
    pieces.finish(&mut found);
    assert_eq!(found, expected);
    assert_eq!(found, String::from_utf8_lossy(bytes));
}

fn stopped(text: &str, cut: Cut) {
    static STOPS: LazyLock<[String; 3]> =
        LazyLock::new(|| ["STOP", "\n\n", "aab"].map(String::from));
    let mut found = String::new();
    let mut matcher = StopMatcher::new(&*STOPS);
    let mut stopped = false;
    cut.text(text, |piece| {
        stopped = stopped || matcher.push(piece, &mut found).is_some()
    });
    if !stopped {
        matcher.finish(&mut found);
    }
    let ends = STOPS.iter().filter_map(|stop| text.find(stop.as_str()));
    let end = ends.min();
    assert_eq!(
        (stopped, found.as_str()),
        (end.is_some(), &text[..end.unwrap_or(text.len())])
    );
}

/// The cut of a text never changes what is reasoning and what is content. The head chooses whether
/// the prompt opened the reasoning, and the cut.
pub fn reasoning(input: &[u8]) {
    let mut choices = Choices::of(input);
    let (opened, cut) = (choices.flag(), choices.cut());
    let text = String::from_utf8_lossy(choices.rest());
    let splitter = || ReasoningSplitter::new("<think>", "</think>", opened);
    let (mut whole, mut pieces) = (splitter(), splitter());
    let (mut expected, mut found) = (Split::default(), Split::default());
    whole.push(&text, &mut expected);
    whole.finish(false, &mut expected);
    cut.text(&text, |piece| pieces.push(piece, &mut found));
    pieces.finish(false, &mut found);
    assert_eq!(found, expected);
}
