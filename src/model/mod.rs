//! Models: what is computed, in terms of `crate::ops`.

mod acceptance;
mod bits;
#[cfg(test)]
mod golden;
pub mod ledger;
mod measure;
mod parts;
mod qwen3_5_moe;
mod runner;
mod selfcheck;
mod session;
#[cfg(test)]
mod tests;

pub use acceptance::{Acceptance, Exchange, acceptance};
pub use bits::{Extent, WHOLE, bit_rules};
pub use ledger::{Plan, TooLittle};
pub use measure::measure;
pub use runner::{ROUTER_LOGITS, ROWS_MAX, Runner};
pub use selfcheck::{Mismatch, Report, TOLERANCE_F32, Tolerance, selfcheck};
