//! `graph`: the actions of a target as a picture.

use argh::FromArgs;

use super::build::plan;
use crate::graph::draw;
use crate::site::{Failure, Site};

/// Print the action graph of a target as DOT.
#[derive(FromArgs)]
#[argh(subcommand, name = "graph")]
pub struct Graph {
    /// which target: <hw>/<model>/<quant>; by default cpu/tiny/nvfp4
    #[argh(positional)]
    target: Option<String>,
}

impl Graph {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        let plan = plan(site, self.target.as_deref())?;
        print!("{}", draw::dot(&plan.graph));
        Ok(())
    }
}
