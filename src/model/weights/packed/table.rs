//! The first page of a packed file and its table, as bytes.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::weights::hex::hex;

/// First bytes of a packed file.
pub const MAGIC: [u8; 8] = *b"ATLASPKD";
/// Version of the format; files of other versions are refused.
pub const VERSION: u32 = 1;
/// Bytes of which the offsets of weights and table are multiples: a page, and a block of any disk.
pub const ALIGN: u64 = 4096;
/// Bytes before the first weight.
pub const HEAD_BYTES: usize = ALIGN as usize;
/// Bytes of a piece, which has one digest.
pub const PIECE_BYTES: u64 = 64 << 20;
/// Storage of vectors: little-endian F32.
pub const VECTOR: &str = "f32";
/// Largest table in bytes; ten times that of a model of 12,000 experts.
const TABLE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of the head that are used; the rest is zero.
const USED_BYTES: usize = 64;

/// Position of the table, and its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes from the table's start to the end of the file.
    pub table: Range<u64>,
    pub sha256: [u8; 32],
}

/// Reason for which bytes are no head or table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The file ends before the `expected` bytes.
    Short { expected: u64 },
    /// The file has another version of the format.
    Version(u32),
    /// Fault of another kind, in words.
    Malformed(String),
}

impl Problem {
    fn malformed(what: impl Into<String>) -> Problem {
        Problem::Malformed(what.into())
    }
}

impl Head {
    /// The head of a file whose table begins at `start`.
    pub fn of(start: u64, table: &[u8]) -> Head {
        Head {
            table: start..start + table.len() as u64,
            sha256: Sha256::digest(table).into(),
        }
    }

    /// The first page as bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut page = Vec::with_capacity(HEAD_BYTES);
        page.extend(MAGIC);
        page.extend(VERSION.to_le_bytes());
        page.extend([0; 4]);
        page.extend(self.table.start.to_le_bytes());
        page.extend(self.table.end.to_le_bytes());
        page.extend(self.sha256);
        page.resize(HEAD_BYTES, 0);
        page
    }

    /// Reads the first page of a file of `file_bytes` bytes.
    pub fn parse(page: &[u8], file_bytes: u64) -> Result<Head, Problem> {
        let expected = HEAD_BYTES as u64;
        if page.len() < HEAD_BYTES {
            return Err(Problem::Short { expected });
        }
        let number = |at: usize| u64::from_le_bytes(*page[at..].first_chunk().expect("a page"));
        if page[..MAGIC.len()] != MAGIC {
            return Err(Problem::malformed("does not begin as packed weights do"));
        }
        let version = u32::from_le_bytes(*page[8..].first_chunk().expect("a page"));
        if version != VERSION {
            return Err(Problem::Version(version));
        }
        let unused = page[12..16].iter().chain(&page[USED_BYTES..HEAD_BYTES]);
        let (start, end) = (number(16), number(24));
        let fits = start >= expected && start < end && end - start <= TABLE_BYTES_MAX;
        if !fits || !start.is_multiple_of(ALIGN) || unused.copied().any(|byte| byte != 0) {
            return Err(Problem::malformed("its first page is damaged"));
        }
        match file_bytes {
            found if found < end => Err(Problem::Short { expected: end }),
            found if found > end => Err(Problem::Malformed(format!(
                "has {found} bytes, {end} were written"
            ))),
            _ => Ok(Head {
                table: start..end,
                sha256: *page[32..].first_chunk().expect("a page"),
            }),
        }
    }
}

/// Content of a packed file, in the order of its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Name of the binary whose kernels read the file.
    pub target: String,
    /// SHA-256 of the expanded manifest of that binary.
    pub manifest: String,
    /// Version of the layout that the binary's kernels read.
    pub layout: u32,
    /// Whether the weights are drawn.
    pub drawn: bool,
    pub weights: Vec<Entry>,
    pub files: Vec<Text>,
    /// SHA-256 of every `PIECE_BYTES` between head and table.
    pub pieces: Vec<String>,
}

/// A vector, or matrices that lie together, in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Name of the entry's first weight, as `Weight::key` gives it.
    pub name: String,
    /// Number of rows; for a vector of elements.
    pub n: usize,
    /// Number of columns; 1 for a vector.
    pub k: usize,
    /// Name of the layout of the entry's numbers, which only the backend interprets.
    pub storage: String,
    pub start: u64,
    pub bytes: u64,
}

/// A small file of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    pub name: String,
    pub start: u64,
    pub bytes: u64,
}

impl Entry {
    pub fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.bytes)
    }
}

impl Text {
    pub fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.bytes)
    }
}

impl Table {
    /// The table as bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers are JSON")
    }

    /// Reads the table that `head` points to. All entries must lie between head and table, under
    /// distinct names.
    pub fn parse(bytes: &[u8], head: &Head) -> Result<Table, Problem> {
        if Sha256::digest(bytes)[..] != head.sha256 {
            return Err(Problem::malformed("its table is damaged"));
        }
        let table: Table = serde_json::from_slice(bytes)
            .map_err(|error| Problem::Malformed(format!("its table is malformed: {error}")))?;
        table.check(head)?;
        Ok(table)
    }

    fn check(&self, head: &Head) -> Result<(), Problem> {
        let data = HEAD_BYTES as u64..head.table.start;
        let outside = |range: &Range<u64>| range.start < data.start || range.end > data.end;
        let mut names = BTreeSet::new();
        for entry in &self.weights {
            let aligned = entry.start.is_multiple_of(ALIGN);
            if outside(&entry.range()) || !aligned || !names.insert(&entry.name) {
                let name = &entry.name;
                return Err(Problem::Malformed(format!(
                    "its table has no place for {name}"
                )));
            }
        }
        for file in &self.files {
            if outside(&file.range()) || !names.insert(&file.name) {
                let name = &file.name;
                return Err(Problem::Malformed(format!(
                    "its table has no place for {name}"
                )));
            }
        }
        let pieces = (data.end - data.start).div_ceil(PIECE_BYTES);
        match self.pieces.len() as u64 == pieces {
            true => Ok(()),
            false => Err(Problem::malformed("its table lacks digests")),
        }
    }

    /// Byte ranges of the pieces of a file whose table begins at `end`.
    pub fn pieces(end: u64) -> impl Iterator<Item = Range<u64>> {
        let starts = (HEAD_BYTES as u64..end).step_by(PIECE_BYTES as usize);
        starts.map(move |start| start..end.min(start + PIECE_BYTES))
    }
}

/// Digest of a piece as text.
pub fn digest(piece: Sha256) -> String {
    hex(&piece.finalize())
}
