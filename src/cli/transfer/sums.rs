//! Lists of digests in the format of `sha256sum`, and their signatures.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

use minisign_verify::{PublicKey, Signature};

use super::{SIGNATURE, SUMS};
use crate::cli::{Exit, Failure};
use host::beneath::{Beneath, Dir};

/// Bytes of the largest list or signature; a list of a thousand files has a tenth of this.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Digest of each file, in lower-case hexadecimal digits, by its path in the folder of the list.
#[derive(Debug, PartialEq, Eq)]
pub struct Sums(pub BTreeMap<Beneath, String>);

impl Sums {
    /// Reads the list of a folder; with a public key in the file `key`, checks its signature.
    ///
    /// # Errors
    /// `Config` when the list or the signature is invalid, `Io` when its file cannot be read.
    pub fn read(folder: &Dir, key: Option<&Path>) -> Result<Sums, Failure> {
        let shown = folder.path().join(SUMS);
        let text = text(folder, SUMS).map_err(|why| {
            let folder = folder.path().display();
            Exit::Io.at(&shown, format!("{why}; is {folder} a bundle?"))
        })?;
        if let Some(key) = key {
            check_signature(folder, key, &text)?;
        }
        Sums::parse(&text).map_err(|why| Exit::Config.at(&shown, why))
    }

    /// Reads the text of a list.
    ///
    /// # Errors
    /// Names the invalid line.
    pub fn parse(text: &str) -> Result<Sums, String> {
        let mut sums = BTreeMap::new();
        for (ix, text) in text.split_terminator('\n').enumerate() {
            let named = |why: String| format!("line {} {why}", ix + 1);
            let (path, digest) = line(text).map_err(named)?;
            if sums.contains_key(&path) {
                return Err(named(format!("names {path} again")));
            }
            sums.insert(path, digest);
        }
        Ok(Sums(sums))
    }

    /// Text of the list, as [`Sums::parse`] reads it.
    pub fn text(&self) -> String {
        let lines = self.0.iter();
        let lines = lines.map(|(path, digest)| format!("{digest}  {path}\n"));
        lines.collect()
    }
}

/// Reads a line of a list.
///
/// # Errors
/// The rule that the line breaks.
pub fn line(text: &str) -> Result<(Beneath, String), String> {
    let (digest, path) = text.split_once("  ").unwrap_or(("", text));
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if digest.len() != 64 || !digest.bytes().all(is_digit) {
        return Err("is not a digest, two spaces and a path".to_string());
    }
    let path = Beneath::parse(path).map_err(|why| format!("has the path {path:?}, which {why}"))?;
    Ok((path, digest.to_string()))
}

fn text(folder: &Dir, name: &str) -> io::Result<String> {
    let name = Beneath::parse(name).expect("names of this program are plain");
    let mut text = String::new();
    let mut file = folder.read(&name)?.take(TEXT_BYTES_MAX + 1);
    if file.read_to_string(&mut text)? as u64 > TEXT_BYTES_MAX {
        let problem = format!("has more than {TEXT_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(text)
}

fn check_signature(folder: &Dir, key: &Path, list: &str) -> Result<(), Failure> {
    let path = folder.path().join(SIGNATURE);
    let of_key = fs::read_to_string(key).map_err(|why| Exit::Io.at(key, why))?;
    let public = PublicKey::decode(of_key.trim()).map_err(|why| {
        let problem = format!("is no public key of minisign: {why}");
        Exit::Config.at(key, problem)
    })?;
    let signature = text(folder, SIGNATURE).map_err(|why| Exit::Io.at(&path, why))?;
    let signature = Signature::decode(signature.trim())
        .map_err(|why| Exit::Config.at(&path, format!("is no signature: {why}")))?;
    let verified = public.verify(list.as_bytes(), &signature, false);
    verified.map_err(|why| {
        let key = key.display();
        let problem =
            format!("{SUMS} is not what the key of {key} signed ({why}); nothing is done");
        Exit::Config.at(&path, problem)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::testing::Folder;

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
        for path in [
            "/etc/x",
            "../x",
            "weights//etc/x",
            "",
            ".",
            "x/",
            "a\r",
            "a\0b",
        ] {
            let text = format!("{DIGEST}  x\n{DIGEST}  {path}\n");
            let why = Sums::parse(&text).unwrap_err();
            let shown = format!("{path:?}");
            assert!(why.starts_with("line 2 ") && why.contains(&shown), "{why}");
        }
        assert!(Sums::parse(&format!("{DIGEST} x")).is_err());
        assert!(Sums::parse(&format!("{}  x", DIGEST.to_uppercase())).is_err());
        let twice = format!("{DIGEST}  x\n{DIGEST}  x\n");
        assert!(Sums::parse(&twice).unwrap_err().contains("line 2"));
    }

    #[test]
    fn a_signature_that_is_missing_or_of_another_key_is_named() {
        let folder = Folder::new();
        let key = folder.join("key.pub");
        fs::write(&key, KEY).unwrap();
        fs::write(folder.join(SUMS), "").unwrap();
        let read = || Sums::read(&Dir::open(&folder).unwrap(), Some(&key));
        let why = read().unwrap_err();
        assert!(
            why.exit == Exit::Io && why.message.contains(SIGNATURE),
            "{why:?}"
        );
        fs::write(
            folder.join(SIGNATURE),
            "untrusted comment: x\nnot a signature\n",
        )
        .unwrap();
        let why = read().unwrap_err();
        assert!(
            why.exit == Exit::Config && why.message.contains(SIGNATURE),
            "{why:?}"
        );
    }
}
