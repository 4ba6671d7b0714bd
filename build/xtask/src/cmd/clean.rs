//! `clean`: removes files that the pipeline made.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use argh::FromArgs;

use super::build::{open, options};
use crate::graph::digest::Digest;
use crate::graph::run::present;
use crate::graph::sweep::Amount;
use crate::graph::{Graph, Store};
use crate::site::{Failure, Site};
use crate::weights;

/// Default days since the last use after which an output is removed.
const OLDER_DAYS: u64 = 30;
/// Default size of the store above which outputs are removed, gigabytes.
const KEEP_GB: u64 = 20;
const GB: u64 = 1_000_000_000;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Remove outputs that no build of the last days used, and the oldest of too many. What a build of
/// the present sources takes from the store stays.
#[derive(FromArgs)]
#[argh(subcommand, name = "clean")]
pub struct Clean {
    /// days since a build used an output, after which it goes (default 30)
    #[argh(option, default = "OLDER_DAYS")]
    older: u64,
    /// gigabytes that the store may have (default 20)
    #[argh(option, default = "KEEP_GB")]
    keep: u64,
    /// remove everything that builds made: store, caches, binaries
    #[argh(switch)]
    all: bool,
}

impl Clean {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        let store = open(site)?;
        let atlas = site.atlas();
        if self.all {
            std::fs::remove_dir_all(&atlas)
                .map_err(|why| format!("remove {}: {why}", atlas.display()))?;
            return Ok(());
        }
        let age = DAY.saturating_mul(u32::try_from(self.older).unwrap_or(u32::MAX));
        let since = SystemTime::now().checked_sub(age);
        let since = since.unwrap_or(SystemTime::UNIX_EPOCH);
        let [removed, kept] = store
            .sweep(&needed(site, &store)?, since, self.keep.saturating_mul(GB))
            .map_err(|why| format!("sweep {}: {why}", atlas.join("store").display()))?;
        println!("removed {}", shown(removed));
        println!("kept {}", shown(kept));
        Ok(())
    }
}

fn shown(Amount { actions, bytes }: Amount) -> String {
    let gigabytes = bytes as f64 / GB as f64;
    format!("outputs of {actions} actions, {gigabytes:.1} GB")
}

/// Keys of everything in the store that a target of this tree needs; nothing for targets that
/// cannot be planned on this machine.
fn needed(site: &Site, store: &Store) -> Result<BTreeSet<Digest>, Failure> {
    let mut keys = BTreeSet::new();
    let mut walk = |graph: &Graph| -> Result<(), Failure> {
        keys.extend(present(graph, store, &options(site, false))?);
        Ok(())
    };
    for leaf in site.leaves()? {
        if let Ok((plan, _)) = super::dist::plan(site, Some(&leaf)) {
            walk(&plan.graph)?;
        }
        if let Some(plan) = weights::plan(&site.target(Some(&leaf))?)? {
            walk(&plan.graph)?;
        }
    }
    Ok(keys)
}
