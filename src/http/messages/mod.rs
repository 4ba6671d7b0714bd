//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: the Anthropic Messages API.

pub mod answer;
mod content;
mod documents;
pub mod partial;
pub mod request;
#[cfg(test)]
mod tests;
mod tools;
mod typed;

use std::sync::Arc;

use serde_json::{Value, json};

use self::answer::{Identity, MessageWriter};
use self::request::MessagesRequest;
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
    let seal = state.seal.of(key);
    let opener = seal.clone();
    let read = move |mut body: Body| {
        let mut request = MessagesRequest::parse(&body.json()?, &opener, reader.chat.facts)?;
        let prompt = generate::prompt(&mut request.ask, &reader, key)?;
        Ok((request, prompt))
    };
    let (request, prompt) = parse(body, read).await?;
    let identity = Identity::new(&state.model_id, call.id_text(), &request, seal);
    let generation = generate::submit(&service, call, &request.ask, &[prompt])?;
    if request.stream {
        let writer = MessageWriter::new(identity);
        return Ok(Answer::stream(generation, writer, state.abort()));
    }
    let (mut replies, usage) = generate::gather(generation, state.abort()).await?;
    let reply = replies.pop().unwrap_or_default();
    Ok(Answer::Whole(answer::whole_answer(&identity, reply, usage)))
}

/// Counts the tokens that a request would send to the model. The work is done on parsing threads,
/// without the engine.
pub async fn count_tokens(
    state: &Arc<ServerState>,
    service: Arc<Service>,
    body: Body,
    key: Option<KeyId>,
) -> Result<Value, ApiError> {
    let seal = state.seal.of(key);
    let count = move |mut body: Body| {
        let mut ask = request::countable(&body.json()?, &seal, service.chat.facts)?;
        generate::count_tokens(&mut ask, &service, key)
    };
    Ok(json!({"input_tokens": parse(body, count).await?}))
}
