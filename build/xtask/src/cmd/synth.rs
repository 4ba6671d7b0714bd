//! `synth`: a random checkpoint of a target's model.

use std::path::PathBuf;
use std::process::Command;

use argh::FromArgs;

use super::build::build;
use crate::site::{Failure, Site};

/// Write a checkpoint of a target's exact tensors with drawn numbers, by the target's own binary.
#[derive(FromArgs)]
#[argh(subcommand, name = "synth")]
pub struct Synth {
    /// which target: <hw>/<model>/<quant>
    #[argh(positional)]
    target: String,
    /// directory to fill
    #[argh(positional)]
    directory: PathBuf,
    /// keep the first layers only, at full width
    #[argh(option)]
    layers: Option<usize>,
}

impl Synth {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        let binary = build(site, Some(&self.target), false)?;
        let mut command = Command::new(&binary);
        command.arg("synth").arg(&self.directory);
        command.args(self.layers.map(|layers| format!("--layers={layers}")));
        let status = command
            .status()
            .map_err(|why| format!("start {}: {why}", binary.display()))?;
        match status.success() {
            true => Ok(()),
            false => Err(Failure::Failed(format!("nothing was written: {status}"))),
        }
    }
}
