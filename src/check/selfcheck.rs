//! Golden tokens: replays sequences that another implementation computed, before a server starts.
//!
//! The golden text is JSON, written by `scripts/golden.py`:
//!
//! ```json
//! {"format": 1,
//!  "versions": {"torch": "…", "transformers": "…"},
//!  "sequences": [{"prompt": [1, 2], "tokens": [7, 8], "top": [[[7, -0.1], [9, -3.2]], …]}]}
//! ```
//!
//! `tokens` are the greedy continuation of `prompt`; `top[i]` holds the most likely tokens where
//! `tokens[i]` was chosen, with their log-probabilities, descending.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use model::target::{MAX_CONTEXT, PREFILL_TOKENS};
use step::executor::{DeviceError, Executor, TokenId};

use super::session::{Session, fitting, most_likely, step_together};

/// The format version that is read here.
pub(super) const FORMAT: u32 = 1;
/// Least scale of a row of logits: golden log-probabilities have five decimals.
const SCALE_LEAST: f32 = 1.0;

/// Distance from golden log-probabilities that a device is allowed.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Largest difference of a log-probability, relative to the scale of the row's logits.
    pub relative: f32,
    /// Tokens below this golden log-probability are not compared.
    pub floor: f32,
}

/// Tolerance between two F32 implementations that add in different orders. Relative to the logits:
/// a sum of large terms that cancel keeps the rounding of the terms.
pub const TOLERANCE_F32: Tolerance = Tolerance {
    relative: 2e-4,
    floor: f32::NEG_INFINITY,
};

/// Scale of the rounding errors of a row of logits: its largest magnitude.
pub(super) fn scale(logits: &[f32]) -> f32 {
    let largest = logits.iter().map(|logit| logit.abs());
    largest.fold(SCALE_LEAST, f32::max)
}

/// Differences that are allowed in a row of logits.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    /// Largest difference of a log-probability that is allowed.
    pub difference: f32,
    /// Scale of the row's logits.
    pub scale: f32,
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Allowed { difference, scale } = self;
        write!(f, "{difference:.1e} at logits up to {scale:.1}")
    }
}

/// Result of a replay that agreed.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub sequences: usize,
    /// Number of positions that were compared.
    pub tokens: usize,
    /// Largest difference of a log-probability.
    pub logprob_difference_max: f32,
}

/// Difference in a replay: this device, driver, build or weights file must not serve.
#[derive(Debug, thiserror::Error)]
pub enum Mismatch {
    /// The golden text cannot be used.
    #[error("golden tokens: {0}")]
    Malformed(String),
    /// Another token is the most likely one, by more than twice the tolerance.
    #[error(
        "golden sequence {sequence}, token {position}: {found} instead of {expected}, beyond the \
         {allowed} that a log-probability may differ by; {OTHER}"
    )]
    Token {
        sequence: usize,
        position: usize,
        expected: TokenId,
        found: TokenId,
        allowed: Allowed,
    },
    /// A log-probability differs by more than the tolerance.
    #[error(
        "golden sequence {sequence}, token {position}: log-probability of {token} is {found} \
         instead of {expected}, which may differ by {allowed}; {OTHER}"
    )]
    Logprob {
        sequence: usize,
        position: usize,
        token: TokenId,
        expected: f32,
        found: f32,
        allowed: Allowed,
    },
    #[error("{0}")]
    Device(#[from] DeviceError),
}

/// Last sentence of the texts of mismatches.
const OTHER: &str = "the device or the weights compute something else than the model";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Golden {
    format: u32,
    /// Versions of the implementation that wrote the file, for people to read.
    #[serde(rename = "versions")]
    _versions: BTreeMap<String, String>,
    sequences: Vec<Sequence>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sequence {
    prompt: Vec<TokenId>,
    tokens: Vec<TokenId>,
    top: Vec<Vec<(TokenId, f32)>>,
}

impl Sequence {
    /// Number of tokens, the prompt's included.
    fn len(&self) -> usize {
        self.prompt.len() + self.tokens.len()
    }
}

/// Replays the sequences of `golden` on `executor`, which must be idle: the replay uses its first
/// slots and pages, for as many sequences at once as fit. An empty text holds no sequences.
///
/// The golden tokens are fed whatever the executor prefers, so one difference does not cascade.
/// Where the two best golden tokens are closer than twice the tolerance, either may win.
///
/// # Errors
/// `Mismatch` naming the first position that differs by more than `tolerance` allows.
pub fn selfcheck<E: Executor>(
    executor: &mut E,
    golden: &str,
    tolerance: Tolerance,
) -> Result<Report, Mismatch> {
    let mut report = Report {
        sequences: 0,
        tokens: 0,
        logprob_difference_max: 0.0,
    };
    if golden.is_empty() {
        return Ok(report);
    }
    let sequences = parse(golden, E::VOCAB)?;
    let longest = sequences.iter().map(Sequence::len).max();
    let together = fitting(executor, longest.unwrap_or(1)).max(1);
    for sequences in sequences.chunks(together) {
        replay(executor, sequences, tolerance, &mut report)?;
        report.sequences += sequences.len();
    }
    Ok(report)
}

fn parse(golden: &str, vocab: usize) -> Result<Vec<Sequence>, Mismatch> {
    let fail = |problem: String| Err(Mismatch::Malformed(problem));
    let golden: Golden = match serde_json::from_str(golden) {
        Ok(golden) => golden,
        Err(error) => return fail(error.to_string()),
    };
    if golden.format != FORMAT {
        return fail(format!("format {} instead of {FORMAT}", golden.format));
    }
    for (index, sequence) in golden.sequences.iter().enumerate() {
        let tops = sequence.top.iter().flatten().map(|(token, _)| token);
        let mut tokens = sequence.prompt.iter().chain(&sequence.tokens).chain(tops);
        if tokens.any(|&token| token as usize >= vocab) {
            return fail(format!(
                "sequence {index} has a token outside of the vocabulary"
            ));
        }
        let length = sequence.len();
        if sequence.prompt.is_empty() || length > MAX_CONTEXT {
            return fail(format!("sequence {index} has {length} tokens"));
        }
        if sequence.top.len() != sequence.tokens.len() || sequence.top.iter().any(Vec::is_empty) {
            return fail(format!("sequence {index} lacks log-probabilities"));
        }
    }
    Ok(golden.sequences)
}

/// Runs the prompts one by one, then one token of each sequence in a step.
fn replay<E: Executor>(
    executor: &mut E,
    sequences: &[Sequence],
    tolerance: Tolerance,
    report: &mut Report,
) -> Result<(), Mismatch> {
    let capacity = sequences.iter().map(Sequence::len).max().unwrap_or(0);
    let (mut sessions, first) = (Vec::new(), report.sequences);
    for (index, sequence) in sequences.iter().enumerate() {
        let mut session = Session::beside(index, capacity);
        for chunk in sequence.prompt.chunks(PREFILL_TOKENS) {
            session.step(executor, chunk)?;
        }
        sessions.push(session);
        if let Some(top) = sequence.top.first() {
            let at = (first + index, 0);
            compare(executor.logits(0)?, top, tolerance, at, report)?;
        }
    }
    let longest = sequences.iter().map(|sequence| sequence.tokens.len()).max();
    for position in 1..longest.unwrap_or(0) {
        let goes_on = |sequence: &Sequence| sequence.tokens.len() > position;
        let (mut rows, mut going, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
        let all = sequences.iter().zip(&mut sessions).enumerate();
        for (index, (sequence, session)) in all.filter(|(_, (sequence, _))| goes_on(sequence)) {
            rows.push((first + index, &sequence.top[position]));
            going.push(session);
            tokens.push(sequence.tokens[position - 1]);
        }
        step_together(executor, &mut going, &tokens)?;
        for (row, (sequence, top)) in rows.into_iter().enumerate() {
            let logits = executor.logits(row)?;
            compare(logits, top, tolerance, (sequence, position), report)?;
        }
    }
    Ok(())
}

fn compare(
    logits: &[f32],
    top: &[(TokenId, f32)],
    tolerance: Tolerance,
    (sequence, position): (usize, usize),
    report: &mut Report,
) -> Result<(), Mismatch> {
    report.tokens += 1;
    let scale = scale(logits);
    let allowed = Allowed {
        difference: tolerance.relative * scale,
        scale,
    };
    let (expected, found) = (top[0].0, most_likely(logits));
    let in_doubt = top
        .get(1)
        .is_some_and(|second| top[0].1 - second.1 < 2.0 * allowed.difference);
    if found != expected && !in_doubt {
        return Err(Mismatch::Token {
            sequence,
            position,
            expected,
            found,
            allowed,
        });
    }
    let normaliser = log_sum_exp(logits);
    let likely = top.iter().filter(|(_, golden)| *golden >= tolerance.floor);
    for &(token, expected) in likely {
        let found = (f64::from(logits[token as usize]) - normaliser) as f32;
        let difference = (found - expected).abs();
        if difference > allowed.difference || difference.is_nan() {
            return Err(Mismatch::Logprob {
                sequence,
                position,
                token,
                expected,
                found,
                allowed,
            });
        }
        report.logprob_difference_max = report.logprob_difference_max.max(difference);
    }
    Ok(())
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + logits
        .iter()
        .map(|&logit| (f64::from(logit) - max).exp())
        .sum::<f64>()
        .ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares three logits with golden log-probabilities that are `off` from theirs.
    fn compared(logits: [f32; 3], off: f32) -> Result<Report, Mismatch> {
        let normaliser = log_sum_exp(&logits);
        let top = |id: usize| (id as TokenId, (f64::from(logits[id]) - normaliser) as f32);
        let mut report = Report {
            sequences: 4,
            tokens: 0,
            logprob_difference_max: 0.0,
        };
        let shifted = [top(0), top(1)].map(|(id, logprob)| (id, logprob + off));
        compare(&logits, &shifted, TOLERANCE_F32, (4, 7), &mut report)?;
        Ok(report)
    }

    #[test]
    fn large_logits_may_differ_by_more() {
        assert!(compared([100.0, 98.0, -100.0], 0.01).is_ok());
        assert!(compared([5.0, 3.0, -5.0], 0.01).is_err());
        assert!(compared([5.0, 3.0, -5.0], 0.0005).is_ok());
    }

    #[test]
    fn small_logits_may_differ_by_what_the_file_rounds_away() {
        assert!(compared([0.01, 0.005, 0.0], 5e-6).is_ok());
        assert!(compared([0.01, 0.005, 0.0], 5e-4).is_err());
    }

    #[test]
    fn a_mismatch_states_the_tolerance_and_the_scale() {
        let error = compared([5.0, 3.0, -5.0], 0.25).unwrap_err().to_string();
        let expected = "golden sequence 4, token 7: log-probability of 0 is -0.126968 instead of \
                        0.123032, which may differ by 1.0e-3 at logits up to 5.0; the device or \
                        the weights compute something else than the model";
        assert_eq!(error, expected);
    }

    #[test]
    fn another_token_is_refused_but_for_a_tie() {
        let refused = |golden: &[(TokenId, f32)]| {
            let mut report = compared([5.0, 4.0, -5.0], 0.0).unwrap();
            let found = compare(
                &[5.0, 4.0, -5.0],
                golden,
                TOLERANCE_F32,
                (0, 0),
                &mut report,
            );
            matches!(found, Err(Mismatch::Token { .. }))
        };
        assert!(refused(&[(1, -0.3), (0, -1.3)]));
        assert!(!refused(&[(1, -0.8), (0, -0.8015)]));
    }
}
