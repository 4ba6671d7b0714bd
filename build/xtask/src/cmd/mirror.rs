//! `mirror`: a folder with all files that builds fetch from the network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use argh::FromArgs;
use toml::Table;

use crate::cuda::{self, AARCH64, X86_64};
use crate::graph::digest::Digest;
use crate::site::{Failure, Site};
use crate::toolchain::said;
use crate::weights;
use crate::wheel::{self, Pin};

/// Server of Rust's archives, of which a folder with the same paths is a mirror for `rustup`.
const SERVER: &str = "https://static.rust-lang.org";
/// Components of the toolchain that builds and tests use, with their targets.
const PARTS: [(&str, &str); 6] = [
    ("cargo", X86_64),
    ("rustc", X86_64),
    ("rust-std", X86_64),
    ("rust-std", AARCH64),
    ("rustfmt-preview", X86_64),
    ("clippy-preview", X86_64),
];
/// Folder of crates in cargo's home. The name is that of the folder for crates.io, so that paths
/// compiled into a binary are equal with and without a mirror.
const CRATES: &str = "index.crates.io-1949cf8c6b5b557f";

/// Fetch everything that builds take from the network into a folder, or what it still lacks.
#[derive(FromArgs)]
#[argh(subcommand, name = "mirror")]
pub struct Mirror {
    /// folder of the mirror
    #[argh(positional)]
    folder: PathBuf,
}

impl Mirror {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        let folder = std::path::absolute(&self.folder).map_err(|why| why.to_string())?;
        let pins = wheels(site)?;
        for (ix, pin) in pins.iter().enumerate() {
            eprintln!("[{} of {}] {}", ix + 1, pins.len(), pin.file);
            wheel::keep(pin, &folder.join("wheels"))?;
        }
        crates(site, &folder.join("cargo"))?;
        rust(site, &folder.join("rust"))?;
        let folder = folder.display();
        println!("export CARGO_HOME={folder}/cargo RUSTUP_DIST_SERVER=file://{folder}/rust");
        println!("rustup toolchain install --no-self-update && rustup target add {AARCH64}");
        println!("cargo xtask build TARGET --wheels {folder}/wheels");
        Ok(())
    }
}

/// Pins of the device toolchain's wheels and of wheels with weights, without duplicates.
fn wheels(site: &Site) -> Result<Vec<Pin>, Failure> {
    let pins = cuda::pins(&site.root)?;
    let mut found: Vec<Pin> = pins.all().into_iter().cloned().collect();
    for leaf in site.leaves()? {
        let plan = weights::plan(&site.target(Some(&leaf))?)?;
        found.extend(plan.into_iter().flat_map(|plan| plan.pins));
    }
    found.sort_by(|a, b| a.file.cmp(&b.file));
    found.dedup();
    Ok(found)
}

/// Makes a cargo home with the crates of `Cargo.lock`; cargo compares their digests.
fn crates(site: &Site, home: &Path) -> Result<(), String> {
    eprintln!("crates");
    let mut vendor = Command::new("cargo");
    vendor.args(["vendor", "--quiet", "--locked", "--versioned-dirs"]);
    vendor.arg(home.join(CRATES)).current_dir(&site.root);
    said(&mut vendor, "cargo vendor")?;
    // Cargo resolves the path relative to the parent of the file's folder.
    let config = format!(
        "[source.crates-io]\nreplace-with = \"mirror\"\n[source.mirror]\ndirectory = \
         \"cargo/{CRATES}\"\n[net]\noffline = true\n"
    );
    write(&home.join("config.toml"), &config)
}

/// Fetches the archives of the toolchain in `rust-toolchain.toml`, and `rustup`.
fn rust(site: &Site, folder: &Path) -> Result<(), String> {
    let pins = cuda::pins(&site.root)?;
    fetch(SERVER, &pins.rustup, folder)?;
    fetch(SERVER, &pins.rust, folder)?;
    let list = folder.join(&pins.rust.file);
    let text = fs::read_to_string(&list).map_err(|why| format!("{}: {why}", list.display()))?;
    write(&list.with_extension("toml.sha256"), &pins.rust.sha256)?;
    let archives = archives(&text)?;
    archives.iter().enumerate().try_for_each(|(ix, pin)| {
        eprintln!("[{} of {}] {}", ix + 1, archives.len(), pin.file);
        fetch(SERVER, pin, folder)
    })
}

/// Archives of [`PARTS`], from the manifest of a Rust release.
fn archives(list: &str) -> Result<Vec<Pin>, String> {
    let list: Table = toml::from_str(list).map_err(|why| why.to_string())?;
    let archive = |(part, triple): (&str, &str)| {
        let of = &list.get("pkg")?.get(part)?.get("target")?.get(triple)?;
        let url = of.get("xz_url")?.as_str()?;
        Some(Pin {
            file: url.strip_prefix(SERVER)?.trim_start_matches('/').into(),
            sha256: of.get("xz_hash")?.as_str()?.to_string(),
            purpose: part.to_string(),
        })
    };
    let named = |part| archive(part).ok_or(format!("the list of the release lacks {part:?}"));
    PARTS.into_iter().map(named).collect()
}

/// Fetches a file of a server to its path below `folder`, resuming an earlier attempt.
fn fetch(server: &str, pin: &Pin, folder: &Path) -> Result<(), String> {
    let to = folder.join(&pin.file);
    let is_pinned =
        |path: &Path| Digest::of_file(path).is_ok_and(|digest| digest.to_string() == pin.sha256);
    if is_pinned(&to) {
        return Ok(());
    }
    let half = folder.join(format!("{}.half", pin.file));
    let url = format!("{server}/{}", pin.file);
    let mut curl = Command::new("curl");
    curl.args(["--fail", "--silent", "--show-error", "--retry", "3"]);
    curl.args(["--create-dirs", "--continue-at", "-", "--output"]);
    let done = curl.arg(&half).arg(&url).status();
    let done = done.map_err(|why| format!("`curl` cannot be started: {why}. Install it"))?;
    if is_pinned(&half) {
        return fs::rename(&half, &to).map_err(|why| format!("{}: {why}", to.display()));
    }
    if !done.success() {
        return Err(format!(
            "{url}: not fetched, see above; the next attempt goes on"
        ));
    }
    let _ = fs::remove_file(&half);
    let sha256 = &pin.sha256;
    Err(format!(
        "{url}: its sha256 is not {sha256}, and it was removed"
    ))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|why| format!("write {}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pin(content: &str) -> Pin {
        Pin {
            file: "a/file".to_string(),
            sha256: Digest::of(content.as_bytes()).to_string(),
            purpose: String::new(),
        }
    }

    #[test]
    fn a_file_goes_on_where_it_ended_and_has_its_digest_or_is_not_there() {
        let place = std::env::temp_dir().join(format!("atlas-mirror-{}", std::process::id()));
        let (there, here) = (place.join("there/a"), place.join("here/a"));
        fs::create_dir_all(&there).unwrap();
        fs::create_dir_all(&here).unwrap();
        let server = format!("file://{}", place.join("there").display());
        // Only the end of this is fetched.
        fs::write(there.join("file"), "???def").unwrap();
        fs::write(here.join("file.half"), "abc").unwrap();
        fetch(&server, &pin("abcdef"), &place.join("here")).unwrap();
        assert_eq!(fs::read(here.join("file")).unwrap(), b"abcdef");
        let other = fetch(&server, &pin("another"), &place.join("here"));
        assert!(other.unwrap_err().contains("a/file: its sha256 is not"));
        assert!(!here.join("file.half").exists());
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn archives_are_those_that_a_release_lists() {
        let entry = |(part, triple): (&str, &str)| {
            let url = format!("xz_url = \"{SERVER}/dist/{part}-{triple}\"");
            format!("[pkg.{part}.target.{triple}]\n{url}\nxz_hash = \"7\"\n")
        };
        let list = PARTS.map(entry).concat();
        let found = archives(&list).unwrap();
        assert_eq!(found[3].file, format!("dist/rust-std-{AARCH64}"));
        assert!(archives("").unwrap_err().contains("cargo"));
    }

    #[test]
    fn the_pinned_release_is_that_of_the_workspace() {
        let root = Site::here().root;
        let text = fs::read_to_string(root.join("rust-toolchain.toml")).unwrap();
        let wanted: Table = toml::from_str(&text).unwrap();
        let channel = wanted["toolchain"]["channel"].as_str().unwrap();
        let pinned = cuda::pins(&root).unwrap().rust.file;
        assert_eq!(pinned, format!("dist/channel-rust-{channel}.toml"));
    }
}
