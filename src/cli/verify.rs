//! `verify`: whether the files are those that this binary was built for.

use std::path::PathBuf;
use std::sync::Arc;

use argh::FromArgs;

use crate::target;
use crate::weights::{self, Progress, WeightsError};

use super::boot::{self, Files};
use super::{Exit, Failure};

/// check the weights against the manifest in this binary
#[derive(FromArgs, Debug)]
#[argh(subcommand, name = "verify", help_triggers("--help"))]
pub struct Verify {
    /// directory that holds the weights; none for a model inside the binary
    #[argh(positional)]
    weights: Option<PathBuf>,

    /// read every byte and compare SHA-256
    #[argh(switch)]
    full: bool,
}

/// Prints a line per check.
///
/// # Errors
/// The first check that fails.
pub fn run(options: &Verify) -> Result<(), Failure> {
    let files = Files::locate(options.weights.as_deref())?;
    let progress = Arc::new(Progress::default());
    identity(&files, &progress)?;
    if options.full {
        digests(&files, &progress)?;
    }
    text(&files)?;
    model(&files, &progress)
}

/// Whether the files are those of this model: sizes, names, shapes and element types.
fn identity(files: &Files, progress: &Arc<Progress>) -> Result<(), Failure> {
    let opened = files.open(progress.clone());
    opened.map_err(|error| weights_failure(&error))?;
    let count = target::CHECKPOINT.len();
    boot::print(&format!(
        "ok   sizes of {count} files, names and shapes of all tensors\n"
    ))
}

/// Whether every byte of the files is the one that was published.
fn digests(files: &Files, progress: &Progress) -> Result<(), Failure> {
    let Files::Directory(directory) = files else {
        return Ok(());
    };
    weights::verify_digests(directory, progress).map_err(|error| weights_failure(&error))?;
    let count = target::CHECKPOINT.len();
    boot::print(&format!("ok   SHA-256 of {count} files\n"))
}

/// Whether texts become tokens.
fn text(files: &Files) -> Result<(), Failure> {
    if target::TOKENIZER_FILE.is_empty() {
        return boot::print("--   the model has no tokenizer and no chat template\n");
    }
    boot::chat_model(files)?;
    boot::print("ok   tokenizer and chat template\n")
}

/// Whether the model computes what it should.
fn model(files: &Files, progress: &Arc<Progress>) -> Result<(), Failure> {
    if target::GOLDEN.is_empty() {
        return boot::print("--   the model is not run: this binary has no golden tokens\n");
    }
    let (_, report) =
        boot::runner(files, progress).map_err(|cause| boot::start_failure(cause.as_ref()))?;
    boot::print(&format!("ok   {}\n", boot::checked(&report)))
}

fn weights_failure(error: &WeightsError) -> Failure {
    let exit = if matches!(error, WeightsError::Io { .. }) {
        Exit::Io
    } else {
        Exit::Config
    };
    Failure::new(exit, error)
}
