//! `run`: builds a target and serves it.

use std::os::unix::process::CommandExt;
use std::process::Command;

use argh::FromArgs;

use super::build::build;
use super::weights::folder;
use crate::site::{Failure, Site};

/// Build a target and serve it, with the weights of its package if one has them. Arguments after
/// `--` go to the binary's `serve`.
#[derive(FromArgs)]
#[argh(subcommand, name = "run")]
pub struct Run {
    /// what to serve: <hw>/<model>/<quant>; by default cpu/tiny/nvfp4
    #[argh(positional)]
    target: Option<String>,
}

impl Run {
    /// Replaces this process by the server, so that signals and the exit code are the server's.
    pub fn start(self, site: &Site, flags: &[String]) -> Result<(), Failure> {
        let path = build(site, self.target.as_deref(), false)?;
        let mut command = Command::new(&path);
        command.arg("serve");
        if flags.first().is_none_or(|first| first.starts_with('-')) {
            command.args(folder(site, self.target.as_deref())?);
        }
        let why = command.args(flags).exec();
        let path = path.display();
        Err(Failure::Failed(format!("cannot start {path}: {why}")))
    }
}
