//! Sequence of an admitted request: its tokens, sampler, cache and channel.

use std::time::{Duration, Instant};

use super::acceptance_rate::Proposer;
use super::constraint::{Allowed, Guide, MaskThreads};
use super::drafts::{Drafter, Drafts};
use super::events::EventSender;
use super::fair_queue::Source;
use super::kv::{Begin, Kv};
use super::prefix::{self, SnapshotKind, SnapshotPoint};
use super::request::{Event, FinishReason, Request, Scored, TokenLogprobs};
use super::sampler::{self, Sampler, Scratch};
use super::scheduler::Candidate;
use super::speculate::{Costs, DEPTH_MAX, Proposal, Scores};
use step::PAGE;
use step::executor::{Drafted, Draw, Ranked, SeqRows, Slot, Snapshot, States, TokenId};
use step::ranking;

/// Number of events for which a channel must have capacity before its sequence is in a step: the
/// token, the end, and scores of the prompt if wanted. So a terminal event always fits.
pub(super) fn events_min(scores_prompt: bool) -> usize {
    2 + usize::from(scores_prompt)
}

/// Error text for a reply whose request leaves no token to choose.
pub(super) const NOTHING_LEFT: &str =
    "allowed_token_ids, bad_words, min_tokens and the reply's format leave no token";

pub(super) const NOT_FINITE: &str = "the model computed a logit that is not a finite number";

/// Event that ended a sequence, whose slot is freed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Finished(FinishReason),
    Failed,
    Cancelled,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub slot: Slot,
    /// State that the sequence's next row reads.
    from: Slot,
    /// Number of the sequence in the order of admission.
    pub number: u64,
    /// Domain of the prefix cache: sequences of one domain share cached prompts.
    pub domain: u128,
    /// Points of the prompt where snapshots are still to be taken, ascending.
    snapshot_points: Vec<SnapshotPoint>,
    /// Point in the rows of this step where a snapshot is taken, and the state for it.
    lent: Option<(SnapshotPoint, Slot)>,
    recurs: bool,
    /// Whether the sequence's cached pages are still being restored from the tier below: until then
    /// its pages and its slot must not be used.
    pub restoring: bool,
    /// Whether all blocks of the prompt that are to be cached are cached.
    prompt_cached: bool,
    /// Tokens of the prompt, then of the reply.
    tokens: Vec<TokenId>,
    prompt: usize,
    /// Number of tokens whose rows have run.
    computed: usize,
    drafts: Drafts,
    /// Length in tokens at which the reply is complete.
    length_max: usize,
    stop_tokens: Vec<TokenId>,
    sampler: Sampler,
    guide: Option<Guide>,
    /// Logits after the last token, while the mask for the next token is late.
    pending_logits: Option<Vec<f32>>,
    logprobs: Option<usize>,
    prompt_logprobs: Option<usize>,
    /// Scores of the prompt's tokens by the rows of this step.
    scores: Vec<Scored>,
    events: EventSender,
    pub source: Source,
    /// Time that a slow client has kept the sequence out of steps while requests waited for a slot.
    pub reader_lag: Duration,
    pub end: Option<End>,
}

impl Sequence {
    pub fn new(
        (number, request): (u64, Request),
        begin: Begin,
        spacing: Option<usize>,
        threads: &MaskThreads,
    ) -> Self {
        let slot = begin.slot;
        let prompt = request.prompt.len();
        let length_max = prompt + request.max_tokens;
        let stops = &request.stop_tokens;
        let sampler = Sampler::new(request.sampling, &request.prompt, stops, length_max);
        let mut tokens = request.prompt;
        tokens.reserve_exact(request.max_tokens);
        let constraint = request.constraint;
        let guide = constraint.map(|constraint| Guide::new(constraint, slot, threads));
        let snapshot_points = spacing.map_or(Vec::new(), |spacing| {
            prefix::snapshot_points(prompt, (begin.cached, begin.known), request.head, spacing)
        });
        Sequence {
            slot,
            from: begin.from,
            number,
            domain: request.domain,
            snapshot_points,
            lent: None,
            recurs: spacing.is_some(),
            restoring: begin.restore_after.is_some(),
            prompt_cached: false,
            tokens,
            prompt,
            computed: begin.cached,
            drafts: Drafts::default(),
            length_max,
            stop_tokens: request.stop_tokens,
            sampler,
            guide,
            pending_logits: None,
            logprobs: request.logprobs,
            prompt_logprobs: request.prompt_logprobs,
            scores: Vec::new(),
            events: request.events,
            source: request.source,
            reader_lag: Duration::ZERO,
            end: None,
        }
    }

    pub fn candidate(&self) -> Candidate {
        Candidate {
            prompt: self.prompt,
            computed: self.computed,
            most: self.most(),
            scored: self.prompt_logprobs.is_some(),
            ready: self.pending_logits.is_none() && !self.restoring && !self.waits_for_reader(),
            drafts: 0,
        }
    }

    /// Largest number of prompt tokens of the next step, so that at most one snapshot is in them.
    fn most(&self) -> usize {
        let second = self.snapshot_points.get(1);
        second.map_or(usize::MAX, |point| point.tokens - PAGE - self.computed)
    }

    /// Takes a state for a snapshot in the next `count` rows, if one is due and to be had.
    pub fn lend(&mut self, count: usize, kv: &mut Kv) {
        let next = self.snapshot_points.first();
        if next.is_some_and(|point| point.tokens <= self.computed + count) {
            let point = self.snapshot_points.remove(0);
            self.lent = kv.lend(self.slot, point).map(|state| (point, state));
        }
    }

    /// Number of leading tokens of `prompt` that will be cached once this sequence has computed
    /// them; none if the prompts share no such prefix, or the sequence has computed it already.
    pub fn computes(&self, prompt: &[TokenId]) -> Option<usize> {
        let own = self.tokens[..self.prompt].iter();
        let shared = own.zip(prompt).take_while(|(own, token)| own == token);
        let most = shared.count().min(prompt.len().saturating_sub(1));
        let will_be_cached = match self.recurs {
            true => {
                let mut points = self.snapshot_points.iter().rev().map(|point| point.tokens);
                points.find(|tokens| *tokens <= most)
            }
            false => Some(most / PAGE * PAGE),
        };
        will_be_cached.filter(|tokens| *tokens > self.computed)
    }

    /// Whether the sequence is still computing its first `tokens`.
    pub fn is_within(&self, tokens: usize) -> bool {
        self.computed < tokens
    }

    /// Whether the sequence is computing a prompt that is not scored.
    pub fn is_plain_prompt(&self) -> bool {
        self.computed < self.prompt && self.prompt_logprobs.is_none()
    }

    /// Drafts the sequence's next tokens, as many as a step may have of a reply.
    pub fn draft(&mut self, drafter: Drafter, costs: &Costs) -> Proposal {
        let known = self.tokens.len();
        let left = (self.length_max - known).saturating_sub(1);
        let fits = |&drafts: &usize| self.events.has_capacity(self.events_min() + drafts);
        let most = (0..=DEPTH_MAX.min(left)).rev().find(fits).unwrap_or(0);
        self.drafts.draft(drafter, &self.tokens, most, costs)
    }

    /// Shortens the sequence's drafts to the number that `chosen` has.
    pub fn choose(&mut self, chosen: Proposal) {
        self.drafts.choose(chosen);
    }

    /// Proposal of the prediction layer, which has not been asked yet.
    pub fn mtp_proposal(&self) -> Proposal {
        self.drafts.proposal_of(Proposer::Mtp)
    }

    /// Notes that the prediction layer is not asked after the sequence's rows of this step.
    pub fn predict_nothing(&mut self) {
        self.drafts.predict_nothing();
    }

    /// The token at a position, if it is known.
    pub fn token(&self, position: usize) -> Option<TokenId> {
        self.tokens.get(position).copied()
    }

    /// Starts predictions after the last token, if the sequence is replying; returns the position
    /// before the last token, whose row the prediction layer reads.
    pub fn begin_prediction(&mut self) -> Option<usize> {
        let known = self.tokens.len();
        let replies = self.end.is_none() && known > self.prompt && known == self.computed + 1;
        replies.then(|| {
            self.drafts.begin_prediction(known);
            known - 2
        })
    }

    /// Draws the next draft from a prediction's ranked logits; false, and nothing is drafted, if
    /// the draw depends on unranked tokens.
    pub fn take_predicted_ranked(&mut self, ranked: &Ranked<'_>) -> bool {
        let position = self.predicted_position();
        let draft = match ranked.sum.is_nan() {
            true => None,
            false => self.sampler.choose_ranked(ranked, Allowed::All, position),
        };
        let draft = draft.inspect(|&token| self.drafts.add_predicted(token));
        draft.is_some()
    }

    /// Draws the next draft from a prediction's logits.
    pub fn take_predicted(&mut self, logits: &[f32], scratch: &mut Scratch) {
        let position = self.predicted_position();
        let draft = self.sampler.draft(logits, position, scratch);
        self.drafts.add_predicted(draft.unwrap_or_default());
    }

    /// Position of the token that is predicted next.
    fn predicted_position(&self) -> usize {
        self.tokens.len() + self.drafts.predicted().len()
    }

    /// Row of the last predicted token. Beyond the sequence's pages the row takes their last
    /// position: the reply has ended by then, and the prediction is not used.
    pub fn predicted_row<'a>(&'a self, kv: &'a Kv) -> SeqRows<'a> {
        let predicted = self.drafts.predicted();
        let start = self.tokens.len() + predicted.len() - 2;
        self.row_at(start, &predicted[predicted.len() - 1..], kv)
    }

    /// Number of tokens of prompt and reply so far.
    pub fn known(&self) -> usize {
        self.tokens.len()
    }

    /// Row at the last position of `depth` predictions after `rows` of the next step; not beyond
    /// the sequence's pages, which are as many as the reply may have.
    pub fn last_draft_row<'a>(&'a self, (rows, depth): (usize, usize), kv: &'a Kv) -> SeqRows<'a> {
        self.row_at(self.computed + rows - 1 + depth - 1, &[0], kv)
    }

    /// Row of one token at a position, or at the last one of the sequence's pages if less.
    fn row_at<'a>(&'a self, position: usize, token: &'a [TokenId], kv: &'a Kv) -> SeqRows<'a> {
        let pages = kv.pages(self.slot);
        let start = position.min(pages.len() * PAGE - 1);
        SeqRows {
            window: kv.window(self.slot),
            ..SeqRows::of(self.slot, start, token, pages)
        }
    }

    /// Predictions after `rows` of the next step whose positions the sequence's pages have.
    pub fn draft_capacity(&self, rows: usize, kv: &Kv) -> usize {
        kv.pages(self.slot).len() * PAGE - (self.computed + rows - 1)
    }

    /// Rule by which a device draws nearly as the request's sampler does; none if a device cannot.
    pub fn draw(&self) -> Option<Draw> {
        let constrained = self.guide.is_some();
        let draw = self.sampler.draw(self.tokens.len());
        draw.filter(|_| !constrained)
    }

    /// Takes the drafts that a device made, if the device drew the tokens after the first `known`
    /// as the sampler did.
    pub fn take_drafted(&mut self, known: usize, drafted: &Drafted, depth: usize) {
        let right = self.tokens.len() == known + drafted.accepted + 1
            && self.tokens.last() == Some(&drafted.token);
        if right && self.begin_prediction().is_some() {
            let drafts = &drafted.drafts[..depth];
            for &draft in drafts {
                self.drafts.add_predicted(draft);
            }
        }
    }

    /// Takes the windowed pages of the sequence's next `count` rows.
    pub fn cover(&self, count: usize, kv: &mut Kv) {
        kv.cover(self.slot, self.computed, self.computed + count);
    }

    /// Gives back the windowed pages that the sequence's next rows do not see.
    pub fn leave(&self, kv: &mut Kv) {
        kv.leave(self.slot, self.computed);
    }

    /// Takes the states that the sequence's drafts need.
    pub fn lend_drafts(&mut self, kv: &mut Kv) {
        self.drafts.lend(kv);
    }

    /// Accepts draft `index` if it equals the last sampled token: then the draft's row counts as
    /// computed.
    pub fn accepts_draft(&mut self, index: usize) -> bool {
        let last = self.tokens[self.tokens.len() - 1];
        let accepts = self.end.is_none() && self.drafts.is(index, last);
        self.computed += usize::from(accepts);
        accepts
    }

    /// Continues after the last of the `accepted` drafts, and scores the drafts of each proposer.
    pub fn settle_drafts(&mut self, accepted: usize, kv: &mut Kv) -> Scores {
        let scores = self.drafts.score(&self.tokens);
        self.from = self.drafts.settle(accepted, kv).unwrap_or(self.slot);
        scores
    }

    /// Numbers of the sequence's states without that of its slot: for a snapshot, and for drafts.
    pub fn lent(&self) -> (usize, usize) {
        (usize::from(self.lent.is_some()), self.drafts.states_kept())
    }

    /// Caches the computed part of the prompt: up to a snapshot, or up to the last whole page if
    /// the model has no states. Returns whether that was all.
    pub fn cache(&mut self, kv: &mut Kv) -> bool {
        if self.prompt_cached || self.restoring {
            return false;
        }
        self.prompt_cached = self.tokens.len() > self.prompt;
        let computed = self.computed.min(self.prompt);
        let whole = computed / PAGE * PAGE;
        let came = self.lent.take_if(|(point, _)| point.tokens <= computed);
        let most = match (came, self.recurs) {
            (Some((point, _)), _) => point.tokens,
            (None, false) => whole,
            // Without a state the blocks are cached all the same: so the tree learns that prompts
            // want them.
            (None, true) if self.prompt_cached => prefix::last_snapshot_point(self.prompt),
            (None, true) => return false,
        };
        let state: Option<(SnapshotKind, Slot)> = came.map(|(point, state)| (point.kind, state));
        if most > kv.tokens_cached(self.slot) || state.is_some() {
            kv.cache(self.slot, &self.tokens[..most], state);
        }
        self.prompt_cached
    }

    /// Tokens of the prompt.
    pub fn prompt(&self) -> &[TokenId] {
        &self.tokens[..self.prompt]
    }

    /// Gives back all memory of the sequence.
    pub fn release(&mut self, kv: &mut Kv) {
        if let Some((_, state)) = self.lent.take() {
            kv.give_back(self.slot, state);
        }
        self.drafts.release(kv);
        let broke = self.end == Some(End::Failed) && self.tokens.len() == self.prompt;
        kv.release(self.slot, !broke);
    }

    /// States that the sequence's next rows read and write.
    fn states(&self) -> States {
        States {
            from: self.from,
            to: self.slot,
            snapshot: self.lent.map(|(point, slot)| Snapshot {
                rows: point.tokens - self.computed,
                slot,
            }),
        }
    }

    fn events_min(&self) -> usize {
        events_min(self.prompt_logprobs.is_some())
    }

    /// Whether the sequence's next events exceed the capacity of its channel.
    pub fn waits_for_reader(&self) -> bool {
        !self.events.has_capacity(self.events_min())
    }

    /// Completes when the sequence's reader has freed enough capacity, or is gone.
    pub async fn caught_up(&self) {
        self.events.wait_for_capacity(self.events_min()).await;
    }

    pub fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }

    /// Whether the row before `end` is that of the last known token, and so gives the next token.
    fn reaches_the_end(&self, end: usize) -> bool {
        end == self.tokens.len() && end < self.length_max
    }

    /// Number of the next `count` rows whose logits score the token after them: rows of a scored
    /// prompt, without the last one.
    pub fn scored(&self, count: usize) -> usize {
        let last = self.prompt - 1;
        match self.prompt_logprobs {
            Some(_) => last.saturating_sub(self.computed).min(count),
            None => 0,
        }
    }

    /// Scores the token after row `index` of this step by the row's logits.
    pub fn score(&mut self, index: usize, logits: &[f32]) {
        let Some(count) = self.prompt_logprobs.filter(|_| self.end.is_none()) else {
            return;
        };
        if !ranking::all_finite(logits) {
            // Earlier scores are sent first, so that events do not depend on how a prompt is cut.
            self.send_scores();
            self.fail(NOT_FINITE);
            return;
        }
        let token = self.tokens[self.computed + index + 1];
        self.scores.push(sampler::score(logits, token, count));
    }

    /// The sequence's next `count` rows.
    pub fn rows<'a>(&'a self, count: usize, kv: &'a Kv) -> SeqRows<'a> {
        let end = self.computed + count;
        let pages = kv.pages(self.slot);
        let (drafts, draft_states) = self.drafts.rows();
        let (tokens, logits) = match drafts.is_empty() {
            true => {
                let logits = usize::from(self.reaches_the_end(end));
                (&self.tokens[self.computed..end], logits)
            }
            false => (drafts, count),
        };
        let known = count > 0 && count == tokens.len();
        assert!(known, "rows beyond the known tokens and drafts");
        assert!(end <= pages.len() * PAGE, "rows beyond the reserved pages");
        SeqRows {
            states: self.states(),
            start: self.computed,
            tokens,
            pages,
            window: kv.window(self.slot),
            draft_states,
            logits,
        }
    }

    fn send_scores(&mut self) {
        if !self.scores.is_empty() {
            let scores = std::mem::take(&mut self.scores);
            self.send(Event::Prompt(scores.into()));
        }
    }

    /// Notes that `count` rows have run. Sends the scores of this step, and the end if no reply is
    /// wanted. Returns how many of the rows were of the prompt, and whether the last one's logits
    /// give a token.
    pub fn advance(&mut self, count: usize) -> (usize, bool) {
        let from_prompt = self.prompt.saturating_sub(self.computed).min(count);
        self.computed += count;
        self.from = self.slot;
        self.send_scores();
        if self.computed == self.length_max && self.end.is_none() {
            self.finish(FinishReason::Length);
        }
        (from_prompt, self.reaches_the_end(self.computed))
    }

    /// Samples the next token from `logits` and sends it, and the end if it is the last. If the
    /// mask is missing at the deadline, the logits wait for it. Returns whether a token came.
    pub fn accept(
        &mut self,
        logits: &[f32],
        scratch: &mut Scratch,
        threads: &MaskThreads,
        deadline: Instant,
    ) -> bool {
        if self.end.is_some() {
            return false;
        }
        let guide = self.guide.as_mut();
        if guide.is_some_and(|guide| !guide.is_ready(deadline)) {
            self.pending_logits = Some(logits.to_vec());
            return false;
        }
        let accepted = self.try_accept(logits, scratch, threads);
        self.settle(accepted)
    }

    /// [`Sequence::accept`] by a device's ranking; `None`, and nothing has changed, if the ranking
    /// does not suffice.
    pub fn accept_ranked(
        &mut self,
        ranked: &Ranked<'_>,
        threads: &MaskThreads,
        deadline: Instant,
    ) -> Option<bool> {
        if self.end.is_some() {
            return Some(false);
        }
        if ranked.sum.is_nan() {
            return None;
        }
        let guide = self.guide.as_mut();
        if guide.is_some_and(|guide| !guide.is_ready(deadline)) {
            return None;
        }
        let guide = self.guide.as_mut();
        let allowed = match guide.map(|guide| guide.allowed(&self.stop_tokens)) {
            None => Allowed::All,
            Some(Ok(allowed)) => allowed,
            Some(Err(text)) => return Some(self.settle(Err(refused(text)))),
        };
        let position = self.tokens.len();
        let id = self.sampler.choose_ranked(ranked, allowed, position)?;
        let logprobs = match self.logprobs {
            Some(_) if !matches!(allowed, Allowed::All) => return None,
            Some(count) => Some(sampler::logprobs_ranked(ranked, id, count)?),
            None => None,
        };
        self.sampler.take(id);
        let pushed = self.push(id, logprobs, threads);
        Some(self.settle(pushed))
    }

    /// Ends the sequence if no token could be taken; returns whether one was.
    fn settle(&mut self, taken: Result<(), Event>) -> bool {
        match taken {
            Ok(()) => true,
            Err(event) => {
                self.break_off(event);
                false
            }
        }
    }

    /// Samples from the logits that wait for their mask, if it has come by the deadline; returns
    /// whether a token was sampled.
    pub fn resume(
        &mut self,
        scratch: &mut Scratch,
        threads: &MaskThreads,
        deadline: Instant,
    ) -> bool {
        let ready = |guide: &mut Guide| guide.is_ready(deadline);
        if self.pending_logits.is_none() || !self.guide.as_mut().is_none_or(ready) {
            return false;
        }
        let logits = self.pending_logits.take().unwrap_or_default();
        self.accept(&logits, scratch, threads, deadline)
    }

    /// Whether logits wait for their mask.
    pub fn waits_for_mask(&self) -> bool {
        self.pending_logits.is_some()
    }

    /// # Errors
    /// The event that ends the sequence instead of the next token.
    fn try_accept(
        &mut self,
        logits: &[f32],
        scratch: &mut Scratch,
        threads: &MaskThreads,
    ) -> Result<(), Event> {
        if !ranking::all_finite(logits) {
            return Err(Event::Failed(NOT_FINITE.into()));
        }
        let allowed = match &mut self.guide {
            Some(guide) => guide.allowed(&self.stop_tokens).map_err(refused)?,
            None => Allowed::All,
        };
        let mut restricted = std::mem::take(&mut scratch.restricted);
        let logits = sampler::restrict(logits, allowed, &mut restricted);
        let id = self.sampler.next(logits, self.tokens.len(), scratch);
        let id = id.ok_or_else(|| Event::Refused(NOTHING_LEFT.into()))?;
        let count = self.logprobs;
        let logprobs = count.map(|count| sampler::logprobs(logits, id, count));
        scratch.restricted = restricted;
        self.push(id, logprobs, threads)
    }

    /// Sends the next token, and the end if it is the last.
    ///
    /// # Errors
    /// The event that ends the sequence instead.
    fn push(
        &mut self,
        id: TokenId,
        logprobs: Option<TokenLogprobs>,
        threads: &MaskThreads,
    ) -> Result<(), Event> {
        self.tokens.push(id);
        let reason = self.finish_reason(id, threads).map_err(refused)?;
        let logprobs = logprobs.map(Box::new);
        self.send(Event::Token { id, logprobs });
        if let Some(reason) = reason {
            self.finish(reason);
        }
        Ok(())
    }

    fn finish(&mut self, reason: FinishReason) {
        self.send(Event::Done(reason));
        self.end.get_or_insert(End::Finished(reason));
    }

    /// Whether `id`, the last token so far, ends the reply.
    fn finish_reason(
        &mut self,
        id: TokenId,
        threads: &MaskThreads,
    ) -> Result<Option<FinishReason>, String> {
        if self.stop_tokens.contains(&id) {
            return Ok(Some(FinishReason::Stop));
        }
        if let Some(guide) = &mut self.guide
            && guide.advance(id, threads)?
        {
            return Ok(Some(FinishReason::Stop));
        }
        let full = self.tokens.len() == self.length_max;
        Ok(full.then_some(FinishReason::Length))
    }

    /// Ends the sequence with a text that the client may see.
    pub fn fail(&mut self, text: &str) -> End {
        self.break_off(Event::Failed(text.into()))
    }

    fn break_off(&mut self, event: Event) -> End {
        self.send(event);
        *self.end.get_or_insert(End::Failed)
    }

    /// A sequence runs only with capacity for its events: a refusal means that the reader is gone.
    fn send(&mut self, event: Event) {
        if !self.events.send(event) {
            self.end = Some(End::Cancelled);
        }
    }
}

fn refused(text: String) -> Event {
    Event::Refused(text.into())
}
