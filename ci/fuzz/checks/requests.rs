//! Bodies of requests: each is refused by a sentence or becomes a request; no input takes the
//! server down.

use std::sync::LazyLock;

use ::model::target::{FACTS, MAX_CONTEXT, VOCAB};
use http::chat::request::ChatRequest;
use http::completions::request::CompletionRequest;
use http::error::ApiError;
use http::json as body;
use http::messages::request::{MessagesRequest, countable};
use http::responses::request::ResponsesRequest;
use http::responses::store::Store;
use http::seal::Seal;
use serde_json::Value;

use super::choice::Choices;
use super::model;

/// Nothing comes back that it closed.
static SEAL: LazyLock<Seal> = LazyLock::new(|| Seal::new(None));

/// Requests to the chat completions API.
pub fn chat_request(bytes: &[u8]) {
    request(bytes, |value| ChatRequest::parse(value, &FACTS).map(drop));
}

/// Requests to the Messages API: to be answered, or to be counted.
pub fn messages_request(input: &[u8]) {
    let mut choices = Choices::of(input);
    match choices.flag() {
        false => request(choices.rest(), |value| {
            MessagesRequest::parse(value, &SEAL, &FACTS).map(drop)
        }),
        true => request(choices.rest(), |value| {
            countable(value, &SEAL, &FACTS).map(drop)
        }),
    }
}

/// Requests to the Responses API.
pub fn responses_request(bytes: &[u8]) {
    /// Nothing is ever put in.
    static STORE: LazyLock<Store> = LazyLock::new(Store::default);
    request(bytes, |value| {
        ResponsesRequest::parse(value, (&STORE, &SEAL), &FACTS).map(drop)
    });
}

fn request(bytes: &[u8], parse: impl Fn(&Value) -> Result<(), ApiError>) {
    match body::parse(bytes) {
        Ok(value) => {
            if let Err(error) = parse(&value) {
                is_told(&error);
            }
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

fn is_told(error: &ApiError) {
    assert!(error.status.is_client_error(), "{error:?}");
    assert!(!error.message.is_empty());
}

/// Requests to the completions API, whose prompts leave room for their replies.
pub fn completion_request(bytes: &[u8]) {
    let Ok(value) = body::parse(bytes) else {
        return;
    };
    let parsed = CompletionRequest::parse(&value, (model::tokenizer(), None), MAX_CONTEXT, &FACTS);
    match parsed {
        Ok((request, prompts)) => {
            // A longer reply ends where the context is full.
            let length = request.ask.max_tokens.map_or(1, |length| length.min(1));
            for prompt in prompts {
                assert!(!prompt.tokens.is_empty());
                assert!(prompt.tokens.len() + length <= MAX_CONTEXT);
                assert!(prompt.tokens.iter().all(|&id| (id as usize) < VOCAB));
            }
        }
        Err(error) => is_told(&error),
    }
}
