//! Fetching of a pinned wheel, and unpacking of the files that the build uses.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::graph::digest::Digest;
use crate::graph::run::Sandbox;
use crate::graph::{Action, ActionId, Code, Error, Graph, Source};

/// A pinned wheel.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// File name on the index: `<name>-<version>-<python>-<abi>-<platforms>.whl`.
    pub file: String,
    /// SHA-256 of the file in lower-case hexadecimal.
    pub sha256: String,
    /// Purpose of the wheel in the build, for people.
    #[serde(rename = "use")]
    pub purpose: String,
}

impl Pin {
    fn part(&self, index: usize) -> &str {
        let stem = self.file.trim_end_matches(".whl");
        stem.split('-').nth(index).unwrap_or("")
    }

    /// Name of the project, with `_` in place of `-`.
    pub fn name(&self) -> &str {
        self.part(0)
    }

    pub fn version(&self) -> &str {
        self.part(1)
    }

    /// First platform tag, by which pip finds the file; `None` for `any`.
    pub fn platform(&self) -> Option<&str> {
        let tags = self.part(4);
        let first = tags.split('.').next().unwrap_or("");
        (first != "any").then_some(first)
    }

    /// Fails if the file name or the digest is malformed.
    pub fn check(&self) -> Result<(), String> {
        let digest = self.sha256.len() == 64 && self.sha256.chars().all(|c| c.is_ascii_hexdigit());
        let parts = self.file.ends_with(".whl") && self.file.split('-').count() == 5;
        match (parts, digest) {
            (false, _) => Err(format!(
                "`{}` is not <name>-<version>-<python>-<abi>-<platform>.whl",
                self.file
            )),
            (_, false) => Err(format!(
                "sha256 of `{}` is not 64 hexadecimal digits",
                self.file
            )),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pin { file, sha256, .. } = self;
        let (name, version) = (self.name(), self.version());
        write!(f, "{name} {version} (file {file}, sha256 {sha256})")
    }
}

/// Version of `fetch`, raised when it makes other files from equal pins.
const FETCH_VERSION: Code = Code::Version(1);
/// Version of `unpack`, raised when it makes other files from equal wheels.
const UNPACK_VERSION: Code = Code::Version(1);

/// Folder below `.atlas` with wheels that the user provided, which are not fetched from an index.
const GIVEN: &str = "wheels";

/// The wheels of one graph; each is fetched once for all users.
#[derive(Default)]
pub struct Wheels {
    fetched: BTreeMap<String, ActionId>,
}

impl Wheels {
    /// Adds the actions that fetch `wheels` and unpack the files of their folder `keep` into the
    /// folder `into`; returns this folder as an input.
    ///
    /// # Errors
    /// If the graph already unpacks into this folder.
    pub fn unpack(
        &mut self,
        graph: &mut Graph,
        into: &str,
        wheels: &[&Pin],
        keep: &str,
    ) -> Result<Source, Error> {
        let label = format!("unpack {into}");
        let files: Vec<&str> = wheels.iter().map(|pin| pin.file.as_str()).collect();
        let mut action = Action::built_in(label, "unpack", unpack_wheels, UNPACK_VERSION)
            .arg("into", into)
            .arg("keep", keep)
            .arg("wheels", files.join(" "))
            .output_tree(into);
        for pin in wheels {
            let from = self.fetch(graph, pin)?.output(&pin.file);
            action = action.input(from, &pin.file);
        }
        Ok(graph.add(action)?.output(into))
    }

    fn fetch(&mut self, graph: &mut Graph, pin: &Pin) -> Result<ActionId, Error> {
        if let Some(id) = self.fetched.get(&pin.file) {
            return Ok(*id);
        }
        let label = format!("fetch {}", pin.file);
        let action = Action::built_in(label, "fetch", fetch, FETCH_VERSION)
            .arg("file", &pin.file)
            .arg("sha256", &pin.sha256)
            .arg("given", format!("{{atlas}}/{GIVEN}"))
            .output(&pin.file);
        let id = graph.add(action)?;
        self.fetched.insert(pin.file.clone(), id);
        Ok(id)
    }
}

/// Copies the pinned wheels in `folder`, for machines without access to an index, and names pinned
/// wheels that `folder` lacks.
///
/// # Errors
/// The pin whose file has another digest; or the first pin, if `folder` has no pinned wheel.
pub fn give(atlas: &Path, pins: &[&Pin], folder: &Path) -> Result<(), String> {
    let given = atlas.join(GIVEN);
    fs::create_dir_all(&given).map_err(|why| format!("make {}: {why}", given.display()))?;
    let is_there = |pin: &&Pin| folder.join(&pin.file).is_file();
    let (there, missing): (Vec<&Pin>, Vec<&Pin>) = pins.iter().copied().partition(is_there);
    if let ([], [pin, ..]) = (there.as_slice(), missing.as_slice()) {
        verify(pin, &folder.join(&pin.file))?;
    }
    for pin in missing {
        eprintln!(
            "{} is not there; the index is asked if a build needs it: {pin}",
            folder.display()
        );
    }
    for pin in there {
        let (from, to) = (folder.join(&pin.file), given.join(&pin.file));
        verify(pin, &from)?;
        copy(pin, &from, &to)?;
    }
    Ok(())
}

/// Writes the wheel `file` into the action's folder, from the folder `given` or else from the
/// index.
fn fetch(sandbox: &Sandbox<'_>) -> Result<(), String> {
    let pin = Pin {
        file: sandbox.arg("file")?.to_string(),
        sha256: sandbox.arg("sha256")?.to_string(),
        purpose: String::new(),
    };
    let from = Path::new(sandbox.arg("given")?).join(&pin.file);
    let to = sandbox.path(&pin.file);
    match from.is_file() {
        true => copy(&pin, &from, &to)?,
        false => download(&pin, sandbox.work)?,
    }
    verify(&pin, &to)
}

/// Fetches a wheel into `folder`, unless a file with its digest is there.
///
/// # Errors
/// If it cannot be fetched, or has another digest than the pin.
pub fn keep(pin: &Pin, folder: &Path) -> Result<(), String> {
    let (to, half) = (folder.join(&pin.file), folder.join(".half"));
    if verify(pin, &to).is_ok() {
        return Ok(());
    }
    let failed = |why: io::Error| format!("{pin}: {why}. {}", fix_of(pin, &why.to_string()));
    fs::create_dir_all(&half).map_err(failed)?;
    download(pin, &half)?;
    verify(pin, &half.join(&pin.file))?;
    let moved = fs::rename(half.join(&pin.file), &to);
    let moved = moved.and_then(|()| fs::remove_dir_all(&half));
    moved.map_err(failed)
}

fn copy(pin: &Pin, from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(|_| ()).map_err(|why| {
        format!(
            "{pin}: {} cannot be taken: {why}. {}",
            from.display(),
            fix_of(pin, &why.to_string())
        )
    })
}

fn verify(pin: &Pin, file: &Path) -> Result<(), String> {
    // Only regular files are opened: a pipe could block forever.
    let metadata = fs::metadata(file).and_then(|found| match found.is_file() {
        true => Ok(()),
        false => Err(io::Error::other("it is no regular file")),
    });
    let found = metadata.and_then(|()| Digest::of_file(file));
    let found = found.map_err(|why| {
        let (file, fix) = (file.display(), offline(pin));
        format!("{pin}: {file} cannot be read: {why}. To build without an index, {fix}")
    })?;
    if found.to_string() == pin.sha256 {
        return Ok(());
    }
    let fix = fix_of(pin, HASH_MARK);
    Err(format!("{pin}: the file has sha256 {found}. {fix}"))
}

/// Text that pip prints when a digest differs.
const HASH_MARK: &str = "DO NOT MATCH THE HASHES";
/// Text that pip and the system print when the disk is full.
const DISK_MARK: &str = "No space left on device";

fn download(pin: &Pin, folder: &Path) -> Result<(), String> {
    let list = folder.join("requirements.txt");
    let (name, version, sha256) = (pin.name(), pin.version(), &pin.sha256);
    let line = format!("{name}=={version} --hash=sha256:{sha256}\n");
    fs::write(&list, line).map_err(|why| format!("{pin}: {why}. {}", fix_of(pin, DISK_MARK)))?;
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "download", "--quiet", "--no-input"]);
    command.args(["--disable-pip-version-check", "--no-cache-dir"]);
    command.args(["--no-deps", "--require-hashes", "--only-binary=:all:"]);
    let platform = pin.platform();
    command.args(platform.iter().flat_map(|name| ["--platform", name]));
    command.arg("--dest").arg(folder);
    command.arg("--requirement").arg(list);
    let done = command.output().map_err(|why| {
        format!(
            "{pin}: `python3 -m pip` cannot be started: {why}. Install python3 and pip (Debian: \
             python3-pip), or {}",
            offline(pin)
        )
    })?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr).trim().to_string();
    // The last line has the cause; earlier lines are retries or a trace.
    let last = said.lines().last().unwrap_or("nothing");
    let fix = fix_of(pin, &said);
    Err(format!(
        "{pin}: pip could not fetch it. {fix} (pip said: {last})"
    ))
}

/// Advice for a failure, chosen by its text.
fn fix_of(pin: &Pin, text: &str) -> String {
    if text.contains(HASH_MARK) {
        return "This is not the pinned file: get it from a source you trust; change the pin \
                only with a reason"
            .to_string();
    }
    if text.contains(DISK_MARK) {
        return "The disk is full: free some space and build again".to_string();
    }
    let offline = offline(pin);
    format!("Check that the package index can be reached, or {offline}")
}

fn offline(pin: &Pin) -> String {
    let file = &pin.file;
    format!("put {file} into a folder and build with `--wheels FOLDER`")
}

/// Unpacks the files below `keep` of the `wheels` into the folder `into`.
fn unpack_wheels(sandbox: &Sandbox<'_>) -> Result<(), String> {
    let into = sandbox.path(sandbox.arg("into")?);
    let keep = format!("{}/", sandbox.arg("keep")?);
    for file in sandbox.arg("wheels")?.split(' ') {
        let count = unpack_one(&sandbox.path(file), &keep, &into)
            .map_err(|why| format!("unpacking {file}: {why}"))?;
        if count == 0 {
            return Err(format!("{file} holds nothing below {keep}"));
        }
    }
    Ok(())
}

fn unpack_one(wheel: &Path, keep: &str, into: &Path) -> io::Result<usize> {
    let mut archive = zip::ZipArchive::new(File::open(wheel)?)?;
    let mut count = 0;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index)?;
        let Some(to) = destination(entry.enclosed_name(), keep, into) else {
            continue;
        };
        if entry.is_dir() {
            continue;
        }
        fs::create_dir_all(to.parent().expect("a file lies in a folder"))?;
        io::copy(&mut entry, &mut File::create(&to)?)?;
        let executable = entry.unix_mode().is_some_and(|mode| mode & 0o111 != 0);
        let mode = if executable { 0o755 } else { 0o644 };
        fs::set_permissions(&to, fs::Permissions::from_mode(mode))?;
        count += 1;
    }
    Ok(count)
}

/// Path to which an entry is unpacked; `None` outside of `keep` or if it points elsewhere.
fn destination(name: Option<PathBuf>, keep: &str, into: &Path) -> Option<PathBuf> {
    let below = name?.strip_prefix(keep).ok()?.to_path_buf();
    (!below.as_os_str().is_empty()).then(|| into.join(below))
}

#[test]
fn wheels_that_are_there_are_taken_and_the_others_are_no_reason_to_stop() {
    let place = std::env::temp_dir().join(format!("atlas-given-{}", std::process::id()));
    let pin = |name: &str| Pin {
        file: format!("{name}-1-py3-none-any.whl"),
        // Digest of an empty file.
        sha256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855".to_string(),
        purpose: String::new(),
    };
    let (there, absent) = (pin("there"), pin("absent"));
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join(&there.file), "").unwrap();
    give(&place, &[&absent, &there], &place).unwrap();
    assert!(place.join(GIVEN).join(&there.file).is_file());
    assert!(
        give(&place, &[&absent], &place)
            .unwrap_err()
            .contains("absent-1")
    );
    fs::remove_dir_all(&place).unwrap();
}
