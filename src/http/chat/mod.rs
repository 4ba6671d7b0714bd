//! Handler of `POST /v1/chat/completions`.

pub mod answer;
mod constraint;
pub mod messages;
pub mod request;
pub mod usage;

use std::sync::Arc;

use self::answer::{ChunkWriter, Identity};
use self::request::ChatRequest;
use self::usage::Tally;
use super::call::Call;
use super::completions::positions::prompt_logprobs;
use super::error::ApiError;
use super::generate::{self, Answer};
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
        let mut request = ChatRequest::parse(&body.json()?, reader.chat.facts)?;
        let prompt = generate::prompt(&mut request.ask, &reader, key)?;
        Ok((request, prompt))
    };
    let (request, prompt) = parse(body, read).await?;
    let prompt_ids = request.ask.prompt_logprobs.map(|_| prompt.tokens.clone());
    let generation = generate::submit(&service, call, &request.ask, &[prompt])?;
    let mut identity = Identity::new("chatcmpl", &state.model_id, request.ask.warnings());
    identity.call_named = request.call_named;
    let logprobs = request.ask.logprobs.is_some();
    if request.stream {
        let replies = generation.count();
        let tally = Tally::new(request.usage, generation.usage().prompt);
        let writer = ChunkWriter::new(&identity, replies, logprobs, tally);
        return Ok(Answer::stream(generation, writer, state.abort()));
    }
    let (replies, usage) = generate::gather(generation, state.abort()).await?;
    let scores = replies.first().map(|reply| reply.prompt.clone());
    let mut whole = answer::whole_answer(&service.chat, &identity, replies, usage, logprobs);
    if let (Some(count), Some(ids), Some(scores)) =
        (request.ask.prompt_logprobs, prompt_ids, scores)
    {
        whole["prompt_logprobs"] = prompt_logprobs(&service.chat, &ids, &scores, count);
    }
    Ok(Answer::Whole(whole))
}
