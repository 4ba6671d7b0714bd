//! Stages that every dialect shares: a checked [`Ask`] becomes a prompt and one engine request per
//! reply, whose events become pieces of answers.

pub mod constraint;
pub mod conversation_tools;
pub mod field_support;
pub mod generation;
pub mod parameters;
pub mod response_format;
pub mod start;
pub mod stream;
pub mod template_variables;
pub mod tool_policy;
pub mod tools;
pub mod transcript;
pub mod wordings;

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;

use engine::events::EventSender;
use engine::fair_queue::Source;
use engine::request::{Admitted, Request, Sampling};
use engine::rng;
use engine::thinking::ThinkingBudget;
use engine::{Phase, Rejected};
use step::Facts;
use step::executor::TokenId;
use text::chat::{ChatModel, ENCODED_TOKENS_MAX, Prompt, PromptError};
use text::reply::{OutputParser, ReplyFormat};
use text::template::{Conversation, TemplateError};
use text::tools::ToolSchemas;

use self::constraint::Rule;
use self::generation::{Choice, Generation, ScoredPart, Settled};
use self::parameters::{salt, sampling};
use self::start::Start;
use self::stream::{ReplyStream, Writer};
use self::template_variables::Variable;
use self::wordings::Wordings;
use super::call::{Call, Usage};
use super::error::ApiError;
use super::fields::Object;
use super::keys::{self, KeyId};
use super::limits::PROMPT_LOGPROBS_MAX;
use super::state::{Abort, Service};

/// A checked request for replies to a conversation, whatever dialect it came in.
#[derive(Debug, Default)]
pub struct Ask {
    /// Messages in the form that templates read.
    pub messages: Vec<Value>,
    /// The field of the request that holds the messages.
    pub messages_field: &'static str,
    pub start: Start,
    /// Template variables that the request sets.
    pub variables: Vec<Variable>,
    /// Tools to describe at the head of the prompt, in the form of the chat completions API; empty
    /// when no tool may be called.
    pub tools: Vec<Value>,
    /// Tools that may be called and that messages describe, not the prompt's head.
    pub loaded_tools: Vec<Value>,
    /// Whether a reply may have several calls; else it ends after the first.
    pub parallel_tool_calls: bool,
    /// Whether calls that deviate from their form are read; false where a grammar enforces the
    /// form.
    pub lenient: bool,
    pub thinking: bool,
    /// Most tokens of reasoning; None for no such limit.
    pub thinking_budget: Option<usize>,
    pub sampling: Sampling,
    /// Texts that the sampling rules name, such as bad words.
    pub wordings: Wordings,
    /// Most tokens to generate. Clients ask for the most that other models can write: a reply also
    /// ends where the context is full, and its finish reason says so.
    pub max_tokens: Option<usize>,
    pub stops: Vec<String>,
    pub stop_tokens: Vec<TokenId>,
    pub ignore_eos: bool,
    pub logprobs: Option<usize>,
    /// Tokens whose log-probabilities `logprobs` asks for.
    pub scored: ScoredPart,
    /// Number of most likely tokens to report at each token of the prompt.
    pub prompt_logprobs: Option<usize>,
    /// Number of replies to each prompt.
    pub choices: usize,
    /// Salt of the prefix cache: prompts share cached prefixes only with prompts of the same salt.
    pub salt: String,
    /// Whether the reply is plain text: no reasoning, no tool calls, no turn of a conversation.
    pub raw: bool,
    /// Constraint that the replies must obey.
    pub rule: Option<Rule>,
    /// Warnings for the answer about parts of the request that are left out.
    pub left_out: Vec<String>,
}

impl Ask {
    /// Fields that all dialects read alike: sampling, with texts that its rules name, and the salt.
    /// The other fields have the values of a request that does not state them.
    ///
    /// # Errors
    /// Names the field that is out of range.
    pub fn read(object: &Object<'_>, facts: &Facts) -> Result<Ask, ApiError> {
        let sampling = sampling(object, facts)?;
        Ok(Ask {
            parallel_tool_calls: true,
            wordings: Wordings::read(object, &sampling.dry)?,
            sampling,
            choices: 1,
            salt: salt(object),
            ..Ask::default()
        })
    }

    fn calls_tools(&self) -> bool {
        !self.tools.is_empty() || !self.loaded_tools.is_empty()
    }

    /// Warnings about parts left out or not enforced; complete once the prompt is encoded.
    pub fn warnings(&self) -> Vec<String> {
        let rule = self.rule.as_ref().map_or(&[][..], Rule::warnings);
        [&self.left_out, rule].concat()
    }
}

/// Answer to a request.
pub enum Answer {
    Whole(Value),
    /// JSON of the whole answer as text.
    Text(String),
    Stream(Box<ReplyStream>),
}

impl Answer {
    /// A stream of the events that `writer` writes.
    pub fn stream(generation: Generation, writer: impl Writer + 'static, abort: Abort) -> Answer {
        let stream = ReplyStream::new(generation, Box::new(writer), abort);
        Answer::Stream(Box::new(stream))
    }
}

/// Prompt of `ask`, whose conversation is taken out, rendered and encoded, and whose rule is
/// compiled for `key`. Leaves at least one token of the context for a reply.
pub fn prompt(ask: &mut Ask, service: &Service, key: Option<KeyId>) -> Result<Prompt, ApiError> {
    encoded(ask, service, key, service.engine.context())
}

/// Number of tokens of the prompt of `ask`, whether or not it fits; the conversation is taken out
/// of `ask`.
pub fn count_tokens(
    ask: &mut Ask,
    service: &Service,
    key: Option<KeyId>,
) -> Result<usize, ApiError> {
    let prompt = encoded(ask, service, key, ENCODED_TOKENS_MAX)?;
    Ok(prompt.tokens.len())
}

/// Prompt of `ask`, of fewer than `limit` tokens.
fn encoded(
    ask: &mut Ask,
    service: &Service,
    key: Option<KeyId>,
    limit: usize,
) -> Result<Prompt, ApiError> {
    let chat = &service.chat;
    if ask.calls_tools() && chat.tool_format.is_none() {
        return Err(ApiError::field("tools", "this model calls no tools"));
    }
    let domain = keys::domain(key, &ask.salt);
    if let Some(rule) = &mut ask.rule {
        rule.compile(chat, domain)?;
    }
    let messages = std::mem::take(&mut ask.messages);
    let words = ask.start.words(&messages);
    let how = (&ask.start, &ask.variables[..]);
    let conversation = conversation(chat, messages, &ask.tools, ask.thinking, how);
    let (mut conversation, left_out) = conversation?;
    ask.left_out.extend(left_out);
    // A thinking budget counts from the prompt's end, and a grammar begins after the reasoning:
    // both need the prompt to open the reasoning.
    let is_whole = ask.rule.as_ref().is_some_and(Rule::is_whole);
    conversation.opens_reasoning = ask.thinking_budget.is_some() || is_whole;
    if let (Some(rule), Some(words)) = (&mut ask.rule, words) {
        rule.go_on(chat, &words)?;
    }
    chat.prompt(&conversation, domain, limit)
        .map_err(|error| match (&ask.start, &error) {
            (Start::Amid(path), PromptError::Template(TemplateError::Refused(why))) => {
                ApiError::field(path.clone(), format!("the chat template refuses: {why}"))
            }
            _ => prompt_error(&error, ask.messages_field, limit),
        })
}

/// A conversation as its template sees it, and warnings about variables that change nothing.
pub fn conversation(
    chat: &ChatModel,
    messages: Vec<Value>,
    tools: &[Value],
    thinks: bool,
    (start, variables): (&Start, &[Variable]),
) -> Result<(Conversation, Vec<String>), ApiError> {
    start.check(&messages, thinks)?;
    let (variables, left_out) = template_variables::passed_on(variables, thinks, chat)?;
    let conversation = Conversation {
        messages: chat.place_system_messages(messages),
        tools: tools.to_vec(),
        add_generation_prompt: *start == Start::Turn,
        enable_thinking: thinks,
        variables,
        goes_on: start.is_amid(),
        opens_reasoning: false,
    };
    Ok((conversation, left_out))
}

/// Error of a prompt, which must have fewer than `limit` tokens.
fn prompt_error(error: &PromptError, field: &str, limit: usize) -> ApiError {
    match error {
        PromptError::TooLong { tokens, exact, .. } => {
            let least = if *exact { "" } else { "at least " };
            ApiError::context(
                field,
                (*tokens, limit),
                &format!(
                    "your messages have {least}{tokens} tokens. Please shorten them; a reply \
                     needs room too."
                ),
            )
        }
        PromptError::Template(TemplateError::TooLarge) => ApiError::context(
            field,
            (limit + 1, limit),
            "your messages are far longer. Please shorten them.",
        ),
        error => ApiError::field(field, error.to_string()),
    }
}

/// Submits one engine request per reply; the queue takes all of them or none. Reply `i` is choice
/// `i % ask.choices` of prompt `i / ask.choices`.
///
/// # Errors
/// When the queue is full, the server is stopping, or too many log-probabilities are asked for.
pub fn submit(
    service: &Arc<Service>,
    call: &Arc<Call>,
    ask: &Ask,
    prompts: &[Prompt],
) -> Result<Generation, ApiError> {
    let prompt_tokens = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    check_scores(ask, prompt_tokens)?;
    let submitted = Instant::now();
    let tools = tool_schemas(ask);
    let words = ask.wordings.tokens(&service.chat)?;
    let mut choices = Vec::with_capacity(prompts.len() * ask.choices);
    for (at, prompt) in prompts.iter().enumerate() {
        let remaining = service.engine.context() - prompt.tokens.len();
        let fills_context = ask.max_tokens.is_none_or(|wanted| wanted > remaining);
        for index in 0..ask.choices {
            let format = reply_format(service, ask, tools.as_ref(), prompt);
            let (sender, events) = service.engine.channel(events_max(ask, prompt, remaining));
            let mut wanted = engine_request(ask, prompt, &format, remaining, sender);
            wanted.sampling.bad_words.clone_from(&words.bad);
            wanted.sampling.dry.breakers.clone_from(&words.breakers);
            wanted.source = call.source();
            wanted.domain = call.domain(&ask.salt);
            // Seeds of replies to one prompt, and to equal prompts, must differ.
            let seed = ask.sampling.seed;
            wanted.sampling.seed = rng::seed_of(seed, at as u64, index as u64);
            let rule = ask.rule.as_ref();
            wanted.constraint = rule.and_then(|rule| rule.start(&service.chat, prompt));
            if let Some(parts) = &mut wanted.sampling.adaptive {
                *parts = service.chat.parts(wanted.constraint.is_some());
            }
            wanted.sampling.thinking_budget = thinking_budget(service, ask, prompt)?;
            let (admitted, max_tokens) = (wanted.admitted.clone(), wanted.max_tokens);
            // On an error, dropping the receivers ends the replies that were submitted before.
            let submitted = service.engine.submit(wanted);
            submitted.map_err(|rejected| rejection(service, &rejected))?;
            service.times.max_tokens.record_tokens(max_tokens);
            let reply = OutputParser::new(&service.chat, format);
            let scored = ask.logprobs.map_or(ScoredPart::All, |_| ask.scored);
            let ends = (fills_context, scored);
            choices.push(Choice::new(events, admitted, reply, ends));
        }
    }
    service.times.choices.record_tokens(ask.choices);
    let (service, call, choices) = (service.clone(), call.clone(), (choices, ask.choices));
    Ok(Generation::new(
        service,
        call,
        submitted,
        choices,
        prompt_tokens,
    ))
}

/// Checks that an answer may have log-probabilities for `tokens` tokens of prompts.
fn check_scores(ask: &Ask, tokens: usize) -> Result<(), ApiError> {
    let Some(top) = ask.prompt_logprobs else {
        return Ok(());
    };
    let wanted = tokens * (top + 1) * ask.choices;
    if wanted <= PROMPT_LOGPROBS_MAX {
        return Ok(());
    }
    let problem = format!(
        "{wanted} log-probabilities of the prompt are wanted, at most {PROMPT_LOGPROBS_MAX} are \
         told; send fewer prompts or ask for fewer tokens at each place"
    );
    let field = match ask.raw {
        true => "logprobs",
        false => "prompt_logprobs",
    };
    Err(ApiError::field(field, problem))
}

fn thinking_budget(
    service: &Service,
    ask: &Ask,
    prompt: &Prompt,
) -> Result<Option<ThinkingBudget>, ApiError> {
    let tokens = ask.thinking_budget.filter(|_| prompt.reasoning_opened);
    let budget = tokens.map(|tokens| service.chat.thinking_budget(tokens));
    let budget = budget
        .transpose()
        .map_err(|error| prompt_error(&error, ask.messages_field, service.engine.context()))?;
    Ok(budget.flatten())
}

fn reply_format(
    service: &Service,
    ask: &Ask,
    tools: Option<&Arc<ToolSchemas>>,
    prompt: &Prompt,
) -> ReplyFormat {
    let mut stop_tokens = ask.stop_tokens.clone();
    if !ask.ignore_eos {
        stop_tokens.extend(&service.chat.stop_tokens);
    }
    ReplyFormat {
        reasoning_opened: prompt.reasoning_opened,
        amid: prompt.amid,
        stops: ask.stops.clone(),
        min_tokens: ask.sampling.min_tokens,
        stop_tokens,
        raw: ask.raw,
        tools: tools.cloned(),
        one_call: !ask.parallel_tool_calls,
        lenient: ask.lenient,
    }
}

fn tool_schemas(ask: &Ask) -> Option<Arc<ToolSchemas>> {
    let tools = ask.tools.iter().chain(&ask.loaded_tools);
    ask.calls_tools().then(|| Arc::new(ToolSchemas::new(tools)))
}

/// Most tokens of a reply if the context has `remaining` tokens left.
fn tokens_max(ask: &Ask, remaining: usize) -> usize {
    ask.max_tokens
        .map_or(remaining, |wanted| wanted.min(remaining))
}

/// Most events of a reply: events with scores of its prompt, its tokens, and its end. A channel of
/// this size never blocks the engine, so a slow reader cannot delay a slot's release.
fn events_max(ask: &Ask, prompt: &Prompt, remaining: usize) -> usize {
    let scores = ask.prompt_logprobs.map_or(0, |_| prompt.tokens.len());
    tokens_max(ask, remaining) + 2 + scores
}

fn engine_request(
    ask: &Ask,
    prompt: &Prompt,
    format: &ReplyFormat,
    remaining: usize,
    events: EventSender,
) -> Request {
    Request {
        source: Source::default(),
        domain: 0,
        head: prompt.head,
        prompt: prompt.tokens.clone(),
        max_tokens: tokens_max(ask, remaining),
        stop_tokens: format.stop_tokens.clone(),
        sampling: ask.sampling.clone(),
        logprobs: ask.logprobs,
        prompt_logprobs: ask.prompt_logprobs,
        constraint: None,
        admitted: Admitted::default(),
        events,
    }
}

fn rejection(service: &Service, rejected: &Rejected) -> ApiError {
    match rejected {
        Rejected::Full(_) => ApiError::full(),
        Rejected::Stopped(_) if service.engine.phase() == Phase::Draining => ApiError::draining(),
        Rejected::Stopped(_) => ApiError::unavailable("stopped", "the engine has stopped"),
    }
}

/// Waits for all replies to complete and returns each as one piece.
///
/// # Errors
/// When a reply fails or the server stops.
pub async fn gather(
    generation: Generation,
    abort: Abort,
) -> Result<(Vec<Settled>, Usage), ApiError> {
    let mut replies: Vec<Settled> = (0..generation.count()).map(Settled::of).collect();
    let usage = follow(generation, abort, |piece| replies[piece.index].add(piece)).await?;
    Ok((replies, usage))
}

/// Waits for all replies, and passes on each piece.
pub async fn follow(
    mut generation: Generation,
    mut abort: Abort,
    mut each: impl FnMut(Settled),
) -> Result<Usage, ApiError> {
    while !generation.is_finished() {
        tokio::select! {
            biased;
            polled = poll_fn(|cx| generation.poll(cx, &mut |_, piece| each(piece))) => polled?,
            error = &mut abort => return Err(error),
        }
    }
    Ok(generation.usage())
}
