//! Models: what is computed, in terms of `crate::ops`.

mod acceptance;
mod bits;
mod blocks;
mod decoder;
#[cfg_attr(model = "hybrid", path = "hybrid.rs")]
#[cfg_attr(model = "plain", path = "plain.rs")]
#[cfg_attr(model = "sliding", path = "sliding.rs")]
mod family;
mod feed_forward;
#[cfg(test)]
mod golden;
mod keep;
pub mod ledger;
mod oracle;
mod runner;
mod selfcheck;
mod session;
mod stacks;
#[cfg(test)]
mod tests;
mod text_check;
#[cfg(test)]
mod trials;

pub use acceptance::{Acceptance, Exchange, acceptance};
pub use bits::{Extent, Seen, Trial, Tried, WHOLE, bit_rules};
pub use family::Runs;
pub use feed_forward::{ROUTER_LOGITS, ROWS_NVFP4};
pub use keep::keep_golden;
pub use ledger::{Plan, TooLittle};
pub use oracle::{Fed, LayerFinding, OracleError, oracle};
pub use runner::{ROWS_MAX, Runner};
pub use selfcheck::{Mismatch, Report, TOLERANCE_F32, Tolerance, selfcheck};
pub use stacks::{Stack, stacks};
pub use text_check::{
    TEXT, TEXT_TOKENS, TextBound, TextMismatch, TextReport, check_text, draw_tokens,
};
