//! `POST /v1/responses` and the routes of stored responses: the OpenAI Responses API.

pub mod answer;
mod free_text;
mod head;
mod input_items;
mod items;
pub mod request;
pub mod running;
pub mod store;
#[cfg(test)]
mod tests;
pub mod tools;

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::{Value, json};

use self::answer::Composer;
use self::request::ResponsesRequest;
use self::running::Outcome;
use super::call::Call;
use super::error::ApiError;
use super::generate::{self, Answer};
use super::keys::KeyId;
use super::parsing::Body;
use super::state::{ServerState, Service};
use super::threads::parse;

/// Reads, submits and answers one request.
pub async fn answer(
    state: &Arc<ServerState>,
    service: Arc<Service>,
    body: Body,
    call: &Arc<Call>,
) -> Result<Answer, ApiError> {
    let (reader, key) = (service.clone(), call.key());
    let (store, seal) = (state.responses.of(key), state.seal.of(key));
    let read = move |mut body: Body| {
        let known = (&store, &seal);
        let mut request = ResponsesRequest::parse(&body.json()?, known, reader.chat.facts)?;
        let prompt = generate::prompt(&mut request.ask, &reader, key)?;
        Ok((request, prompt))
    };
    let (request, prompt) = parse(body, read).await?;
    let generation = generate::submit(&service, call, &request.ask, &[prompt])?;
    let stream = request.stream;
    let composer = Composer::new(state, call.key(), request);
    let abort = composer.abort(state.abort());
    if stream {
        return Ok(Answer::stream(generation, composer, abort));
    }
    let mut pieces = Vec::new();
    let followed = generate::follow(generation, abort, |piece| pieces.push(piece)).await;
    let response = composer.whole(&service.chat, pieces, followed)?;
    Ok(Answer::Whole(response))
}

/// Counts the tokens that a request would send to the model. The work is done on parsing threads,
/// without the engine.
pub async fn input_tokens(
    state: &Arc<ServerState>,
    service: Arc<Service>,
    body: Body,
    call: &Call,
) -> Result<Value, ApiError> {
    let key = call.key();
    let (store, seal) = (state.responses.of(key), state.seal.of(key));
    let count = move |mut body: Body| {
        let mut request =
            ResponsesRequest::parse(&body.json()?, (&store, &seal), service.chat.facts)?;
        generate::count_tokens(&mut request.ask, &service, key)
    };
    let tokens = parse(body, count).await?;
    Ok(json!({"object": "response.input_tokens", "input_tokens": tokens}))
}

/// JSON of the response `id`, stored or being written. `query` is that of the URI.
///
/// # Errors
/// If `owner` has no response `id`, or `query` asks for a stream, which only a new response has.
pub fn known(
    state: &ServerState,
    owner: Option<KeyId>,
    id: &str,
    query: Option<&str>,
) -> Result<String, ApiError> {
    let mut fields = query.unwrap_or_default().split('&');
    let stream = |field: &&str| field.split('=').next() == Some("stream");
    let asked = fields.find(stream);
    if asked.is_some_and(|asked| asked != "stream=false") {
        let problem = "a response is streamed once, to who asked for it; leave it out";
        return Err(ApiError::field("stream", problem));
    }
    // A response is stored as it leaves the running ones, so the store is asked second.
    if let Some(response) = state.running.get(owner, id) {
        return Ok(response.to_string());
    }
    let stored = state.responses.of(owner).get(id);
    let stored = stored.ok_or_else(|| unknown(id))?;
    Ok(stored.response.to_string())
}

/// A page of the input items of a stored response. `query` is that of the URI.
///
/// # Errors
/// When `owner` has no response `id`, or the query is wrong.
pub fn input_items(
    state: &ServerState,
    owner: Option<KeyId>,
    id: &str,
    query: Option<&str>,
) -> Result<Value, ApiError> {
    let stored = state.responses.of(owner).get(id);
    let stored = stored.ok_or_else(|| unknown(id))?;
    input_items::page(&stored.input, query.unwrap_or_default())
}

/// Deletes a response; one that is being written is cancelled first.
///
/// # Errors
/// When `owner` has no response `id`.
pub fn delete(state: &ServerState, owner: Option<KeyId>, id: &str) -> Result<Value, ApiError> {
    // A response leaves the running ones as it is stored, so the store is asked second.
    match state.running.delete(owner, id) || state.responses.of(owner).remove(id) {
        true => Ok(json!({"id": id, "object": "response", "deleted": true})),
        false => Err(unknown(id)),
    }
}

/// Cancels a response that is being written; one that was cancelled before is returned again.
///
/// # Errors
/// When `owner` has no running response `id`, or it has ended by itself.
pub fn cancel(state: &ServerState, owner: Option<KeyId>, id: &str) -> Result<Value, ApiError> {
    let outcome = state.running.cancel(owner, id);
    if let Outcome::Cancelled(response) = outcome {
        return Ok(response);
    }
    let stored = state.responses.of(owner).get(id);
    let ended = stored.and_then(|stored| serde_json::from_str::<Value>(&stored.response).ok());
    match ended {
        Some(response) if response["status"] == "cancelled" => Ok(response),
        None if outcome == Outcome::Unknown => Err(unknown(id)),
        _ => Err(ApiError::malformed(
            "the response has ended: only one that is being written can be cancelled",
        )),
    }
}

fn unknown(id: &str) -> ApiError {
    let shown: String = id.chars().take(64).collect();
    let message = format!("there is no response {shown:?}, or not any more");
    ApiError {
        param: Some("response_id".to_string()),
        ..ApiError::new(StatusCode::NOT_FOUND, message)
    }
}
