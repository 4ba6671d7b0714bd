//! Comparison of the checkpoint's configuration with the facts that the binary was compiled with:
//! those that change answers while every tensor keeps its shape.

use serde_json::Value;

use super::error::{WeightsError, download};
use super::folder::Folder;
use super::names::CONFIG;
use super::sniff;
use crate::target::{self, Fact, contradiction, unknown_maths};

const GENERATION: &str = "generation_config.json";
/// Largest configuration that is read.
const BYTES_MAX: u64 = 16 << 20;

/// Compares the configuration in `folder`, and that of generation if there is one. Returns keys of
/// the model's configuration whose names suggest that they change the model's maths, and that no
/// fact covers.
///
/// # Errors
/// `Config` with the first fact that is stated differently, or a file that cannot be read.
pub(super) fn check(folder: &Folder) -> Result<Vec<String>, WeightsError> {
    let config = check_file(folder, CONFIG, target::CONFIG)?;
    if folder.has(GENERATION) {
        check_file(folder, GENERATION, target::GENERATION)?;
    }
    Ok(unknown_maths(&config, target::CONFIG))
}

fn check_file(folder: &Folder, name: &str, facts: &[Fact]) -> Result<Value, WeightsError> {
    let content = folder.read(name, BYTES_MAX)?;
    compare(name, &content, facts).map_err(|problem| WeightsError::Config {
        problem: format!("{}: {problem}", folder.path().join(name).display()),
    })
}

/// Compares a file with facts. Returns its parsed content, or the first difference and the fix.
fn compare(name: &str, content: &[u8], facts: &[Fact]) -> Result<Value, String> {
    if let Some(problem) = sniff::foreign(content) {
        return Err(problem.to_string());
    }
    let again = download();
    let config: Value =
        serde_json::from_slice(content).map_err(|error| format!("is no JSON: {error}; {again}"))?;
    match contradiction(&config, facts) {
        None => Ok(config),
        Some(found) => Err(format!(
            "{}, this binary was built for {} ({} of its manifest); use the {name} of {}: {again}",
            found.stated,
            found.right,
            found.key,
            target::MODEL
        )),
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
