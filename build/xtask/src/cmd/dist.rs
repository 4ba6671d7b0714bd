//! `dist`: the files of a target's release.

use std::path::PathBuf;

use argh::FromArgs;

use super::build::make_published;
use crate::dist::{self, SUMS, sign};
use crate::plan::{self, Plan, Variant};
use crate::site::{Failure, Site};
use crate::toolchain::Toolchain;

/// Make what is published of a target: stripped binary, archive, Debian package, manifest, bill of
/// materials, digests.
#[derive(FromArgs)]
#[argh(subcommand, name = "dist")]
pub struct Dist {
    /// which target: <hw>/<model>/<quant>; by default cpu/tiny/nvfp4
    #[argh(positional)]
    target: Option<String>,
    /// file of a minisign secret key without a password; signs the digests
    #[argh(option)]
    key: Option<PathBuf>,
    /// say of each action why it runs and what its key covers
    #[argh(switch)]
    explain: bool,
}

impl Dist {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        let files = files(site, self.target.as_deref(), self.explain)?;
        let sums = files.iter().find(|path| path.ends_with(SUMS));
        let sums = sums.expect("a release has its digests");
        sign::withdraw(sums)?;
        if let Some(key) = &self.key {
            let comment = format!("Atlas {}", env!("CARGO_PKG_VERSION"));
            sign::sign(sums, key, &comment)?;
        }
        for path in files {
            println!("{}", path.display());
        }
        Ok(())
    }
}

/// Makes the files of a release; returns their paths.
///
/// # Errors
/// If there is no such target, a program is missing, or an action failed.
pub fn files(site: &Site, target: Option<&str>, explain: bool) -> Result<Vec<PathBuf>, Failure> {
    let (plan, dist) = plan(site, target)?;
    make_published(site, &plan, &dist.folder, &dist.files, explain)
}

/// Plans the release of a target.
///
/// # Errors
/// If there is no such target, or a program is missing.
pub fn plan(site: &Site, target: Option<&str>) -> Result<(Plan, dist::Dist), Failure> {
    let target = site.target(target)?;
    let toolchain = Toolchain::find(&site.root)?;
    let mut plan = plan::plan(&target, &toolchain, &Variant::default())?;
    let dist = dist::plan(&mut plan, &target, &toolchain)?;
    Ok((plan, dist))
}
