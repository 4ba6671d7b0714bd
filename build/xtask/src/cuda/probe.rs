//! Probes: builds whose kernels differ in one respect, to be compared with the product or examined
//! by a tool.
//!
//! `cuda/base/probe.cuh` describes each. A probe is another build of a target: its units begin with
//! the probe's name, so their keys differ, and its binary has its own name.

use std::str::FromStr;

/// All probes, by their names in `cuda/base/probe.cuh`.
const PROBES: [Probe; 3] = [
    Probe("serial", None),
    Probe("delayed", None),
    Probe("stray", Some("read_bytes")),
];

/// A probe: its name, and the only op whose kernels it changes; none: all ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe(&'static str, Option<&'static str>);

impl Probe {
    pub fn name(self) -> &'static str {
        self.0
    }

    /// Whether the probe's kernels of `op` differ from the product's.
    pub fn changes(self, op: &str) -> bool {
        self.1.is_none_or(|only| only == op)
    }
}

impl FromStr for Probe {
    type Err = String;

    fn from_str(text: &str) -> Result<Probe, String> {
        let found = PROBES.into_iter().find(|probe| probe.0 == text);
        let known = || PROBES.map(|probe| probe.0).join(", ");
        found.ok_or_else(|| format!("{text}: is none of {}", known()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_is_one_that_the_kernels_know() {
        let header = include_str!("../../../../cuda/base/probe.cuh");
        for probe in PROBES {
            assert!(header.contains(&format!("\n  {}, ", probe.0)), "{probe:?}");
            assert_eq!(probe.0.parse(), Ok(probe));
        }
        let refused = "seriel".parse::<Probe>().unwrap_err();
        assert!(refused.contains("serial, delayed, stray"), "{refused}");
    }
}
