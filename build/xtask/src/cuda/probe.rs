//! Builds whose kernels do one thing otherwise, to be compared with the product or seen by a tool.
//!
//! `cuda/base/probe.cuh` says what each does. A probe is another build of the same target: its
//! units begin with its name, so their keys differ, and its binary has a name of its own.

use std::str::FromStr;

/// Every probe by its name in `cuda/base/probe.cuh`.
const PROBES: [Probe; 3] = [
    Probe("serial", None),
    Probe("delayed", None),
    Probe("stray", Some("read_bytes")),
];

/// A probe: its name, and the one op that it changes, if not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe(&'static str, Option<&'static str>);

impl Probe {
    pub fn name(self) -> &'static str {
        self.0
    }

    /// Whether the kernels of `op` differ from the product's.
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
