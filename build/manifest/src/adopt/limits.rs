//! Capacities of a new leaf: usual ones, reduced to those that model and memory allow.

use crate::schema::leaf::{Limits, Steps};
use crate::schema::model::{Mixer, Model};
use crate::target::Target;
use crate::weights::Part;

/// Tokens of a page; contexts and steps are multiples of it.
pub(super) const PAGE: u64 = 64;
/// Quarters, of the memory left by weights and states, that pages take; steps take the rest.
const PAGES_QUARTERS: u64 = 3;
/// Number of tokens to whose multiples large pools of pages are rounded down.
const POOL_STEP: u64 = 65_536;

/// Usual capacities of a backend.
struct Usual {
    sequences: u64,
    context: u64,
    prefill: u64,
    queued: u64,
    drafts: u64,
}

const CPU: Usual = Usual {
    sequences: 4,
    context: 32_768,
    prefill: 256,
    queued: 16,
    drafts: 7,
};
const GPU: Usual = Usual {
    sequences: 64,
    context: 131_072,
    prefill: 8192,
    queued: 256,
    drafts: 7,
};
/// Tokens of all pages on a CPU, whose memory is not known.
const CPU_TOKENS: u64 = 65_536;

impl Usual {
    /// These capacities reduced so that all pages together hold `tokens`.
    fn within(&self, model: &Model, tokens: u64) -> (Limits, Steps) {
        let context = self
            .context
            .min(pages(model.max_position))
            .min(pages(tokens));
        let kv_tokens = pages(tokens).min(self.sequences * context);
        let limits = Limits {
            sequences: self.sequences,
            context,
            kv_tokens,
            snapshots: keeps_snapshots(model).then_some(self.sequences),
            drafts: Some(self.drafts),
            queued: self.queued,
            page: PAGE,
        };
        let steps = Steps {
            prefill: self.prefill.min(kv_tokens),
        };
        (limits, steps)
    }
}

/// Whether the model has recurrent states or windowed pages, of which snapshots are taken.
fn keeps_snapshots(model: &Model) -> bool {
    let has = |mixer| model.layers.period.contains(&mixer);
    let recurs = model.layers.period.iter().any(|mixer| mixer.recurs());
    recurs || has(Mixer::Sliding) && has(Mixer::Attention)
}

/// `tokens` rounded down to whole pages.
fn pages(tokens: u64) -> u64 {
    tokens / PAGE * PAGE
}

/// Capacities on a CPU.
pub(super) fn cpu(model: &Model) -> (Limits, Steps) {
    CPU.within(model, CPU_TOKENS)
}

/// Capacities on the target's GPU; none if its memory does not suffice for weights and a page.
pub(super) fn gpu(target: &Target, memory: u64) -> Option<(Limits, Steps)> {
    let weights = target.part_bytes(Part::Text) + target.part_bytes(Part::Mtp);
    let state: u64 = target.state_bytes().iter().sum();
    let reserve = target.hardware.host_reserve_bytes.unwrap_or(0);
    let window = target.window_bytes_for([GPU.sequences, GPU.prefill, GPU.sequences]);
    let taken = weights + 2 * state * GPU.sequences + window + reserve;
    let rest = memory.saturating_sub(taken) / 4 * PAGES_QUARTERS;
    let token = target.kv_bytes_per_token_of_all();
    let tokens = rest.checked_div(token)?;
    let tokens = match tokens / POOL_STEP {
        0 => tokens,
        steps => steps * POOL_STEP,
    };
    (tokens >= PAGE).then(|| GPU.within(&target.model, tokens))
}
