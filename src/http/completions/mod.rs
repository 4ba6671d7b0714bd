//! `POST /v1/completions`: continues text or tokens without a template, and scores them if asked.

pub mod answer;
pub mod positions;
pub mod request;
#[cfg(test)]
pub mod tests;

use std::sync::Arc;

use self::answer::{ChunkWriter, Shape};
use self::request::CompletionRequest;
use super::call::Call;
use super::chat::answer::Identity;
use super::chat::usage::Tally;
use super::error::ApiError;
use super::generate::{self, Answer};
use super::keys;
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
    let read = move |mut body: Body| {
        let (chat, context) = (&reader.chat, reader.engine.context());
        let encoder = (chat.tokenizer.as_ref(), key);
        let (mut request, prompts) =
            CompletionRequest::parse(&body.json()?, encoder, context, chat.facts)?;
        let domain = keys::domain(key, &request.ask.salt);
        if let Some(rule) = &mut request.ask.rule {
            rule.compile(chat, domain)?;
        }
        Ok((request, prompts))
    };
    let (request, prompts) = parse(body, read).await?;
    let generation = generate::submit(&service, call, &request.ask, &prompts)?;
    let shape = Shape {
        identity: Identity::new("cmpl", &state.model_id, request.ask.warnings()),
        prompts: prompts.into_iter().map(|prompt| prompt.tokens).collect(),
        choices: request.ask.choices,
        echo: request.echo,
        logprobs: request.ask.logprobs,
        prompt_logprobs: request.prompt_logprobs,
        tokens_as_ids: request.tokens_as_ids,
    };
    if request.stream {
        let tally = Tally::new(request.usage, generation.usage().prompt);
        let writer = ChunkWriter::new(shape, tally);
        return Ok(Answer::stream(generation, writer, state.abort()));
    }
    let (replies, usage) = generate::gather(generation, state.abort()).await?;
    let whole = answer::whole_answer(&service.chat, &shape, replies, usage);
    Ok(Answer::Whole(whole))
}
