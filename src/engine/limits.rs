//! Limits of sequences, requests and memory of the engine.

use std::time::Duration;

use super::request::{MAX_TOP_LOGPROBS, Request, Sampling};
use super::speculate::Speculate;
use super::tier::disk;
use step::{Facts, PAGE, Window};

/// Bounds of one engine. An executor may have fewer pages than the target states, and the scripted
/// executor of tests has any context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest number of sequences of a step.
    pub sequences: usize,
    /// Number of snapshots for later prompts; 0 if the model has neither states nor a window.
    pub snapshots: usize,
    /// Pages of the windowed group, if the model has one.
    pub window: Option<Window>,
    /// Largest number of draft tokens of one step, each with a state if the model has states.
    pub drafts: usize,
    /// Number of drafts that a sequence gets in a step.
    pub speculate: Speculate,
    /// Accepted requests of one connection that may wait for admission (`fair_queue::Waiting`).
    pub queued: usize,
    /// Number of KV pages, each of `PAGE` tokens.
    pub pages: usize,
    /// Bytes of host memory for prompt prefixes beyond the device's memory; 0 for none.
    pub host_bytes: usize,
    /// Largest number of tokens of a sequence, prompt and reply together.
    pub context: usize,
    /// Largest number of prompt tokens of one step, a multiple of `PAGE`.
    pub prefill_tokens: usize,
    /// Tokens of a long prompt between two snapshots.
    pub spacing: usize,
    /// Time between two tokens of a reply that a step with prompt chunks is to stay within.
    pub reply_gap: Duration,
}

/// Bounds of one engine, and its disk.
pub struct Setup {
    pub limits: Limits,
    /// Disk for prompts beyond host memory; needs `host_bytes`.
    pub disk: Option<disk::Options>,
}

impl From<Limits> for Setup {
    fn from(limits: Limits) -> Setup {
        Setup { limits, disk: None }
    }
}

impl Limits {
    /// Limits that a target's manifest states.
    pub const fn of(facts: &Facts) -> Limits {
        Limits {
            sequences: facts.sequences,
            snapshots: facts.snapshots,
            window: facts.window,
            drafts: facts.drafts,
            speculate: Speculate::Auto,
            queued: facts.queued,
            pages: facts.kv_pages,
            host_bytes: 0,
            context: facts.context,
            prefill_tokens: facts.prefill_tokens,
            spacing: facts.prefill_tokens,
            reply_gap: facts.reply_gap,
        }
    }

    /// Sequences that hold a slot at once: one more than a step has, for a client that holds none.
    /// The extra slot's state is a snapshot's; there is no such slot if there is but one snapshot.
    pub(super) fn slots(&self) -> usize {
        self.sequences + usize::from(self.snapshots != 1)
    }

    /// Number of snapshots for later prompts, without the one whose state the extra slot takes.
    pub(super) fn spare_snapshots(&self) -> usize {
        (self.sequences + self.snapshots).saturating_sub(self.slots())
    }

    /// # Panics
    /// If a limit is zero or the prompt budget is no multiple of `PAGE`: no engine can run so.
    pub(super) fn check(&self) {
        assert!(self.sequences > 0 && self.queued > 0, "{self:?}");
        assert!(self.pages > 0, "{self:?}");
        assert!(self.context > 0, "{self:?}");
        assert!(self.prefill_tokens >= PAGE, "{self:?}");
        assert!(self.prefill_tokens.is_multiple_of(PAGE), "{self:?}");
        let has_pages = |Window { positions, pages }| {
            let (sequences, prefill) = (self.sequences, self.prefill_tokens);
            self.snapshots > 0
                && pages >= Window::of(positions, sequences, prefill, self.snapshots).pages
        };
        assert!(self.window.is_none_or(has_pages), "{self:?}");
    }

    /// # Errors
    /// Says why the request can never run; the text is fit for the client.
    pub(super) fn check_request(&self, request: &Request, vocab: usize) -> Result<(), String> {
        let (prompt, reply) = (request.prompt.len(), request.max_tokens);
        let most = self.context.min(self.pages * PAGE);
        if prompt == 0 || (reply == 0 && request.prompt_logprobs.is_none()) {
            return Err("the prompt and max_tokens must be at least one token".to_owned());
        }
        if prompt.saturating_add(reply) > most {
            return Err(format!(
                "the prompt has {prompt} tokens and max_tokens is {reply}: \
                 more than {most} together"
            ));
        }
        if let Some(id) = request.prompt.iter().find(|&&id| id as usize >= vocab) {
            return Err(format!(
                "token {id} of the prompt is not in the vocabulary of {vocab}"
            ));
        }
        let wanted = request.logprobs.max(request.prompt_logprobs);
        if wanted.is_some_and(|count| count > MAX_TOP_LOGPROBS) {
            return Err(format!(
                "at most {MAX_TOP_LOGPROBS} log-probabilities per token"
            ));
        }
        check_sampling(&request.sampling)
    }
}

fn check_sampling(rule: &Sampling) -> Result<(), String> {
    let within = [
        ("temperature", rule.temperature, 0.0, 2.0),
        ("top_p", rule.top_p, f32::MIN_POSITIVE, 1.0),
        ("min_p", rule.min_p, 0.0, 1.0),
        ("top_n_sigma", rule.top_n_sigma, 0.0, f32::MAX),
        ("typical_p", rule.typical_p, f32::MIN_POSITIVE, 1.0),
        ("xtc_probability", rule.xtc.probability, 0.0, 1.0),
        ("xtc_threshold", rule.xtc.threshold, 0.0, 1.0),
        ("dry_multiplier", rule.dry.multiplier, 0.0, 100.0),
        ("dry_base", rule.dry.base, 1.0, 100.0),
        ("presence_penalty", rule.presence_penalty, -2.0, 2.0),
        ("frequency_penalty", rule.frequency_penalty, -2.0, 2.0),
        (
            "repetition_penalty",
            rule.repetition_penalty,
            f32::MIN_POSITIVE,
            f32::MAX,
        ),
    ];
    let biases = rule.logit_bias.iter();
    let biases = biases.map(|&(_, bias)| ("logit_bias", bias, -100.0, 100.0));
    for (name, value, least, most) in within.into_iter().chain(biases) {
        // A test `value < least || value > most` would let NaN pass.
        if !(least..=most).contains(&value) {
            return Err(format!(
                "{name} is {value}; it must be within {least} and {most}"
            ));
        }
    }
    Ok(())
}
