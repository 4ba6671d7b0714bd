//! `generate`: one reply on standard output, without a server.

use std::path::PathBuf;
use std::sync::Arc;

use argh::{ArgsInfo, FromArgs};
use serde_json::json;

use crate::engine::Limits;
use crate::engine::events::{self, AHEAD_MAX, EventReceiver};
use crate::engine::request::{Admitted, Event, FinishReason, Request, Sampling};
use crate::engine::turns::Source;
use crate::target;
use crate::text::chat::ChatModel;
use crate::text::reply::{Delta, Reply, ReplyFormat};
use crate::text::template::Conversation;
use crate::weights::Progress;

use super::boot::{self, Engine, Files};
use super::{Exit, Failure};

/// answer one prompt on standard output
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "generate", help_triggers("--help"))]
pub struct Generate {
    /// what to ask
    #[argh(positional)]
    pub prompt: String,

    /// directory that holds the weights; none for a model inside the binary
    #[argh(option)]
    weights: Option<PathBuf>,

    /// tokens to generate at most (default: what fits)
    #[argh(option)]
    max_tokens: Option<usize>,

    /// randomness from 0 to 2; 0 always takes the most likely token (default: the model's)
    #[argh(option)]
    temperature: Option<f32>,

    /// seed of the choice of tokens (default 0)
    #[argh(option, default = "0")]
    seed: u64,
}

/// Prints the reply as it comes.
///
/// # Errors
/// What stopped it.
pub fn run(options: &Generate) -> Result<(), Failure> {
    boot::require_serving()?;
    let files = Files::locate(options.weights.as_deref())?;
    let Engine {
        handle: engine,
        thread,
        chat,
    } = boot::engine(&files, &Arc::new(Progress::default()), None, Limits::TARGET);
    let chat = boot::chat_of(chat)?;
    let (request, format, events) = request(&chat, options)?;
    let submitted = engine
        .submit(request)
        .map_err(|error| Failure::new(Exit::Internal, error));
    engine.drain();
    let printed = submitted.and_then(|()| print_reply(&chat, Reply::new(&chat, format), events));
    boot::ended(thread)?;
    printed
}

fn request(
    chat: &ChatModel,
    options: &Generate,
) -> Result<(Request, ReplyFormat, EventReceiver), Failure> {
    let usage = |problem: String| Failure::new(Exit::Usage, problem);
    let conversation = Conversation {
        messages: vec![json!({"role": "user", "content": options.prompt})],
        tools: Vec::new(),
        add_generation_prompt: true,
        enable_thinking: target::THINKING_DEFAULT,
    };
    let prompt = chat
        .prompt(&conversation, target::MAX_CONTEXT)
        .map_err(|error| usage(format!("PROMPT: {error}")))?;
    let room = target::MAX_CONTEXT - prompt.tokens.len();
    let max_tokens = options.max_tokens.unwrap_or(room);
    if max_tokens == 0 || max_tokens > room {
        return Err(usage(format!(
            "--max-tokens: must be 1 to {room} behind this prompt"
        )));
    }
    let temperature = options.temperature.unwrap_or(target::DEFAULT_TEMPERATURE);
    if !(0.0..=2.0).contains(&temperature) {
        return Err(usage("--temperature: must be 0 to 2".to_string()));
    }
    let format = ReplyFormat {
        reasoning_opened: prompt.reasoning_opened,
        stop_tokens: chat.stop_tokens.clone(),
        ..ReplyFormat::default()
    };
    let sampling = Sampling {
        temperature,
        top_k: target::DEFAULT_TOP_K,
        top_p: target::DEFAULT_TOP_P,
        seed: options.seed,
        ..Sampling::default()
    };
    let (sender, events) = events::channel(&Arc::default(), AHEAD_MAX);
    let stop_tokens = chat.stop_tokens.clone();
    let tokens = prompt.tokens;
    let request = Request {
        source: Source::default(),
        domain: 0,
        prompt: tokens,
        max_tokens,
        stop_tokens,
        sampling,
        logprobs: None,
        prompt_logprobs: None,
        constraint: None,
        admitted: Admitted::default(),
        events: sender,
    };
    Ok((request, format, events))
}

fn print_reply(
    chat: &ChatModel,
    mut reply: Reply,
    mut events: EventReceiver,
) -> Result<(), Failure> {
    loop {
        let mut deltas = Vec::new();
        let done = match events.blocking_recv() {
            Some(Event::Prompt(_)) => false,
            Some(Event::Token { id, .. }) => {
                reply.push(chat, id, &mut deltas);
                false
            }
            Some(Event::Done(reason)) => {
                reply.finish(reason == FinishReason::Length, &mut deltas);
                true
            }
            Some(Event::Failed(problem) | Event::Refused(problem)) => {
                return Err(Failure::new(Exit::Internal, problem));
            }
            None => return Err(Failure::new(Exit::Internal, "the engine stopped")),
        };
        for delta in deltas {
            if let Delta::Content(text) | Delta::Reasoning(text) = delta {
                boot::print(&text)?;
            }
        }
        if done {
            return boot::print("\n");
        }
    }
}
