//! One admitted request: its tokens, its sampler and the channel to its reader.

use super::executor::{Rows, Slot};
use super::kv::Kv;
use super::request::{Event, FinishReason, Request, Scored, TokenId};
use super::sampler::{self, Sampler, Scratch};
use super::scheduler::Lane;

/// Events that a channel must have room for before its sequence takes part in a step: scores of
/// the prompt where they are wanted, the token, and the end, so that a terminal event always fits.
pub(super) fn events_room(scores_prompt: bool) -> usize {
    2 + usize::from(scores_prompt)
}

pub(super) const NOT_FINITE: &str = "the model computed a logit that is not a finite number";

/// Why a sequence gives its slot back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Finished(FinishReason),
    Failed,
    Cancelled,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub slot: Slot,
    /// Prompt, then reply.
    tokens: Vec<TokenId>,
    prompt: usize,
    /// Tokens whose rows have run.
    computed: usize,
    /// Length at which the reply is complete.
    length_max: usize,
    stop_tokens: Vec<TokenId>,
    sampler: Sampler,
    logprobs: Option<usize>,
    prompt_logprobs: Option<usize>,
    /// Of the prompt's rows of this step.
    scores: Vec<Scored>,
    events: tokio::sync::mpsc::Sender<Event>,
    pub end: Option<End>,
}

impl Sequence {
    pub fn new(request: Request, slot: Slot) -> Self {
        let prompt = request.prompt.len();
        let length_max = prompt + request.max_tokens;
        let sampler = Sampler::new(request.sampling, &request.prompt, length_max);
        let mut tokens = request.prompt;
        tokens.reserve_exact(request.max_tokens);
        Sequence {
            slot,
            tokens,
            prompt,
            computed: 0,
            length_max,
            stop_tokens: request.stop_tokens,
            sampler,
            logprobs: request.logprobs,
            prompt_logprobs: request.prompt_logprobs,
            scores: Vec::new(),
            events: request.events,
            end: None,
        }
    }

    pub fn lane(&self) -> Lane {
        Lane {
            prompt: self.prompt,
            computed: self.computed,
            ready: self.events.capacity() >= self.events_room(),
        }
    }

    pub fn events_room(&self) -> usize {
        events_room(self.prompt_logprobs.is_some())
    }

    pub fn events(&self) -> &tokio::sync::mpsc::Sender<Event> {
        &self.events
    }

    pub fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }

    /// Whether rows up to `end` are the last known ones, so that their logits give the next token.
    fn reaches_the_end(&self, end: usize) -> bool {
        end == self.tokens.len() && end < self.length_max
    }

    /// How many of the next `count` rows score the token behind them: those of the prompt but its
    /// last one.
    pub fn scored(&self, count: usize) -> usize {
        let last = self.prompt - 1;
        match self.prompt_logprobs {
            Some(_) => last.saturating_sub(self.computed).min(count),
            None => 0,
        }
    }

    /// Takes the logits of the next row that scores a token, row `index` of this step.
    pub fn score(&mut self, index: usize, logits: &[f32]) {
        let Some(count) = self.prompt_logprobs.filter(|_| self.end.is_none()) else {
            return;
        };
        if !sampler::all_finite(logits) {
            // What was scored before it goes out first, so that the cut into steps does not show.
            self.send_scores();
            self.fail(NOT_FINITE);
            return;
        }
        let token = self.tokens[self.computed + index + 1];
        self.scores.push(sampler::score(logits, token, count));
    }

    /// The next `count` rows.
    pub fn rows<'a>(&'a self, count: usize, kv: &'a Kv) -> Rows<'a> {
        let end = self.computed + count;
        let pages = kv.pages(self.slot);
        assert!(
            count > 0 && end <= self.tokens.len(),
            "rows beyond the known tokens"
        );
        assert!(
            end <= pages.len() * crate::target::PAGE,
            "rows beyond the reserved pages"
        );
        Rows {
            slot: self.slot,
            start: self.computed,
            tokens: &self.tokens[self.computed..end],
            pages,
            logits: self.reaches_the_end(end),
        }
    }

    fn send_scores(&mut self) {
        if !self.scores.is_empty() {
            let scores = std::mem::take(&mut self.scores);
            self.send(Event::Prompt(scores));
        }
    }

    /// Takes note that `count` rows ran: how many of them were prompt, and whether logits came.
    /// Sends the scores of this step, and the end if no reply is wanted.
    pub fn advance(&mut self, count: usize) -> (usize, bool) {
        let from_prompt = self.prompt.saturating_sub(self.computed).min(count);
        self.computed += count;
        self.send_scores();
        if self.computed == self.length_max && self.end.is_none() {
            self.finish(FinishReason::Length);
        }
        (from_prompt, self.reaches_the_end(self.computed))
    }

    /// Takes the logits after the last token: sends the next one, and the end if it is the last.
    /// Returns whether there is a next one.
    pub fn accept(&mut self, logits: &[f32], scratch: &mut Scratch) -> bool {
        if self.end.is_some() {
            return false;
        }
        if !sampler::all_finite(logits) {
            self.fail(NOT_FINITE);
            return false;
        }
        let id = self.sampler.next(logits, self.tokens.len(), scratch);
        let logprobs = self
            .logprobs
            .map(|count| sampler::logprobs(logits, id, count));
        self.tokens.push(id);
        self.send(Event::Token { id, logprobs });
        if let Some(reason) = self.finish_reason(id) {
            self.finish(reason);
        }
        true
    }

    fn finish(&mut self, reason: FinishReason) {
        self.send(Event::Done(reason));
        self.end.get_or_insert(End::Finished(reason));
    }

    fn finish_reason(&self, id: TokenId) -> Option<FinishReason> {
        if self.stop_tokens.contains(&id) {
            return Some(FinishReason::Stop);
        }
        (self.tokens.len() == self.length_max).then_some(FinishReason::Length)
    }

    /// Ends the sequence with a text that the client may see.
    pub fn fail(&mut self, text: &str) -> End {
        self.send(Event::Failed(text.to_owned()));
        *self.end.get_or_insert(End::Failed)
    }

    /// A sequence runs only with room for its events, so a refusal means that the reader is gone.
    fn send(&mut self, event: Event) {
        if self.events.try_send(event).is_err() {
            self.end = Some(End::Cancelled);
        }
    }
}
