//! `about`: target, licences, keys and pages of this binary.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use model::target;

use super::pages::Page;
use super::{Exit, Failure};
use crate::start::boot::{self, version_line};
use crate::start::files::needs_weights;

/// print the target, its limits and its manifest
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "about", help_triggers("--help"))]
pub struct About {
    /// print JSON
    #[argh(switch)]
    json: bool,

    /// print the licences of all that is in this binary
    #[argh(switch)]
    licences: bool,

    /// print the key that releases are signed with, as a file for minisign
    #[argh(switch)]
    public_key: bool,

    /// print the manual page, or the completions of a shell: man, bash, zsh, fish
    #[argh(option)]
    page: Option<Page>,
}

/// File of the repository with the public key of releases; only a comment if there is no key yet.
const PUBLIC_KEY: &str = include_str!("../../packaging/atlas.pub");

/// Prints the requested part to standard output.
///
/// # Errors
/// When standard output is closed, or there is no key.
pub fn run(options: &About) -> Result<(), Failure> {
    if options.licences {
        let own = std::env::current_exe().and_then(|path| licences(&path));
        return boot::print(&own.map_err(|why| Exit::Io.failure(format!("--licences: {why}")))?);
    }
    if options.public_key {
        return boot::print(public_key(PUBLIC_KEY)?);
    }
    if let Some(page) = options.page {
        return boot::print(&page.own());
    }
    let text = match options.json {
        true => format!("{:#}\n", facts()),
        false => plain(),
    };
    boot::print(&text)
}

/// Last bytes of a program with licences; before them are the text's length and the text.
const LICENCES_MARK: &[u8; 8] = b"LICENCES";

/// Text of the licences that a release appends to the program `path`.
fn licences(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let (mut length, mut mark) = ([0; 8], [0; 8]);
    file.seek(SeekFrom::End(-16))?;
    file.read_exact(&mut length)?;
    file.read_exact(&mut mark)?;
    let length = u64::from_le_bytes(length);
    let bytes = file.metadata()?.len();
    let begin = bytes.checked_sub(length.saturating_add(16));
    let (Some(begin), true) = (begin, mark == *LICENCES_MARK) else {
        let why = "this build has none; those that `cargo xtask dist` makes have them";
        return Err(io::Error::other(why));
    };
    file.seek(SeekFrom::Start(begin))?;
    let mut text = String::new();
    file.take(length).read_to_string(&mut text)?;
    Ok(text)
}

/// The key in the text of a public key's file.
fn public_key(text: &str) -> Result<&str, Failure> {
    match text.lines().nth(1) {
        Some(_) => Ok(text),
        None => {
            let why = "--public-key: this binary was built before releases had a key";
            Err(Exit::Config.failure(why))
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

fn plain() -> String {
    let weights = match needs_weights() {
        true => "from a directory that you give",
        false => "inside this binary",
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
    use host::testing::Folder;

    #[test]
    fn licences_are_the_end_of_a_program() {
        let folder = Folder::new();
        let path = folder.join("program");
        let found = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            licences(&path).map_err(|why| why.to_string())
        };
        let whole = b"programbe kind\x07\0\0\0\0\0\0\0LICENCES";
        assert_eq!(found(whole).as_deref(), Ok("be kind"));
        assert!(
            found(b"program without them")
                .unwrap_err()
                .contains("has none")
        );
        assert!(
            found(b"\xff\xff\0\0\0\0\0\0LICENCES")
                .unwrap_err()
                .contains("has none")
        );
    }

    #[test]
    fn a_comment_is_no_key() {
        assert!(public_key("untrusted comment: none\n").is_err());
        assert!(public_key("untrusted comment: a key\nRWabc\n").is_ok());
    }
}
