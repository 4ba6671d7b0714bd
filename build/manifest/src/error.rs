//! The one error of this crate: which file, which key, which value, which rule.

use std::{fmt, io};

/// A manifest that breaks a rule, or a file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestError {
    /// Path from the repository root.
    pub file: String,
    /// Dotted key, or empty when the whole file is meant.
    pub key: String,
    /// The offending value as written or as computed.
    pub value: String,
    /// Rule that the value breaks, in words.
    pub rule: String,
}

impl ManifestError {
    /// Error about a whole file: missing, unreadable, or with unexpected content.
    pub(crate) fn file(file: impl Into<String>, rule: impl Into<String>) -> Self {
        ManifestError {
            file: file.into(),
            key: String::new(),
            value: String::new(),
            rule: rule.into(),
        }
    }

    /// Conversion of an I/O error of reading `file`, for `map_err`.
    pub(crate) fn unread(file: &str) -> impl Fn(io::Error) -> Self {
        move |error| ManifestError::file(file, format!("cannot be read: {error}"))
    }

    /// Error about one key, whose value breaks `rule`.
    pub(crate) fn key(file: &str, key: &str, value: impl fmt::Display, rule: &str) -> Self {
        ManifestError {
            file: file.into(),
            key: key.into(),
            value: value.to_string(),
            rule: rule.into(),
        }
    }
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key.is_empty() {
            true => write!(f, "{}: {}", self.file, self.rule),
            false => write!(
                f,
                "{}: {} = {}: {}",
                self.file, self.key, self.value, self.rule
            ),
        }
    }
}

impl std::error::Error for ManifestError {}
