//! `about`: what this binary is.

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::target;

use super::{Exit, Failure};

/// print the target, its limits and its manifest
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "about", help_triggers("--help"))]
pub struct About {
    /// print JSON
    #[argh(switch)]
    json: bool,

    /// print the key that releases are signed with, as a file for minisign
    #[argh(switch)]
    public_key: bool,
}

/// Key of releases as the repository had it, or a comment alone.
const PUBLIC_KEY: &str = include_str!("../../packaging/atlas.pub");

/// Prints to standard output.
///
/// # Errors
/// When standard output is closed, or there is no key.
pub fn run(options: &About) -> Result<(), Failure> {
    if options.public_key {
        return super::boot::print(public_key(PUBLIC_KEY)?);
    }
    let text = if options.json {
        format!("{:#}\n", facts())
    } else {
        plain()
    };
    super::boot::print(&text)
}

/// Name and version on one line.
pub fn version_line() -> String {
    format!("{} {}", target::BINARY, env!("CARGO_PKG_VERSION"))
}

/// The text of a key's file.
fn public_key(text: &str) -> Result<&str, Failure> {
    match text.lines().nth(1) {
        Some(_) => Ok(text),
        None => {
            let why = "--public-key: this binary was built before releases had a key";
            Err(Failure::new(Exit::Config, why))
        }
    }
}

fn facts() -> Value {
    json!({
        "binary": target::BINARY,
        "version": env!("CARGO_PKG_VERSION"),
        "hardware": target::HARDWARE,
        "model": target::MODEL,
        "quantisation": target::QUANT,
        "model_id": target::MODEL_ID,
        "serves": target::SERVES,
        "needs_weights": needs_weights(),
        "limits": {
            "context": target::MAX_CONTEXT,
            "sequences": target::MAX_SEQUENCES,
            "queued": target::MAX_QUEUED,
            "kv_pages": target::KV_PAGES,
            "page": target::PAGE,
            "prefill": target::PREFILL_TOKENS,
        },
        "checkpoint": target::CHECKPOINT.iter().map(|file| json!({
            "name": file.name, "bytes": file.bytes, "sha256": file.sha256,
        })).collect::<Vec<_>>(),
        "build": {
            "debug_assertions": cfg!(debug_assertions),
            "architecture": std::env::consts::ARCH,
            "system": std::env::consts::OS,
        },
        "manifest": target::MANIFEST,
    })
}

/// Whether the weights come from a directory rather than from the binary.
pub fn needs_weights() -> bool {
    target::EMBEDDED.is_empty()
}

fn plain() -> String {
    let weights = if needs_weights() {
        "from a directory that you give"
    } else {
        "inside this binary"
    };
    let part = match target::PARTITION {
        Some(sms) => format!(" ({sms} SMs of a larger GPU)"),
        None => String::new(),
    };
    format!(
        "{}\nhardware {}{part}, model {}, quantisation {}\nweights {weights}\n\
         limits: {} tokens of context, {} sequences at once, {} requests waiting\n\
         serves: {}\n\n{}\n",
        version_line(),
        target::HARDWARE,
        target::MODEL,
        target::QUANT,
        target::MAX_CONTEXT,
        target::MAX_SEQUENCES,
        target::MAX_QUEUED,
        if target::SERVES { "yes" } else { "no" },
        target::MANIFEST
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_no_key() {
        assert!(public_key("untrusted comment: none\n").is_err());
        assert!(public_key("untrusted comment: a key\nRWabc\n").is_ok());
    }
}
