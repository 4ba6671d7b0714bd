//! An existing packed file, to be read or mapped.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use sha2::{Digest, Sha256};

use super::table::{self, Entry, HEAD_BYTES, Head, MAGIC, Problem, Table, VERSION};
use super::{file_name, manifest};
use crate::backend::mapping::{Mapping, Stretch};
use crate::target;
use crate::weights::error::WeightsError;
use crate::weights::file::WeightsFile;
use crate::weights::folder::Folder;
use crate::weights::progress::{Progress, Stage};
use host::operator_file;

/// Number of bytes that are read and hashed at once.
const HASH_BYTES: usize = 1 << 20;
/// Largest number of pieces that are compared at once.
const THREADS_MAX: usize = 16;

/// Facts on how the kernels of a backend read weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// Version of the layout that the kernels read.
    pub layout: u32,
    /// Whether the kernels read the host's memory, so that weights may be mapped.
    pub maps: bool,
}

/// An open packed file of this target.
pub struct Packed {
    path: PathBuf,
    head: Head,
    table: Table,
    /// Indices of the table's entries, by name.
    names: BTreeMap<String, usize>,
    /// Whether weights are used in the mapped file.
    maps: bool,
    file: WeightsFile,
    /// The mapping, tried at most once, or the reason for which there is none.
    mapping: OnceLock<Result<Arc<Mapping>, String>>,
}

/// Whether the file at `path` begins with the magic bytes of packed weights.
pub fn is_packed(path: &Path) -> bool {
    let mut start = [0; MAGIC.len()];
    let file = operator_file::open(path, u64::MAX);
    let read = file.and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == MAGIC
}

impl Packed {
    /// Opens the file at `path` and checks head, table and size, for the kernels of `reader`.
    ///
    /// # Errors
    /// `Packed` when the file is damaged or another target's, `Truncated` when it was cut short,
    /// and errors of `Folder` when it cannot be opened.
    pub fn open(path: &Path, reader: Reader) -> Result<Packed, WeightsError> {
        let of_path = |error| WeightsError::of_path(path, error);
        let (folder, name) = split(path);
        let opened = Folder::open(&folder)?.file(&name)?;
        let file = WeightsFile::of(opened.file, opened.direct).map_err(of_path)?;
        let (handle, bytes) = (file.handle(), file.bytes());
        let refused = |problem| refused(path, bytes, problem);
        let mut page = vec![0; (bytes as usize).min(HEAD_BYTES)];
        handle.read_exact_at(&mut page, 0).map_err(of_path)?;
        let head = Head::parse(&page, bytes).map_err(refused)?;
        let mut text = vec![0; (head.table.end - head.table.start) as usize];
        let read = handle.read_exact_at(&mut text, head.table.start);
        read.map_err(of_path)?;
        let table = Table::parse(&text, &head).map_err(refused)?;
        check_target(&table, reader.layout).map_err(|problem| WeightsError::Packed {
            path: path.to_path_buf(),
            problem,
        })?;
        let names = table.weights.iter().enumerate();
        let names = names.map(|(index, entry)| (entry.name.clone(), index));
        Ok(Packed {
            path: path.to_path_buf(),
            names: names.collect(),
            head,
            table,
            maps: reader.maps,
            file,
            mapping: OnceLock::new(),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, for copying it.
    pub fn handle(&self) -> io::Result<File> {
        self.file.handle().try_clone()
    }

    /// Table of the file's content.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Content of a small file of the checkpoint; None if there is no such file.
    ///
    /// # Errors
    /// `Truncated` or `Io`.
    pub fn file(&self, name: &str) -> Result<Option<Vec<u8>>, WeightsError> {
        let Some(found) = self.table.files.iter().find(|file| file.name == name) else {
            return Ok(None);
        };
        let mut content = vec![0; found.bytes as usize];
        let read = self.file.handle().read_exact_at(&mut content, found.start);
        read.map_err(|error| self.unread(error))?;
        Ok(Some(content))
    }

    /// Entry of a vector or matrices, the first of which is called `name`.
    ///
    /// # Errors
    /// `Packed` if there is no entry of this name and shape.
    pub(in crate::weights) fn entry(
        &self,
        name: &str,
        shape: [usize; 2],
    ) -> Result<&Entry, WeightsError> {
        let entry = self
            .names
            .get(name)
            .map(|&index| &self.table.weights[index]);
        let fits = entry.filter(|entry| [entry.n, entry.k] == shape);
        fits.ok_or_else(|| {
            self.refused(format!(
                "has no {name} of {shape:?}; pack the weights again"
            ))
        })
    }

    /// Bytes of the entry whose first weight is called `name`; 0 if there is none.
    pub(in crate::weights) fn bytes_of(&self, name: &str) -> u64 {
        let index = self.names.get(name);
        index.map_or(0, |&index| self.table.weights[index].bytes)
    }

    /// Fills `out` from `offset` on; returns how many bytes came past the page cache. Pages of a
    /// file that is mapped, or will be, stay in the cache.
    ///
    /// # Errors
    /// `Truncated` or `Io`.
    pub(in crate::weights) fn read(
        &self,
        offset: u64,
        out: &mut [u8],
    ) -> Result<u64, WeightsError> {
        let read = match self.maps() {
            true => self.file.handle().read_exact_at(out, offset).map(|()| 0),
            false => self.file.read(offset, out),
        };
        read.map_err(|error| self.unread(error))
    }

    /// The file in memory, if the kernel guarantees that nobody changes it there; else the reason
    /// for which it is not mapped. Mapping is tried only once.
    fn mapping(&self) -> Result<&Arc<Mapping>, &str> {
        let made = self.mapping.get_or_init(|| {
            let file = self.file.handle().try_clone();
            let (name, bytes) = (self.path.display().to_string(), self.head.table.end);
            let mapping = file.and_then(|file| Mapping::new(file, name, bytes));
            mapping.map(Arc::new).map_err(|error| error.to_string())
        });
        made.as_ref().map_err(String::as_str)
    }

    /// The mapped file; None until weights in it are used.
    pub fn mapped(&self) -> Option<&Arc<Mapping>> {
        self.mapping.get()?.as_ref().ok()
    }

    /// Whether weights are used in the mapped file instead of copies.
    pub fn maps(&self) -> bool {
        self.maps && self.mapping().is_ok()
    }

    /// Reason for which weights are copied although kernels could read them mapped, if any.
    pub fn detour(&self) -> Option<&str> {
        self.maps.then(|| self.mapping().err()).flatten()
    }

    /// Refuses a file that was written to since it was opened, or whose name leads to another file
    /// now.
    ///
    /// # Errors
    /// `Changed`, or `Io`.
    pub(in crate::weights) fn check_unchanged(&self) -> Result<(), WeightsError> {
        let is_there = || self.file.is_at(&self.path);
        match self
            .file
            .is_unchanged()
            .and_then(|same| Ok(same && is_there()?))
        {
            Ok(true) => Ok(()),
            Ok(false) => Err(WeightsError::Changed { file: self.name() }),
            Err(error) => Err(self.unread(error)),
        }
    }

    /// Reads the whole file and compares it with its digests.
    ///
    /// # Errors
    /// `Packed` naming each piece that differs, `Changed`, `Truncated` or `Io`.
    pub fn check(&self, progress: &Progress) -> Result<(), WeightsError> {
        let damaged: Vec<String> = self
            .damaged(progress)?
            .iter()
            .map(Damage::to_string)
            .collect();
        match damaged[..] {
            [] => self.check_unchanged(),
            _ => {
                let pieces = damaged.join("; ");
                let fix = "copy the file again, or pack the weights again";
                Err(self.refused(format!("{pieces}; {fix}")))
            }
        }
    }

    /// Pieces whose digests differ from the table's.
    fn damaged(&self, progress: &Progress) -> Result<Vec<Damage>, WeightsError> {
        progress.enter(Stage::Hashing);
        let pieces: Vec<_> = Table::pieces(self.head.table.start).collect();
        progress.expect(self.head.table.start - HEAD_BYTES as u64);
        let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            let mut chunk = vec![0; HASH_BYTES];
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(piece) = pieces.get(index) else {
                    return;
                };
                let digest = self.digest(piece.clone(), &mut chunk, progress);
                let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                found.push((index, digest));
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            (0..threads.min(THREADS_MAX)).for_each(|_| drop(scope.spawn(work)));
        });
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort_by_key(|(index, _)| *index);
        let mut damaged = Vec::new();
        for (index, digest) in found {
            let (digest, written) = (digest?, &self.table.pieces[index]);
            damaged.extend((digest != *written).then(|| Damage {
                index,
                bytes: pieces[index].clone(),
                digest,
                written: written.clone(),
            }));
        }
        Ok(damaged)
    }

    fn digest(
        &self,
        piece: Range<u64>,
        chunk: &mut [u8],
        progress: &Progress,
    ) -> Result<String, WeightsError> {
        let (mut digest, mut at) = (Sha256::new(), piece.start);
        while at < piece.end {
            let count = (piece.end - at).min(chunk.len() as u64) as usize;
            let chunk = &mut chunk[..count];
            let direct = self.read(at, chunk)?;
            progress.advance_direct(direct);
            progress.advance(count as u64);
            digest.update(chunk);
            at += count as u64;
        }
        Ok(table::digest(digest))
    }

    /// Name of the file in messages.
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    pub(in crate::weights) fn refused(&self, problem: String) -> WeightsError {
        WeightsError::Packed {
            path: self.path.clone(),
            problem,
        }
    }

    fn unread(&self, error: io::Error) -> WeightsError {
        let (file, bytes) = (self.name(), self.head.table.end);
        match error.kind() {
            ErrorKind::UnexpectedEof => WeightsError::Truncated { file, bytes },
            _ => WeightsError::Io { file, error },
        }
    }
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Packed").field(&self.path).finish()
    }
}

/// Piece whose digest differs from the table's.
struct Damage {
    index: usize,
    bytes: Range<u64>,
    digest: String,
    written: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.bytes;
        let (index, digest, written) = (self.index, &self.digest, &self.written);
        write!(
            f,
            "piece {index} (bytes {start} to {end}) has the digest {digest}, {written} was written"
        )
    }
}

/// The directory of a file, and its name in it.
fn split(path: &Path) -> (PathBuf, String) {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    (
        folder.unwrap_or(Path::new(".")).to_path_buf(),
        name.into_owned(),
    )
}

/// Checks that the file is for this binary's model and kernels.
fn check_target(table: &Table, layout: u32) -> Result<(), String> {
    let again = format!(
        "`{} pack WEIGHTS_DIR {}` packs the weights for this one",
        target::BINARY,
        file_name()
    );
    if table.target != target::BINARY {
        let (found, own) = (&table.target, target::BINARY);
        return Err(format!("is packed for {found}, this is {own}; {again}"));
    }
    if table.manifest != manifest() || table.layout != layout {
        let found = &table.target;
        return Err(format!("is packed for another build of {found}; {again}"));
    }
    Ok(())
}

fn refused(path: &Path, bytes: u64, problem: Problem) -> WeightsError {
    let problem = match problem {
        Problem::Short { expected } => {
            format!("has {bytes} of its {expected} bytes: it was cut short; copy it again")
        }
        Problem::Version(found) => format!(
            "is of version {found} of the format, this binary reads {VERSION}; pack the weights \
             with it, or take the binary that packed them"
        ),
        Problem::Malformed(what) => format!("{what}; copy it again, or pack the weights again"),
    };
    WeightsError::Packed {
        path: path.to_path_buf(),
        problem,
    }
}

/// Matrices that lie together in a packed file, in the kernels' layout.
#[derive(Clone, Copy)]
pub struct PackedStack<'a> {
    packed: &'a Packed,
    entry: &'a Entry,
    progress: &'a Progress,
}

impl<'a> PackedStack<'a> {
    pub(in crate::weights) fn new(
        packed: &'a Packed,
        entry: &'a Entry,
        progress: &'a Progress,
    ) -> PackedStack<'a> {
        PackedStack {
            packed,
            entry,
            progress,
        }
    }

    /// Name of the matrices' layout, which only the backend interprets.
    pub fn storage(&self) -> &'a str {
        &self.entry.storage
    }

    pub fn bytes(&self) -> usize {
        self.entry.bytes as usize
    }

    /// The matrices' bytes in the mapped file, which count as read; None if the file is not mapped.
    pub fn map(&self) -> Option<Stretch> {
        let mapping = self.packed.mapping().ok().filter(|_| self.packed.maps)?;
        self.progress.advance(self.entry.bytes);
        let range = self.entry.range();
        let range = range.start as usize..range.end as usize;
        Some(Stretch::new(mapping.clone(), range))
    }

    /// Fills `out` with the matrices' bytes from `offset` on.
    ///
    /// # Errors
    /// `Truncated` or `Io`.
    ///
    /// # Panics
    /// If the matrices have fewer bytes.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), WeightsError> {
        assert!(offset + out.len() <= self.bytes());
        let direct = self.packed.read(self.entry.start + offset as u64, out)?;
        self.progress.advance_direct(direct);
        self.progress.advance(out.len() as u64);
        Ok(())
    }

    /// Error for a layout or size of matrices that the backend does not know.
    pub fn unknown(&self) -> WeightsError {
        let Entry {
            name,
            storage,
            bytes,
            ..
        } = self.entry;
        self.packed.refused(format!(
            "has {name} as {storage} in {bytes} bytes, which this device does not read; pack the \
             weights again"
        ))
    }
}
