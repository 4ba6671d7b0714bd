//! Choices of the operator about connections and requests.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::hosts::Hosts;
use super::journal::Journal;
use super::keys::Keys;
use super::origins::Origin;

/// Nothing is asked for and nothing is recorded by default.
#[derive(Debug, Default)]
pub struct Settings {
    /// Every request but those for `/health` and the page at `/` must bring one of them.
    pub keys: Option<Keys>,
    /// Gets a line about each request.
    pub access_log: Option<Arc<Journal>>,
    /// Gets requests and answers, texts included.
    pub dump: Option<Arc<Journal>>,
    /// Whose names for figures `/metrics` reports beside its own.
    pub metrics: Option<Compatibility>,
    /// Which names requests may reach the server by.
    pub hosts: Hosts,
    /// Which pages may use the server beside its own.
    pub origins: Vec<Origin>,
}

/// Another server whose names for figures are reported too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compatibility {
    Vllm,
}

impl FromStr for Compatibility {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Compatibility, Self::Err> {
        match text {
            "vllm" => Ok(Compatibility::Vllm),
            _ => Err("must be vllm"),
        }
    }
}

impl fmt::Display for Compatibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compatibility::Vllm => "vllm",
        })
    }
}
