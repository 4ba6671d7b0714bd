//! `test`: everything that can be tried without a GPU, and with one if there is one.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use argh::FromArgs;

use super::steps::{self, Outcome, Step};
use crate::site::{Failure, Site};

/// Bytes of a failed step's output that are shown.
const SHOWN_BYTES: usize = 16 << 10;

/// Variables that cargo sets for the program it runs, and that a cargo started by that program must
/// not see.
const CARGO_VARIABLES: [&str; 3] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"];

/// Run all tests that this machine can run. With a target: that target's tests alone.
#[derive(FromArgs)]
#[argh(subcommand, name = "test")]
pub struct Test {
    /// which target: <hw>/<model>/<quant>; by default the whole suite
    #[argh(positional)]
    target: Option<String>,
    /// print the steps and what each protects, and run none
    #[argh(switch)]
    list: bool,
}

impl Test {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        if self.list {
            for step in steps::steps(site, self.target.as_deref())? {
                println!("{:<32} {}", step.name, step.protects);
            }
            return Ok(());
        }
        suite(site, self.target.as_deref(), Policy::SkipsAllowed)
    }
}

/// What a missing package means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    SkipsAllowed,
    PackagesRequired,
}

/// What steps work with.
pub struct Suite<'a> {
    pub site: &'a Site,
}

impl Suite<'_> {
    /// Path of the log of a step.
    pub fn log(&self, name: &str) -> PathBuf {
        self.site
            .atlas()
            .join("log")
            .join(format!("test-{}", name.replace(['/', ' '], "-")))
    }

    /// A cargo in the workspace, free of what the cargo that started us has set.
    pub fn cargo(&self, args: &str) -> Command {
        let mut command = Command::new("cargo");
        command
            .args(args.split_whitespace())
            .current_dir(&self.site.root);
        for (name, _) in std::env::vars() {
            if CARGO_VARIABLES
                .iter()
                .any(|prefix| name.starts_with(prefix))
            {
                command.env_remove(name);
            }
        }
        command
    }

    /// Runs a command to its end; its output if it succeeds.
    ///
    /// # Errors
    /// The last part of what it printed.
    pub fn run(&self, name: &str, command: &mut Command) -> Result<String, String> {
        let log = self.log(name);
        let out = File::create(&log).map_err(|why| format!("open {}: {why}", log.display()))?;
        let err = out
            .try_clone()
            .map_err(|why| format!("open {}: {why}", log.display()))?;
        let program = command.get_program().display().to_string();
        let status = command
            .stdout(out)
            .stderr(err)
            .status()
            .map_err(|why| format!("{program}: {why}"))?;
        let bytes = std::fs::read(&log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        if status.success() {
            return Ok(text.into_owned());
        }
        let from = text.floor_char_boundary(text.len().saturating_sub(SHOWN_BYTES));
        let args = command.get_args().map(|arg| arg.to_string_lossy());
        let args = args.collect::<Vec<_>>().join(" ");
        Err(format!("{program} {args}: {status}\n{}", &text[from..]))
    }
}

/// Runs the steps, reports, and fails if one of them did.
///
/// # Errors
/// If a step failed.
pub fn suite(site: &Site, target: Option<&str>, policy: Policy) -> Result<(), Failure> {
    let log = site.atlas().join("log");
    std::fs::create_dir_all(&log).map_err(|why| format!("make {}: {why}", log.display()))?;
    let suite = Suite { site };
    let (mut passed, mut failed, mut skipped) = (0, vec![], vec![]);
    for step in steps::steps(site, target)? {
        match outcome(&suite, &step, policy) {
            Outcome::Passed => passed += 1,
            Outcome::Failed(why) => failed.push((step.name, why)),
            Outcome::Skipped { why, .. } => skipped.push((step.name, step.protects, why)),
        }
    }
    for (name, protects, why) in &skipped {
        println!("skipped: {name} ({protects}): {why}");
    }
    for (name, why) in &failed {
        println!("failed: {name}: {}", why.lines().next().unwrap_or_default());
    }
    println!(
        "{passed} passed, {} failed, {} skipped",
        failed.len(),
        skipped.len()
    );
    if failed.is_empty() {
        Ok(())
    } else {
        Err(Failure::Failed("tests failed".to_string()))
    }
}

fn outcome(suite: &Suite<'_>, step: &Step, policy: Policy) -> Outcome {
    println!("test  {} ...", step.name);
    let since = Instant::now();
    let outcome = match (step.run)(suite, &step.name) {
        Outcome::Skipped {
            why,
            installable: true,
        } if policy == Policy::PackagesRequired => Outcome::Failed(why),
        outcome => outcome,
    };
    let seconds = since.elapsed().as_secs_f32();
    match &outcome {
        Outcome::Passed => println!("ok    {} ({seconds:.1} s)", step.name),
        Outcome::Skipped { why, .. } => println!("skip  {}: {why}", step.name),
        Outcome::Failed(why) => println!("FAIL  {} ({seconds:.1} s)\n{why}", step.name),
    }
    outcome
}
