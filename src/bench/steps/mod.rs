//! `bench decode`, `bench prefill` and `bench drafts`: the model's steps against the limit of
//! memory bandwidth.
//!
//! A step is timed as the engine runs it. The step's operations are then timed one by one on a
//! second copy of the model, and their bytes added up: bytes that no cache can save, with as many
//! experts as rows visit if all are equally likely. The limit is the time of these bytes at the
//! rate of a large plain read, measured in the same run. Each operation is also compared with a
//! plain read of its own size, which starts and ends as the operation does.

pub mod drafted;
pub mod drafts;
pub mod figures;
mod origin;
pub mod reads;
pub mod run;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use argh::{ArgsInfo, FromArgs};
use serde::Serialize;

use super::{usage, write};
use crate::start::boot::Failure;
use model::Runs;
use model::backend::clock::Timed;
use model::backend::metered::{self, Metered, Sink};
use model::backend::{self, Backend};
use model::ops::Device;
use model::target::{self, KV_PAGES, MAX_CONTEXT, PAGE};
use model::weights::{self, Checkpoint};
use model::{Plan, Runner};
use step::executor::DeviceError;

pub use drafts::DraftsOptions;

use drafted::Drafted;
use figures::CaseFigures;
use origin::Origin;
use reads::Reads;
use run::Decode;

/// Version of the JSON file's layout, raised when a reader would misread the file.
const FORMAT: u32 = 2;
/// Numbers of rows in decode steps, as far as the target has slots.
const ROWS: [usize; 5] = [1, 8, 16, 32, 64];
/// Contexts of decode steps in tokens, as far as they fit.
const CONTEXTS: [usize; 4] = [128, 8192, 32 << 10, 127 << 10];
/// Lengths of prompts in tokens, cut to the target's context.
const PROMPTS: [usize; 4] = [128, 1024, 8192, 32_768];
/// Timed steps, after a quarter as many to warm up; the median counts.
const STEPS: usize = 32;
/// Number of steps, including those that warm up.
const STEPS_ALL: usize = STEPS + STEPS / 4;
/// Timed prompts of each length, after one to warm up; the median counts.
const REPEATS: usize = 3;
/// Steps whose operations are timed, after one to warm up.
const METERED: usize = 3;

/// time decode steps of 1 to 64 sequences, each operation, and what memory allows
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "decode", help_triggers("--help"))]
pub struct DecodeOptions {
    /// directory of the weights, any of the target's tensors; drawn ones if not given
    #[argh(option)]
    weights: Option<PathBuf>,

    /// measure the first layers only
    #[argh(option, default = "target::LAYERS")]
    layers: usize,

    /// write the figures as JSON to this file
    #[argh(option)]
    json: Option<PathBuf>,
}

/// time prompts of 128 to 32768 tokens, each operation, and what memory allows
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "prefill", help_triggers("--help"))]
pub struct PrefillOptions {
    /// directory of the weights, any of the target's tensors; drawn ones if not given
    #[argh(option)]
    weights: Option<PathBuf>,

    /// measure the first layers only
    #[argh(option, default = "target::LAYERS")]
    layers: usize,

    /// measure prompts of so many tokens only
    #[argh(option)]
    tokens: Option<usize>,

    /// write the figures as JSON to this file
    #[argh(option)]
    json: Option<PathBuf>,
}

/// Measurements of steps of one kind.
#[derive(Debug, Serialize)]
pub struct Report {
    format: u32,
    target: &'static str,
    origin: Origin,
    /// The part of the GPU that was measured; None for the whole GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<String>,
    weights: String,
    load_s: f64,
    /// Rate of a large plain read in GB/s.
    read_gb_s: f64,
    pub cases: Vec<CaseFigures>,
    /// Names of cases that need more KV pages than fit into memory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<String>,
}

/// Kind of step that is timed.
#[derive(Clone, Copy, Debug)]
enum Case {
    Decode(Decode),
    Prompt(usize),
    /// Step that verifies draft tokens.
    Verify(Drafted),
    /// Predictions after a step with draft tokens.
    Predict(Drafted),
}

/// Cases to time, and the weights for them.
struct Job {
    weights: Option<PathBuf>,
    layers: usize,
    /// Whether the prediction layer is loaded.
    predicts: bool,
    cases: Vec<Case>,
}

/// # Errors
/// The case that cannot be measured, or the file that cannot be written.
pub fn decode(options: DecodeOptions) -> Result<(), Failure> {
    let rows = ROWS.into_iter();
    let cases = rows.flat_map(|rows| CONTEXTS.map(|context| Decode { rows, context }));
    let cases = cases.filter(|case| case.fits(STEPS_ALL, KV_PAGES));
    let job = Job {
        weights: options.weights,
        layers: options.layers,
        predicts: false,
        cases: cases.map(Case::Decode).collect(),
    };
    job.report()?.publish(options.json)
}

/// # Errors
/// Errors of [`decode`].
pub fn prefill(options: PrefillOptions) -> Result<(), Failure> {
    let most = MAX_CONTEXT / PAGE * PAGE;
    let prompts = match options.tokens {
        None => {
            let mut prompts = PROMPTS.map(|tokens| tokens.min(most)).to_vec();
            prompts.dedup();
            prompts
        }
        Some(tokens) if (1..=most).contains(&tokens) => vec![tokens],
        Some(tokens) => {
            let text = format!("--tokens: 1 to {most}, not {tokens}");
            return Err(usage(text));
        }
    };
    let job = Job {
        weights: options.weights,
        layers: options.layers,
        predicts: false,
        cases: prompts.into_iter().map(Case::Prompt).collect(),
    };
    job.report()?.publish(options.json)
}

impl Job {
    fn report(&self) -> Result<Report, Failure> {
        if self.layers == 0 || self.layers > target::LAYERS {
            let text = format!("--layers: 1 to {}, not {}", target::LAYERS, self.layers);
            return Err(usage(text));
        }
        Ok(self.measure()?)
    }

    fn open(&self) -> Result<Checkpoint, Box<dyn Error + Send + Sync>> {
        let checkpoint = match &self.weights {
            None => weights::open_seeded_layers(self.layers, Arc::default()),
            Some(directory) => weights::open_layers(directory, self.layers, Arc::default())?,
        };
        Ok(match self.predicts {
            true => checkpoint,
            false => checkpoint.without_prediction(),
        })
    }

    fn measure(&self) -> Result<Report, Box<dyn Error + Send + Sync>> {
        let checkpoint = self.open()?;
        let mut reads = Reads::new(backend::open()?.clock()?);
        let sink = Sink::default();
        // The metered copy of the model needs more memory, so its plan also fits the other copy.
        let metered = || Metered::new(backend::open()?, sink.clone());
        let plan = Plan::within::<Backend>(metered()?.available(), checkpoint.layout())?;
        let device = backend::open()?;
        let start = Instant::now();
        let mut runner = Runner::load(device, &checkpoint, &plan)?;
        let load_s = start.elapsed().as_secs_f64();
        let fits = |case: &Case| case.fits(plan.pages);
        let (cases, left_out): (Vec<_>, Vec<_>) = self.cases.iter().copied().partition(fits);
        let times = cases.iter().map(|case| case.seconds(&mut runner));
        let times = times.collect::<Result<Vec<_>, _>>()?;
        let launches: Vec<_> = cases.iter().map(|case| case.launches(&runner)).collect();
        drop(runner);
        let mut runner = Runner::load(metered()?, &checkpoint, &plan)?;
        let metered = cases.iter().map(|case| {
            let repeats = case.meter(&mut runner, &sink)?;
            Ok((sink.take(), repeats))
        });
        let metered = metered.collect::<Result<Vec<_>, DeviceError>>()?;
        // The rate is measured right after the operations, at the same temperature of the memory.
        let rate = reads.rate()?;
        let mut all = Vec::new();
        let steps = times.into_iter().zip(launches);
        for ((case, step), (calls, repeats)) in cases.iter().zip(steps).zip(metered) {
            let (seconds, launches) = step;
            let step = (seconds, case.tokens());
            let figures = CaseFigures::of(case.name(), step, (&calls, repeats), rate);
            let mut figures = figures.beside(&mut reads)?;
            figures.launches = launches;
            all.push(figures);
        }
        Ok(Report {
            format: FORMAT,
            target: target::BINARY,
            origin: Origin::now(),
            partition: backend::partition(),
            weights: match &self.weights {
                None => format!("drawn, {} layers", self.layers),
                Some(path) => format!("{}, {} layers", path.display(), self.layers),
            },
            load_s,
            read_gb_s: rate / 1e9,
            cases: all,
            left_out: left_out.into_iter().map(Case::name).collect(),
        })
    }
}

impl Case {
    fn name(self) -> String {
        match self {
            Case::Decode(Decode { rows, context }) => format!("{rows} x context {context}"),
            Case::Prompt(tokens) => format!("prompt of {tokens}"),
            Case::Verify(drafted) => drafted.to_string(),
            Case::Predict(drafted) => format!("predictions behind {drafted}"),
        }
    }

    /// Whether a model of `pages` KV pages can run the case; prompts are cut to fit.
    fn fits(&self, pages: usize) -> bool {
        match self {
            Case::Decode(decode) => decode.fits(STEPS_ALL, pages),
            Case::Prompt(_) => true,
            Case::Verify(drafted) | Case::Predict(drafted) => drafted.fits(pages),
        }
    }

    /// Number of tokens that the case generates or reads.
    fn tokens(self) -> usize {
        match self {
            Case::Decode(decode) => decode.rows,
            Case::Prompt(tokens) => tokens,
            Case::Verify(drafted) => drafted.rows(),
            Case::Predict(drafted) => drafted.drafts(),
        }
    }

    fn launches<B: Runs>(self, runner: &Runner<B>) -> Option<usize> {
        match self {
            Case::Decode(decode) => runner.launches(decode.rows),
            Case::Prompt(_) | Case::Verify(_) | Case::Predict(_) => None,
        }
    }

    fn seconds<B: Runs>(self, runner: &mut Runner<B>) -> Result<f64, DeviceError> {
        let mut times = match self {
            Case::Decode(decode) => decode.run(runner, STEPS_ALL)?.split_off(STEPS / 4),
            Case::Prompt(tokens) => {
                let times = (0..=REPEATS).map(|_| run::prefill(runner, tokens));
                times.collect::<Result<Vec<_>, _>>()?.split_off(1)
            }
            Case::Verify(drafted) => drafted.steps(runner, STEPS_ALL)?.split_off(STEPS / 4),
            Case::Predict(drafted) => {
                let mut times = drafted.predictions(runner, STEPS_ALL, Drafted::step)?;
                times.split_off(STEPS / 4)
            }
        };
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    /// Times the operations of some steps into `sink`; returns the number of steps.
    fn meter<B: Runs + Timed>(
        self,
        runner: &mut Runner<Metered<B>>,
        sink: &Rc<RefCell<Vec<metered::Call>>>,
    ) -> Result<usize, DeviceError> {
        let mut once = |steps| match self {
            Case::Decode(decode) => decode.run(runner, steps).map(drop),
            Case::Prompt(tokens) => {
                (0..steps).try_for_each(|_| run::prefill(runner, tokens).map(drop))
            }
            Case::Verify(drafted) => drafted.steps(runner, steps).map(drop),
            Case::Predict(drafted) => {
                let untold = |drafted: &Drafted, runner: &mut _, round| {
                    let calls = sink.borrow().len();
                    drafted.step(runner, round)?;
                    sink.borrow_mut().truncate(calls);
                    Ok(())
                };
                drafted.predictions(runner, steps, untold).map(drop)
            }
        };
        once(1)?;
        sink.borrow_mut().clear();
        once(METERED)?;
        Ok(METERED)
    }
}

impl Report {
    /// Prints the figures, and writes them to the file `json` if it is given.
    fn publish(&self, json: Option<PathBuf>) -> Result<(), Failure> {
        print!("{}", self.table());
        json.map_or(Ok(()), |path| write_json(&path, self))
    }

    /// Table of the figures, for people.
    pub fn table(&self) -> String {
        let mut text = self.head();
        for case in &self.cases {
            case_table(&mut text, case).expect("a string takes everything");
        }
        text
    }

    /// Figures of a case; None if memory was too small for it.
    fn case(&self, case: Case) -> Option<&CaseFigures> {
        let name = case.name();
        self.cases.iter().find(|figures| figures.name == name)
    }

    /// Heading of the table: target, weights, and the kind of measurement.
    fn head(&self) -> String {
        let mut text = format!(
            "{}, weights {}: loaded in {:.2} s; a large plain read takes {:.1} GB/s\n",
            self.target, self.weights, self.load_s, self.read_gb_s
        );
        if let Some(part) = &self.partition {
            writeln!(text, "kernels on {part}: figures of a part of this GPU")
                .expect("a string takes everything");
        }
        if !self.left_out.is_empty() {
            let names = self.left_out.join(", ");
            text += &format!("left out, there is no memory for their KV pages: {names}\n");
        }
        text
    }
}

fn write_json(path: &Path, report: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(report).expect("plain numbers and strings");
    write(path, &(text + "\n"))
}

fn case_table(text: &mut String, case: &CaseFigures) -> std::fmt::Result {
    let CaseFigures {
        name,
        us,
        tok_s,
        limit_us,
        share,
        launches,
        ops_us,
        ..
    } = case;
    let launches = launches.map_or(String::new(), |count| format!(" in {count} launches"));
    writeln!(
        text,
        "\n{name}: {us:.1} us{launches}, {tok_s:.0} tokens/s; {:.3} GB, limit {limit_us:.1} us: \
         {:.1} %; operations one by one {ops_us:.1} us",
        case.bytes as f64 / 1e9,
        100.0 * share
    )?;
    writeln!(
        text,
        "  projected for a GB10, not measured: {:.0} us at 245 GB/s, {:.0} us at 232 GB/s",
        case.projected_gb10.us_at_245_gb_s, case.projected_gb10.us_at_232_gb_s
    )?;
    writeln!(
        text,
        "  {:<24}{:>6}{:>12}{:>14}{:>10}{:>8}{:>12}",
        "operation", "calls", "us", "bytes", "GB/s", "limit", "plain read"
    )?;
    for op in &case.ops {
        writeln!(
            text,
            "  {:<24}{:>6}{:>12.1}{:>14}{:>10.1}{:>7.1}%{:>11.1}%",
            op.name,
            op.calls,
            op.us,
            op.bytes,
            op.gb_s,
            100.0 * op.share,
            100.0 * op.read_us / op.us
        )?;
    }
    Ok(())
}
