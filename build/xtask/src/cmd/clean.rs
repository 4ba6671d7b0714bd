//! `clean`: removes what the pipeline made.

use argh::FromArgs;

use crate::graph::Store;
use crate::site::{Failure, Site};

/// Remove everything that builds made: store, caches, binaries.
#[derive(FromArgs)]
#[argh(subcommand, name = "clean")]
pub struct Clean {}

impl Clean {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        let atlas = site.atlas();
        let store = Store::open(&atlas, || {
            eprintln!("waiting for another build of this workspace to end")
        })?;
        std::fs::remove_dir_all(&atlas)
            .map_err(|why| format!("remove {}: {why}", atlas.display()))?;
        drop(store);
        Ok(())
    }
}
