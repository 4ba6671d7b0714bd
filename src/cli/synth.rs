//! `synth`: writes a random checkpoint of this binary's model, for measurements and comparisons.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use argh::{ArgsInfo, FromArgs};

use super::{Exit, Failure};
use crate::start::boot;
use crate::start::meter::Meter;
use model::target;
use model::weights::{self, Progress, SynthError};
use text::drawn;

/// write a checkpoint of the model's exact tensors with drawn numbers, to measure and compare with
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "synth", help_triggers("--help"))]
pub struct Synth {
    /// directory to fill; made if it is not there, refused if it holds something
    #[argh(positional)]
    directory: PathBuf,

    /// keep the first layers only, at full width
    #[argh(option, default = "target::LAYERS")]
    layers: usize,
}

/// Writes the files, and prints a line about them.
///
/// # Errors
/// The reason why a file could not be written; all files are removed then.
pub fn run(options: &Synth) -> Result<(), Failure> {
    let progress = Arc::new(Progress::default());
    let (meter, start) = (Meter::start(&progress), Instant::now());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let (directory, beside) = (&options.directory, drawn::files(&target::FACTS));
    let written = weights::write_synthetic(directory, options.layers, &beside, threads, &progress);
    drop(meter);
    let written = written.map_err(|error| {
        let exit = match error {
            SynthError::Layers { .. } | SynthError::NotEmpty { .. } => Exit::Usage,
            SynthError::Full { .. } | SynthError::Io { .. } => Exit::Io,
        };
        exit.failure(error)
    })?;
    let seconds = start.elapsed().as_secs_f64();
    boot::print(&format!(
        "{}: {} tensors of {} layers in {} files, {:.2} GB in {seconds:.1} s ({:.2} GB/s)\n",
        options.directory.display(),
        written.tensors,
        options.layers,
        written.shards,
        written.bytes as f64 / 1e9,
        written.bytes as f64 / 1e9 / seconds
    ))
}
