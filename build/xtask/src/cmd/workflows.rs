//! `workflows`: the files of GitHub Actions.

use argh::FromArgs;

use crate::site::{Failure, Site};
use crate::workflow;

/// Write the workflow files of GitHub Actions, of all targets.
#[derive(FromArgs)]
#[argh(subcommand, name = "workflows")]
pub struct Workflows {}

impl Workflows {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        workflow::write(site)
    }
}
