//! `verify`: checks that the files of the weights are those that this binary was built for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use argh::{ArgsInfo, FromArgs};

use check::LayerFinding;
use host::output;
use model::Runner;
use model::backend::Backend;
use model::backend::cpu::Cpu;
use model::target;
use model::weights::{self, FileDigest, Packed, Progress, Verdict, Witness};
use step::executor::TokenId;
use text::chat::ChatModel;

use super::transfer::copy::unwritable;
use super::{Exit, Failure};
use crate::start::boot::{self, Drafting, Files};
use crate::start::check::{Checks, log_drawn};
use crate::start::meter::Meter;

/// check the weights against the manifest in this binary
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "verify", help_triggers("--help"))]
pub struct Verify {
    /// directory that holds the weights, or packed file; none for a model inside the binary
    #[argh(positional)]
    weights: Option<PathBuf>,

    /// read every byte and compare digests with the manifest's, or with those that the download
    /// left beside the files; of a packed file, with those that were written
    #[argh(switch)]
    full: bool,

    /// read every byte and print names, sizes and SHA-256 as a model's manifest states them; check
    /// nothing else
    #[argh(switch)]
    digests: bool,

    /// compare every layer with the CPU's operations over the same weights, on a text: takes
    /// minutes for a large model
    #[argh(switch)]
    oracle: bool,

    /// file to write: tokens that the model gives now, for later starts to compare with, as
    /// `serve --golden FILE` does; with --oracle, which must pass first
    #[argh(option)]
    golden: Option<PathBuf>,
}

/// Prints a line for each check.
///
/// # Errors
/// The first check that fails.
pub fn run(options: &Verify) -> Result<(), Failure> {
    if options.golden.is_some() && !options.oracle {
        let text = "--golden: give --oracle too, so that what is kept was compared before";
        return Err(Exit::Usage.failure(text));
    }
    let files = Files::locate(options.weights.as_deref())?;
    let progress = Arc::new(Progress::default());
    if options.digests {
        return block(&files, &progress);
    }
    identity(&files, &progress)?;
    match &files {
        Files::Packed(_) if options.oracle => return Err(unpacked("--oracle")),
        Files::Packed(packed) if options.full => pieces(packed, &progress)?,
        _ if options.full => digests(&files, &progress)?,
        _ => {}
    }
    let chat = text(&files)?;
    let checks = Checks::new(&files, chat.as_ref(), None)?;
    let tokens = checks.text().to_vec();
    let mut runner = model(&files, &progress, checks)?;
    if options.oracle {
        oracle(&files, &mut runner, &tokens)?;
    }
    let golden = options.golden.as_deref();
    golden.map_or(Ok(()), |file| keep(&mut runner, &tokens, file))
}

/// Checks that the files are this model's: sizes, names, shapes and element types.
fn identity(files: &Files, progress: &Arc<Progress>) -> Result<(), Failure> {
    let checkpoint = files.open(progress.clone())?;
    if let Files::Packed(packed) = files {
        let count = packed.table().weights.len();
        return boot::print(&format!(
            "ok   head and table of {count} weights, packed for this binary\n"
        ));
    }
    let sizes = match target::CHECKPOINT.len() {
        0 => String::new(),
        count => format!(", sizes of {count} files"),
    };
    boot::print(&format!(
        "ok   configuration, names, shapes and types of {} tensors{sizes}\n",
        checkpoint.tensors()
    ))
}

/// Checks digests of whole files against the manifest or the download's records. Files without a
/// known digest are reported as unknown.
fn digests(files: &Files, progress: &Arc<Progress>) -> Result<(), Failure> {
    for revision in revisions(files)? {
        boot::print(&revision)?;
    }
    let files = hash(files, progress)?;
    let mut agreed: BTreeMap<Witness, usize> = BTreeMap::new();
    let (mut unknown, mut differing) = (Vec::new(), Vec::new());
    for file in files {
        match &file.verdict {
            Verdict::Agrees(by) => *agreed.entry(*by).or_default() += 1,
            Verdict::Unknown => unknown.push(file.name),
            Verdict::Differs {
                by,
                expected,
                found,
            } => differing.push(format!(
                "{}: has the digest {found}, {by} {expected}; download the file again",
                file.name
            )),
        }
    }
    for (by, count) in agreed {
        boot::print(&format!("ok   digests of {count} files, as {by}\n"))?;
    }
    if !unknown.is_empty() {
        let names = weights::shortest(&unknown);
        boot::print(&format!(
            "--   digests not known: {names}; nothing here states them\n"
        ))?;
    }
    match differing[..] {
        [] => Ok(()),
        _ => Err(Exit::Config.failure(differing.join("\n"))),
    }
}

/// Checks the digest of each piece of a packed file.
fn pieces(packed: &Packed, progress: &Arc<Progress>) -> Result<(), Failure> {
    let meter = Meter::start(progress);
    let checked = packed.check(progress);
    drop(meter);
    checked?;
    let count = packed.table().pieces.len();
    boot::print(&format!(
        "ok   digests of {count} pieces, as they were written\n"
    ))
}

/// Failure because of a flag that needs unpacked weights.
fn unpacked(flag: &str) -> Failure {
    let fix = "packed weights have another layout; give the directory they are of";
    Exit::Usage.failure(format!("{flag}: {fix}"))
}

/// Lines on whether the revision in the directory's records is the manifest's.
fn revisions(files: &Files) -> Result<Vec<String>, Failure> {
    let Files::Directory(directory) = files else {
        return Ok(Vec::new());
    };
    let found = weights::revisions_of(directory)?;
    let line = match (found.first(), target::REVISION) {
        (None, _) => "--   revision not known: nothing here states it\n".to_string(),
        // Another revision was refused before.
        (Some(found), Some(_)) => format!("ok   revision {}, by {}\n", found.commit, found.by),
        (Some(found), None) => format!(
            "--   revision {}, by {}; this binary was built for none in particular\n",
            found.commit, found.by
        ),
    };
    Ok(vec![line])
}

fn hash(files: &Files, progress: &Arc<Progress>) -> Result<Vec<FileDigest>, Failure> {
    let _meter = Meter::start(progress);
    let hashed = match files {
        Files::Embedded => weights::of_embedded(progress),
        Files::Directory(directory) => weights::of_directory(directory, progress),
        Files::Packed(_) => return Err(unpacked("--digests")),
    };
    Ok(hashed?)
}

/// Prints the manifest's entries for the files, for maintainers of manifests.
fn block(files: &Files, progress: &Arc<Progress>) -> Result<(), Failure> {
    let hashed = hash(files, progress)?;
    let found = match files {
        Files::Embedded | Files::Packed(_) => Vec::new(),
        Files::Directory(directory) => weights::revisions_of(directory)?,
    };
    let found = found.first();
    let revision = found.map(|found| format!("revision = {:?}\n", found.commit));
    boot::print(&format!(
        "# {} for targets/_model/{}/model.toml\n{}{}",
        target::BINARY,
        target::MODEL,
        revision.unwrap_or_default(),
        weights::block(&hashed)
    ))
}

/// Checks that the tokenizer can encode texts; returns the chat model, if the target has one.
fn text(files: &Files) -> Result<Option<ChatModel>, Failure> {
    if target::TOKENIZER_FILE.is_empty() {
        boot::print("--   the model has no tokenizer and no chat template\n")?;
        return Ok(None);
    }
    let chat = boot::chat_model(files)?;
    boot::print("ok   tokenizer and chat template\n")?;
    Ok(Some(chat))
}

/// Checks the model's computations, as each start does.
fn model(
    files: &Files,
    progress: &Arc<Progress>,
    checks: Checks,
) -> Result<Runner<Backend>, Failure> {
    log_drawn(files);
    let runner = boot::runner(files, progress, Drafting::No, || Ok(checks));
    let runner = runner?;
    boot::print("ok   the model, as every start checks it\n")?;
    Ok(runner)
}

/// Compares every layer on the device with the CPU's operations.
fn oracle(files: &Files, runner: &mut Runner<Backend>, tokens: &[TokenId]) -> Result<(), Failure> {
    let checkpoint = files.open(Arc::default())?;
    let on_layer = |layer: &LayerFinding, seconds: f64| {
        // A closed output does not stop the comparison: the exit code still says the outcome.
        let _ = boot::print(&format!("{layer} ({seconds:.1} s)\n"));
    };
    let cpu = Cpu::new(std::thread::available_parallelism().map_or(1, usize::from));
    let report = check::oracle(runner, cpu, &checkpoint, tokens, on_layer);
    let report = report.map_err(|error| boot::start_failure(&error))?;
    boot::print(&format!("{report}\n"))?;
    match report.passed() {
        true => Ok(()),
        false => Err(Exit::Internal.failure(
            "the device computes something else than the CPU over the same weights: it must not \
             serve",
        )),
    }
}

/// Writes the model's current golden tokens to `file`.
fn keep(runner: &mut Runner<Backend>, tokens: &[TokenId], file: &Path) -> Result<(), Failure> {
    let golden = check::keep_golden(runner, tokens);
    let golden = golden.map_err(|error| Exit::Internal.failure(error))?;
    output::write(file, golden).map_err(unwritable(file))?;
    let name = file.display();
    boot::print(&format!(
        "ok   golden tokens are in {name}: `serve --golden {name}` compares them\n"
    ))
}
