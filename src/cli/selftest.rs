//! `selftest`: compares operations of this binary with a reference.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use argh::{ArgsInfo, FromArgs};

use check::parity::{Choice, Line, Random, Report};
use check::{Chooser, Rule, Tried};
use engine::constraint::Allowed;
use engine::request::Sampling;
use engine::sampler::Sampler;
use host::log;
use model::Plan;
use model::backend::{self, Backend};
use model::ops::Device as _;
use model::target;
use model::weights;
use step::executor::{Draw, Ranked};

use super::{Exit, Failure, drafts};
use crate::start::{boot, meter};

/// compare operations with their reference: norms, products and attention of the CPU, far into a
/// context, with their formulas, and every operation of the GPU, if this binary has one, with the
/// CPU's
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "selftest", help_triggers("--help"))]
pub struct Selftest {
    /// run the whole model with drawn weights instead, and count the rows of logits that differ
    /// between a sequence alone and in every batch, recorded and eager steps, a prompt whole and in
    /// chunks; ends with a digest of them all, by which two builds can be compared
    #[argh(switch)]
    bits: bool,

    /// layers of the model for --bits; by default all
    #[argh(option, default = "target::LAYERS")]
    layers: usize,

    /// compare this operation alone
    #[argh(option)]
    op: Option<String>,

    /// compare every row of operations on many rows, which takes the CPU minutes; by default one of
    /// each eight, and those at the edges of tiles
    #[argh(switch)]
    all: bool,

    /// draw the inputs of this seed, to see a failure again; by default from the clock
    #[argh(option)]
    seed: Option<u64>,

    /// count instead how many first drafts of the drafting layer equal the token that a server
    /// served, over the replies of this file: a JSON object per line, with the token ids
    /// prompt_tokens and reply_tokens (scripts/tiny_eval.py --served writes one)
    #[argh(option)]
    drafts: Option<PathBuf>,

    /// directory that holds the weights, for --drafts; none for a model inside the binary
    #[argh(option)]
    weights: Option<PathBuf>,
}

/// Reason why a binary without a device compares nothing.
const REFERENCE: &str = "the CPU's other operations are the reference that devices are compared \
                         with; `verify` compares all of them together with golden tokens\n";

/// Prints a line per comparison.
///
/// # Errors
/// When a comparison fails or the device cannot be used.
pub fn run(options: &Selftest) -> Result<(), Failure> {
    if let Some(file) = &options.drafts {
        return drafts::run(file, options.weights.as_deref());
    }
    let choice = Choice {
        seed: options.seed,
        op: options.op.clone(),
        all: options.all,
    };
    let usage = |text: String| Exit::Usage.failure(text);
    choice.check().map_err(usage)?;
    let report = match options.bits {
        true if !(1..=target::LAYERS).contains(&options.layers) => {
            return Err(usage(format!("--layers: 1 to {}", target::LAYERS)));
        }
        true => bits(choice, options.layers)?,
        false => check::compare_ops(choice, print_line),
    };
    boot::print(&format!("{}\n", report.total()))?;
    if cfg!(not(feature = "cuda")) && !options.bits {
        boot::print(REFERENCE)?;
    }
    if report.passed() {
        return Ok(());
    }
    let message = "a comparison failed: this device must not serve";
    Err(Exit::Internal.failure(message))
}

/// Checks that bits do not depend on the batch, on the first layers of this binary's model.
fn bits(choice: Choice, layers: usize) -> Result<Report, Failure> {
    let internal = |error| Exit::Internal.failure(error);
    let checkpoint = weights::open_seeded_layers(layers, Arc::default());
    let device = backend::open()?;
    let plan = Plan::whole_within::<Backend>(device.available(), checkpoint.layout())?;
    let mut runner = boot::load_planned(device, &checkpoint, &plan)?;
    let report = Report::with_lines(choice, print_line);
    let mut trial = Trial {
        random: Random::seeded(report.seed),
        report,
        shown: Instant::now(),
    };
    let seen = check::bit_rules(&mut runner, check::WHOLE, &mut trial).map_err(internal)?;
    boot::print(&format!("{seen}\n"))?;
    Ok(trial.report)
}

/// State of checking the rules of equal bits.
struct Trial {
    random: Random,
    report: Report,
    /// Time of the last progress line.
    shown: Instant,
}

impl check::Trial for Trial {
    fn below(&mut self, end: usize) -> usize {
        self.random.below(end)
    }

    fn trying(&mut self, done: usize, of: usize) {
        if self.shown.elapsed() >= meter::EVERY {
            log::line(format!("comparing: {done} of {of} trials"));
            self.shown = Instant::now();
        }
    }

    fn tell(&mut self, tried: Tried) {
        let passed = tried.passed();
        let (rows, different) = (tried.rows, tried.different);
        let found = format!("{rows} rows of logits, {different} different");
        let report = &mut self.report;
        report.push("model", &tried.case, tried.rule, found, passed);
    }

    fn chooser(&mut self, rule: &Rule) -> (Draw, Chooser) {
        let sampling = Sampling {
            temperature: rule.temperature,
            top_k: rule.top_k,
            top_p: rule.top_p,
            min_p: rule.min_p,
            seed: rule.seed,
            ..Sampling::default()
        };
        let sampler = Sampler::new(sampling, &[], &[], 0);
        let draw = sampler.draw(1).expect("such a rule draws");
        let choose = move |ranked: &Ranked<'_>, position| {
            let chosen = sampler.choose_ranked(ranked, Allowed::All, position);
            chosen.expect("the largest logits decide")
        };
        (draw, Box::new(choose))
    }
}

/// Prints a line. A closed output does not stop the comparisons: the exit code still has the
/// outcome.
fn print_line(line: &Line) {
    let _ = boot::print(&format!("{line}\n"));
}
