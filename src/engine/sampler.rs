//! Sampler: the next token as a function of a row of logits, the request and the position.
//!
//! Order: mask of the constraint; logit bias, repetition, frequency and presence penalty, DRY, and
//! tokens that the request forbids; then, unless greedy, top-n-sigma, temperature (which adaptive
//! sampling changes), top-k, typical-p and top-p (each over the tokens that the one before left),
//! min-p (relative to the most likely token), XTC, and one draw, the most likely token first. So
//! the most likely tokens, which a device ranks, mostly suffice. Log-probabilities are of the
//! masked row, before anything else.

use std::array;
use std::cmp::Ordering;
use std::collections::HashMap;

use super::adaptive::Adaptive;
use super::constraint::Allowed;
use super::dry::Repetitions;
use super::forbidden::Forbidden;
use super::request::{Sampling, Scored, TokenLogprobs};
use super::rng;
use super::thinking::Countdown;
use step::executor::{Draw, Ranked, TokenId, UNIFORMS};
use step::ranking::{all_finite, argmax, maximum, most_likely, weight_at, weight_of};

/// Number of a row's candidates that are ranked first.
const RANKED_FIRST: usize = 64;
/// Factor by which the number of ranked candidates grows if too few are ranked.
const RANKED_GROWTH: usize = 8;
/// Distance below the largest logit, in temperatures, of the tokens that a draw collects first.
const NEAR: f32 = 12.0;
/// Largest relative error of a device's sum over a row, which is F32.
const SUM_ERROR: f64 = 1e-4;

/// Buffers that rows use one after the other; no row depends on an earlier one.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Row of logits after the constraint's mask.
    pub restricted: Vec<f32>,
    adjusted: Vec<f32>,
    candidates: Vec<Candidate>,
}

impl Scratch {
    /// Buffers for rows of `vocab` logits.
    pub fn new(vocab: usize) -> Self {
        Scratch {
            restricted: Vec::new(),
            adjusted: Vec::with_capacity(vocab),
            candidates: Vec::with_capacity(vocab),
        }
    }
}

/// Token that may be drawn; `weight` is its probability times a factor that all candidates share.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: TokenId,
    logit: f32,
    weight: f64,
}

impl Candidate {
    fn unweighed((id, logit): (TokenId, f32)) -> Candidate {
        Candidate {
            id,
            logit,
            weight: 0.0,
        }
    }
}

/// The sampling rule of one sequence, and the counts and copies that its penalties need.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    /// Count of each token in prompt and reply; empty when no penalty needs counts.
    seen: HashMap<TokenId, u32>,
    repetitions: Option<Repetitions>,
    forbidden: Forbidden,
    adaptive: Option<Adaptive>,
    thinking: Option<Countdown>,
}

impl Sampler {
    /// Sampler; `stops` end the reply; `capacity` bounds the tokens of prompt and reply together.
    pub fn new(sampling: Sampling, prompt: &[TokenId], stops: &[TokenId], capacity: usize) -> Self {
        let mut seen = HashMap::new();
        if penalises(&sampling) {
            seen.reserve(capacity);
            seen.extend(prompt.iter().map(|&id| (id, 0)));
        }
        let thinking = sampling.thinking_budget.clone().map(Countdown::new);
        let adaptive = sampling.adaptive.filter(|_| sampling.temperature > 0.0);
        let adaptive = adaptive.map(|parts| Adaptive::new(parts, prompt));
        Sampler {
            repetitions: Repetitions::new(&sampling.dry, prompt),
            forbidden: Forbidden::new(&sampling, stops),
            sampling,
            seen,
            adaptive,
            thinking,
        }
    }

    /// Chooses the token for `position`, counted from the start of the sequence, and remembers it;
    /// a token that a used-up thinking budget forces comes before all rules.
    ///
    /// `logits` has one number per token of the vocabulary: finite, or minus infinity for a masked
    /// token, but not for all. `None`, and nothing is remembered, if the request forbids all
    /// tokens.
    pub fn next(
        &mut self,
        logits: &[f32],
        position: usize,
        scratch: &mut Scratch,
    ) -> Option<TokenId> {
        if let Some(adaptive) = &mut self.adaptive {
            adaptive.observe(logits);
        }
        let forced = self.forced();
        let chosen = forced.or_else(|| self.choose(logits, position, scratch))?;
        self.take(chosen);
        Some(chosen)
    }

    /// Choice of [`Sampler::next`] by the ranking of a row, among the `allowed` tokens; `None` if
    /// the choice depends on tokens that are not ranked. Remembers nothing.
    ///
    /// The weight of unranked tokens is between two bounds, both of which must lead to the token.
    pub fn choose_ranked(
        &self,
        ranked: &Ranked<'_>,
        allowed: Allowed<'_>,
        position: usize,
    ) -> Option<TokenId> {
        if let Some(forced) = self.forced() {
            return Some(forced);
        }
        let (rule, (mut candidates, sunk)) = (&self.sampling, self.adjusted_top(ranked, allowed)?);
        if rule.temperature == 0.0 {
            return candidates.first().map(|most_likely| most_likely.id);
        }
        if narrows_by_all(rule) || self.adaptive.is_some() {
            return None;
        }
        let max = candidates.first()?.logit;
        let top_k = rule.top_k as usize;
        let all = (1..=candidates.len()).contains(&top_k);
        if all {
            candidates.truncate(top_k);
        }
        weigh(&mut candidates, max, rule.temperature);
        let rest = match all {
            true => [0.0; 2],
            false => self.rest(ranked, sunk, max)?,
        };
        let (known, uniforms) = (weight(&candidates), self.uniforms(position));
        let [least, most] = rest.map(|rest| pick(&candidates, all, known + rest, rule, &uniforms));
        least.filter(|_| least == most)
    }

    /// Most likely tokens after bias, penalties and forbidden tokens, in order, as far as the
    /// ranking of the unchanged row proves them; and, if logits change, the ranked tokens that fell
    /// to the least ranked logit or below.
    fn adjusted_top(
        &self,
        ranked: &Ranked<'_>,
        allowed: Allowed<'_>,
    ) -> Option<(Vec<Candidate>, Option<Vec<Candidate>>)> {
        let mut candidates: Vec<_> = ranked.top().map(Candidate::unweighed).collect();
        if !self.adjusts() && matches!(allowed, Allowed::All) {
            return Some((candidates, None));
        }
        if !lowers(&self.sampling) {
            return None;
        }
        // No unranked token is above the least ranked logit, neither before the changes nor after.
        let least = candidates.last()?.logit;
        for candidate in &mut candidates {
            candidate.logit = match allowed.has(candidate.id) {
                true => self.adjusted(candidate.id, candidate.logit),
                false => f32::NEG_INFINITY,
            };
        }
        let is_proved = |candidate: &Candidate| candidate.logit > least;
        let (mut proved, sunk): (Vec<_>, Vec<_>) = candidates.into_iter().partition(is_proved);
        let count = proved.len();
        rank(&mut proved, count);
        Some((proved, Some(sunk)))
    }

    /// Bounds of the weight of all tokens after the proved ones, of which `sunk` are known; `sunk`
    /// is none if no logit is changed. Weights are relative to a logit of `max`. No bounds if the
    /// temperature flattens the row.
    ///
    /// A logit `l <= least` weighs `exp((l - max) / T)`, which for `T <= 1` is at most `exp(l -
    /// first) * exp((least - first) * (1 / T - 1) + (first - max) / T)`; the sum of the first
    /// factors is the device's sum without the ranked tokens.
    fn rest(
        &self,
        ranked: &Ranked<'_>,
        sunk: Option<Vec<Candidate>>,
        max: f32,
    ) -> Option<[f64; 2]> {
        let temperature = self.sampling.temperature;
        if temperature > 1.0 {
            return None;
        }
        let logits = || ranked.top().map(|(_, logit)| f64::from(logit));
        let (first, least) = (logits().next()?, logits().last()?);
        let top: f64 = logits().map(|logit| (logit - first).exp()).sum();
        let unranked = |error: f64| (f64::from(ranked.sum) * (1.0 + error) - top).max(0.0);
        let colder = 1.0 / f64::from(temperature);
        let scale = (least - first) * (colder - 1.0) + (first - f64::from(max)) * colder;
        let most = unranked(SUM_ERROR) * scale.exp();
        Some(match sunk {
            None if colder == 1.0 && self.sampling.top_k == 0 => [unranked(-SUM_ERROR), most],
            None => [0.0, most],
            Some(mut sunk) => {
                weigh(&mut sunk, max, temperature);
                [0.0, weight(&sunk) + most]
            }
        })
    }

    /// Draft from a prediction's row: the token that [`Sampler::next`] would choose, if no other
    /// token came before. The row may be of the lower ids alone. None if the row is not finite, or
    /// if the request forbids all its tokens.
    pub fn draft(&self, logits: &[f32], position: usize, scratch: &mut Scratch) -> Option<TokenId> {
        if !all_finite(logits) {
            return None;
        }
        let forced = self.forced();
        let any = || (0..logits.len()).any(|id| !self.forbidden.has(id as TokenId));
        if forced.is_none() && self.forbidden.any() && !any() {
            return None;
        }
        forced.or_else(|| self.choose(logits, position, scratch))
    }

    /// Rule by which a device draws nearly as this sampler does from `position` on; none if the
    /// choice depends on more than the most likely tokens.
    pub fn draw(&self, position: usize) -> Option<Draw> {
        let rule = &self.sampling;
        let by_all = narrows_by_all(rule) || self.adaptive.is_some();
        let more = self.adjusts() || by_all || self.forced().is_some();
        (!more).then(|| Draw {
            temperature: rule.temperature,
            top_k: rule.top_k,
            top_p: rule.top_p,
            min_p: rule.min_p,
            position,
            uniforms: match rule.temperature {
                0.0 => [0.0; UNIFORMS],
                _ => array::from_fn(|after| self.uniforms(position + after)[0] as f32),
            },
        })
    }

    /// Remembers the token that was chosen.
    pub fn take(&mut self, chosen: TokenId) {
        if let Some(thinking) = &mut self.thinking {
            thinking.advance(chosen);
        }
        if let Some(adaptive) = &mut self.adaptive {
            adaptive.take(chosen);
        }
        if let Some(repetitions) = &mut self.repetitions {
            repetitions.advance(chosen);
        }
        self.forbidden.advance(chosen);
        if penalises(&self.sampling) {
            *self.seen.entry(chosen).or_default() += 1;
        }
    }

    fn forced(&self) -> Option<TokenId> {
        self.thinking.as_ref().and_then(Countdown::forced)
    }

    /// Random numbers of a position: one for the draw, and one for XTC.
    fn uniforms(&self, position: usize) -> [f64; 2] {
        [0, 1].map(|index| rng::uniform_of(self.sampling.seed, position as u64, index))
    }

    fn choose(&self, logits: &[f32], position: usize, scratch: &mut Scratch) -> Option<TokenId> {
        let adaptive = self.adaptive.as_ref();
        let certain = adaptive.is_some_and(|adaptive| adaptive.is_certain(logits));
        let logits = self.adjust(logits, &mut scratch.adjusted);
        if self.forbidden.any() && maximum(logits) == f32::NEG_INFINITY {
            return None;
        }
        let (rule, uniforms) = (&self.sampling, self.uniforms(position));
        if rule.temperature == 0.0 || certain {
            return Some(argmax(logits));
        }
        let base = rule.temperature;
        let temperature = adaptive.map_or(base, |adaptive| adaptive.temperature(base));
        let rule = (rule, temperature);
        Some(draw(logits, rule, &uniforms, &mut scratch.candidates))
    }

    /// Whether bias, penalties or forbidden tokens change rows.
    fn adjusts(&self) -> bool {
        !self.seen.is_empty()
            || !self.sampling.logit_bias.is_empty()
            || self.repetitions.is_some()
            || self.forbidden.any()
    }

    /// Applies bias, penalties and forbidden tokens; returns the row itself if there are none.
    fn adjust<'a>(&self, logits: &'a [f32], adjusted: &'a mut Vec<f32>) -> &'a [f32] {
        if !self.adjusts() {
            return logits;
        }
        adjusted.clear();
        adjusted.extend_from_slice(logits);
        for &(id, bias) in &self.sampling.logit_bias {
            if let Some(logit) = adjusted.get_mut(id as usize) {
                *logit += bias;
            }
        }
        for (&id, &in_reply) in &self.seen {
            if let Some(logit) = adjusted.get_mut(id as usize) {
                *logit = self.penalised(*logit, in_reply);
            }
        }
        for (id, penalty) in self.repetitions.iter().flat_map(Repetitions::penalties) {
            if let Some(logit) = adjusted.get_mut(id as usize) {
                *logit -= penalty;
            }
        }
        self.forbidden.take_out(adjusted);
        adjusted
    }

    /// Logit of one token after the changes of [`Sampler::adjust`].
    fn adjusted(&self, id: TokenId, logit: f32) -> f32 {
        let bias = self.sampling.logit_bias.iter();
        let biased = bias.filter(|&&(biased, _)| biased == id);
        let logit = biased.fold(logit, |logit, &(_, bias)| logit + bias);
        let logit = match self.seen.get(&id) {
            Some(&in_reply) => self.penalised(logit, in_reply),
            None => logit,
        };
        let repeated = self.repetitions.as_ref();
        match self.forbidden.has(id) {
            true => f32::NEG_INFINITY,
            false => logit - repeated.map_or(0.0, |repeated| repeated.penalty(id)),
        }
    }

    fn penalised(&self, logit: f32, in_reply: u32) -> f32 {
        // A forbidden token stays forbidden: no penalty may lift its logit to a finite value.
        if logit == f32::NEG_INFINITY {
            return logit;
        }
        // An extreme repetition penalty overflows; infinity minus infinity would be NaN.
        self.penalise(logit, in_reply).clamp(f32::MIN, f32::MAX)
    }

    fn penalise(&self, logit: f32, in_reply: u32) -> f32 {
        let rule = &self.sampling;
        let repeated = match logit > 0.0 {
            true => logit / rule.repetition_penalty,
            false => logit * rule.repetition_penalty,
        };
        if in_reply == 0 {
            return repeated;
        }
        repeated - rule.frequency_penalty * in_reply as f32 - rule.presence_penalty
    }
}

/// Masks a row: logits of tokens that are not allowed become minus infinity. Returns the row itself
/// if all are allowed.
pub fn restrict<'a>(
    logits: &'a [f32],
    allowed: Allowed<'_>,
    restricted: &'a mut Vec<f32>,
) -> &'a [f32] {
    restricted.clear();
    match allowed {
        Allowed::All => return logits,
        Allowed::Except(ids) => {
            restricted.extend_from_slice(logits);
            for &id in ids {
                if let Some(logit) = restricted.get_mut(id as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        Allowed::Only(mask) => {
            restricted.resize(logits.len(), f32::NEG_INFINITY);
            for id in mask.ids().take_while(|&id| (id as usize) < logits.len()) {
                restricted[id as usize] = logits[id as usize];
            }
        }
    }
    restricted
}

/// Log-probabilities of `chosen` and of the `count` most likely tokens of a row as `next` takes it.
///
/// Sums are in double precision over ascending ids, so they depend on nothing but the row.
pub fn logprobs(logits: &[f32], chosen: TokenId, count: usize) -> TokenLogprobs {
    let max = f64::from(maximum(logits));
    let weight = weight_of(logits, max);
    let mut top = most_likely(logits, count);
    for (_, value) in &mut top {
        *value = logprob(*value, max, weight);
    }
    let logprob = logprob(logits[chosen as usize], max, weight);
    TokenLogprobs { logprob, top }
}

/// Like [`logprobs`], by a row's ranking; `None` if the ranking lacks a token that is needed.
pub fn logprobs_ranked(
    ranked: &Ranked<'_>,
    chosen: TokenId,
    count: usize,
) -> Option<TokenLogprobs> {
    let (_, max) = ranked.top().next()?;
    let (max, sum) = (f64::from(max), f64::from(ranked.sum));
    let ranked = ranked.top();
    let ranked = ranked.map(|(id, logit)| (id, logprob(logit, max, sum)));
    let (_, chosen) = ranked.clone().find(|&(id, _)| id == chosen)?;
    let top: Vec<_> = ranked.take(count).collect();
    (top.len() == count).then_some(TokenLogprobs {
        logprob: chosen,
        top,
    })
}

/// Scores `token` of a prompt by the finite logits before it; `count` as in [`logprobs`].
pub fn score(logits: &[f32], token: TokenId, count: usize) -> Scored {
    let own = logits[token as usize];
    let above = logits.iter().filter(|&&logit| logit > own).count();
    Scored {
        logprobs: logprobs(logits, token, count),
        rank: above as u32 + 1,
    }
}

/// Log-probability of a logit in a row with the largest logit `max` and the total `weight`.
fn logprob(logit: f32, max: f64, weight: f64) -> f32 {
    ((f64::from(logit) - max) - weight.ln()) as f32
}

fn penalises(sampling: &Sampling) -> bool {
    sampling.presence_penalty != 0.0
        || sampling.frequency_penalty != 0.0
        || sampling.repetition_penalty != 1.0
}

/// Whether a rule needs more of a row than its most likely tokens.
fn narrows_by_all(sampling: &Sampling) -> bool {
    sampling.top_n_sigma > 0.0 || sampling.typical_p < 1.0 || sampling.xtc.probability > 0.0
}

/// Whether bias and penalties raise no logit.
fn lowers(sampling: &Sampling) -> bool {
    sampling.presence_penalty >= 0.0
        && sampling.frequency_penalty >= 0.0
        && sampling.repetition_penalty >= 1.0
        && sampling.logit_bias.iter().all(|&(_, bias)| bias <= 0.0)
}

/// Draws a token of a row, ranking only as many of the most likely tokens as the draw needs.
fn draw(
    logits: &[f32],
    (rule, temperature): (&Sampling, f32),
    uniforms: &[f64; 2],
    candidates: &mut Vec<Candidate>,
) -> TokenId {
    let max = maximum(logits);
    let least = match rule.top_n_sigma > 0.0 {
        true => within_sigmas(logits, rule.top_n_sigma),
        false => f32::NEG_INFINITY,
    };
    let near = (max - NEAR * temperature).max(least);
    let total = || weight_at(logits, max, least, temperature);
    if rule.typical_p >= 1.0 && near > least {
        collect(candidates, logits, near);
        let drawn = draw_of(candidates, (rule, temperature), false, max, total, uniforms);
        if let Some(id) = drawn {
            return id;
        }
    }
    collect(candidates, logits, least);
    draw_of(candidates, (rule, temperature), true, max, total, uniforms)
        .expect("nothing else is left")
}

/// Draws one of `candidates`: the most likely tokens of a row or, with `all`, all tokens that may
/// be drawn; `total` is the weight of all tokens that may be drawn. `None` if the draw depends on
/// other tokens.
fn draw_of(
    candidates: &mut Vec<Candidate>,
    (rule, temperature): (&Sampling, f32),
    mut all: bool,
    max: f32,
    total: impl FnOnce() -> f64,
    uniforms: &[f64; 2],
) -> Option<TokenId> {
    let top_k = rule.top_k as usize;
    let narrowed = top_k > 0 && top_k <= candidates.len();
    if narrowed {
        rank(candidates, top_k);
        candidates.truncate(top_k);
        all = true;
    } else if top_k > 0 && !all {
        return None;
    }
    weigh(candidates, max, temperature);
    if rule.typical_p < 1.0 {
        keep_typical(candidates, rule.typical_p);
    }
    let total = match narrowed || rule.typical_p < 1.0 {
        true => weight(candidates),
        false => total(),
    };
    if rule.top_p < 1.0 {
        // All candidates below `least` together weigh less than top-p may leave out.
        let least = (1.0 - f64::from(rule.top_p)) * total / candidates.len() as f64;
        candidates.retain(|candidate| candidate.weight >= least);
    }
    let mut count = RANKED_FIRST;
    while count < candidates.len() {
        rank(candidates, count);
        if let Some(id) = pick(&candidates[..count], false, total, rule, uniforms) {
            return Some(id);
        }
        count *= RANKED_GROWTH;
    }
    let count = candidates.len();
    rank(candidates, count);
    pick(candidates, all, total, rule, uniforms)
}

/// Fills the candidates with all tokens whose logit is at least `least`.
fn collect(candidates: &mut Vec<Candidate>, logits: &[f32], least: f32) {
    let likely = (0..).zip(logits.iter().copied());
    let likely = likely.filter(|&(_, logit)| logit >= least);
    candidates.clear();
    candidates.extend(likely.map(Candidate::unweighed));
}

/// Brings the `count` most likely candidates to the front, in order.
fn rank(candidates: &mut [Candidate], count: usize) {
    let order = |a: &Candidate, b: &Candidate| -> Ordering {
        let order = b.logit.partial_cmp(&a.logit);
        order.expect("logits are finite").then(a.id.cmp(&b.id))
    };
    if count < candidates.len() {
        candidates.select_nth_unstable_by(count - 1, order);
    }
    candidates[..count].sort_unstable_by(order);
}

fn weigh(candidates: &mut [Candidate], max: f32, temperature: f32) {
    let (max, temperature) = (f64::from(max), f64::from(temperature));
    for candidate in candidates {
        candidate.weight = ((f64::from(candidate.logit) - max) / temperature).exp();
    }
}

/// The least logit that is at most so many standard deviations of the finite logits of a row below
/// the largest.
fn within_sigmas(logits: &[f32], sigmas: f32) -> f32 {
    let finite = || logits.iter().filter(|logit| logit.is_finite());
    let wide = || finite().map(|&logit| f64::from(logit));
    let count = finite().count() as f64;
    let mean = wide().sum::<f64>() / count;
    let variance = wide().map(|logit| (logit - mean).powi(2)).sum::<f64>() / count;
    (f64::from(maximum(logits)) - f64::from(sigmas) * variance.sqrt()) as f32
}

/// Keeps the candidates whose surprise is nearest to the expected one, until their share of all
/// weight reaches `share`.
fn keep_typical(candidates: &mut Vec<Candidate>, share: f32) {
    let total = weight(candidates);
    candidates.retain(|candidate| candidate.weight > 0.0);
    let surprise = |candidate: &Candidate| -(candidate.weight / total).ln();
    let expected = candidates.iter();
    let expected = expected.map(|one| one.weight / total * surprise(one));
    let expected: f64 = expected.sum();
    let far = |candidate: &Candidate| (surprise(candidate) - expected).abs();
    candidates.sort_unstable_by(|a, b| far(a).total_cmp(&far(b)).then(a.id.cmp(&b.id)));
    if let Some(last) = reaching(candidates, f64::from(share) * total) {
        candidates.truncate(last + 1);
    }
}

/// Applies top-p, min-p and XTC, and draws: the token in whose part of the remaining weight the
/// first of `uniforms`, in [0, 1), falls. The second of `uniforms` decides whether XTC excludes.
///
/// `candidates` are in order, the most likely first; with `all` no other tokens can be drawn.
/// `total` is the weight of all tokens that top-k left. `None` if the draw depends on other tokens.
fn pick(
    mut candidates: &[Candidate],
    mut all: bool,
    mut total: f64,
    rule: &Sampling,
    uniforms: &[f64; 2],
) -> Option<TokenId> {
    if rule.top_p < 1.0 {
        match reaching(candidates, f64::from(rule.top_p) * total) {
            Some(last) => candidates = &candidates[..=last],
            None if all => {}
            None => return None,
        }
        (all, total) = (true, weight(candidates));
    }
    let most_likely = candidates.first().map_or(0.0, |one| one.weight);
    let least = f64::from(rule.min_p) * most_likely;
    let likely = candidates.partition_point(|one| one.weight >= least);
    if likely < candidates.len() {
        candidates = &candidates[..likely];
        (all, total) = (true, weight(candidates));
    } else if rule.min_p > 0.0 && !all {
        return None;
    }
    if uniforms[1] < f64::from(rule.xtc.probability) {
        if !all {
            return None;
        }
        let least = f64::from(rule.xtc.threshold) * total;
        let above = candidates.partition_point(|one| one.weight >= least);
        candidates = &candidates[above.saturating_sub(1)..];
        total = weight(candidates);
    }
    let mark = uniforms[0] * total;
    let mut sum = 0.0;
    let drawn = candidates.iter().find(|candidate| {
        sum += candidate.weight;
        sum > mark
    });
    // Rounding may put the drawn number above the sum of all weights: the last token is drawn then.
    let last = || candidates.iter().rfind(|candidate| candidate.weight > 0.0);
    let drawn = if all { drawn.or_else(last) } else { drawn };
    drawn.map(|candidate| candidate.id)
}

/// Index of the candidate at which the running sum of weights reaches `mass`.
fn reaching(candidates: &[Candidate], mass: f64) -> Option<usize> {
    let mut sum = 0.0;
    candidates.iter().position(|candidate| {
        sum += candidate.weight;
        sum >= mass
    })
}

fn weight(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| candidate.weight).sum()
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
