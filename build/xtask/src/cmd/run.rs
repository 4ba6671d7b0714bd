//! `run`: builds a target and serves it.

use std::os::unix::process::CommandExt;
use std::process::Command;

use argh::FromArgs;

use super::build::build;
use crate::site::{Failure, Site};

/// Build a target and serve it. Arguments after `--` go to the binary's `serve`.
#[derive(FromArgs)]
#[argh(subcommand, name = "run")]
pub struct Run {
    /// what to serve: <hw>/<model>/<quant>; by default cpu/tiny/nvfp4
    #[argh(positional)]
    target: Option<String>,
}

impl Run {
    /// Becomes the server, so that signals and the exit code are its own.
    pub fn start(self, site: &Site, flags: &[String]) -> Result<(), Failure> {
        let path = build(site, self.target.as_deref(), false)?;
        let why = Command::new(&path).arg("serve").args(flags).exec();
        Err(Failure::Failed(format!(
            "cannot start {}: {why}",
            path.display()
        )))
    }
}
