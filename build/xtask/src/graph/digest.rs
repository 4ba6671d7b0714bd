//! Keys: one walk over an action's declarations, written against a small trait.
//!
//! The trait has two implementations: one hashes facts (the key), one writes them as text
//! (`--explain`). So the text for people has all facts that decide whether an action runs.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest as _, Sha256};

use super::action::{Action, Code, Form, Place, Work};

/// Version of keys, raised when the walk or the meaning of an action changes: no older key matches.
const KEY_FORMAT: &str = "1";

/// Bytes read at once to hash a file.
const CHUNK_BYTES: usize = 1 << 16;

/// Age of a file's time stamp below which a second change could leave it equal: younger files'
/// digests are not remembered.
const TIME_STAMP_GRAIN: Duration = Duration::from_millis(50);

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// Digest of a file's content.
    pub fn of_file(path: &Path) -> io::Result<Digest> {
        let mut file = File::open(path)?;
        let mut hash = Sha256::new();
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            match file.read(&mut chunk)? {
                0 => return Ok(Digest(hash.finalize().into())),
                bytes => hash.update(&chunk[..bytes]),
            }
        }
    }

    /// Reads 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Digest> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (ix, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * ix..2 * ix + 2], 16).ok()?;
        }
        Some(Digest(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Receives every fact that a key covers, in a fixed order.
pub trait Walk {
    fn fact(&mut self, kind: &str, name: &str, value: &str);
}

/// Hashes facts. Lengths are hashed before values, so that different facts are different bytes.
#[derive(Default)]
struct Hashed(Sha256);

impl Walk for Hashed {
    fn fact(&mut self, kind: &str, name: &str, value: &str) {
        for part in [kind, name, value] {
            self.0.update((part.len() as u64).to_le_bytes());
            self.0.update(part);
        }
    }
}

/// Writes the facts, one on each line: `kind name = value`.
#[derive(Default)]
struct Written(String);

impl Walk for Written {
    fn fact(&mut self, kind: &str, name: &str, value: &str) {
        let (name, value) = (name.escape_debug(), value.escape_debug());
        writeln!(self.0, "{kind} {name} = {value}").expect("a String takes any text");
    }
}

/// Reports to `out` all facts that decide the outputs of `action`. `inputs` are the contents of its
/// inputs, in order; `executable` is the digest of xtask.
fn walk(action: &Action, inputs: &[String], executable: &Digest, out: &mut impl Walk) {
    let (count, label) = (action.inputs.len(), &action.label);
    assert_eq!(count, inputs.len(), "{label}: a content for each input");
    out.fact("format", "key", KEY_FORMAT);
    match &action.work {
        Work::Process { argv } => {
            for (ix, arg) in argv.iter().enumerate() {
                out.fact("argv", &format!("{ix:03}"), arg);
            }
        }
        Work::BuiltIn {
            name, code, args, ..
        } => {
            let code = match code {
                Code::Executable => format!("xtask {executable}"),
                Code::Version(number) => format!("version {number}"),
                Code::Sources(texts) => {
                    format!("sources {}", Digest::of(texts.concat().as_bytes()))
                }
            };
            out.fact("function", name, &code);
            for (name, value) in args {
                out.fact("arg", name, value);
            }
        }
    }
    for tool in &action.tools {
        out.fact("tool", &tool.name, &tool.identity);
    }
    for variable in &action.env {
        let value = match variable.covered {
            true => &variable.value,
            false => "(value not covered)",
        };
        out.fact("env", &variable.name, value);
    }
    for (input, content) in action.inputs.iter().zip(inputs) {
        out.fact("input", &input.at, content);
    }
    for output in &action.outputs {
        let form = match (output.form, output.place) {
            (Form::File, Place::Folder) => "file",
            (Form::Tree, Place::Folder) => "tree",
            (Form::File, Place::Cache) => "file in cache",
            (Form::Tree, Place::Cache) => "tree in cache",
        };
        out.fact("output", &output.path, form);
    }
    out.fact("cache", "folder", action.cache.as_deref().unwrap_or("none"));
}

/// The key of an action: equal keys mean equal outputs.
pub fn key(action: &Action, inputs: &[String], executable: &Digest) -> Digest {
    let mut hashed = Hashed::default();
    walk(action, inputs, executable, &mut hashed);
    Digest(hashed.0.finalize().into())
}

/// Text with all facts that a key is the digest of.
pub fn explanation(action: &Action, inputs: &[String], executable: &Digest) -> String {
    let mut written = Written::default();
    walk(action, inputs, executable, &mut written);
    written.0
}

/// Digests of files, remembered with the size, time stamp and inode under which they were computed.
#[derive(Debug)]
pub struct Digests {
    at: PathBuf,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    digests: HashMap<PathBuf, (Stamp, Digest)>,
    changed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified_ns: i128,
    inode: u64,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        let modified_ns =
            i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        Stamp {
            bytes: metadata.len(),
            modified_ns,
            inode: metadata.ino(),
        }
    }

    fn is_settled(&self) -> bool {
        let age = (SystemTime::now() - TIME_STAMP_GRAIN).duration_since(UNIX_EPOCH);
        self.modified_ns < age.map_or(0, |age| age.as_nanos()) as i128
    }
}

impl Digests {
    /// Loads digests that an earlier run saved at `at`; unreadable lines are dropped, which costs
    /// time only.
    pub fn load(at: PathBuf) -> Digests {
        let text = fs::read_to_string(&at).unwrap_or_default();
        let known = Mutex::new(Known {
            digests: text.lines().filter_map(parse_line).collect(),
            changed: false,
        });
        Digests { at, known }
    }

    /// Digest of a file's content; hashes the file only if size, time stamp or inode changed.
    pub fn of_file(&self, path: &Path) -> io::Result<Digest> {
        let stamp = Stamp::of(&fs::metadata(path)?);
        if let Some((known, digest)) = self.lock().digests.get(path)
            && *known == stamp
        {
            return Ok(*digest);
        }
        let digest = Digest::of_file(path)?;
        if stamp.is_settled() {
            self.insert(path, stamp, digest);
        }
        Ok(digest)
    }

    /// Remembers the digest of a file that only the pipeline writes.
    pub fn remember(&self, path: &Path, digest: Digest) -> io::Result<()> {
        self.insert(path, Stamp::of(&fs::metadata(path)?), digest);
        Ok(())
    }

    /// Forgets the digest of a file, so that its content is read again.
    pub fn forget(&self, path: &Path) {
        self.lock().digests.remove(path);
    }

    fn insert(&self, path: &Path, stamp: Stamp, digest: Digest) {
        let mut known = self.lock();
        known.digests.insert(path.to_path_buf(), (stamp, digest));
        known.changed = true;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        let known = self.known.lock();
        known.expect("no thread panics while it holds this lock")
    }

    /// Writes the remembered digests for the next run, without those of removed files.
    pub fn save(&self) -> io::Result<()> {
        let mut known = self.lock();
        if !known.changed {
            return Ok(());
        }
        known.digests.retain(|path, _| path.exists());
        let mut text = String::new();
        for (path, (stamp, digest)) in &known.digests {
            let Some(path) = path.to_str().filter(|path| !path.contains('\n')) else {
                continue;
            };
            let (bytes, modified, inode) = (stamp.bytes, stamp.modified_ns, stamp.inode);
            writeln!(text, "{digest} {bytes} {modified} {inode} {path}")
                .expect("a String takes any text");
        }
        known.changed = false;
        let half = self.at.with_extension("half");
        fs::write(&half, text)?;
        fs::rename(&half, &self.at)
    }
}

fn parse_line(line: &str) -> Option<(PathBuf, (Stamp, Digest))> {
    let mut parts = line.splitn(5, ' ');
    let digest = Digest::parse(parts.next()?)?;
    let stamp = Stamp {
        bytes: parts.next()?.parse().ok()?,
        modified_ns: parts.next()?.parse().ok()?,
        inode: parts.next()?.parse().ok()?,
    };
    Some((parts.next()?.into(), (stamp, digest)))
}
