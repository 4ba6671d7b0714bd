//! Settings of the operator for connections and requests.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::hosts::Hosts;
use super::journal::Journal;
use super::keys::Keys;
use super::origins::Origin;

/// Settings of the server; by default no key is needed and nothing is recorded.
#[derive(Debug, Default)]
pub struct Settings {
    /// API keys: a request must have one, unless it is for `/health` or the page at `/`.
    pub keys: Option<Keys>,
    /// Log with a line for each request.
    pub access_log: Option<Arc<Journal>>,
    /// Dump of requests and answers, texts included.
    pub dump: Option<Arc<Journal>>,
    /// Server under whose names `/metrics` reports metrics too; None for this server's names alone.
    pub metrics: Option<Compatibility>,
    /// Names in `Host` by which requests may reach the server.
    pub hosts: Hosts,
    /// Origins of pages that may use the server, in addition to the server's own.
    pub origins: Vec<Origin>,
}

/// Another server under whose names metrics are reported too.
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
