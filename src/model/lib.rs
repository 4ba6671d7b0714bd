//! The model of one target: its constants, its shapes, what is computed in terms of [`ops`], the
//! devices that run those, and the weights.

mod acceptance;
pub mod backend;
mod bits;
mod blocks;
mod decoder;
#[cfg(test)]
#[path = "golden_tests.rs"]
mod golden;
mod keep;
pub mod ledger;
pub mod ops;
mod oracle;
mod pools;
mod runner;
mod selfcheck;
mod session;
pub mod shapes;
mod stacks;
pub mod target;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod text_check;
pub mod weights;

pub use acceptance::{Acceptance, Exchange, acceptance};
pub use bits::{Chooser, Extent, Rule, Seen, Trial, Tried, WHOLE, bit_rules};
pub use blocks::{ROUTER_LOGITS, ROWS_NVFP4, Runs};
pub use keep::keep_golden;
pub use ledger::{Plan, TooLittle};
pub use oracle::{Fed, LayerFinding, OracleError, oracle};
pub use runner::{ROWS_MAX, Runner};
pub use selfcheck::{Mismatch, Report, TOLERANCE_F32, Tolerance, selfcheck};
pub use session::{rings_fitting, window_ring};
pub use stacks::{Stack, stacks};
pub use text_check::{
    TEXT, TEXT_TOKENS, TextBound, TextMismatch, TextReport, check_text, draw_tokens,
};
