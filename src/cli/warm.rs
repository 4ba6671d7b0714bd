//! `serve --warm FILE`: conversations that are computed before the server is ready, so that prompts
//! with the same prefix find it in the cache, whatever their API key is.
//!
//! A line of the file is the body of a request for a chat completion; members that are no part of
//! the prompt are ignored.

use std::fmt::Display;
use std::future::poll_fn;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};

use super::notify::Notifier;
use super::{Exit, Failure, lines};
use engine::events::EventReceiver;
use engine::fair_queue::Source;
use engine::request::{Admitted, COMMON, Event, Request, Sampling};
use engine::{Handle, Phase};
use host::log;
use host::operator_file;
use http::chat::request::ChatRequest;
use http::figures::Times;
use http::generate::{self, Ask};
use http::json;
use http::limits::BODY_BYTES_MAX;
use http::state::Service;
use model::target::{FACTS, PAGE};
use text::chat::{ChatModel, Prompt};

/// Bytes of the largest file of conversations.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Most conversations in a file.
const CONVERSATIONS_MAX: usize = 4096;
/// Tokens of the reply to each conversation: a prompt is cached when its first token comes.
const REPLY_TOKENS: usize = 1;
/// Most events of a reply of [`REPLY_TOKENS`]: its token and its end.
const EVENTS: usize = REPLY_TOKENS + 1;
/// Time between two progress lines.
const REPORTED_EVERY: Duration = Duration::from_secs(5);
/// Time between two checks whether the engine has cached the last prompt.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Conversations of a file, with their line numbers.
#[derive(Debug)]
pub struct Warm {
    path: PathBuf,
    asks: Vec<(usize, Ask)>,
}

impl Warm {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// Names the file, the line that is no conversation, and the field at fault.
    pub fn load(path: &Path) -> Result<Warm, Failure> {
        let unreadable = |why| failure(path, format!("{why}; name a file that can be read"));
        let file = operator_file::open(path, FILE_BYTES_MAX).map_err(unreadable)?;
        let mut asks = Vec::new();
        for line in lines::numbered(BufReader::new(file), BODY_BYTES_MAX) {
            let (number, text) = line.map_err(unreadable)?;
            if asks.len() == CONVERSATIONS_MAX {
                let message =
                    format!("has more than {CONVERSATIONS_MAX} conversations; leave some out");
                return Err(failure(path, message));
            }
            let ask = ask(&text).map_err(|why| on_line(path, number, why))?;
            asks.push((number, ask));
        }
        match asks.is_empty() {
            true => Err(failure(path, "has no conversation; write one a line")),
            false => Ok(Warm {
                path: path.to_path_buf(),
                asks,
            }),
        }
    }

    /// Computes all conversations one after the other, so that later ones can use cached prefixes
    /// of earlier ones. Returns `chat`; None if the engine has stopped.
    ///
    /// # Errors
    /// Names the line whose conversation is too long, or cannot be computed.
    pub async fn compute(
        self,
        chat: ChatModel,
        engine: &Handle,
        notifier: &Notifier,
    ) -> Result<Option<ChatModel>, Failure> {
        let service = Service {
            chat,
            engine: engine.clone(),
            times: Times::default(),
        };
        let mut prompts = Vec::with_capacity(self.asks.len());
        for (line, mut ask) in self.asks {
            let prompt = generate::prompt(&mut ask, &service, None)
                .map_err(|error| on_line(&self.path, line, error.message))?;
            prompts.push((line, prompt));
        }
        let computed = compute(&self.path, prompts, engine, notifier).await?;
        Ok(computed.then_some(service.chat))
    }
}

/// Conversation on a line, as a request for one token.
///
/// # Errors
/// The fault of the line.
fn ask(text: &[u8]) -> Result<Ask, String> {
    if text.len() > BODY_BYTES_MAX {
        return Err(format!("is longer than {BODY_BYTES_MAX} bytes; shorten it"));
    }
    let body = json::parse(text)?;
    let request = ChatRequest::parse(&body, &FACTS).map_err(|error| error.message)?;
    match request.ask.salt.is_empty() {
        true => Ok(Ask {
            max_tokens: Some(REPLY_TOKENS),
            thinking_budget: None,
            rule: None,
            ..request.ask
        }),
        false => Err("cache_salt: what is warmed is for everybody; leave it out".to_string()),
    }
}

/// Computes prompts, each with its line number; false if the engine has stopped.
async fn compute(
    path: &Path,
    prompts: Vec<(usize, Prompt)>,
    engine: &Handle,
    notifier: &Notifier,
) -> Result<bool, Failure> {
    let (all, mut tokens) = (prompts.len(), 0);
    let mut ticks = interval(REPORTED_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for (done, (line, prompt)) in prompts.into_iter().enumerate() {
        tokens += prompt.tokens.len();
        let Some(mut events) = submit(engine, prompt) else {
            return Ok(false);
        };
        loop {
            let event = tokio::select! {
                event = poll_fn(|cx| events.poll_recv(cx)) => event,
                _ = ticks.tick() => {
                    report(done, all, engine, notifier);
                    continue;
                }
            };
            match event {
                Some(Event::Token { .. } | Event::Prompt(_)) => {}
                Some(Event::Done(_)) => break,
                Some(Event::Failed(why) | Event::Refused(why))
                    if engine.phase() == Phase::Serving =>
                {
                    return Err(on_line(path, line, why));
                }
                _ => return Ok(false),
            }
        }
    }
    while !engine.is_idle() {
        sleep(LOOK_EVERY).await;
    }
    let stats = engine.stats();
    log::line(format_args!(
        "conversations warmed: {all}, {tokens} tokens, {} of them computed and the others shared; \
         {} tokens are kept",
        stats.prompt_tokens.get(),
        stats.pages_cached.get() * PAGE as u64
    ));
    Ok(true)
}

/// Submits a prompt to the engine; None if the engine takes no more requests.
fn submit(engine: &Handle, prompt: Prompt) -> Option<EventReceiver> {
    let (events, receiver) = engine.channel(EVENTS);
    let request = Request {
        source: Source::default(),
        domain: COMMON,
        head: prompt.head,
        prompt: prompt.tokens,
        max_tokens: REPLY_TOKENS,
        stop_tokens: Vec::new(),
        sampling: Sampling::default(),
        logprobs: None,
        prompt_logprobs: None,
        constraint: None,
        admitted: Admitted::default(),
        events,
    };
    engine.submit(request).ok().map(|()| receiver)
}

/// Logs the progress and notifies the service manager.
fn report(done: usize, all: usize, engine: &Handle, notifier: &Notifier) {
    let computed = engine.stats().prompt_tokens.get();
    let text = format!("warming: {done} of {all} conversations, {computed} tokens computed");
    notifier.starting(&text);
    log::line(text);
}

fn on_line(path: &Path, number: usize, why: impl Display) -> Failure {
    failure(path, format!("line {number}: {why}"))
}

fn failure(path: &Path, why: impl Display) -> Failure {
    Exit::Config.failure(format!("--warm {}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        ask(text.as_bytes()).expect_err("it is no conversation")
    }

    #[test]
    fn a_line_is_a_request_whose_reply_does_not_matter() {
        let line = r#"{"model": "m", "messages": [{"role": "user", "content": "hi"}], "n": 3,
            "max_tokens": 9, "stream": true, "response_format": {"type": "json_object"}}"#;
        let ask = ask(line.as_bytes()).unwrap();
        assert_eq!(ask.messages.len(), 1);
        assert_eq!(ask.max_tokens, Some(1));
        assert!(ask.rule.is_none());
    }

    #[test]
    fn a_line_that_is_no_conversation_is_refused_with_its_field() {
        assert!(problem("[]").contains("JSON object"));
        assert!(problem("{").contains("line 1"));
        assert!(problem("{}").starts_with("messages"));
        assert!(problem(r#"{"messages": []}"#).starts_with("messages"));
        let salted = r#"{"messages": [{"role": "user", "content": "hi"}], "cache_salt": "mine"}"#;
        assert!(problem(salted).starts_with("cache_salt"));
    }
}
