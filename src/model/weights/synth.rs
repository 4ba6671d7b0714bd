//! Writes the drawn checkpoint of `seeded` as files: shards, their index and the configuration.
//!
//! Names, shapes and number formats are those of the release that the target serves; a vision
//! tower, which text does not read, is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Map, Value, json};

use super::header::LENGTH_BYTES;
use super::layout::Layout;
use super::names::{CONFIG, INDEX, MARK, SINGLE};
use super::progress::{Progress, Stage};
use super::seeded::{self, Drawn, Seeded};
use crate::target::{self, FAMILY, Fact, Site};
use host::beneath::{Beneath, Dir};

/// Bytes of tensors that a shard has, unless one tensor is larger.
const SHARD_BYTES: u64 = 1 << 30;
/// Bytes that a thread draws and writes at once; a multiple of every element's size.
const WRITE_BYTES: usize = 8 << 20;
/// Headers are filled up with spaces to a multiple of this size, as other writers do.
const HEADER_ALIGN: usize = 8;

/// Reason for which a checkpoint was not written; files that had been written are removed.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// The model has fewer layers than were asked for.
    #[error(
        "--layers {asked}: {} has {LAYERS} layers; ask for 1 to {LAYERS}",
        target::MODEL,
        LAYERS = target::LAYERS
    )]
    Layers { asked: usize },
    /// The directory is not empty.
    #[error("{directory}: is not empty; give a directory that is, or one that is not there yet")]
    NotEmpty { directory: PathBuf },
    /// The disk has no space for the remaining bytes of the checkpoint.
    #[error(
        "{file}: the disk is full; the checkpoint takes {bytes} bytes, make left for them or ask \
         for fewer --layers"
    )]
    Full { file: PathBuf, bytes: u64 },
    /// The operating system reported an error for a file.
    #[error("{file}: {error}")]
    Io { file: PathBuf, error: io::Error },
}

/// Summary of a written checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub tensors: usize,
    pub shards: usize,
    /// Bytes of the shards, headers included.
    pub bytes: u64,
}

/// A shard that is to be written.
struct Shard {
    path: PathBuf,
    /// Length field and JSON of the file's header.
    header: Vec<u8>,
    content: Seeded,
    /// Names of the tensors in the checkpoint.
    names: Vec<String>,
}

impl Shard {
    fn name(&self) -> String {
        let name = self.path.file_name().expect("a shard has a name");
        name.to_string_lossy().into_owned()
    }

    fn bytes(&self) -> u64 {
        self.header.len() as u64 + self.content.bytes()
    }
}

/// Whether the checkpoint in `directory` is one that [`write`] has written.
pub fn is_drawn(directory: &Path) -> bool {
    directory.join(MARK).symlink_metadata().is_ok()
}

/// Writes the first `layers` layers and the tensors around them into `directory`, which is made if
/// missing, and the files `beside` them: names and contents. The files are the same for every run
/// and any number of `threads`.
///
/// # Errors
/// `SynthError`; also when the files cannot be flushed to the disk.
pub fn write(
    directory: &Path,
    layers: usize,
    beside: &[(&str, String)],
    threads: usize,
    progress: &Progress,
) -> Result<Written, SynthError> {
    if layers == 0 || layers > target::LAYERS {
        return Err(SynthError::Layers { asked: layers });
    }
    let shards = shards(directory, layers);
    let bytes = shards.iter().map(Shard::bytes).sum();
    progress.expect(bytes);
    progress.enter(Stage::Writing);
    let made = prepare(directory)?;
    let files = Files {
        directory: &made,
        shards: &shards,
        bytes,
        progress,
    };
    let mut small = vec![
        (CONFIG, pretty(&config(layers))),
        (MARK, pretty(&mark(layers))),
    ];
    small.extend((shards.len() > 1).then(|| (INDEX, pretty(&index(&shards)))));
    small.extend(beside.iter().cloned());
    let result = files.write(threads).and_then(|()| {
        let mut small = small.iter();
        small.try_for_each(|(name, content)| {
            let written = create(&made, name).and_then(|mut to| to.write_all(content.as_bytes()));
            written.map_err(|error| refused(&directory.join(name), error, bytes))
        })
    });
    if result.is_err() {
        // The directory was empty, so all shards are this run's; the first error is reported.
        let names = shards.iter().map(Shard::name);
        let others = small.iter().map(|(name, _)| (*name).to_string());
        names
            .chain(others)
            .for_each(|name| drop(made.remove(&plain(&name))));
    }
    result.map(|()| Written {
        tensors: shards.iter().map(|shard| shard.names.len()).sum(),
        shards: shards.len(),
        bytes,
    })
}

/// Makes `directory`; an existing one must be empty.
fn prepare(directory: &Path) -> Result<Dir, SynthError> {
    let made = Dir::make(directory).and_then(|made| Ok((made.is_empty()?, made)));
    match made {
        Ok((true, made)) => Ok(made),
        Ok((false, _)) => Err(SynthError::NotEmpty {
            directory: directory.to_path_buf(),
        }),
        Err(error) => Err(refused(directory, error, 0)),
    }
}

/// Permissions of new files, before the process's mask.
const MODE: u32 = 0o666;

/// Creates a file that must not exist.
fn create(directory: &Dir, name: &str) -> io::Result<File> {
    directory.create(&plain(name), MODE)
}

fn plain(name: &str) -> Beneath {
    Beneath::parse(name).expect("names of a checkpoint are plain")
}

/// Distributes the tensors to shards in the order of their layers.
fn shards(directory: &Path, layers: usize) -> Vec<Shard> {
    let mut tensors = seeded::tensors(Layout::cut(layers), target::INPUT_SCALES);
    tensors.sort_by_key(|tensor| layer_of(tensor.site));
    let (mut groups, mut left) = (Vec::<Vec<Drawn>>::new(), 0);
    for tensor in tensors {
        let bytes = tensor.bytes();
        if groups.is_empty() || bytes > left {
            groups.push(Vec::new());
            left = SHARD_BYTES.max(bytes);
        }
        left -= bytes;
        groups.last_mut().expect("one was pushed").push(tensor);
    }
    let count = groups.len();
    let name = |index: usize| match count {
        1 => SINGLE.to_string(),
        _ => SINGLE.replace('.', &format!("-{:05}-of-{count:05}.", index + 1)),
    };
    let groups = groups.into_iter().enumerate();
    groups
        .map(|(index, tensors)| shard(directory.join(name(index)), tensors))
        .collect()
}

/// Number of the layer; for tensors outside of layers, a number after the last.
fn layer_of(site: Site) -> usize {
    match site {
        Site::Layer(layer) => layer,
        Site::Whole | Site::Prediction => usize::MAX,
    }
}

fn shard(path: PathBuf, mut tensors: Vec<Drawn>) -> Shard {
    // Tensors of wide elements come first, which keeps every tensor aligned.
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.bytes()));
    let (mut content, mut entries, mut names) = (Seeded::default(), Map::new(), Vec::new());
    for tensor in tensors {
        let start = content.push(&tensor);
        let entry = json!({
            "dtype": tensor.dtype.to_string(),
            "shape": tensor.shape,
            "data_offsets": [start, content.bytes()],
        });
        let name = stored_name(&tensor.name);
        entries.insert(name.clone(), entry);
        names.push(name);
    }
    let mut json = Value::Object(entries).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(HEADER_ALIGN), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    assert_eq!(header.len() as u64, LENGTH_BYTES);
    header.extend(json);
    Shard {
        path,
        header,
        content,
        names,
    }
}

/// Name of a tensor in the release's files.
fn stored_name(canonical: &str) -> String {
    match canonical.strip_prefix("model.") {
        Some(rest) => format!("{}{rest}", target::NAME_PREFIX),
        None => canonical.to_string(),
    }
}

fn index(shards: &[Shard]) -> Value {
    let of_shard = |shard: &Shard| {
        let file = shard.name();
        let names = shard.names.iter();
        names
            .map(move |name| (name.clone(), file.clone()))
            .collect::<Vec<_>>()
    };
    let names: BTreeMap<String, String> = shards.iter().flat_map(of_shard).collect();
    let size: u64 = shards.iter().map(|shard| shard.content.bytes()).sum();
    json!({"metadata": {"total_size": size}, "weight_map": names})
}

/// Configuration of the text model, so that another implementation can be compared: for each fact
/// its usual value, under the first name that it may have, and values that must be stated.
fn config(layers: usize) -> Value {
    let (mut config, mut keys) = (json!({}), BTreeSet::new());
    for fact in target::CONFIG.iter().filter(|fact| is_written(fact)) {
        let usual = serde_json::from_str::<Value>(&fact.right).map(|mut right| right[0].take());
        let usual = usual.expect("the build writes lists of values");
        if fact.required || fact.key == FAMILY || keys.insert(fact.key) {
            put(&mut config, fact.pointer, usual);
        }
    }
    let count = target::CONFIG
        .iter()
        .find(|fact| fact.key == "layers.count");
    put(
        &mut config,
        count.expect("models have layers").pointer,
        json!(layers),
    );
    if let Some(Value::Array(kinds)) = config.get_mut("layer_types") {
        kinds.truncate(layers);
    }
    if let Some(Value::String(blocks)) = config.get_mut("hybrid_override_pattern") {
        blocks.truncate(layers);
    }
    if let Some(Value::Object(rope)) = config.get_mut("rope_parameters") {
        consistent_rope(rope);
    }
    config["max_position_embeddings"] = json!(target::MAX_CONTEXT);
    config
}

/// Leaves the parameters of RoPE that readers accept together: if kinds of layers have parameters
/// of their own, only these.
fn consistent_rope(rope: &mut Map<String, Value>) {
    if rope.values().any(Value::is_object) {
        return rope.retain(|_, of_kind| of_kind.is_object());
    }
    // A position of text is one number, so sections have no effect.
    rope.insert("mrope_section".to_string(), json!([0, 0, 0]));
}

/// Whether a drawn checkpoint's configuration states a fact: no fact that the library assumes, and
/// no formats, for which it would want libraries of their own.
fn is_written(fact: &Fact) -> bool {
    let named = ["/model_type", "/architectures"].contains(&fact.pointer);
    let assumed = fact.key == FAMILY && !fact.required && !named;
    !assumed && !fact.pointer.starts_with("/quantization_config")
}

/// Writes `value` at a JSON pointer, with objects on the path to it.
fn put(config: &mut Value, pointer: &str, value: Value) {
    let names = pointer.split('/').skip(1);
    let entry = names.fold(config, |entry, name| &mut entry[name]);
    *entry = value;
}

/// Content of the file that marks weights as drawn and meaningless.
fn mark(layers: usize) -> Value {
    json!({
        "drawn": "every weight is a random number: answers mean nothing",
        "target": target::BINARY,
        "layers": layers,
    })
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Error for a file that could not be written; `bytes`: size of the whole checkpoint.
fn refused(file: &Path, error: io::Error, bytes: u64) -> SynthError {
    let file = file.to_path_buf();
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            SynthError::Full { file, bytes }
        }
        _ => SynthError::Io { file, error },
    }
}

/// Shards while they are being written.
struct Files<'a> {
    directory: &'a Dir,
    shards: &'a [Shard],
    bytes: u64,
    progress: &'a Progress,
}

impl Files<'_> {
    /// Draws and writes all shards with `threads` threads; the first error ends all of them.
    fn write(&self, threads: usize) -> Result<(), SynthError> {
        let create = |shard: &Shard| {
            create(self.directory, &shard.name()).map_err(|e| self.refused(shard, e))
        };
        let files = self
            .shards
            .iter()
            .map(create)
            .collect::<Result<Vec<_>, _>>()?;
        let mut parts: Vec<(usize, u64)> = self.parts().collect();
        // Writers of one file would wait for each other, so all files grow at the same time.
        parts.sort_by_key(|(_, offset)| *offset);
        let (next, first_error) = (AtomicUsize::new(0), Mutex::new(None));
        let work = || {
            let mut buffer = vec![0; WRITE_BYTES];
            while let Some(&(shard, offset)) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) =
                    self.part(&files[shard], &self.shards[shard], offset, &mut buffer)
                {
                    next.store(parts.len(), Ordering::Relaxed);
                    let mut first = first_error
                        .lock()
                        .expect("no thread panics while it holds it");
                    first.get_or_insert(error);
                }
            }
        };
        thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        let first_error = first_error.into_inner().expect("as above");
        first_error.map_or(Ok(()), Err)?;
        for (file, shard) in files.iter().zip(self.shards) {
            file.sync_data()
                .map_err(|error| self.refused(shard, error))?;
        }
        Ok(())
    }

    /// Shards, and offsets of the first bytes of their parts, counted from the first tensor.
    fn parts(&self) -> impl Iterator<Item = (usize, u64)> {
        let shards = self.shards.iter().enumerate();
        shards.flat_map(|(index, shard)| {
            let offsets = (0..shard.content.bytes()).step_by(WRITE_BYTES);
            offsets.map(move |offset| (index, offset))
        })
    }

    /// Bytes of a part of a shard; the first part includes the header.
    fn part(
        &self,
        file: &File,
        shard: &Shard,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), SynthError> {
        let header = shard.header.len() as u64;
        let bytes = (shard.content.bytes() - offset).min(buffer.len() as u64);
        let buffer = &mut buffer[..bytes as usize];
        shard.content.read(offset, buffer);
        let failed = |error| self.refused(shard, error);
        file.write_all_at(buffer, header + offset).map_err(failed)?;
        self.progress.advance(bytes);
        if offset == 0 {
            file.write_all_at(&shard.header, 0).map_err(failed)?;
            self.progress.advance(header);
        }
        Ok(())
    }

    fn refused(&self, shard: &Shard, error: io::Error) -> SynthError {
        refused(&shard.path, error, self.bytes)
    }
}

#[cfg(test)]
mod tests;
