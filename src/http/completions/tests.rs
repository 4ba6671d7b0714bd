//! Completions on a real socket, over an executor that follows a script.

use serde_json::{Value, json};

use crate::testing::{Answer, Script, TestServer, with};
use step::executor::TokenId;
use text::testing::END_OF_TURN;

/// A completion of `ab` with fields added.
fn complete(server: &TestServer, fields: Value) -> Answer {
    let body = with(json!({"prompt": "ab"}), fields);
    server.post("/v1/completions", &body).answer()
}

fn choice(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["choices"][0].clone()
}

/// The choices of a whole answer from the chunks of a streamed one.
pub fn assembled(events: &[Value], choices: usize) -> Vec<Value> {
    let mut whole: Vec<Value> = (0..choices)
        .map(|index| json!({"index": index, "text": "", "logprobs": null, "finish_reason": null}))
        .collect();
    for chunk in events {
        for piece in chunk["choices"].as_array().unwrap() {
            let choice = &mut whole[piece["index"].as_u64().unwrap() as usize];
            let text = choice["text"].as_str().unwrap().to_string();
            choice["text"] = json!(text + piece["text"].as_str().unwrap());
            if !piece["finish_reason"].is_null() {
                choice["finish_reason"] = piece["finish_reason"].clone();
            }
            let Some(more) = piece["logprobs"].as_object() else {
                continue;
            };
            if choice["logprobs"].is_null() {
                choice["logprobs"] = json!(more);
                continue;
            }
            for (name, entries) in more {
                let list = choice["logprobs"][name].as_array_mut().unwrap();
                list.extend(entries.as_array().unwrap().clone());
            }
        }
    }
    whole
}

#[test]
fn a_text_is_continued_as_it_is() {
    let script = "<think>x</think>\n<tool_call>é";
    let server = TestServer::start(Script::text(script));
    let answer = complete(&server, json!({"max_tokens": 100}));
    assert_eq!(answer.json()["object"], "text_completion");
    let expected = json!({"index": 0, "text": script, "logprobs": null, "finish_reason": "stop"});
    assert_eq!(choice(&answer), expected);
    assert_eq!(answer.json()["usage"]["prompt_tokens"], 2);
}

#[test]
fn a_completion_is_short_unless_it_is_told_otherwise() {
    let server = TestServer::start(Script::endless());
    let answer = complete(&server, json!({}));
    assert_eq!(choice(&answer)["finish_reason"], "length");
    assert_eq!(answer.json()["usage"]["completion_tokens"], 16);
}

/// An evaluation's request: the last entry is the generated token, the end of the turn here.
#[test]
fn an_echoed_prompt_is_scored_with_its_reply() {
    let server = TestServer::start(Script::text(""));
    let body = json!({"model": "scripted", "prompt": [[97, 97, 98]], "temperature": 0,
        "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true});
    let answer = server.post("/v1/completions", &body).answer();
    let choice = choice(&answer);
    assert_eq!(choice["text"], "aab");
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "a", "b", "<|im_end|>"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3]));
    let reported = logprobs["token_logprobs"].as_array().unwrap();
    assert_eq!((reported.len(), &reported[0]), (4, &Value::Null));
    // Inside the script's prompts each token is followed by itself.
    assert_eq!(reported[1], logprobs["top_logprobs"][1]["a"]);
    let top = logprobs["top_logprobs"][2].as_object().unwrap();
    assert!(reported[2].as_f64().unwrap() < -19.0 && top["b"] == reported[2]);
    assert!(top["a"].as_f64().unwrap() > -0.1 && top.len() == 2);
    assert_eq!(logprobs["top_logprobs"][0], Value::Null);
}

#[test]
fn a_prompt_is_scored_without_a_reply() {
    let server = TestServer::start(Script::text("never"));
    let wanted = json!({"max_tokens": 0, "echo": true, "logprobs": 0});
    let answer = complete(&server, wanted);
    let scored = choice(&answer);
    assert_eq!(
        (&scored["text"], &scored["finish_reason"]),
        (&json!("ab"), &json!("length"))
    );
    assert_eq!(scored["logprobs"]["tokens"], json!(["a", "b"]));
    assert_eq!(answer.json()["usage"]["completion_tokens"], 0);
    let silent = complete(&server, json!({"max_tokens": 0, "echo": true}));
    assert_eq!(choice(&silent)["logprobs"], Value::Null);
}

#[test]
fn several_prompts_have_their_choices_in_order() {
    let server = TestServer::start(Script::text("x"));
    let answer = complete(
        &server,
        json!({"prompt": ["a", "bc"], "n": 2, "echo": true}),
    );
    let choices = answer.json()["choices"].as_array().unwrap().clone();
    let texts: Vec<&Value> = choices.iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts, ["ax", "ax", "bcx", "bcx"]);
    assert!(
        choices
            .iter()
            .zip(0..)
            .all(|(choice, index)| choice["index"] == index)
    );
    assert_eq!(answer.json()["usage"]["prompt_tokens"], 3);
}

#[test]
fn chunks_assemble_to_the_whole_answer() {
    let server = TestServer::start(Script::text("🦀 é<|im_start|>z"));
    let long: Vec<TokenId> = (0..200).map(|at| 97 + at % 26).collect();
    for fields in [
        json!({}),
        json!({"echo": true}),
        json!({"echo": true, "logprobs": 2, "n": 2}),
        json!({"logprobs": 0, "return_tokens_as_token_ids": true}),
        json!({"echo": true, "logprobs": 1, "prompt": [long, [97, END_OF_TURN, 0xf0]]}),
        json!({"echo": true, "logprobs": 1, "max_tokens": 0}),
        json!({"stop": [" é"], "logprobs": 1}),
    ] {
        let whole = complete(&server, fields.clone()).json();
        let choices = whole["choices"].as_array().unwrap();
        let mut streaming = fields.clone();
        streaming["stream"] = json!(true);
        streaming["stream_options"] = json!({"include_usage": true});
        let streamed = complete(&server, streaming);
        let events = streamed.events();
        assert_eq!(assembled(&events, choices.len()), *choices, "{fields}");
        assert_eq!(events.last().unwrap()["usage"], whole["usage"]);
    }
}

#[test]
fn offsets_are_positions_in_the_text() {
    let server = TestServer::start(Script::text("é🦀z"));
    let echo = json!({"prompt": "ä<|im_end|>b", "echo": true, "logprobs": 0});
    let choice = choice(&complete(&server, echo));
    let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    let logprobs = &choice["logprobs"];
    let offsets = logprobs["text_offset"].as_array().unwrap();
    for (token, offset) in logprobs["tokens"].as_array().unwrap().iter().zip(offsets) {
        let rest: String = text[offset.as_u64().unwrap() as usize..].iter().collect();
        let token = token.as_str().unwrap();
        assert!(token.starts_with("bytes:") || token == "<|im_end|>" || rest.starts_with(token));
    }
}

#[test]
fn prompt_logprobs_are_reported_on_both_routes() {
    let server = TestServer::start(Script::text("x"));
    let reported =
        choice(&complete(&server, json!({"prompt_logprobs": 1})))["prompt_logprobs"].clone();
    assert_eq!(reported[0], Value::Null);
    // `b` is no likelier than any other token but `a`.
    assert_eq!(
        (&reported[1]["97"]["rank"], &reported[1]["98"]["rank"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(reported[1]["98"]["decoded_token"], "b");
    let chat = server.chat(json!({"prompt_logprobs": 0})).json();
    let positions = chat["prompt_logprobs"].as_array().unwrap().len();
    assert_eq!(chat["usage"]["prompt_tokens"], positions);
    let plain = server.chat(json!({})).json();
    assert!(plain.get("prompt_logprobs").is_none());
}

#[test]
fn a_stop_string_cuts_the_text_before_it() {
    let server = TestServer::start(Script::endless());
    let answer = complete(&server, json!({"stop": "n a", "max_tokens": 50}));
    let expected = (&json!("agai"), &json!("stop"));
    let choice = choice(&answer);
    assert_eq!((&choice["text"], &choice["finish_reason"]), expected);
}

/// The end of a text, a stop string that begins inside itself or a token, and what is before it.
#[test]
fn positions_are_of_what_is_visible() {
    for (script, stop, visible) in [
        ("ababac and more", "abac", &["a", "b"][..]),
        ("aaab", "aab", &["a"]),
        ("aaa", "aab", &["a", "a", "a", "<|im_end|>"]),
        ("é no", " no", &["bytes:\\xc3", "bytes:\\xa9"]),
    ] {
        let server = TestServer::start(Script::text(script));
        let mut fields = json!({"stop": stop, "logprobs": 0, "max_tokens": 50});
        let whole = choice(&complete(&server, fields.clone()));
        assert_eq!(whole["logprobs"]["tokens"], json!(visible), "{script}");
        fields["stream"] = json!(true);
        let streamed = complete(&server, fields).events();
        assert_eq!(assembled(&streamed, 1), [whole], "{script}");
    }
}

#[test]
fn a_text_may_be_under_a_constraint() {
    let server = TestServer::start(Script::text("zebra"));
    for fields in [
        json!({"guided_choice": ["yes", "no"]}),
        json!({"structured_outputs": {"choice": ["yes", "no"]}}),
        json!({"guided_regex": "yes|no", "echo": true}),
        json!({"structured_outputs": {"grammar": "start: \"yes\" | \"no\""}}),
    ] {
        let whole = choice(&complete(&server, fields.clone()));
        let text = whole["text"].as_str().unwrap();
        assert!(
            ["yes", "no"].contains(&text.trim_start_matches("ab")),
            "{fields}: {text}"
        );
        assert_eq!(whole["finish_reason"], "stop");
    }
    let number = json!({"type": "json_schema", "json_schema": {"schema": {"type": "integer",
        "minimum": 7, "maximum": 7}, "strict": true}});
    let both = json!({"prompt": ["a", "b"], "n": 2, "response_format": number});
    let answer = complete(&server, both).json();
    let texts = answer["choices"].as_array().unwrap().iter();
    assert_eq!(
        texts
            .map(|choice| choice["text"].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["7"; 4]
    );
}

#[test]
fn a_constraint_that_cannot_be_honoured_is_refused_or_reported() {
    let server = TestServer::start(Script::text("[]"));
    let set = json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true});
    let strict = complete(&server, json!({"guided_json": set}));
    assert_eq!(
        (strict.status, &strict.error()["param"]),
        (400, &json!("guided_json"))
    );
    let both = complete(
        &server,
        json!({"guided_regex": "a", "guided_choice": ["b"]}),
    );
    assert_eq!(both.status, 400);
    let format = json!({"type": "json_schema", "json_schema": {"schema": set}});
    let mut fields = json!({"response_format": format, "max_tokens": 4});
    let reported = complete(&server, fields.clone()).json()["warnings"].clone();
    assert!(
        reported[0].as_str().unwrap().contains("uniqueItems"),
        "{reported}"
    );
    fields["stream"] = json!(true);
    let chunks = complete(&server, fields).events();
    let reported_by = chunks.iter().filter(|chunk| chunk["warnings"] == reported);
    assert_eq!(
        (reported_by.count(), &chunks[0]["warnings"]),
        (1, &reported)
    );
}
