//! `bench drafts`: replies with drafts of the prediction layer, at a supposed acceptance rate.
//!
//! Steps and predictions are timed, and their bytes added up, as in `bench decode`. The acceptance
//! rate is not measured, since random weights predict nothing: a draft token is accepted at the
//! supposed rate if all before it are.

use std::fmt;
use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};
use serde::Serialize;

use super::drafted::Drafted;
use super::figures::CaseFigures;
use super::{Case, Job, Report, usage, write_json};
use crate::start::boot::{self, Failure};
use model::target::{self, DRAFTS, KV_PAGES, MAX_CONTEXT};
use step::executor::DEPTH_MAX;

/// Numbers of sequences in a step, as far as the target has slots.
const SEQUENCES: [usize; 3] = [1, 4, 8];
/// Default number of tokens of each sequence before a step.
const CONTEXT: usize = match MAX_CONTEXT < 2048 {
    true => MAX_CONTEXT / 2,
    false => 1024,
};
/// Default acceptance rates.
const ACCEPTANCES: [f64; 3] = [0.85, 0.75, 0.6];

/// time steps of 1, 4 and 8 replies with 0 to 7 drafts each, and the predictions behind them; what
/// replies gain at a simulated acceptance
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "drafts", help_triggers("--help"))]
pub struct DraftsOptions {
    /// directory of the weights, any of the target's tensors; drawn ones if not given
    #[argh(option)]
    weights: Option<PathBuf>,

    /// measure the first layers only, and the prediction layer
    #[argh(option, default = "target::LAYERS")]
    layers: usize,

    /// share of drafts that is supposed to hold, each behind those that held, from 0 to 1 (may be
    /// repeated; default 0.85, 0.75 and 0.6)
    #[argh(option)]
    acceptance: Vec<f64>,

    /// tokens of each reply before the step (default 1024, or half of a context that is short)
    #[argh(option, default = "CONTEXT")]
    context: usize,

    /// write the figures as JSON to this file
    #[argh(option)]
    json: Option<PathBuf>,
}

/// Measured steps and predictions, and the gains computed from them.
#[derive(Debug, Serialize)]
struct DraftsReport {
    #[serde(flatten)]
    measured: Report,
    acceptance_is: &'static str,
    drafts: Vec<Gain>,
}

/// Gain of sequences by draft tokens, each of which is accepted at the rate `acceptance` if all
/// before it are.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Gain {
    name: String,
    acceptance: f64,
    sequences: usize,
    depth: usize,
    step_us: f64,
    /// Time of the predictions of all draft tokens, one pass after the other.
    predictions_us: f64,
    step_bytes: u64,
    predictions_bytes: u64,
    /// Expected tokens of a sequence from one step.
    tokens: f64,
    /// Tokens of all sequences a second.
    tok_s: f64,
    /// Ratio of `tok_s` to that of the same sequences without draft tokens.
    gain: f64,
    /// Tokens a second on a GB10 at 245 GB/s, computed and not measured.
    projected_gb10_tok_s: f64,
    /// Whether there are more draft tokens than the target verifies in one step.
    beyond_target: bool,
}

/// # Errors
/// The failure to measure or to write.
pub fn drafts(options: DraftsOptions) -> Result<(), Failure> {
    boot::require_prediction()?;
    let acceptances = options.acceptances()?;
    let all = options.cases()?;
    let cases = all.iter().flat_map(|drafted| {
        let predicts = drafted.depth > 0;
        let predicts = predicts.then_some(Case::Predict(*drafted));
        [Some(Case::Verify(*drafted)), predicts]
    });
    let job = Job {
        layers: options.layers,
        predicts: true,
        cases: cases.flatten().collect(),
        weights: options.weights,
    };
    let report = DraftsReport::of(job.report()?, &all, &acceptances);
    print!("{report}");
    let json = options.json;
    json.map_or(Ok(()), |path| write_json(&path, &report))
}

impl DraftsOptions {
    fn acceptances(&self) -> Result<Vec<f64>, Failure> {
        let is_share = |share: &&f64| (0.0..=1.0).contains(*share);
        if let Some(wrong) = self.acceptance.iter().find(|share| !is_share(share)) {
            let text = format!("--acceptance: a share from 0 to 1, not {wrong}");
            return Err(usage(text));
        }
        Ok(match self.acceptance.is_empty() {
            true => ACCEPTANCES.to_vec(),
            false => self.acceptance.clone(),
        })
    }

    /// Cases for which the target has enough slots, rows and positions.
    fn cases(&self) -> Result<Vec<Drafted>, Failure> {
        let drafted = |sequences, depth| Drafted {
            sequences,
            depth,
            context: self.context,
        };
        let depths = |sequences| (0..=DEPTH_MAX).map(move |depth| drafted(sequences, depth));
        let cases = SEQUENCES.into_iter().flat_map(depths);
        let cases: Vec<_> = cases.filter(|drafted| drafted.fits(KV_PAGES)).collect();
        match cases.is_empty() {
            false => Ok(cases),
            true => {
                let text = format!(
                    "--context: less than the target's {MAX_CONTEXT}, not {}",
                    self.context
                );
                Err(usage(text))
            }
        }
    }
}

impl DraftsReport {
    fn of(measured: Report, cases: &[Drafted], acceptances: &[f64]) -> DraftsReport {
        let gains = acceptances.iter().flat_map(|&acceptance| {
            let gains = cases.iter().map(move |drafted| (drafted, acceptance));
            gains.filter_map(|(drafted, acceptance)| Gain::of(&measured, *drafted, acceptance))
        });
        DraftsReport {
            drafts: gains.collect(),
            acceptance_is: "simulated",
            measured,
        }
    }
}

/// Expected tokens of a sequence from a step with `depth` draft tokens, each of which is accepted
/// with the probability `acceptance` if all before it are.
fn expected_tokens(acceptance: f64, depth: usize) -> f64 {
    let drafts = 0..=depth as i32;
    drafts.map(|drafts| acceptance.powi(drafts)).sum()
}

impl Gain {
    /// Gain computed from measurements; None if memory was too small for a measurement.
    fn of(measured: &Report, drafted: Drafted, acceptance: f64) -> Option<Gain> {
        let plain = Drafted {
            depth: 0,
            ..drafted
        };
        let [plain, step] = [plain, drafted].map(|drafted| measured.case(Case::Verify(drafted)));
        let (plain, step) = (plain?, step?);
        let predictions = measured.case(Case::Predict(drafted));
        let us = |of: fn(&CaseFigures) -> f64| of(step) + predictions.map_or(0.0, of);
        let tokens = expected_tokens(acceptance, drafted.depth);
        let tok_s = |us: f64| tokens * drafted.sequences as f64 * 1e6 / us;
        Some(Gain {
            name: format!("{drafted} at {acceptance}"),
            acceptance,
            sequences: drafted.sequences,
            depth: drafted.depth,
            step_us: step.us,
            predictions_us: predictions.map_or(0.0, |case| case.us),
            step_bytes: step.bytes,
            predictions_bytes: predictions.map_or(0, |case| case.bytes),
            tokens,
            tok_s: tok_s(us(|case| case.us)),
            gain: tokens * plain.us / us(|case| case.us),
            projected_gb10_tok_s: tok_s(us(|case| case.projected_gb10.us_at_245_gb_s)),
            beyond_target: drafted.drafts() > DRAFTS,
        })
    }
}

impl fmt::Display for DraftsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.measured.head())?;
        let same = |a: &Gain, b: &Gain| a.acceptance == b.acceptance;
        for gains in self.drafts.chunk_by(same) {
            writeln!(
                f,
                "\nacceptance {}, simulated: each draft is supposed to hold so often behind those \
                 that held, for the tokens of these steps are drawn",
                gains[0].acceptance
            )?;
            writeln!(
                f,
                "  {:>9}{:>7}{:>12}{:>16}{:>14}{:>15}{:>8}{:>10}{:>8}{:>14}",
                "sequences",
                "depth",
                "step us",
                "predictions us",
                "step bytes",
                "their bytes",
                "tokens",
                "tok/s",
                "gain",
                "GB10 tok/s"
            )?;
            gains.iter().try_for_each(|gain| writeln!(f, "{gain}"))?;
        }
        let beyond = self.drafts.iter().any(|gain| gain.beyond_target);
        if beyond {
            writeln!(
                f,
                "*: more drafts than the {DRAFTS} that a step of this target verifies"
            )?;
        }
        f.write_str("GB10: projected at 245 GB/s, not measured\n")
    }
}

impl fmt::Display for Gain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.beyond_target { "*" } else { " " };
        write!(
            f,
            "  {:>9}{:>6}{mark}{:>12.1}{:>16.1}{:>14}{:>15}{:>8.2}{:>10.1}{:>8.2}{:>14.1}",
            self.sequences,
            self.depth,
            self.step_us,
            self.predictions_us,
            self.step_bytes,
            self.predictions_bytes,
            self.tokens,
            self.tok_s,
            self.gain,
            self.projected_gb10_tok_s
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;
    use model::backend::metered::{Call, Label};
    use model::ops::Cost;

    fn options(arguments: &[&str]) -> DraftsOptions {
        DraftsOptions::from_args(&["drafts"], arguments).unwrap()
    }

    /// A step or a prediction of one operation, of 245 bytes a microsecond.
    fn figures(case: Case, us: f64, bytes: u64) -> CaseFigures {
        let call = Call {
            label: Label {
                op: "a",
                n: 0,
                k: 0,
            },
            cost: Cost { bytes, flops: 0 },
            seconds: us / 1e6,
        };
        let step = (us / 1e6, case.tokens());
        CaseFigures::of(case.name(), step, (&[call], 1), 245e6)
    }

    fn drafted(depth: usize) -> Drafted {
        Drafted {
            sequences: 4,
            depth,
            context: 3,
        }
    }

    /// Figures of replies without drafts and with two, and none of three.
    fn measured() -> DraftsReport {
        let cases = vec![
            figures(Case::Verify(drafted(0)), 100.0, 1000),
            figures(Case::Verify(drafted(2)), 110.0, 1200),
            figures(Case::Predict(drafted(2)), 30.0, 300),
        ];
        let measured = Report {
            cases,
            ..report(None, &[])
        };
        DraftsReport::of(measured, &[0, 2, 3].map(drafted), &[0.5, 1.0])
    }

    #[test]
    fn each_draft_counts_as_often_as_all_before_it_hold() {
        assert_eq!(expected_tokens(0.5, 0), 1.0);
        assert_eq!(expected_tokens(0.5, 2), 1.75);
        assert_eq!(
            [0.0, 1.0].map(|share| expected_tokens(share, 7)),
            [1.0, 8.0]
        );
    }

    #[test]
    fn predictions_take_part_of_what_drafts_gain() {
        let gains = measured().drafts;
        let names: Vec<_> = gains.iter().map(|gain| &gain.name[..]).collect();
        assert_eq!(
            names,
            [
                "4 x depth 0 at 0.5",
                "4 x depth 2 at 0.5",
                "4 x depth 0 at 1",
                "4 x depth 2 at 1"
            ]
        );
        let near =
            |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 1e-9, "{found}");
        near(gains[0].gain, 1.0);
        near(gains[0].tok_s, 4.0 / 100e-6);
        near(gains[1].gain, 1.75 * 100.0 / (110.0 + 30.0));
        near(gains[1].tok_s, 4.0 * 1.75 / 140e-6);
        near(gains[3].tok_s, 4.0 * 3.0 / 140e-6);
        // An edge of 2 us after each operation.
        let projected = 1500.0 / 245e9 + 2.0 * 2e-6;
        near(gains[1].projected_gb10_tok_s, 4.0 * 1.75 / projected);
        assert_eq!(
            (gains[1].step_bytes, gains[1].predictions_bytes),
            (1200, 300)
        );
    }

    #[test]
    fn what_is_supposed_is_said() {
        let report = measured();
        let table = report.to_string();
        assert!(table.contains("\nacceptance 0.5, simulated: "), "{table}");
        assert!(table.contains("\nacceptance 1, simulated: "), "{table}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["acceptance_is"], "simulated");
        assert_eq!(json["drafts"][1]["depth"], 2);
    }

    #[test]
    fn drafts_that_no_step_verifies_are_marked() {
        let mut report = measured();
        for beyond in [false, true] {
            report
                .drafts
                .iter_mut()
                .for_each(|gain| gain.beyond_target = beyond);
            assert_eq!(report.to_string().contains("\n*: more drafts"), beyond);
            assert_eq!(report.to_string().contains("2* "), beyond);
        }
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        for share in ["-0.1", "1.5", "NaN"] {
            let refused = options(&["--acceptance", share]).acceptances().unwrap_err();
            assert!(
                refused
                    .message
                    .starts_with("--acceptance: a share from 0 to 1")
            );
        }
        let whole = MAX_CONTEXT.to_string();
        let refused = options(&["--context", &whole]).cases().unwrap_err().message;
        assert!(refused.starts_with("--context: less than"), "{refused}");
    }

    #[test]
    fn acceptances_are_those_asked_for_or_the_usual_ones() {
        assert_eq!(options(&[]).acceptances().unwrap(), ACCEPTANCES);
        let asked = ["--acceptance", "0", "--acceptance", "1"];
        assert_eq!(options(&asked).acceptances().unwrap(), [0.0, 1.0]);
    }
}
