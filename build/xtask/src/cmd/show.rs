//! `targets`, `show`, `graph`: what is known of targets, printed.

use argh::FromArgs;

use super::build::plan;
use crate::graph::draw;
use crate::site::{Failure, Site};

/// List the targets.
#[derive(FromArgs)]
#[argh(subcommand, name = "targets")]
pub struct Targets {}

impl Targets {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        site.leaves()?.iter().for_each(|leaf| println!("{leaf}"));
        Ok(())
    }
}

/// Print the expanded manifest of a target.
#[derive(FromArgs)]
#[argh(subcommand, name = "show")]
pub struct Show {
    /// which target: <hw>/<model>/<quant>; by default cpu/tiny/nvfp4
    #[argh(positional)]
    target: Option<String>,
}

impl Show {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        print!("{}", site.target(self.target.as_deref())?.expanded());
        Ok(())
    }
}

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
