//! The replies to one request while they are generated: the engine's events in, deltas out.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::call::{Call, Replies, Usage};
use crate::error::{ApiError, internal};
use crate::limits::EVENTS_MAX;
use crate::state::Service;
use engine::events::EventReceiver;
use engine::request::{Admitted, Event, FinishReason, Scored, TokenLogprobs};
use hyper::StatusCode;
use step::executor::TokenId;
use text::reply::{Delta, Flow, OutputParser, Section, append};

/// Reason why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Stop,
    /// Stop string of the request at this index.
    StopString(usize),
    /// Stop string at this index, inside a value of a tool call, which is cut there.
    StopInCall(usize),
    /// End token of the model inside a tool call.
    HalfCall,
    /// End of the requested length.
    Length,
    /// End of the context; the request asked for more tokens, or stated no length.
    ContextFull,
    ToolCalls,
}

impl Finish {
    /// Finish for `reason`; `fills_context`: whether the context ends before the requested length.
    pub fn of(reason: FinishReason, fills_context: bool, reply: &OutputParser) -> Finish {
        match (reason, reply.stopped_by()) {
            (FinishReason::Length, _) if fills_context => Finish::ContextFull,
            (FinishReason::Length, _) => Finish::Length,
            (FinishReason::Stop, Some(at)) if reply.has_half_a_call() => Finish::StopInCall(at),
            (FinishReason::Stop, None) if reply.has_half_a_call() => Finish::HalfCall,
            (FinishReason::Stop, _) if reply.calls() > 0 => Finish::ToolCalls,
            (FinishReason::Stop, stopped_by) => stopped_by.map_or(Finish::Stop, Finish::StopString),
        }
    }

    /// Whether the reply was cut off; half a tool call counts as cut off.
    pub fn is_incomplete(self) -> bool {
        match self {
            Finish::Length | Finish::ContextFull | Finish::StopInCall(_) | Finish::HalfCall => true,
            Finish::Stop | Finish::StopString(_) | Finish::ToolCalls => false,
        }
    }

    /// Finish reason of the chat completions API, the same one for all incomplete replies.
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop | Finish::StopString(_) => "stop",
            Finish::ToolCalls => "tool_calls",
            Finish::Length | Finish::ContextFull | Finish::StopInCall(_) | Finish::HalfCall => {
                "length"
            }
        }
    }
}

/// Deltas of one reply that the latest engine events completed, with counts, ids and
/// log-probabilities of these events' tokens.
#[derive(Debug, Default)]
pub struct Settled {
    /// Index of the reply.
    pub index: usize,
    /// Scores of the prompt's next tokens, if they are requested.
    pub prompt: Vec<Scored>,
    pub deltas: Vec<Delta>,
    /// Number of tokens in the events.
    pub tokens: usize,
    pub reasoning_tokens: usize,
    /// Ids of the events' tokens, if they are requested.
    pub ids: Vec<TokenId>,
    pub logprobs: Vec<(TokenId, TokenLogprobs)>,
    /// Log-probabilities of the reasoning's tokens, if they are requested apart from the content's.
    pub reasoning_logprobs: Vec<(TokenId, TokenLogprobs)>,
    /// Reason why the reply ended; set with its last piece.
    pub finish: Option<Finish>,
}

impl Settled {
    /// Value for reply `index` without deltas and tokens.
    pub fn of(index: usize) -> Settled {
        Settled {
            index,
            ..Settled::default()
        }
    }

    /// Adds the next piece of the same reply; deltas of one kind and position are joined.
    pub fn add(&mut self, next: Settled) {
        for delta in next.deltas {
            append(&mut self.deltas, delta);
        }
        self.prompt.extend(next.prompt);
        self.tokens += next.tokens;
        self.reasoning_tokens += next.reasoning_tokens;
        self.ids.extend(next.ids);
        self.logprobs.extend(next.logprobs);
        self.reasoning_logprobs.extend(next.reasoning_logprobs);
        self.finish = self.finish.or(next.finish);
    }
}

/// Tokens of a reply whose log-probabilities are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScoredPart {
    #[default]
    All,
    /// Tokens of the content; each log-probability is passed on with the delta of its token.
    Text,
    /// Tokens of the content and, in a list apart, of the reasoning.
    TextAndReasoning,
}

/// One reply to a request, while it is generated.
#[derive(Debug)]
pub struct Choice {
    /// Events of the engine; None once the reply is complete, so that the closed channel ends the
    /// sequence.
    events: Option<EventReceiver>,
    admitted: Admitted,
    reply: OutputParser,
    /// Whether the end of the context comes before the requested length.
    fills_context: bool,
    tokens: usize,
    /// Number of the reply's tokens that are reasoning, tags included.
    reasoning_tokens: usize,
    reports_ids: bool,
    finish: Option<Finish>,
    scored: ScoredPart,
    /// Log-probabilities of tokens whose text is held back, since it may begin a call or a stop
    /// string, each with the bytes of content up to its token. Log-probabilities are dropped with
    /// their text.
    unsettled: Vec<(usize, (TokenId, TokenLogprobs))>,
    /// Log-probabilities of tokens whose text may be the end of the reasoning.
    unsettled_reasoning: Vec<(TokenId, TokenLogprobs)>,
}

impl Choice {
    pub fn new(
        events: EventReceiver,
        admitted: Admitted,
        reply: OutputParser,
        (fills_context, scored): (bool, ScoredPart),
    ) -> Choice {
        Choice {
            events: Some(events),
            admitted,
            reply,
            fills_context,
            tokens: 0,
            reasoning_tokens: 0,
            reports_ids: false,
            finish: None,
            scored,
            unsettled: Vec::new(),
            unsettled_reasoning: Vec::new(),
        }
    }

    /// Whether each token's deltas are passed on separately.
    fn is_apart(&self) -> bool {
        self.scored != ScoredPart::All
    }

    /// Takes one event of the engine and adds its deltas to `out`.
    ///
    /// # Errors
    /// The engine's message, when the reply failed.
    fn take(&mut self, service: &Service, event: Event, out: &mut Settled) -> Result<(), ApiError> {
        match event {
            Event::Prompt(scores) => {
                out.prompt.extend(scores);
                Ok(())
            }
            Event::Token { id, logprobs } => {
                let reasoning = usize::from(self.reply.is_reasoning());
                self.tokens += 1;
                self.reasoning_tokens += reasoning;
                out.tokens += 1;
                out.reasoning_tokens += reasoning;
                out.ids.extend(self.reports_ids.then_some(id));
                let is_text = self.reply.is_text(&service.chat, id);
                let before = (self.reply.section(), self.reply.begun_calls());
                // The log-probability of a token without text goes with the text before the token.
                let shown = self.reply.content_ahead() + usize::from(is_text);
                let flow = self.reply.push(&service.chat, id, &mut out.deltas);
                if let Some(logprobs) = logprobs.filter(|_| is_text || self.reply.reports_all()) {
                    self.score((shown, (id, *logprobs)), before, out);
                }
                if flow.is_break() {
                    self.end(FinishReason::Stop, out);
                }
                Ok(())
            }
            Event::Done(reason) => {
                let cut = reason == FinishReason::Length;
                let calls = self.reply.begun_calls();
                let reason = match self.reply.finish(cut, &mut out.deltas) {
                    Flow::Break(()) => FinishReason::Stop,
                    Flow::Continue(()) => reason,
                };
                if self.reply.begun_calls() > calls {
                    self.unsettled.clear();
                }
                self.settle(out);
                self.end(reason, out);
                Ok(())
            }
            Event::Failed(problem) => Err(internal(problem)),
            Event::Refused(problem) => {
                Err(ApiError::new(StatusCode::BAD_REQUEST, problem).coded("constraint_failed"))
            }
        }
    }

    /// Assigns the log-probabilities of a token to the section that it belongs to; `before`:
    /// section and number of calls before the token.
    fn score(
        &mut self,
        logprobs: (usize, (TokenId, TokenLogprobs)),
        before: (Section, usize),
        out: &mut Settled,
    ) {
        let (section, calls) = before;
        if self.reply.begun_calls() > calls || self.reply.is_reasoning() {
            self.unsettled.clear();
        }
        match (self.scored, self.reply.section()) {
            (ScoredPart::TextAndReasoning, Section::Reasoning) => {
                self.unsettled_reasoning.push(logprobs.1);
            }
            (ScoredPart::All, _) | (_, Section::Opening) => self.unsettled.push(logprobs),
            (_, Section::Text)
                if section != Section::Reasoning
                    && section != Section::Call
                    && self.reply.begun_calls() == calls =>
            {
                self.unsettled.push(logprobs);
            }
            _ => {}
        }
        self.settle(out);
    }

    /// Passes on the log-probabilities of tokens whose content has been passed on.
    fn settle(&mut self, out: &mut Settled) {
        let passed = self.reply.passed_on();
        let shown = self.unsettled.extract_if(.., |(shown, _)| *shown <= passed);
        out.logprobs.extend(shown.map(|(_, logprobs)| logprobs));
        let mut deltas = out.deltas.iter();
        if deltas.any(|delta| matches!(delta, Delta::Reasoning(_))) {
            out.reasoning_logprobs.append(&mut self.unsettled_reasoning);
        }
        if !self.reply.is_reasoning() {
            self.unsettled_reasoning.clear();
        }
    }

    fn end(&mut self, reason: FinishReason, out: &mut Settled) {
        self.events = None;
        self.finish = Some(Finish::of(reason, self.fills_context, &self.reply));
        out.finish = self.finish;
    }

    /// Takes the events that are ready and passes on their deltas, event by event if `apart`.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        service: &Service,
        index: usize,
        apart: bool,
        each: &mut dyn FnMut(&Service, Settled),
    ) -> Poll<Result<(), ApiError>> {
        let mut piece = Settled::of(index);
        let mut taken = 0;
        while taken < EVENTS_MAX
            && let Some(events) = &mut self.events
            && let Poll::Ready(event) = events.poll_recv(cx)
        {
            let Some(event) = event else {
                return Poll::Ready(Err(internal("the engine stopped")));
            };
            self.take(service, event, &mut piece)?;
            taken += 1;
            if apart || self.is_apart() {
                each(service, std::mem::replace(&mut piece, Settled::of(index)));
            }
        }
        if taken == 0 {
            return Poll::Pending;
        }
        if !(apart || self.is_apart()) {
            each(service, piece);
        }
        Poll::Ready(Ok(()))
    }
}

/// Slots of the replies to one request, as far as the engine has assigned them.
#[derive(Clone, Debug)]
pub struct Admissions {
    all: Vec<Admitted>,
    /// Number of replies to each prompt.
    of_prompt: usize,
    prompt_tokens: usize,
}

impl Admissions {
    /// Usage before the first token; None until each reply has its slot.
    pub fn usage(&self) -> Option<Usage> {
        let cached = |slot: &Admitted| Some(slot.get()?.cached);
        let cached: Vec<usize> = self.all.iter().map(cached).collect::<Option<_>>()?;
        let least = cached.chunks(self.of_prompt).map(|of| of.iter().min());
        Some(Usage {
            prompt: self.prompt_tokens,
            cached: least.flatten().sum(),
            ..Usage::default()
        })
    }
}

/// All replies to one request, while they are generated.
pub struct Generation {
    service: Arc<Service>,
    call: Arc<Call>,
    choices: Vec<Choice>,
    prompt_tokens: usize,
    /// Number of replies to each prompt.
    of_prompt: usize,
    submitted: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    failed: bool,
    /// Whether the deltas of each token are passed on separately.
    apart: bool,
}

impl Generation {
    pub fn new(
        service: Arc<Service>,
        call: Arc<Call>,
        submitted: Instant,
        (choices, of_prompt): (Vec<Choice>, usize),
        prompt_tokens: usize,
    ) -> Generation {
        Generation {
            service,
            call,
            choices,
            prompt_tokens,
            of_prompt,
            submitted,
            first_token: None,
            last_token: None,
            failed: false,
            apart: false,
        }
    }

    /// Passes on the deltas of each token separately.
    pub fn token_by_token(mut self) -> Generation {
        self.apart = true;
        self
    }

    /// Passes on the ids of tokens too.
    pub fn reporting_ids(mut self) -> Generation {
        let choices = self.choices.iter_mut();
        choices.for_each(|choice| choice.reports_ids = true);
        self
    }

    pub fn admissions(&self) -> Admissions {
        let slots = self.choices.iter().map(|choice| choice.admitted.clone());
        Admissions {
            all: slots.collect(),
            of_prompt: self.of_prompt,
            prompt_tokens: self.prompt_tokens,
        }
    }

    pub fn service(&self) -> &Service {
        &self.service
    }

    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Number of replies to all prompts of the request.
    pub fn count(&self) -> usize {
        self.choices.len()
    }

    pub fn is_finished(&self) -> bool {
        self.choices.iter().all(|choice| choice.events.is_none())
    }

    pub fn usage(&self) -> Usage {
        let sum = |tokens: fn(&Choice) -> usize| self.choices.iter().map(tokens).sum();
        Usage {
            prompt: self.prompt_tokens,
            cached: self.cached(),
            completion: sum(|choice| choice.tokens),
            reasoning: sum(|choice| choice.reasoning_tokens),
        }
    }

    /// Number of cached tokens of all prompts; of several replies to a prompt the fewest count.
    fn cached(&self) -> usize {
        let cached = |choice: &Choice| choice.admitted.get().map_or(0, |slot| slot.cached);
        let prompts = self.choices.chunks(self.of_prompt);
        let least = prompts.map(|choices| choices.iter().map(cached).min());
        least.flatten().sum()
    }

    /// Takes the events that are ready and passes their deltas to `each`, reply by reply.
    ///
    /// # Errors
    /// The engine's message, when a reply failed; the request is over then.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        each: &mut dyn FnMut(&Service, Settled),
    ) -> Poll<Result<(), ApiError>> {
        let tokens_before = self.tokens();
        let mut settled = false;
        for (index, choice) in self.choices.iter_mut().enumerate() {
            match choice.poll(cx, &self.service, index, self.apart, each) {
                Poll::Ready(Ok(())) => settled = true,
                Poll::Ready(Err(error)) => {
                    self.failed = true;
                    return Poll::Ready(Err(error));
                }
                Poll::Pending => {}
            }
        }
        if !settled {
            return Poll::Pending;
        }
        self.measure(self.tokens() - tokens_before);
        Poll::Ready(Ok(()))
    }

    fn tokens(&self) -> usize {
        self.choices.iter().map(|choice| choice.tokens).sum()
    }

    fn measure(&mut self, tokens: usize) {
        let now = Instant::now();
        let times = &self.service.times;
        if tokens > 0 {
            match self.last_token.replace(now) {
                None => {
                    self.first_token = Some(now);
                    times.first_token.record(now - self.submitted, 1);
                }
                Some(last) => {
                    let each = (now - last) / tokens as u32;
                    times.between_tokens.record(each, tokens as u64);
                }
            }
        }
        if self.is_finished() {
            self.measure_whole(now);
        }
    }

    /// Counts a request whose replies are complete in the histograms.
    fn measure_whole(&self, now: Instant) {
        let (times, usage) = (&self.service.times, self.usage());
        times.request.record(now - self.submitted, 1);
        times.prompt_tokens.record_tokens(usage.prompt);
        times.reply_tokens.record_tokens(usage.completion);
        let longest = self.choices.iter().map(|choice| choice.tokens).max();
        times.most_tokens.record_tokens(longest.unwrap_or(0));
        let Some(admitted) = self.admitted() else {
            return;
        };
        times.queue.record(admitted - self.submitted, 1);
        times.inference.record(now - admitted, 1);
        if let (Some(first), Some(last)) = (self.first_token, self.last_token) {
            times.prefill.record(first - admitted, 1);
            times.decode.record(last - first, 1);
            let others = usage.completion.saturating_sub(1);
            if let Ok(others @ 1..) = u32::try_from(others) {
                times.per_token.record((last - first) / others, 1);
            }
        }
    }

    /// Time at which the first of the replies got a slot.
    fn admitted(&self) -> Option<Instant> {
        let choices = self.choices.iter();
        let admitted = choices.filter_map(|choice| choice.admitted.get());
        admitted.map(|admission| admission.at).min()
    }

    /// Time that the first reply waited for its slot; None while all of them wait.
    pub fn queued(&self) -> Option<Duration> {
        self.admitted().map(|admitted| admitted - self.submitted)
    }

    /// Outcome of the replies, for the access log.
    fn replies(&self) -> Replies {
        let unfinished = if self.failed { "failed" } else { "cancelled" };
        let finish = |choice: &Choice| choice.finish.map_or(unfinished, Finish::name);
        Replies {
            usage: self.usage(),
            queued: self.queued(),
            first_token: self.first_token,
            finishes: self.choices.iter().map(finish).collect(),
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.call.generated(self.replies());
    }
}
