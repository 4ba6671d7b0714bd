//! `graph`: the actions of a target as a picture.

use std::path::PathBuf;

use argh::FromArgs;

use super::build::plan;
use crate::graph::draw;
use crate::site::{Failure, Site};

/// Print the action graph of a target as DOT, or write it as SVG.
#[derive(FromArgs)]
#[argh(subcommand, name = "graph")]
pub struct Graph {
    /// which target: <hw>/<model>/<quant>; by default cpu/tiny/nvfp4
    #[argh(positional)]
    target: Option<String>,
    /// write an SVG picture to this file
    #[argh(option)]
    svg: Option<PathBuf>,
}

impl Graph {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        let plan = plan(site, self.target.as_deref())?;
        let Some(path) = self.svg else {
            print!("{}", draw::dot(&plan.graph));
            return Ok(());
        };
        let title = format!("{} {}", plan.binary, env!("CARGO_PKG_VERSION"));
        std::fs::write(&path, draw::svg(&plan.graph, &title))
            .map_err(|why| format!("write {}: {why}", path.display()))?;
        println!("{}", path.display());
        Ok(())
    }
}
