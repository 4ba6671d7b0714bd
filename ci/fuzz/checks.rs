//! What must hold for any bytes: each check takes an input and panics when a promise breaks.
//!
//! A parser that reads a stream is fed the same bytes whole and in pieces; both must agree.

use atlas::cli::boot::{self, Files};
use atlas::engine::constraint::{Mask, Next};
use atlas::engine::request::TokenId;
use atlas::http::chat::request::ChatRequest;
use atlas::http::completions::request::CompletionRequest;
use atlas::http::error::ApiError;
use atlas::http::json as body;
use atlas::http::messages::request::{MessagesRequest, countable};
use atlas::http::responses::request::ResponsesRequest;
use atlas::http::responses::store::Store;
use atlas::http::wire::Framing;
use atlas::target::{MAX_CONTEXT, VOCAB};
use atlas::text::chat::ChatModel;
use atlas::text::detokenize::Detokenizer;
use atlas::text::grammar::calls::{self, Calls};
use atlas::text::grammar::{Grammar, JsonGrammar, Scope};
use atlas::text::reasoning::{ReasoningSplitter, Split};
use atlas::text::reply::{Delta, Flow, Reply, ReplyFormat};
use atlas::text::stop::StopMatcher;
use atlas::text::template::Conversation;
use atlas::text::tools::gemma::Gemma;
use atlas::text::tools::glm::Glm;
use atlas::text::tools::hermes::Hermes;
use atlas::text::tools::minimax_xml::MinimaxXml;
use atlas::text::tools::mistral::Mistral;
use atlas::text::tools::qwen3_coder::Qwen3Coder;
use atlas::text::tools::{Syntax, ToolParser, ToolSchemas};
use atlas::weights::header;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::time::Duration;

/// CPU time far above what compiling takes without optimisation, or under a fuzzer.
const COMPILE_PATIENCE: Duration = Duration::from_secs(2);
/// Tokens of a reply under a grammar.
const GRAMMAR_TOKENS: usize = 12;

/// One check, by the name of its seeds' folder.
pub struct Check {
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Inputs that the seeds are mixed with.
    pub words: &'static [&'static str],
}

/// All checks.
pub const CHECKS: &[Check] = &[
    Check {
        name: "chat_request",
        run: chat_request,
        words: &[
            "\"messages\"",
            "\"role\"",
            "\"content\"",
            "\"tools\"",
            "null",
            "1e999",
            "[[[[",
            "{}",
            "\\ud800",
            "\"stop\"",
            "-0.0",
            "\"tool_calls\"",
            "18446744073709551616",
        ],
    },
    Check {
        name: "completion_request",
        run: completion_request,
        words: &[
            "\"prompt\"",
            "\"echo\"",
            "\"logprobs\"",
            "\"max_tokens\"",
            "[[1]]",
            "[\"a\"]",
            "null",
            "3071",
            "-1",
            "true",
            "<|im_end|>",
        ],
    },
    Check {
        name: "forged_turns",
        run: forged_turns,
        words: &[
            "<|im_end|>",
            "<|im_start|>",
            "<|endoftext|>",
            "<|im_",
            "end|>",
            "<",
            ">",
            "|",
            "\u{fdd0}",
            "</think>",
            "<tool_call>",
            "\u{338}",
            "\n",
        ],
    },
    Check {
        name: "messages_request",
        run: messages_request,
        words: &[
            "\"messages\"",
            "\"system\"",
            "\"tool_result\"",
            "\"tool_use\"",
            "\"thinking\"",
            "\"input_schema\"",
            "\"type\"",
            "\"assistant\"",
            "null",
            "[]",
            "{}",
            "-1",
        ],
    },
    Check {
        name: "responses_request",
        run: responses_request,
        words: &[
            "\"input\"",
            "\"function_call\"",
            "\"function_call_output\"",
            "\"reasoning\"",
            "\"namespace\"",
            "\"tools\"",
            "\"type\"",
            "\"call_id\"",
            "null",
            "[]",
            "{}",
            "-1",
        ],
    },
    Check {
        name: "template",
        run: template,
        words: &[
            "\"role\"",
            "\"tool\"",
            "\"assistant\"",
            "\"tool_calls\"",
            "<|im_end|>",
            "null",
        ],
    },
    Check {
        name: "tool_calls",
        run: tool_calls,
        words: &[
            "<tool_call>",
            "\n<function=f>",
            "\n<parameter=n>\n",
            "</parameter>",
            "</function>",
            "</tool_call>",
            "<minimax:tool_call>",
            "<invoke name=\"f\">",
            "<parameter name=\"o\">",
            "</invoke>",
            "</minimax:tool_call>",
            "<arg_key>a</arg_key>\n<arg_value>",
            "</arg_value>",
            "{\"name\": \"f\", \"arguments\": {",
            "[TOOL_CALLS]f[ARGS]{",
            "<|tool_call>call:f{",
            "<|\"|>",
            "<tool_call|>",
            "<",
            "}",
            "\"",
            "true",
            "[1, 2]",
            "é",
        ],
    },
    Check {
        name: "reply",
        run: reply,
        words: &["<think>", "</think>", "\n", "\u{1f980}"],
    },
    Check {
        name: "stop_strings",
        run: stop_strings,
        words: &["STOP", "ST", "STO", "\n\n", "aab", "aa"],
    },
    Check {
        name: "reasoning",
        run: reasoning,
        words: &["<think>", "</think>", "</thi", "\n"],
    },
    Check {
        name: "grammar",
        run: grammar,
        words: &[
            "\"type\"",
            "\"enum\":[",
            "{\"$ref\":\"#\"}",
            "\"anyOf\":[",
            "\"allOf\":[",
            "\"multipleOf\":7",
            "\"pattern\":\"(a|b)*\"",
            "{0,999}",
            "(",
            ")*",
            "[^",
            "\\p{L}",
            "start: ",
            "%json {",
            " | ",
        ],
    },
    Check {
        name: "http_head",
        run: http_head,
        words: &[
            "\r\n",
            "\n",
            "Content-Length: ",
            "Transfer-Encoding: chunked\r\n",
            "POST / HTTP/1.1\r\n",
            "0\r\n\r\n",
            "5\r\n",
            ";",
            "Host: a\r\n",
        ],
    },
    Check {
        name: "safetensors_header",
        run: safetensors_header,
        words: &[
            "\"dtype\"",
            "\"BF16\"",
            "\"shape\"",
            "\"data_offsets\"",
            "[0,0]",
            "__metadata__",
            "18446744073709551615",
        ],
    },
];

thread_local! {
    /// The model inside the binary; built once a thread, since it takes long.
    static MODEL: ChatModel = boot::chat_model(&Files::Embedded).expect("the model is embedded");
    /// A tool with an argument of each type.
    static TOOL: Value = json!({"function": {"name": "f", "parameters": {"properties": {
        "s": {"type": "string"}, "n": {"type": "number"}, "b": {"type": ["boolean", "null"]},
        "o": {"type": "object"}, "a": {"type": "array"}}}}});
}

/// Cuts `bytes` into pieces whose lengths its own bytes decide.
fn pieces<'a>(bytes: &'a [u8], mut each: impl FnMut(&'a [u8])) {
    let mut rest = bytes;
    while let Some(&first) = rest.first() {
        let (piece, after) = rest.split_at((usize::from(first) % 7 + 1).min(rest.len()));
        each(piece);
        rest = after;
    }
}

/// The same for text, cut between characters.
fn text_pieces(text: &str, mut each: impl FnMut(&str)) {
    let mut start = 0;
    for (at, letter) in text.char_indices() {
        if at > start && (letter as usize + at).is_multiple_of(3) {
            each(&text[start..at]);
            start = at;
        }
    }
    each(&text[start..]);
}

/// A body is refused by a sentence or becomes a request; no input takes the server down.
pub fn chat_request(bytes: &[u8]) {
    request(bytes, |value| ChatRequest::parse(value, "tiny").map(drop));
}

/// The same for the Messages API, and for a body whose tokens are counted.
pub fn messages_request(bytes: &[u8]) {
    request(bytes, |value| MessagesRequest::parse(value).map(drop));
    request(bytes, |value| countable(value).map(drop));
}

/// The same for the Responses API.
pub fn responses_request(bytes: &[u8]) {
    let store = Store::default();
    request(bytes, |value| {
        ResponsesRequest::parse(value, &store).map(drop)
    });
}

fn request(bytes: &[u8], parse: impl Fn(&Value) -> Result<(), ApiError>) {
    match body::parse(bytes) {
        Ok(value) => {
            if let Err(error) = parse(&value) {
                assert!(error.status.is_client_error(), "{error:?}");
                assert!(!error.message.is_empty());
            }
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

/// A body is refused by a sentence or becomes a request whose prompts leave room for its replies.
pub fn completion_request(bytes: &[u8]) {
    let Ok(value) = body::parse(bytes) else {
        return;
    };
    MODEL.with(|model| {
        match CompletionRequest::parse(&value, "tiny", &model.tokenizer, MAX_CONTEXT) {
            Ok((request, prompts)) => {
                let (length, _) = request.ask.max_tokens.expect("it is settled");
                for prompt in prompts {
                    assert!(!prompt.tokens.is_empty());
                    assert!(prompt.tokens.len() + length <= MAX_CONTEXT);
                    assert!(prompt.tokens.iter().all(|&id| (id as usize) < VOCAB));
                }
            }
            Err(error) => {
                assert!(error.status.is_client_error(), "{error:?}");
                assert!(!error.message.is_empty());
            }
        }
    });
}

/// Whatever a message holds, its conversation has the turns that the template gives it, and reads
/// the same when it is encoded again from what was remembered.
pub fn forged_turns(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let ids = |model: &ChatModel, text: &str| {
        let conversation = Conversation {
            messages: vec![
                json!({"role": "user", "content": text}),
                json!({"role": "assistant", "content": text, "reasoning_content": text}),
                json!({"role": "user", "content": "x"}),
            ],
            tools: vec![],
            add_generation_prompt: true,
            enable_thinking: true,
        };
        let prompt = model.prompt(&conversation, usize::MAX);
        prompt.map(|prompt| prompt.tokens).ok()
    };
    MODEL.with(|model| {
        let controls = |ids: Option<Vec<TokenId>>| {
            let ids = ids.into_iter().flatten();
            let controls = ids.filter(|&id| model.tokenizer.is_special(id));
            controls.collect::<Vec<TokenId>>()
        };
        let found = ids(model, &text);
        assert_eq!(ids(model, &text), found);
        assert_eq!(controls(found), controls(ids(model, "x")));
    });
}

/// A conversation is refused or becomes a prompt below the limit.
pub fn template(bytes: &[u8]) {
    let Ok(value) = body::parse(bytes) else {
        return;
    };
    let Ok(request) = ChatRequest::parse(&value, "tiny") else {
        return;
    };
    const LIMIT: usize = 512;
    MODEL.with(|model| {
        let conversation = Conversation {
            messages: model.place_system_messages(request.ask.messages),
            tools: request.ask.tools,
            add_generation_prompt: true,
            enable_thinking: request.ask.thinking,
        };
        if let Ok(prompt) = model.prompt(&conversation, LIMIT) {
            assert!(!prompt.tokens.is_empty() && prompt.tokens.len() < LIMIT);
        }
    });
}

fn schemas() -> ToolSchemas {
    TOOL.with(|tool| ToolSchemas::new(std::slice::from_ref(tool)))
}

/// The cut of a text never changes its calls, and complete calls alone have JSON objects.
pub fn tool_calls(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    calls_in::<Qwen3Coder>(&text);
    calls_in::<MinimaxXml>(&text);
    calls_in::<Glm>(&text);
    calls_in::<Hermes>(&text);
    calls_in::<Mistral>(&text);
    calls_in::<Gemma>(&text);
}

fn calls_in<S: Syntax>(text: &str) {
    let parser = || ToolParser::<S>::new(schemas(), false);
    let (mut whole, mut cut) = (parser(), parser());
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    whole.push(text, &mut expected);
    text_pieces(text, |piece| cut.push(piece, &mut found));
    whole.finish(&mut expected);
    cut.finish(&mut found);
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

/// Any tokens make a reply of valid text, and a stop string never shows.
pub fn reply(bytes: &[u8]) {
    let format = || ReplyFormat {
        reasoning_opened: bytes.len().is_multiple_of(2),
        stops: vec!["zq".to_string()],
        tools: Some(schemas()),
        ..ReplyFormat::default()
    };
    MODEL.with(|model| {
        let mut reply = Reply::<Qwen3Coder>::new(model, format());
        let mut deltas = Vec::new();
        for pair in bytes.chunks_exact(2) {
            let id = usize::from(u16::from_le_bytes([pair[0], pair[1]])) % VOCAB;
            if reply.push(model, id as TokenId, &mut deltas) == Flow::Complete {
                break;
            }
        }
        if !deltas.is_empty() {
            reply.finish(&mut deltas);
        }
        let content = deltas.iter().filter_map(|delta| match delta {
            Delta::Content(text) => Some(text.as_str()),
            _ => None,
        });
        for text in content {
            assert!(!text.contains("zq"), "{text:?}");
        }
    });
}

/// The cut of a text never changes where a stop string ends it, and bytes become valid text.
pub fn stop_strings(bytes: &[u8]) {
    let stops = ["STOP", "\n\n", "aab"].map(String::from);
    let (mut text, mut split) = (String::new(), String::new());
    let (mut whole, mut cut) = (Detokenizer::default(), Detokenizer::default());
    whole.push(bytes, &mut text);
    whole.finish(&mut text);
    pieces(bytes, |piece| cut.push(piece, &mut split));
    cut.finish(&mut split);
    assert_eq!(split, text);

    let mut found = String::new();
    let mut matcher = StopMatcher::new(&stops);
    let mut stopped = false;
    text_pieces(&text, |piece| {
        stopped = stopped || matcher.push(piece, &mut found).is_some()
    });
    if !stopped {
        matcher.finish(&mut found);
    }
    let end = stops
        .iter()
        .filter_map(|stop| text.find(stop.as_str()))
        .min();
    assert_eq!(
        (stopped, found.as_str()),
        (end.is_some(), &text[..end.unwrap_or(text.len())])
    );
}

/// The cut of a text never changes what is reasoning and what is content.
pub fn reasoning(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for opened in [false, true] {
        let splitter = || ReasoningSplitter::new("<think>", "</think>", opened);
        let (mut expected, mut found) = (Split::default(), Split::default());
        let mut whole = splitter();
        whole.push(&text, &mut expected);
        whole.finish(&mut expected);
        let mut cut = splitter();
        text_pieces(&text, |piece| cut.push(piece, &mut found));
        cut.finish(&mut found);
        assert_eq!(
            (found.reasoning, found.content),
            (expected.reasoning, expected.content)
        );
    }
}

/// What is refused does not depend on how the bytes of a connection arrive.
pub fn http_head(bytes: &[u8]) {
    let mut whole = Framing::default();
    let expected = whole.scan(bytes);
    let mut cut = Framing::default();
    let (mut found, mut start) = (None, 0);
    pieces(bytes, |piece| {
        if found.is_none() {
            found = cut.scan(piece).map(|at| start + at);
            start += piece.len();
        }
    });
    assert_eq!(found, expected);
}

/// A header is refused, or its tensors cover the file without hole or overlap.
pub fn safetensors_header(bytes: &[u8]) {
    const DATA_BYTES: u64 = 4096;
    let start = header::LENGTH_BYTES + bytes.len() as u64;
    let file = start + DATA_BYTES;
    let Ok(tensors) = header::parse(bytes, file) else {
        return;
    };
    let mut ranges: Vec<_> = tensors.into_values().map(|tensor| tensor.bytes).collect();
    ranges.sort_by_key(|range| range.start);
    let end = ranges.iter().fold(start, |end, range| {
        assert_eq!(range.start, end);
        range.end
    });
    assert_eq!(end, file);
}

/// Calls that a reply must make, in one of the syntaxes.
fn forced_calls(tools: &[Value], syntax: usize) -> Option<Grammar> {
    let write = match syntax % 6 {
        0 => calls::grammar::<Qwen3Coder>,
        1 => calls::grammar::<MinimaxXml>,
        2 => calls::grammar::<Glm>,
        3 => calls::grammar::<Hermes>,
        4 => calls::grammar::<Mistral>,
        _ => calls::grammar::<Gemma>,
    };
    write(tools, Calls::Several, false, None).ok()
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has it");
    let nanos = text.split(' ').next().expect("a first number");
    Duration::from_nanos(nanos.parse().expect("nanoseconds"))
}

/// A grammar and, if it compiles, the beginning of a reply under it: the first byte tells its kind.
/// Compiling takes a bounded time, and each token that is allowed can follow.
pub fn grammar(bytes: &[u8]) {
    let Some((kind, Ok(text))) = bytes
        .split_first()
        .map(|(kind, rest)| (kind, str::from_utf8(rest)))
    else {
        return;
    };
    let grammar = match kind {
        b'j' => body::parse(text.as_bytes()).ok().map(|schema| {
            Grammar::Json(JsonGrammar {
                schema,
                strict: text.len() % 2 == 0,
                whitespace: true,
            })
        }),
        b't' => body::parse(text.as_bytes())
            .ok()
            .and_then(|tools| forced_calls(tools.as_array()?, text.len())),
        b'r' => Some(Grammar::Regex(text.to_string())),
        _ => Some(Grammar::Lark(text.to_string())),
    };
    let begun = cpu();
    let compile = |grammar: Grammar| MODEL.with(|model| model.grammars.compile(&grammar));
    let compiled = grammar.map(compile);
    let took = cpu() - begun;
    assert!(took < COMPILE_PATIENCE, "{took:?}");
    let Some(Ok(compiled)) = compiled else {
        return;
    };
    let mut guide = compiled.guide(Scope::default());
    let mut mask = Mask::default();
    for step in 0..GRAMMAR_TOKENS {
        // Running into a limit later is an answer too.
        if guide.next() != Next::Masked || guide.mask(&mut mask).is_err() {
            return;
        }
        let allowed: Vec<TokenId> = mask.ids().collect();
        let pick = bytes
            .iter()
            .fold(step, |sum, byte| sum * 31 % 65_521 + usize::from(*byte));
        let Some(&id) = allowed.get(pick % allowed.len().max(1)) else {
            return;
        };
        if let Err(problem) = guide.advance(id) {
            assert!(
                problem.contains("row") || problem.contains("too"),
                "{problem}"
            );
            return;
        }
    }
}
