//! Checks of a device's operations and of a loaded model, and the sessions that drive an executor
//! for them. Neither the model nor its devices depend on this crate.

mod acceptance;
mod bits;
#[cfg(feature = "cuda")]
#[path = "cuda.rs"]
mod device;
#[cfg(test)]
#[path = "golden_tests.rs"]
mod golden;
mod keep;
mod oracle;
pub mod parity;
mod selfcheck;
mod session;
#[cfg(test)]
mod tests;
mod text_check;

/// Stand-in for a device where the host's processor, the reference, is the only backend.
#[cfg(not(feature = "cuda"))]
mod device {
    use super::parity::{Random, Report};
    use super::selfcheck::{TOLERANCE_F32, Tolerance};

    /// Distance that the self-check before serving allows from golden log-probabilities.
    pub const GOLDEN_TOLERANCE: Tolerance = TOLERANCE_F32;

    /// Does nothing: the CPU's ops are the reference themselves.
    pub fn parity(_: &mut Report, _: &mut Random) {}
}

pub use acceptance::{Acceptance, Exchange, acceptance};
pub use bits::{Chooser, Extent, Rule, Seen, Trial, Tried, WHOLE, bit_rules};
pub use device::GOLDEN_TOLERANCE;
pub use keep::keep_golden;
pub use oracle::{LayerFinding, OracleError, oracle};
pub use selfcheck::{Mismatch, Report, TOLERANCE_F32, Tolerance, selfcheck};
pub use session::{rings_fitting, window_ring};
pub use text_check::{
    TEXT, TEXT_IS_WHOLE, TEXT_TOKENS, TextBound, TextMismatch, TextReport, check_text, draw_tokens,
};

/// Compares the chosen ops of this binary with their reference: most of a minute at a large model's
/// shapes, and many minutes with all rows. `on_line` gets each line at once. An op that is chosen
/// alone has other random inputs than among all.
pub fn compare_ops(choice: parity::Choice, on_line: fn(&parity::Line)) -> parity::Report {
    let mut report = parity::Report::with_lines(choice, on_line);
    let mut random = parity::Random::seeded(report.seed);
    parity::formulas(&mut report, &mut random);
    device::parity(&mut report, &mut random);
    report
}
