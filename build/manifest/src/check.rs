//! Rules on numbers of manifests: an error names the file, the key, the value and the rule.

pub(crate) mod largest;
mod leaf;
mod model;
mod op;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::ops::RangeInclusive;

use crate::error::ManifestError;
use crate::schema::hardware::{Backend, Hardware};
use crate::target::Target;

/// SMs of a cluster, the smallest part that a driver can separate, from compute capability 9.0 on.
const SMS_PARTED: u32 = 8;

/// Result of one rule.
pub(crate) type Rule = Result<(), ManifestError>;

/// Checks every rule, facts before the leaf that builds on them.
///
/// # Errors
/// The first rule that is broken.
pub(crate) fn check(target: &Target) -> Rule {
    let hardware = File(target.hardware_file());
    hardware.rules(&target.hardware)?;
    let file = File(target.model_path("model.toml"));
    file.model_rules(&target.model)?;
    File(target.leaf_file()).leaf_rules(target)?;
    file.checkpoint_rules(target)
}

/// Every problem of the facts of a target's model.
pub(crate) fn model_problems(target: &Target) -> Vec<ManifestError> {
    let file = File(target.model_path("model.toml"));
    let rules = file.model_parts(&target.model).into_iter();
    rules.filter_map(Result::err).collect()
}

/// Path of a manifest whose rules are being checked.
pub(crate) struct File(pub(crate) String);

impl File {
    /// `holds`, or the error that `value` of `key` breaks `rule`.
    pub(crate) fn rule(&self, holds: bool, key: &str, value: impl Display, rule: &str) -> Rule {
        match holds {
            true => Ok(()),
            false => Err(ManifestError::key(&self.0, key, value, rule)),
        }
    }

    fn within(&self, key: &str, value: u64, range: RangeInclusive<u64>) -> Rule {
        let rule = format!("must be {} ..= {}", range.start(), range.end());
        self.rule(range.contains(&value), key, value, &rule)
    }

    /// `value` is a count of 1 ..= `most`.
    fn count(&self, key: &str, value: u64, most: u64) -> Rule {
        self.within(key, value, 1..=most)
    }

    /// The first count is a multiple of the second, and not 0.
    fn multiple(&self, [(key, value), (of, divisor)]: [(&str, u64); 2]) -> Rule {
        let rule = format!("must be a multiple of {of} = {divisor}");
        self.rule(
            value > 0 && value.is_multiple_of(divisor),
            key,
            value,
            &rule,
        )
    }

    /// `text`, which people or clients see, is not empty.
    fn text(&self, key: &str, text: &str) -> Rule {
        self.rule(!text.trim().is_empty(), key, "\"\"", "must not be empty")
    }

    /// `name` is the name of a file alone, without a folder.
    fn file_name(&self, key: &str, name: &str) -> Rule {
        let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0']);
        let rule = "must be the name of a file in the weights directory";
        self.rule(plain, key, format!("{name:?}"), rule)
    }

    fn rules(&self, hardware: &Hardware) -> Rule {
        let reserve = hardware.host_reserve_bytes;
        self.text("title", &hardware.title)?;
        self.count("host_reserve_bytes", reserve.unwrap_or(1), largest::BYTES)?;
        self.count("reply_gap_ms", hardware.reply_gap_ms, largest::MILLISECONDS)?;
        if hardware.backend == Backend::Cpu {
            let rule = "a cpu leaves a part of the host's memory to others";
            self.rule(reserve.is_some(), "host_reserve_bytes", "absent", rule)?;
            let none = hardware.gpu.is_none();
            self.rule(none, "gpu", "a table", "a cpu has none")?;
            let none = hardware.op.is_empty();
            return self.rule(none, "op", "a table", "a cpu chooses no kernels");
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
        let number = exact.and_then(|digits| digits.parse::<u32>().ok());
        let exact = number.is_some_and(|number| (10..=largest::CAPABILITY).contains(&number));
        self.rule(
            exact,
            "gpu.arch",
            &gpu.arch,
            "must be an exact architecture, sm_<number>a",
        )?;
        self.count("gpu.sms", gpu.sms.into(), largest::SMS)?;
        self.rule(
            !gpu.partition || gpu.sms.is_multiple_of(SMS_PARTED),
            "gpu.sms",
            gpu.sms,
            &format!("must be a multiple of {SMS_PARTED} with partition = true"),
        )?;
        let threads = gpu.threads_per_sm;
        self.count("gpu.threads_per_sm", threads.into(), largest::SMS)?;
        let rule = "must be a multiple of 32";
        let warps = threads.is_multiple_of(32);
        self.rule(warps, "gpu.threads_per_sm", threads, rule)?;
        let shared = gpu.shared_bytes_per_block;
        self.count("gpu.shared_bytes_per_block", shared, largest::SHARED_BYTES)?;
        self.count("gpu.l2_bytes", gpu.l2_bytes, largest::BYTES)?;
        self.count("gpu.memory_bytes", gpu.memory_bytes, largest::BYTES)?;
        let rated = gpu.bandwidth_rated;
        self.count("gpu.bandwidth_rated", rated, largest::BANDWIDTH)?;
        let measured = gpu.bandwidth_read_measured;
        self.rule(
            (1..=gpu.bandwidth_rated).contains(&measured),
            "gpu.bandwidth_read_measured",
            measured,
            "must be above 0 and not above gpu.bandwidth_rated",
        )?;
        for (op, choice) in &hardware.op {
            let rule = "a leaf chooses for one shape, a hardware for all";
            self.rule(!op.contains('.'), "op", op, rule)?;
            self.op_rules(op, choice)?;
        }
        Ok(())
    }
}
