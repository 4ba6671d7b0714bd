//! Lists of digests, as `sha256sum` writes them, and their signatures.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path};

use minisign_verify::{PublicKey, Signature};

use super::{SIGNATURE, SUMS};
use crate::cli::{Exit, Failure};

/// Digest of each file, in lower-case hexadecimal digits, by its path in the folder of the list.
#[derive(Debug, PartialEq, Eq)]
pub struct Sums(pub BTreeMap<String, String>);

impl Sums {
    /// Reads the list of a folder. With a file of a public key its signature must hold.
    ///
    /// # Errors
    /// `Config` when the list or the signature is not as it should be, `Io` when it cannot be read.
    pub fn read(folder: &Path, key: Option<&Path>) -> Result<Sums, Failure> {
        let path = folder.join(SUMS);
        let text = fs::read_to_string(&path).map_err(|why| {
            let message = format!(
                "{}: {why}; is {} a bundle?",
                path.display(),
                folder.display()
            );
            Failure::new(Exit::Io, message)
        })?;
        if let Some(key) = key {
            check_signature(folder, key, &text)?;
        }
        let wrong = |why: String| Failure::new(Exit::Config, format!("{}: {why}", path.display()));
        Sums::parse(&text).map_err(wrong)
    }

    /// Reads the text of a list.
    ///
    /// # Errors
    /// Names the line.
    pub fn parse(text: &str) -> Result<Sums, String> {
        let mut sums = BTreeMap::new();
        for (ix, line) in text.lines().enumerate() {
            let (digest, path) = line.split_once("  ").unwrap_or(("", line));
            let is_digest = digest.len() == 64
                && digest
                    .bytes()
                    .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            if !is_digest || !stays_inside(path) {
                return Err(format!(
                    "line {} is not a digest, two spaces and a path",
                    ix + 1
                ));
            }
            if sums.insert(path.to_string(), digest.to_string()).is_some() {
                return Err(format!("line {} names {path} again", ix + 1));
            }
        }
        Ok(Sums(sums))
    }

    /// The text that [`Sums::parse`] reads.
    pub fn text(&self) -> String {
        let lines = self
            .0
            .iter()
            .map(|(path, digest)| format!("{digest}  {path}\n"));
        lines.collect()
    }
}

/// Whether a path leads to something below where it begins.
fn stays_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

fn check_signature(folder: &Path, key: &Path, text: &str) -> Result<(), Failure> {
    let read = |path: &Path| {
        let text = fs::read_to_string(path);
        text.map_err(|why| Failure::new(Exit::Io, format!("{}: {why}", path.display())))
    };
    let wrong =
        |path: &Path, why: String| Failure::new(Exit::Config, format!("{}: {why}", path.display()));
    let public = PublicKey::decode(read(key)?.trim());
    let public =
        public.map_err(|why| wrong(key, format!("is no public key of minisign: {why}")))?;
    let path = folder.join(SIGNATURE);
    let signature = Signature::decode(read(&path)?.trim());
    let signature = signature.map_err(|why| wrong(&path, format!("is no signature: {why}")))?;
    public
        .verify(text.as_bytes(), &signature, false)
        .map_err(|why| {
            let key = key.display();
            wrong(
                &path,
                format!("{SUMS} is not what the key of {key} signed ({why}); nothing is done"),
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const KEY: &str = "untrusted comment: minisign public key 167648226517246D\n\
        RWRtJBdlIkh2FqC+X5d5w/EUNxEeg0OOPxNdAfBNnzC+qdZi8mH6A7NQ\n";

    #[test]
    fn a_list_is_read_as_it_is_written() {
        let text = format!("{DIGEST}  a b\n{DIGEST}  weights/c\n");
        assert_eq!(Sums::parse(&text).unwrap().text(), text);
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for path in ["/etc/x", "../x", "a/../../x", "", ".", "a\n"] {
            let text = format!("{DIGEST}  {path}");
            assert!(Sums::parse(&text).is_err() || path == "a\n", "{path}");
        }
        assert!(Sums::parse(&format!("{DIGEST} x")).is_err());
        assert!(Sums::parse(&format!("{}  x", DIGEST.to_uppercase())).is_err());
        let twice = format!("{DIGEST}  x\n{DIGEST}  x\n");
        assert!(Sums::parse(&twice).unwrap_err().contains("line 2"));
    }

    #[test]
    fn a_signature_that_is_missing_or_of_another_key_is_named() {
        let folder = std::env::temp_dir().join(format!("atlas-sums-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let key = folder.join("key.pub");
        fs::write(&key, KEY).unwrap();
        fs::write(folder.join(SUMS), "").unwrap();
        let why = Sums::read(&folder, Some(&key)).unwrap_err();
        assert!(
            why.exit == Exit::Io && why.message.contains(SIGNATURE),
            "{why:?}"
        );
        fs::write(
            folder.join(SIGNATURE),
            "untrusted comment: x\nnot a signature\n",
        )
        .unwrap();
        let why = Sums::read(&folder, Some(&key)).unwrap_err();
        assert!(
            why.exit == Exit::Config && why.message.contains(SIGNATURE),
            "{why:?}"
        );
        fs::remove_dir_all(&folder).unwrap();
    }
}
