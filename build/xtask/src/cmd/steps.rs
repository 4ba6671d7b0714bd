//! The steps of `test`: what each tries, what it protects, what makes it skip.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::build::{build, make_only, plan};
use super::check::checks;
use super::figures;
use super::lint;
use super::model::golden_command;
use super::reads::{
    BESIDE_PRODUCT, MANIFEST_TESTS, PIPELINE_TESTS, PRODUCT, Reads, TEST_MODEL, WORKSPACE,
};
use super::test::{Optimised, ROOMS, Room, Suite};
use super::weights::folder;
use crate::server::Server;
use crate::site::{DEFAULT_TARGET, Failure, Site};
use crate::toolchain::on_path;
use crate::workflow::FOLDER;

/// End of a step.
pub enum Outcome {
    Passed,
    /// It passed before, and nothing that it reads has changed.
    UpToDate,
    Failed(String),
    /// `installable` if a package of the system would have made the step possible; `why` names it.
    Skipped {
        why: String,
        installable: bool,
    },
}

impl<E: Into<Failure>> From<Result<(), E>> for Outcome {
    fn from(result: Result<(), E>) -> Outcome {
        match result.map_err(Into::into) {
            Ok(()) => Outcome::Passed,
            Err(Failure::Missing(why)) => Outcome::Skipped {
                why: why.replace('\n', ""),
                installable: true,
            },
            Err(Failure::Failed(why) | Failure::Usage(why)) => Outcome::Failed(why),
        }
    }
}

type Run = Box<dyn Fn(&Suite<'_>, &str) -> Outcome + Send + Sync>;

/// When a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Behind the step before it.
    Next,
    /// While those behind it run, as lanes get free, up to one that runs alone.
    Beside,
    /// While no other does: it looks at how long something takes.
    Alone,
}

/// Which suite a step belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// The one that every machine runs.
    Suite,
    /// The one that the workflows run: more of what another step shows by an example.
    All,
}

/// One step.
pub struct Step {
    pub name: String,
    /// The promise that breaks if this step is not run.
    pub protects: &'static str,
    pub turn: Turn,
    pub tier: Tier,
    /// Inputs, if it need not run again while they stay the same.
    pub reads: Option<Reads>,
    pub run: Run,
}

impl Step {
    fn new(
        name: impl Into<String>,
        protects: &'static str,
        run: impl Fn(&Suite<'_>, &str) -> Outcome + Send + Sync + 'static,
    ) -> Step {
        Step {
            name: name.into(),
            protects,
            turn: Turn::Next,
            tier: Tier::Suite,
            reads: None,
            run: Box::new(run),
        }
    }

    fn tier(self, tier: Tier) -> Step {
        Step { tier, ..self }
    }

    fn turn(self, turn: Turn) -> Step {
        Step { turn, ..self }
    }

    fn reads(self, reads: Reads) -> Step {
        let reads = Some(reads);
        Step { reads, ..self }
    }
}

/// The targets with device code that are built without a GPU, and the suite of each. What is for
/// another host than this one compiles every crate again.
const DEVICE_TARGETS: [(&str, Tier); 2] = [
    ("h200/tiny/nvfp4", Tier::Suite),
    ("gb10/tiny/nvfp4", Tier::All),
];

/// Both forms of the small model with trained weights.
const TINY: [&str; 2] = ["cpu/tiny/bf16", DEFAULT_TARGET];

/// Small models of drawn weights, each of another shape, for goldens.
const RANDOM: &str = "cpu/random-";

/// A drawn model whose layers are of every form.
const MIXED: &str = "cpu/mixed/bf16";

/// Small models of each family for a GPU, by hardware.
const RANDOM_DEVICE: [&str; 2] = ["h200/random-", "gb10/random-"];

/// Targets with real weights, which packages hold, and the suite of each. Those of Gemma have terms
/// of use, which are accepted by who asks for them.
const REAL: [(&str, Tier); 4] = [
    ("cpu/smollm2-135m/bf16", Tier::Suite),
    ("cpu/gemma3-270m/bf16", Tier::All),
    ("cpu/smollm2-135m/fp8", Tier::All),
    ("cpu/smollm2-135m/nvfp4-all", Tier::All),
];
/// Script that compares its binary with golden files.
const REAL_MODEL: &str = "scripts/real_model.py";
/// Script that compares weights that a binary has rounded with a reference's.
const ROUNDING: &str = "scripts/rounding.py";

/// Device file of the first NVIDIA GPU.
const GPU: &str = "/dev/nvidia0";

/// Starts aarch64 programs elsewhere, with the libraries of Debian's cross compiler.
const EMULATOR: &str = "qemu-aarch64-static";
const EMULATED_ROOT: &str = "/usr/aarch64-linux-gnu";

/// The evaluation of `tiny` in its short form.
const EVALUATION: &str = "scripts/tiny_eval.py";
/// Questions of that form.
const EVALUATION_QUESTIONS: &str = "60";

/// File that the step leaves: replies that were served to questions that `tiny` was not trained on,
/// as token ids.
const SERVED: &str = "served.jsonl";
/// Percent of first drafts that must equal the served token in them.
const ACCEPTANCE_LEAST: f64 = 70.0;

/// Script that drives the chat page in a browser.
const CHAT_PAGE: &str = "scripts/chat_page.py";
const BROWSER: &str = "chromium";
/// Script that tries the files of `packaging/` with the proxies that they are for.
const PROXIES: &str = "scripts/proxies.py";
const PROXY_NAMES: [&str; 3] = ["nginx", "caddy", "haproxy"];

/// A program with the model inside, which src/README.md shows, and what it must say.
const EXAMPLE: &str = "embed";
const EXAMPLE_SAYS: [&str; 2] = ["Paris", "42"];

/// Script that measures a server over HTTP, in its short form and in an unfriendly world.
const SWEEP: &str = "scripts/sweep.py";
const SWEEP_TEST: &str = "scripts/sweep_test.py";

/// All steps, or those of one target.
///
/// # Errors
/// If the targets cannot be listed or `target` is not one of them.
pub fn steps(site: &Site, target: Option<&str>) -> Result<Vec<Step>, Failure> {
    if let Some(name) = target {
        return steps_of(site, site.target(Some(name))?.name);
    }
    let leaves = site.leaves()?;
    let mut steps = vec![
        cargo_step("format", "one layout of all Rust code", "fmt --all --check")
            .reads(Reads::of(PRODUCT).but(&["targets"])),
        Step::new("clippy", "no warning in any crate", |suite, name| {
            clippy(suite, name).into()
        })
        .reads(Reads::of(PRODUCT)),
    ];
    for room in ROOMS {
        let step = room_step(site, room)?;
        // Most of its time is that of one test.
        steps.push(match room.0 {
            "text" => step.turn(Turn::Beside),
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
        // Packages of both steps are those that clippy's compiles, so that they share dependencies.
        cargo_step(
            "tests of manifest",
            "manifests, and GGUF files",
            "test -p gguf -p manifest -p xtask --locked --lib --no-fail-fast",
        )
        .reads(Reads::of(MANIFEST_TESTS).and(&WORKSPACE))
        .turn(Turn::Beside),
        // They compile device code without cargo's locks, while the goldens' single crates leave
        // cores idle.
        cargo_step("pipeline tests", "build actions", PIPELINE)
            .reads(Reads::of(PIPELINE_TESTS).and(&WORKSPACE))
            .turn(Turn::Beside),
        Step::new("tidy rules", "rules of all files", |suite, name| {
            let mut cargo = linted(suite.cargo(TIDY));
            let run = suite.run(name, &mut cargo);
            run.and_then(|text| some_test_passed(&text)).into()
        })
        .reads(Reads::of(PRODUCT).and(&[".ci", ".github", "cuda"])),
        Step::new(
            "figures",
            "the README tells no figure that nobody measured",
            |suite, _| figures::check(suite.site).into(),
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
            |suite, name| lint::check(suite, name).into(),
        )
        .reads(Reads::of(&[FOLDER, crate::cuda::pins::FILE])),
        kernels_step(&leaves).turn(Turn::Beside).tier(Tier::All),
    ]);
    // Their scripts leave a core idle at times, as the goldens, each of one crate, do.
    for (leaf, tier) in REAL {
        let of_leaf = real_steps(site, leaf)?.into_iter();
        steps.extend(of_leaf.map(|step| step.turn(Turn::Beside).tier(tier)));
    }
    steps.extend(golden_steps(site, &leaves)?);
    steps.push(mixed_step(site)?);
    steps.extend([binary_step(DEFAULT_TARGET), end_to_end_step(DEFAULT_TARGET)]);
    let devices = DEVICE_TARGETS.iter();
    let devices = devices.filter(|(target, _)| leaves.iter().any(|leaf| leaf == target));
    // They compile while those that serve wait for clients.
    for &(target, tier) in devices.clone() {
        steps.push(binary_step(target).turn(Turn::Beside).tier(tier));
    }
    steps.extend(serving_steps(DEFAULT_TARGET));
    steps.push(boundary_step(DEVICE_TARGETS[0].0));
    for &(target, tier) in devices {
        let of_target = started_steps(target).into_iter();
        steps.extend(of_target.map(|step| step.tier(tier)));
    }
    Ok(steps)
}

/// Goldens of both forms of `tiny` and of the small random models. One stands for all that share a
/// part of the layers' math, whatever the family, and one for all in a format: a model with real
/// weights, the default target, or the random one that shows most.
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
        // The last of equals is the first leaf.
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

/// Parts of a target's math, and its formats.
fn kinds(site: &Site, leaf: &str) -> Result<BTreeSet<String>, Failure> {
    let target = site.target(Some(leaf))?;
    let formats = target.leaf.format.iter();
    let formats = formats.map(|rule| rule.r#as.name().to_owned());
    Ok(formats.chain(target.math()).collect())
}

fn steps_of(site: &Site, target: String) -> Result<Vec<Step>, Failure> {
    Ok(match target.starts_with("cpu/") {
        true if REAL.iter().any(|(leaf, _)| target == *leaf) => {
            let mut steps = real_steps(site, &target)?;
            steps.push(binary_step(&target));
            steps
        }
        true => vec![golden_step(site, &target)?, binary_step(&target)],
        false => {
            let mut steps = vec![binary_step(&target)];
            steps.extend(started_steps(&target));
            steps
        }
    })
}

fn cargo_step(name: &'static str, protects: &'static str, args: &'static str) -> Step {
    Step::new(name, protects, move |suite, name| {
        let mut cargo = linted(suite.cargo(args));
        suite.run(name, &mut cargo).map(drop).into()
    })
}

/// Tests of a crate that serves any target.
fn room_step(site: &Site, (package, folder, compared): Room) -> Result<Step, Failure> {
    let run = move |suite: &Suite<'_>, name: &str| {
        let args = format!("-p {package} --features testing --lib --no-fail-fast");
        let run = |cargo| suite.run(name, &mut linted(cargo));
        let cargo = suite.product_cargo("test", Optimised::Wholly, &args);
        cargo.and_then(run).map(drop).into()
    };
    let step = Step::new(format!("tests of {package}"), "the crate's own tests", run);
    let reads = Reads::of_crate(site, folder)?;
    Ok(step.reads(reads.and(&[TEST_MODEL]).and(compared)))
}

/// Arguments of cargo for tests of the model's crate. Optimising them would take four times as long
/// as they run; without, they have the standard library's checks of unsafe code, too.
const MODEL_TESTS: &str = "-p model --features testing --lib --no-fail-fast";

/// Tests of the model's crate for the default target.
fn model_step(site: &Site) -> Result<Step, Failure> {
    let step = Step::new("tests of model", "the crate's own tests", |suite, name| {
        let run = |cargo| suite.run(name, &mut linted(cargo));
        let cargo = suite.product_cargo("test", Optimised::No, MODEL_TESTS);
        cargo.and_then(run).map(drop).into()
    });
    let reads = Reads::of_crate(site, "src/model")?.and(&[crate::cuda::OPS]);
    Ok(step.reads(reads.leaf(DEFAULT_TARGET)))
}

/// Arguments of cargo for tests of the pipeline, and for those among them that look at every file.
const PIPELINE: &str = "test -p gguf -p manifest -p xtask --locked --bins --no-fail-fast -- --skip \
                        tidy:: --skip advisories::";
const TIDY: &str = "test -p gguf -p manifest -p xtask --locked --bins -- tidy:: advisories::";

/// Tests of the binary's crate.
fn product_step(name: &'static str, protects: &'static str, args: &'static str) -> Step {
    Step::new(name, protects, move |suite, name| {
        let run = |cargo| suite.run(name, &mut linted(cargo));
        let cargo = suite.product_cargo("test", Optimised::Wholly, args);
        cargo.and_then(run).map(drop).into()
    })
    .reads(Reads::of(PRODUCT).but(BESIDE_PRODUCT))
}

/// A cargo whose compiler of our crates is clippy's: rustc with more lints. What it compiles is
/// tested then, so a clean clone compiles once what `cargo clippy` and `cargo test` would each.
fn linted(mut cargo: Command) -> Command {
    cargo.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
    cargo
}

/// Compiles all tests, and the crates in them.
fn clippy(suite: &Suite<'_>, name: &str) -> Result<(), String> {
    const ALL: &str = "--all-targets --no-run";
    let pipeline = suite.cargo(&format!("test -p gguf -p manifest -p xtask --locked {ALL}"));
    let rooms = ROOMS.map(|(package, ..)| format!("-p {package}")).join(" ");
    let product = suite.product_cargo(
        "test",
        Optimised::Wholly,
        &format!("-p atlas -p check {rooms} {ALL}"),
    )?;
    let model = format!("{MODEL_TESTS} --no-run");
    let model = suite.product_cargo("test", Optimised::No, &model)?;
    for cargo in [pipeline, product, model] {
        no_warning(&suite.run(name, &mut linted(cargo))?)?;
    }
    Ok(())
}

/// Cargo succeeds with warnings, and prints those of earlier runs again.
fn no_warning(text: &str) -> Result<(), String> {
    let found = text.lines().position(|line| line.starts_with("warning"));
    match found {
        None => Ok(()),
        Some(line) => Err(text.lines().skip(line).collect::<Vec<_>>().join("\n")),
    }
}

/// Goldens of a target whose weights are in the repository: found by listing, so a new one needs no
/// code. Each target is another build of the model and its checks alone, without optimisation where
/// it is so small that running it takes no time. The default target stands for all in the other
/// tests of the checks.
fn golden_step(site: &Site, leaf: &str) -> Result<Step, Failure> {
    let target = leaf.to_string();
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
        move |suite, name| {
            if let Some(missing) = goldens_missing(&suite.site.root, &target) {
                return missing;
            }
            // Clippy's step names no target, and what it compiled is run here. Constants of others
            // would be lints: of comparisons that hold for them alone.
            let run = |mut cargo: Command| match target == DEFAULT_TARGET {
                true => suite.run(name, &mut linted(cargo)),
                false => suite.run(name, cargo.env("ATLAS_TARGET", &target)),
            };
            let args = format!("-p check --features testing --lib {tests}");
            let run = suite.product_cargo("test", optimised, &args).and_then(run);
            run.and_then(|text| some_test_passed(&text)).into()
        },
    );
    Ok(step.reads(Reads::of_crate(site, "src/check")?.leaf(leaf)))
}

/// Bytes of weights in the repository from which a model takes longer to run than to optimise.
const LARGE: u64 = 4 << 20;

/// Bytes of a target's weights in the repository; none where they are in several files.
fn weights_bytes(site: &Site, target: &str) -> u64 {
    let model = target.split('/').nth(1).unwrap_or_default();
    let file = format!("targets/_model/{model}/model.safetensors");
    std::fs::metadata(site.root.join(file)).map_or(0, |file| file.len())
}

/// A model that no outside reference has: its layers against their formulas and each other.
fn mixed_step(site: &Site) -> Result<Step, Failure> {
    let step = Step::new(
        format!("layers {MIXED}"),
        "a mixer alone, what follows one alone, and an MLP beside experts",
        |suite, name| {
            let args =
                "-p check --features testing --lib -- tests::a_layer tests::bits_of_rows oracle::";
            let run = |mut cargo: Command| suite.run(name, cargo.env("ATLAS_TARGET", MIXED));
            let run = suite
                .product_cargo("test", Optimised::No, args)
                .and_then(run);
            run.and_then(|text| some_test_passed(&text)).into()
        },
    );
    Ok(step.reads(Reads::of_crate(site, "src/check")?.leaf(MIXED)))
}

/// Says that there are no golden files of a target's model: nothing would be compared, which is no
/// success where the weights lie in the repository.
fn goldens_missing(root: &Path, target: &str) -> Option<Outcome> {
    let model = target.split('/').nth(1)?;
    let folder = Path::new("targets/_model").join(model);
    let golden = folder.join("golden/tokens.json");
    if root.join(&golden).is_file() {
        return None;
    }
    let command = golden_command(model);
    let why = format!("{} is missing; `{command}` writes it", golden.display());
    let weights = ["model.safetensors", "model.safetensors.index.json"];
    let mut weights = weights.iter().map(|name| root.join(&folder).join(name));
    Some(match weights.any(|path| path.is_file()) {
        true => Outcome::Failed(why),
        false => Outcome::Skipped {
            why,
            installable: false,
        },
    })
}

/// A model with real weights, as it is served, and how well its weights are rounded, if they are.
fn real_steps(site: &Site, leaf: &str) -> Result<Vec<Step>, Failure> {
    let rounds = site.target(Some(leaf))?.rounds();
    let real = move |suite: &Suite<'_>, name: &str, target: &str| {
        let model = suite.site.target(Some(target))?.leaf.model;
        let mut command = of_real(suite, REAL_MODEL, target)?;
        command.args(rounds.then_some("--rounded"));
        run(suite, name, command.arg(format!("targets/_model/{model}")))
    };
    let rounding = |suite: &Suite<'_>, name: &str, target: &str| {
        let numpy = Command::new("python3")
            .args(["-c", "import numpy"])
            .output();
        if !numpy.is_ok_and(|tried| tried.status.success()) {
            return lacks("numpy for python3", "python3-numpy");
        }
        run(suite, name, &mut of_real(suite, ROUNDING, target)?)
    };
    let replies = "logits, token ids and replies of an outside reference";
    let mut steps = vec![script_of_real(
        "real model",
        leaf,
        replies,
        REAL_MODEL,
        real,
    )];
    if rounds {
        let errors = "rounded weights are as near as an independent search finds them";
        steps.push(script_of_real("rounding", leaf, errors, ROUNDING, rounding));
    }
    Ok(steps)
}

/// A step of a script over the binary and the weights of a target.
fn script_of_real(
    what: &str,
    leaf: &str,
    protects: &'static str,
    script: &'static str,
    run: impl Fn(&Suite<'_>, &str, &str) -> Result<(), Failure> + Send + Sync + 'static,
) -> Step {
    let (name, target) = (format!("{what} {leaf}"), leaf.to_string());
    let run = move |suite: &Suite<'_>, name: &str| run(suite, name, &target);
    let reads = Reads::of(&[script, "build/gguf"]).leaf(leaf).binary(leaf);
    script_step(name, protects, ["python3"], run).reads(reads)
}

/// A script with the binary of a target and its real weights.
fn of_real(suite: &Suite<'_>, script: &str, target: &str) -> Result<Command, Failure> {
    let weights = folder(suite.site, Some(target))?;
    let path = build(suite.site, Some(target), false)?;
    let mut command = python(suite, script);
    command.arg(path).args(weights);
    Ok(command)
}

/// `cargo test` succeeds when its filter matches nothing; that would protect nothing.
fn some_test_passed(text: &str) -> Result<(), String> {
    let results = text
        .lines()
        .filter_map(|line| line.strip_prefix("test result: ok. "));
    let counts = results.filter_map(|rest| rest.split(' ').next()?.parse::<usize>().ok());
    match counts.sum::<usize>() {
        0 => Err("no test ran".to_string()),
        _ => Ok(()),
    }
}

fn end_to_end_step(target: &'static str) -> Step {
    Step::new(
        "end to end",
        "the release binary's behaviour over a real socket",
        move |suite, name| end_to_end(suite, name, target).into(),
    )
    .reads(Reads::of(PRODUCT).but(BESIDE_PRODUCT).binary(target))
    .turn(Turn::Alone)
}

fn serving_steps(target: &'static str) -> Vec<Step> {
    let measured = vec![
        script_step(
            "chat page",
            "the page in a real browser",
            ["python3", BROWSER],
            move |suite, name| chat_page(suite, name, target),
        )
        .reads(Reads::of(&["scripts"]).binary(target))
        // It waits for the browser most of the time.
        .turn(Turn::Beside),
        script_step(
            "sweep",
            "measured figures are those of the server, and failures are told",
            ["python3"],
            move |suite, name| sweep(suite, name, target),
        )
        .reads(Reads::of(&["scripts"]).binary(target)),
    ];
    let served = [
        script_step(
            "tiny evaluation",
            "the served model really answers",
            ["python3"],
            move |suite, name| evaluate(suite, name, target),
        )
        .reads(Reads::of(&["scripts"]).binary(target)),
        Step::new(
            "tiny drafts",
            "the drafting layer is worth its weights",
            move |suite, name| drafts(suite, name, target).into(),
        )
        .reads(Reads::of(&["scripts"]).binary(target)),
        Step::new(
            "library",
            "the program with the model inside, and the examples of the documentation",
            |suite, name| library(suite, name).into(),
        )
        .reads(Reads::of(PRODUCT).but(BESIDE_PRODUCT)),
    ];
    // Each has a server and ports of its own.
    let proxies = PROXY_NAMES.map(|proxy| proxy_step(proxy, target).turn(Turn::Beside));
    measured.into_iter().chain(proxies).chain(served).collect()
}

/// The files of `packaging/` for one proxy, and what it does to streams and to the page.
fn proxy_step(proxy: &'static str, target: &'static str) -> Step {
    script_step(
        format!("proxy {proxy}"),
        "streams, cancellation and the page behind it",
        ["python3", "openssl", proxy],
        move |suite, name| try_proxy(suite, name, target, proxy),
    )
    .reads(Reads::of(&["packaging", "scripts"]).binary(target))
}

/// A step of a script, skipped where a program that it needs is missing.
fn script_step<const N: usize>(
    name: impl Into<String>,
    protects: &'static str,
    programs: [&'static str; N],
    run: impl Fn(&Suite<'_>, &str) -> Result<(), Failure> + Send + Sync + 'static,
) -> Step {
    Step::new(name, protects, move |suite, name| {
        let mut missing = programs.iter().filter(|program| on_path(program).is_none());
        match missing.next() {
            Some(program) => lacks(program, program).into(),
            None => run(suite, name).into(),
        }
    })
}

/// A program that is missing, and its package.
fn lacks(program: &str, package: &str) -> Result<(), Failure> {
    let why = format!("{program} is missing; apt-get install {package}");
    Err(Failure::Missing(why))
}

/// The server that a step asks, as it is released.
fn server(suite: &Suite<'_>, name: &str, target: &str) -> Result<Server, Failure> {
    let path = build(suite.site, Some(target), false)?;
    Ok(Server::start(
        &path,
        &[],
        &suite.log(&format!("{name} server")),
    )?)
}

fn chat_page(suite: &Suite<'_>, name: &str, target: &str) -> Result<(), Failure> {
    let server = server(suite, name, target)?;
    run(suite, name, python(suite, CHAT_PAGE).arg(&server.url))
}

fn sweep(suite: &Suite<'_>, name: &str, target: &str) -> Result<(), Failure> {
    let server = server(suite, name, target)?;
    run(suite, name, &mut python(suite, SWEEP_TEST))?;
    let results = suite.site.atlas().join("log").join("sweep");
    let mut command = python(suite, SWEEP);
    command.args([&server.url, "--short", "--out"]).arg(results);
    run(suite, name, &mut command)
}

fn try_proxy(suite: &Suite<'_>, name: &str, target: &str, proxy: &str) -> Result<(), Failure> {
    let path = build(suite.site, Some(target), false)?;
    let mut command = python(suite, PROXIES);
    run(suite, name, command.args([proxy, "--binary"]).arg(path))
}

/// A script of the workspace; it leaves no compiled modules there.
fn python(suite: &Suite<'_>, script: &str) -> Command {
    let mut command = Command::new("python3");
    command.args(["-B", script]).current_dir(&suite.site.root);
    command
}

fn run(suite: &Suite<'_>, name: &str, command: &mut Command) -> Result<(), Failure> {
    Ok(suite.run(name, command).map(drop)?)
}

/// Builds the binary and checks what it promises about itself.
fn binary_step(target: &str) -> Step {
    let target = target.to_string();
    let protects = "one file: glibc and the driver alone, no PTX, no paths of this machine";
    let name = format!("binary {target}");
    let reads = Reads::of(PRODUCT).binary(&target);
    let run = move |suite: &Suite<'_>, _: &str| binary(suite.site, &target).into();
    Step::new(name, protects, run).reads(reads)
}

fn binary(site: &Site, target: &str) -> Result<(), Failure> {
    let (_, findings) = checks(site, &site.target(Some(target))?)?;
    let wrong = findings
        .into_iter()
        .find_map(|(what, result)| Some((what, result.err()?)));
    match wrong {
        Some((what, why)) => Err(Failure::Failed(format!("{what}: {why}"))),
        None => Ok(()),
    }
}

fn end_to_end(suite: &Suite<'_>, name: &str, target: &str) -> Result<(), Failure> {
    let path = build(suite.site, Some(target), false)?;
    let mut cargo = linted(suite.product_cargo("test", Optimised::Wholly, "--test e2e")?);
    let text = suite.run(name, cargo.env("ATLAS_BINARY", path))?;
    Ok(some_test_passed(&text)?)
}

/// The library, as other programs use it: the example runs, and those of the documentation compile.
fn library(suite: &Suite<'_>, name: &str) -> Result<(), String> {
    suite.run(
        name,
        &mut linted(suite.product_cargo("test", Optimised::Wholly, "--doc")?),
    )?;
    let args = format!("--example {EXAMPLE}");
    let said = suite.run(
        name,
        &mut linted(suite.product_cargo("run", Optimised::Wholly, &args)?),
    )?;
    match EXAMPLE_SAYS.iter().find(|text| !said.contains(*text)) {
        None => Ok(()),
        Some(text) => Err(format!("{EXAMPLE} does not say {text}:\n{said}")),
    }
}

fn evaluate(suite: &Suite<'_>, name: &str, target: &str) -> Result<(), Failure> {
    let server = server(suite, name, target)?;
    let served = served(suite);
    let _ = std::fs::remove_file(&served);
    let mut command = python(suite, EVALUATION);
    command.args(["--url", &server.url, "--short", EVALUATION_QUESTIONS]);
    run(suite, name, command.arg("--served").arg(served))
}

/// Where the evaluation leaves what was served.
fn served(suite: &Suite<'_>) -> PathBuf {
    suite.site.atlas().join("log").join(SERVED)
}

/// First drafts against what was served.
fn drafts(suite: &Suite<'_>, name: &str, target: &str) -> Result<(), Failure> {
    if !served(suite).exists() {
        let why = "the evaluation left no served replies";
        return Err(Failure::Missing(why.to_string()));
    }
    let path = build(suite.site, Some(target), false)?;
    let mut command = Command::new(path);
    command.args(["selftest", "--drafts"]).arg(served(suite));
    let text = suite.run(name, &mut command)?;
    match percent(&text) {
        Some(found) if found >= ACCEPTANCE_LEAST => Ok(()),
        _ => Err(Failure::Failed(format!(
            "at least {ACCEPTANCE_LEAST} % must equal the served token: {}",
            text.trim()
        ))),
    }
}

/// The number before the first `%`.
fn percent(text: &str) -> Option<f64> {
    let (before, _) = text.split_once('%')?;
    before
        .rsplit(['(', ' '])
        .find(|word| !word.is_empty())?
        .parse()
        .ok()
}

/// Steps that start a binary with device code.
fn started_steps(target: &str) -> Vec<Step> {
    let (starting, parity) = (target.to_string(), target.to_string());
    let start = move |suite: &Suite<'_>, name: &str| start(suite, name, &starting).into();
    let parity = move |suite: &Suite<'_>, name: &str| match Path::new(GPU).exists() {
        true => selftest(suite, name, &parity).into(),
        false => Outcome::Skipped {
            why: "no NVIDIA GPU".to_string(),
            installable: false,
        },
    };
    vec![
        Step::new(
            format!("start {target}"),
            "the loader finds all it needs",
            start,
        )
        .reads(Reads::default().binary(target)),
        Step::new(
            format!("parity {target}"),
            "device ops equal the reference",
            parity,
        ),
    ]
}

/// Starts the binary, in an emulator if it is for another host.
fn start(suite: &Suite<'_>, name: &str, target: &str) -> Result<(), Failure> {
    let path = build(suite.site, Some(target), false)?;
    let host = suite.site.target(Some(target))?.hardware.host;
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
    run(suite, name, command.arg("about"))
}

fn selftest(suite: &Suite<'_>, name: &str, target: &str) -> Result<(), Failure> {
    let path = build(suite.site, Some(target), false)?;
    run(suite, name, Command::new(path).arg("selftest"))
}

/// Kernels of a small model of each family, for the GPUs in turn: the workflows build them for all.
/// No host program is made of them here.
fn kernels_step(leaves: &[String]) -> Step {
    let of = |start: &'static str| leaves.iter().filter(move |leaf| leaf.starts_with(start));
    let [even, odd] = RANDOM_DEVICE.map(of);
    let targets = even.step_by(2).chain(odd.skip(1).step_by(2));
    let targets: Vec<_> = targets.cloned().collect();
    let run = move |suite: &Suite<'_>, _: &str| kernels(suite.site, &targets).into();
    Step::new(
        "kernels of every family",
        "what no GPU target that is served reaches still compiles",
        run,
    )
}

fn kernels(site: &Site, targets: &[String]) -> Result<(), Failure> {
    for target in targets {
        let plan = plan(site, Some(target))?;
        let reports = plan.device.iter().flat_map(|device| &device.reports);
        let reports: Vec<_> = reports.map(|(_, report)| report).collect();
        make_only(site, &plan.graph, &reports)?;
    }
    Ok(())
}

/// The crate that needs libclang, which comes with the pinned toolchain of a device target.
fn boundary_step(target: &'static str) -> Step {
    let run = move |suite: &Suite<'_>, name: &str| boundary(suite, name, target).into();
    Step::new(
        "boundary",
        "the crate between Rust and CUDA compiles and holds its rules",
        run,
    )
    .reads(Reads::of(&["Cargo.toml", "Cargo.lock", "ffi", "build/manifest"]).leaf(target))
}

fn boundary(suite: &Suite<'_>, name: &str, target: &str) -> Result<(), Failure> {
    let plan = plan(suite.site, Some(target))?;
    let libclang = plan.device.as_ref().map(|device| &device.libclang);
    let built = make_only(
        suite.site,
        &plan.graph,
        &libclang.into_iter().collect::<Vec<_>>(),
    )?;
    let mut cargo =
        linted(suite.product_cargo("test", Optimised::Wholly, "-p ffi --all-targets")?);
    let libclang = built.iter().map(|path| ("LIBCLANG_PATH", path));
    Ok(no_warning(&suite.run(name, cargo.envs(libclang))?)?)
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
        let found = || goldens_missing(&root, "cpu/small/bf16");
        let skipped = found();
        std::fs::write(model.join("model.safetensors"), "").unwrap();
        let failed = found();
        std::fs::write(model.join("golden/tokens.json"), "").unwrap();
        let there = found();
        std::fs::remove_dir_all(&root).unwrap();
        assert!(matches!(skipped, Some(Outcome::Skipped { why, .. }) if why == expected));
        assert!(matches!(failed, Some(Outcome::Failed(why)) if why == expected));
        assert!(there.is_none());
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
