//! Signatures of minisign (https://jedisct1.github.io/minisign/): a list of digests is signed, and
//! with it every file that it names.

use std::fmt::Display;
use std::fs;
use std::io::Cursor;
use std::path::Path;

use ct_codecs::{Base64, Decoder};
use minisign::{SecretKey, SecretKeyBox};

/// Bytes of a key's file that say how its password becomes a key; zero where there is no password.
const KDF: std::ops::Range<usize> = 2..4;

/// Signs the content of `file` with the secret key of the file `key`, whose password is asked for
/// if it has one; leaves the signature beside it.
///
/// # Errors
/// The file that cannot be used.
pub fn sign(file: &Path, key: &Path, comment: &str) -> Result<(), String> {
    let failed = |path: &Path, why: &dyn Display| format!("{}: {why}", path.display());
    let text = fs::read_to_string(key).map_err(|why| failed(key, &why))?;
    let secret = secret(&text).map_err(|why| failed(key, &why))?;
    let content = fs::read(file).map_err(|why| failed(file, &why))?;
    let made = minisign::sign(
        None,
        &secret,
        Cursor::new(content),
        Some(comment),
        Some("Atlas"),
    );
    let made = made.map_err(|why| failed(file, &why))?;
    let mut name = file.as_os_str().to_owned();
    name.push(".minisig");
    let path = Path::new(&name);
    fs::write(path, made.into_string()).map_err(|why| failed(path, &why))
}

/// The key of a file's text. One without a password has no sum that `SecretKeyBox` could check.
fn secret(text: &str) -> Result<SecretKey, String> {
    let line = text.lines().nth(1).ok_or("is no minisign secret key")?;
    let bytes = Base64::decode_to_vec(line, None).map_err(|why| why.to_string())?;
    let key = match bytes.get(KDF) {
        Some([0, 0]) => SecretKey::from_bytes(&bytes),
        _ => SecretKeyBox::from_string(text).and_then(|key| key.into_secret_key(None)),
    };
    key.map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use minisign::{PublicKeyBox, SignatureBox, verify};

    use super::*;
    use crate::toolchain::on_path;

    /// Made by `minisign -G -W`, for tests alone.
    const SECRET: &str = "untrusted comment: of tests\n\
        RWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAbSQXZSJI\
        dhaCtXIiGhRKcNFoigX3eQ1Pdly+agejskuDDHYgclEq/qC+X5d5w/EUNxEeg0OOPxNdAfBNnzC+qdZi\
        8mH6A7NQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";
    const PUBLIC: &str = "untrusted comment: of tests\n\
        RWRtJBdlIkh2FqC+X5d5w/EUNxEeg0OOPxNdAfBNnzC+qdZi8mH6A7NQ\n";

    #[test]
    fn a_signature_holds_for_its_file_alone() {
        let folder = std::env::temp_dir().join(format!("atlas-sign-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, key, public) = (
            folder.join("sums"),
            folder.join("key"),
            folder.join("key.pub"),
        );
        fs::write(&file, "digests").unwrap();
        fs::write(&key, SECRET).unwrap();
        fs::write(&public, PUBLIC).unwrap();
        sign(&file, &key, "Atlas 1").unwrap();
        let made = fs::read_to_string(folder.join("sums.minisig")).unwrap();
        let signature = SignatureBox::from_string(&made).unwrap();
        let known = PublicKeyBox::from_string(PUBLIC)
            .unwrap()
            .into_public_key()
            .unwrap();
        let holds =
            |content: &str| verify(&known, &signature, Cursor::new(content), true, false, false);
        assert!(holds("digests").is_ok() && holds("digestz").is_err());
        if let Some(program) = on_path("minisign") {
            let mut command = Command::new(program);
            command
                .args(["-V", "-q", "-p"])
                .arg(&public)
                .arg("-m")
                .arg(&file);
            assert!(command.status().unwrap().success());
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_key_that_is_none_is_named() {
        let file = Path::new("/nowhere/key");
        assert!(
            sign(file, file, "")
                .unwrap_err()
                .starts_with("/nowhere/key: ")
        );
    }
}
