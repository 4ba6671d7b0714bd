//! `targets`: lists the targets.

use argh::FromArgs;

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
