//! `sizes`: what a binary is made of.

use std::path::Path;

use argh::FromArgs;

use super::build::{make, plan};
use crate::binary::Elf;
use crate::site::{Failure, Site};

/// Sections smaller than this share of the file are added up in one row.
const SHARE_SHOWN: f64 = 0.005;

/// Print the size of a binary and of its sections.
#[derive(FromArgs)]
#[argh(subcommand, name = "sizes")]
pub struct Sizes {
    /// which target: <hw>/<model>/<quant>; by default cpu/tiny/nvfp4
    #[argh(positional)]
    target: Option<String>,
}

impl Sizes {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        let plan = plan(site, self.target.as_deref())?;
        let reports = plan.device.iter().flat_map(|device| &device.reports);
        let besides: Vec<_> = reports.map(|(_, source)| source).collect();
        let built = make(site, &plan, &besides, false)?;
        let path = built.binary;
        let bytes =
            std::fs::read(&path).map_err(|why| format!("read {}: {why}", path.display()))?;
        let elf = Elf::parse(&bytes)?;
        let total = bytes.len() as f64;
        let mut sections: Vec<_> = elf
            .sections
            .iter()
            .filter(|section| section.bytes > 0)
            .collect();
        sections.sort_by_key(|section| std::cmp::Reverse(section.bytes));
        let (large, small): (Vec<_>, Vec<_>) = sections
            .into_iter()
            .partition(|section| section.bytes as f64 >= total * SHARE_SHOWN);
        let row = |name: &str, bytes: usize| {
            println!(
                "{bytes:>12}  {:>5.1} %  {name}",
                100.0 * bytes as f64 / total
            )
        };
        row(&path.display().to_string(), bytes.len());
        large
            .iter()
            .for_each(|section| row(&section.name, section.bytes));
        row(
            "(all smaller sections)",
            small.iter().map(|section| section.bytes).sum(),
        );
        built.besides.iter().try_for_each(|path| kernels(path))
    }
}

/// Prints registers, spills and shared memory of the kernels of one op.
fn kernels(report: &Path) -> Result<(), Failure> {
    let read = std::fs::read_to_string(report);
    print!(
        "{}",
        read.map_err(|why| format!("read {}: {why}", report.display()))?
    );
    Ok(())
}
