//! `test`: all tests that run on this machine, with a GPU or without.

use std::fs::File;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::time::Instant;
use std::{io, iter, thread};

use argh::FromArgs;

use super::reads::Reads;
use super::steps::{self, Outcome, Schedule, Step, Tier};
use crate::graph::digest::Digests;
use crate::graph::explain::{self, Reason};
use crate::plan::sharing;
use crate::site::{Failure, Site};
use crate::toolchain::Toolchain;

/// Bytes of a failed step's output that are shown.
const SHOWN_BYTES: usize = 16 << 10;

/// Prefixes of variables that cargo sets for the program it runs, and that a cargo started by that
/// program must not see.
const CARGO_VARIABLES: [&str; 3] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"];

/// Run all tests that this machine can run, but for those that passed and read nothing that has
/// changed since. With a target: that target's tests alone.
#[derive(FromArgs)]
#[argh(subcommand, name = "test")]
pub struct Test {
    /// which target: <hw>/<model>/<quant>; by default the whole suite
    #[argh(positional)]
    target: Option<String>,
    /// print the steps and what each protects, and run none
    #[argh(switch)]
    list: bool,
    /// print why each step runs, and what it reads
    #[argh(switch)]
    explain: bool,
    /// leave out the steps that serve a binary or look at other targets, for a quick check
    #[argh(switch)]
    changed: bool,
    /// run also what the workflows run: more models, and the kernels of every family
    #[argh(switch)]
    all: bool,
    /// run what the workflows run, and fail where a package is missing that a step needs
    #[argh(switch)]
    complete: bool,
    /// run the steps that are up to date, too
    #[argh(switch)]
    again: bool,
    /// run only the steps whose name begins with this, of all
    #[argh(option, default = "String::new()")]
    step: String,
}

impl Test {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        let mut steps = steps::steps(site, self.target.as_deref())?;
        let is_near = |step: &Step| step.reads.as_ref().is_some_and(Reads::is_near);
        steps.retain(|step| step.name.starts_with(&self.step));
        steps.retain(|step| !self.changed || is_near(step));
        let takes_all = self.all || self.complete || self.target.is_some() || !self.step.is_empty();
        steps.retain(|step| takes_all || step.tier == Tier::Suite);
        if steps.is_empty() {
            let why = format!("no step begins with `{}`; --list prints them", self.step);
            return Err(Failure::Usage(why));
        }
        if self.list {
            for step in steps {
                println!("{:<32} {}", step.name, step.protects);
            }
            return Ok(());
        }
        suite(site, steps, &self)
    }
}

/// Crates that are equal for every target: package, folder, and other files that the tests read.
pub const ROOMS: [Room; 6] = [
    ("host", "src/host", &[]),
    ("step", "src/step", &[]),
    ("engine", "src/engine", &[]),
    ("text", "src/text", &[]),
    ("ui", "src/ui", &[]),
    (
        "atlas-http",
        "src/http",
        &["ci/e2e/recordings", "packaging"],
    ),
];
pub type Room = (&'static str, &'static str, &'static [&'static str]);

/// Optimisation level of a crate under test.
#[derive(Clone, Copy, Debug)]
pub enum Optimised {
    /// No optimisation: the crate is compiled in a fifth of the time.
    No = 0,
    /// Some optimisation, for the engine, whose simulations take three times as long without it.
    Yes = 1,
    /// Full optimisation, for the model on the CPU: below it, each instruction of its kernels is a
    /// call. The standard library's checks of unsafe code, which take as long as the kernels, are
    /// left to small models.
    Wholly = 3,
}

/// Context of a step that runs.
pub struct Work<'a> {
    pub site: &'a Site,
    /// Name of the step.
    pub name: &'a str,
    /// Target that the step tests.
    pub target: &'a str,
}

impl Work<'_> {
    /// Path of a log for the step, or for another program that it starts.
    pub fn log(&self, name: &str) -> PathBuf {
        self.site.atlas().join("log").join(slug(name))
    }

    /// `cargo` in the workspace, without the variables that the cargo around xtask set.
    pub fn cargo(&self, args: &str) -> Command {
        let mut command = Command::new("cargo");
        command.args(args.split_whitespace());
        command.current_dir(&self.site.root);
        for (name, _) in std::env::vars() {
            let mut prefixes = CARGO_VARIABLES.iter();
            if prefixes.any(|prefix| name.starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command
    }

    /// `cargo` for the crates of the binary. It shares dependencies with the pipeline's builds for
    /// this host: a clean clone compiles them once, and tests run them as shipped. Crates of the
    /// workspace have overflow checks; `optimised` is the level of the model and its checks.
    ///
    /// # Errors
    /// If a program of the toolchain is missing.
    pub fn product_cargo(
        &self,
        verb: &str,
        optimised: Optimised,
        args: &str,
    ) -> Result<Command, String> {
        let toolchain = Toolchain::find(&self.site.root)?;
        let mut command = self.cargo(verb);
        let rooms = ROOMS.into_iter().map(|(package, ..)| match package {
            "engine" => (package, Optimised::Yes),
            _ => (package, Optimised::No),
        });
        let others = [
            ("atlas", Optimised::No),
            ("ffi", Optimised::No),
            ("model", optimised),
            ("check", optimised),
        ];
        for (package, optimised) in rooms.chain(others) {
            let (level, is_whole) = (optimised as u8, matches!(optimised, Optimised::Wholly));
            for setting in [
                format!("opt-level={level}"),
                format!("debug-assertions={}", !is_whole),
                "overflow-checks=true".to_owned(),
            ] {
                let setting = format!("profile.release.package.{package}.{setting}");
                command.args(["--config", &setting]);
            }
        }
        command
            .args(["--release", "--locked", "--target", &toolchain.host])
            .args(args.split_whitespace())
            .envs(sharing(&toolchain, &self.site.atlas()));
        Ok(command)
    }

    /// Runs a command; returns its output if it succeeds.
    ///
    /// # Errors
    /// The last part of its output.
    pub fn run(&self, command: &mut Command) -> Result<String, Failure> {
        let log = self.log(self.name);
        let failed = |why: io::Error| format!("open {}: {why}", log.display());
        let out = File::create(&log).map_err(failed)?;
        let err = out.try_clone().map_err(failed)?;
        let program = command.get_program().display().to_string();
        let status = command.stdout(out).stderr(err).status();
        let status = status.map_err(|why| format!("{program}: {why}"))?;
        let bytes = std::fs::read(&log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        if status.success() {
            return Ok(text.into_owned());
        }
        let from = text.floor_char_boundary(text.len().saturating_sub(SHOWN_BYTES));
        let args = command.get_args().map(|arg| arg.to_string_lossy());
        let args = args.collect::<Vec<_>>().join(" ");
        Err(format!("{program} {args}: {status}\n{}", &text[from..]).into())
    }
}

/// Runs the steps and reports; fails if a step failed.
fn suite(site: &Site, steps: Vec<Step>, options: &Test) -> Result<(), Failure> {
    let log = site.atlas().join("log");
    std::fs::create_dir_all(&log).map_err(|why| format!("make {}: {why}", log.display()))?;
    let passes = Passes::open(site, options)?;
    let (mut passed, mut failed, mut skipped) = (0, vec![], vec![]);
    // The lanes and this thread are more than the cores, since steps wait at times.
    let lanes = thread::available_parallelism().map_or(1, NonZero::get);
    for (step, outcome) in outcomes(&steps, lanes, |step| outcome(site, step, &passes)) {
        match outcome {
            Outcome::Passed | Outcome::UpToDate => passed += 1,
            Outcome::Failed(why) => failed.push((&step.name, why)),
            Outcome::Skipped(why) => skipped.push((&step.name, step.protects, why)),
        }
    }
    for (name, protects, why) in &skipped {
        println!("skipped: {name} ({protects}): {why}");
    }
    for (name, why) in &failed {
        println!("failed: {name}: {}", why.lines().next().unwrap_or_default());
    }
    let (wrong, lacking) = (failed.len(), skipped.len());
    println!("{passed} passed, {wrong} failed, {lacking} skipped");
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::Failed("tests failed".to_string())),
    }
}

/// Runs the steps in order and returns their outcomes. Steps that run beside others are on `lanes`
/// threads, and on this one after all steps in order.
fn outcomes<T: Send>(
    steps: &[Step],
    lanes: usize,
    run: impl Fn(&Step) -> T + Sync,
) -> Vec<(&Step, T)> {
    let mut ended = vec![];
    for group in steps.split_inclusive(|step| step.schedule == Schedule::Alone) {
        let (send, waiting) = mpsc::channel();
        let waiting = Mutex::new(waiting);
        let next = || waiting.lock().ok()?.recv().ok();
        let lane = || iter::from_fn(next).map(|step| (step, run(step)));
        thread::scope(|scope| {
            let spawn = |_| scope.spawn(|| lane().collect::<Vec<_>>());
            let beside: Vec<_> = (0..lanes).map(spawn).collect();
            for step in group {
                match step.schedule {
                    Schedule::Beside => send.send(step).expect("the lanes wait for it"),
                    Schedule::InOrder => ended.push((step, run(step))),
                    Schedule::Alone => {}
                }
            }
            drop(send);
            ended.extend(lane());
            ended.extend(beside.into_iter().flat_map(joined));
        });
        let alone = group.last().filter(|step| step.schedule == Schedule::Alone);
        ended.extend(alone.map(|step| (step, run(step))));
    }
    ended
}

/// Result of a thread; a panic in it is continued here.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    let found = thread.join();
    found.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Record of steps that passed.
struct Passes<'a> {
    atlas: PathBuf,
    digests: Digests,
    /// Identity of the compiler and of xtask, on which any result depends.
    tools: String,
    options: &'a Test,
}

impl<'a> Passes<'a> {
    fn open(site: &Site, options: &'a Test) -> Result<Passes<'a>, Failure> {
        let atlas = site.atlas();
        let digests = Digests::load(atlas.join("test-digests"));
        let rustc = Toolchain::find(&site.root)?.rustc.identity;
        let own = std::env::current_exe().and_then(|own| digests.of_file(&own));
        let own = own.map_err(|why| format!("read xtask: {why}"))?;
        for folder in ["explain", "work"] {
            let folder = atlas.join(folder);
            std::fs::create_dir_all(&folder)
                .map_err(|why| format!("make {}: {why}", folder.display()))?;
        }
        Ok(Passes {
            tools: format!("tool rustc = {rustc:?}\ntool xtask = {own}\n"),
            atlas,
            digests,
            options,
        })
    }

    /// Facts of a step and the reason to run it; no reason if it is up to date.
    fn known(&self, site: &Site, step: &Step) -> Result<Option<Known>, Failure> {
        let Some(reads) = &step.reads else {
            return Ok(None);
        };
        let facts = format!("{}{}", self.tools, reads.facts(site, &self.digests)?);
        let reason = explain::changed(&self.atlas, &slug(&step.name), &facts);
        if self.options.explain {
            let why = reason.as_ref().map(Reason::to_string);
            let why = why.unwrap_or("nothing changed".to_string());
            println!("why   {}: {why}\n{facts}", step.name);
        }
        Ok(Some(Known { facts, reason }))
    }

    fn note(&self, step: &Step, facts: &str) {
        // A pass that is not recorded costs time only.
        let _ = explain::record(&self.atlas, &slug(&step.name), facts);
        let _ = self.digests.save();
    }
}

/// File name of a step's log and record.
fn slug(name: &str) -> String {
    format!("test-{}", name.replace(['/', ' '], "-"))
}

/// Facts of a step that decide whether it runs.
struct Known {
    facts: String,
    reason: Option<Reason>,
}

fn outcome(site: &Site, step: &Step, passes: &Passes<'_>) -> Outcome {
    let since = Instant::now();
    let known = passes.known(site, step);
    if let Ok(Some(Known { reason: None, .. })) = &known
        && !passes.options.again
    {
        println!("ok    {} (up to date)", step.name);
        return Outcome::UpToDate;
    }
    println!("test  {} ...", step.name);
    let (name, target) = (&step.name, &step.target);
    let (known, ended) = match known {
        Ok(known) => (known, (step.run)(&Work { site, name, target })),
        Err(why) => (None, Err(why)),
    };
    let outcome = Outcome::of(ended, passes.options.complete);
    let seconds = since.elapsed().as_secs_f32();
    match &outcome {
        Outcome::Passed => {
            println!("ok    {} ({seconds:.1} s)", step.name);
            if let Some(Known { facts, .. }) = &known {
                passes.note(step, facts);
            }
        }
        Outcome::UpToDate => {}
        Outcome::Skipped(why) => println!("skip  {}: {why}", step.name),
        Outcome::Failed(why) => println!("FAIL  {} ({seconds:.1} s)\n{why}", step.name),
    }
    outcome
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn step(name: &str, schedule: Schedule) -> Step {
        Step {
            name: name.to_string(),
            protects: "",
            schedule,
            tier: Tier::Suite,
            reads: None,
            target: String::new(),
            run: Box::new(|_| Ok(())),
        }
    }

    #[test]
    fn a_step_that_passed_runs_again_when_what_it_reads_changes() {
        let root = std::env::temp_dir().join(format!("atlas-passes-{}", std::process::id()));
        std::fs::create_dir_all(root.join(".atlas")).unwrap();
        let site = Site { root: root.clone() };
        let write = |text: &str| std::fs::write(root.join("read"), text).unwrap();
        let options = Test {
            target: None,
            list: false,
            explain: false,
            changed: false,
            all: false,
            complete: false,
            again: false,
            step: String::new(),
        };
        let passes = Passes {
            atlas: site.atlas(),
            digests: Digests::load(root.join("digests")),
            tools: String::new(),
            options: &options,
        };
        for name in ["explain", "work"] {
            std::fs::create_dir_all(site.atlas().join(name)).unwrap();
        }
        let run = |fail: bool| {
            let step = Step {
                reads: Some(Reads::of(&["read"])),
                run: Box::new(move |_| match fail {
                    true => Err(Failure::Failed("it does".to_string())),
                    false => Ok(()),
                }),
                ..step("reads", Schedule::InOrder)
            };
            outcome(&site, &step, &passes)
        };
        write("one");
        assert!(matches!(run(true), Outcome::Failed(_)));
        assert!(matches!(run(false), Outcome::Passed));
        assert!(matches!(run(true), Outcome::UpToDate));
        write("others");
        assert!(matches!(run(true), Outcome::Failed(_)));
        assert!(matches!(run(false), Outcome::Passed));
        assert!(matches!(run(false), Outcome::UpToDate));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_step_beside_others_ends_before_one_that_is_alone() {
        let steps = [
            step("beside", Schedule::Beside),
            step("next", Schedule::InOrder),
            step("alone", Schedule::Alone),
        ];
        let (send, receive) = mpsc::channel();
        let receive = Mutex::new(receive);
        // The step beside ends well only if the next one runs meanwhile.
        let ended = AtomicBool::new(false);
        let met = |step: &Step| match step.schedule {
            Schedule::Beside => {
                let met = receive.lock().unwrap().recv_timeout(PATIENCE).is_ok();
                ended.store(true, Ordering::Relaxed);
                met
            }
            Schedule::InOrder => send.send(()).is_ok(),
            Schedule::Alone => ended.load(Ordering::Relaxed),
        };
        let outcomes = outcomes(&steps, 1, met);
        assert!(outcomes.iter().all(|&(_, met)| met));
        let names: Vec<_> = outcomes.iter().map(|(step, _)| &*step.name).collect();
        assert_eq!(names, ["next", "beside", "alone"]);
    }
    #[test]
    fn steps_beside_others_take_turns() {
        let names = ["one", "two", "three", "four", "five"];
        let steps = names.map(|name| step(name, Schedule::Beside));
        let running = AtomicUsize::new(0);
        let counts = outcomes(&steps, 1, |_| {
            let count = running.fetch_add(1, Ordering::SeqCst) + 1;
            thread::sleep(Duration::from_millis(2));
            running.fetch_sub(1, Ordering::SeqCst);
            count
        });
        let most = counts.iter().map(|(_, count)| *count).max();
        assert_eq!((counts.len(), most), (names.len(), Some(2)));
    }
}
