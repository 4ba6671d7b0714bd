//! Acceptance rate of the multi-token-prediction layer's first drafts over served replies.

use model::target::PREFILL_TOKENS;
use model::{Runner, Runs};
use step::executor::{DeviceError, Executor, TokenId};

use super::session::{Session, most_likely};

/// A prompt, and the reply that a server gave to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Token ids of the prompt, at least one.
    pub prompt: Vec<TokenId>,
    /// Token ids of the reply, the stop token included.
    pub reply: Vec<TokenId>,
}

/// Number of first drafts, and number of first drafts that equal the served token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acceptance {
    pub drafted: usize,
    pub accepted: usize,
}

impl Acceptance {
    /// Share of accepted drafts, 0 when none was made.
    pub fn rate(&self) -> f64 {
        self.accepted as f64 / self.drafted.max(1) as f64
    }
}

/// Replays each exchange, and drafts every token of its reply but the first, which has no row
/// before it to draft from.
///
/// The runner must be idle. Prompts must not be empty, and an exchange must fit into the context.
pub fn acceptance<B: Runs>(
    runner: &mut Runner<B>,
    exchanges: &[Exchange],
) -> Result<Acceptance, DeviceError> {
    let mut total = Acceptance::default();
    for exchange in exchanges {
        follow(runner, exchange, &mut total)?;
    }
    Ok(total)
}

fn follow<B: Runs>(
    runner: &mut Runner<B>,
    exchange: &Exchange,
    total: &mut Acceptance,
) -> Result<(), DeviceError> {
    let Some((&first, rest)) = exchange.reply.split_first() else {
        return Ok(());
    };
    let mut session = Session::new();
    for (index, chunk) in exchange.prompt.chunks(PREFILL_TOKENS).enumerate() {
        session.step(runner, chunk)?;
        let end = index * PREFILL_TOKENS + chunk.len();
        let next = exchange.prompt.get(end).copied().unwrap_or(first);
        runner.draft(&[&chunk[1..], &[next]].concat())?;
    }
    let mut token = first;
    for &served in rest {
        total.drafted += 1;
        total.accepted += usize::from(most_likely(runner.logits(0)?) == served);
        session.step(runner, &[token])?;
        runner.draft(&[served])?;
        token = served;
    }
    Ok(())
}
