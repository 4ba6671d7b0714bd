//! Models: what is computed, in terms of `crate::ops`.

mod acceptance;
mod bits;
#[cfg(test)]
mod golden;
mod keep;
pub mod ledger;
mod measure;
mod oracle;
mod parts;
mod qwen3_5_moe;
mod runner;
mod selfcheck;
mod session;
#[cfg(test)]
mod tests;
mod text_check;

pub use acceptance::{Acceptance, Exchange, acceptance};
pub use bits::{Extent, Seen, WHOLE, bit_rules};
pub use keep::keep_golden;
pub use ledger::{Plan, TooLittle};
pub use measure::measure;
pub use oracle::{LayerFinding, OracleError, oracle};
pub use qwen3_5_moe::Runs;
pub use runner::{ROUTER_LOGITS, ROWS_MAX, Runner};
pub use selfcheck::{Mismatch, Report, TOLERANCE_F32, Tolerance, selfcheck};
pub use text_check::{
    TEXT, TEXT_TOKENS, TextBound, TextMismatch, TextReport, check_text, draw_tokens,
};
