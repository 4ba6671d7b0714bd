use std::collections::HashSet;

use serde_json::json;

use super::*;
use crate::chat::request::ChatRequest;
use crate::completions::request::CompletionRequest;
use crate::messages::request::MessagesRequest;
use crate::responses::request::ResponsesRequest;
use crate::responses::store::Store;
use crate::seal::Seal;
use step::testing::TINY;
use text::testing::chat_model;

const REFUSED: u8 = b'-';

const APIS: [(Api, &str); 4] = [
    (Api::Chat, "/v1/chat/completions"),
    (Api::Completions, "/v1/completions"),
    (Api::Responses, "/v1/responses"),
    (Api::Messages, "/v1/messages"),
];

const EXAMPLES: &str = include_str!("../../openapi/examples.json");

/// A request that is taken.
fn plain(api: Api) -> Value {
    let messages = json!([{"role": "user", "content": "hi"}]);
    match api {
        Api::Chat => json!({"messages": messages, "stream": true}),
        Api::Completions => json!({"prompt": "a", "stream": true}),
        Api::Responses => json!({"input": "hi"}),
        Api::Messages => json!({"messages": messages, "max_tokens": 1}),
    }
}

fn with(api: Api, path: &str, value: Value) -> Value {
    let mut body = plain(api);
    match path.split_once('.') {
        None => body[path] = value,
        Some((parent, name)) => {
            body[parent] = match parent {
                "thinking" => json!({"type": "enabled"}),
                _ => json!({}),
            };
            body[parent][name] = value;
        }
    }
    body
}

fn parse(api: Api, body: &Value) -> Result<(), ApiError> {
    match api {
        Api::Chat => ChatRequest::parse(body, &TINY).map(drop),
        Api::Completions => {
            let tokenizer = chat_model().tokenizer;
            CompletionRequest::parse(body, (&tokenizer, None), TINY.context, &TINY).map(drop)
        }
        Api::Responses => {
            ResponsesRequest::parse(body, (&Store::default(), &Seal::new(None)), &TINY).map(drop)
        }
        Api::Messages => MessagesRequest::parse(body, &Seal::new(None), &TINY).map(drop),
    }
}

/// Every field with every dialect whose business it is.
fn each(mut seen: impl FnMut(&Known, Api)) {
    for known in FIELDS {
        for (api, _) in APIS {
            let parent = known.0.split_once('.').map(|(parent, _)| parent);
            if parent.is_none_or(|parent| is_honoured(parent, api)) {
                seen(known, api);
            }
        }
    }
}

#[test]
fn a_field_with_an_odd_value_is_honoured_refused_or_passed_over() {
    each(|(path, marks, ..), api| {
        let at = format!("{path} of {api:?}");
        let body = with(api, path, json!({"surely": "not neutral"}));
        record::take();
        let outcome = parse(api, &body);
        let asked = record::take().iter().any(|(asked, _)| asked == path);
        let (param, code) = match outcome {
            Ok(()) => (None, None),
            Err(error) => (error.param, error.code),
        };
        match marks[api as usize] {
            HONOURED => {
                assert!(asked, "nothing reads {at}");
                assert!(param.is_none_or(|param| param.starts_with(path)), "{at}");
            }
            REFUSED => {
                assert_eq!(param.as_deref(), Some(*path), "{at}");
                assert_eq!(code, Some("unsupported_parameter"), "{at}");
            }
            PASSED_OVER => assert!(!asked && param.is_none(), "{at}: {param:?}"),
            other => panic!("{at} is marked {other}"),
        }
    });
}

#[test]
fn what_is_passed_over_is_not_unknown() {
    let body = json!({"user": 1, "timeout": null, "some_future_field": 2});
    let object = Object::root(&body).unwrap();
    check(&object, Api::Chat).unwrap();
    assert_eq!(object.unknown(), ["some_future_field"]);
}

#[test]
fn a_value_that_changes_nothing_is_taken() {
    each(|(path, marks, neutral, _), api| {
        if marks[api as usize] == REFUSED {
            let values = values(neutral);
            assert_eq!(values.is_empty(), neutral.is_empty(), "{path}: {neutral}");
            for value in values.into_iter().chain([Value::Null]) {
                let outcome = parse(api, &with(api, path, value.clone()));
                assert!(outcome.is_ok(), "{path}: {value} of {api:?}: {outcome:?}");
            }
        }
    });
}

#[test]
fn every_field_that_a_parser_reads_stands_in_the_table_once() {
    let mut names = HashSet::new();
    assert!(FIELDS.iter().all(|(path, ..)| names.insert(*path)));
    let examples: Value = serde_json::from_str(EXAMPLES).unwrap();
    for (api, route) in APIS {
        record::take();
        for body in examples[route].as_array().unwrap() {
            // Some of them refer to what is not stored.
            let _ = parse(api, body);
        }
        for (path, _) in record::take() {
            let name = path.split(['.', '[']).next().unwrap();
            let known = FIELDS.iter().find(|(path, ..)| *path == name);
            let (_, marks, ..) = known.unwrap_or_else(|| panic!("{name} is in no row"));
            assert_ne!(marks[api as usize], PASSED_OVER, "{api:?} reads {name}");
        }
    }
}

#[test]
fn what_to_send_instead_is_honoured_by_the_dialect() {
    each(|(path, marks, _, words), api| {
        let (mark, words) = (marks[api as usize], words[api as usize]);
        assert!(mark == HONOURED || !words.is_empty(), "{path}");
        let field = words.split_once("send ").map_or("", |(_, field)| field);
        let end = |char: char| !char.is_ascii_alphanumeric() && char != '_';
        let field = field.split(end).next().unwrap();
        let known = FIELDS.iter().any(|(path, ..)| *path == field);
        assert!(
            mark == HONOURED || !known || is_honoured(field, api),
            "{path} of {api:?}: {words}"
        );
    });
}
