//! Golden tokens that an operator has made: results of the model with these weights on this device,
//! with which later starts are compared.

use serde_json::{Value, json};

use model::target::{self, MAX_CONTEXT, PREFILL_TOKENS};
use step::executor::{DeviceError, Executor, TokenId};
use step::ranking::{most_likely, weight_of};

use super::selfcheck::FORMAT;
use super::session::Session;

/// Lengths of prompts, cut to the text's: around the ends of pages, cells and splits of attention.
const PROMPTS: [usize; 8] = [16, 63, 65, 130, 257, 513, 1030, 1500];
/// Number of greedy tokens after each prompt.
const TOKENS: usize = 16;
/// Number of log-probabilities written for each token.
const TOP: usize = 20;

/// The greedy continuations of prefixes of `text`, in the form that `selfcheck` reads.
pub fn keep_golden<E: Executor>(executor: &mut E, text: &[TokenId]) -> Result<String, DeviceError> {
    let longest = text.len().min(MAX_CONTEXT - TOKENS);
    let prompts = PROMPTS.into_iter().filter(|&length| length <= longest);
    let sequences = prompts.map(|length| sequence(executor, &text[..length]));
    let sequences = sequences.collect::<Result<Vec<_>, _>>()?;
    let version = env!("CARGO_PKG_VERSION");
    let golden = json!({
        "format": FORMAT,
        "versions": {"atlas": version, "target": target::BINARY},
        "sequences": sequences,
    });
    Ok(format!("{golden}\n"))
}

fn sequence<E: Executor>(executor: &mut E, prompt: &[TokenId]) -> Result<Value, DeviceError> {
    let mut session = Session::new();
    for chunk in prompt.chunks(PREFILL_TOKENS) {
        session.step(executor, chunk)?;
    }
    let (mut tokens, mut tops): (Vec<TokenId>, Vec<Vec<(TokenId, f64)>>) = Default::default();
    while tokens.len() < TOKENS {
        if let Some(token) = tokens.last() {
            session.step(executor, std::slice::from_ref(token))?;
        }
        let top = log_probabilities(executor.logits(0)?);
        tokens.push(top[0].0);
        tops.push(top);
    }
    Ok(json!({"prompt": prompt, "tokens": tokens, "top": tops}))
}

/// The most likely tokens with their log-probabilities, descending.
fn log_probabilities(logits: &[f32]) -> Vec<(TokenId, f64)> {
    let top = most_likely(logits, TOP.min(logits.len()));
    let max = f64::from(top[0].1);
    let normaliser = max + weight_of(logits, max).ln();
    let of = |(token, logit): (TokenId, f32)| (token, f64::from(logit) - normaliser);
    top.into_iter().map(of).collect()
}
