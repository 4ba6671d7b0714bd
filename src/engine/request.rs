//! The types that cross the boundary between the server and the engine.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::adaptive::Sections;
use super::constraint::Constraint;
use super::events::EventSender;
use super::fair_queue::Source;
use super::thinking::ThinkingBudget;
use step::executor::TokenId;

/// Largest `top_logprobs` that a request may ask for.
pub const MAX_TOP_LOGPROBS: usize = 20;

/// Sampling parameters. Sampling is greedy when `temperature` is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Temperature, 0 ..= 2; 0 takes the most likely token (lowest id on a tie).
    pub temperature: f32,
    /// Number of most likely tokens that are kept; 0 keeps all.
    pub top_k: u32,
    /// Probability that the smallest kept set of tokens reaches, in (0, 1].
    pub top_p: f32,
    /// Share of the most likely token's probability below which tokens are dropped, in [0, 1].
    pub min_p: f32,
    /// Penalty, -2 ..= 2, subtracted once from the logit of each token that the reply has.
    pub presence_penalty: f32,
    /// Penalty, -2 ..= 2, subtracted from a token's logit for each occurrence in the reply.
    pub frequency_penalty: f32,
    /// Factor above 0 that divides positive, multiplies negative logits of tokens seen so far.
    pub repetition_penalty: f32,
    /// Bias that is added to the logit of each token, -100 ..= 100.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Penalty of tokens that would continue a repetition.
    pub dry: Dry,
    /// Standard deviations of the row that a kept token's logit may be below the largest; 0 keeps
    /// all (Tang et al., "Top-nσ: Not All Logits Are You Need", 2024).
    pub top_n_sigma: f32,
    /// Probability that kept tokens reach together, in (0, 1], taken in the order of the distance
    /// of their surprise from the expected one (Meister et al., "Locally Typical Sampling", 2022).
    pub typical_p: f32,
    /// Exclusion of the most likely tokens.
    pub xtc: Xtc,
    /// Least number of tokens of the reply; no stop token can be chosen before.
    pub min_tokens: usize,
    /// The only tokens that may be chosen; empty if all may.
    pub allowed: Vec<TokenId>,
    /// Sequences of tokens that the reply must not have, none of them empty.
    pub bad_words: Vec<Vec<TokenId>>,
    /// Key of the counter-based random generator; the counter is the position in the sequence.
    pub seed: u64,
    /// Adaptive sampling; none leaves the temperature as it is.
    pub adaptive: Option<Sections>,
    /// Bound on the reasoning that the reply begins in.
    pub thinking_budget: Option<ThinkingBudget>,
}

/// Parameters of the DRY penalty (`engine::dry`). The penalty is off without a multiplier.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// Factor of the penalty, 0 ..= 100; 0 turns it off.
    pub multiplier: f32,
    /// Base that is raised to the length of the repetition, 1 ..= 100.
    pub base: f32,
    /// Number of tokens that may be repeated without a penalty, at least 1.
    pub allowed: usize,
    /// Number of last tokens of prompt and reply that are searched for repetitions; all if none.
    pub last: Option<usize>,
    /// Tokens across which no repetition is counted, ascending.
    pub breakers: Vec<TokenId>,
}

impl Default for Dry {
    fn default() -> Self {
        Dry {
            multiplier: 0.0,
            base: 1.75,
            allowed: 2,
            last: None,
            breakers: Vec::new(),
        }
    }
}

/// Exclude top choices: with `probability` all but the least likely of the tokens whose share is at
/// least `threshold` are dropped (p-e-w, text-generation-webui pull request 6335).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xtc {
    /// Probability of an exclusion at each token, 0 ..= 1; 0 turns it off.
    pub probability: f32,
    /// Least probability of a token to exclude, 0 ..= 1; above a half no two tokens have it.
    pub threshold: f32,
}

impl Default for Xtc {
    fn default() -> Self {
        Xtc {
            probability: 0.0,
            threshold: 0.1,
        }
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            dry: Dry::default(),
            top_n_sigma: 0.0,
            typical_p: 1.0,
            xtc: Xtc::default(),
            min_tokens: 0,
            allowed: Vec::new(),
            bad_words: Vec::new(),
            seed: 0,
            adaptive: None,
            thinking_budget: None,
        }
    }
}

/// Admission of a request, set once; empty while the request waits for a slot.
pub type Admitted = Arc<OnceLock<Admission>>;

/// Admission of a request to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    pub at: Instant,
    /// Tokens of the prompt that came from the prefix cache.
    pub cached: usize,
}

/// Domain of the prefix cache with the operator's prompts, which every other domain sees too.
pub const COMMON: u128 = u128::MAX;

/// One reply to be generated.
#[derive(Debug)]
pub struct Request {
    /// Client, connection and call, among which slots are shared fairly.
    pub source: Source,
    /// Domain of the prefix cache whose prompts the request may share, beside those of [`COMMON`].
    pub domain: u128,
    /// Number of leading prompt tokens that other prompts probably have; no result depends on it.
    pub head: usize,
    /// Tokens of the prompt, at least one; `prompt.len() + max_tokens <= Limits::context`.
    pub prompt: Vec<TokenId>,
    /// Largest number of tokens to generate, at least one; 0 where only the prompt is scored.
    pub max_tokens: usize,
    /// Tokens that end the reply; such a token counts in usage and is reported as the last token.
    pub stop_tokens: Vec<TokenId>,
    pub sampling: Sampling,
    /// `Some(n)`: report the log-probability of each token and of the `n` most likely ones.
    pub logprobs: Option<usize>,
    /// Number of most likely tokens whose log-probabilities are reported, beside the prompt token's
    /// own, for each token of the prompt but the first; none reports neither.
    pub prompt_logprobs: Option<usize>,
    /// Constraint that the reply must obey.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Set by the engine when the request gets its slot, for statistics.
    pub admitted: Admitted,
    /// Channel of the request's events. The engine stops the request when the receiver is gone, and
    /// leaves the request out of steps while the channel is full.
    pub events: EventSender,
}

/// Log-probabilities at one position, before bias, penalties and temperature. Under a constraint
/// they are of the allowed tokens, among which the reply chooses; all other tokens have minus
/// infinity. (vLLM's `raw_logprobs` are the same: it masks the logits before it reads them.)
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Log-probability of the chosen token.
    pub logprob: f32,
    /// The most likely tokens, descending; lower id first on a tie.
    pub top: Vec<(TokenId, f32)>,
}

/// Score of a token of the prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// Log-probabilities at the position of the prompt's token.
    pub logprobs: TokenLogprobs,
    /// Rank among all tokens by probability, from 1; equally probable tokens have the same rank.
    pub rank: u32,
}

/// Reason for which a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// One of `stop_tokens` was generated, or the constraint allows no further token.
    Stop,
    /// `max_tokens` were generated.
    Length,
}

/// Event of a request, sent in the order of these variants.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Scores of the next tokens of the prompt, from its second token on. All of them come before
    /// the first token of the reply.
    Prompt(Box<[Scored]>),
    /// The next token of the reply.
    Token {
        id: TokenId,
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// The reply is complete; nothing follows.
    Done(FinishReason),
    /// The request failed; nothing follows. The text is fit for the client.
    Failed(Box<str>),
    /// The reply cannot go on under the request's constraint; nothing follows. The text is fit for
    /// the client, whose constraint is at fault.
    Refused(Box<str>),
}

// A channel allocates blocks of 32 events, so the size of an event counts.
const _: () = assert!(size_of::<Event>() <= 24);
