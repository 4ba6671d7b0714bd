//! `ci`: the tests as the gate runs them.

use argh::FromArgs;

use super::steps::steps;
use super::test::{Policy, suite};
use crate::site::{Failure, Site};

/// Run `test` where every tool is expected to be installed: a step skipped for a missing package
/// fails.
#[derive(FromArgs)]
#[argh(subcommand, name = "ci")]
pub struct Ci {}

impl Ci {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        let policy = Policy {
            packages_required: true,
            ..Policy::default()
        };
        suite(site, steps(site, None)?, policy)
    }
}
