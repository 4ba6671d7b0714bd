//! `POST /v1/chat/completions`.

pub mod answer;
pub mod generation;
mod messages;
pub mod request;
pub mod stream;

use std::future::poll_fn;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::body::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::engine::request::Request;
use crate::engine::{Phase, Rejected};
use crate::target;
use crate::text::chat::{Prompt, PromptError};
use crate::text::reply::{Reply, ReplyFormat};
use crate::text::template::{Conversation, TemplateError};
use crate::text::tools::ToolSchemas;

use self::answer::{ChunkWriter, Identity, WholeReply};
use self::generation::{Choice, Generation};
use self::request::ChatRequest;
use self::stream::ChatStream;
use super::error::ApiError;
use super::json;
use super::limits::EVENTS_MAX;
use super::state::{Abort, Service, State};

/// What a chat request is answered with.
pub enum ChatAnswer {
    Whole(Value),
    Stream(Box<ChatStream>),
}

/// Reads, submits and answers one request.
///
/// # Errors
/// What the client is told instead.
pub async fn answer(
    state: &Arc<State>,
    service: Arc<Service>,
    body: Bytes,
) -> Result<ChatAnswer, ApiError> {
    let reader = (state.model_id.clone(), service.clone());
    // Parsing, rendering and encoding take long for a large body; other streams go on meanwhile.
    let read = tokio::task::spawn_blocking(move || read(&body, &reader.0, &reader.1)).await;
    let (request, prompt) = read.map_err(|_| internal("the request could not be read"))??;
    let generation = submit(&service, &request, prompt)?;
    let identity = Identity::new(&state.model_id);
    if request.stream {
        let logprobs = request.logprobs.is_some();
        let replies = generation.replies();
        let writer = ChunkWriter::new(&identity, replies, logprobs, request.include_usage);
        return Ok(ChatAnswer::Stream(Box::new(ChatStream::new(
            generation,
            writer,
            state.abort(),
        ))));
    }
    whole(
        generation,
        &identity,
        request.logprobs.is_some(),
        state.abort(),
    )
    .await
}

fn internal(problem: &str) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, problem)
}

/// From bytes to a checked request and its prompt, which leaves room for a reply.
fn read(body: &[u8], model_id: &str, service: &Service) -> Result<(ChatRequest, Prompt), ApiError> {
    let value = json::parse(body).map_err(ApiError::malformed)?;
    let mut request = ChatRequest::parse(&value, model_id)?;
    let chat = &service.chat;
    if !request.tools.is_empty() && !chat.calls_tools {
        return Err(ApiError::field("tools", "this model calls no tools"));
    }
    let conversation = Conversation {
        messages: chat.place_system_messages(std::mem::take(&mut request.messages)),
        tools: request.tools.clone(),
        add_generation_prompt: true,
        enable_thinking: request.thinking,
    };
    let prompt = chat
        .prompt(&conversation, target::MAX_CONTEXT)
        .map_err(|error| prompt_error(&error))?;
    check_room(&request, prompt.tokens.len())?;
    Ok((request, prompt))
}

fn prompt_error(error: &PromptError) -> ApiError {
    match error {
        PromptError::TooLong { tokens, limit } => ApiError::context(
            "messages",
            *limit,
            &format!(
                "your messages have at least {tokens} tokens. Please shorten them; a reply \
                 needs room too."
            ),
        ),
        PromptError::Template(TemplateError::TooLarge) => ApiError::context(
            "messages",
            target::MAX_CONTEXT,
            "your messages are far longer. Please shorten them.",
        ),
        error => ApiError::field("messages", error.to_string()),
    }
}

/// An explicit length must fit behind the prompt.
fn check_room(request: &ChatRequest, prompt: usize) -> Result<(), ApiError> {
    let limit = target::MAX_CONTEXT;
    match request.max_tokens {
        Some((wanted, name)) if wanted > limit - prompt => Err(ApiError::context(
            name,
            limit,
            &format!(
                "you requested {} tokens ({prompt} in the messages, {wanted} in the completion). \
                 Please reduce {name} to at most {}.",
                prompt.saturating_add(wanted),
                limit - prompt
            ),
        )),
        _ => Ok(()),
    }
}

/// Gives the engine one request per choice; all are queued or none is.
fn submit(
    service: &Arc<Service>,
    request: &ChatRequest,
    prompt: Prompt,
) -> Result<Generation, ApiError> {
    let prompt_tokens = prompt.tokens.len();
    let mut choices = Vec::with_capacity(request.choices);
    for index in 0..request.choices {
        let format = reply_format(service, request, &prompt);
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let wanted = engine_request(request, &prompt, &format, index, sender);
        // Those submitted before end when their receivers are dropped.
        service
            .engine
            .submit(wanted)
            .map_err(|rejected| rejection(service, &rejected))?;
        choices.push(Choice::new(events, Reply::new(&service.chat, format)));
    }
    Ok(Generation::new(service.clone(), choices, prompt_tokens))
}

fn reply_format(service: &Service, request: &ChatRequest, prompt: &Prompt) -> ReplyFormat {
    let mut stop_tokens = request.stop_tokens.clone();
    if !request.ignore_eos {
        stop_tokens.extend(&service.chat.stop_tokens);
    }
    ReplyFormat {
        reasoning_opened: prompt.reasoning_opened,
        stops: request.stops.clone(),
        stop_tokens,
        tools: (!request.tools.is_empty()).then(|| ToolSchemas::new(&request.tools)),
        one_call: !request.parallel_tool_calls,
    }
}

fn engine_request(
    request: &ChatRequest,
    prompt: &Prompt,
    format: &ReplyFormat,
    index: usize,
    events: mpsc::Sender<crate::engine::request::Event>,
) -> Request {
    let mut sampling = request.sampling.clone();
    sampling.seed = sampling.seed.wrapping_add(index as u64);
    let room = target::MAX_CONTEXT - prompt.tokens.len();
    Request {
        prompt: prompt.tokens.clone(),
        max_tokens: request.max_tokens.map_or(room, |(wanted, _)| wanted),
        stop_tokens: format.stop_tokens.clone(),
        sampling,
        logprobs: request.logprobs,
        events,
    }
}

fn rejection(service: &Service, rejected: &Rejected) -> ApiError {
    match rejected {
        Rejected::Full(_) => ApiError::full(),
        Rejected::Stopped(_) if service.engine.phase() == Phase::Draining => {
            ApiError::unavailable("draining", "the server is shutting down")
        }
        Rejected::Stopped(_) => ApiError::unavailable("stopped", "the engine has stopped"),
    }
}

/// Waits for all replies.
async fn whole(
    mut generation: Generation,
    identity: &Identity,
    logprobs: bool,
    mut abort: Abort,
) -> Result<ChatAnswer, ApiError> {
    let mut replies: Vec<WholeReply> = Vec::new();
    replies.resize_with(generation.replies(), WholeReply::default);
    while !generation.is_finished() {
        let settled = tokio::select! {
            biased;
            settled = poll_fn(|cx| generation.poll(cx)) => settled,
            () = &mut abort => {
                return Err(ApiError::unavailable("draining", "the server is shutting down"));
            }
        };
        for piece in settled.map_err(|problem| internal(&problem))? {
            replies[piece.index].add(&generation.service().chat, piece);
        }
    }
    let usage = generation.usage();
    Ok(ChatAnswer::Whole(answer::whole_answer(
        identity, replies, usage, logprobs,
    )))
}
