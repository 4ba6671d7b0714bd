//! Signatures of minisign (https://jedisct1.github.io/minisign/): a signed list of digests covers
//! every file in it.

use std::fmt::Display;
use std::fs;
use std::io::{Cursor, ErrorKind};
use std::path::{Path, PathBuf};

use ct_codecs::{Base64, Decoder};
use minisign::{SecretKey, SecretKeyBox};

/// Bytes of a key file that name the password's key derivation; zero without a password.
const KDF: std::ops::Range<usize> = 2..4;

/// Signs the content of `file` with the secret key in the file `key`, asking for the key's password
/// if it has one, and writes the signature beside `file`.
pub fn sign(file: &Path, key: &Path, comment: &str) -> Result<(), String> {
    let failed = |path: &Path, why: &dyn Display| format!("{}: {why}", path.display());
    let text = fs::read_to_string(key).map_err(|why| failed(key, &why))?;
    let secret = secret(&text).map_err(|why| failed(key, &why))?;
    let content = fs::read(file).map_err(|why| failed(file, &why))?;
    let (content, own) = (Cursor::new(content), Some("Atlas"));
    let made = minisign::sign(None, &secret, content, Some(comment), own);
    let made = made.map_err(|why| failed(file, &why))?;
    let path = signature(file);
    fs::write(&path, made.into_string()).map_err(|why| failed(&path, &why))
}

/// Removes a signature of earlier content beside `file`.
///
/// # Errors
/// If the signature exists and cannot be removed.
pub fn withdraw(file: &Path) -> Result<(), String> {
    let path = signature(file);
    match fs::remove_file(&path) {
        Err(why) if why.kind() != ErrorKind::NotFound => Err(format!("{}: {why}", path.display())),
        _ => Ok(()),
    }
}

/// Path of a file's signature.
fn signature(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".minisig");
    name.into()
}

/// The secret key in a key file. Without a password it lacks the checksum of a `SecretKeyBox`.
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
        withdraw(&file).unwrap();
        withdraw(&file).unwrap();
        assert!(file.exists() && !folder.join("sums.minisig").exists());
        fs::remove_dir_all(&folder).unwrap();
    }

    /// Runs a line of the shell in a folder; whether it succeeded, and what it said.
    fn shell(folder: &Path, line: &str) -> (bool, String) {
        let mut command = Command::new("sh");
        let done = command.args(["-c", line]).current_dir(folder).output();
        let done = done.unwrap();
        let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        (done.status.success(), said)
    }

    /// A place with the packaging of this workspace, and what two targets leave of a release.
    fn to_publish(name: &str) -> PathBuf {
        let (root, version) = (crate::site::Site::here().root, env!("CARGO_PKG_VERSION"));
        let place = std::env::temp_dir().join(format!("atlas-{name}-{}", std::process::id()));
        for binary in ["atlas-cpu-tiny-nvfp4", "atlas-other"] {
            let folder = place.join("dist").join(binary);
            fs::create_dir_all(&folder).unwrap();
            for end in ["", &format!("_{version}_amd64.deb"), ".MANIFEST.json"] {
                fs::write(
                    folder.join(format!("{binary}{end}")),
                    format!("{binary}{end}"),
                )
                .unwrap();
            }
            assert!(shell(&folder, "sha256sum * > ../sums && mv ../sums SHA256SUMS").0);
        }
        fs::create_dir_all(place.join("packaging")).unwrap();
        for file in [
            "Cargo.toml",
            "packaging/publish.sh",
            "packaging/CHANGELOG.md",
            "packaging/atlas.pub",
        ] {
            fs::copy(root.join(file), place.join(file)).unwrap();
        }
        fs::write(place.join("key"), SECRET).unwrap();
        place
    }

    #[test]
    fn what_is_published_is_verified_by_the_line_of_the_readme() {
        if on_path("minisign").is_none() {
            return;
        }
        let readme = fs::read_to_string(crate::site::Site::here().root.join("README.md")).unwrap();
        let line = readme
            .lines()
            .find(|line| line.starts_with("minisign -V"))
            .unwrap();
        let place = to_publish("publish");
        // Stands for podman, whose images are files.
        let podman = "[ $1 = build ] || for image; do echo \"$image\" > \"$5\"; done\n";
        fs::write(place.join("podman"), format!("#!/bin/sh\n{podman}")).unwrap();
        let images = concat!(
            "chmod +x podman && PATH=$PWD:$PATH sh packaging/publish.sh images v",
            env!("CARGO_PKG_VERSION"),
            " dist dist"
        );
        let make = concat!(
            "sh packaging/publish.sh make v",
            env!("CARGO_PKG_VERSION"),
            " dist release key atlas-other"
        );
        fs::write(place.join("packaging/atlas.pub"), PUBLIC).unwrap();
        for line in [images, make] {
            let (done, said) = shell(&place, line);
            assert!(done, "{said}");
        }
        let notes = fs::read_to_string(place.join("notes.md")).unwrap();
        assert!(
            notes.contains("- One binary per") && notes.contains("- `atlas-other`"),
            "{notes}"
        );
        let assets = fs::read_to_string(place.join("assets")).unwrap();
        let other = assets.lines().filter(|line| line.contains("atlas-other"));
        assert!(
            other.clone().count() == 4
                && other.clone().all(|line| line.ends_with("(experimental)"))
        );
        assert!(
            assets.contains("\nrelease/atlas-cpu-tiny-nvfp4\n"),
            "{assets}"
        );
        let release = place.join("release");
        // Who downloads takes a few of the files.
        fs::remove_file(release.join("atlas-other")).unwrap();
        assert_eq!(fs::read_dir(&release).unwrap().count(), 5 + 3 + 2);
        let image = concat!("atlas-other-", env!("CARGO_PKG_VERSION"), ".oci.tar");
        let image = fs::read_to_string(release.join(image)).unwrap();
        assert_eq!(
            image,
            concat!("localhost/atlas-other:", env!("CARGO_PKG_VERSION"), "\n")
        );
        let (fine, said) = shell(&release, line);
        assert!(fine, "{said}");
        fs::write(release.join("atlas-cpu-tiny-nvfp4"), "another").unwrap();
        assert!(!shell(&release, line).0);
        shell(&release, "sha256sum atlas-cpu-tiny-nvfp4 > SHA256SUMS");
        assert!(!shell(&release, line).0);
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn a_release_without_its_key_or_of_another_version_ends_before_it_is_there() {
        let place = to_publish("unpublished");
        let plan = |tag: &str| shell(&place, &format!("sh packaging/publish.sh plan {tag}"));
        let tag = concat!("v", env!("CARGO_PKG_VERSION"));
        fs::write(
            place.join("packaging/atlas.pub"),
            "untrusted comment: none\n",
        )
        .unwrap();
        let (done, said) = plan(tag);
        assert!(!done && said.contains("has no key"), "{said}");
        fs::write(place.join("packaging/atlas.pub"), PUBLIC).unwrap();
        assert!(plan(tag).0);
        let (done, said) = plan("v9.9.9");
        assert!(
            !done && said.contains("v9.9.9") && said.contains(tag),
            "{said}"
        );
        let make = format!("sh packaging/publish.sh make {tag} dist release key");
        if on_path("minisign").is_some() {
            let other = PUBLIC.replace("RWRtJB", "RWRtJC");
            fs::write(place.join("packaging/atlas.pub"), other).unwrap();
            let (done, said) = shell(&place, &make);
            assert!(
                !done && said.contains("the secret is not that of"),
                "{said}"
            );
        }
        fs::remove_dir_all(&place).unwrap();
        let place = to_publish("damaged");
        fs::write(place.join("packaging/atlas.pub"), PUBLIC).unwrap();
        fs::write(
            place.join("dist/atlas-cpu-tiny-nvfp4/atlas-cpu-tiny-nvfp4"),
            "flipped",
        )
        .unwrap();
        assert!(!shell(&place, &make).0 && !place.join("notes.md").exists());
        fs::remove_dir_all(&place).unwrap();
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
