//! `show`: prints a target as the compiler sees it.

use argh::FromArgs;

use crate::site::{Failure, Site};

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
