//! The rules between numbers: each one names the file, the key, the value and what it should be.

mod leaf;
mod model;
#[cfg(test)]
mod tests;

use std::fmt::Display;

use crate::error::ManifestError;
use crate::schema::hardware::{Backend, Hardware};
use crate::target::Target;

/// SMs that a driver parts from the others together, from compute capability 9.0 on: a cluster's.
const SMS_PARTED: u32 = 8;

/// Result of one rule.
type Rule = Result<(), ManifestError>;

/// Checks every rule, facts before the leaf that builds on them.
///
/// # Errors
/// The first rule that is broken.
pub(crate) fn check(target: &Target) -> Rule {
    let hardware = File(format!("targets/_hw/{}.toml", target.leaf.hw));
    hardware.rules(&target.hardware)?;
    let file = File(target.model_path("model.toml"));
    file.model_rules(&target.model)?;
    File(target.leaf_file()).leaf_rules(target)?;
    file.checkpoint_rules(target)
}

/// A manifest whose rules are being checked.
struct File(String);

impl File {
    /// `holds`, or an error that says so of `key`.
    fn rule(&self, holds: bool, key: &str, value: impl Display, rule: &str) -> Rule {
        match holds {
            true => Ok(()),
            false => Err(ManifestError::key(&self.0, key, value, rule)),
        }
    }

    /// A count that must be at least 1.
    fn positive(&self, key: &str, value: u64) -> Rule {
        self.rule(value > 0, key, value, "must be at least 1")
    }

    /// A stored width that must be what the other facts give.
    fn equals(&self, key: &str, value: u64, expected: u64, from: &str) -> Rule {
        let rule = format!("must be {expected} = {from}");
        self.rule(value == expected, key, value, &rule)
    }

    fn rules(&self, hardware: &Hardware) -> Rule {
        let reserve = hardware.host_reserve_bytes;
        self.positive("host_reserve_bytes", reserve.unwrap_or(1))?;
        if hardware.backend == Backend::Cpu {
            let rule = "a cpu leaves a part of the host's memory to others";
            self.rule(reserve.is_some(), "host_reserve_bytes", "absent", rule)?;
            let none = hardware.gpu.is_none();
            return self.rule(none, "gpu", "a table", "a cpu has none");
        }
        let host = hardware.host.is_some();
        self.rule(
            host,
            "host",
            "absent",
            "backend = \"cuda\" needs the triple of the host",
        )?;
        let Some(gpu) = &hardware.gpu else {
            return self.rule(false, "gpu", "absent", "backend = \"cuda\" needs [gpu]");
        };
        let exact = gpu
            .arch
            .strip_prefix("sm_")
            .and_then(|arch| arch.strip_suffix('a'));
        let exact = exact.is_some_and(|digits| digits.parse::<u32>().is_ok());
        self.rule(
            exact,
            "gpu.arch",
            &gpu.arch,
            "must be an exact architecture, sm_<number>a",
        )?;
        self.positive("gpu.sms", gpu.sms.into())?;
        self.rule(
            !gpu.partition || gpu.sms.is_multiple_of(SMS_PARTED),
            "gpu.sms",
            gpu.sms,
            &format!("must be a multiple of {SMS_PARTED} with partition = true"),
        )?;
        let warps = gpu.threads_per_sm > 0 && gpu.threads_per_sm.is_multiple_of(32);
        self.rule(
            warps,
            "gpu.threads_per_sm",
            gpu.threads_per_sm,
            "must be a multiple of 32",
        )?;
        self.positive("gpu.memory_bytes", gpu.memory_bytes)?;
        let measured = gpu.bandwidth_read_measured;
        self.rule(
            (1..=gpu.bandwidth_rated).contains(&measured),
            "gpu.bandwidth_read_measured",
            measured,
            "must be above 0 and not above gpu.bandwidth_rated",
        )
    }
}
