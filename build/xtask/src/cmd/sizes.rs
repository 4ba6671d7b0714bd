//! `sizes`: size of a binary by sections and crates.

use std::collections::BTreeMap;
use std::path::Path;

use argh::FromArgs;

use super::build::{make, plan};
use crate::binary::Elf;
use crate::site::{Failure, Site};

/// Share of the file below which sections are added up in one row.
const SHARE_SHOWN: f64 = 0.005;

/// Number of crates shown, those with the most code.
const CRATES_SHOWN: usize = 20;

/// Print the size of a binary, of its sections and of each crate's code.
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
        let mut sections = elf.sections();
        sections.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let (large, small): (Vec<_>, Vec<_>) = sections
            .into_iter()
            .partition(|(_, bytes)| *bytes as f64 >= total * SHARE_SHOWN);
        let row = |name: &str, bytes: usize| {
            let share = 100.0 * bytes as f64 / total;
            println!("{bytes:>12}  {share:>5.1} %  {name}")
        };
        row(&path.display().to_string(), bytes.len());
        large.iter().for_each(|(name, bytes)| row(name, *bytes));
        let rest = small.iter().map(|(_, bytes)| bytes).sum();
        row("(all smaller sections)", rest);
        let mut crates = BTreeMap::new();
        for (name, bytes) in elf.functions() {
            *crates.entry(crate_of(&name).to_string()).or_insert(0) += bytes as usize;
        }
        let mut crates: Vec<_> = crates.into_iter().collect();
        crates.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let shown = crates.iter().take(CRATES_SHOWN);
        shown.for_each(|(name, bytes)| row(&format!("code of {name}"), *bytes));
        built.besides.iter().try_for_each(|path| kernels(path))
    }
}

/// Crate of a symbol in either mangling scheme of rustc. Generic code counts for the crate that
/// defines it, not for the one that uses it.
fn crate_of(symbol: &str) -> &str {
    const OTHER: &str = "other languages";
    if let Some(rest) = symbol.strip_prefix("_ZN") {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let first = rest[..digits].parse().ok();
        let first = first.and_then(|bytes: usize| rest.get(digits..digits + bytes));
        return first.map_or(OTHER, crate_of_path);
    }
    match symbol.starts_with("_R") {
        true => symbol.split('C').skip(1).find_map(named).unwrap_or(OTHER),
        false => OTHER,
    }
}

/// Crate of a path: `hyper` of `_$LT$hyper..proto..Head$u20$as$u20$core..`, and of `hyper`.
fn crate_of_path(component: &str) -> &str {
    let mut words = component.split('$');
    let path = words.find_map(|word| word.split_once("..").map(|(first, _)| first));
    path.filter(|first| !first.is_empty()).unwrap_or(component)
}

/// Name after the `C` of a crate in a v0 symbol: `s`, a hash and `_`, then length and name.
fn named(rest: &str) -> Option<&str> {
    let rest = match rest.strip_prefix('s') {
        Some(hashed) => hashed.split_once('_')?.1,
        None => rest,
    };
    let name = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let bytes = rest[..rest.len() - name.len()].parse().ok()?;
    name.get(..bytes).filter(|name| !name.is_empty())
}

/// Prints registers, spills and shared memory of the kernels of one op.
fn kernels(report: &Path) -> Result<(), Failure> {
    let text = std::fs::read_to_string(report);
    let text = text.map_err(|why| format!("read {}: {why}", report.display()))?;
    print!("{text}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mangled_names_tell_their_crate() {
        for (symbol, name) in [
            ("_ZN5hyper5proto4Head3new17h0123456789abcdefE", "hyper"),
            (
                "_ZN51_$LT$$RF$mut$u20$hyper..Head$u20$as$u20$core..A$GT$3new17hE",
                "hyper",
            ),
            (
                "_RINvMNtCsgEmfK2I1SDS_4core3stre12trim_matchesNvMNtNtB5_4charE",
                "core",
            ),
            ("cuLaunchKernel", "other languages"),
            ("_ZN99x", "other languages"),
        ] {
            assert_eq!(crate_of(symbol), name, "{symbol}");
        }
    }
}
