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

/// Sampling parameters. Greedy when `temperature` is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 ..= 2; 0 takes the most likely token (lowest id on a tie).
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set whose probability reaches this, in (0, 1].
    pub top_p: f32,
    /// Drop tokens below this share of the most likely one's probability, in [0, 1].
    pub min_p: f32,
    /// -2 ..= 2, subtracted once from the logit of each token that the reply already holds.
    pub presence_penalty: f32,
    /// -2 ..= 2, subtracted per occurrence in the reply.
    pub frequency_penalty: f32,
    /// Above 0; divides positive and multiplies negative logits of tokens seen in prompt or reply.
    pub repetition_penalty: f32,
    /// Added to the logit of a token, -100 ..= 100.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Penalty of what would continue a repetition.
    pub dry: Dry,
    /// Keep tokens whose logit is at most so many standard deviations of the row below the largest;
    /// 0 keeps all (Tang et al., "Top-nσ: Not All Logits Are You Need", 2024).
    pub top_n_sigma: f32,
    /// Keep the tokens whose surprise is nearest to the expected one, until their probability
    /// reaches this, in (0, 1] (Meister et al., "Locally Typical Sampling", 2022).
    pub typical_p: f32,
    /// Exclusion of the most likely tokens.
    pub xtc: Xtc,
    /// Tokens that the reply has at least: none before ends it.
    pub min_tokens: usize,
    /// The only tokens that may be chosen; empty: all may.
    pub allowed: Vec<TokenId>,
    /// Sequences of tokens that the reply must not have, none of them empty.
    pub bad_words: Vec<Vec<TokenId>>,
    /// Key of the counter-based generator; the counter is the position in the sequence.
    pub seed: u64,
    /// Adaptive sampling; none: the temperature stays.
    pub adaptive: Option<Sections>,
    /// Ends the reasoning that the reply begins in.
    pub thinking_budget: Option<ThinkingBudget>,
}

/// See `engine::dry`. Off without a multiplier.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// 0 ..= 100; 0 turns it off.
    pub multiplier: f32,
    /// 1 ..= 100.
    pub base: f32,
    /// Tokens that may be repeated for nothing, at least 1.
    pub allowed: usize,
    /// Tokens of prompt and reply that are looked at, the last ones; all if none.
    pub last: Option<usize>,
    /// Ids of tokens that end a repetition, ascending: those before one are not counted with it.
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
    /// 0 ..= 1; 0 turns it off.
    pub probability: f32,
    /// 0 ..= 1; above a half there are no two such tokens.
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

/// Admission of a request; empty while it waits for a slot.
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
    /// Domain of the prefix cache whose prompts it may share, beside those of [`COMMON`].
    pub domain: u128,
    /// Leading tokens of the prompt that other prompts probably have too; no event depends on it.
    pub head: usize,
    /// At least one token; `prompt.len() + max_tokens <= Limits::context`.
    pub prompt: Vec<TokenId>,
    /// Tokens to generate at most, at least one; 0 where only the prompt is scored.
    pub max_tokens: usize,
    /// Tokens that end the reply; they count in usage and are reported as the last token.
    pub stop_tokens: Vec<TokenId>,
    pub sampling: Sampling,
    /// `Some(n)`: report the log-probability of each token and of the `n` most likely ones.
    pub logprobs: Option<usize>,
    /// `Some(n)`: report the log-probability of each token of the prompt but the first, and of the
    /// `n` most likely ones in its place.
    pub prompt_logprobs: Option<usize>,
    /// Constraint that the reply must obey.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Set by the engine when the request gets its slot, for figures.
    pub admitted: Admitted,
    /// Where events go. The engine stops the request when the receiver is gone, and leaves it out
    /// of steps while the channel is full.
    pub events: EventSender,
}

/// Log-probabilities at one position, before bias, penalties and temperature. Where a constraint
/// applies, they are normalised over the tokens that it allows; others have minus infinity.
/// (vLLM's `raw_logprobs` are the same: it masks the logits before it reads them.)
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
    /// Log-probabilities of the token that the prompt has.
    pub logprobs: TokenLogprobs,
    /// Rank among all tokens by probability, from 1; tokens of the same probability share one.
    pub rank: u32,
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// One of `stop_tokens` was generated, or the constraint allows nothing further.
    Stop,
    /// `max_tokens` were generated.
    Length,
}

/// Event of a request, in the order in which they are sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Scores of the next tokens of the prompt, the first of which is its second token. All of them
    /// come before the first token of the reply.
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

// A channel of a reply holds blocks of 32 events, whatever their number.
const _: () = assert!(size_of::<Event>() <= 24);
