//! The check at start that needs no reference: a text written for this project is run through the
//! model as a prompt, and token by token.
//!
//! The text's likelihood must be that of a language model and equal in both ways, and logits must
//! have the same bits however the prompt is cut and whatever sequences run beside it. Faults that
//! leave a model fluent, such as a matrix that is off by a percent, are not seen here: `oracle`
//! finds those.

use std::fmt;
use std::ops::Range;
use std::thread;

use host::threads;
use model::ops::LOGITS_ROWS_MAX;
use model::target::{MAX_CONTEXT, MAX_SEQUENCES, PAGE, PREFILL_TOKENS, VOCAB};
use step::executor::{DeviceError, Executor, Slot, TokenId};
use step::ranking::{all_finite, weight_of};

use super::bits::digest;
use super::session::{Session, fitting, step_together};

/// Text of the check: prose, lists, code, a table and five languages.
pub const TEXT: &str = include_str!("text_check/text.txt");
/// Largest number of tokens of the text that a start runs. A third of them are after position
/// 1,024, so that a rotary embedding that wraps there is visible in the mean.
pub const TEXT_TOKENS: usize = match MAX_CONTEXT {
    context if context < WANTED => context,
    _ => WANTED,
};
/// Whether a start runs the whole text. Builds for debugging and for tests, up to a hundred times
/// slower, run its first tokens.
pub const TEXT_IS_WHOLE: bool = !cfg!(any(debug_assertions, feature = "testing"));
const WANTED: usize = if TEXT_IS_WHOLE { 1536 } else { 32 };
/// Divisor of the number of tokens: the last ones, that part of all, are run one by one as well.
const DECODED_SHARE: usize = 24;
/// Divisor of scored positions: copying all logits to the host costs more than the model.
const SCORED_EVERY: usize = 4;
/// Largest number of sequences beside the checked one.
const COMPANIONS: usize = match MAX_SEQUENCES {
    0..5 => MAX_SEQUENCES.saturating_sub(2),
    _ => 3,
};
/// Slot of a run that must not change the state at the prompt's end, in slot 0.
const FORKED: Slot = Slot(MAX_SEQUENCES as u32 - 1);
/// Chunk of a prompt that is cut, tokens: whole pages, and no divisor of a usual chunk.
const CUT: usize = match 3 * PAGE {
    cut if cut <= PREFILL_TOKENS => cut,
    _ => PREFILL_TOKENS,
};
/// Nats per token above which the text is noise to a model: untrained models have above ten,
/// language models below 3.5.
const PLAUSIBLE_NATS: f64 = 5.0;
/// Largest difference of the text's likelihood from the reference's, nats per token.
const KNOWN_NATS_WITHIN: f64 = 0.02;
/// Largest root mean square of a token's differences in log-probability between prefill and decode,
/// nats: both round, while a wrong kernel is off by far more.
const DECODE_WITHIN: f64 = 0.1;

/// Random tokens, `count` of them, for a model without a tokenizer: they have no meaning.
pub fn draw_tokens(count: usize) -> Vec<TokenId> {
    (0..count)
        .map(|at| (at * 7919 % VOCAB) as TokenId)
        .collect()
}

/// Bound of the text's mean negative log-likelihood.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TextBound {
    /// Mean negative log-likelihood by an outside reference with the same weights, nats per token.
    Known(f64),
    /// `PLAUSIBLE_NATS` per token at most, for a trained model without a reference.
    Plausible,
    /// No bound: the weights are random.
    None,
}

impl TextBound {
    fn admits(self, nats: f64) -> bool {
        match self {
            TextBound::Known(known) => (nats - known).abs() <= KNOWN_NATS_WITHIN,
            TextBound::Plausible => nats <= PLAUSIBLE_NATS,
            TextBound::None => nats.is_finite(),
        }
    }
}

impl fmt::Display for TextBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextBound::Known(known) => write!(f, "{known:.4} ± {KNOWN_NATS_WITHIN}"),
            TextBound::Plausible => write!(f, "at most {PLAUSIBLE_NATS}"),
            TextBound::None => f.write_str("anything: no text means something to it"),
        }
    }
}

/// Results of a check that passed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextReport {
    /// Number of tokens that were run.
    pub tokens: usize,
    /// Mean negative log-likelihood of the scored tokens, nats.
    pub nats: f64,
    pub bound: TextBound,
    /// Number of tokens that were run one by one.
    pub decoded: usize,
    /// Root mean square difference of a token's log-probability between prefill and decode, nats.
    pub decode_difference: f64,
    /// Number of sequences that ran beside the checked one.
    pub companions: usize,
}

impl fmt::Display for TextReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TextReport {
            tokens,
            nats,
            bound,
            decoded,
            decode_difference,
            companions,
        } = self;
        write!(
            f,
            "a text of {tokens} tokens has {nats:.4} nats per token ({bound}); {decoded} of them \
             one by one differ by {decode_difference:.1e}; the same bits however the prompt is \
             cut, alone and beside {companions} others"
        )
    }
}

/// Reason for which a model must not serve.
#[derive(Debug, thiserror::Error)]
pub enum TextMismatch {
    /// The text's likelihood is out of its bound.
    #[error(
        "the check of the model failed: a text has {nats:.4} nats per token, must be {bound}; the \
         weights, or what this device makes of them, are not the model's. `verify --full` compares \
         the files, `verify --oracle` the device with the CPU"
    )]
    Likelihood { nats: f64, bound: TextBound },
    /// The text's log-probabilities differ when it is run token by token.
    #[error(
        "the check of the model failed: token by token a text's log-probabilities differ by \
         {difference:.4} nats from those in a prompt, at most {DECODE_WITHIN}; the device computes \
         wrongly. `verify --oracle` tells in which layer"
    )]
    Decode { difference: f64 },
    /// Logits of a position have other bits than before; `by` names the change in between.
    #[error(
        "the check of the model failed: the logits of position {position} have other bits {by}; \
         the device computes wrongly"
    )]
    Bits { by: &'static str, position: usize },
    #[error("{0}")]
    Device(#[from] DeviceError),
}

/// Checks the model with `tokens`, the first ones of [`TEXT`], on `executor`, which must be idle:
/// its first slots and pages are used.
pub fn check_text<E: Executor>(
    executor: &mut E,
    tokens: &[TokenId],
    bound: TextBound,
) -> Result<TextReport, TextMismatch> {
    let decoded = tokens.len().div_ceil(DECODED_SHARE);
    let whole = whole(executor, tokens, decoded)?;
    let nats = -mean(&whole.log_likelihoods);
    if !bound.admits(nats) {
        return Err(TextMismatch::Likelihood { nats, bound });
    }
    let (prompt, rest) = tokens.split_at(tokens.len() - decoded);
    let alone = alone(executor, prompt, rest)?;
    let scored = &whole.log_likelihoods;
    let of_rest = &scored[scored.len() - alone.log_likelihoods.len()..];
    let difference = root_mean_square(&alone.log_likelihoods, of_rest);
    if difference > DECODE_WITHIN || difference.is_nan() {
        return Err(TextMismatch::Decode { difference });
    }
    if whole.digest? != alone.digests[0] {
        let (by, position) = ("when the prompt is cut", prompt.len() - 1);
        return Err(TextMismatch::Bits { by, position });
    }
    let companions = match MAX_SEQUENCES {
        1 => 0,
        _ => beside_others(executor, (whole.prompt, prompt), rest, &alone.digests[1..])?,
    };
    Ok(TextReport {
        tokens: tokens.len(),
        nats,
        bound,
        decoded,
        decode_difference: difference,
        companions,
    })
}

/// Results of the text run as a prompt.
struct Whole {
    /// Log-probabilities of the tokens after scored positions.
    log_likelihoods: Vec<f64>,
    /// Session at the end of the tokens that are run as a prompt alone.
    prompt: Session,
    /// Digest of the logits at the end of `prompt`; an error if one is not finite.
    digest: Result<u64, DeviceError>,
}

/// Runs `tokens` in the largest chunks, cut before the last `decoded` ones.
fn whole<E: Executor>(
    executor: &mut E,
    tokens: &[TokenId],
    decoded: usize,
) -> Result<Whole, DeviceError> {
    let at = tokens.len() - decoded;
    let mut prompt = Session::beside(0, tokens.len());
    let mut found = Vec::with_capacity(tokens.len() / SCORED_EVERY);
    for start in (0..at).step_by(PREFILL_TOKENS) {
        let rows = start..at.min(start + PREFILL_TOKENS);
        score(executor, &mut prompt, tokens, rows, &mut found)?;
    }
    let digest = digest(executor.logits(0)?);
    let mut rest = prompt.fork(FORKED);
    for start in (at..tokens.len()).step_by(PREFILL_TOKENS) {
        let rows = start..tokens.len().min(start + PREFILL_TOKENS);
        score(executor, &mut rest, tokens, rows, &mut found)?;
    }
    Ok(Whole {
        log_likelihoods: found,
        prompt,
        digest,
    })
}

/// Runs one chunk of `tokens`; appends log-probabilities of the tokens after scored positions.
fn score<E: Executor>(
    executor: &mut E,
    session: &mut Session,
    tokens: &[TokenId],
    chunk: Range<usize>,
    found: &mut Vec<f64>,
) -> Result<(), DeviceError> {
    session.step(executor, &tokens[chunk.clone()])?;
    let (start, mut logits) = (chunk.start, Vec::new());
    let rows: Vec<usize> = chunk
        .filter(|&position| is_scored(position, tokens.len()))
        .map(|position| position - start)
        .collect();
    for rows in rows.chunks(LOGITS_ROWS_MAX) {
        executor.logits_of(rows, &mut logits)?;
        let next: Vec<TokenId> = rows.iter().map(|row| tokens[start + row + 1]).collect();
        found.extend(log_probabilities(&logits, &next));
    }
    Ok(())
}

/// Whether the token after `position` is scored, in a text of `length` tokens.
fn is_scored(position: usize, length: usize) -> bool {
    position.is_multiple_of(SCORED_EVERY) && position + 1 < length
}

/// Log-probability of one token for each row of `logits [tokens, VOCAB]`.
fn log_probabilities(logits: &[f32], tokens: &[TokenId]) -> Vec<f64> {
    let each = tokens.len().div_ceil(threads::cores()).max(1);
    let width = logits.len() / tokens.len();
    let parts = logits.chunks(each * width).zip(tokens.chunks(each));
    thread::scope(|scope| {
        let part = |(logits, tokens): (&'_ [f32], &'_ [TokenId])| {
            let rows = logits.chunks(width).zip(tokens);
            rows.map(|(row, &token)| log_probability(row, token))
                .collect::<Vec<_>>()
        };
        let running: Vec<_> = parts
            .map(|given| scope.spawn(move || part(given)))
            .collect();
        let done = running.into_iter().map(|thread| thread.join());
        done.flat_map(|part| part.expect("arithmetic does not panic"))
            .collect()
    })
}

/// Log-probability of `token`; NaN if a logit is not finite.
pub(super) fn log_probability(logits: &[f32], token: TokenId) -> f64 {
    if !all_finite(logits) {
        return f64::NAN;
    }
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    f64::from(logits[token as usize]) - max - weight_of(logits, max).ln()
}

/// Results of a sequence, token by token.
struct Trace {
    /// Digests of the logits after the prompt, and after each later token.
    digests: Vec<u64>,
    /// Log-probabilities of the later tokens that follow scored positions.
    log_likelihoods: Vec<f64>,
}

/// Runs `prompt` in chunks, then `rest` token by token.
fn alone<E: Executor>(
    executor: &mut E,
    prompt: &[TokenId],
    rest: &[TokenId],
) -> Result<Trace, DeviceError> {
    let capacity = prompt.len() + rest.len();
    // The run is in other pages than the first ones, if there are enough for two sequences.
    let index = fitting(executor, capacity).min(2).saturating_sub(1);
    let mut session = Session::beside(index, capacity).fork(FORKED);
    for chunk in prompt.chunks(CUT) {
        session.step(executor, chunk)?;
    }
    let mut trace = Trace {
        digests: vec![digest(executor.logits(0)?)?],
        log_likelihoods: Vec::new(),
    };
    for (index, token) in rest.iter().enumerate() {
        session.step(executor, std::slice::from_ref(token))?;
        let logits = executor.logits(0)?;
        trace.digests.push(digest(logits)?);
        if is_scored(prompt.len() + index, prompt.len() + rest.len()) {
            let next = rest[index + 1];
            trace.log_likelihoods.push(log_probability(logits, next));
        }
    }
    Ok(trace)
}

/// Runs `rest` token by token after the prompt, beside sequences at other positions of the text;
/// returns the number of such sequences.
fn beside_others<E: Executor>(
    executor: &mut E,
    (mut ours, prompt): (Session, &[TokenId]),
    rest: &[TokenId],
    alone: &[u64],
) -> Result<usize, TextMismatch> {
    let capacity = prompt.len() + rest.len();
    let companions = COMPANIONS.min(fitting(executor, capacity).saturating_sub(1));
    let others = (1..=companions).map(|index| Session::beside(index, capacity));
    let mut others: Vec<Session> = others.collect();
    for (index, session) in others.iter_mut().enumerate() {
        let length = (prompt.len() / (index + 2)).clamp(1, PREFILL_TOKENS);
        session.step(executor, &prompt[..length])?;
    }
    // The checked sequence is the last in the step, so that rows of all others shift its rows.
    let mut sessions: Vec<&mut Session> = others.iter_mut().chain([&mut ours]).collect();
    for (index, (&token, &alone)) in rest.iter().zip(alone).enumerate() {
        let tokens = vec![token; companions + 1];
        step_together(executor, &mut sessions, &tokens)?;
        if digest(executor.logits(companions)?)? != alone {
            let (by, position) = ("beside other sequences", prompt.len() + index);
            return Err(TextMismatch::Bits { by, position });
        }
    }
    Ok(companions)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn root_mean_square(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let squares = a.iter().zip(b).map(|(a, b)| (a - b).powi(2));
    (squares.sum::<f64>() / a.len().max(1) as f64).sqrt()
}

#[cfg(test)]
mod tests;
