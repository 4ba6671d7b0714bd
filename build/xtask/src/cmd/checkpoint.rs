//! `checkpoint`: the block of `model.toml` that pins a checkpoint's files.

use std::path::PathBuf;

use argh::FromArgs;

use crate::site::{Failure, Site};

/// Print name, size and sha256 of a checkpoint's files, ready for `model.toml`.
#[derive(FromArgs)]
#[argh(subcommand, name = "checkpoint")]
pub struct Checkpoint {
    /// name of a model of targets/_model, or a folder with the files
    #[argh(positional)]
    model: String,
}

impl Checkpoint {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        let model = &self.model;
        let own = site.root.join("targets/_model").join(model);
        let places = [own, PathBuf::from(model)];
        let Some(folder) = places.into_iter().find(|place| place.is_dir()) else {
            let text = format!("`{model}` is neither a folder nor a model of targets/_model");
            return Err(Failure::Usage(text));
        };
        print!("{}", manifest::checkpoint_block(&folder)?);
        Ok(())
    }
}
