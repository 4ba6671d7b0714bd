//! The steps of `test`: for each the promise that it protects, and the reasons to skip it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::build::{build, kernels, make_only, plan};
use super::check::checks;
use super::figures;
use super::lint;
use super::model::golden_command;
use super::reads::{
    BESIDE_PRODUCT, MANIFEST_TESTS, PIPELINE_TESTS, PRODUCT, Reads, TEST_MODEL, WORKSPACE,
};
use super::test::{Optimised, ROOMS, Room, Work};
use super::weights::folder;
use crate::server::Server;
use crate::site::{DEFAULT_TARGET, Failure, Site};
use crate::toolchain::on_path;
use crate::workflow::FOLDER;

/// Result of a step.
pub enum Outcome {
    Passed,
    /// The step passed before, and none of its inputs has changed.
    UpToDate,
    Failed(String),
    Skipped(String),
}

impl Outcome {
    /// Outcome of a step that ran. In a `complete` suite, a missing system package is a failure.
    pub fn of(ended: Result<(), Failure>, complete: bool) -> Outcome {
        match ended {
            Ok(()) => Outcome::Passed,
            Err(Failure::Missing(why)) if complete => Outcome::Failed(why.replace('\n', "")),
            Err(Failure::Missing(why)) => Outcome::Skipped(why.replace('\n', "")),
            Err(Failure::Absent(why)) => Outcome::Skipped(why),
            Err(Failure::Failed(why) | Failure::Usage(why)) => Outcome::Failed(why),
        }
    }
}

type Run = Box<dyn Fn(&Work<'_>) -> Result<(), Failure> + Send + Sync>;

/// Schedule of a step among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// The step runs after the previous step of this kind, in the order of the list.
    InOrder,
    /// The step runs beside later ones, on a free lane; it ends before the next `Alone` step.
    Beside,
    /// The step runs while no other step does, for example because the step measures time.
    Alone,
}

/// Suite that a step belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Suite that every machine runs.
    Suite,
    /// Steps of `test --all` alone, which the CI matrix runs: more cases of promises for which the
    /// suite tries one example.
    All,
}

/// A step of `test`.
pub struct Step {
    pub name: String,
    /// The promise that may break unnoticed if this step is not run.
    pub protects: &'static str,
    pub schedule: Schedule,
    pub tier: Tier,
    /// Inputs; the step need not run again until one changes. None: the step always runs.
    pub reads: Option<Reads>,
    /// Target that the step tests; by default [`DEFAULT_TARGET`].
    pub target: String,
    pub run: Run,
}

impl Step {
    fn new(
        name: impl Into<String>,
        protects: &'static str,
        run: impl Fn(&Work<'_>) -> Result<(), Failure> + Send + Sync + 'static,
    ) -> Step {
        Step {
            name: name.into(),
            protects,
            schedule: Schedule::InOrder,
            tier: Tier::Suite,
            reads: None,
            target: DEFAULT_TARGET.to_string(),
            run: Box::new(run),
        }
    }

    fn tier(self, tier: Tier) -> Step {
        Step { tier, ..self }
    }

    fn schedule(self, schedule: Schedule) -> Step {
        Step { schedule, ..self }
    }

    fn reads(self, reads: Reads) -> Step {
        let reads = Some(reads);
        Step { reads, ..self }
    }

    fn of(self, target: &str) -> Step {
        let target = target.to_string();
        Step { target, ..self }
    }

    /// The step, with the binary of its target and `paths` as inputs.
    fn reads_binary_and(self, paths: &[&str]) -> Step {
        let reads = Reads::of(paths).binary(&self.target);
        self.reads(reads)
    }
}

impl Work<'_> {
    /// Runs tests of the binary's crates; returns their output.
    fn test(&self, optimised: Optimised, args: &str) -> Result<String, Failure> {
        self.run(&mut linted(self.product_cargo("test", optimised, args)?))
    }

    /// Path of the target's binary, stripped as in a release.
    fn binary(&self) -> Result<PathBuf, Failure> {
        build(self.site, Some(self.target), false)
    }

    /// A running server of the step's target.
    fn server(&self) -> Result<Server, Failure> {
        let log = self.log(&format!("{} server", self.name));
        Ok(Server::start(&self.binary()?, &[], &log)?)
    }

    /// Command that runs a script of the workspace without leaving compiled modules beside it.
    fn python(&self, script: &str) -> Command {
        let mut command = Command::new("python3");
        command.args(["-B", script]).current_dir(&self.site.root);
        command
    }
}

/// Targets with device code that are built on machines without a GPU, each with its suite. A target
/// for another host than this machine compiles every crate a second time.
const DEVICE_TARGETS: [(&str, Tier); 2] = [
    ("h200/tiny/nvfp4", Tier::Suite),
    ("gb10/tiny/nvfp4", Tier::All),
];

/// Targets of the small trained model, in both formats.
const TINY: [&str; 2] = ["cpu/tiny/bf16", DEFAULT_TARGET];

/// Prefix of the targets with small random models, each of another shape, and golden files.
const RANDOM: &str = "cpu/random-";

/// Target of a random model with layers of every form.
const MIXED: &str = "cpu/mixed/bf16";

/// Prefixes of the GPU targets with small random models of each family, by hardware.
const RANDOM_DEVICE: [&str; 2] = ["h200/random-", "gb10/random-"];

/// Targets with real weights from packages, each with its suite. Gemma's have terms of use, which
/// the person who asks for them accepts.
const REAL: [(&str, Tier); 4] = [
    ("cpu/smollm2-135m/bf16", Tier::Suite),
    ("cpu/gemma3-270m/bf16", Tier::All),
    ("cpu/smollm2-135m/fp8", Tier::All),
    ("cpu/smollm2-135m/nvfp4-all", Tier::All),
];
/// Script that compares a target's binary with golden files.
const REAL_MODEL: &str = "scripts/real_model.py";
/// Script that compares a binary's rounded weights with the best rounding of a reference.
const ROUNDING: &str = "scripts/rounding.py";

/// Device file of the first NVIDIA GPU.
const GPU: &str = "/dev/nvidia0";

/// Emulator that runs aarch64 programs with the libraries of Debian's cross compiler.
const EMULATOR: &str = "qemu-aarch64-static";
const EMULATED_ROOT: &str = "/usr/aarch64-linux-gnu";

/// Script that evaluates the model `tiny`; the suite asks few questions.
const EVALUATION: &str = "scripts/tiny_eval.py";
/// Number of questions that the suite asks.
const EVALUATION_QUESTIONS: &str = "60";

/// File that the evaluation writes: served replies to questions that `tiny` was not trained on, as
/// token ids.
const SERVED: &str = "served.jsonl";
/// Lowest percentage of first drafts that equal the served token.
const ACCEPTANCE_LEAST: f64 = 70.0;

/// Script that drives the chat page in a browser.
const CHAT_PAGE: &str = "scripts/chat_page.py";
const BROWSER: &str = "chromium";
/// Script that runs the files of `packaging/` for proxies with these proxies.
const PROXIES: &str = "scripts/proxies.py";
const PROXY_NAMES: [&str; 3] = ["nginx", "caddy", "haproxy"];

/// Example program with the model inside, shown in src/README.md.
const EXAMPLE: &str = "embed";
/// Texts that the example must print.
const EXAMPLE_SAYS: [&str; 2] = ["Paris", "42"];

/// Script that measures a server over HTTP; the suite runs a short form.
const SWEEP: &str = "scripts/sweep.py";
/// Tests of [`SWEEP`], its error cases among them, against a stub server.
const SWEEP_TEST: &str = "scripts/sweep_test.py";

/// All steps, or those of one target.
///
/// # Errors
/// If the targets cannot be listed or `target` is not one of them.
pub fn steps(site: &Site, target: Option<&str>) -> Result<Vec<Step>, Failure> {
    if let Some(name) = target {
        return steps_of(site, &site.target(Some(name))?.name);
    }
    let leaves = site.leaves()?;
    let mut steps = vec![
        cargo_step("format", "one layout of all Rust code", "fmt --all --check")
            .reads(Reads::of(PRODUCT).but(&["targets"])),
        Step::new("clippy", "no warning in any crate", clippy).reads(Reads::of(PRODUCT)),
    ];
    for room in ROOMS {
        let step = room_step(site, room)?;
        // Most of the time of the tests of `text` goes into one test, which leaves a core idle.
        steps.push(match room.0 {
            "text" => step.schedule(Schedule::Beside),
            _ => step,
        });
    }
    steps.push(model_step(site)?);
    steps.extend([
        product_step(
            "unit tests",
            "the binary's own tests, and the model through the engine",
            "--lib --no-fail-fast",
        ),
        product_step(
            "fuzz checks",
            "what holds for any bytes, over mixtures of the seeds",
            "--test fuzz",
        ),
        // The packages are those of clippy's step, so that dependencies are compiled once.
        cargo_step(
            "tests of manifest",
            "manifests, and GGUF files",
            "test -p gguf -p manifest -p xtask --locked --lib --no-fail-fast",
        )
        .reads(Reads::of(MANIFEST_TESTS).and(&WORKSPACE))
        .schedule(Schedule::Beside),
        // These tests compile device code without cargo's locks while golden steps leave cores
        // idle.
        cargo_step("pipeline tests", "build actions", PIPELINE)
            .reads(Reads::of(PIPELINE_TESTS).and(&WORKSPACE))
            .schedule(Schedule::Beside),
        Step::new("tidy rules", "rules of all files", |work| {
            let text = work.run(&mut linted(work.cargo(TIDY)))?;
            Ok(some_test_passed(&text)?)
        })
        .reads(Reads::of(PRODUCT).and(&[".ci", ".github", "cuda"])),
        Step::new(
            "figures",
            "the README tells no figure that nobody measured",
            |work| figures::check(work.site),
        )
        .reads(Reads::of(&[
            "README.md",
            figures::OPERATIONS,
            "ci/baseline",
            "targets",
        ])),
        Step::new(
            "workflows",
            "no linter knows a mistake or a weakness in the workflow files",
            lint::check,
        )
        .reads(Reads::of(&[FOLDER, crate::cuda::pins::FILE])),
        kernels_step(
            "kernels gb10/tiny/nvfp4",
            "device code of the chip that most owners have compiles, and spills nothing",
            vec!["gb10/tiny/nvfp4".into()],
        ),
        kernels_step(
            "kernels of every family",
            "what no GPU target that is served reaches still compiles",
            of_families(&leaves),
        )
        .tier(Tier::All),
    ]);
    // Scripts of real models leave a core idle at times, as golden steps do.
    for (leaf, tier) in REAL {
        let of_leaf = real_steps(site, leaf)?.into_iter();
        steps.extend(of_leaf.map(|step| step.schedule(Schedule::Beside).tier(tier)));
    }
    steps.extend(golden_steps(site, &leaves)?);
    steps.push(mixed_step(site)?);
    steps.extend([binary_step(DEFAULT_TARGET), end_to_end_step()]);
    let devices = DEVICE_TARGETS.iter();
    let devices = devices.filter(|(target, _)| leaves.iter().any(|leaf| leaf == target));
    // Binaries are compiled while steps that serve wait for clients.
    for &(target, tier) in devices.clone() {
        steps.push(binary_step(target).schedule(Schedule::Beside).tier(tier));
    }
    steps.extend(serving_steps());
    steps.push(boundary_step(DEVICE_TARGETS[0].0));
    for &(target, tier) in devices {
        let of_target = started_steps(target).into_iter();
        steps.extend(of_target.map(|step| step.tier(tier)));
    }
    Ok(steps)
}

/// Golden steps for both formats of `tiny`, and for few of the small random models: each part of
/// layer math and each format is tested by one model: a model with real weights, the default
/// target, or the random model that tests most of them.
fn golden_steps(site: &Site, leaves: &[String]) -> Result<Vec<Step>, Failure> {
    let is_golden = |leaf: &&String| leaf.starts_with(RANDOM) || TINY.contains(&leaf.as_str());
    let goldens = leaves.iter().filter(is_golden);
    let goldens = goldens.map(|leaf| Ok((leaf.as_str(), kinds(site, leaf)?)));
    let goldens = goldens.collect::<Result<Vec<_>, Failure>>()?;
    let real = REAL.iter().filter(|(_, tier)| *tier == Tier::Suite);
    let mut shown = kinds(site, DEFAULT_TARGET)?;
    for (leaf, _) in real {
        shown.extend(kinds(site, leaf)?);
    }
    let mut chosen = vec![DEFAULT_TARGET];
    loop {
        let new = |kinds: &BTreeSet<String>| kinds.difference(&shown).count();
        // Among equals, the first leaf: `max_by_key` takes the last.
        let best = goldens.iter().rev().max_by_key(|(_, kinds)| new(kinds));
        match best.filter(|(_, kinds)| new(kinds) > 0) {
            Some((leaf, kinds)) => {
                chosen.push(leaf);
                shown.extend(kinds.iter().cloned());
            }
            None => break,
        }
    }
    let step = |(leaf, _): &(&str, _)| {
        let tier = match chosen.contains(leaf) {
            true => Tier::Suite,
            false => Tier::All,
        };
        Ok(golden_step(site, leaf)?.tier(tier))
    };
    goldens.iter().map(step).collect()
}

/// Parts of a target's layer math, and its formats.
fn kinds(site: &Site, leaf: &str) -> Result<BTreeSet<String>, Failure> {
    let target = site.target(Some(leaf))?;
    let formats = target.leaf.format.iter();
    let formats = formats.map(|rule| rule.r#as.name().to_owned());
    Ok(formats.chain(target.math()).collect())
}

fn steps_of(site: &Site, target: &str) -> Result<Vec<Step>, Failure> {
    let mut steps = vec![binary_step(target)];
    match target.starts_with("cpu/") {
        true if REAL.iter().any(|(leaf, _)| target == *leaf) => {
            steps.splice(..0, real_steps(site, target)?);
        }
        true => steps.insert(0, golden_step(site, target)?),
        false => steps.extend(started_steps(target)),
    }
    Ok(steps)
}

fn cargo_step(name: &'static str, protects: &'static str, args: &'static str) -> Step {
    let run = |work: &Work<'_>| work.run(&mut linted(work.cargo(args))).map(drop);
    Step::new(name, protects, run)
}

/// Step with the tests of a crate that is the same for every target.
fn room_step(site: &Site, (package, folder, compared): Room) -> Result<Step, Failure> {
    let args = format!("-p {package} --features testing --lib --no-fail-fast");
    let step = Step::new(
        format!("tests of {package}"),
        "the crate's own tests",
        move |work| work.test(Optimised::Wholly, &args).map(drop),
    );
    let reads = Reads::of_crate(site, folder)?;
    Ok(step.reads(reads.and(&[TEST_MODEL]).and(compared)))
}

/// Arguments of cargo for tests of the model's crate. Optimising the crate would take four times as
/// long as the tests; without optimisation, the standard library also checks unsafe code.
const MODEL_TESTS: &str = "-p model --features testing --lib --no-fail-fast";

/// Step with the tests of the model's crate for the default target.
fn model_step(site: &Site) -> Result<Step, Failure> {
    let step = Step::new("tests of model", "the crate's own tests", |work| {
        work.test(Optimised::No, MODEL_TESTS).map(drop)
    });
    let reads = Reads::of_crate(site, "src/model")?.and(&[crate::cuda::OPS]);
    Ok(step.reads(reads.leaf(DEFAULT_TARGET)))
}

/// Arguments of cargo for tests of the pipeline, and for its tidy tests, which read every file.
const PIPELINE: &str = "test -p gguf -p manifest -p xtask --locked --bins --no-fail-fast -- --skip \
                        tidy:: --skip advisories::";
const TIDY: &str = "test -p gguf -p manifest -p xtask --locked --bins -- tidy:: advisories::";

/// Step with tests of the binary's crate.
fn product_step(name: &'static str, protects: &'static str, args: &'static str) -> Step {
    let run = |work: &Work<'_>| work.test(Optimised::Wholly, args).map(drop);
    Step::new(name, protects, run).reads(Reads::of(PRODUCT).but(BESIDE_PRODUCT))
}

/// `cargo` with clippy's compiler for crates of the workspace: rustc with more lints. Tests run
/// these crates, so that a clean clone compiles once for `cargo clippy` and `cargo test`.
fn linted(mut cargo: Command) -> Command {
    cargo.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
    cargo
}

/// Compiles all tests with clippy's lints, and the crates under test.
fn clippy(work: &Work<'_>) -> Result<(), Failure> {
    const ALL: &str = "--all-targets --no-run";
    let rooms = ROOMS.map(|(package, ..)| format!("-p {package}")).join(" ");
    let pipeline = work.cargo(&format!("test -p gguf -p manifest -p xtask --locked {ALL}"));
    no_warning(&work.run(&mut linted(pipeline))?)?;
    let product = format!("-p atlas -p check {rooms} {ALL}");
    no_warning(&work.test(Optimised::Wholly, &product)?)?;
    let model = format!("{MODEL_TESTS} --no-run");
    Ok(no_warning(&work.test(Optimised::No, &model)?)?)
}

/// Fails on warnings: cargo succeeds with them, and prints those of earlier runs again.
fn no_warning(text: &str) -> Result<(), String> {
    let found = text.lines().position(|line| line.starts_with("warning"));
    match found {
        None => Ok(()),
        Some(line) => Err(text.lines().skip(line).collect::<Vec<_>>().join("\n")),
    }
}

/// Golden step of a target whose weights are in the repository. Targets are listed, so a new one
/// needs no code. Only the model and its checks are built for each target, without optimisation if
/// it is so small that running it takes no time. Other tests of the checks run for the default
/// target alone.
fn golden_step(site: &Site, leaf: &str) -> Result<Step, Failure> {
    let tests = match leaf {
        DEFAULT_TARGET => "--no-fail-fast",
        _ => "-- golden:: tests::bits_of_rows",
    };
    let optimised = match leaf.starts_with(RANDOM) {
        true if weights_bytes(site, leaf) < LARGE => Optimised::No,
        true => Optimised::Yes,
        false => Optimised::Wholly,
    };
    let step = Step::new(
        format!("golden {leaf}"),
        "the tokens and logprobs of an outside reference",
        move |work| {
            goldens_are_there(&work.site.root, work.target)?;
            test_checks(work, optimised, tests)
        },
    );
    let reads = Reads::of_crate(site, "src/check")?.leaf(leaf);
    Ok(step.of(leaf).reads(reads))
}

/// Runs tests of the checks for the step's target; at least one must pass.
fn test_checks(work: &Work<'_>, optimised: Optimised, tests: &str) -> Result<(), Failure> {
    let args = format!("-p check --features testing --lib {tests}");
    // The default target's tests were compiled by clippy's step. Other targets are not linted:
    // their constants make comparisons that are always true.
    let text = match work.target == DEFAULT_TARGET {
        true => work.test(optimised, &args)?,
        false => {
            let mut cargo = work.product_cargo("test", optimised, &args)?;
            work.run(cargo.env("ATLAS_TARGET", work.target))?
        }
    };
    Ok(some_test_passed(&text)?)
}

/// Bytes of weights from which running a model takes longer than optimising it.
const LARGE: u64 = 4 << 20;

/// Bytes of a target's weight file in the repository; 0 if there are several files.
fn weights_bytes(site: &Site, target: &str) -> u64 {
    let model = target.split('/').nth(1).unwrap_or_default();
    let file = format!("targets/_model/{model}/model.safetensors");
    std::fs::metadata(site.root.join(file)).map_or(0, |file| file.len())
}

/// Step of a model without an outside reference: its layers against formulas and each other.
fn mixed_step(site: &Site) -> Result<Step, Failure> {
    let tests = "-- tests::a_layer tests::bits_of_rows oracle::";
    let step = Step::new(
        format!("layers {MIXED}"),
        "a mixer alone, what follows one alone, and an MLP beside experts",
        |work| test_checks(work, Optimised::No, tests),
    );
    let reads = Reads::of_crate(site, "src/check")?.leaf(MIXED);
    Ok(step.of(MIXED).reads(reads))
}

/// Fails if a target's model has no golden files: then nothing would be compared, although the
/// weights are in the repository.
fn goldens_are_there(root: &Path, target: &str) -> Result<(), Failure> {
    let model = target.split('/').nth(1).unwrap_or_default();
    let folder = Path::new("targets/_model").join(model);
    let golden = folder.join("golden/tokens.json");
    if root.join(&golden).is_file() {
        return Ok(());
    }
    let command = golden_command(model);
    let why = format!("{} is missing; `{command}` writes it", golden.display());
    let weights = ["model.safetensors", "model.safetensors.index.json"];
    let mut weights = weights.iter().map(|name| root.join(&folder).join(name));
    Err(match weights.any(|path| path.is_file()) {
        true => Failure::Failed(why),
        false => Failure::Absent(why),
    })
}

/// Steps of a model with real weights: its replies, and its rounded weights if it has some.
fn real_steps(site: &Site, leaf: &str) -> Result<Vec<Step>, Failure> {
    let step = |what: &str, protects, script, run: fn(&Work<'_>) -> Result<(), Failure>| {
        let step = script_step(format!("{what} {leaf}"), protects, ["python3"], run).of(leaf);
        step.reads(Reads::of(&[script, "build/gguf"]).leaf(leaf).binary(leaf))
    };
    let replies = "logits, token ids and replies of an outside reference";
    let mut steps = vec![step("real model", replies, REAL_MODEL, real_model)];
    if site.target(Some(leaf))?.rounds() {
        let errors = "rounded weights are as near as an independent search finds them";
        steps.push(step("rounding", errors, ROUNDING, rounding));
    }
    Ok(steps)
}

fn real_model(work: &Work<'_>) -> Result<(), Failure> {
    let target = work.site.target(Some(work.target))?;
    let mut command = of_real(work, REAL_MODEL)?;
    command.args(target.rounds().then_some("--rounded"));
    command.arg(format!("targets/_model/{}", target.leaf.model));
    work.run(&mut command).map(drop)
}

fn rounding(work: &Work<'_>) -> Result<(), Failure> {
    let mut numpy = Command::new("python3");
    let numpy = numpy.args(["-c", "import numpy"]).output();
    if !numpy.is_ok_and(|tried| tried.status.success()) {
        return lacks("numpy for python3", "python3-numpy");
    }
    work.run(&mut of_real(work, ROUNDING)?).map(drop)
}

/// Command of a script with the target's binary and its real weights as arguments.
fn of_real(work: &Work<'_>, script: &str) -> Result<Command, Failure> {
    let weights = folder(work.site, Some(work.target))?;
    let mut command = work.python(script);
    command.arg(work.binary()?).args(weights);
    Ok(command)
}

/// Fails if no test ran: `cargo test` succeeds when its filter matches nothing.
fn some_test_passed(text: &str) -> Result<(), String> {
    let lines = text.lines();
    let results = lines.filter_map(|line| line.strip_prefix("test result: ok. "));
    let counts = results.filter_map(|rest| rest.split(' ').next()?.parse::<usize>().ok());
    match counts.sum::<usize>() {
        0 => Err("no test ran".to_string()),
        _ => Ok(()),
    }
}

fn end_to_end_step() -> Step {
    let protects = "the release binary's behaviour over a real socket";
    let reads = Reads::of(PRODUCT).but(BESIDE_PRODUCT);
    Step::new("end to end", protects, end_to_end)
        .reads(reads.binary(DEFAULT_TARGET))
        .schedule(Schedule::Alone)
}

fn serving_steps() -> Vec<Step> {
    let measured = [
        script_step(
            "chat page",
            "the page in a real browser",
            ["python3", BROWSER],
            chat_page,
        )
        .reads_binary_and(&["scripts"])
        // The step waits for the browser most of the time.
        .schedule(Schedule::Beside),
        script_step(
            "sweep",
            "measured figures are those of the server, and failures are told",
            ["python3"],
            sweep,
        )
        .reads_binary_and(&["scripts"]),
    ];
    let served = [
        script_step(
            "tiny evaluation",
            "the served model really answers",
            ["python3"],
            evaluate,
        )
        .reads_binary_and(&["scripts"]),
        Step::new(
            "tiny drafts",
            "the drafting layer is worth its weights",
            drafts,
        )
        .reads_binary_and(&["scripts"]),
        Step::new(
            "library",
            "the program with the model inside, and the examples of the documentation",
            library,
        )
        .reads(Reads::of(PRODUCT).but(BESIDE_PRODUCT)),
    ];
    // Each step has a server and ports of its own.
    let proxies = PROXY_NAMES.map(|proxy| proxy_step(proxy).schedule(Schedule::Beside));
    measured.into_iter().chain(proxies).chain(served).collect()
}

/// Step of a proxy with its file of `packaging/`: streams, and the chat page.
fn proxy_step(proxy: &'static str) -> Step {
    script_step(
        format!("proxy {proxy}"),
        "streams, cancellation and the page behind it",
        ["python3", "openssl", proxy],
        move |work| {
            let mut command = work.python(PROXIES);
            command.args([proxy, "--binary"]).arg(work.binary()?);
            work.run(&mut command).map(drop)
        },
    )
    .reads_binary_and(&["packaging", "scripts"])
}

/// Step of a script, skipped if a program that it needs is missing.
fn script_step<const N: usize>(
    name: impl Into<String>,
    protects: &'static str,
    programs: [&'static str; N],
    run: impl Fn(&Work<'_>) -> Result<(), Failure> + Send + Sync + 'static,
) -> Step {
    Step::new(name, protects, move |work| {
        let mut missing = programs.iter().filter(|program| on_path(program).is_none());
        match missing.next() {
            Some(program) => lacks(program, program),
            None => run(work),
        }
    })
}

/// Failure that names a missing program and the package that has it.
fn lacks(program: &str, package: &str) -> Result<(), Failure> {
    let why = format!("{program} is missing; apt-get install {package}");
    Err(Failure::Missing(why))
}

fn chat_page(work: &Work<'_>) -> Result<(), Failure> {
    let server = work.server()?;
    let mut command = work.python(CHAT_PAGE);
    work.run(command.arg(&server.url)).map(drop)
}

fn sweep(work: &Work<'_>) -> Result<(), Failure> {
    let server = work.server()?;
    work.run(&mut work.python(SWEEP_TEST))?;
    let results = work.site.atlas().join("log").join("sweep");
    let mut command = work.python(SWEEP);
    command.args([&server.url, "--short", "--out"]).arg(results);
    work.run(&mut command).map(drop)
}

/// Step that builds the binary and checks its promises.
fn binary_step(target: &str) -> Step {
    let protects = "one file: glibc and the driver alone, no PTX, no paths of this machine";
    let step = Step::new(format!("binary {target}"), protects, binary).of(target);
    step.reads_binary_and(PRODUCT)
}

fn binary(work: &Work<'_>) -> Result<(), Failure> {
    let (_, findings) = checks(work.site, &work.site.target(Some(work.target))?)?;
    for (what, result) in findings {
        result.map_err(|why| Failure::Failed(format!("{what}: {why}")))?;
    }
    Ok(())
}

fn end_to_end(work: &Work<'_>) -> Result<(), Failure> {
    let path = work.binary()?;
    let mut cargo = linted(work.product_cargo("test", Optimised::Wholly, "--test e2e")?);
    let text = work.run(cargo.env("ATLAS_BINARY", path))?;
    Ok(some_test_passed(&text)?)
}

/// Runs the example of the library, and compiles those of the documentation.
fn library(work: &Work<'_>) -> Result<(), Failure> {
    work.test(Optimised::Wholly, "--doc")?;
    let args = format!("--example {EXAMPLE}");
    let example = work.product_cargo("run", Optimised::Wholly, &args)?;
    let said = work.run(&mut linted(example))?;
    match EXAMPLE_SAYS.iter().find(|text| !said.contains(*text)) {
        None => Ok(()),
        Some(text) => Err(format!("{EXAMPLE} does not say {text}:\n{said}").into()),
    }
}

fn evaluate(work: &Work<'_>) -> Result<(), Failure> {
    let server = work.server()?;
    let served = served(work);
    let _ = std::fs::remove_file(&served);
    let mut command = work.python(EVALUATION);
    command.args(["--url", &server.url, "--short", EVALUATION_QUESTIONS]);
    work.run(command.arg("--served").arg(served)).map(drop)
}

/// Path at which the evaluation leaves served replies.
fn served(work: &Work<'_>) -> PathBuf {
    work.site.atlas().join("log").join(SERVED)
}

/// Compares first drafts with served tokens.
fn drafts(work: &Work<'_>) -> Result<(), Failure> {
    let served = served(work);
    if !served.exists() {
        let why = "the evaluation left no served replies";
        return Err(Failure::Missing(why.to_string()));
    }
    let mut command = Command::new(work.binary()?);
    let text = work.run(command.args(["selftest", "--drafts"]).arg(served))?;
    match percent(&text) {
        Some(found) if found >= ACCEPTANCE_LEAST => Ok(()),
        _ => Err(Failure::Failed(format!(
            "at least {ACCEPTANCE_LEAST} % must equal the served token: {}",
            text.trim()
        ))),
    }
}

/// The number before the first `%` of a text.
fn percent(text: &str) -> Option<f64> {
    let (before, _) = text.split_once('%')?;
    let mut words = before.rsplit(['(', ' ']);
    words.find(|word| !word.is_empty())?.parse().ok()
}

/// Steps that start a binary with device code.
fn started_steps(target: &str) -> [Step; 2] {
    let name = |what: &str| format!("{what} {target}");
    let start = Step::new(name("start"), "the loader finds all it needs", start);
    let parity = Step::new(name("parity"), "device ops equal the reference", parity);
    [start.of(target).reads_binary_and(&[]), parity.of(target)]
}

/// Starts the binary, in an emulator if it is for another machine.
fn start(work: &Work<'_>) -> Result<(), Failure> {
    let path = work.binary()?;
    let host = work.site.target(Some(work.target))?.hardware.host;
    let host = host.unwrap_or_default();
    let mut command = match host.split('-').next() {
        Some(machine) if machine != std::env::consts::ARCH => {
            if on_path(EMULATOR).is_none() {
                return lacks(EMULATOR, "qemu-user-static");
            }
            let mut command = Command::new(EMULATOR);
            command.args(["-L", EMULATED_ROOT]).arg(path);
            command
        }
        _ => Command::new(path),
    };
    work.run(command.arg("about")).map(drop)
}

fn parity(work: &Work<'_>) -> Result<(), Failure> {
    if !Path::new(GPU).exists() {
        return Err(Failure::Absent("no NVIDIA GPU".to_string()));
    }
    let mut command = Command::new(work.binary()?);
    work.run(command.arg("selftest")).map(drop)
}

/// One GPU target for each family's small models, alternating between GPUs; workflows build all.
fn of_families(leaves: &[String]) -> Vec<String> {
    let of = |start: &'static str| leaves.iter().filter(move |leaf| leaf.starts_with(start));
    let [even, odd] = RANDOM_DEVICE.map(of);
    let targets = even.step_by(2).chain(odd.skip(1).step_by(2));
    targets.cloned().collect()
}

/// Step that compiles the kernels of targets alone, without host programs and their requirements.
fn kernels_step(name: &'static str, protects: &'static str, targets: Vec<String>) -> Step {
    let each = move |work: &Work<'_>| {
        let mut targets = targets.iter();
        targets.try_for_each(|target| kernels(work.site, target))
    };
    Step::new(name, protects, each).schedule(Schedule::Beside)
}

/// Step of the FFI crate, which needs libclang from a device target's pinned toolchain, and of the
/// model's backend above that.
fn boundary_step(target: &'static str) -> Step {
    let protects = "the crate between Rust and CUDA, and the backend above it, hold their rules";
    let crates = ["ffi", "build/manifest", "src/host", "src/model", "src/step"];
    let reads = Reads::of(crates.iter().chain(&["Cargo.toml", "Cargo.lock"]));
    let step = Step::new("boundary", protects, boundary).of(target);
    step.reads(reads.leaf(target))
}

fn boundary(work: &Work<'_>) -> Result<(), Failure> {
    let plan = plan(work.site, Some(work.target))?;
    let libclang: Vec<_> = plan.device.iter().map(|device| &device.libclang).collect();
    let built = make_only(work.site, &plan.graph, &libclang)?;
    let libclang = || built.iter().map(|path| ("LIBCLANG_PATH", path));
    let ffi = work.product_cargo("test", Optimised::Wholly, "-p ffi --all-targets")?;
    no_warning(&work.run(linted(ffi).envs(libclang()))?)?;
    let backend = "-p model --features cuda --lib -- backend::cuda";
    let mut backend = work.product_cargo("test", Optimised::No, backend)?;
    backend.envs(libclang()).env("ATLAS_TARGET", work.target);
    Ok(no_warning(&work.run(&mut backend)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_found() {
        assert_eq!(percent("6 of 8 equal (75.0 %) in 2"), Some(75.0));
        assert_eq!(percent("nothing"), None);
    }

    #[test]
    fn a_warning_is_no_success() {
        let text = "   Compiling a\nwarning: unused\n  --> here\n    Finished";
        let why = no_warning(text).unwrap_err();
        assert!(why.starts_with("warning: unused\n  --> here"), "{why}");
        assert!(no_warning("   Compiling a\n    Finished").is_ok());
    }

    #[test]
    fn golden_files_that_are_missing_are_told_with_the_command_that_writes_them() {
        let root = std::env::temp_dir().join(format!("atlas-goldens-{}", std::process::id()));
        let model = root.join("targets/_model/small");
        std::fs::create_dir_all(model.join("golden")).unwrap();
        let expected = "targets/_model/small/golden/tokens.json is missing; `python3 \
                        scripts/golden.py targets/_model/small --weights FOLDER` writes it";
        let found = || goldens_are_there(&root, "cpu/small/bf16");
        let skipped = found();
        std::fs::write(model.join("model.safetensors"), "").unwrap();
        let failed = found();
        std::fs::write(model.join("golden/tokens.json"), "").unwrap();
        let there = found();
        std::fs::remove_dir_all(&root).unwrap();
        assert!(matches!(skipped, Err(Failure::Absent(why)) if why == expected));
        assert!(matches!(failed, Err(Failure::Failed(why)) if why == expected));
        assert!(there.is_ok());
    }

    #[test]
    fn a_filter_that_matches_nothing_is_no_success() {
        assert!(some_test_passed("test result: ok. 0 passed; 0 failed").is_err());
        assert!(
            some_test_passed("test result: ok. 0 passed;\ntest result: ok. 2 passed; 0 failed")
                .is_ok()
        );
    }
}
