//! `workflows`: writes the files of GitHub Actions.

use argh::FromArgs;

use crate::site::{Failure, Site};
use crate::workflow;

/// Write the workflow files of GitHub Actions, of all targets.
#[derive(FromArgs)]
#[argh(subcommand, name = "workflows")]
pub struct Workflows {
    /// print the jobs of each file with the minutes that they take at most, and write nothing
    #[argh(switch)]
    graph: bool,
}

impl Workflows {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        if self.graph {
            print!("{}", workflow::graph(site)?);
            return Ok(());
        }
        workflow::write(site)
    }
}
