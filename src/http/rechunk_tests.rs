//! From tokens to events: however a reply's tokens come in groups, a stream adds up to the whole
//! answer, in every dialect and with every syntax of tool calls.

#[path = "rechunk/completions_tests.rs"]
mod completions;

use std::sync::Arc;
use std::thread::{self, Scope};
use std::time::Instant;
use step::testing::TINY;

use serde_json::{Value, json};

use engine::request::{FinishReason, TokenLogprobs};
use step::executor::TokenId;
use text::chat::ChatModel;
use text::reply::{Flow, OutputParser, ReplyFormat};
use text::testing::{END_OF_TURN, Random, chat_model};
use text::tools::tests::{Written, for_each_syntax, schemas};

use super::generate::generation::{Finish, Settled};
use super::generate::stream::Writer;
use super::messages::partial::{Input, complete_part};
use super::responses::store::Store;
use super::seal::Seal;
use super::settings::Settings;
use super::state::{Loading, ServerState};
use super::{chat, messages, responses};
use crate::call::Usage;

use self::completions::Continued;

/// Replies that are cut anew, over all syntaxes; `ci/README.md` says when there are as many.
const RECHUNKINGS: usize = if cfg!(debug_assertions) { 360 } else { 100_000 };
const SYNTAXES: usize = 6;
/// One reply in so many reports its log-probabilities: their JSON takes much of the time.
const SCORED_OF: usize = 4;
const STOP: &str = "STOP";
const USAGE: Usage = Usage {
    prompt: 3,
    cached: 0,
    completion: 9,
    reasoning: 4,
};

/// The tokens of a reply with thoughts, text, calls, and half of what ends it.
fn random_tokens<S: Written>(model: &ChatModel, random: &mut Random) -> Vec<TokenId> {
    const TEXTS: &[&str] = &[
        "é🦀\n",
        "\"quoted\" \\",
        "plain words",
        "ST",
        "STO\n\n",
        "<",
        "\u{0}",
    ];
    let mut text = String::new();
    if random.below(2) == 0 {
        text.push_str("why é\n</think>\n\n");
    }
    for _ in 0..random.below(8) {
        let piece = TEXTS[random.below(TEXTS.len())];
        match random.below(4) {
            0 => {
                let arguments = json!({"path": piece, "line": 7, "tags": [piece, "b"]});
                let arguments = arguments.as_object().unwrap();
                text.push_str(&S::write("edit", arguments));
            }
            1 => text.push_str(S::PARTS[random.below(S::PARTS.len())]),
            _ => text.push_str(piece),
        }
    }
    if random.below(8) == 0 {
        text.push_str(STOP);
        text.push_str("never shown");
    }
    let mut tokens = model.tokenizer.encode(&text).unwrap();
    if random.below(4) == 0 {
        // A character has no beginning.
        tokens.insert(0, 0x82);
    }
    if random.below(8) == 0 {
        // A character is never completed.
        tokens.push(0xf0);
    }
    tokens
}

/// A reply of a conversation, with thoughts and calls.
fn in_parts() -> ReplyFormat {
    ReplyFormat {
        reasoning_opened: true,
        stops: vec![STOP.to_string()],
        min_tokens: 0,
        stop_tokens: vec![END_OF_TURN],
        tools: Some(schemas().into()),
        lenient: true,
        ..ReplyFormat::default()
    }
}

/// Ends of a call of its own: at each of its tokens, and at each text that its values hold.
fn check_broken_calls<S: Written>(model: &ChatModel, state: &Arc<ServerState>) {
    let arguments = json!({"path": "a \"b\" é\n", "line": 70, "tags": ["x, y", "}"]});
    let text = S::write("edit", arguments.as_object().unwrap());
    let tokens = model.tokenizer.encode(&text).unwrap();
    let check = |tokens: &[TokenId], stop: &str| {
        let format = || ReplyFormat {
            reasoning_opened: false,
            stops: vec![stop.to_string()],
            ..in_parts()
        };
        let whole = settled(model, tokens, false, format(), || false);
        let pieces = settled(model, tokens, false, format(), || true);
        check_messages(model, &whole, &pieces);
        check_chat(model, false, &whole, &pieces);
        check_responses(model, state, &whole, &pieces);
    };
    (0..=tokens.len()).for_each(|end| check(&tokens[..end], STOP));
    for stop in [
        "a ", "\"b", "b\"", " ", "é", "\n", "7", "70", "0", "x", ", ", "y", "}",
    ] {
        check(&tokens, stop);
    }
}

/// The log-probabilities of `id`, which neighbours do not share; JSON has them to the last bit.
fn logprobs(position: usize, id: TokenId) -> TokenLogprobs {
    let logprob = -((1 + position % 64) as f32) / 8.0;
    TokenLogprobs {
        logprob,
        top: vec![(id, logprob)],
    }
}

/// Settled parts of groups of tokens, with log-probabilities if `scored`; a group ends where
/// `cut` says so. One reply in four is cut at its length.
fn settled(
    model: &ChatModel,
    tokens: &[TokenId],
    scored: bool,
    format: ReplyFormat,
    mut cut: impl FnMut() -> bool,
) -> Vec<Settled> {
    let at_length = tokens.len().is_multiple_of(4);
    let mut reply = OutputParser::new(model, format);
    let mut pieces = vec![Settled::default()];
    let mut flow = Flow::Continue(());
    for (at, &id) in tokens.iter().enumerate() {
        let piece = pieces.last_mut().unwrap();
        if scored {
            piece.logprobs.push((id, logprobs(at, id)));
        }
        flow = reply.push(model, id, &mut piece.deltas);
        if flow.is_break() {
            break;
        }
        if cut() {
            pieces.push(Settled::default());
        }
    }
    let last = pieces.last_mut().unwrap();
    if flow == Flow::Continue(()) {
        flow = reply.finish(at_length, &mut last.deltas);
    }
    let reason = match flow {
        Flow::Continue(()) if at_length => FinishReason::Length,
        _ => FinishReason::Stop,
    };
    last.finish = Some(Finish::of(reason, false, &reply));
    pieces
}

fn gathered(pieces: Vec<Settled>) -> Settled {
    let mut whole = Settled::default();
    pieces.into_iter().for_each(|piece| whole.add(piece));
    whole
}

/// The events of a stream, each frame of which is valid text by itself.
fn events(model: &ChatModel, mut writer: Box<dyn Writer>, pieces: Vec<Settled>) -> Vec<Value> {
    let mut text = String::new();
    let mut frame = |write: &mut dyn FnMut(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        write(&mut bytes);
        text.push_str(std::str::from_utf8(&bytes).expect("a frame is text"));
    };
    frame(&mut |out| writer.write_admitted(USAGE, out));
    frame(&mut |out| writer.write_start(out));
    for mut piece in pieces {
        frame(&mut |out| writer.write(model, std::mem::take(&mut piece), out));
    }
    frame(&mut |out| writer.write_end(USAGE, out));
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

fn push(to: &mut Value, more: &Value) {
    let more = more.as_str().unwrap_or_default();
    match to {
        Value::String(text) => text.push_str(more),
        other => *other = Value::from(more),
    }
}

/// The choice that the chunks of a chat add up to, without the ids of calls.
fn chat_choice(events: Vec<Value>) -> Value {
    let mut choice = json!({"content": "", "reasoning": "", "calls": []});
    let mut logprobs: Vec<Value> = Vec::new();
    for mut event in events {
        let Some(chunk) = event["choices"].get_mut(0) else {
            continue;
        };
        push(&mut choice["content"], &chunk["delta"]["content"]);
        push(
            &mut choice["reasoning"],
            &chunk["delta"]["reasoning_content"],
        );
        for call in chunk["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let at = call["index"].as_u64().unwrap() as usize;
            if call.get("id").is_some() {
                assert_eq!(at, choice["calls"].as_array().unwrap().len());
                choice["calls"]
                    .as_array_mut()
                    .unwrap()
                    .push(json!(["", ""]));
            }
            push(&mut choice["calls"][at][0], &call["function"]["name"]);
            push(&mut choice["calls"][at][1], &call["function"]["arguments"]);
        }
        if let Some(positions) = chunk["logprobs"]["content"].as_array_mut() {
            logprobs.append(positions);
        }
        if !chunk["finish_reason"].is_null() {
            choice["finish"] = chunk["finish_reason"].clone();
        }
    }
    choice["logprobs"] = Value::from(logprobs);
    choice
}

/// A choice of a whole answer, to be compared.
fn whole_choice(choice: &Value) -> Value {
    let message = &choice["message"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let calls: Vec<Value> = calls
        .map(|call| json!([call["function"]["name"], call["function"]["arguments"]]))
        .collect();
    json!({"content": text(&message["content"]), "reasoning": text(&message["reasoning_content"]),
        "calls": calls, "finish": choice["finish_reason"],
        "logprobs": choice["logprobs"]["content"].as_array().cloned().unwrap_or_default()})
}

fn check_chat(model: &ChatModel, scored: bool, whole: &[Settled], pieces: &[Settled]) {
    use chat::answer::{ChunkWriter, Identity, whole_answer};
    use chat::usage::{Tally, UsageReport};
    let identity = Identity::new("chatcmpl", "m", Vec::new());
    let reply = gathered(copied(whole));
    let answer = whole_answer(model, &identity, vec![reply], USAGE, scored);
    let expected = whole_choice(&answer["choices"][0]);
    let writer = ChunkWriter::new(&identity, 1, scored, Tally::new(UsageReport::Never, 0));
    let found = chat_choice(events(model, Box::new(writer), copied(pieces)));
    assert_eq!(found, expected);
    for text in [
        &found["content"],
        &answer["choices"][0]["message"]["content"],
    ] {
        assert!(!text.as_str().unwrap_or_default().contains(STOP));
    }
}

fn check_messages(model: &ChatModel, whole: &[Settled], pieces: &[Settled]) {
    use messages::answer::{Identity, MessageWriter, whole_answer};
    use messages::request::MessagesRequest;
    let body = json!({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}],
        "stop_sequences": [STOP]});
    let request = MessagesRequest::parse(&body, &Seal::new(None), &TINY).unwrap();
    let identity = Identity::new("m", "req_1", &request, Seal::new(None));
    let expected = whole_answer(&identity, gathered(plain(whole)), USAGE);
    let writer = MessageWriter::new(identity);
    let mut blocks: Vec<Value> = Vec::new();
    let mut end = Value::Null;
    for event in events(model, Box::new(writer), plain(pieces)) {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(event["index"], blocks.len());
                blocks.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let block = blocks.last_mut().unwrap();
                for field in ["text", "thinking", "signature"] {
                    if event["delta"].get(field).is_some() {
                        push(&mut block[field], &event["delta"][field]);
                    }
                }
                push(&mut block["partial"], &event["delta"]["partial_json"]);
            }
            "message_delta" => end = event["delta"].clone(),
            _ => {}
        }
    }
    let parsed = |mut block: Value| {
        let partial = block.as_object_mut().unwrap().remove("partial");
        if block["type"] == "tool_use" {
            let partial = partial.as_ref().and_then(Value::as_str).unwrap_or_default();
            assert_eq!(
                Input::default().push(partial),
                partial,
                "half a value is told"
            );
            let input = serde_json::from_str(partial);
            block["input"] = input.unwrap_or_else(|_| complete_part(partial));
            block["id"] = Value::Null;
        }
        block
    };
    let found: Vec<Value> = blocks.into_iter().map(parsed).collect();
    let mut content = expected["content"].clone();
    for block in content.as_array_mut().unwrap() {
        if block["type"] == "tool_use" {
            block["id"] = Value::Null;
        }
    }
    assert_eq!(Value::from(found), content);
    assert_eq!(end["stop_reason"], expected["stop_reason"]);
    assert_eq!(end["stop_sequence"], expected["stop_sequence"]);
}

fn without_ids(mut response: Value) -> Value {
    for field in ["id", "created_at"] {
        response[field] = Value::Null;
    }
    for item in response["output"].as_array_mut().unwrap() {
        item["id"] = Value::Null;
        item["call_id"] = Value::Null;
    }
    response
}

fn check_responses(
    model: &ChatModel,
    state: &Arc<ServerState>,
    whole: &[Settled],
    pieces: &[Settled],
) {
    use responses::answer::Composer;
    use responses::request::ResponsesRequest;
    let composer = || {
        let body = json!({"input": "hi", "store": false});
        let request =
            ResponsesRequest::parse(&body, (&Store::default(), &Seal::new(None)), &TINY).unwrap();
        Composer::new(state, None, request)
    };
    // Positions would have to come one by one.
    let expected = composer().whole(model, plain(whole), Ok(USAGE)).unwrap();
    let events = events(model, Box::new(composer()), plain(pieces));
    let last = &events.last().unwrap()["response"];
    assert_eq!(without_ids(last.clone()), without_ids(expected));
    let mut joined = Value::from("");
    for event in &events {
        if event["type"] == "response.output_text.delta" {
            push(&mut joined, &event["delta"]);
        }
    }
    let output = last["output"].as_array().unwrap().iter();
    let texts = output.filter(|item| item["type"] == "message");
    let texts: String = texts
        .map(|item| item["content"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(joined, texts);
}

fn copied(pieces: &[Settled]) -> Vec<Settled> {
    let mut copies = plain(pieces);
    for (copy, piece) in copies.iter_mut().zip(pieces) {
        copy.logprobs = piece.logprobs.clone();
    }
    copies
}

/// Settled parts without log-probabilities.
fn plain(pieces: &[Settled]) -> Vec<Settled> {
    let copy = |piece: &Settled| Settled {
        index: piece.index,
        deltas: piece.deltas.clone(),
        finish: piece.finish,
        ..Settled::default()
    };
    pieces.iter().map(copy).collect()
}

#[test]
fn the_groups_in_which_tokens_come_never_change_an_answer() {
    fn run<S: Written>() {
        let model = ChatModel {
            tool_format: Some(S::FORMAT),
            ..chat_model()
        };
        let state = ServerState::new(&TINY, "m", Settings::default(), || Loading {
            stage: "",
            bytes_done: 0,
            bytes_total: 0,
        });
        check_broken_calls::<S>(&model, &state);
        let mut random = Random::new(21);
        let (begun, mut replies, mut groups) = (Instant::now(), 0, 0);
        for _ in 0..RECHUNKINGS.div_ceil(SYNTAXES) {
            let tokens = random_tokens::<S>(&model, &mut random);
            let scored = random.below(SCORED_OF) == 0;
            let continued = Continued::new(&tokens, scored, &mut random);
            let whole = settled(&model, &tokens, scored, in_parts(), || false);
            let often = 1 + random.below(16);
            let mut cut = || random.below(often) == 0;
            let pieces = settled(&model, &tokens, scored, in_parts(), &mut cut);
            continued.check(&model, &mut cut);
            check_chat(&model, scored, &whole, &pieces);
            check_messages(&model, &whole, &pieces);
            check_responses(&model, &state, &whole, &pieces);
            (replies, groups) = (replies + 1, groups + pieces.len());
        }
        let took = begun.elapsed();
        println!(
            "{}: {replies} replies in {groups} groups, {took:.1?}",
            S::NAME
        );
    }
    fn beside<'s, S: Written>(scope: &'s Scope<'s, '_>) {
        scope.spawn(run::<S>);
    }
    thread::scope(|scope| for_each_syntax!(beside(scope)));
}
