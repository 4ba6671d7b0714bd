//! Reasons for which actions run: a key's text beside the one recorded at its last outputs.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use super::digest::Digest;
use super::error::Error;

/// Most changed facts that are listed; of any more, only the number is told.
const CHANGES_SHOWN: usize = 8;

/// Reason for which the outputs of an action were not in the store.
#[derive(Debug, PartialEq, Eq)]
pub enum Reason {
    /// No action with this label was recorded.
    First,
    /// These facts of the key differ, each as a sentence.
    Changed(Vec<String>),
    /// The key is as recorded, but the store has no outputs for it.
    Gone,
    /// The stored output does not match its digest.
    Damaged(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::First => write!(f, "it runs for the first time"),
            Reason::Gone => write!(f, "its outputs are no longer in the store"),
            Reason::Damaged(output) => write!(f, "its stored output `{output}` is damaged"),
            Reason::Changed(changes) => {
                let shown = &changes[..changes.len().min(CHANGES_SHOWN)];
                f.write_str(&shown.join("; "))?;
                match changes.len() - shown.len() {
                    0 => Ok(()),
                    more => write!(f, "; and {more} more"),
                }
            }
        }
    }
}

/// Reason for which an action's outputs are not in the store, by its recorded text.
pub fn reason(atlas: &Path, slug: &str, text: &str) -> Reason {
    changed(atlas, slug, text).unwrap_or(Reason::Gone)
}

/// Difference of `text` from the recorded text; `None` if they are equal.
pub fn changed(atlas: &Path, slug: &str, text: &str) -> Option<Reason> {
    match fs::read_to_string(atlas.join("explain").join(slug)) {
        Err(_) => Some(Reason::First),
        Ok(recorded) if recorded == text => None,
        Ok(recorded) => Some(Reason::Changed(changes(&recorded, text))),
    }
}

/// Records the key's text of an action that has outputs.
pub fn record(atlas: &Path, slug: &str, text: &str) -> Result<(), Error> {
    let path = atlas.join("explain").join(slug);
    if fs::read_to_string(&path).is_ok_and(|recorded| recorded == text) {
        return Ok(());
    }
    let half = atlas.join("work").join(format!("{slug}.explain"));
    fs::write(&half, text).map_err(Error::io("write", &half))?;
    fs::rename(&half, &path).map_err(Error::io("write", &path))
}

/// Message about an action that had nothing to do.
pub fn up_to_date(label: &str, key: &Digest, text: &str) -> String {
    format!("{label}: up to date\n{}", covered(key, text))
}

/// Message about an action that ran.
pub fn ran(label: &str, key: &Digest, reason: &Reason, text: &str) -> String {
    format!("{label}: runs because {reason}\n{}", covered(key, text))
}

fn covered(key: &Digest, text: &str) -> String {
    let lines: String = text.lines().map(|line| format!("    {line}\n")).collect();
    format!("  key {key} covers\n{lines}")
}

fn changes(recorded: &str, text: &str) -> Vec<String> {
    let (before, after) = (facts(recorded), facts(text));
    let mut changes = Vec::new();
    for (name, value) in &after {
        match before.get(name) {
            Some(known) if known == value => {}
            Some(known) => {
                let (from, to) = (short(known), short(value));
                changes.push(format!("{name} changed from {from} to {to}"));
            }
            None => changes.push(format!("{name} is added ({})", short(value))),
        }
    }
    let gone = before.keys().filter(|name| !after.contains_key(*name));
    changes.extend(gone.map(|name| format!("{name} is gone")));
    changes
}

fn facts(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines();
    lines.filter_map(|line| line.split_once(" = ")).collect()
}

/// A digest cut to its first digits; other values whole.
fn short(value: &str) -> String {
    match value.split(' ').next().and_then(Digest::parse) {
        Some(_) => format!("{}…", &value[..12]),
        None => format!("`{value}`"),
    }
}
